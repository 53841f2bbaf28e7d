"""Where a history cannot be: one line for every mistake, and a password in none."""

from __future__ import annotations

import os
import pwd
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from tests.helpers import postgres
from tests.reports.history_entries import large

from calib.foundation.errors import CalibError, FileError, InputError
from calib.reports.history import address, store
from calib.reports.history.store import History

SECRET = "s3cr/t@x y"
QUOTED = "s3cr%2Ft%40x%20y"


def refused(where: str, kind: type[CalibError], read_only: bool = False) -> str:
    """The line of an opening that must fail."""
    with pytest.raises(kind) as error:
        History.open(where, read_only=read_only)
    line = str(error.value)
    assert SECRET not in line and QUOTED not in line and "s3cr" not in line, line
    assert "\n" not in line and len(line) < 400
    return line


@pytest.mark.parametrize("where", ["", ":memory:", "sqlite://", "sqlite:///:memory:", "a\0b"])
def test_no_file(where: str) -> None:
    assert "names no file" in refused(where, InputError)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (f"mysql://me:{QUOTED}@host/db", "mysql:// is no database that calib knows"),
        (f"postgresql+asyncpg://me:{QUOTED}@host/db", "is no database that calib knows"),
        (f"postgresql://me:{QUOTED}@host:port/db", "not a URL that can be read"),
        ("postgresql://me:a@s3cr@host/db", "write @ in a password as %40"),
        ("sqlite:///calib.db?mode=ro", "a URL of SQLite has a file alone"),
        ("sqlite://host/calib.db", "a URL of SQLite has a file alone"),
        ("://", "not a URL"),
    ],
)
def test_urls_that_cannot_be(where: str, words: str) -> None:
    assert words in refused(where, InputError)


def test_files_that_cannot_be(tmp_path: Path) -> None:
    assert "is a directory" in refused(str(tmp_path), FileError)
    assert "does not exist" in refused(str(tmp_path / "no" / "calib.db"), FileError)
    assert "File name too long" in refused(str(tmp_path / ("x" * 300)), FileError)
    (tmp_path / "text.db").write_text("this is not a database, whatever its name says" * 100)
    assert "file is not a database" in refused(str(tmp_path / "text.db"), FileError)
    whole = tmp_path / "whole.db"
    with History.open(str(whole)) as history:
        history.record(large(1, 40))
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(whole.read_bytes()[:9000])
    assert "malformed" in refused(str(damaged), FileError)


def test_reading_makes_nothing(tmp_path: Path) -> None:
    absent, empty = tmp_path / "absent.db", tmp_path / "empty.db"
    assert "there is no history" in refused(str(absent), FileError, read_only=True)
    assert not absent.exists()
    empty.touch()
    assert "holds no history" in refused(str(empty), FileError, read_only=True)
    assert empty.stat().st_size == 0


def test_names_of_files(tmp_path: Path) -> None:
    """What means something in a URI of SQLite, and a name that is no UTF-8."""
    for name in ("a?mode=ro#x %41.db", os.fsdecode(b"\xff.db")):
        path = tmp_path / name
        for where in (str(path), f"sqlite:///{path}") if "?" not in name else (str(path),):
            with History.open(where) as history:
                history.record(large(1, 1))
        assert [x.name for x in tmp_path.iterdir()] == [name]
        path.unlink()


def test_a_read_only_file() -> None:
    """Root may write everywhere, so root is nobody meanwhile."""
    with tempfile.TemporaryDirectory() as name, ordinary_user(Path(name)):
        path = Path(name, "calib.db")
        History.open(str(path)).close()
        path.chmod(0o444)
        with History.open(str(path)) as history, pytest.raises(FileError, match="readonly"):
            history.record(large(1, 1))


@contextmanager
def ordinary_user(folder: Path) -> Iterator[None]:
    """Not root in this block, but the owner of that folder."""
    if os.geteuid() != 0:
        yield
        return
    nobody = pwd.getpwnam("nobody").pw_uid
    os.chown(folder, nobody, -1)
    os.seteuid(nobody)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_lock_that_is_never_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "calib.db"
    History.open(str(path)).close()
    monkeypatch.setattr(address, "WAIT_S", 0.05)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with History.open(str(path)) as history:
        with pytest.raises(FileError, match="another process has held its lock"):
            history.record(large(1, 1))
        assert history.machines() == [], "reading does not wait for who is about to write"
    holder.close()


def test_postgresql_that_cannot_be_reached(server: str, tmp_path: Path) -> None:
    wrong = server.replace("calib@", f"{postgres.LOCKED}:{QUOTED}@")
    line = refused(wrong, FileError)
    assert f"postgresql://{postgres.LOCKED}@/postgres" in line and "password" in line
    assert "no password supplied" in refused(wrong.replace(f":{QUOTED}", ""), FileError)
    assert 'database "absent" does not exist' in refused(
        server.replace("/postgres?", "/absent?"), FileError
    )
    strange = f"{server}&password=s3cr&nosuch=s3cr"
    assert 'invalid connection option "nosuch"' in refused(strange, FileError)
    none = f"postgresql://me:{QUOTED}@/db?host={tmp_path}"
    assert "No such file or directory" in refused(none, FileError)


def test_postgresql_without_unicode(server: str) -> None:
    engine = create_engine(server.replace("://", "+psycopg://"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        make = "CREATE DATABASE latin ENCODING LATIN1 LOCALE 'C' TEMPLATE template0"
        connection.execute(text(make))
    engine.dispose()
    where = server.replace("/postgres?", "/latin?")
    assert "its encoding is LATIN1; calib needs UTF8" in refused(where, FileError)


def deadlock(server: str) -> None:
    """Record a night of 3 points in the place of one of 2, while another takes locks in reverse.

    Ours has the night and waits for the points; the other has the points and waits for the night.
    The server ends ours.
    """
    where = server.replace("postgresql://", "postgres://")
    with History.open(where) as history:
        history.record(large(1, 2))
    engine = create_engine(server.replace("://", "+psycopg://"))
    with ThreadPoolExecutor() as threads, History.open(where) as history:
        with engine.begin() as other:
            # so that it is not the one who notices first
            other.execute(text("SET LOCAL deadlock_timeout = '30s'"))
            other.execute(text("LOCK TABLE points"))
            done = threads.submit(history.record, large(1, 3))
            waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            while not other.scalar(waiting):
                time.sleep(0.005)
            other.execute(text("UPDATE nights SET run = 'theirs'"))
        engine.dispose()
        done.result(60)


def points_of(server: str) -> int:
    """How many points night 1 has."""
    with History.open(server, read_only=True) as history:
        return len(history.past().points)


def test_a_deadlock_is_tried_again(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deadlock(server)
    assert points_of(server) == 3
    monkeypatch.setattr(store, "TRIES", 1)
    with pytest.raises(FileError, match="deadlock detected"):
        deadlock(server)
    assert points_of(server) == 2
