"""Terms of whole trainings: clusters of known truth, validations, contradictions, and by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reports.replay.training_truth import EACH, NODES, SAMPLES, Cluster, cluster

from calib.foundation.errors import InputError
from calib.foundation.records import Estimate
from calib.oracle.projection import PhaseTime
from calib.reports.replay.draws import LatinHypercube, estimate
from calib.reports.replay.training_replay import TrainingReplay, replay_trainings
from calib.reports.replay.training_times import Trained
from calib.training.importers.epochs.record import EpochLog

CLUSTERS = 60


def replayed(of: Cluster, nodes: Sequence[int], *logged: int) -> TrainingReplay:
    logs: dict[int | None, list[EpochLog]] = {n: [of.log(n)] for n in logged}
    return replay_trainings(of.rows(), of.exchange, SAMPLES, nodes, logs)


def nothing(_: int) -> PhaseTime:
    return PhaseTime(value=0.0, low=0.0, high=0.0, basis="exact")


def test_by_hand() -> None:
    """No exchange: 30 s and 50 x 2 s stay, the rest of 100,000 s is divided by 8."""
    rows = [Trained(1, 8, 100, 50, 1e5), Trained(8, 64, 100, 50, None)]
    found = replay_trainings(rows, nothing, 6_400_000)
    (row,), terms = found.rows, found.terms
    # the median of a sum of skewed terms lies above the sum of their medians
    assert row.seconds.value == pytest.approx((1e5 - 130) / 8 + 130, rel=1e-2)
    assert [term.name for term in terms] == [
        "start-up",
        "end of an epoch",
        "exchange in training / in a loop",
        "compute and input of an iteration",
    ]
    assert terms[0].value.value == pytest.approx(30, rel=1e-3)
    assert terms[1].value.value == pytest.approx(2, rel=1e-3)
    # 50 x 8000 iterations on one node
    assert terms[3].value.value == pytest.approx((1e5 - 130) / 400_000, rel=2e-3)
    assert [term.source for term in terms] == ["assumed"] * 3 + ["time on 1 node"]


def test_another_batch_scales_what_is_no_exchange() -> None:
    """Of twice the samples on as many GPUs compute is twice as long, so the time is the same."""
    rows = [Trained(1, 8, 32, 10, 2e4), Trained(1, 8, 64, 10, None)]
    (row,) = replay_trainings(rows, nothing, 1_024_000).rows
    assert row.seconds.value == pytest.approx(2e4, rel=2e-3)


def test_a_short_training_has_a_short_start() -> None:
    """At most 1% of it, and of an epoch."""
    rows = [Trained(1, 8, 32, 10, 20.0), Trained(2, 16, 32, 10, None)]
    terms = replay_trainings(rows, nothing, 1024).terms
    assert [term.value.value for term in terms[:2]] == pytest.approx([0.2, 0.02], rel=1e-3)


@pytest.mark.parametrize(
    ("known", "logged"), [((1,), ()), ((1, 4), ()), ((2, 8), ()), ((1, 2, 4, 8), ()), ((1,), (1,))]
)
def test_intervals_cover_the_truth(known: tuple[int, ...], logged: tuple[int, ...]) -> None:
    """Of 60 clusters whose terms are drawn as assumed."""
    inside = [
        held for seed in range(CLUSTERS) for held in replayed(cluster(seed), known, *logged).inside
    ]
    assert 0.80 <= sum(inside) / len(inside) <= 0.97


def test_more_evidence_is_more_accurate() -> None:
    """Errors on 16 nodes: two rows beat one, three beat two, and a log beats none."""

    def error(known: tuple[int, ...], *logged: int) -> float:
        found = [replayed(cluster(seed), known, *logged).rows[-1] for seed in range(CLUSTERS)]
        return float(np.mean([1 - (row.accuracy or 0) for row in found]))

    one, two, three = error((1,)), error((1, 4)), error((1, 2, 8))
    assert three < two < 0.7 * one
    assert error((1,), 1) < one
    assert two < 0.05


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), order=st.permutations(range(len(NODES))))
def test_the_order_of_rows_is_nothing(seed: int, order: list[int]) -> None:
    of = cluster(seed)
    rows = of.rows()
    found = replay_trainings(rows, of.exchange, SAMPLES, [1, 4])
    mixed = replay_trainings([rows[i] for i in order], of.exchange, SAMPLES, [4, 1])
    by_nodes = {row.trained.nodes: row.seconds for row in mixed.rows}
    assert by_nodes == {row.trained.nodes: row.seconds for row in found.rows}
    for row in found.rows:
        assert 0 < row.seconds.low < row.seconds.value < row.seconds.high


def test_terms_that_rows_tell() -> None:
    """Five rows without noise of an exchange twice as long as in a loop."""
    of = replace(cluster(3), factor=2.0, noise=0.0, growth_s=0.03, inside_s=0.01, compute=0.2)
    rows = [*of.rows(), Trained(32, 32 * EACH, 64, 50, None)]
    found = replay_trainings(rows, of.exchange, SAMPLES, NODES)
    factor = found.terms[2]
    assert factor.value.covers(2.0) and factor.value.low > 1.4
    assert factor.source == "time on 1, 2, 4, 8, 16 nodes"
    assert found.notes == []


def test_validation_is_divided_or_not() -> None:
    """One log leaves both within the interval; a second row, or a second log, tells."""
    of = replace(cluster(5, validation=True), validation=30.0, noise=0.004, divided=False)
    other = replace(of, divided=True)
    unsure = replayed(of, [1], 1).rows[-1].seconds
    times = [each.rows()[-1].seconds or 0 for each in (of, other)]
    assert times[0] > 1.5 * times[1]
    assert all(unsure.covers(time) for time in times)
    for truth, time in zip((of, other), times, strict=True):
        for found in (replayed(truth, [1, 8], 1), replayed(truth, [1], 1, 4)):
            row = found.rows[-1].seconds
            assert row.covers(time)
            assert row.half_width < unsure.half_width
    words = [term.source for term in replayed(of, [1, 8], 1).terms if "validation" in term.name]
    assert words[0].endswith((": 0% likely", ": 1% likely"))
    words = [term.source for term in replayed(other, [1], 1, 4).terms if "validation" in term.name]
    assert words[0].startswith("log of epochs: shrinks with nodes to the power of 0.9")


def test_a_log_of_epochs_is_a_known_time() -> None:
    """The epochs of 4 nodes, whose training has no time in the table, tell as much as that time."""
    of = replace(cluster(7), noise=0.004)
    rows = of.rows()
    four = rows[2].seconds or 0
    epochs = EpochLog("known", epochs_s=((four - of.startup) / 50,) * 50)
    blank = [replace(row, seconds=None) if row.nodes == 4 else row for row in rows]
    logged = replay_trainings(blank, of.exchange, SAMPLES, [1], {4: [epochs]})
    timed = replay_trainings(rows, of.exchange, SAMPLES, [1, 4])
    sixteen = (logged.rows[-1].seconds, timed.rows[-1].seconds)
    assert sixteen[0].value == pytest.approx(sixteen[1].value, rel=0.02)
    assert sixteen[0].half_width == pytest.approx(sixteen[1].half_width, rel=0.5)


def test_validation_every_few_steps() -> None:
    """A log that validates every 500 of 1,954 iterations: four times 2 s an epoch, in effect."""
    of = cluster(9)
    rows = of.rows()
    log = EpochLog(
        "known",
        epochs_s=(100.0,) * 8,
        validations_s=(2.0,) * 9,
        pauses_s=(0.5,) * 8,
        epoch_steps=500,
    )
    terms = replay_trainings(rows, of.exchange, SAMPLES, [1], {1: [log]}).terms
    by_name = {term.name: term.value.value for term in terms}
    often = math.ceil(SAMPLES / (64 * EACH)) / 500
    assert by_name["validation of an epoch on 1 node"] == pytest.approx(2 * often, rel=0.01)
    assert by_name["end of an epoch"] == pytest.approx(0.5 * often, rel=0.01)


def test_rows_that_contradict_one_another() -> None:
    of = cluster(11)
    rows = of.rows()
    odd = [replace(row, seconds=3 * (row.seconds or 0)) if row.nodes == 4 else row for row in rows]
    found = replay_trainings(odd, of.exchange, SAMPLES, [1, 2, 4, 8])
    assert "contradict one another" in found.notes[-1]
    plain = replay_trainings(rows, of.exchange, SAMPLES, [1, 2, 4, 8])
    assert found.rows[-1].seconds.half_width > 2 * plain.rows[-1].seconds.half_width


@pytest.mark.parametrize(
    ("rows", "nodes", "message"),
    [
        ([Trained(1, 8, 32, 10, None)], (), "no row has a time"),
        ([Trained(1, 8, 32, 10, 20.0)], (), "nothing to predict"),
        (
            [Trained(1, 8, 32, 10, 20.0), Trained(2, 16, 32, 10, None)],
            (2,),
            "2 nodes is with a time",
        ),
        ([Trained(1, 8, 32, 10, 0.3), Trained(2, 16, 32, 10, None)], (), "its exchange 10 ms"),
    ],
)
def test_times_that_nothing_follows_from(
    rows: list[Trained], nodes: tuple[int, ...], message: str
) -> None:
    def exchange(_: int) -> PhaseTime:
        return PhaseTime(value=0.01, low=0.008, high=0.012, basis="measured")

    with pytest.raises(InputError, match=message):
        replay_trainings(rows, exchange, 1000, nodes)


def test_a_log_finds_its_row() -> None:
    """By the nodes that are named, else by its ranks, else the fewest nodes."""
    of = cluster(13, validation=True)
    rows = of.rows()
    on_four = replace(of.log(4), ranks=4 * EACH)
    named = replay_trainings(rows, of.exchange, SAMPLES, [1], {4: [of.log(4)]})
    assert replay_trainings(rows, of.exchange, SAMPLES, [1], {None: [on_four]}) == named
    with pytest.raises(InputError, match="no training on 3 nodes is in the table"):
        replay_trainings(rows, of.exchange, SAMPLES, [1], {3: [of.log(4)]})


def test_draws() -> None:
    """Quantiles of a log-normal and of a skewed interval, and weights."""
    cube = LatinHypercube()
    drawn = cube.around(2.0, 0.5)
    found = estimate(drawn, np.ones_like(drawn))
    z = 1.6448536269514722  # of 95%
    ends = [2.0, 2 * math.exp(-0.5 * z), 2 * math.exp(0.5 * z)]
    assert found.numbers == pytest.approx(ends, rel=1e-3)
    skewed = cube.skewed(Estimate(value=1.0, low=0.5, high=4.0), cube.normal())
    found = estimate(skewed, np.ones_like(drawn))
    assert found.numbers == pytest.approx(
        [1.0, 0.5 ** (z / 1.959964), 4 ** (z / 1.959964)], rel=2e-3
    )
    upper = estimate(drawn, (drawn > 2.0).astype(float))
    assert upper.low > 2.0 and upper.value == pytest.approx(2 * math.exp(0.5 * 0.6744897), rel=1e-3)
