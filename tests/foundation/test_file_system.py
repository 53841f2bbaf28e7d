"""What kind of file system a path is on, by lines that Linux 6.1 wrote of real mounts."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from calib.foundation import file_system as of
from calib.foundation.file_system import FileSystem, file_system, look_afresh

# of a client of a kernel NFS server: -o vers=4.2, vers=3, and vers=3,nolock (addresses shortened)
REAL = """\
29 1 0:29 / / rw,relatime - overlay overlay rw,lowerdir=/lower,upperdir=/rw/up,workdir=/rw/work
38 29 0:32 / /v4 rw,relatime - nfs4 vm1:/ rw,vers=4.2,rsize=131072,namlen=255,hard,local_lock=none
37 29 0:33 / /v3 rw,relatime - nfs vm1:/export rw,vers=3,namlen=255,hard,local_lock=none
39 29 0:34 / /v3nolock rw,relatime - nfs vm1:/export rw,vers=3,hard,nolock,local_lock=all
"""
# by proc_pid_mountinfo(5) and the manuals of each, not seen here
WRITTEN = """\
40 29 0:35 / /a\\040name rw - lustre 10.0.0.1@o2ib:/home rw,flock,lazystatfs
41 29 0:36 / /lustre rw - lustre 10.0.0.1@o2ib:/home rw,localflock,lazystatfs
42 29 0:37 / /lustre/plain rw - lustre 10.0.0.1@o2ib:/home rw,lazystatfs
43 29 0:38 / /ssh rw - fuse.sshfs me@there: rw,user_id=0,group_id=0
44 29 0:39 / /gpfs rw shared:7 - gpfs fs1 rw
45 29 0:40 / /v3/over rw - tmpfs tmpfs rw
46 29 0:41 / /ssh rw - ext4 /dev/sda1 rw
"""
FILES = [
    ("/home/me", "overlay", False, False),
    ("/v4/runs/of/mine", "nfs4", True, True),
    ("/v3", "nfs", True, True),
    ("/v3nolock/runs", "nfs", True, False),
    ("/v3nolocks", "overlay", False, False),
    ("/a name/x", "lustre", True, True),
    ("/lustre/x", "lustre", True, False),
    ("/lustre/plain/x", "lustre", True, False),
    ("/gpfs", "gpfs", True, True),
    ("/v3/over/x", "tmpfs", False, False),
    ("/ssh/x", "ext4", False, False),
]


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(REAL + WRITTEN)
    return path


@pytest.mark.parametrize(("place", "kind", "shared", "locks"), FILES)
def test_what_a_mount_says(mounts: Path, place: str, kind: str, shared: bool, locks: bool) -> None:
    found = file_system(Path(place), mounts)
    assert (found.kind, found.is_shared) == (kind, shared)
    assert found.has_cluster_locks == locks


def test_what_nobody_knows_is_not_trusted() -> None:
    assert FileSystem("fuse.new").is_shared and not FileSystem("fuse.new").has_cluster_locks


def test_a_system_without_mountinfo(tmp_path: Path) -> None:
    assert not file_system(tmp_path, tmp_path / "nothing").is_shared


def test_as_psutil_finds_it(tmp_path: Path) -> None:
    """It reads /proc/self/mounts, by itself."""
    points = [x for x in psutil.disk_partitions(all=True) if tmp_path.is_relative_to(x.mountpoint)]
    if not points:
        pytest.skip("no mount is listed")
    deepest = max(len(Path(x.mountpoint).parts) for x in points)
    kinds = {x.fstype for x in points if len(Path(x.mountpoint).parts) == deepest}
    assert file_system(tmp_path).kind in kinds


@pytest.mark.parametrize("kind", ["ext4", "nfs4"])
def test_a_look_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 1 0:1 / / rw - {kind} x rw\n")
    monkeypatch.setattr(of, "MOUNTS", mounts)
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "kept").touch()
    made: list[str] = []
    make = of.tempfile.mkstemp

    def counted(dir: Path, prefix: str) -> tuple[int, str]:
        handle, name = make(dir=dir, prefix=prefix)
        made.append(name)
        return handle, name

    monkeypatch.setattr(of.tempfile, "mkstemp", counted)
    look_afresh(directory, tmp_path / "nothing")
    assert [path.name for path in directory.iterdir()] == ["kept"]
    assert len(made) == (kind == "nfs4"), "the directory is changed, and only where others see it"
