"""Collectives on ranks that are threads: results, refusals, who times what, groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.helpers.ranks import ThreadCommunicator, results, run_ranks

from calib.foundation.collectives import sent_bytes
from calib.foundation.errors import CalibError, InputError, MeasurementError
from calib.microbench.cases import CollectiveCase
from calib.microbench.collectives.measure import CollectiveSetting, measure_collective
from calib.microbench.collectives.operations import EXERCISES, neighbours, pattern, summed
from calib.microbench.collectives.pool import CommunicatorPool
from calib.microbench.collectives.timing import Start, exercise_block
from calib.microbench.device import Device
from calib.microbench.machine.placement import Placement
from calib.microbench.timing.clock import Synchroniser
from calib.microbench.timing.repeat import FEWEST_REPETITIONS, Repetitions, Timings
from calib.microbench.timing.timer import Timer

TIMER = Timer(resolution_s=1e-9, overhead_s=1e-9)


def setting(comm: Any, hosts: list[str] | None = None, clock: bool = False) -> CollectiveSetting:
    hosts = hosts or ["a"] * comm.size
    placement = Placement(hosts, [[0]] * comm.size, max(map(hosts.count, hosts)), False)
    pool = CommunicatorPool(comm, make=lambda library, control, device: comm)
    return CollectiveSetting(
        comm, pool, placement, TIMER, Synchroniser(comm).clock if clock else None
    )


def case(operation: str, ranks: int, nbytes: int = 64, **fields: Any) -> CollectiveCase:
    content = {"operation": operation, "ranks": ranks, "nbytes": nbytes, "group_size": ranks}
    return CollectiveCase.model_validate({**content, **fields})


def measured(what: CollectiveCase, make: Any = ThreadCommunicator, **about: Any) -> Any:
    """What measure_collective gave on every rank."""
    return run_ranks(
        what.ranks, lambda comm: measure_collective(setting(comm, **about), what, 0.0, 0.5), make
    )


CASES = [
    case("p2p", 2),
    case("p2p_both", 2),
    *(
        case(operation, ranks, nbytes)
        for operation in (
            "allreduce",
            "allgather",
            "allgatherv",
            "reduce_scatter",
            "all_to_all",
            "broadcast",
        )
        for ranks in (2, 3)
        for nbytes in (8, 1000)
    ),
    case("halo", 3, grid=(3,)),
    case("halo", 4, grid=(2, 2)),
    case("hierarchical_allreduce", 4, inner=2),
    case("hierarchical_allreduce", 3, inner=3),
    case("hierarchical_allreduce", 3, inner=1),
]


@pytest.mark.parametrize("what", CASES, ids=lambda c: c.label)
def test_every_operation_is_right_and_timed(what: CollectiveCase) -> None:
    """The check ran on real data (a wrong item would have raised), then rows came on all ranks."""
    everyone = results(measured(what))
    for result in everyone:
        assert isinstance(result, Repetitions)
        rows = result.ranks[what.operation]
        assert len(rows) >= FEWEST_REPETITIONS
        timing = 1 if what.operation == "p2p" else what.ranks
        assert all(len(row) == timing and min(row) > 0 for row in rows)
        assert result.first_s is not None and result.first_s > 0
    assert len({str(result.ranks) for result in everyone}) == 1, "all ranks hold the same rows"


def _off_by_one(name: str, landed: int) -> Any:
    """The method, after which the last item that rank 1 got is one too much."""

    def call(self: ThreadCommunicator, *arguments: Any) -> None:
        getattr(ThreadCommunicator, name)(self, *arguments)
        if self.rank == 1:
            arguments[landed][-1] += 1

    return call


class _OffByOne(ThreadCommunicator):
    """Wrong on rank 1, whatever the operation."""

    allreduce = _off_by_one("allreduce", 0)
    allgather = _off_by_one("allgather", 1)
    reduce_scatter = _off_by_one("reduce_scatter", 1)
    all_to_all = _off_by_one("all_to_all", 1)
    broadcast = _off_by_one("broadcast", 0)
    receive = _off_by_one("receive", 0)


@pytest.mark.parametrize("what", CASES, ids=lambda c: c.label)
def test_a_wrong_result_has_no_time(what: CollectiveCase) -> None:
    outcomes = measured(what, _OffByOne)
    assert {type(outcome) for outcome in outcomes} == {MeasurementError}, "on every rank"
    assert "wrong result on rank" in str(outcomes[0])
    assert len({str(outcome) for outcome in outcomes}) == 1


def test_a_message_that_does_not_come_back_has_no_time() -> None:
    """The first rank's buffer held what it expects: that alone is no proof."""

    class Deaf(ThreadCommunicator):
        def receive(self, buffer: np.ndarray, source: int) -> None:
            super().receive(np.empty_like(buffer) if self.rank == 0 else buffer, source)

    outcomes = measured(case("p2p", 2), Deaf)
    assert {type(outcome) for outcome in outcomes} == {MeasurementError}
    assert "wrong result on rank 0" in str(outcomes[0])


def test_memory_that_holds_what_is_expected_is_no_result() -> None:
    class Lazy(ThreadCommunicator):
        def buffer(self, items: int) -> np.ndarray:
            return np.concatenate([pattern(r, items // self.size) for r in range(self.size)])

        def allgather(self, mine: np.ndarray, gathered: np.ndarray) -> None:
            pass

    outcomes = measured(case("allgather", 2), Lazy)
    assert {type(outcome) for outcome in outcomes} == {MeasurementError}


def test_inputs_tell_ranks_and_items_apart() -> None:
    assert pattern(2, 9).tolist() == [3, 6, 9, 12, 15, 18, 21, 3, 6]
    assert pattern(0, 3, start=6).tolist() == [7, 1, 2]
    assert summed(3, 3).tolist() == [6, 12, 18]
    # sums of a large machine are whole numbers that float32 holds
    assert summed(4096, 7)[-1] < 2**24 and summed(4096, 7).dtype == np.float32


@pytest.mark.parametrize(
    ("operation", "nbytes", "ranks", "sent"),
    [
        ("allreduce", 8, 3, 8),
        ("allgather", 8, 3, 12),
        ("allgatherv", 8, 3, 8),
        ("reduce_scatter", 1000, 3, 1008),
        ("all_to_all", 16, 4, 16),
        ("p2p", 12, 2, 12),
    ],
)
def test_rows_say_what_was_sent(operation: str, nbytes: int, ranks: int, sent: int) -> None:
    what = case(operation, ranks, nbytes)
    assert sent_bytes(what.operation, what.nbytes, what.group_size) == sent
    sizes = results(
        run_ranks(
            ranks,
            lambda comm: [len(buffer) for buffer, _ in EXERCISES[operation](what, comm).inputs],
        )
    )
    if operation in ("allgather", "allgatherv"):
        assert 4 * sum(size for (size,) in sizes) == sent
    else:
        assert [4 * size for (size,) in sizes] == [sent] * ranks


def test_allgatherv_is_uneven() -> None:
    what = case("allgatherv", 3, 24)
    counts = results(
        run_ranks(3, lambda comm: len(EXERCISES["allgatherv"](what, comm).inputs[0][0]))
    )
    assert counts == [1, 2, 3]


@pytest.mark.parametrize(
    ("rank", "grid", "near"),
    [
        (0, (2,), [1]),
        (1, (3,), [0, 2]),
        (0, (2, 3), [1, 3]),
        (4, (2, 3), [1, 3, 5]),
        (4, (3, 3), [1, 3, 5, 7]),
        (0, (2, 2, 2), [1, 2, 4]),
        (17, (2, 3, 4), [5, 13, 16, 18, 21]),
    ],
)
def test_neighbours(rank: int, grid: tuple[int, ...], near: list[int]) -> None:
    assert neighbours(rank, grid) == near


def test_groups_at_once_and_ranks_in_none() -> None:
    """Two groups of two of five ranks: four time, the fifth has the same rows."""
    what = case("allreduce", 5, group_size=2, groups=2)
    everyone = results(measured(what))
    assert all(len(row) == 4 for row in everyone[4].ranks["allreduce"])
    assert everyone[4].ranks == everyone[0].ranks


def test_groups_reduce_among_themselves() -> None:
    """A communicator that sums over all ranks instead of the group's is found out."""

    class Everyone(ThreadCommunicator):
        def group(self, ranks: Any) -> Any:
            return self

    what = case("allreduce", 4, group_size=2, groups=2)
    assert {type(outcome) for outcome in measured(what, Everyone)} == {MeasurementError}


def test_a_window_on_synchronised_clocks() -> None:
    what = case("allreduce", 3, start="window")
    everyone = results(measured(what, clock=True))
    assert all(len(row) == 3 for row in everyone[0].ranks["allreduce"])
    assert len(everyone[0].late) == len(everyone[0].ranks["allreduce"])
    assert min(everyone[0].late) >= 0
    outcomes = measured(what)
    assert {type(o) for o in outcomes} == {InputError} and "clock" in str(outcomes[0])


def test_cold_buffers_are_timed_one_call_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    evicted: list[int] = []
    monkeypatch.setattr("calib.microbench.timing.stretches.evict", lambda: evicted.append(1))
    (result, _) = results(measured(case("allreduce", 2, cold=True)))
    assert result.calls == 1
    repetitions = len(result.ranks["allreduce"])
    assert len(evicted) == 2 * repetitions, "before each, on each rank"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"operation": "p2p", "group_size": 3}, "between 2 ranks"),
        ({"group_size": 2, "groups": 3}, "over 4 ranks"),
        ({"operation": "halo"}, "needs a grid"),
        ({"grid": (4,)}, "needs a grid"),
        ({"operation": "halo", "grid": (3, 2)}, "not a 1-D to 3-D layout of 4"),
        ({"operation": "hierarchical_allreduce", "inner": 3}, "divisor"),
        ({"inner": 2}, "needs inner"),
    ],
)
def test_impossible_cases_are_refused(fields: dict[str, Any], reason: str) -> None:
    content = {"operation": "allreduce", "nbytes": 64, "ranks": 4, "group_size": 4, **fields}
    with pytest.raises(ValueError, match=reason):
        CollectiveCase.model_validate(content)


def test_groups_that_the_launch_cannot_hold() -> None:
    """Strided groups may need more ranks than they have members."""
    outcomes = measured(case("allreduce", 4, group_size=2, stride=3, groups=2))
    assert all(isinstance(outcome, CalibError) for outcome in outcomes)
    assert "do not fit" in str(outcomes[0])


class Counting(ThreadCommunicator):
    """Counts calls and keeps the largest item that they left."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.calls: list[tuple[str, int]] = []
        self.largest = 0.0

    def allreduce(self, buffer: np.ndarray) -> None:
        self.calls.append(("allreduce", buffer.nbytes))
        super().allreduce(buffer)
        self.largest = max(self.largest, float(np.abs(buffer).max()))

    def send(self, buffer: np.ndarray, to: int) -> None:
        self.calls.append((f"send to {to}", buffer.nbytes))
        super().send(buffer, to)

    def receive(self, buffer: np.ndarray, source: int) -> None:
        self.calls.append((f"receive from {source}", buffer.nbytes))
        super().receive(buffer, source)


def timed(what: CollectiveCase, comm: Any, calls: int, n: int) -> Timings:
    """`n` repetitions of `calls` calls of one operation on one rank."""
    exercise = EXERCISES[what.operation](what, comm)
    return exercise_block(what.label, exercise, Start(comm), calls)(n)


@pytest.mark.parametrize("calls", [1, 5])
def test_a_timing_holds_its_calls(calls: int) -> None:
    def program(comm: Counting) -> Any:
        return timed(case("allreduce", 2), comm, calls, 4), comm.calls, comm.largest

    for timings, made, largest in results(run_ranks(2, program, Counting)):
        assert list(timings.seconds) == ["allreduce"] and len(timings.seconds["allreduce"]) == 4
        assert len(timings.starts) == 4 and list(timings.starts) == sorted(timings.starts)
        assert made == [("allreduce", 64)] * 4 * calls
        assert largest == 0.0, "sums of sums do not grow"


@pytest.mark.parametrize("calls", [1, 3])
def test_a_ping_pong_is_timed_by_the_rank_that_starts(calls: int) -> None:
    def program(comm: Counting) -> Any:
        return timed(case("p2p", 2), comm, calls, 2).seconds, comm.calls

    zero, one = results(run_ranks(2, program, Counting))
    assert zero[1] == [("send to 1", 64), ("receive from 1", 64)] * 2 * calls
    assert one[1] == [("receive from 0", 64), ("send to 0", 64)] * 2 * calls
    assert one[0] == {"p2p": [None, None]}
    assert all(seconds > 0 for seconds in zero[0]["p2p"])


@pytest.mark.parametrize("calls", [1, 4])
def test_times_are_per_call(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """A clock that gains 1 s with every message: a call of p2p is half a round trip, so 1 s too."""
    now = [0.0]

    class Ticking(ThreadCommunicator):
        def allreduce(self, buffer: np.ndarray) -> None:
            now[0] += 1.0

        def send(self, buffer: np.ndarray, to: int) -> None:
            now[0] += 1.0

        receive = send

    monkeypatch.setattr("calib.microbench.timing.stretches.perf_counter", lambda: now[0])
    for operation in ("allreduce", "p2p"):
        what = case(operation, 2)
        (found,) = results(run_ranks(1, lambda c, w=what: timed(w, c, calls, 3), Ticking))
        assert found.seconds == {operation: [1.0] * 3}


GRAPH = case("allreduce", 2, library="torch_nccl", device="cuda", mode="graph")


class Capturing(Device):
    """Its graphs are calls one after another; it knows of how many each was."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def captured(self, call: Callable[[], object], number: int) -> Callable[[], None]:
        self.sizes.append(number)

        def replay() -> None:
            for _ in range(number):
                call()

        return replay


class Forgetting(Capturing):
    """The replays of its graphs do nothing."""

    def captured(self, call: Callable[[], object], number: int) -> Callable[[], None]:
        return lambda: None


class Refusing(Capturing):
    """It captures nothing on one of the ranks."""

    def captured(self, call: Callable[[], object], number: int) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing\nat line 7")


def graph_on(devices: list[Device]) -> Any:
    class OnDevices(ThreadCommunicator):
        @property
        def device(self) -> Any:
            return devices[self.rank]

    return measured(GRAPH, OnDevices)


def test_a_timing_is_a_replay_of_one_graph() -> None:
    """Of one call for the check and the trial, then of as many as a timing holds."""
    devices = [Capturing(), Capturing()]
    for result in results(graph_on([*devices])):
        assert devices[0].sizes == devices[1].sizes == [1, result.calls]
        assert len(result.ranks["allreduce"]) >= FEWEST_REPETITIONS


def test_the_seconds_of_a_graph_are_divided_by_its_calls() -> None:
    calls: list[int] = []

    def program(comm: Any) -> list[float]:
        comm.device = Capturing()
        exercise = EXERCISES["allreduce"](GRAPH, comm)
        exercise.call = exercise._alone = lambda: calls.append(comm.rank)
        ends = []
        for number in (1, 1000):
            exercise.capture(number)
            exercise.halves = 1 if number == 1 else 10**9  # what is divided by it is divided at all
            ends.append(exercise_block("x", exercise, Start(comm))(1).seconds["allreduce"][0])
        return ends

    for one, many in results(run_ranks(2, program)):
        assert one > 0 and many < 1e-9
    assert len(calls) == 2 * 1001


def test_what_a_graph_brings_is_checked() -> None:
    for outcome in graph_on([Forgetting(), Forgetting()]):
        assert isinstance(outcome, MeasurementError) and "wrong result on rank 0" in str(outcome)


def test_ranks_fail_together_where_one_captures_nothing() -> None:
    for outcome in graph_on([Capturing(), Refusing()]):
        assert isinstance(outcome, MeasurementError)
        assert str(outcome) == (
            f"{GRAPH.label}: no CUDA graph of it: operation not permitted when stream is capturing"
        )
