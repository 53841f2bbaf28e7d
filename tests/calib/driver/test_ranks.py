"""The driver's side of a launch, with a launcher that is a script of the test."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from calib.driver import listen
from calib.driver.listen import RankEvent
from calib.driver.ranks import OF_SCIKIT_LEARN, RanksEnded, require_variables, run_ranks
from calib.foundation.errors import FileError, InputError, MachineError, MeasurementError

# called as `python fake.py N python -m calib ARGUMENTS`
HEAD = """
import json, os, sys
n, arguments = int(sys.argv[1]), sys.argv[5:]
assert sys.argv[3:5] == ["-m", "calib"], sys.argv
def event(**content):
    return "calib-event " + json.dumps(content)
"""


class Launch:
    """A launcher that runs `body` in place of ranks."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "ranks.log"
        self.script = directory / "fake.py"
        self.events: list[RankEvent] = []

    def run(
        self,
        body: str,
        ranks: int = 2,
        arguments: tuple[str, ...] = ("measure",),
        hang_s: float | None = None,
        variables: dict[str, str] | None = None,
    ) -> Any:
        self.script.write_text(HEAD + body)
        launcher = f"{sys.executable} {self.script} {{n}}"
        return run_ranks(
            launcher,
            ranks,
            arguments,
            self.log,
            self.events.append,
            "KEPT",
            hang_s,
            variables=variables,
        )


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(tmp_path)


def test_events_are_passed_on_and_the_rest_goes_to_the_log(launch: Launch) -> None:
    launch.run(
        """
print(event(event="case", n=n, arguments=arguments))
print("a warning of some library")
print("complaint", file=sys.stderr)
print(event(event="session"))
""",
        ranks=3,
        arguments=("measure", "-o", "a b"),
    )
    assert launch.events == [
        {"event": "case", "n": 3, "arguments": ["measure", "-o", "a b"]},
        {"event": "session"},
    ]
    log = launch.log.read_text()
    assert log.startswith("$ ") and "fake.py 3" in log.splitlines()[0]
    assert "a warning of some library" in log and "complaint" in log
    assert "calib-event" not in log


def test_ranks_have_the_environment_of_the_shell_and_what_was_asked_for(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a plain program of the launcher's: no threads, no allocator, nothing set by itself."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    body = """
ours = {name: value for name, value in os.environ.items() if not name.startswith("CALIB_")}
print(event(event="session", variables=ours, asked=os.environ["CALIB_SET"]))
"""
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    for name in OF_SCIKIT_LEARN:
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    import_module("sklearn")
    assert OF_SCIKIT_LEARN.items() <= os.environ.items()
    launch.run(body)
    launch.run(body, variables={"MALLOC_TRIM_THRESHOLD_": "9", "B": "two words"})
    plain, asked = (
        {k: v for k, v in e["variables"].items() if k != "LC_CTYPE"} for e in launch.events
    )
    assert plain == before | {"PYTHONUNBUFFERED": "1"}
    assert asked == plain | {"MALLOC_TRIM_THRESHOLD_": "9", "B": "two words"}
    assert [each["asked"] for each in launch.events] == ["", "MALLOC_TRIM_THRESHOLD_ B"]


def test_a_rank_without_its_variables_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that passes nothing on, or a person who started the ranks."""
    monkeypatch.setenv("A", "1")
    require_variables({"A": "1"})
    monkeypatch.delenv("B", raising=False)
    with pytest.raises(InputError, match="started without A=2 B='x y': export that"):
        require_variables({"A": "2", "B": "x y"})


TAGGED = """
print({tag!r} + event(event="case", done=1))
print({tag!r} + event(event="error", message="no good"))
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        # the first one, whatever the status: it says why; the others follow from it
        (
            'print(event(event="error", message="a wrong buffer")); '
            'print(event(event="error", message="rank 0 was aborted")); sys.exit(7)',
            "a wrong buffer",
        ),
        ('print(event(event="error", message="wrong"))', "wrong"),
        # mpiexec forwards pieces of lines: print() writes the text and the newline one by one
        (
            'line = event(event="error", message="the loss is nan"); '
            'sys.stdout.write(line + line + "\\n\\n"); sys.exit(2)',
            "the loss is nan",
        ),
        # Open MPI --tag-output, srun --label, Intel MPI -prepend-rank
        (TAGGED.format(tag="[1,0]<stdout>:"), "no good"),
        (TAGGED.format(tag="0: "), "no good"),
        (TAGGED.format(tag="[0] "), "no good"),
    ],
)
def test_a_reported_error_is_raised(launch: Launch, body: str, message: str) -> None:
    with pytest.raises(MeasurementError, match=f"^{message}$"):
        launch.run(body)
    assert launch.events == ([{"event": "case", "done": 1}] if message == "no good" else [])


def test_a_status_names_the_log_and_what_was_kept(launch: Launch) -> None:
    with pytest.raises(MachineError) as error:
        launch.run('print("all is lost", file=sys.stderr); sys.exit(3)')
    message = str(error.value)
    assert "\n" not in message
    assert all(part in message for part in ("status 3", str(launch.log), "all is lost", "KEPT"))
    assert isinstance(error.value, RanksEnded)
    assert error.value.reason == message.removesuffix("; KEPT")


# MPICH's, as it stands in the log: the line that says something is chosen
BANNER = """
print("=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES")
print("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)")
print("This typically refers to a problem with your application.")
sys.exit(9)
"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (BANNER, r"a rank died: .* says: Killed \(signal 9\)"),
        ("import signal; os.kill(os.getpid(), signal.SIGKILL)", "status -9"),
    ],
)
def test_ranks_that_a_signal_ended(launch: Launch, body: str, reason: str) -> None:
    with pytest.raises(RanksEnded, match=f"{reason}.*; KEPT$"):
        launch.run(body)


HERE = """
for rank, host in enumerate(["left.net", "right.net", "right.net"]):
    print(event(event="here", rank=rank, pid=4240 + (rank == 2), host=host))
"""


@pytest.mark.parametrize(
    ("banner", "who"),
    [
        ("=   PID 4241 RUNNING AT right", "rank 2 on right.net"),
        ("=   PID 4240 RUNNING AT right", "rank 1 on right.net"),  # a PID is of its host
        ("=   PID 4240 RUNNING AT left", "rank 0 on left.net"),
        ("=   PID 4240 RUNNING AT elsewhere", "a rank"),  # of either host
        ("=   PID 77 RUNNING AT left", "a rank"),
        ("=   RANK 1 PID 77 RUNNING AT left", "rank 1 on right.net"),  # Intel MPI
        ("srun: error: node7: task 2: Killed", "rank 2 on right.net"),
        ("mpirun noticed that process rank 1 with PID 77 on node x exited", "rank 1 on right.net"),
        (
            "=   PID 4241 RUNNING AT right\nsrun: error: node7: task 0: Killed",
            "rank 2 on right.net",
        ),
        ("something else", "a rank"),
    ],
)
def test_the_rank_that_died_is_named(launch: Launch, banner: str, who: str) -> None:
    """As launchers put it: by the process, which the ranks have told before, or by the rank."""
    with pytest.raises(RanksEnded) as error:
        launch.run(HERE + f"print({banner!r}, file=sys.stderr); sys.exit(9)", ranks=3)
    assert error.value.reason.startswith(f"{who} died: ")
    assert launch.events == []


def test_a_rank_of_an_earlier_launch_is_not_the_one_that_died(launch: Launch) -> None:
    body = "print('srun: error: n: task 1: Killed', file=sys.stderr); sys.exit(9)"
    with pytest.raises(RanksEnded, match=r"^rank 1 died"):
        launch.run(body)
    with pytest.raises(RanksEnded, match=r"^a rank died"):
        launch.run("sys.exit(9)")


def test_half_an_event_is_noise(launch: Launch) -> None:
    launch.run('print("calib-event {\\"event\\": "); print(event(event="case"))')
    assert launch.events == [{"event": "case"}]
    assert 'calib-event {"event": ' in launch.log.read_text()


def test_the_log_of_an_earlier_launch_is_kept(launch: Launch) -> None:
    launch.run('print("first")')
    launch.run('print("second")')
    log = launch.log.read_text()
    assert log.index("first") < log.index("second") and log.count("$ ") == 2


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError):
        run_ranks(f"{sys.executable} {{n}}", 1, [], tmp_path / "file" / "log", print, "")
    with pytest.raises(FileError, match="cannot write"):
        run_ranks(f"{sys.executable} {{n}}", 1, [], tmp_path, print, "")


@pytest.mark.parametrize(
    ("launcher", "error"),
    [
        ("nosuchprogram -n {n}", MachineError),
        ("bogus", InputError),
        ("mpiexec -n '{n}", InputError),
    ],
)
def test_launchers_that_are_none(tmp_path: Path, launcher: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="launcher"):
        run_ranks(launcher, 2, [], tmp_path / "log", print, "")
    assert not (tmp_path / "log").exists()


STUCK = """
import time
def stuck(rank, where="barrier (mpi.py:47)"):
    print(event(event="stuck", rank=rank, silent_s=25.2, where=where), flush=True)
"""


@pytest.mark.parametrize(
    ("body", "ranks", "reason"),
    [
        ("stuck(0)", 2, "rank 1 does not answer"),
        ("stuck(1)", 4, "ranks 0, 2, 3 do not answer"),
        ("stuck(3)", 9, "8 ranks (0, 1, 2, 4, 5, 6, ...) do not answer"),
        ('print(event(event="idle", rank=2)); stuck(0)', 3, "rank 1 does not answer"),
        # one that was idle in an earlier case is not excused
        (
            'print(event(event="idle", rank=1)); print(event(event="case")); stuck(0)',
            2,
            "rank 1 does not answer",
        ),
        (f"{HERE}stuck(0); stuck(2)", 3, "rank 1 on right.net does not answer"),
        (
            'stuck(2); stuck(1, "evict (caches.py:9)"); stuck(0)',
            3,
            "rank 1 in evict (caches.py:9), ranks 0, 2 in barrier (mpi.py:47)",
        ),
    ],
)
def test_ranks_that_hang(launch: Launch, body: str, ranks: int, reason: str) -> None:
    """Who did not speak is named; where all did, the places say who holds up the others."""
    with pytest.raises(RanksEnded) as error:
        launch.run(STUCK + body + "; sys.exit(3)", ranks, hang_s=25.0)
    assert error.value.reason == f"no progress for 25 s: {reason}"


def test_a_launcher_that_does_not_end_its_ranks_is_ended(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun without --kill-on-bad-exit: one rank has spoken and ended, the others wait for ever."""
    monkeypatch.setattr(listen, "STUCK_WAIT_SECONDS", 0.2)
    with pytest.raises(RanksEnded, match="rank 0 does not answer"):
        launch.run(STUCK + "stuck(1); time.sleep(600)", hang_s=25.0)


@pytest.mark.parametrize("alive", [True, False])
def test_no_word_from_rank_0(launch: Launch, monkeypatch: pytest.MonkeyPatch, alive: bool) -> None:
    """Stopped, or its host gone; before its first word it has longer."""
    monkeypatch.setattr(listen, "ALIVE_SECONDS", 0.5)
    word = 'print(event(event="alive"), flush=True);' if alive else ""
    with pytest.raises(RanksEnded) as error:
        launch.run(f"import time; {word} time.sleep(600)", hang_s=0.5)
    assert error.value.reason == f"no word from rank 0 for {1 if alive else 6} s"


def test_alive_is_not_passed_on(launch: Launch) -> None:
    launch.run('print(event(event="alive")); print(event(event="session"))', hang_s=25.0)
    assert launch.events == [{"event": "session"}]


def test_ranks_hold_what_they_are_given(launch: Launch, tmp_path: Path) -> None:
    """A file descriptor of the driver, under the same number."""
    with (tmp_path / "lock").open("w") as lock:
        launch.script.write_text(f"import os; os.write({lock.fileno()}, b'held')")
        launcher = f"{sys.executable} {launch.script} {{n}}"
        run_ranks(launcher, 1, [], launch.log, print, "", keep=[lock.fileno()])
    assert (tmp_path / "lock").read_text() == "held"
