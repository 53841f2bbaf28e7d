"""Two nights never measure on one machine at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.calib.nightly_runs import own_lock
from tests.training.launching import TIMEOUT_S, environment

from calib.driver.lock import LOCKS_VARIABLE, lock_path, only_night
from calib.foundation.errors import FileError, InputError

HOLD = """
import sys, time
from calib.driver.lock import LOCKS_VARIABLE, lock_path, only_night
with only_night("night of runs/latest"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    own_lock(monkeypatch, tmp_path / "locks")
    return tmp_path / "locks"


def test_the_second_is_refused_and_told_who_runs() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        for _ in range(2):  # a refused one leaves it as it was
            with (
                pytest.raises(InputError, match="another night is running") as error,
                only_night("me"),
            ):
                pass
            assert f"process {holder.pid}, night of runs/latest" in str(error.value)
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.communicate(timeout=TIMEOUT_S)
    with only_night("after a kill"):
        pass


def test_one_after_the_other(locks: Path) -> None:
    for _ in range(2):
        with only_night("a"):
            pass
    with pytest.raises(ZeroDivisionError), only_night("b"):
        raise ZeroDivisionError
    with only_night("c"):
        assert len(list(locks.iterdir())) == 1


def test_every_user_may_open_it(locks: Path) -> None:
    before = os.umask(0o077)
    try:
        with only_night("a"):
            (path,) = locks.iterdir()
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666


def test_what_somebody_put_in_its_place_is_not_touched(locks: Path) -> None:
    mine = locks / "mine"
    mine.write_text("of value")
    path = lock_path()
    for put in (path.symlink_to, path.hardlink_to, lambda _: os.mkfifo(path)):
        put(mine)
        with pytest.raises(FileError, match="keeps two nights apart"), only_night("a"):
            pass
        assert mine.read_text() == "of value"
        path.unlink()


def test_where_nothing_can_be_written(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCKS_VARIABLE, str(locks / "none"))
    with (
        pytest.raises(FileError, match=r"cannot write .*; it keeps two nights apart"),
        only_night("a"),
    ):
        pass


def test_it_is_the_same_for_every_user_and_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOCKS_VARIABLE)
    places = set()
    for temporary in ("/var/tmp", "/home/me/tmp"):
        monkeypatch.setenv("TMPDIR", temporary)
        places.add(lock_path())
    (place,) = places
    assert place.parent == Path("/tmp")
