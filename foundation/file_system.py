"""The file system that a path is on: whether other hosts see it, and what they see when.

A lock on a network file system may be one of this host alone, and the call that takes it says nothing
of that: NFS 3 mounted with nolock, Lustre with localflock, BeeGFS and SSHFS by default. How it is
mounted tells (nfs(5), mount.lustre(8)); what is not known to be local, or to have locks that reach
other hosts, is not trusted (foundation/locks.py).
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MOUNTS = Path("/proc/self/mountinfo")
LOCAL = frozenset(
    [
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "f2fs",
        "jfs",
        "bcachefs",
        "reiserfs",
        "tmpfs",
        "ramfs",
        "rootfs",
        "overlay",
        "aufs",
        "vfat",
        "exfat",
        "msdos",
        "ntfs",
        "ntfs3",
        "fuseblk",
        "hfsplus",
        "apfs",
        "ubifs",
        "nilfs2",
        "squashfs",
        "erofs",
        "iso9660",
        "devtmpfs",
    ]
)
# of which every host asks one and the same manager for a lock
CLUSTER_LOCKS = frozenset(["gpfs", "ceph", "ocfs2", "gfs2"])
ESCAPE = re.compile(r"\\([0-7]{3})")  # in mountinfo: a space, a tab, a line break, a backslash


class FileSystem(NamedTuple):
    """What a file system is, as the kernel calls it, and how it is mounted."""

    kind: str
    options: frozenset[str] = frozenset()

    @property
    def is_shared(self) -> bool:
        """Whether other hosts may see it."""
        return self.kind not in LOCAL

    @property
    def has_cluster_locks(self) -> bool:
        """Whether a lock that one host takes is refused to all others."""
        if self.kind in ("nfs", "nfs4"):
            return "nolock" not in self.options and not self.options & {
                "local_lock=all",
                "local_lock=flock",
            }
        if self.kind == "lustre":
            return "flock" in self.options and "localflock" not in self.options
        return self.kind in CLUSTER_LOCKS


def file_system(path: Path, mounts: Path | None = None) -> FileSystem:
    """The file system of `path`, there or not; where the system lists none, a local one ("rootfs")."""
    place = Path(os.path.realpath(path))
    found, deepest = FileSystem("rootfs"), -1
    try:
        lines = (mounts or MOUNTS).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return found
    for line in lines:
        before, _, after = line.partition(" - ")
        mount, about = before.split(" "), after.split(" ")
        if len(mount) < 6 or len(about) < 3:
            continue
        point = Path(ESCAPE.sub(lambda escaped: chr(int(escaped[1], 8)), mount[4]))
        # of two on one point, the later one covers the other
        if place.is_relative_to(point) and len(point.parts) >= deepest:
            options = frozenset(f"{mount[5]},{about[2]}".split(","))
            found, deepest = FileSystem(about[0], options), len(point.parts)
    return found


def look_afresh(*directories: Path) -> None:
    """Let this host see what others have made or renamed there; nothing on a local file system.

    NFS lets a host believe for up to a minute (acdirmax) that a name is not there. What it changes
    in a directory itself brings the directory's own time along, and so what others have changed.
    """
    for directory in directories:
        if file_system(directory).is_shared:
            with suppress(OSError):  # not there, or read-only: then nobody writes to it either
                handle, name = tempfile.mkstemp(dir=directory, prefix=".look.")
                os.close(handle)
                os.unlink(name)
