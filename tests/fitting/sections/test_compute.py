"""Layer times and work models from rows whose truth is known."""

from __future__ import annotations

import math

import pytest
from scipy.stats import t as student
from tests.helpers import runs
from tests.helpers.rows import as_samples, constant, rows_of

from calib.fitting.parameters.file import LayerTime, WorkModel
from calib.fitting.parameters.work import ANY_KIND
from calib.fitting.regression import UNCHECKED_FACTOR
from calib.fitting.sections.compute import layer_times
from calib.fitting.sections.work_laws import work_models
from calib.foundation.layers import LayerShape
from calib.foundation.records import Estimate
from calib.microbench.cases import LayerCase
from calib.microbench.records.samples import Sample

CALL, PER_FLOP, PER_BYTE = 4e-6, 3e-11, 2e-10


def linear(n_in: int, n_out: int, batch: int = 8, first: bool = False, ranks: int = 2) -> LayerCase:
    layer = runs.linear(n_in, n_out)
    return LayerCase(ranks=ranks, layer=layer, batch=batch, needs_input_grad=not first)


def passing(kind: str, items: int, batch: int = 8) -> LayerCase:
    shape = LayerShape.model_validate(
        {"kind": kind, "input_shapes": [[items]], "output_shape": [items]}
    )
    return LayerCase(ranks=2, layer=shape, batch=batch)


def truth(case: LayerCase) -> float:
    """call + flops s/flop + bytes s/byte, counted here: 2 b n m flops; x, y, w and b once."""
    if case.layer.kind == "linear":
        n, m = case.layer.input_shapes[0][0], case.layer.output_shape[0]
        flops, items = 2 * case.batch * n * m, case.batch * (n + m) + n * m + m
    else:
        items = 2 * case.batch * case.layer.output_shape[0]
        flops = items // 2
    return CALL + flops * PER_FLOP + 4 * items * PER_BYTE


def rows(*cases: LayerCase, slower: float = 1.0) -> list[Sample]:
    """Forward as the law has it (times `slower`), backward three times that."""
    found = []
    for case in cases:
        found += constant(case, "forward", slower * truth(case))
        found += constant(case, "backward", 3 * slower * truth(case))
    return found


def fitted(*cases: LayerCase) -> tuple[list[LayerTime], dict[tuple[str, str], WorkModel]]:
    by_id = {case.id: case for case in cases}
    times = layer_times(as_samples(rows(*cases)), by_id)
    models = work_models(times, by_id)
    assert len({(m.kind, m.direction, m.active_ranks) for m in models}) == len(models)
    return times, {(m.kind, m.direction): m for m in models}


LINEARS = [
    linear(2**i, 2**j, 2**k)
    for i, j, k in ((3, 9, 0), (9, 3, 5), (6, 6, 2), (10, 10, 0), (4, 4, 8), (8, 7, 6))
]


def test_layer_time_is_the_median_of_the_slowest_rank() -> None:
    case = linear(4, 3)
    forward = rows_of(case, "forward", [[1.0, 3.0], [3.0, 1.0]] * 4)
    backward = rows_of(case, "backward", [[5.0, 7.0 + i / 10] for i in range(5)], launch=0)
    backward += rows_of(case, "backward", [[5.0, 9.0]] * 6, launch=1)
    (time,) = layer_times(as_samples(forward + backward), {case.id: case})
    assert (time.key, time.kind, time.batch) == (case.key, "linear", 8)
    assert (time.active_ranks, time.n) == (2, 8)
    assert time.forward_s.value == 2.0
    # launches weigh alike: the geometric mean of 7.2 and 9, with Student's t of one degree of freedom
    assert time.backward_s.value == pytest.approx((7.2 * 9.0) ** 0.5)
    factor = math.e * student.ppf(0.975, 1) * 0.5 * math.log(9.0 / 7.2)  # linear beyond e
    assert time.backward_s.high == pytest.approx(factor * time.backward_s.value)


def test_a_layer_without_a_backward_has_none() -> None:
    case = passing("relu", 16)
    (time,) = layer_times(as_samples(constant(case, "forward", 1.0)), {case.id: case})
    assert time.backward_s == Estimate.exactly(0)


def test_layers_are_kept_apart_and_sorted() -> None:
    cases = [linear(4, 3), linear(4, 3, batch=9), linear(4, 3, first=True), linear(4, 3, ranks=1)]
    by_id = {case.id: case for case in cases}
    times = layer_times(as_samples(rows(*cases)), by_id)
    assert [(t.active_ranks, t.key) for t in times] == sorted(
        (case.ranks, case.key) for case in cases
    )
    collective = rows_of(cases[0], "forward", [[1.0, 1.0]] * 8, kind="collective")
    assert layer_times(as_samples(collective), by_id) == []


def test_work_model_recovers_the_law() -> None:
    _, models = fitted(*LINEARS)
    assert set(models) == {("linear", "forward"), ("linear", "backward")}
    for direction, factor in (("forward", 1), ("backward", 3)):
        model = models["linear", direction]
        assert (model.call_s, model.s_per_flop, model.s_per_byte) == pytest.approx(
            (factor * CALL, factor * PER_FLOP, factor * PER_BYTE), rel=1e-6
        )
        assert model.error_factor == pytest.approx(1.0, rel=1e-6)
        assert model.n_layers == 6
        assert model.max_flops == max(c.layer.forward_flops(c.batch) for c in LINEARS)
        assert model.max_bytes == max(c.layer.moved_bytes(c.batch) for c in LINEARS)


def test_a_law_that_was_checked_on_little_says_so() -> None:
    _, models = fitted(*LINEARS[:3])
    assert models["linear", "forward"].error_factor == UNCHECKED_FACTOR
    _, models = fitted(*LINEARS[:4])
    assert models["linear", "forward"].error_factor < UNCHECKED_FACTOR


def test_kinds_of_few_layers_share_a_law() -> None:
    """Four relus have a model of their own, two dropouts do not; all layers are in "any"."""
    relus = [passing("relu", 2**i) for i in (4, 8, 12, 16)]
    dropouts = [passing("dropout", 2**i) for i in (6, 10)]
    _, models = fitted(*relus, *dropouts, *LINEARS)
    assert {kind for kind, _ in models} == {"relu", ANY_KIND, "linear"}
    assert (models[ANY_KIND, "forward"].n_layers, models[ANY_KIND, "forward"].n_kinds) == (12, 3)
    model = models["relu", "forward"]
    assert model.n_layers == 4
    # flops and bytes are proportional here, so it is the sum of both that is known
    assert model.call_s == pytest.approx(CALL, rel=1e-6)
    per_item = model.s_per_flop + 8 * model.s_per_byte
    assert per_item == pytest.approx(PER_FLOP + 8 * PER_BYTE, rel=1e-6)


def test_a_first_layer_teaches_the_forward_only() -> None:
    """Its backward has no dL/dx: here it takes nothing like three forwards."""
    first = linear(64, 32, first=True)
    by_id = {case.id: case for case in (*LINEARS, first)}
    samples = rows(*LINEARS) + constant(first, "forward", truth(first))
    samples += constant(first, "backward", 100.0)
    models = {m.direction: m for m in work_models(layer_times(as_samples(samples), by_id), by_id)}
    assert (models["forward"].n_layers, models["backward"].n_layers) == (7, 6)
    assert models["backward"].s_per_flop == pytest.approx(3 * PER_FLOP, rel=1e-6)


def test_the_parts_of_the_backward_have_laws_of_their_own() -> None:
    parts = [case.model_copy(update={"passes": "parts"}) for case in LINEARS]
    by_id = {case.id: case for case in (*LINEARS, *parts)}
    samples = rows(*LINEARS)
    for case in parts:
        samples += constant(case, "backward_data", 1.2 * truth(case))
        samples += constant(case, "backward_weight", 1.7 * truth(case))
    found = work_models(layer_times(as_samples(samples), by_id), by_id, as_samples(samples))
    calls = {m.direction: m.call_s for m in found}
    expected = {"forward": 1, "backward": 3, "backward_data": 1.2, "backward_weight": 1.7}
    assert calls == pytest.approx({k: v * CALL for k, v in expected.items()}, rel=1e-6)


def test_launches_that_differ_widen_the_intervals() -> None:
    """Two launches, the second 30% slower: the law of both medians, and an interval over both."""
    by_id = {case.id: case for case in LINEARS}
    samples = [
        row
        for case in LINEARS
        for launch, slower in ((0, 1.0), (1, 1.3))
        for row in rows_of(case, "forward", [[slower * truth(case)] * 2] * 8, launch=launch)
    ]
    (model,) = work_models(layer_times(as_samples(samples), by_id), by_id, as_samples(samples))
    assert model.n == 12 and model.n_layers == 6
    assert model.call_s == pytest.approx(1.15 * CALL, rel=1e-6)
    for name, price in (("call_s", CALL), ("s_per_flop", PER_FLOP), ("s_per_byte", PER_BYTE)):
        low, high = model.intervals[name]
        assert low <= price and 1.3 * price <= high
    assert WorkModel.model_validate_json(model.model_dump_json()) == model


def test_a_layer_at_several_batches_is_one_layer() -> None:
    cases = [linear(n, n, batch) for n in (8, 64, 256, 512) for batch in (1, 2, 4, 8)]
    _, models = fitted(*cases)
    assert models["linear", "forward"].n_layers == 4
    assert models["linear", "forward"].n == 16


def test_a_price_of_fresh_pages_serves_the_kinds_that_had_none() -> None:
    """ReLUs of 40 and 80 MB pay 0.5 ns a byte for their result; linear layers were all small."""
    relus = [passing("relu", items) for items in (2**10, 2**14, 2**18, 10 * 2**17, 20 * 2**17)]
    by_id = {case.id: case for case in (*relus, *LINEARS)}
    samples = rows(*LINEARS)
    for case in relus:
        nbytes = 4 * 8 * case.layer.output_items
        fresh = 0.5e-9 * nbytes if nbytes > 32 * 2**20 else 0.0
        samples += constant(case, "forward", truth(case) + fresh)
    found = {
        m.kind: m
        for m in work_models(layer_times(as_samples(samples), by_id), by_id)
        if m.direction == "forward"
    }
    assert found["relu"].s_per_fresh_byte == pytest.approx(0.5e-9, rel=1e-6)
    assert found["relu"].max_fresh_bytes == 4 * 8 * 20 * 2**17
    assert found["linear"].s_per_fresh_byte == found["relu"].s_per_fresh_byte
    assert (
        found["linear"].intervals["s_per_fresh_byte"] == found["relu"].intervals["s_per_fresh_byte"]
    )
    assert found["linear"].max_fresh_bytes == 0.0
    assert found["linear"].s_per_flop == pytest.approx(PER_FLOP, rel=1e-6)


def test_work_models_are_per_number_of_active_ranks() -> None:
    alone = [case.model_copy(update={"ranks": 1}) for case in LINEARS]
    by_id = {case.id: case for case in (*LINEARS, *alone)}
    samples = rows(*LINEARS, slower=2.0) + rows(*alone)
    models = work_models(layer_times(as_samples(samples), by_id), by_id)
    calls = {m.active_ranks: m.call_s for m in models if m.direction == "forward"}
    assert calls == pytest.approx({1: CALL, 2: 2 * CALL}, rel=1e-6)
