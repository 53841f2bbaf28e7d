"""reports.accuracy and scoring: values by hand, properties of the score, and what is never scored."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reports.records import iteration, look, projection, run

from calib.fitting.parameters.speed import References, Speed, SpeedLaw
from calib.foundation.environment import Environment
from calib.foundation.errors import InputError, MeasurementError
from calib.foundation.records import Estimate
from calib.microbench.records.looks import Disturbance, Look
from calib.oracle.projection import ErrorSource, PhaseTime, Projection
from calib.reports.scoring.accuracy import Accuracy, compare, occurring, score
from calib.reports.scoring.pairing import doubts, name_of, pair, run_id, score_runs, why_not_scored
from calib.reports.scoring.timed import disturbed_by
from calib.training.run.lines import TIMED_PHASES, RunEnd
from calib.training.run.record import TrainingRun


def scored_and_not(
    projections: list[Projection], runs: list[TrainingRun], fingerprint: str | None = None
) -> tuple[list[Accuracy], list[str]]:
    """What was scored, and a line for each run that was not."""
    scored, left_out = score_runs(projections, runs, fingerprint)
    return scored, [missing.line for missing in left_out]


seconds = st.floats(min_value=1e-9, max_value=1e4)


@given(seconds)
def test_an_equal_prediction_scores_one(measured: float) -> None:
    assert score(measured, measured) == 1.0


@given(seconds, st.floats(min_value=0, max_value=1))
def test_too_much_and_too_little_score_the_same(measured: float, error: float) -> None:
    more, less = score(measured * (1 + error), measured), score(measured * (1 - error), measured)
    assert more == pytest.approx(less, abs=1e-12)
    assert more == pytest.approx(1 - error, abs=1e-12)


@given(seconds, seconds, st.floats(min_value=1e-3, max_value=1e3))
def test_the_score_does_not_depend_on_the_unit(one: float, two: float, factor: float) -> None:
    assert score(factor * one, factor * two) == pytest.approx(score(one, two), rel=1e-9, abs=1e-9)


@given(seconds, seconds)
def test_no_score_is_over_one(predicted: float, measured: float) -> None:
    value = score(predicted, measured)
    assert value is not None and value <= 1


def test_nothing_measured_has_no_score() -> None:
    assert score(0.0, 0.0) is None
    assert score(1.0, 0.0) is None
    assert score(3.0, 1.0) == -1.0


@pytest.mark.parametrize(
    ("low", "high", "overlap", "covered"),
    [(0.80, 0.90, False, False), (0.80, 0.96, True, False), (0.80, 1.00, True, True)],
)
def test_intervals(low: float, high: float, overlap: bool, covered: bool) -> None:
    predicted = PhaseTime(value=0.85, low=low, high=high, basis="measured")
    of = compare(predicted, Estimate(value=1.0, low=0.95, high=1.1))
    assert (of.overlap, of.covered) == (overlap, covered)
    assert of.accuracy == pytest.approx(0.85)


def test_pair_by_hand() -> None:
    # sorted: 1.0 ... 1.9, median 1.45; of ten values the 95% interval is [2nd, 9th] (binomial:
    # P(X <= 1) = 11/1024 = 1.1%, P(X <= 2) = 56/1024 = 5.5%); quartiles at 2.25 and 6.75 -> 1.225
    # and 1.675
    totals = [1.5, 1.0, 1.9, 1.1, 1.8, 1.2, 1.7, 1.3, 1.6, 1.4]
    of = pair(projection(1.3), run(totals, gradient_difference=2e-7))
    assert of.n == 10
    assert of.total.measured.value == pytest.approx(1.45)
    assert (of.total.measured.low, of.total.measured.high) == pytest.approx((1.1, 1.8))
    assert of.total.accuracy == pytest.approx(1 - 0.15 / 1.45)
    assert of.total.overlap and not of.total.covered  # predicted [1.17, 1.43]
    assert of.interquartile_spread == pytest.approx(0.45 / 1.45)
    assert set(of.phases) == set(TIMED_PHASES)
    assert of.phases["forward"].measured.value == pytest.approx(0.6 * 1.45)
    assert of.phases["forward"].accuracy == pytest.approx(1 - (0.87 - 0.39) / 0.87)
    assert of.phases["exchange"].accuracy == pytest.approx(1 - (0.58 - 0.13) / 0.58)
    assert of.phases["pack"].accuracy is None  # predicted, and not measured
    assert of.gradient_difference == 2e-7
    assert of.basis == "interpolated"
    assert of.complete and of.counts


def test_launches_of_a_series_are_one_training() -> None:
    """The mean of their medians, 1.5; each is known to +-0.1, so their mean to 0.1 / sqrt 2."""
    known = projection(1.2)
    launch = ErrorSource(source="one launch", below_s=1.2 / 11, above_s=0.12, share=1.0)
    known = known.model_copy(
        update={
            "sources": [launch],
            "total": PhaseTime(value=1.2, low=1.2 - 1.2 / 11, high=1.32, basis="measured"),
        }
    )

    def turn(middle: float, at: int, **header: Any) -> TrainingRun:
        times = [middle - 0.1, middle + 0.1, *[middle] * 4, middle - 0.1, middle + 0.1]
        return run(times, started=f"2026-11-03T10:0{at}:00Z", **header)

    later, first = turn(1.7, 2, series="a"), turn(1.3, 1, series="a")
    scored, left_out = score_runs([known], [later, turn(9.0, 3), first])
    assert not left_out
    of, alone = scored
    assert alone.launch_s == [9.0] and alone.total.predicted == known.total
    assert of.launch_s == pytest.approx([1.3, 1.7])
    assert (of.n, of.started, of.run_id) == (16, first.header.started, run_id(first.header))
    half = 0.1 / math.sqrt(2)
    assert of.total.measured.numbers == pytest.approx((1.5, 1.5 - half, 1.5 + half))
    assert of.total.accuracy == pytest.approx(0.8)
    # what launches differ by counts half, in squares: of a factor of 1.1, all that there is
    low, high = of.total.predicted.low, of.total.predicted.high
    assert high == pytest.approx(1.2 + 0.12 / math.sqrt(2))
    assert low == pytest.approx(1.2 - 1.2 / 11 / math.sqrt(2))
    assert [(each.source, each.above_s) for each in of.sources] == [
        ("one launch", pytest.approx(0.12 / math.sqrt(2)))
    ]
    other = score_runs([known], [first, turn(1.7, 2, series="a", optimizer="adam")])
    assert [each.launch_s for each in other[0]] == [[pytest.approx(1.3)]]
    assert pair(known, first, later) == of


def test_times_are_those_of_the_rank_that_arrives_last() -> None:
    # rank 1 computes 0.5 longer, so rank 0 waits 0.5 in the exchange; its own exchange is 0.2
    both = iteration(
        0,
        forward=[1.0, 1.5],
        backward=[2.0, 2.0],
        pack=[0.1, 0.3],
        exchange=[0.7, 0.2],
        unpack=[0.05, 0.06],
        update=[0.4, 0.1],
    )
    assert both.critical_rank == 1
    timed = TrainingRun(
        header=run([1.0] * 6).header,
        iterations=[both] * 6,
        end=RunEnd(peak_rss_bytes=[1], wall_seconds=4),
    )
    of = pair(projection(4.16), timed)
    assert of.total.measured.value == pytest.approx(1.5 + 2.0 + 0.3 + 0.2 + 0.06 + 0.1)
    assert of.total.accuracy == pytest.approx(1.0)
    measured = {phase: of.phases[phase].measured.value for phase in TIMED_PHASES}
    taken = {"forward": 1.5, "backward": 2.0, "pack": 0.36, "exchange": 0.2, "update": 0.1}
    assert measured == pytest.approx(dict.fromkeys(TIMED_PHASES, 0.0) | taken)


def test_without_an_exchange_the_longest_rank_is_the_critical_one() -> None:
    assert iteration(0, forward=[1.0, 1.5], update=[0.7, 0.1]).critical_rank == 0


def test_the_critical_rank_is_found_per_iteration() -> None:
    late_first = iteration(1, forward=[2.0, 1.0], exchange=[0.1, 1.1])
    late_second = iteration(2, forward=[1.0, 3.0], exchange=[2.3, 0.3])
    end = RunEnd(peak_rss_bytes=[1], wall_seconds=4)
    header = run([1.0] * 6).header
    both = TrainingRun(header=header, iterations=[late_first, late_second] * 3, end=end)
    of = pair(projection(2.7), both)
    assert of.total.measured.value == pytest.approx((2.1 + 3.3) / 2)
    assert of.phases["exchange"].measured.value == pytest.approx((0.1 + 0.3) / 2)


def test_warm_up_does_not_count() -> None:
    assert pair(projection(1.0), run([1.0] * 8)).total.measured.high == pytest.approx(1.0)


def test_a_killed_run_is_never_scored() -> None:
    killed = run([1.0] * 8, planned=100, ended=False)
    cut = run([1.0] * 8, planned=100, ended=True)
    short = run([1.0] * 5)
    for half in (killed, cut, short):
        with pytest.raises(MeasurementError):
            pair(projection(1.0), half)
    scored, reasons = scored_and_not([projection(1.0)], [killed, run([1.0] * 8), cut, short])
    assert len(scored) == 1
    case = "vgg16_mini data p=2 batch 8 per rank"
    assert reasons == [
        f"{case}: stopped early: 8 of 100 iterations and has no end line",
        f"{case}: stopped early: 8 of 100 iterations",
        f"{case}: has 5 timed iterations; under 6 the median has no 95% interval",
    ]


@pytest.mark.parametrize("difference", [-1.0, 1.1e-5, float("inf"), float("nan")])
def test_a_wrong_result_has_no_time(difference: float) -> None:
    scored, reasons = scored_and_not(
        [projection(1.0)], [run([1.0] * 8, gradient_difference=difference)]
    )
    assert scored == []
    assert "gradients differ" in reasons[0]


STRATEGIES_OF_TWO = ("data", "spatial", "pipeline", "filter", "channel", "layerwise")


@pytest.mark.parametrize("strategy", STRATEGIES_OF_TWO)
def test_gradients_that_nobody_compared(strategy: str) -> None:
    """On more ranks than `calib train` compares, and of others' training, it is said instead."""
    unchecked = run([1.0] * 8, strategy=strategy, gradient_difference=None)
    reason = why_not_scored(unchecked)
    assert reason is not None and "does not say whether its gradients equal" in reason
    for origin in ("imported", "recorded"):
        others = run([1.0] * 8, strategy=strategy, gradient_difference=None, origin=origin)
        assert why_not_scored(others) is None
        assert doubts(others) == [
            f"{name_of(others)}: training of somebody else ({origin}); gradients were not compared "
            f"with the serial ones: {origin}"
        ]
    most = run([1.0] * 8, strategy=strategy, p=8, gradient_difference=None)
    assert why_not_scored(most) is not None
    many = run([1.0] * 8, strategy=strategy, p=9, gradient_difference=None)
    assert why_not_scored(many) is None and "more than 8 ranks" in doubts(many)[0]
    assert doubts(run([1.0] * 8)) == [] == doubts(run([1.0] * 8, strategy="serial", p=1))


@pytest.mark.parametrize("seconds", [0.0, 1e-12, 9e-10])
@pytest.mark.parametrize("how_many", [1, 8])
def test_iterations_of_no_time_are_missing_points(seconds: float, how_many: int) -> None:
    for strategy, p in (("serial", 1), ("data", 2)):
        spoilt = run([seconds] * how_many + [1.0] * (8 - how_many), strategy=strategy, p=p)
        scored, [reason] = scored_and_not([projection(1.0, strategy=strategy, p=p)], [spoilt])
        assert scored == []
        assert reason.endswith(
            f"took no time in {how_many} of 8 timed iterations: that is no measurement"
        )


def test_one_rank_that_took_no_time() -> None:
    """The others, which are critical, did."""
    made = run([1.0] * 8)
    idle = [iteration(k, warmup=k == 0, forward=[1.0, 0.0], exchange=[0.1, 0.0]) for k in range(9)]
    reason = why_not_scored(made.model_copy(update={"iterations": idle}))
    assert reason is not None and "took no time in 8 of 8" in reason


@pytest.mark.parametrize("loss", [math.nan, math.inf, None])
def test_a_loss_that_is_not_finite(loss: float | None) -> None:
    """`calib train` ends there; of others' training it is said, where it was known."""
    of = run([1.0] * 8)
    rows = [x.model_copy(update={"loss": loss}) for x in of.iterations[3:]]
    spoilt = of.model_copy(update={"iterations": [*of.iterations[:3], *rows]})
    reason = why_not_scored(spoilt)
    assert reason == "has no finite loss in 6 of 8 timed iterations: it has diverged"
    head = of.header.model_copy(update={"origin": "imported", "notes": ["first note"]})
    others = spoilt.model_copy(update={"header": head})
    assert why_not_scored(others) is None
    [line] = doubts(others)
    assert ("the loss is not finite in 6 of 8" in line) == (loss is not None)
    assert "first note" in line


def test_a_run_on_another_kind_of_device_is_not_scored() -> None:
    """A file of somebody else does not say on which it ran."""
    imported = run([1.0] * 8, origin="imported", seed=None)
    runs = [run([1.0] * 8), run([1.0] * 8, device="cuda"), imported]
    for kind, expected in (("cuda", [1, 2]), ("cpu", [0, 2]), ("", [0, 1, 2])):
        scored, left_out = score_runs([projection(1.0)], runs, device_kind=kind)
        assert [of.run_id for of in scored] == [run_id(runs[n].header) for n in expected]
        other = {"cuda": "cpu", "cpu": "cuda"}.get(kind)
        assert [of.why for of in left_out] == [f"ran on {other}; predicted for {kind}"] * bool(
            other
        )


def test_what_cannot_be_paired_is_named() -> None:
    runs = [
        run([1.0] * 8, strategy="serial", p=1),
        run([1.0] * 8, cluster_fingerprint="another"),
        run([1.0] * 8, batch_per_rank=16),
    ]
    scored, reasons = scored_and_not([projection(1.0)], runs, "0123456789abcdef")
    assert scored == []
    case = "vgg16_mini data p=2 batch 8 per rank"
    assert reasons == [
        "vgg16_mini serial p=1 batch 8 per rank: has no prediction",
        f"{case}: ran on another machine (another; predicted for 0123456789abcdef)",
        "vgg16_mini data p=2 batch 16 per rank: has no prediction",
    ]
    with pytest.raises(InputError, match="p=1"):
        pair(projection(1.0), runs[0])


DIVISIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # what a prediction says, what a run of the same p and batch says
    ({"strategy": "data+filter", "inner": 2}, {"strategy": "data+filter", "inner": 4}),
    ({"strategy": "spatial", "grid": (2, 2)}, {"strategy": "spatial", "grid": (4,)}),
    ({"strategy": "pipeline", "segments": 4}, {"strategy": "pipeline", "segments": 8}),
    ({"strategy": "pipeline", "schedule": "gpipe"}, {"strategy": "pipeline", "schedule": "1f1b"}),
    (
        {"strategy": "pipeline", "boundaries": (2, 5, 9)},
        {"strategy": "pipeline", "boundaries": (3, 5, 9)},
    ),
    ({"overlap": True}, {}),
    ({}, {"sharded_optimizer": True}),
    (
        {"strategy": "spatial", "grid": (4,), "split_until": "c"},
        {"strategy": "spatial", "grid": (4,)},
    ),
    ({"optimizer": "adam"}, {"optimizer": "momentum"}),
    ({"batch_per_rank": 2}, {"batch_per_rank": 2.25}),
]


@pytest.mark.parametrize(("predicted", "ran"), DIVISIONS)
def test_a_prediction_of_another_division_is_none(
    predicted: dict[str, Any], ran: dict[str, Any]
) -> None:
    """Each differs in one thing; a prediction of the run's own division is found among others."""
    other = projection(1.0, p=4, **predicted)
    scored, reasons = scored_and_not([other], [run([1.0] * 8, p=4, **ran)])
    assert scored == [] and reasons[0].endswith("has no prediction")
    own = projection(2.0, p=4, **{k: v for k, v in ran.items() if k != "boundaries"})
    scored, reasons = scored_and_not([own, other], [run([1.0] * 8, p=4, **ran)])
    assert reasons == [] and scored[0].total.predicted.value == 2.0


@pytest.mark.parametrize(
    ("ran", "reason"),
    [
        ({"execution": "bfloat16"}, "p=2 (bfloat16) batch 8 per rank: has no prediction"),
        ({"execution": "unknown"}, "does not say its execution; import it again with that"),
        ({"synchronized_batch_norm": True}, "synchronised its batch normalisation"),
        ({"optimizer": "unknown"}, "does not say its optimizer"),
    ],
)
def test_what_no_prediction_is_of(ran: dict[str, Any], reason: str) -> None:
    scored, reasons = scored_and_not([projection(1.0)], [run([1.0] * 8, **ran)])
    assert scored == [] and reason in reasons[0]


def test_a_run_is_scored_against_the_prediction_of_its_execution() -> None:
    names = ("float32", "bfloat16", "bfloat16+channels_last")
    predicted = [projection(k, execution=name) for k, name in enumerate(names, 1)]
    for k, name in enumerate(names, 1):
        scored, reasons = scored_and_not(predicted, [run([1.0] * 8, execution=name)])
        assert not reasons and scored[0].total.predicted.value == pytest.approx(k)
        assert (scored[0].execution, scored[0].layout) == (name, name.removeprefix("float32"))
    with pytest.raises(InputError, match=r"p=2 \(bfloat16\) batch 8"):
        pair(projection(1.0, execution="bfloat16"), run([1.0] * 8))


def test_a_group_that_shares_its_samples_has_a_part_of_one_per_rank() -> None:
    """One sample on four ranks: a quarter per rank, in the record and in words."""
    ran = run([1.0] * 8, strategy="filter", p=4, batch_per_rank=0.25, iterations=9)
    scored, reasons = scored_and_not(
        [projection(1.0, strategy="filter", p=4, batch_per_rank=0.25)], [ran]
    )
    assert scored == []
    assert reasons == [
        "vgg16_mini filter p=4 batch 0.25 per rank: stopped early: 8 of 9 iterations"
    ]


def test_runs_of_other_layouts_are_other_work() -> None:
    two, one = (
        pair(
            projection(1.0, p=4, strategy="data+filter", inner=inner),
            run([1.0] * 8, p=4, strategy="data+filter", inner=inner),
        )
        for inner in (2, 4)
    )
    assert (two.layout, one.layout) == ("2 groups of 2", "") and two.work != one.work


def test_predictions_of_fewer_phases_are_read() -> None:
    """As written before there were halo and layerwise."""
    whole = projection(1.0)
    old = {name: time for name, time in whole.phases.items() if name not in ("halo", "layerwise")}
    of = pair(whole.model_copy(update={"phases": old}), run([1.0] * 8))
    assert of.phases["halo"].predicted.value == of.phases["layerwise"].predicted.value == 0.0
    assert of.total == pair(whole, run([1.0] * 8)).total


def test_phases_that_occur() -> None:
    """Predicted or measured, of any point; in the order of TIMED_PHASES."""
    plain = pair(projection(1.0), run([1.0] * 8))
    assert occurring([plain]) == ("forward", "backward", "pack", "exchange", "update")
    shares = {"forward": 0.5, "layerwise": 0.5}
    split = pair(projection(1.0, shares=shares), run([1.0] * 8))
    assert occurring([split]) == ("forward", "layerwise", "exchange")  # exchange was measured
    assert occurring([plain, split])[2:4] == ("layerwise", "pack")
    assert occurring([]) == ()


def test_an_oversubscribed_run_is_scored_and_marked() -> None:
    scored, reasons = scored_and_not([projection(1.0)], [run([1.0] * 8, oversubscribed=True)])
    assert reasons == []
    assert scored[0].oversubscribed and scored[0].total.accuracy == 1.0
    assert not scored[0].counts


def test_the_record_goes_through_json() -> None:
    of = pair(projection(1.2), run([1.0, 2.0, 3.0] * 2))
    assert Accuracy.model_validate(json.loads(json.dumps(of.model_dump()))) == of


def with_memory(predicted: Estimate | None, peaks: list[int]) -> Accuracy:
    """A point of a run whose ranks had these peaks of live bytes."""
    end = RunEnd(peak_rss_bytes=[1], peak_live_bytes=peaks, wall_seconds=1.0)
    ran = run([1.0] * 8).model_copy(update={"end": end})
    return pair(projection(1.0, peak_bytes=predicted), ran)


@pytest.mark.parametrize(
    ("value", "low", "high", "accuracy", "covered"),
    [
        (80.0, 70.0, 90.0, 0.8, False),  # against 100 bytes
        (120.0, 100.0, 140.0, 0.8, True),
        (90.0, 80.0, 100.0, 0.9, True),
        (300.0, 200.0, 400.0, -1.0, False),
    ],
)
def test_memory_is_scored_on_the_rank_with_the_most(
    value: float, low: float, high: float, accuracy: float, covered: bool
) -> None:
    of = with_memory(Estimate(value=value, low=low, high=high), [60, 100]).memory
    assert of is not None
    assert of.measured_bytes == 100
    assert of.accuracy == pytest.approx(accuracy)
    assert of.covered is covered


def test_memory_of_a_gpu_is_scored_by_its_tensors() -> None:
    """Its expected peak has the context in it, which a training does not tell."""
    peaks = {"peak_bytes": Estimate.exactly(500.0), "live_peak_bytes": Estimate.exactly(80.0)}
    end = RunEnd(peak_rss_bytes=[1], peak_live_bytes=[100], wall_seconds=1.0)
    ran = run([1.0] * 8).model_copy(update={"end": end})
    memory = pair(projection(1.0, **peaks), ran).memory
    assert memory is not None and memory.accuracy == pytest.approx(0.8)


def test_memory_without_one_side_is_not_scored() -> None:
    peak = Estimate.exactly(1.0)
    assert with_memory(None, [100]).memory is None
    assert with_memory(peak, []).memory is None
    assert with_memory(peak, [0, 0]).memory is None


def test_a_run_is_known_by_its_header() -> None:
    """Two copies of a file are one training; a second training starts at another time."""
    first, copy = run([1.0] * 8).header, run([2.0] * 8).header
    other = run([1.0] * 8, started="2026-11-03T10:00:01Z").header
    assert run_id(first) == run_id(copy) != run_id(other)
    assert len(run_id(first)) == 16 and int(run_id(first), 16) >= 0
    assert pair(projection(1.0), run([1.0] * 8)).run_id == run_id(first)


def test_a_run_in_another_environment_is_not_scored() -> None:
    """One line says what differs; where one of the two is not known, it is scored."""
    here = Environment(ranks=2, threads=1, cores=2, allocator="glibc (thresholds adapt)")
    still = here.model_copy(update={"allocator": "glibc (trim_threshold=9)", "threads": 2})
    runs = [run([1.0] * 6, environment=x.model_dump()) for x in (here, still, Environment())]
    scored, left_out = scored_and_not([projection(1.0, environment=here)], runs)
    assert [x.run_id for x in scored] == [run_id(runs[0].header), run_id(runs[2].header)]
    (line,) = left_out
    assert line.endswith(
        "ran in another environment than was predicted for: threads: 1 and 2; "
        "allocator: glibc (thresholds adapt) and glibc (trim_threshold=9)"
    )
    assert len(scored_and_not([projection(1.0)], runs)[0]) == 3


def calibrated(exponent: float = 1.0, messages: float = 1.0) -> Speed:
    """A reference of 1 ms, known exactly; times follow it with these exponents."""
    known = References(ranks=2, looks=9, seconds={"arithmetic_s": Estimate.exactly(1e-3)})
    laws = [
        SpeedLaw(of=of, exponents={"arithmetic_s": Estimate.exactly(each)}, n=9)
        for of, each in (("compute", exponent), ("messages", messages))
    ]
    return Speed(references=[known], laws=laws)


def slower(*disturbed: Disturbance) -> list[Look]:
    """Looks at a machine whose reference takes twice as long."""
    return [look(*disturbed, arithmetic_s=2e-3) for _ in range(5)]


def test_at_the_speed_of_the_calibration_by_hand() -> None:
    """Iterations of 2.1 s of which rank 0 waited 0.1 s, on a machine that takes twice as long."""
    timed = run([2.1] * 8, waited=[0.1] * 8, looks=slower("cores"))
    of = pair(projection(1.0), timed, speed=calibrated())
    assert (of.total.measured.value, of.total.covered) == (pytest.approx(2.1), False)
    assert of.waited == pytest.approx(0.1 / 2.1) and of.slowdown is not None
    assert of.at_speed is not None and of.at_speed.covered
    assert of.at_speed.accuracy == pytest.approx(1.0)
    assert of.at_speed.measured.numbers == pytest.approx((1.0, 1.0, 1.0))
    assert of.disturbed == ["cores"] and of.disturbed_by_others


def test_what_is_not_known_of_the_speed_changes_nothing() -> None:
    plain = pair(projection(1.0), run([1.0] * 8), speed=calibrated())
    assert (plain.waited, plain.slowdown, plain.at_speed) == (None, None, None)
    assert plain.compared(at_speed=True) == plain.total
    waited = pair(projection(1.0), run([1.25] * 8, waited=[0.25] * 8))
    assert waited.at_speed is not None and waited.at_speed.accuracy == pytest.approx(1.0)
    only = pair(projection(1.0), run([2.0] * 8, looks=slower()), speed=calibrated())
    assert only.at_speed is not None and only.at_speed.accuracy == pytest.approx(1.0)
    assert not only.disturbed


def test_a_known_speed_is_no_error() -> None:
    """Plainly half of it is left of two launches, in squares; at speed nothing."""
    speed = ErrorSource(source="speed", below_s=0.2, above_s=0.25, share=1.0)
    total = PhaseTime(value=1.0, low=0.8, high=1.25, basis="measured")
    known = projection(1.0).model_copy(update={"sources": [speed], "total": total})
    runs = [
        run([2.0] * 8, looks=slower(), series="a", started=f"2026-11-03T10:0{k}:00Z")
        for k in (0, 1)
    ]
    of = pair(known, *runs, speed=calibrated())
    assert of.total.predicted.high == pytest.approx(1.0 + 0.25 / math.sqrt(2))
    assert of.at_speed is not None
    assert of.at_speed.predicted.numbers == pytest.approx((1.0, 1.0, 1.0))
    waited = pair(known, run([1.0] * 8, waited=[0.1] * 8))
    assert waited.at_speed is not None and waited.at_speed.predicted.high == pytest.approx(1.25)


def test_messages_follow_the_references_in_their_own_way() -> None:
    """0.4 of an iteration are messages, on which the processor's speed tells nothing here."""
    of = pair(projection(1.0), run([1.0] * 8, looks=slower()), speed=calibrated(messages=0.0))
    assert of.slowdown is not None and of.slowdown.value == pytest.approx(2**0.6)


def test_errors_of_the_median_and_of_the_slowdown_add_in_quadrature() -> None:
    """Eight iterations: the interval of the median are the least and the largest, 0.8 and 1.25."""
    known = Estimate.within_factor(1e-3, 1.25)
    alone = References(ranks=1, looks=9, seconds={"arithmetic_s": known})
    speed = calibrated().model_copy(update={"references": [alone]})
    case = {"strategy": "serial", "p": 1}  # without messages
    timed = run([0.8, *[1.0] * 6, 1.25], looks=slower(), **case)
    of = pair(projection(1.0, **case), timed, speed=speed)
    assert of.at_speed is not None
    factor = math.exp(math.hypot(math.log(1.25), math.log(1.25)))
    assert of.at_speed.measured.numbers == pytest.approx((0.5, 0.5 / factor, 0.5 * factor))


@given(st.lists(st.tuples(st.floats(0.5, 2.0), st.floats(0, 0.4)), min_size=6, max_size=20))
def test_waiting_is_taken_from_each_iteration(times: list[tuple[float, float]]) -> None:
    """However the waiting is spread, a run of equal work has its own time at speed."""
    timed = run([1.0 + wait for _, wait in times], waited=[wait for _, wait in times])
    of = pair(projection(1.0), timed)
    assert of.at_speed is not None and of.at_speed.measured.numbers == pytest.approx((1.0,) * 3)


def test_a_quarter_of_the_time_counts_as_disturbed() -> None:
    quiet = look(window_s=3.1)
    assert disturbed_by([quiet, look("stolen")]) == []
    assert disturbed_by([look(window_s=3.0), look("stolen", "slow")]) == ["stolen", "slow"]
    assert disturbed_by([]) == []
    of = pair(projection(1.0), run([1.0] * 8, looks=[look("slow")]))
    assert of.disturbed == ["slow"] and not of.disturbed_by_others
