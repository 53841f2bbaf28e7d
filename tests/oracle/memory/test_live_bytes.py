"""The count of live bytes by hand, its invariants, and where a prediction takes it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.handmade import estimate, machine, mlp
from tests.oracle.memory.reuse import PARTS, reuse

from calib.fitting.parameters.memory import STATES, LiveCheck
from calib.foundation.division import Division
from calib.foundation.records import Estimate
from calib.oracle.layout.shards import fitted, why_impossible
from calib.oracle.memory.live_bytes import live_bytes
from calib.oracle.memory.naive import replicated_parts
from calib.oracle.memory.peak import COUNT_FACTOR, OF_LIVE, peak_bytes
from calib.oracle.model.spec import ModelSpec
from calib.training.models.specs import spec

SERIAL = Division("serial", 1, 8)
NAMES = ("vgg16-mini", "resnet50-mini", "cosmoflow-mini", "inception-v3-mini")
SHARED = ("data", "spatial", "pipeline", "filter", "channel", "data+filter", "data+spatial")


def divided(strategy: str, p: int, batch: int) -> Division:
    return Division(
        strategy,
        p,
        batch,
        inner=2 if "+" in strategy else 1,
        segments=2 if strategy == "pipeline" else 1,
    )


def test_an_mlp_by_hand() -> None:
    """fc1 12 -> 8, ReLU, fc2 8 -> 3, cross entropy on B = 5, in float32; momentum.

    ReLU's output (8 items a sample) is kept until its own backward, the log-probabilities go with the
    loss's. Behind that, each backward has the gradient that came and what it makes.
    """
    model, batch = mlp([12, 8, 3]), 5
    weights = 4 * (12 * 8 + 8 + 8 * 3 + 3)
    given_bytes = batch * (4 * 12 + 8)
    always = 2 * weights + given_bytes + 8  # the loss and its gradient
    backward_of_fc2 = batch * 4 * (8 + 3 + 8) + 4 * (8 * 3 + 3)
    backward_of_relu = batch * 4 * (8 + 8 + 8) + 4 * (8 * 3 + 3)
    backward_of_fc1 = batch * 4 * 8 + weights
    expected = always + max(backward_of_fc2, backward_of_relu, backward_of_fc1)
    found = live_bytes(model, Division("serial", 1, batch), "momentum")
    assert found == expected


def test_data_parallel_has_its_buffer_beside_serial() -> None:
    """B/p samples on each rank, and one flat buffer of all gradients."""
    for name in NAMES:
        model = spec(name)
        serial = live_bytes(model, Division("serial", 1, 4), "momentum")
        data = live_bytes(model, Division("data", 3, 12), "momentum")
        assert data == serial + 4 * model.parameter_items


@pytest.mark.parametrize("name", NAMES)
@given(
    batch=st.integers(1, 6),
    strategy=st.sampled_from(SHARED),
    optimizer=st.sampled_from(sorted(STATES)),
)
@settings(max_examples=25, deadline=None)
def test_at_least_what_is_always_there_and_more_with_the_batch(
    name: str, batch: int, strategy: str, optimizer: str
) -> None:
    """Weights, gradients and states at least; at most the naive sum and its copies."""
    model = spec(name)
    division = fitted(model, divided(strategy, 2, 4 * batch))
    if why_impossible(model, division):
        return
    found = live_bytes(model, division, optimizer)
    assert found <= live_bytes(model, replace(division, batch=8 * batch), optimizer)
    if strategy in ("data", "spatial", "data+spatial"):
        assert found >= (2 + STATES[optimizer]) * 4 * model.parameter_items
    if strategy == "data":
        naive = replicated_parts(model, 2 * batch, True, optimizer)
        assert found <= sum(naive.values()) + 2 * 4 * 3 * 1024 * 1024


def test_one_rank_of_any_strategy_is_serial() -> None:
    model = spec("resnet50-mini")
    expected = live_bytes(model, SERIAL, "adam")
    for strategy in SHARED:
        assert live_bytes(model, fitted(model, Division(strategy, 1, 8)), "adam") == expected


def test_a_pipeline_of_one_stage_after_another() -> None:
    """More micro-batches in flight keep more; 1F1B keeps at most as many as GPipe."""
    model: ModelSpec = spec("vgg16-mini")
    few = Division("pipeline", 2, 16, segments=4)
    assert live_bytes(model, replace(few, batch=32, segments=8), "sgd") > live_bytes(
        model, few, "sgd"
    )
    assert live_bytes(model, replace(few, schedule="1f1b"), "sgd") <= live_bytes(model, few, "sgd")


def check(error: float, factor: float) -> LiveCheck:
    return LiveCheck(ratio=estimate(1.0), error=error, error_factor=factor, n=6)


@pytest.mark.parametrize(
    ("error", "factor", "value", "wide"),
    [
        (0.0, 1.0, 777.0, COUNT_FACTOR),  # counted to the byte: the convention
        (0.05, 1.2, 777.0, 1.2),  # as far as the peaks were off
        (0.3, 1.5, 1100.0, None),  # gamma's held-out error is 0.2
    ],
)
def test_the_calibration_decides_what_predicts(
    error: float, factor: float, value: float, wide: float | None
) -> None:
    record = reuse().model_copy(update={"live": check(error, factor)})
    parameters = machine(memory=[record])
    found, _, notes = peak_bytes(parameters, Division("data", 4, 8), PARTS, lambda: 777)
    assert found is not None and found.value == pytest.approx(value)
    assert notes == [OF_LIVE]
    if wide is not None:
        assert (found.low, found.high) == pytest.approx((value / wide, value * wide))


def test_workspace_is_added_to_the_count_of_a_gpu() -> None:
    """The interval holds all that it may be, and the count's error."""
    workspace = Estimate(value=200.0, low=0.0, high=400.0)
    of = check(0.0, 1.1).model_copy(update={"workspace_bytes": workspace})
    parameters = machine(memory=[reuse().model_copy(update={"live": of})])
    found, _, _ = peak_bytes(parameters, Division("data", 4, 8), PARTS, lambda: 800)
    assert found is not None and found.numbers == (1000.0, 800.0, 1200.0)
    found, _, _ = peak_bytes(parameters, Division("data", 4, 8), PARTS, lambda: 19_800)
    assert found is not None
    assert found.numbers == pytest.approx((20_000.0, 20_000 / 1.1, 20_000 * 1.1))


def test_parameters_without_a_check_have_gamma() -> None:
    """No check of the count: it is not even made."""

    def refuse() -> int:
        raise AssertionError("counted")

    found, _, _ = peak_bytes(machine(memory=[reuse()]), Division("data", 4, 8), PARTS, refuse)
    assert found is not None and found.value == pytest.approx(1100.0)
