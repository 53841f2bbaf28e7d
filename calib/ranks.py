"""Between the driver and the ranks: start them under a launcher, hear from rank 0, stop them.

Ranks that the driver started say what they do as lines `calib-event {json}` on stdout; everything
else that they print goes to a log file.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import sleep
from typing import IO, TYPE_CHECKING, Any, NoReturn

from foundation.errors import FileError, Interrupted, MachineError, MeasurementError
from foundation.files import ensure_directory
from microbench.launchers import launch_line
from microbench.placement import launched

if TYPE_CHECKING:
    from microbench.communicators.mpi import MpiCommunicator

EVENTS_VARIABLE = "CALIB_EVENTS"
RANKS_VARIABLE = "CALIB_RANKS"
PREFIX = "calib-event "
# one thread a rank: the cores belong to the ranks
RANK_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
STOP_SECONDS = 10.0
FIRST_WORD_SECONDS = 1.0
LAST_WORD_SECONDS = 0.3

Event = dict[str, Any]


def as_rank() -> bool:
    """Whether this process is a rank of a launch, not the driver."""
    return launched()


def join_ranks() -> MpiCommunicator:
    """The communicator of all ranks of this launch.

    Raises MachineError when MPI sees another number of ranks than the driver started: then mpiexec
    and the library that mpi4py loads are of different MPIs, and every rank believes to be alone.
    """
    from microbench.communicators.mpi import MpiCommunicator, library_version

    communicator = MpiCommunicator()
    started = os.environ.get(RANKS_VARIABLE)
    if started is not None and communicator.size != int(started):
        raise MachineError(
            f"{started} ranks were started, but MPI sees {communicator.size}: the launcher and "
            f"{library_version()} (loaded by mpi4py) are of different MPIs; use one of them for "
            "both (MPI=system, MPI4PY_LIBMPI)"
        )
    return communicator


def emit(event: Event) -> None:
    """Rank 0 says what it does: to the driver, or to a person who launched the ranks directly."""
    if EVENTS_VARIABLE in os.environ:
        _write_event(event)
    elif event["event"] == "case":
        print(f"{event['done']}/{event['of']} {event['label']}", flush=True)
    elif event["event"] == "failed":
        print(f"failed: {event['label']}: {event['reason']}", flush=True)


def fail_rank(message: str) -> NoReturn:
    """End all ranks because this one cannot go on.

    Often all ranks fail alike: rank 0 speaks first, and its abort ends the others before they do.
    """
    communicator = None
    if "mpi4py.MPI" in sys.modules:
        from microbench.communicators.mpi import MpiCommunicator

        communicator = MpiCommunicator()
        if communicator.rank != 0:
            sleep(FIRST_WORD_SECONDS)
    if EVENTS_VARIABLE in os.environ:
        _write_event({"event": "error", "message": message})
    else:
        print(f"calib: error: {message}", file=sys.stderr, flush=True)
    if communicator is not None:
        sleep(LAST_WORD_SECONDS)  # an abort may overtake what was written
        communicator.abort(2)
    os._exit(2)


def _write_event(event: Event) -> None:
    """One write of a whole line: ranks share the pipe, and print() writes the newline apart."""
    sys.stdout.flush()
    os.write(sys.stdout.fileno(), (PREFIX + json.dumps(event) + "\n").encode())


def run_ranks(
    launcher: str,
    ranks: int,
    arguments: Sequence[str],
    log: Path,
    on_event: Callable[[Event], None],
    going_on: str,
) -> None:
    """Start `ranks` ranks of `calib ARGUMENTS` and pass their events on until they end.

    Raises the error that a rank reported, MachineError when they could not be started or died, and
    Interrupted (naming `going_on`) when the user stopped them.
    """
    line = [*launch_line(launcher, ranks), sys.executable, "-m", "calib", *arguments]
    environment = {**os.environ, **RANK_ENVIRONMENT, EVENTS_VARIABLE: "1"}
    environment[RANKS_VARIABLE] = str(ranks)
    environment["CALIB_COMMAND"] = " ".join(line)
    ensure_directory(log.parent)
    try:
        errors = log.open("ab")
    except OSError as error:
        raise FileError(f"cannot write {log}: {error.strerror}") from error
    with errors:
        errors.write(f"$ {' '.join(line)}\n".encode())
        errors.flush()
        try:
            child = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                env=environment,
            )  # fmt: skip
        except OSError as error:
            raise MachineError(f"cannot start {line[0]}: {error.strerror}") from error
        try:
            message = _listen(child, errors, on_event)
            status = child.wait()
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; {going_on}") from None
        finally:
            _stop(child)
    if message:
        raise MeasurementError(message)
    if status != 0:
        raise MachineError(
            f"the ranks ended with status {status} before they were done ({_reason(log)}); "
            f"{going_on}"
        )


def _listen(
    child: subprocess.Popen[bytes], log: IO[bytes], on_event: Callable[[Event], None]
) -> str:
    """Pass on events until the ranks close stdout; the first error they reported, or ""."""
    message = ""
    assert child.stdout is not None
    for raw in child.stdout:
        events = events_in(raw.decode(errors="replace"))
        if not events:
            log.write(raw)
        for event in events:
            if event.get("event") == "error":
                message = message or str(event["message"])
            else:
                on_event(event)
    return message


def events_in(line: str) -> list[Event]:
    """The events of a line: a launcher may put a rank's tag before one, or join two lines."""
    events = []
    at = line.find(PREFIX)
    while at >= 0:
        with contextlib.suppress(ValueError):
            event, _ = json.JSONDecoder().raw_decode(line, at + len(PREFIX))
            if isinstance(event, dict):
                events.append(event)
        at = line.find(PREFIX, at + len(PREFIX))
    return events


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End the launcher, which ends its ranks; at once, if it does not do so when asked."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _reason(log: Path) -> str:
    """What the newest part of the log says: its last error, else how it begins."""
    text = log.read_text(errors="replace")
    lines = [line.strip() for line in text[text.rfind("$ ") :].splitlines()[1:]]
    lines = [line for line in lines if any(map(str.isalpha, line))]
    errors = [line for line in lines if "error" in line.lower()]
    if not lines:
        return f"{log} says nothing"
    return f"{log} says: {(errors[-1:] or lines)[0][:200]}"
