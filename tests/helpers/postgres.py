"""A PostgreSQL server of the tests' own: an ordinary user's, in a temporary folder, without TCP."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TIMEOUT_S = 60
LOCKED = "locked"  # a user of the database who would need a password
DEBIAN = Path("/usr/lib/postgresql")
# who may be the server where the tests are run by root, which PostgreSQL refuses to be
USERS = ("postgres", "nobody")
# nothing outlives the test: no disk is waited for
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "40",
    "deadlock_timeout": "300ms",
    "dynamic_shared_memory_type": "mmap",
}


def programs() -> Path | None:
    """The folder with initdb and pg_ctl, of the newest PostgreSQL that is installed."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    versions = [path.parent for path in DEBIAN.glob("*/bin/initdb")]
    return max(versions, key=lambda path: float(path.parent.name), default=None)


def why_not() -> str:
    """Why no server can be started here; "" where one can."""
    if programs() is None:
        return "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    if os.geteuid() == 0 and _user() is None:
        return f"the tests are run by root and there is no user {' or '.join(USERS)}"
    return ""


def _user() -> str | None:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in USERS if name in names), None)


@contextmanager
def server() -> Iterator[str]:
    """The URL of a database of a server that runs meanwhile, its superuser being `calib`."""
    binaries, user = programs(), _user() if os.geteuid() == 0 else None
    assert binaries is not None, why_not()
    # short, since a socket's path is at most 107 bytes long
    folder = Path(tempfile.mkdtemp(prefix="calib-pg-", dir="/tmp"))
    data, log = folder / "data", folder / "log"

    def call(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [binaries / program, *arguments],
            user=user,
            cwd=folder,
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
        )
        said = log.read_text() if log.exists() else ""
        assert done.returncode == 0, f"{program}: {done.stdout}{said}"

    try:
        if user is not None:
            shutil.chown(folder, user)
        call("initdb", "-D", str(data), "-U", "calib", "-E", "UTF8", "--no-sync", "--auth=trust")
        with (data / "postgresql.conf").open("a") as settings:
            settings.writelines(f"{name} = '{value}'\n" for name, value in SETTINGS.items())
            settings.write(f"unix_socket_directories = '{folder}'\n")
        access = data / "pg_hba.conf"
        access.write_text(f"local all {LOCKED} scram-sha-256\n{access.read_text()}")
        # its output goes to the log: the server keeps what it is given open, and a pipe would not end
        call("pg_ctl", "-D", str(data), "-l", str(log), "-w", "start")
        try:
            yield f"postgresql://calib@/postgres?host={folder}"
        finally:
            call("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
