"""The thread that notices that its rank makes no progress. Limits are short; no duration is asserted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import pytest

from calib.microbench.timing import watchdog
from calib.microbench.timing.watchdog import (
    HANG_SECONDS,
    HANG_VARIABLE,
    PROGRESS,
    STUCK_STATUS,
    Watchdog,
    beat,
    hang_seconds,
    idle,
    watching,
)

PATIENCE_S = 60.0


class Spy:
    """Takes what a watchdog reports, and the status that it would end the process with."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.statuses: list[int] = []

    def wait(self, until: Callable[[], bool]) -> None:
        deadline = monotonic() + PATIENCE_S
        while not until():
            assert monotonic() < deadline
            sleep(0.005)

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name]


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    monkeypatch.setattr(watchdog, "LAST_WORDS_SECONDS", 0.0)
    return Spy()


@contextmanager
def watched(spy: Spy, limit_s: float, rank: int = 1) -> Iterator[None]:
    dog = Watchdog(rank, spy.events.append, limit_s, spy.statuses.append)
    dog.start()
    try:
        yield
    finally:
        dog.stop()


def test_a_rank_that_stands_still_speaks_and_ends_itself(spy: Spy) -> None:
    def stands_still() -> None:
        spy.wait(lambda: bool(spy.statuses))

    with watched(spy, 0.05, rank=3):
        beat()
        stands_still()
    (stuck,) = spy.named("stuck")
    assert stuck["rank"] == 3 and stuck["silent_s"] >= 0.05
    assert spy.statuses == [STUCK_STATUS]


def test_it_says_in_which_function_the_rank_stands(spy: Spy, capsys: Any) -> None:
    """The innermost Python function of the rank's own thread; the whole stack is in the log."""
    lock = threading.Lock()
    lock.acquire()

    def blocked_in_c() -> None:
        lock.acquire(timeout=PATIENCE_S)

    def ended(status: int) -> None:
        spy.statuses.append(status)
        lock.release()

    dog = Watchdog(0, spy.events.append, 0.05, ended)
    dog.start()
    beat()
    blocked_in_c()
    dog.stop()
    (stuck,) = spy.named("stuck")
    assert stuck["where"].startswith("blocked_in_c (test_watchdog.py:")
    assert "test_it_says_in_which_function_the_rank_stands" in capsys.readouterr().err


def test_a_rank_that_goes_on_is_left_alone(spy: Spy) -> None:
    """Three limits long, with ten beats in each."""
    with watched(spy, 1.0):
        for _ in range(30):
            beat()
            sleep(0.1)
            if PROGRESS.last < monotonic() - 0.9:
                pytest.skip("this machine is too busy to beat in time")
    assert spy.events == [] and spy.statuses == []


def test_before_the_first_beat_it_has_more_time(spy: Spy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries are loaded then. With an endless factor only the first beat begins the count."""
    monkeypatch.setattr(watchdog, "START_FACTOR", 1e9)
    with watched(spy, 0.05):
        sleep(0.5)
        assert spy.statuses == []
        beat()
        spy.wait(lambda: bool(spy.statuses))  # it does not sleep through this
    monkeypatch.setattr(watchdog, "START_FACTOR", 2.0)
    with watched(spy, 0.05):
        spy.wait(lambda: len(spy.statuses) == 2)
    assert spy.named("stuck")[1]["silent_s"] >= 0.1


def test_an_idle_rank_says_so_once_and_is_not_stuck(spy: Spy) -> None:
    with watched(spy, 0.05, rank=2):
        with idle():
            spy.wait(lambda: bool(spy.named("idle")))
            sleep(0.3)
            assert spy.events == [{"event": "idle", "rank": 2}]
        beat()
        spy.wait(lambda: bool(spy.statuses))  # it is watched again
    assert [event["event"] for event in spy.events] == ["idle", "stuck"]


def test_rank_0_says_that_it_lives(spy: Spy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "ALIVE_SECONDS", 0.02)
    with watched(spy, 1000.0, rank=0):
        spy.wait(lambda: len(spy.events) >= 3)
    assert {event["event"] for event in spy.events} == {"alive"}
    others = Spy()
    with watched(others, 1000.0, rank=1):
        sleep(0.2)
    assert others.events == []


def test_a_process_that_was_stopped_is_not_stuck(spy: Spy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-Z, or a suspended machine: the thread itself wakes late, so silence says nothing."""
    skipped = 0.0

    def clock() -> float:
        return monotonic() + skipped

    monkeypatch.setattr(watchdog, "monotonic", clock)
    with watched(spy, 1.0):
        beat()
        sleep(0.2)
        skipped = 100.0
        sleep(1.2)  # it wakes once, 100 s later than it asked to
        assert spy.statuses == []
        spy.wait(lambda: bool(spy.statuses))  # and counts anew
    assert spy.named("stuck")[0]["silent_s"] < 50.0


def test_stopping_it(spy: Spy) -> None:
    with watched(spy, 0.3, rank=0):
        beat()
    sleep(0.6)
    assert spy.statuses == [] and spy.named("stuck") == []


def test_the_limit_is_the_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HANG_VARIABLE, raising=False)
    assert hang_seconds() == HANG_SECONDS == 25.0
    monkeypatch.setenv(HANG_VARIABLE, "3.5")
    assert hang_seconds() == 3.5


def test_threads_as_ranks_are_not_watched() -> None:
    """To end one would be to end the tests."""
    before = threading.active_count()
    seen = []

    def rank() -> None:
        with watching(0, print, 1e-3):
            sleep(0.05)
            seen.append(threading.active_count())

    thread = threading.Thread(target=rank)
    thread.start()
    thread.join()
    assert seen == [before + 1]
