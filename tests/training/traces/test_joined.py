"""Collectives of several ranks, planted: who came last, how long it took, what was waited."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.traces.made_traces import STEP_US, Clock, Planted, planted_run

from calib.foundation.errors import FileError
from calib.training.traces.joined import JoinedRanks, joined
from calib.training.traces.rank import US
from calib.training.traces.split import splits_of

FEW = settings(max_examples=25, deadline=None)
TIGHT = 1e-9  # s; the clocks of these traces begin at 1 s, in float64


def random_steps(
    ranks: int, steps: int, calls: int, seed: int, operations: Sequence[str] = ("allreduce",)
) -> list[list[Planted]]:
    """Collectives of all ranks, one after the other; every one has a last arrival of its own."""
    random = Random(seed)
    found = []
    for _ in range(steps):
        at, of_step = 500.0, []
        for number in range(calls):
            starts = {rank: at + random.uniform(0, 300) for rank in range(ranks)}
            stop = max(starts.values()) + random.uniform(20, 200)
            operation = operations[number % len(operations)]
            of_step.append(Planted(starts, stop, operation, 1000 + number % 3))
            at = stop + random.uniform(50, 100)
        assert at < STEP_US
        found.append(of_step)
    return found


def check(found: JoinedRanks, steps: Sequence[Sequence[Planted]], exact_us: float) -> None:
    """Each collective has its planted truth, to `exact_us`."""
    truth = [call for calls in steps for call in calls]
    assert found.comparable and len(found.collectives) == len(truth)
    for one, call in zip(found.collectives, truth, strict=True):
        assert one.ranks == tuple(sorted(call.starts))
        assert one.own_s == pytest.approx((call.stop - call.late) * US, abs=exact_us * US)
        waits = [(call.late - call.starts[rank]) * US for rank in one.ranks]
        assert one.waited_s == pytest.approx(waits, abs=exact_us * US)
        order = sorted(call.starts.values())
        assert one.ahead_s == pytest.approx((order[-1] - order[-2]) * US, abs=exact_us * US)
        if order[-1] - order[-2] > 2 * exact_us:
            assert one.last == max(call.starts, key=call.starts.__getitem__)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_one_host(tmp_path: Path, ranks: int) -> None:
    steps = random_steps(ranks, 3, 5, ranks)
    traces = planted_run(tmp_path, steps, [Clock()] * ranks)
    found = joined(traces)
    check(found, steps, 1e-3)
    assert found.notes == ()
    # what each rank waited, on its own clock
    for rank, (trace, waits) in enumerate(zip(found.traces, found.waiting, strict=True)):
        lost = sum(call.late - call.starts[rank] for calls in steps for call in calls)
        assert float((waits[:, 1] - waits[:, 0]).sum()) == pytest.approx(lost, abs=1e-3)
        split = splits_of(found)[rank]
        assert float(split.parts["waiting"].sum()) == pytest.approx(lost * US, abs=TIGHT)
        wire = sum(call.stop - call.late for calls in steps for call in calls)
        assert float(split.parts["wire"].sum()) == pytest.approx(wire * US, abs=TIGHT)
        assert trace.rank == rank


def test_files_of_one_host_whose_clocks_begin_elsewhere(tmp_path: Path) -> None:
    """Since 2.2 times count from baseTimeNanoseconds, which each process has another of."""
    steps = random_steps(2, 2, 4, 5)
    traces = planted_run(tmp_path, steps, [Clock(), Clock(offset=-250_000.0)])
    traces[1].about["baseTimeNanoseconds"] = 250_000_000
    found = joined(traces)
    check(found, steps, 1e-3)
    assert found.notes == ()


@pytest.mark.parametrize("seed", range(3))
def test_several_hosts_with_clocks_of_their_own(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    steps = random_steps(4, 4, 6, seed)
    clocks = [
        Clock(host, random.uniform(-1e6, 1e6), random.uniform(-2e-5, 2e-5))
        for host in ("a", "b", "c", "d")
    ]
    found = joined(planted_run(tmp_path, steps, clocks))
    # what 2e-5 of drift is within half of a step, against each other
    check(found, steps, 2 * 2e-5 * STEP_US)
    assert found.notes == ("clocks of several hosts are set by the ends of collectives",)


def test_hosts_that_have_no_collective_with_the_first_rank(tmp_path: Path) -> None:
    """Tensor parallelism in a host, data parallelism across: ranks 0, 1 on a and 2, 3 on b."""
    random = Random(1)
    steps = []
    for _ in range(3):
        calls = []
        for n, group in enumerate([(0, 1), (2, 3), (0, 2), (1, 3)] * 2):
            at = 500.0 + 1000 * n
            starts = {rank: at + random.uniform(0, 300) for rank in group}
            calls.append(Planted(starts, at + 400, elements=64 + n))
        steps.append(calls)
    clocks = [Clock("a"), Clock("a"), Clock("b", 3e5), Clock("b", 3e5)]
    check(joined(planted_run(tmp_path, steps, clocks)), steps, 1e-3)
    # and where rank 3 is tied to rank 0 through rank 1 alone
    chain = [[call for call in calls if 2 not in call.starts] for calls in steps]
    chained = [Clock("a"), Clock("a"), Clock("b", 3e5), Clock("c", -7e5)]
    (tmp_path / "chain").mkdir()
    check(joined(planted_run(tmp_path / "chain", chain, chained)), chain, 1e-3)


def test_older_traces_name_no_host(tmp_path: Path) -> None:
    steps = random_steps(2, 3, 4, 2)
    traces = planted_run(tmp_path, steps, [Clock(), Clock()])
    for trace in traces:
        del trace.about["host_name"]
    check(joined(traces), steps, 1e-3)
    traces = planted_run(tmp_path, steps, [Clock(), Clock(offset=9e5)])
    for trace in traces:
        trace.about["host_name"] = ["a", 1]  # no name either
    found = joined(traces)
    check(found, steps, 1e-3)
    assert "clocks of several hosts" in found.notes[0]


def test_clocks_that_jump_between_steps_are_set_step_by_step(tmp_path: Path) -> None:
    steps = random_steps(3, 4, 5, 3)
    jumps = ({2: 2_000.0, 3: 2_000.0}, {1: 500.0, 2: 500.0, 3: 500.0})
    clocks = [Clock("a"), Clock("b", jumps=jumps[0]), Clock("c", 1e6, jumps=jumps[1])]
    check(joined(planted_run(tmp_path, steps, clocks)), steps, 1e-3)
    back = [Clock("a"), Clock("b", jumps={1: -9_000.0}), Clock("c")]
    with pytest.raises(FileError, match=r"rank1.json: step 1 begins before step 0 ends"):
        planted_run(tmp_path, steps, back)


def test_clocks_of_one_host_that_differ_are_not_compared(tmp_path: Path) -> None:
    steps = random_steps(2, 3, 5, 4)
    found = joined(planted_run(tmp_path, steps, [Clock(), Clock(offset=5_000.0)]))
    assert not found.comparable
    assert "cannot be compared (100% of the collectives would end before" in found.notes[0]
    for one, call in zip(found.collectives, [c for calls in steps for c in calls], strict=True):
        assert (one.last, one.ahead_s, one.waited_s) == (None, 0.0, (0.0, 0.0))
        assert one.own_s == pytest.approx((call.stop - call.late) * US, abs=TIGHT)
    assert all(len(waits) == 0 for waits in found.waiting)


def test_a_collective_that_did_not_meet_is_told(tmp_path: Path) -> None:
    steps = random_steps(2, 2, 5, 6)
    starts = dict(steps[1][0].starts)
    early = Planted(starts | {0: 100.0}, steps[1][0].stop, stops={0: 200.0}, elements=1000)
    steps[1][0] = early
    found = joined(planted_run(tmp_path, steps, [Clock()] * 2))
    assert found.comparable
    assert found.notes == ("1 collective did not meet those of the other ranks",)
    (lone,) = [one for one in found.collectives if one.last is None]
    assert lone.own_s == pytest.approx(100 * US, abs=TIGHT) and set(lone.waited_s) == {0.0}


def test_sampled_traces_lack_events(tmp_path: Path) -> None:
    """What one trace lacks is told of the others, without waits; the rest has its truth."""
    steps = random_steps(3, 3, 3, 7)
    lost = [Planted(call.starts, call.stop, elements=7, missing=(1, 2)) for call in steps[0][:1]]
    part = [Planted(call.starts, call.stop, elements=8, missing=(0,)) for call in steps[1][:1]]
    planted = [steps[0][1:] + lost, steps[1][1:] + part, steps[2]]
    found = joined(planted_run(tmp_path, planted, [Clock()] * 3))
    assert found.comparable
    (alone,) = [x for x in found.collectives if x.one.elements == 7]
    call = lost[0]
    assert (alone.ranks, alone.last) == ((0,), None)
    assert alone.own_s == pytest.approx((call.stop - call.starts[0]) * US, abs=TIGHT)
    (two,) = [x for x in found.collectives if x.one.elements == 8]
    late = max(part[0].starts[1], part[0].starts[2])
    assert two.ranks == (1, 2)
    assert two.own_s == pytest.approx((part[0].stop - late) * US, abs=TIGHT)
    rest = [x for x in found.collectives if (x.one.elements or 0) >= 1000]
    assert len(rest) == 7 and all(x.ranks == (0, 1, 2) and x.last is not None for x in rest)


def test_an_all_to_all_of_unequal_sizes_is_one(tmp_path: Path) -> None:
    starts = {rank: 500.0 + 50 * rank for rank in range(4)}
    sizes = {rank: 100 * (rank + 1) for rank in range(4)}
    calls = [Planted(starts, 800.0, "all_to_allv", of_rank=sizes) for _ in range(1)]
    found = joined(planted_run(tmp_path, [calls] * 3, [Clock()] * 4))
    assert [len(one.each) for one in found.collectives] == [4] * 3
    assert [x.elements for x in found.collectives[0].each] == [100, 200, 300, 400]
    assert all(one.last == 3 for one in found.collectives)
    assert found.collectives[0].own_s == pytest.approx(150 * US, abs=TIGHT)


def test_collectives_that_need_nobody_set_no_clock(tmp_path: Path) -> None:
    """A sender of a pipeline ends before its receiver begins: nothing can be said of clocks."""
    sends = [Planted({0: 100.0}, 200.0, "send"), Planted({1: 300.0}, 350.0, "recv")]
    found = joined(planted_run(tmp_path, [sends] * 2, [Clock("a"), Clock("b", 1e5)]))
    assert not found.comparable
    assert any("no collective needs all of them" in note for note in found.notes)
    assert {one.one.operation for one in found.collectives} == {"send", "receive"}


def test_a_broadcast_whose_root_leaves_early(tmp_path: Path) -> None:
    """The clocks are set by the allreduces; a root that is gone has met nobody, and is told."""
    steps = random_steps(2, 3, 3, 8)
    root = Planted({0: 100.0, 1: 300.0}, 320.0, "broadcast", 5, stops={0: 120.0})
    found = joined(planted_run(tmp_path, [[root, *calls] for calls in steps], [Clock()] * 2))
    assert found.comparable
    roots = [one for one in found.collectives if one.one.operation == "broadcast"]
    assert [one.own_s for one in roots] == pytest.approx([20 * US] * 3, abs=TIGHT)
    assert all(one.last is None for one in roots)


def test_one_trace_is_compared_with_nothing(tmp_path: Path) -> None:
    steps = random_steps(2, 2, 3, 9)
    found = joined(planted_run(tmp_path, steps, [Clock()] * 2)[:1])
    assert (found.comparable, found.notes) == (False, ())
    for one, call in zip(found.collectives, [c for calls in steps for c in calls], strict=True):
        assert one.own_s == pytest.approx((call.stop - call.starts[0]) * US, abs=TIGHT)


@FEW
@given(
    ranks=st.integers(2, 4),
    lengths=st.lists(
        st.tuples(st.lists(st.integers(0, 400), min_size=4, max_size=4), st.integers(1, 300)),
        min_size=1,
        max_size=6,
    ),
    ends=st.lists(st.integers(0, 15), min_size=4, max_size=4),
    work=st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 900)), max_size=5),
)
def test_of_any_run_on_a_common_clock(
    ranks: int, lengths: list[tuple[list[int], int]], ends: list[int], work: list[tuple[int, int]]
) -> None:
    """Waits are not negative, own time is in what each rank saw, and parts add up to the step."""
    at, calls = 100.0, []
    for delays, lasts in lengths:
        starts = {rank: at + delays[rank] for rank in range(ranks)}
        stop = max(starts.values()) + lasts
        stops = {rank: stop + ends[rank] for rank in range(ranks)}  # as GPUs' ends differ
        calls.append(Planted(starts, stop, stops=stops))
        at = max(stops.values()) + 1
    kernels = [(float(start), float(start + lasts)) for start, lasts in work]
    with tempfile.TemporaryDirectory() as folder:
        found = joined(
            planted_run(Path(folder), [calls] * 2, [Clock()] * ranks, lambda rank: kernels)
        )
    assert found.comparable
    for one in found.collectives:
        durations = [(x.stop_us - x.start_us) * US for x in one.each]
        assert one.own_s <= min(durations) + max(ends) * US + TIGHT
        assert min(one.waited_s) == pytest.approx(0, abs=TIGHT) and one.ahead_s >= 0
        for duration, waited in zip(durations, one.waited_s, strict=True):
            assert -TIGHT <= waited <= duration + TIGHT
    for split in splits_of(found):
        total = np.sum(list(split.parts.values()), axis=0)
        assert total == pytest.approx(split.whole, rel=1e-12)
        assert all(float(part.min()) >= -TIGHT for part in split.parts.values())
        others = split.parts["wire"] + split.parts["waiting"] + split.parts["input"]
        assert np.sum([*split.phases.values()], axis=0) + others == pytest.approx(split.whole)
        assert np.all(split.hidden <= split.talking + TIGHT)
        talked = split.parts["wire"] + split.parts["waiting"] + split.hidden
        assert talked == pytest.approx(split.talking, abs=TIGHT)
