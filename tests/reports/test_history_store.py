"""The history, the same on SQLite and on a PostgreSQL server that the tests start."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import ColumnElement, Connection, create_engine, text
from tests.reports.history_entries import (
    PHASES,
    accuracy,
    check,
    entry,
    large,
    memory,
    pair,
    record_all,
    record_half,
)

from calib.foundation import file_system
from calib.foundation.errors import FileError, InputError
from calib.foundation.locks import Claim
from calib.foundation.records import Estimate
from calib.microbench.records.looks import DISTURBANCES
from calib.reports.history import reading, store
from calib.reports.history.reading import MachineNights
from calib.reports.history.records import Acceptance, Entry, Past, PastPoint
from calib.reports.history.store import History
from calib.reports.scoring.accuracy import Accuracy, Missing

RECORDERS = 3
POINTS = 12
TIMEOUT_S = 60
EMPTY = ("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
# processes that have imported what they need, and nothing of the tests' threads
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.reports.history_entries", "psycopg"])


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place for a history."""
    if request.param == "sqlite":
        yield str(tmp_path / "calib.db")
        return
    url = request.getfixturevalue("server")
    sql(url, *EMPTY)
    yield url


def sql(where: str, *statements: str) -> list[list[object]]:
    """What each statement gives (nothing, where it gives no rows), on a connection of its own."""
    url = where.replace("://", "+psycopg://") if "://" in where else f"sqlite:///{where}"
    engine = create_engine(url)
    with engine.begin() as connection:
        done = [connection.execute(text(statement)) for statement in statements]
        found = [list(map(tuple, x.all())) if x.returns_rows else [] for x in done]
    engine.dispose()
    return found


def recorded(where: str, *entries: Entry) -> Past:
    """All nights of their machine, after they were recorded."""
    with History.open(where) as history:
        for each in entries:
            history.record(each)
        return history.past(entries[-1].machine)


# what PostgreSQL does not hold, what quotes SQL and terminals, and what is long
names = st.one_of(
    st.text(st.characters(), max_size=12),  # surrogates among them
    st.sampled_from(
        ["'); DROP TABLE nights; --", "a\0b", "\ud800", "%s :x ?", "\x1b[2J", "x" * 9000]
    ),
)
keys = st.text("0123456789abcdef", min_size=8, max_size=16)
seconds = st.just(0.0) | st.floats(1e-14, 1e4)
shares = st.builds(pair, seconds, seconds)
times = st.dictionaries(st.sampled_from(PHASES), shares, max_size=7)
words = st.lists(st.sampled_from([*DISTURBANCES]), unique=True)
points = st.builds(
    accuracy,
    run_id=keys,
    predicted=st.floats(1e-14, 1e8),
    measured=seconds,
    model=names,
    strategy=names,
    overlap=st.booleans(),
    p=st.integers(1, 10**9),
    batch=st.integers(1, 2**53),
    phases=times,
    oversubscribed=st.booleans(),
    library=names,
    memory=st.none() | st.builds(memory, st.floats(0, 2.0**62), st.integers(1, 2**63 - 1)),
    disturbed=words,
    waited=st.none() | st.floats(0, 1),
    slowdown=st.none() | st.builds(Estimate.exactly, st.floats(0.01, 100.0)),
    at_speed=st.none() | shares,
)
entries = st.builds(
    entry,
    st.just(3),
    st.lists(points, max_size=3, unique_by=lambda point: point.run_id),
    id=keys,
    run=names,
    nightly=st.booleans(),
    cluster_name=names,
    program_version=names,
    versions=st.dictionaries(st.text(max_size=3), names, max_size=3),
    planned=st.integers(0, 99),
    checks=st.lists(
        st.builds(check, seconds.map(lambda x: x / 4), st.just(0.0), names, words), max_size=2
    ),
    missing=st.lists(st.builds(Missing, what=names, why=names), max_size=2),
)


def kept(value: str) -> str:
    """What a database has of a text, character by character."""
    return "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in value)


def numbers(point: Accuracy) -> tuple[object, ...]:
    """What PastPoint has of an accuracy, `night`, `work` and `phases` apart."""
    of, by = point.total.predicted, point.total.measured
    peak = point.memory
    return (
        point.run_id,
        kept(point.model),
        kept(point.strategy),
        kept(point.layout),
        point.execution,
        point.p,
        float(point.batch_per_rank),
        of.value,
        of.low,
        of.high,
        by.value,
        by.low,
        by.high,
        point.oversubscribed,
        peak.predicted.value if peak else None,
        peak.measured_bytes if peak else None,
        ",".join(point.disturbed),
        point.waited,
        point.slowdown.value if point.slowdown else None,
        point.at_speed.measured.value if point.at_speed else None,
    )


def comes_back(where: str, given: Entry) -> None:
    """Record it and compare all that a Past has of it."""
    past = recorded(where, given)
    night = next(index for index, x in enumerate(past.nights) if x.id == given.id)
    head = past.nights[night]
    assert (head.run, head.started, head.nightly) == (kept(given.run), given.started, given.nightly)
    assert (head.cluster_name, head.machine) == (kept(given.cluster_name), given.machine)
    assert head.program_version == kept(given.program_version)
    assert (head.cluster_fingerprint, head.parameters_id) == ("f" * 16, "b" * 16)
    assert head.planned == given.planned
    assert head.versions == {kept(k): kept(v) for k, v in given.versions.items()}
    assert [(x.what, x.why) for x in head.missing] == [
        (kept(x.what), kept(x.why)) for x in given.missing
    ]
    found = [point for point in past.points if point.night == night]
    assert [(x.run_id, *x[3:22]) for x in found] == [numbers(x) for x in given.accuracies]
    for point, whole in zip(found, given.accuracies, strict=True):
        assert point.phases == {
            name: (of.predicted.value, of.measured.value) for name, of in whole.phases.items()
        }
        assert list(point.phases) == list(whole.phases)
    assert [x[1:] for x in past.checks if x.night == night] == [
        (x.kind, x.what, kept(x.case), x.expected.value, x.measured.value, ",".join(x.disturbed))
        for x in given.checks
    ]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_entry=entries)
def test_what_goes_in_comes_out(where: str, given_entry: Entry) -> None:
    comes_back(where, given_entry)


def test_the_same_night_again_takes_the_place_of_the_first(where: str) -> None:
    recorded(where, large(1), large(2, 5))
    accepted = Acceptance(night="night-0002", series="all", reason="x", accepted="2026-11-03")
    with History.open(where) as history:
        history.accept(accepted)
    once = recorded(where, large(2, 3))
    assert [x.id for x in once.nights] == ["night-0001", "night-0002"]
    assert [sum(x.night == night for x in once.points) for night in (0, 1)] == [12, 3]
    assert once.accepted == [accepted], "an acceptance is of the night, not of one report of it"
    assert recorded(where, large(2, 3)) == once
    counts = "SELECT count(*) FROM "
    assert sql(where, counts + "phases", counts + "versions", counts + "checks") == [
        [(15 * 7,)],
        [(4,)],
        [(2,)],
    ]


def test_a_training_counts_once_in_a_night(where: str) -> None:
    same = [accuracy("aa" * 8, 0.08), accuracy("aa" * 8, 0.08), accuracy("bb" * 8, 0.07)]
    past = recorded(where, entry(1, same), entry(2, same))
    assert [(x.night, x.run_id[:2]) for x in past.points] == [
        (0, "aa"),
        (0, "bb"),
        (1, "aa"),
        (1, "bb"),
    ]
    unnamed = recorded(where, entry(3, [accuracy(), accuracy()]))
    assert len(unnamed.points) == 6, "without a name, nobody knows that it is the same"


def test_nothing_is_kept_of_what_is_refused(where: str) -> None:
    before = recorded(where, large(1))
    wrong = {
        "predicted_s is 1e-20": {"total": pair(1e-20, 0.1)},
        "measured_s is 1e-16": {"total": pair(0.1, 1e-16)},
        "run_id is over 200 characters": {"run_id": "a" * 201},
    }
    with History.open(where) as history:
        for words, change in wrong.items():
            points = [*large(1).accuracies, accuracy(**{"run_id": "cc" * 8, **change})]
            with pytest.raises(InputError, match=words):
                history.record(entry(1, points))
        for words, of in (
            ("started '", {"started": "yesterday"}),
            ("id is over", {"id": "x" * 300}),
        ):
            with pytest.raises(InputError, match=words):
                history.record(entry(1, **of))
        assert history.past() == before


def test_work_is_the_same_whatever_the_versions_and_the_night(where: str) -> None:
    base = {"strategy": "data", "overlap": True}
    same = [accuracy("1" * 16, **base), accuracy("2" * 16, 0.5, 0.6, **base, batch_per_rank=8.0)]
    same.append(accuracy("3" * 16, **base, cluster_fingerprint="0" * 16, n=99, started="x"))
    changes = {
        "model": "m",
        "p": 4,
        "batch_per_rank": 0.5,
        "strategy": "filter",
        "overlap": False,
        "library": "mpi",
        "optimizer": "adam",
        "execution": "float64",
        "threads_per_rank": 2,
    }
    other = [
        accuracy(f"{k:016d}", **{**base, name: x}) for k, (name, x) in enumerate(changes.items())
    ]
    alone = [
        accuracy("a" * 16, p=1, overlap=True, library="mpi"),
        accuracy("b" * 16, p=1),
        accuracy("c" * 16, p=1, strategy="serial"),
    ]
    work = [point.work for point in recorded(where, entry(1, same + other + alone)).points]
    assert len(set(work[:3])) == 1
    assert len(set(work[2:12])) == 10, "each difference makes other work"
    assert work[12] == work[13] != work[14], (
        "on one rank there is no exchange, but there is a strategy"
    )


def test_the_stages_of_a_pipeline_are_work(where: str) -> None:
    of = {"strategy": "pipeline", "p": 4, "segments": 4}
    points = [
        accuracy("a" * 16, **of, boundaries=(1, 15, 26)),
        accuracy("b" * 16, **of, boundaries=(1, 14, 26)),
    ]
    one, other = (point.work for point in recorded(where, entry(1, points)).points)
    assert one != other and '"boundaries":[1,15,26]' in one


def test_which_nights(where: str) -> None:
    nights = [entry(5), entry(3), entry(4, cluster_name="twin"), entry(9, machine="c" * 16)]
    # by what time it is, not by what is written: this is half an hour into November 4
    nights.append(entry(1, id="offset-01", started="2026-11-04T02:30:00+02:00"))
    recorded(where, *nights)

    def ids(**of: str) -> list[str]:
        return [night.id[-2:] for night in history.past("a" * 16, **of).nights]

    with History.open(where, read_only=True) as history:
        assert ids() == ["03", "01", "04", "05"]
        assert ids(since="2026-11-04") == ["01", "04", "05"]
        assert ids(until="2026-11-04") == ["03", "01", "04"], "the whole of the day"
        assert ids(since="2026-11-04T00:30:00Z", until="2026-11-04T00:30:01Z") == ["01"]
        assert ids(until="2026-11-04T00:30") == ["03"]
        assert ids(cluster="twin") == ["04"]
        newest = history.past()
        assert [x.id for x in newest.nights] == ["night-0009"] and len(newest.points) == 1
        assert history.machines()[0].machine == "c" * 16
        assert history.machines() == [
            MachineNights("c" * 16, "vm", 1, "2026-11-09T01:00:00Z", "2026-11-09T01:00:00Z"),
            MachineNights("a" * 16, "vm", 4, "2026-11-03T01:00:00Z", "2026-11-05T01:00:00Z"),
        ]
        with pytest.raises(InputError, match="since 'May' is not a date"):
            history.past(since="May")


def test_no_night_yet(where: str) -> None:
    with History.open(where) as history:
        assert history.past() == Past((), [], [], [])
        assert history.machines() == []


def test_accept(where: str) -> None:
    recorded(where, entry(1), entry(2))

    def of(night: int, series: str, reason: str) -> Acceptance:
        return Acceptance(
            night=f"night-{night:04d}", series=series, reason=reason, who="a\0", accepted="2026"
        )

    with History.open(where) as history:
        history.accept(of(2, "one", "new driver"))
        history.accept(of(2, "two", "x" * 9000))
        history.accept(of(1, "", "all"))
        history.accept(of(2, "one", "other reason"))
        assert [(x.night[-1], x.series, x.reason[:9], x.who) for x in history.past().accepted] == [
            ("1", "", "all", "a\ufffd"),
            ("2", "two", "x" * 9, "a\ufffd"),
            ("2", "one", "other rea", "a\ufffd"),
        ]
        with pytest.raises(InputError, match="holds no night night-0003"):
            history.accept(of(3, "one", "?"))


def test_parts_go_with_their_night(where: str) -> None:
    recorded(where, large(1), large(2))
    with History.open(where) as history:
        history.accept(Acceptance(night="night-0001", series="", reason="x", accepted="2026"))
    on = ["PRAGMA foreign_keys = ON"] if "://" not in where else []
    tables = ["versions", "points", "phases", "checks", "missing", "accepted"]
    left = sql(
        where,
        *on,
        "DELETE FROM nights WHERE id = 'night-0001'",
        *(f"SELECT count(*) FROM {name}" for name in tables),
    )
    assert left[-6:] == [[(2,)], [(12,)], [(84,)], [(1,)], [(1,)], [(0,)]]


def run_together(target: Callable[..., None], arguments: list[tuple[object, ...]]) -> None:
    """Run it in processes at once, to their ends."""
    workers = [PROCESSES.Process(target=target, args=of) for of in arguments]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(TIMEOUT_S)
    assert [worker.exitcode for worker in workers] == [0] * len(workers)


def test_processes_record_at_once(where: str) -> None:
    """They also make the tables at once. All write night 1, as large as the one who wrote it last."""
    own = [[1, *range(10 + 5 * k, 12 + 5 * k), 1] for k in range(RECORDERS)]
    run_together(record_all, [(where, nights, POINTS + k) for k, nights in enumerate(own)])
    with History.open(where, read_only=True) as history:
        past = history.past()
    expected = {"night-0001"} | {f"night-{n:04d}" for nights in own for n in nights}
    assert sorted(night.id for night in past.nights) == sorted(expected)
    for index, night in enumerate(past.nights):
        number = int(night.id[-4:])
        points = [point for point in past.points if point.night == index]
        size = POINTS + (number - 10) // 5 if number > 1 else len(points)
        assert size in range(POINTS, POINTS + RECORDERS)
        assert [x.run_id for x in points] == [f"{number:08x}{k:08x}" for k in range(size)]
        assert {x.measured_s for x in points} == {number * 1e-3}
        assert all(len(x.phases) == len(PHASES) for x in points)
        assert len(night.versions) == 2 and len(night.missing) == 1


def test_a_process_that_is_killed_leaves_nothing(where: str) -> None:
    """In the middle of a new night, and of one that takes another's place."""
    before = recorded(where, large(1, 3), large(2))
    for night in (1, 3):
        told, tell = os.pipe()
        worker = PROCESSES.Process(target=record_half_to, args=(where, night, told_path(tell)))
        worker.start()
        assert os.read(told, 1) == b"x"
        worker.kill()
        worker.join(TIMEOUT_S)
        if "://" not in where:
            assert Path(f"{where}-journal").stat().st_size > 0, "it had begun to write"
        os.close(told)
        os.close(tell)
        with History.open(where, read_only=True) as history:
            assert history.past() == before
    assert recorded(where, large(3)).nights[-1].id == "night-0003"


def told_path(tell: int) -> str:
    """A pipe's end, for a process that does not inherit it."""
    return f"/proc/{os.getpid()}/fd/{tell}"


def record_half_to(where: str, night: int, pipe: str) -> None:
    """In a process of its own: a night of so many rows that SQLite's journal is in use."""
    record_half(where, night, 100, os.open(pipe, os.O_WRONLY))


def test_a_newer_schema_is_refused(where: str) -> None:
    recorded(where, large(1))
    sql(where, "UPDATE calib_schema SET version = 7")
    for read_only in (True, False):
        with pytest.raises(FileError, match="schema 7 is newer than this program") as error:
            History.open(where, read_only=read_only)
        assert "\n" not in str(error.value)


def test_a_database_of_something_else_is_left_alone(where: str) -> None:
    sql(where, "CREATE TABLE points (x INTEGER)")
    with pytest.raises(FileError, match=r"the database of something else \(its table points"):
        History.open(where)
    with pytest.raises(FileError, match="holds no history"):
        History.open(where, read_only=True)
    if "://" in where:
        sql(where, "ALTER TABLE points RENAME TO others")
        assert len(recorded(where, large(1)).points) == 12, "beside what others keep on a server"


def test_reading_writes_nothing(where: str) -> None:
    recorded(where, large(1))
    with History.open(where, read_only=True) as history:
        with pytest.raises(FileError, match=r"read.?only"):
            history.record(large(2))
        assert len(history.past().nights) == 1


def test_reading_sees_one_state(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A night that is recorded between two statements of a reader is not there for it.

    (In SQLite it would wait for the reader.)
    """
    sql(server, *EMPTY)
    recorded(server, large(1))
    points_of = reading._points

    def late(
        connection: Connection, chosen: ColumnElement[bool], place: dict[int, int]
    ) -> list[PastPoint]:
        with History.open(server) as other:
            other.record(large(1, 2))
            other.record(large(2))
        return points_of(connection, chosen, place)

    with monkeypatch.context() as slow, History.open(server) as history:
        slow.setattr(reading, "_points", late)
        past = history.past()
    assert len(past.nights) == 1 and len(past.points) == 12


def test_the_tables_of_another_version_are_said_to_be(where: str) -> None:
    recorded(where, entry())
    sql(where, "ALTER TABLE points DROP COLUMN disturbed")
    for work in (lambda of: of.past("a" * 16), lambda of: of.record(entry(2))):
        with History.open(where) as history, pytest.raises(FileError) as error:
            work(history)
        assert "of another version of calib: move it away" in str(error.value)
        assert "\n" not in str(error.value)
    if "://" in where:
        sql(where, *EMPTY)  # other tests use the server, too


def test_sqlite_writes_no_log_ahead(tmp_path: Path) -> None:
    """WAL needs memory that all who read share: hosts of a network file system have none."""
    where = str(tmp_path / "calib.db")
    record_all(where, [1], points=1)
    assert sql(where, "PRAGMA journal_mode") == [[("delete",)]]
    assert [path.name for path in tmp_path.iterdir()] == ["calib.db"]


def test_where_locks_lie_a_history_has_a_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text("1 1 0:1 / / rw - nfs there:/home rw,vers=3,nolock,local_lock=all\n")
    monkeypatch.setattr(file_system, "MOUNTS", mounts)
    monkeypatch.setattr(store, "WAIT_S", 0.0)
    path = tmp_path / "calib.db"
    other = Claim(tmp_path / ".calib.db.claim", "process 1 on a", beat_s=0.05)
    assert other.take() == ""
    with pytest.raises(FileError, match=r"calib.db: process 1 on a is using it; try again"):
        History.open(str(path))
    other.give_back()
    with History.open(str(path)) as history:
        history.record(entry(1))
        assert len(history.past().nights) == 1
    assert {each.name for each in tmp_path.iterdir()} == {"calib.db", "mountinfo"}
