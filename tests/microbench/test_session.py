"""Sessions: order, budget, going on after a stop, cases that fail. Ranks are threads here."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from tests.helpers.divided import model_case
from tests.helpers.nvml import Board, nvml
from tests.helpers.ranks import ThreadCommunicator, results, run_ranks
from tests.helpers.rows import rows_in, sample, table_of
from tests.helpers.runs import new_manifest

from calib.foundation.errors import CalibError, MeasurementError
from calib.foundation.layers import LayerShape
from calib.microbench.attempts import FOR_MENDING
from calib.microbench.budget import FIRST_OVERHEAD_S, fewest_s
from calib.microbench.cases import (
    Case,
    CollectiveCase,
    InPlaceCase,
    LayerCase,
    Plan,
    TensorsCase,
    read_plan,
)
from calib.microbench.device import Device, DeviceLost
from calib.microbench.machine.telemetry import snapshot
from calib.microbench.records.looks import Disturbance, Look
from calib.microbench.records.manifest import CaseEnd, GpuIdentity, Manifest
from calib.microbench.records.parts import cases_done, consolidate, read_ends, write_part
from calib.microbench.rows import case_end
from calib.microbench.session import Session, run_session
from calib.microbench.timing.repeat import Repetitions
from calib.microbench.turns import case_seed, ordered_cases, starts_of
from calib.microbench.watch import Watch


def plan(*cases: Case, seed: int = 0, budget: float = 0.01) -> Plan:
    return Plan(cases=cases, budget_seconds=budget, seed=seed, launches=2)


TEN = plan(*(model_case(f"m{i}", 1) for i in range(10)))


class Runner:
    """Stands for training: notes what it is asked for; `act` may raise or return repetitions."""

    def __init__(self, act: Callable[[InPlaceCase], Repetitions | None] = lambda _: None) -> None:
        self.act, self.ran = act, []
        self.seeds: list[int] = []
        self.budgets: list[float] = []

    def __call__(
        self, comm: Any, case: InPlaceCase, seed: int, budget_s: float, target: float
    ) -> Repetitions:
        if comm.rank == 0:
            self.ran.append(case.model)
            self.seeds.append(seed)
            self.budgets.append(budget_s)
        result = self.act(case)
        rows = [[float(i + 1 + rank) for rank in range(comm.size)] for i in range(4)]
        return result or Repetitions(
            {"forward": rows}, warmup=1, stopped_by="interval", half_width=0.01, elapsed_s=1.0
        )


def launch(
    run: Path,
    plan: Plan,
    runner: Runner,
    number: int = 0,
    ranks: int = 1,
    make: Any = ThreadCommunicator,
    **more: Any,
) -> list[dict[str, Any]]:
    """One launch in a run directory, as the front door starts it; rank 0's events."""
    events: list[dict[str, Any]] = []

    def program(comm: Any) -> None:
        kept = (run / "manifest.json").exists()
        record = Manifest.read(run) if kept and comm.rank == 0 else new_manifest()
        runners = {"in_place": runner}
        run_session(
            comm,
            plan,
            number,
            run,
            record,
            runners,
            events.append,
            "a command",
            make=lambda library, control, device: comm,
            **more,
        )

    results(run_ranks(ranks, program, make))
    return events


def test_order_is_a_seeded_shuffle() -> None:
    orders = [ordered_cases(TEN, 1, 0), ordered_cases(TEN, 1, 1)]
    orders.append(ordered_cases(TEN.model_copy(update={"seed": 1}), 1, 0))
    for order in orders:
        assert Counter(c.id for c in order) == Counter(c.id for c in TEN.cases)
        assert [c.id for c in order] != [c.id for c in TEN.cases]
    assert len({tuple(c.id for c in order) for order in orders}) == 3
    assert ordered_cases(TEN, 1, 0) == orders[0], "the same in every process"
    backwards = TEN.model_copy(update={"cases": TEN.cases[::-1]})
    assert {c.id for c in ordered_cases(backwards, 1, 0)} == {c.id for c in TEN.cases}


def test_models_come_first() -> None:
    models = [model_case(f"m{n}", 2) for n in range(5)]
    others = [
        CollectiveCase(operation="allreduce", nbytes=n, ranks=2, group_size=2) for n in (8, 64)
    ]
    for number in range(2):
        order = ordered_cases(plan(*others, *models), 2, number)
        assert {case.id for case in order[: len(models)]} == {case.id for case in models}


def test_only_the_cases_of_this_size_run(tmp_path: Path) -> None:
    runner = Runner()
    launch(tmp_path, plan(model_case("one", 1), model_case("two", 2)), runner)
    assert runner.ran == ["one"]


def test_seed_of_data_is_that_of_the_case(tmp_path: Path) -> None:
    """The same in both launches, so that they measure the same work."""
    runner = Runner()
    for number in (0, 1):
        launch(tmp_path, TEN, runner, number)
    first = dict(zip(runner.ran[:10], runner.seeds[:10], strict=True))
    second = dict(zip(runner.ran[10:], runner.seeds[10:], strict=True))
    assert first == second and len(set(first.values())) == 10
    assert all(0 <= seed < 2**32 for seed in runner.seeds)
    other = TEN.model_copy(update={"seed": 1})
    assert case_seed(other, TEN.cases[0]) != case_seed(TEN, TEN.cases[0])


def test_rows_say_what_was_measured(tmp_path: Path) -> None:
    launch(tmp_path, plan(model_case("m", 2)), Runner(), number=1, ranks=2)
    rows = rows_in(tmp_path)
    assert [r.seconds for r in rows] == [2.0, 3.0, 4.0, 5.0]
    assert [r.rank_seconds for r in rows] == [[1, 2], [2, 3], [3, 4], [4, 5]]
    assert [r.skew_seconds for r in rows] == [1.0] * 4
    assert [r.warmup for r in rows] == [True, False, False, False]
    assert [r.repetition for r in rows] == [0, 1, 2, 3]
    row = rows[0]
    assert (row.case_id, row.kind, row.operation) == (model_case("m", 2).id, "in_place", "forward")
    assert (row.key, row.batch, row.ranks, row.launch, row.level) == ("m", 8, 2, 1, "node")
    record = Manifest.read(tmp_path)
    assert record.launches[0].ranks == 2 and record.launches[0].command == "a command"
    assert record.launches[0].finished >= record.launches[0].started > "2026"
    (end,) = read_ends(tmp_path)
    assert (end.repetitions, end.stopped_by, end.half_width) == (3, "interval", 0.01)


def test_a_finished_launch_runs_nothing_again(tmp_path: Path) -> None:
    launch(tmp_path, TEN, Runner())
    before = {path: path.read_bytes() for path in (tmp_path / "samples.parts").iterdir()}
    again = Runner()
    launch(tmp_path, TEN, again)
    assert again.ran == []
    assert {p: p.read_bytes() for p in (tmp_path / "samples.parts").iterdir()} == before
    consolidate(tmp_path)
    launch(tmp_path, TEN, again)
    assert again.ran == [], "nor after the parts were merged"
    launch(tmp_path, TEN, again, number=1)
    assert len(again.ran) == 10, "another launch is another measurement"


def test_a_case_with_a_part_is_not_run(tmp_path: Path) -> None:
    done = TEN.cases[3]
    write_part(
        tmp_path, case_end(done, 0, 1.0, stopped_by="interval"), table_of([sample(case_id=done.id)])
    )
    runner = Runner()
    launch(tmp_path, TEN, runner)
    assert sorted(runner.ran) == sorted(f"m{i}" for i in range(10) if i != 3)


@pytest.mark.parametrize("merged", [False, True])
def test_a_killed_session_keeps_what_was_finished(tmp_path: Path, merged: bool) -> None:
    """The fourth case is interrupted: three stay, and the next call runs the other seven."""
    count = 0

    def interrupted(case: InPlaceCase) -> None:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt

    first = Runner(interrupted)
    with pytest.raises(KeyboardInterrupt):
        launch(tmp_path, TEN, first)
    finished = {TEN.cases[int(model[1:])].id for model in first.ran[:3]}
    assert cases_done(tmp_path) == {(case_id, 0) for case_id in finished}
    assert {end.case_id for end in read_ends(tmp_path)} == finished
    if merged:
        consolidate(tmp_path)
        assert {end.case_id for end in Manifest.read(tmp_path).cases} == finished
    second = Runner()
    launch(tmp_path, TEN, second)
    assert second.ran == first.ran[3:4] + [m for m in second.ran if m != first.ran[3]]
    assert sorted(first.ran[:3] + second.ran) == sorted(f"m{i}" for i in range(10))
    consolidate(tmp_path)
    assert Counter(row.case_id for row in rows_in(tmp_path)) == {c.id: 4 for c in TEN.cases}
    record = Manifest.read(tmp_path)
    assert len(record.cases) == 10 and len(record.launches) == 2
    assert record.launches[0].finished == ""


def test_a_case_that_fails_has_no_rows_and_the_next_goes_on(tmp_path: Path) -> None:
    def wrong(case: InPlaceCase) -> None:
        if case.model == "m4":
            raise MeasurementError("wrong result on rank 1")

    runner = Runner(wrong)
    events = launch(tmp_path, TEN, runner)
    assert len(runner.ran) == 10
    failed = TEN.cases[4]
    launch(tmp_path, TEN, again := Runner())
    assert again.ran == [], "not by the command that met it"
    consolidate(tmp_path)
    assert cases_done(tmp_path) == {(c.id, 0) for c in TEN.cases if c != failed}
    ends = {end.case_id: end for end in Manifest.read(tmp_path).cases}
    assert ends[failed.id].stopped_by == "failed: wrong result on rank 1"
    assert ends[failed.id].repetitions == 0 and ends[failed.id].half_width is None
    assert all(end.stopped_by == "interval" for i, end in ends.items() if i != failed.id)
    (event,) = [event for event in events if event["event"] == "failed"]
    assert event["reason"] == "wrong result on rank 1"
    retry = Runner()
    launch(tmp_path, TEN, retry)
    assert retry.ran == ["m4"], "it is tried again by the next"


def test_an_error_that_is_no_measurement_ends_the_session(tmp_path: Path) -> None:
    def bug(case: InPlaceCase) -> None:
        raise ZeroDivisionError

    runner = Runner(bug)
    with pytest.raises(ZeroDivisionError):
        launch(tmp_path, TEN, runner)
    assert len(runner.ran) == 1


class WrongAllreduce(ThreadCommunicator):
    """Rank 1 gets one more than the sum."""

    def allreduce(self, buffer: Any) -> None:
        super().allreduce(buffer)
        if self.rank == 1:
            buffer += 1


def test_a_wrong_allreduce_has_no_time_and_p2p_goes_on(tmp_path: Path) -> None:
    cases = [
        CollectiveCase(ranks=2, group_size=2, operation="allreduce", nbytes=64),
        CollectiveCase(ranks=2, group_size=2, operation="p2p", nbytes=64),
    ]
    events = launch(tmp_path, plan(*cases), Runner(), ranks=2, make=WrongAllreduce)
    assert {row.operation for row in rows_in(tmp_path)} == {"p2p"}
    ends = {end.case_id: end.stopped_by for end in read_ends(tmp_path)}
    assert ends[cases[0].id].startswith(
        "failed: mpi allreduce 64 B on 2 ranks: wrong result on rank 1"
    )
    assert [e["label"] for e in events if e["event"] == "failed"] == [cases[0].label]


def test_the_first_launch_says_what_collectives_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But of one that ended the ranks, which is not called again; a later launch goes by plan.json."""
    monkeypatch.setattr("calib.microbench.watch.disturbances", lambda looks: [])
    cases = [
        CollectiveCase(ranks=2, group_size=2, operation="allreduce", nbytes=64),
        CollectiveCase(ranks=2, group_size=2, operation="p2p", nbytes=64),
        model_case("m", 2),
    ]
    end = case_end(cases[1], 0, 1.0, stopped_by="failed: a rank died")
    write_part(tmp_path, end.model_copy(update={"ended_ranks": True}))
    asked = plan(*cases, budget=60.0)
    events = launch(tmp_path, asked, runner := Runner(), ranks=2)
    found = read_plan(tmp_path)
    known = {case.label for case in found.cases if fewest_s(case) > 0}
    assert known == {cases[0].label} and found.as_asked() == asked
    assert found.held_of(2) is not None and found.launches_of(2) == asked.launches
    assert [event["line"] for event in events if event["event"] == "chosen"] == [""]
    again = launch(tmp_path, found, runner, number=1, ranks=2)
    assert not any(event["event"] == "chosen" for event in again)
    assert read_plan(tmp_path) == found and runner.ran == ["m", "m"]


def test_every_kind_of_case_for_real(tmp_path: Path) -> None:
    """Two thread ranks through the real collectives, layers and tensor loops."""
    layer = LayerShape(
        kind="linear", input_shapes=((4,),), output_shape=(3,), parameter_shapes=((3, 4), (3,))
    )
    cases: list[Case] = [
        CollectiveCase(ranks=2, group_size=2, operation="allreduce", nbytes=4096),
        CollectiveCase(ranks=2, group_size=2, operation="p2p", nbytes=4096),
        LayerCase(ranks=2, layer=layer, batch=8, needs_input_grad=False),
        TensorsCase(ranks=2, operation="pack", key="k", shapes=((3, 4), (3,))),
        TensorsCase(ranks=2, operation="update", key="k", shapes=((3, 4), (3,))),
        TensorsCase(ranks=2, operation="update", key="k", shapes=((3, 4), (3,)), optimizer="adam"),
        TensorsCase(ranks=2, operation="concat", key="y", shapes=((2, 6, 5),), parts=3),
    ]
    launch(tmp_path, plan(*cases), Runner(), ranks=2)
    found = {(r.kind, r.operation): r for r in rows_in(tmp_path)}
    assert set(found) == {
        ("collective", "allreduce"),
        ("collective", "p2p"),
        ("layer", "forward"),
        ("layer", "backward"),
        ("tensors", "pack"),
        ("tensors", "unpack"),
        ("tensors", "update"),
        ("tensors", "update_adam"),
        ("tensors", "concat"),
    }
    assert (found["tensors", "concat"].key, found["tensors", "concat"].ntensors) == ("y/3", 3)
    assert all(
        r.nbytes == 4096 and r.library == "mpi" for (k, _), r in found.items() if k[0] == "c"
    )
    assert found["layer", "forward"].key == layer.key(8, "float32", False)
    # x, y, w, b of four bytes each: 8 * (4 + 3) + 12 + 3 items
    assert found["layer", "forward"].nbytes == 4 * (8 * 7 + 15)
    assert (found["tensors", "pack"].nbytes, found["tensors", "pack"].ntensors) == (60, 2)
    assert [len(r.rank_seconds) for r in found.values()].count(1) == 1, "p2p is timed by one rank"
    for row in rows_in(tmp_path):
        assert row.seconds == max(row.rank_seconds) > 0
        assert row.skew_seconds == row.seconds - min(row.rank_seconds)
        assert row.calls >= 1 and row.active_ranks == row.ranks == 2


def test_time_that_a_case_leaves_goes_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten cases share 100 s (one launch of two): 10 s each while each takes nothing but its share.

    What is kept for measuring disturbed cases again is beyond the 100 s here.
    """
    now = 0.0
    monkeypatch.setattr("calib.microbench.session.perf_counter", lambda: now)
    ten = TEN.model_copy(update={"budget_seconds": 200.0 / (1 - FOR_MENDING)})

    def takes(seconds: float, beside: float = 0.0) -> Callable[[InPlaceCase], Repetitions]:
        def act(case: InPlaceCase) -> Repetitions:
            nonlocal now
            now += seconds + beside
            return Repetitions(
                {"forward": [[1.0]] * 4},
                warmup=1,
                stopped_by="budget",
                half_width=0.01,
                elapsed_s=seconds,
            )

        return act

    runner = Runner(takes(1.0))
    launch(tmp_path, ten, runner)
    first = 10.0 - FIRST_OVERHEAD_S
    assert runner.budgets == pytest.approx([first, *((100 - i) / (10 - i) for i in range(1, 10))])
    now = 0.0
    late = Runner(takes(60.0))
    launch(tmp_path / "late", ten, late)
    assert late.budgets == pytest.approx([first, 40 / 9] + [0.0] * 8), "never less than nothing"
    now = 0.0
    slow = Runner(takes(1.0, beside=4.0))
    launch(tmp_path / "slow", ten, slow)
    # what a case takes beside its repetitions is set aside for those to come
    rest = [(100 - 5 * i - 4 * (10 - i)) / (10 - i) for i in range(1, 10)]
    assert slow.budgets == pytest.approx([first, *rest])


def test_events_tell_the_progress(tmp_path: Path) -> None:
    events = launch(tmp_path, TEN, Runner())
    progress = [event for event in events if event["event"] == "case"]
    assert [(e["done"], e["of"]) for e in progress] == [(i, 10) for i in range(10)]
    assert events[-1]["event"] == "session" and events[-1]["done"] == 10
    assert issubclass(MeasurementError, CalibError)


def test_later_tiers_come_later_and_are_left_out_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 s for ten cases that take 30 s each: tier 2 ends at 100 s, tier 1 at 200, tier 0 never."""
    now = 0.0
    monkeypatch.setattr("calib.microbench.session.perf_counter", lambda: now)
    tiers = [2, 0, 1, 0, 2, 1, 0, 1, 1, 0]
    cases = [model_case(f"m{i}", 1).model_copy(update={"tier": t}) for i, t in enumerate(tiers)]
    ten = plan(*cases, budget=200.0)
    for number in (0, 1):
        order = [case.tier for case in ordered_cases(ten, 1, number)]
        assert order == sorted(tiers)

    def slow(case: InPlaceCase) -> None:
        nonlocal now
        now += 30.0

    runner = Runner(slow)
    launch(tmp_path, ten, runner)
    assert [tiers[int(model[1:])] for model in runner.ran] == [0] * 4 + [1] * 3
    left = [end for end in read_ends(tmp_path) if end.stopped_by.startswith("skipped")]
    assert sorted(tiers[int(end.label.split()[0][1:])] for end in left) == [1, 2, 2]
    assert all("larger budget" in end.stopped_by and end.repetitions == 0 for end in left)
    now = 0.0
    consolidate(tmp_path)
    launch(tmp_path, ten, again := Runner())
    assert again.ran == [], "the time of this plan is spent, for the next command too"


def test_what_others_add_to_the_manifest_meanwhile_stays(tmp_path: Path) -> None:
    """`calib fit` during a measurement merges the parts that are there: their ends stay."""
    seen = 0

    def merging(case: InPlaceCase) -> None:
        nonlocal seen
        seen += 1
        if seen == 6:
            consolidate(tmp_path)

    launch(tmp_path, TEN, Runner(merging))
    consolidate(tmp_path)
    record = Manifest.read(tmp_path)
    assert {end.case_id for end in record.cases} == {case.id for case in TEN.cases}
    assert record.launches[0].finished >= record.launches[0].started


class Gpu(Device):
    """A device that NVML knows by its number."""

    kind = "cuda"

    def __init__(self, index: int) -> None:
        self._identity = GpuIdentity(uuid=str(index), name="Some GPU")

    @property
    def identity(self) -> GpuIdentity:
        return self._identity

    def telemetry(self, ours: Sequence[int]) -> Mapping[str, Any]:
        return snapshot(self._identity.uuid, ours)


def test_a_lost_gpu_ends_the_ranks_and_not_the_case_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CUDA keeps an error: what failed would fail for all later cases of this process."""
    ill = ["", "", "CUDA error: an illegal memory access was encountered"]

    def fail(session: Session, case: Case, budget_s: float) -> Repetitions:
        session.control.barrier()
        raise MeasurementError(f"{case.label}: torch says: CUDA error")

    monkeypatch.setattr(Session, "measure", fail)
    monkeypatch.setattr("calib.microbench.session.take_device", lambda _, comm: Gpu(comm.rank))
    monkeypatch.setattr(Gpu, "trouble", lambda self: ill.pop(0))
    layer = LayerShape(kind="relu", input_shapes=((4,),), output_shape=(4,))
    cases = [LayerCase(ranks=1, layer=layer, batch=n, device="cuda") for n in (1, 2, 3, 4)]
    with pytest.raises(DeviceLost, match="the GPU of rank 0: CUDA error: an illegal memory access"):
        launch(tmp_path, plan(*cases), Runner())
    assert len(read_ends(tmp_path)) == 2, (
        "what failed on a healthy GPU is kept, and the rest goes on"
    )


def throttling(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, held_s: Sequence[float], ranks: int = 1
) -> tuple[CaseEnd, list[Any]]:
    """How a case on GPUs ends that are held back so long in each attempt; and its rows."""
    boards = [Board(f"GPU-{rank}") for rank in range(ranks)]
    monkeypatch.setitem(sys.modules, "pynvml", nvml(boards))
    attempts = Counter[int]()

    def measure(session: Session, case: Case, budget_s: float) -> Repetitions:
        rank = session.control.rank
        at = attempts[rank]
        attempts[rank] += 1
        boards[0].reasons = {"hardware_thermal"} if held_s[at] else set()
        boards[rank].run(held_s[at] if rank == 0 else 1.0)
        session.control.barrier()
        return Repetitions({"forward": [[1.0 + at] * ranks] * 8}, stopped_by="budget")

    monkeypatch.setattr(Session, "measure", measure)
    layer = LayerShape(
        kind="linear", input_shapes=((4,),), output_shape=(3,), parameter_shapes=((3, 4), (3,))
    )
    case = LayerCase(ranks=ranks, layer=layer, batch=8, device="cuda")
    monkeypatch.setattr("calib.microbench.session.take_device", lambda _, comm: Gpu(comm.rank))
    launch(tmp_path, plan(case), Runner(), ranks=ranks)
    assert set(attempts.values()) == {len(held_s)}
    (end,) = read_ends(tmp_path)
    return end, rows_in(tmp_path)


@pytest.mark.parametrize(
    ("held_s", "again", "seconds", "marks"),
    [
        ([0.0], 0, 1.0, ""),
        ([0.5, 0.0], 1, 2.0, ""),
        ([0.5, 0.25], 1, 2.0, "throttled"),
        ([0.25, 0.5], 1, 1.0, "throttled"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_throttled_case_is_measured_once_more(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ranks: int,
    held_s: list[float],
    again: int,
    seconds: float,
    marks: str,
) -> None:
    """The less throttled one is kept, also where one GPU of two is hot."""
    end, rows = throttling(monkeypatch, tmp_path, held_s, ranks)
    assert end.again == again and len(end.gpu_before) == len(end.mean_power_w) == ranks
    assert all(watts is not None for watts in end.mean_power_w)
    assert {(row.seconds, row.marks) for row in rows} == {(seconds, marks)}


def test_what_was_disturbed_is_measured_again_by_all_ranks_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of four cases is; hosts have their own clocks, and ranks must agree all the same."""
    asked: dict[int, list[tuple[str, float]]] = {0: [], 1: []}

    def seen(looks: Sequence[Look]) -> list[Disturbance]:
        return ["slow"] if len(looks) == 2 else []

    monkeypatch.setattr("calib.microbench.watch.disturbances", seen)
    monkeypatch.setattr(Watch, "due", lambda self: True)  # before every case
    four = plan(*(model_case(f"m{i}", 2) for i in range(4)), budget=200.0)

    def runner(
        comm: Any, case: InPlaceCase, seed: int, budget_s: float, target: float
    ) -> Repetitions:
        asked[comm.rank].append((case.model, budget_s))
        sleep(0.05 * (1 + comm.rank))  # ranks do not end together
        rows = [[1.0, 1.0]] * 9
        return Repetitions({"forward": rows}, warmup=1, stopped_by="interval", half_width=0.01)

    timed: Any = runner
    launch(tmp_path, four, timed, ranks=2)
    assert asked[0] == asked[1]
    order = [name for name, _ in asked[0]]
    assert order[4:] == [order[0]] and len(set(order)) == 4
    consolidate(tmp_path)
    ends = Manifest.read(tmp_path).cases
    assert [end.again for end in ends if end.label.startswith(order[0])] == [1]
    assert sum(end.again for end in ends) == 1
    assert all(end.started_unix_s for end in ends)


def test_a_model_has_ranks_of_its_own(tmp_path: Path) -> None:
    """Where a driver starts ranks for the rest; on a GPU, or without a driver, it has not."""
    sent = CollectiveCase(ranks=2, group_size=2, operation="p2p", nbytes=64)
    mixed = plan(model_case("m0", 2), sent, model_case("m1", 2), budget=60.0)
    assert starts_of(mixed.cases) == 3 and starts_of(mixed.cases[::2]) == 2
    on_gpus = [model_case(name, 2).model_copy(update={"device": "cuda"}) for name in ("m0", "m1")]
    assert starts_of([sent, *on_gpus]) == starts_of([sent]) == 1
    ran, chosen = list[str](), list[bool]()
    for _ in range(3):
        events = launch(tmp_path, mixed, runner := Runner(), ranks=2, driven=True)
        ran.append(" ".join(runner.ran))
        chosen.append(any(event["event"] == "chosen" for event in events))
    assert sorted(ran) == ["", "m0", "m1"] and ran[2] == "" and chosen == [False, False, True]
    assert {row.case_id for row in rows_in(tmp_path)} == {case.id for case in mixed.cases}
    launch(tmp_path / "alone", mixed, runner := Runner(), ranks=2)
    assert set(runner.ran) == {"m0", "m1"}, "one that was disturbed twice"


@pytest.mark.parametrize(("waited", "again"), [(0.25, 1), (0.75, 0)])
def test_a_disturbed_model_is_timed_once_more_by_other_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited: float, again: int
) -> None:
    """They keep what waited less; the first ranks only say that it was disturbed."""
    monkeypatch.setattr("calib.microbench.watch.disturbances", lambda looks: ["slow"])
    shares = [0.5, waited]

    def act(case: InPlaceCase) -> Repetitions:
        share = shares.pop(0)
        sleep(0.05)  # within the window of the look behind it
        return Repetitions(
            {"forward": [[1.0 + share]] * 9},
            waited={"forward": [[share * (1.0 + share)]] * 9},
            warmup=1,
            stopped_by="interval",
            half_width=0.01,
        )

    one = plan(model_case("m", 1), budget=60.0)
    (first,) = one.cases
    events = launch(tmp_path, one, Runner(act), driven=True)
    told = [event for event in events if event["event"] == "disturbed"]
    assert told == [{"event": "disturbed", "id": first.id, "waited": 0.5}]
    launch(tmp_path, one, Runner(act), driven=True, again=first.id)
    (end,) = read_ends(tmp_path)
    kept = waited if again else 0.5
    assert (end.again, end.waited) == (again, kept) and not shares
    assert {row.seconds for row in rows_in(tmp_path)} == {1.0 + kept}
