"""One driver in a run directory, also where two hosts have it mounted and each has its own locks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from calib.driver import lock
from calib.driver.lock import DRIVER_CLAIM, DRIVER_LOCK, ORPHANS_ELSEWHERE_SECONDS, only_driver
from calib.foundation import file_system, locks
from calib.foundation.errors import InputError
from calib.foundation.locks import Claim

# holds the run directory until its standard input ends, or until it is killed
HOLD = """
import sys
from pathlib import Path
from calib.driver.lock import only_driver

with only_driver(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> Path:
    """A run directory on a file system that is mounted so."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 1 0:1 / / rw - {how}\n")
    monkeypatch.setattr(file_system, "MOUNTS", mounts)
    run = tmp_path / "run"
    run.mkdir()
    return run


def test_a_driver_on_another_host_where_locks_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of the file is granted on both hosts; the claim is not."""
    run = mounted(tmp_path, monkeypatch, "nfs there:/home rw,nolock,local_lock=all")
    monkeypatch.setattr(locks, "lock_descriptor", lambda handle, blocking: True)
    other = Claim(run / DRIVER_CLAIM, "process 12 on far", beat_s=0.05)
    assert other.take() == ""
    with (
        pytest.raises(InputError, match=r"another calib \(process 12 on far\) is measuring in"),
        only_driver(run),
    ):
        pytest.fail("two drivers")
    other.give_back()
    with only_driver(run):
        assert (run / DRIVER_CLAIM).exists()
    assert not (run / DRIVER_CLAIM).exists()


@pytest.mark.parametrize(
    ("how", "pauses"),
    [
        ("ext4 /dev/sda1 rw", []),
        ("nfs4 there:/home rw,local_lock=none", [ORPHANS_ELSEWHERE_SECONDS]),
    ],
)
def test_after_a_driver_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, pauses: list[float]
) -> None:
    """Its ranks on other hosts hold no lock here: they are given the time to notice."""
    run = mounted(tmp_path, monkeypatch, how)
    slept: list[float] = []
    monkeypatch.setattr(lock, "sleep", slept.append)
    for end in (subprocess.Popen.communicate, subprocess.Popen.kill):
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        end(holder)
        holder.wait()
        with only_driver(run):
            assert slept == (pauses if end is subprocess.Popen.kill else [])
            assert f"process {os.getpid()} on" in (run / DRIVER_LOCK).read_text()
        assert (run / DRIVER_LOCK).read_text() == ""
