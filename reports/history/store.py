"""Store of the history: nights are recorded whole, and read as a Past."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, Table, delete, func, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import OperationalError

from calib.foundation.errors import FileError, InputError
from calib.foundation.locks import claimed
from calib.reports.history import schema
from calib.reports.history.address import WAIT_S, WRITES, Address, address, engine_of, said
from calib.reports.history.reading import MachineNights, machines_in, past_of
from calib.reports.history.records import Acceptance, Entry, Past
from calib.reports.history.rows import NightRows, acceptance_row, moment, rows_of, text_of

TRIES = 8
# of PostgreSQL: what a transaction may be told to begin again for
AGAIN = ("40001", "40P01")
UTF8 = "UTF8"
Got = TypeVar("Got")


class History:
    """An open history. `record` and `accept` happen whole or not at all, whoever else is at it."""

    def __init__(self, where: Address, engine: Engine, read_only: bool) -> None:
        self._where = where
        self._engine = engine
        self._read_only = read_only

    @classmethod
    def open(cls, where: str, read_only: bool = False) -> History:
        """A file or a URL (sqlite:///FILE, postgresql://USER@HOST/DATABASE).

        Makes the tables where there are none; with `read_only` it does not, and nothing is
        made that is not there. Raises InputError for what is no such place, FileError for one that
        cannot be reached, is not a history, or is of a newer calib; no message holds a password.
        """
        found = address(where)
        history = cls(found, engine_of(found, read_only), read_only)
        try:
            history._prepare()
        except BaseException:
            history.close()
            raise
        return history

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    def record(self, entry: Entry) -> None:
        """Add a night, or put it in the place of the one with its id; acceptances of it stay.

        Raises InputError for a number that is NaN or a start that is no time, FileError.
        """
        rows = rows_of(entry)
        self._write(lambda connection: _replace(connection, rows))

    def accept(self, acceptance: Acceptance) -> None:
        """Accept a step, or put another reason in the place of that of an earlier acceptance.

        Raises InputError where the history has no such night.
        """
        row = acceptance_row(acceptance)
        known = self._write(lambda connection: _accept(connection, acceptance.night, row))
        if not known:
            raise InputError(f"history {self._where.label} holds no night {acceptance.night}")

    def past(
        self,
        machine: str | None = None,
        since: str = "",
        until: str = "",
        cluster: str | None = None,
    ) -> Past:
        """The nights of a machine, the oldest first; without `machine`, that of the newest night.

        `since` and `until` are ISO 8601 dates (whole days, both inclusive) or times, in UTC;
        `cluster` is a name, where several clusters have the same hardware. Raises InputError.
        """
        start = moment(since, "since") if since else float("-inf")
        end = moment(until, "until", end=True) if until else float("inf")
        with self._reading() as connection:
            if machine is None:
                known = machines_in(connection)
                machine = known[0].machine if known else ""
            name = None if cluster is None else text_of(cluster)
            return past_of(connection, text_of(machine), name, start, end)

    def machines(self) -> list[MachineNights]:
        """The machines that have nights here; first the one of the newest night."""
        with self._reading() as connection:
            return machines_in(connection)

    def _prepare(self) -> None:
        label = self._where.label
        with self._reading() as connection:
            if connection.dialect.name == "postgresql":
                encoding = connection.scalar(text("SHOW server_encoding"))
                if encoding != UTF8:
                    raise FileError(
                        f"history {label}: its encoding is {encoding}; calib needs UTF8"
                    )
            found = schema.version_of(connection, label)
        if found is not None:
            return
        if self._read_only:
            raise FileError(f"history {label} holds no history", wants="history")
        self._write(lambda connection: schema.make_tables(connection, label))

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A transaction that sees one state, whatever is recorded meanwhile."""
        with said(self._where), self._apart(), self._engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.execution_options(
                    isolation_level="REPEATABLE READ", postgresql_readonly=True
                )
            with connection.begin():
                yield connection

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Keep other hosts from a file meanwhile, where SQLite's own locks do not."""
        file = self._where.file
        if file is None or not os.access(file.parent, os.W_OK):
            yield
            return
        me = f"process {os.getpid()} on {socket.gethostname()}"
        with claimed(file.with_name(f".{file.name}.claim"), me, WAIT_S) as other:
            if other:
                raise FileError(f"history {self._where.label}: {other} is using it; try again")
            yield

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction that happens whole or not at all."""
        with self._apart(), self._engine.connect() as connection:
            connection.execution_options(**{WRITES: True})
            server = connection.dialect.name == "postgresql"
            if server:
                connection.execution_options(
                    isolation_level="READ COMMITTED", postgresql_readonly=self._read_only
                )
            with connection.begin():
                if server:
                    connection.execute(text(f"SET LOCAL lock_timeout = '{WAIT_S}s'"))
                yield connection

    def _write(self, work: Callable[[Connection], Got]) -> Got:
        """Do it in one transaction; again where the server ended it for the sake of another."""
        with said(self._where):
            for left in reversed(range(TRIES)):
                try:
                    with self._writing() as connection:
                        done = work(connection)
                    return done
                except OperationalError as error:
                    if not left or getattr(error.orig, "sqlstate", None) not in AGAIN:
                        raise
                    time.sleep(random.uniform(0.01, 0.1))
        raise AssertionError("the last try has returned or raised")


def _upsert(connection: Connection, table: Table, row: dict[str, Any], key: str) -> None:
    """Insert, or update the row with the same key; others who name it wait until we are done."""
    build = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    changed = {name: value for name, value in row.items() if name != key}
    insert = build(table).values(**row)
    connection.execute(insert.on_conflict_do_update(index_elements=[key], set_=changed))


def _replace(connection: Connection, rows: NightRows) -> None:
    of = schema.nights.c
    _upsert(connection, schema.nights, rows.night, "id")
    night = connection.scalar(select(of.night).where(of.id == rows.night["id"]))
    for table, items in rows.parts.items():
        # those of phases go with their points
        connection.execute(delete(table).where(table.c.night == night))
        if items:
            connection.execute(table.insert(), [{"night": night, **item} for item in items])


def _accept(connection: Connection, night_id: str, row: dict[str, Any]) -> bool:
    """Whether there is such a night."""
    of = schema.accepted.c
    wanted = select(schema.nights.c.night).where(schema.nights.c.id == text_of(night_id))
    night = connection.scalar(wanted.with_for_update())  # so that places are given one by one
    if night is None:
        return False
    old = (of.night == night, of.series == row["series"])
    connection.execute(delete(schema.accepted).where(*old))
    last = connection.scalar(select(func.max(of.place)).where(of.night == night))
    place = 0 if last is None else last + 1
    connection.execute(schema.accepted.insert().values(night=night, place=place, **row))
    return True
