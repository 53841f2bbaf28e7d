"""Claims: what keeps hosts apart where each has locks of its own."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep

import pytest

from calib.foundation import file_system, locks
from calib.foundation.errors import FileError
from calib.foundation.locks import Claim, claimed, needs_claim, one_at_a_time

BEAT_S, DEAD_S = 0.05, 1.0
LEFT = json.dumps({"holder": "process 1 on gone", "token": "of the dead", "beats": 7})


def claim(path: Path, holder: str = "me", beat_s: float = BEAT_S) -> Claim:
    return Claim(path, holder, beat_s, DEAD_S)


@pytest.fixture
def hosts_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory as NFS shows it that is mounted with nolock: every lock is granted, whoever has it."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text("1 1 0:1 / / rw - nfs there:/home rw,vers=3,nolock,local_lock=all\n")
    monkeypatch.setattr(file_system, "MOUNTS", mounts)
    monkeypatch.setattr(locks, "lock_descriptor", lambda handle, blocking: True)
    run = tmp_path / "run"
    run.mkdir()
    return run


def test_the_second_is_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    first, second = claim(path, "process 1 on a"), claim(path, "process 2 on b")
    assert first.take() == ""
    assert second.take() == "process 1 on a"
    first.give_back()
    assert not path.exists()
    assert second.take() == ""
    second.give_back()
    assert list(tmp_path.iterdir()) == []


def test_the_second_waits_as_long_as_it_may(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    first, second = claim(path), claim(path)
    assert first.take() == ""
    threading.Timer(0.3, first.give_back).start()
    assert second.take(patience_s=60.0) == ""
    second.give_back()


@pytest.mark.parametrize("left", [LEFT, "", "{", "[1]", "\0" * 20])
def test_what_the_dead_left_is_taken_over(tmp_path: Path, left: str) -> None:
    """Also of one that died while it wrote."""
    path = tmp_path / "claim"
    path.write_text(left)
    mine = claim(path)
    assert mine.take() == ""
    assert json.loads(path.read_text())["holder"] == "me"
    assert claim(path).take() == "me"
    mine.give_back()
    assert list(tmp_path.iterdir()) == []


def test_of_many_that_want_what_the_dead_left_one_has_it(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    path.write_text(LEFT)
    many = [claim(path, f"process {n}") for n in range(8)]
    with ThreadPoolExecutor(len(many)) as pool:
        found = list(pool.map(Claim.take, many))
    (winner,) = [n for n, other in enumerate(found) if not other]
    assert {other for other in found if other} == {f"process {winner}"}
    many[winner].give_back()
    assert list(tmp_path.iterdir()) == []


def test_who_stood_still_takes_nothing_back(tmp_path: Path) -> None:
    """A holder without a sign of life is dead to others; when it goes on, the claim is theirs."""
    path = tmp_path / "claim"
    still, other = claim(path, "still", beat_s=3600.0), claim(path, "other")
    assert still.take() == ""
    assert other.take() == ""
    still.give_back()
    assert json.loads(path.read_text())["holder"] == "other"
    other.give_back()


def test_a_claim_needs_its_directory(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot write .*claim: No such file"):
        claim(tmp_path / "nothing" / "claim").take()


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_no_claim(tmp_path: Path, there: bool) -> None:
    """Others may write to a run directory, too."""
    path, target = tmp_path / "claim", tmp_path / "mine"
    path.symlink_to(target)
    if there:
        target.write_text(LEFT)
    with pytest.raises(FileError, match="it is a link"):
        claim(path).take()
    assert target.exists() == there and path.is_symlink()


def test_a_local_lock_needs_no_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(file_system, "MOUNTS", mounts)
    for line, needed in (
        ("ext4 x rw", False),
        ("nfs x rw,local_lock=none", False),
        ("9p x rw", True),
    ):
        mounts.write_text(f"1 1 0:1 / / rw - {line}\n")
        assert needs_claim(tmp_path) == needed
        with claimed(tmp_path / "claim", "me") as other:
            assert other == "" and (tmp_path / "claim").exists() == needed
    assert not (tmp_path / "claim").exists()


def test_a_file_system_without_locks_needs_a_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS 3 says it where rpc.statd does not run."""
    path = tmp_path / "lock"
    with path.open("wb") as file:
        assert not needs_claim(path, file.fileno()) or file_system.file_system(tmp_path).is_shared

        def refused(handle: int, blocking: bool) -> bool:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(locks, "lock_descriptor", refused)
        assert needs_claim(path, file.fileno())


def at_once(lock: Path, work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda n: merged(lock, n, work), range(4)):
            pass


def merged(lock: Path, number: int, work: Callable[[], None]) -> None:
    with one_at_a_time(lock, f"process {number}"):
        work()


def test_one_at_a_time_where_locks_lie(hosts_apart: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        inside.append(1)
        most.append(len(inside))
        sleep(0.05)
        inside.pop()

    at_once(hosts_apart / "lock", work)
    assert most == [1] * 4


def test_who_holds_it_for_too_long_is_named(
    hosts_apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "MERGING_SECONDS", 0.1)
    holder = claim(hosts_apart / "lock.claim", "process 1 on a")
    assert holder.take() == ""
    with (
        pytest.raises(FileError, match=r"process 1 on a has held .*lock for"),
        one_at_a_time(hosts_apart / "lock", "me"),
    ):
        pytest.fail("both hold it")
    holder.give_back()
