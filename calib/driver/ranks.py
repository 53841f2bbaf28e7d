"""Start the ranks under a launcher, listen to them, stop them.

Ranks that the driver started say what they do as lines `calib-event {json}` on stdout; everything
else that they print goes to a log file. What ended them, the driver says in one line.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import sleep
from traceback import walk_tb
from typing import TYPE_CHECKING, NoReturn, TextIO

from calib.driver.listen import PREFIX, RankEvent, listen, stuck_reason, who_died
from calib.foundation.errors import (
    FileError,
    InputError,
    Interrupted,
    MachineError,
    MeasurementError,
)
from calib.foundation.file_system import look_afresh
from calib.foundation.files import ensure_directory, open_own
from calib.microbench.machine.launchers import (
    RANK_VARIABLES,
    SET_VARIABLE,
    launch_line,
    launched,
    passing_on,
)
from calib.microbench.timing.watchdog import HANG_VARIABLE

if TYPE_CHECKING:  # it imports NumPy, which every verb would pay for
    from calib.microbench.communicators.mpi import MpiCommunicator

EVENTS_VARIABLE = "CALIB_EVENTS"
RANKS_VARIABLE = "CALIB_RANKS"
COMMAND_VARIABLE = "CALIB_COMMAND"
# scikit-learn sets these when it is imported, as for a fit; a plain program does not have them
OF_SCIKIT_LEARN = {"KMP_DUPLICATE_LIB_OK": "True", "KMP_INIT_AT_FORK": "FALSE"}
STOP_SECONDS = 3.0
FIRST_WORD_SECONDS = 1.0
LAST_WORD_SECONDS = 0.3
DESERTED_STATUS = 4


class RanksEnded(MachineError):
    """The ranks ended, or were ended, before they were done; `reason` is what the driver saw."""

    def __init__(self, reason: str, going_on: str) -> None:
        super().__init__(f"{reason}; {going_on}")
        self.reason = " ".join(reason.split())


def as_rank() -> bool:
    """Whether this process is a rank of a launch, not the driver."""
    return launched()


def driven() -> bool:
    """Whether this rank was started by a driver, not by a person."""
    return EVENTS_VARIABLE in os.environ


def speaks() -> bool:
    """Whether this process is the one that tells a person what all ranks would say alike."""
    numbers = [os.environ[name] for name in RANK_VARIABLES if name in os.environ]
    return not numbers or (not driven() and numbers[0] == "0")


def join_ranks() -> MpiCommunicator:
    """The communicator of all ranks of this launch; the driver is told where each is.

    Raises MachineError when MPI sees another number of ranks than the driver started: then mpiexec and
    the library that mpi4py loads are of different MPIs, and every rank believes it is alone.
    """
    # late: only ranks need it, and NumPy with it
    from calib.microbench.communicators.mpi import MpiCommunicator, library_version

    communicator = MpiCommunicator()
    started = os.environ.get(RANKS_VARIABLE)
    if started is not None and communicator.size != int(started):
        raise MachineError(
            f"{started} ranks were started, but MPI sees {communicator.size}: the launcher and "
            f"{library_version()} (loaded by mpi4py) are of different MPIs; use one of them for "
            "both (MPI=system, MPI4PY_LIBMPI)"
        )
    if driven():
        here = {"rank": communicator.rank, "pid": os.getpid(), "host": socket.gethostname()}
        _write_event({"event": "here", **here})
    return communicator


def require_variables(variables: Mapping[str, str]) -> None:
    """Raise InputError where this rank was started without a variable that it is to run with."""
    words = [f"{k}={shlex.quote(v)}" for k, v in variables.items() if os.environ.get(k) != v]
    if words:
        raise InputError(
            f"the ranks were started without {' '.join(words)}: export that, and let the launcher pass "
            "it on"
        )


def emit(event: RankEvent, to: TextIO | None = None) -> None:
    """Report what a rank does: to the driver, or to a person who launched the ranks directly.

    A person reads it on stdout, or on `to` where stdout is for a result.
    """
    if driven():
        _write_event(event)
    elif event["event"] == "case":
        print(f"{event['done']}/{event['of']} {event['label']}", file=to, flush=True)
    elif event["event"] == "failed":
        print(f"failed: {event['label']}: {event['reason']}", file=to, flush=True)
    elif event["event"] == "chosen" and event["line"]:
        print(event["line"], file=to, flush=True)
    elif event["event"] == "stuck":
        print(
            f"calib: rank {event['rank']}: no progress for {event['silent_s']:.0f} s, "
            f"in {event['where']}",
            file=sys.stderr,
            flush=True,
        )


def fail_rank(message: str) -> NoReturn:
    """End all ranks because this one cannot go on.

    Often all ranks fail alike: rank 0 speaks first, and its abort ends the others before they do.
    """
    communicator = None
    if "mpi4py.MPI" in sys.modules:
        # late: as in join_ranks
        from calib.microbench.communicators.mpi import MpiCommunicator

        communicator = MpiCommunicator()
        if communicator.rank != 0:
            sleep(FIRST_WORD_SECONDS)
    if driven():
        _write_event({"event": "error", "message": message})
    else:
        print(f"calib: error: {message}", file=sys.stderr, flush=True)
    if communicator is not None:
        sleep(LAST_WORD_SECONDS)  # an abort may overtake what was written
        communicator.abort(2)
    os._exit(2)


def words_of(error: BaseException) -> str:
    """One line on an unexpected error of a rank, with the line of the user's code that raised it.

    Libraries wrap errors in their own: the first one is named too.
    """
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    text = f"{type(error).__name__} on a rank{_users_line(first)}: {error}"
    return text if first is error else f"{text}; because of {type(first).__name__}: {first}"


def _users_line(error: BaseException) -> str:
    """Where the user's own code raised it, as ", at FILE, line N"; "" where ours did."""
    if "torch" not in sys.modules:
        return ""
    # late: it imports PyTorch
    from calib.oracle.trace.lines import INSTALLED, OURS, at, users_place

    frames = [(f.f_code.co_filename, line) for f, line in walk_tb(error.__traceback__)]
    last = max((n for n, (file, _) in enumerate(frames) if file.startswith(OURS)), default=-1)
    place = users_place(reversed(frames[last + 1 :]))
    if place is None or place[0].startswith(INSTALLED) or not Path(place[0]).is_file():
        return ""
    return at(place)


def _write_event(event: RankEvent) -> None:
    """One write of a whole line: ranks share the pipe, and print() writes the newline separately."""
    try:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), (PREFIX + json.dumps(event) + "\n").encode())
    except OSError:
        # nobody listens: driver or launcher were killed. Going on would be beside their successors
        os._exit(DESERTED_STATUS)


def run_ranks(
    launcher: str,
    ranks: int,
    arguments: Sequence[str],
    log: Path,
    on_event: Callable[[RankEvent], None],
    going_on: str | Callable[[], str],
    hang_s: float | None = None,
    keep: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
) -> None:
    """Start `ranks` ranks of `calib ARGUMENTS` and pass their events on until they end.

    With `hang_s`, ranks without progress for so many seconds end themselves
    (microbench/timing/watchdog.py), and are ended when rank 0 falls silent. The ranks inherit the file
    descriptors `keep`: a lock stays held until the last of them has ended. They have the environment of
    this process, and `variables`, which somebody asked for; nothing else that changes times is set.

    Raises MeasurementError with the error that a rank reported, RanksEnded when they died or hung,
    MachineError when they cannot be started, and Interrupted by the user. RanksEnded and Interrupted
    end with `going_on`: what is left and how to go on.
    """

    def left() -> str:
        return going_on if isinstance(going_on, str) else going_on()

    variables = variables or {}
    ours = {
        **variables,
        EVENTS_VARIABLE: "1",
        "PYTHONUNBUFFERED": "1",
        SET_VARIABLE: " ".join(variables),
        RANKS_VARIABLE: str(ranks),
        COMMAND_VARIABLE: "",
        **({} if hang_s is None else {HANG_VARIABLE: str(hang_s)}),
    }
    started = passing_on(launch_line(launcher, ranks), ours)
    line = [*started, sys.executable, "-m", "calib", *arguments]
    ours[COMMAND_VARIABLE] = " ".join(line)
    inherited = {k: v for k, v in os.environ.items() if OF_SCIKIT_LEARN.get(k) != v}
    environment = {**inherited, **ours}
    ensure_directory(log.parent)
    with os.fdopen(open_own(log, append=True), "ab", buffering=0) as errors:
        try:
            errors.write(f"$ {' '.join(line)}\n".encode())
        except OSError as error:
            raise FileError(f"cannot write {log}: {error.strerror}") from error
        try:
            child = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                bufsize=0,
                pass_fds=tuple(keep),
            )
        except OSError as error:
            raise MachineError(f"cannot start {line[0]}: {error.strerror}") from error
        try:
            heard = listen(child, errors, on_event, hang_s)
            status = 0 if heard.given_up else child.wait()
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; {left()}") from None
        finally:
            _stop(child)
            look_afresh(log.parent)  # what rank 0 has written there, perhaps on another host
    if heard.error:
        raise MeasurementError(heard.error)
    if hang_s is not None and (heard.stuck or heard.given_up):
        raise RanksEnded(stuck_reason(heard, ranks, hang_s), left())
    if status != 0:
        program = Path(line[0]).name
        who = who_died(heard, _newest(log))
        raise RanksEnded(
            f"{who} died: {program} ended with status {status}; {_reason(log)}", left()
        )


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End the launcher, which ends its ranks; at once, if it does not do so when asked."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _newest(log: Path) -> str:
    """The output of the last launch, its command line first."""
    text = log.read_text(errors="replace")
    return text[text.rfind("\n$ ") + 1 :]


def _reason(log: Path) -> str:
    """What the log says about the last launch: its last error, else the launcher's own words."""
    lines = [line.strip() for line in _newest(log).splitlines()[1:]]
    lines = [line for line in lines if any(map(str.isalpha, line))]
    errors = [line for line in lines if "error" in line.lower()]
    strings = [found[1] for line in lines if (found := re.search(r"EXIT STRING: (.+)", line))]
    if not lines:
        return f"{log} says nothing"
    return f"{log} says: {(errors[-1:] or strings or lines)[0][:200]}"
