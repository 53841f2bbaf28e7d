"""The address of a history, SQLite or PostgreSQL, and its connection.

SQLite keeps its rollback journal: the write-ahead log is faster beside readers, but needs memory that
the processes share, which a network file system does not give. Every transaction that writes takes
the lock when it begins (BEGIN IMMEDIATE) and waits for it, so that none fails half-way for want of it.
Where SQLite's locks are each host's own, there is a claim beside them (store.py, foundation/locks.py).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from calib.foundation.errors import FileError, InputError, MachineError

WAIT_S = 60  # for the lock of another process that records
CONNECT_S = 10
WRITES = "calib_writes"  # execution option of a connection whose transactions write
FORMS = "give it a file, sqlite:///FILE or postgresql://USER@HOST/DATABASE"
# as SQLite and PostgreSQL say that a column is not there
OTHER_TABLES = re.compile(
    r"no such column|no column named|column \S+ (of relation \S+ )?does not exist"
)
LOCKED = ("database is locked", "lock timeout")


class DamagedRow(ValueError):
    """A row holds a value that calib never wrote."""


@dataclass(frozen=True)
class Address:
    """A file, or the URL of a server; `label` names it in messages, without its password."""

    label: str
    file: Path | None = None
    url: URL | None = None

    def hidden(self, text: str) -> str:
        """`text` on one line without the password."""
        text = " ".join(text.split())
        secrets: list[str] = []
        if self.url is not None:
            of_query = [x for name, x in self.url.query.items() if "pass" in name]
            secrets = [str(x) for x in (self.url.password, *of_query) if x]
        for secret in (*secrets, *map(quote, secrets)):
            text = text.replace(secret, "***")
        return text


def address(where: str) -> Address:
    """What a path or a URL names. Raises InputError; no message holds a password."""
    if "://" not in where:
        return _of_file(where)
    try:
        url = make_url(where)
    except (ArgumentError, ValueError) as error:
        raise InputError(f"the history is not a URL that can be read; {FORMS}") from error
    scheme = url.drivername
    if scheme == "sqlite":
        if url.query or url.host:
            raise InputError(f"history: a URL of SQLite has a file alone; {FORMS}")
        return _of_file(url.database or "")
    if scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise InputError(f"history: {scheme}:// is no database that calib knows; {FORMS}")
    if "@" in (url.host or ""):
        raise InputError("history: write @ in a password as %40, and / as %2F")
    user = f"{url.username}@" if url.username else ""
    port = f":{url.port}" if url.port else ""
    label = f"postgresql://{user}{url.host or ''}{port}/{url.database or ''}"
    return Address(label, url=url.set(drivername="postgresql+psycopg"))


def _of_file(where: str) -> Address:
    if "password=" in where or re.match(r"\w+:/", where):  # not repeated: it may hold a password
        raise InputError(f"the history is neither a file's name nor a URL; {FORMS}")
    if not where or where == ":memory:" or "\0" in where:
        raise InputError(f"the history names no file; {FORMS}")
    return Address(where, file=Path(where))


def engine_of(where: Address, read_only: bool) -> Engine:
    """An engine without a pool: a process of calib connects once or twice."""
    if where.file is not None:
        return _sqlite(where.file, read_only)
    assert where.url is not None
    limits = {} if "connect_timeout" in where.url.query else {"connect_timeout": CONNECT_S}
    try:
        return create_engine(
            where.url, poolclass=NullPool, connect_args={**limits, "client_encoding": "utf8"}
        )
    except ModuleNotFoundError as error:
        raise MachineError(
            "a history in PostgreSQL needs psycopg: pip install 'calib[postgresql]'"
        ) from error


def _sqlite(path: Path, read_only: bool) -> Engine:
    try:
        if path.is_dir():
            raise FileError(f"history {path} is a directory")
        if read_only and not path.exists():
            raise FileError(f"there is no history {path}", wants="history")
        if not path.parent.is_dir():
            raise FileError(f"history {path}: the directory {path.parent} does not exist")
    except (OSError, ValueError) as error:
        raise FileError(f"history {path}: {getattr(error, 'strerror', error)}") from error
    # not mode=ro: what a killed process left half-written could not be taken back
    mode = "rw" if read_only else "rwc"
    name = quote(str(path.absolute()).encode(errors="surrogateescape"))

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(f"file:{name}?mode={mode}", uri=True, timeout=WAIT_S)

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def prepare(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        # else Python's sqlite3 begins transactions when it sees fit
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys = ON")
        if read_only:
            cursor.execute("PRAGMA query_only = ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


@contextmanager
def said(where: Address) -> Iterator[None]:
    """Whatever is wrong with the database or a row of it becomes one line. Raises FileError."""
    try:
        yield
    except DamagedRow as error:
        raise FileError(f"history {where.label}: {error}; it is damaged") from error
    except (DBAPIError, sqlite3.Error) as error:
        raise FileError(f"history {where.label}: {reason(where, error)}") from error


def reason(where: Address, error: Exception) -> str:
    """What went wrong, in one line without the statement, its values or the password."""
    original = error.orig if isinstance(error, DBAPIError) else error
    lines = [line for line in str(original).splitlines() if line.strip()]
    text = where.hidden(lines[0]) if lines else type(original).__name__
    if any(words in text for words in LOCKED):
        return f"another process has held its lock for {WAIT_S} s"
    if OTHER_TABLES.search(text):
        return (
            f"{text}; its tables are of another version of calib: move it away, and report its run "
            "directories again"
        )
    if "not a database" in text or "malformed" in text:
        return f"{text}; it is no history, or a damaged one"
    return text
