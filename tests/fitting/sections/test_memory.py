"""Naive sums by hand, and memory reuse of runs whose peaks are known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.helpers import runs
from tests.helpers.divided import model_case
from tests.helpers.runs import linear

from calib.fitting.parameters.memory import MemoryReuse
from calib.fitting.sections.memory import memory_reuses, naive_bytes
from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape
from calib.foundation.records import Estimate
from calib.microbench.cases import InPlaceCase
from calib.microbench.records.manifest import CaseEnd


def add(n: int) -> LayerShape:
    return LayerShape(kind="add", input_shapes=((n,), (n,)), output_shape=(n,))


LOSS = LayerShape(kind="mse", input_shapes=((5,), (5,)), output_shape=())
CONV = LayerShape(
    kind="conv",
    input_shapes=((3, 8, 8),),
    output_shape=(4, 6, 6),
    parameter_shapes=((4, 3, 3, 3),),
    attributes={"kernel": (3, 3), "stride": (1, 1), "padding": (0, 0), "groups": 1},
)


def case(
    layers: Sequence[LayerShape],
    batch: int = 2,
    ranks: int = 1,
    model: str = "m",
    optimizer: str = "momentum",
) -> InPlaceCase:
    return model_case(
        model,
        ranks,
        batch,
        layer_keys=tuple(
            layer.key(batch, needs_input_grad=n > 0) for n, layer in enumerate(layers)
        ),
        gradient_bytes=4 * sum(layer.parameter_items for layer in layers),
        optimizer=optimizer,
    )


def end(of: InPlaceCase, launch: int = 0, repetitions: int = 9, **memory: int) -> CaseEnd:
    return runs.end(of.id, launch=launch, repetitions=repetitions, memory=memory)


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_naive_bytes_by_hand(optimizer: str, states: int) -> None:
    """formulas.md: 2 B' delta sum(|x| + |y|) + 2 delta (|w| + |bi|) + states |w| delta, B' = 3."""
    naive = naive_bytes(case([CONV, linear(144, 5), add(5), LOSS], batch=3, optimizer=optimizer))
    items = (192 + 144) + (144 + 5) + (10 + 5) + (10 + 1)
    weights = 4 * 27 + 5 * 144 + 5
    assert naive.activations == 2 * 3 * 4 * items
    assert (naive.weights, naive.optimizer) == (2 * 4 * weights, states * 4 * weights)
    assert naive.total == naive.activations + naive.weights + naive.optimizer


def test_keys_that_name_no_layer() -> None:
    wrong = case([]).model_copy(update={"layer_keys": ("l0",)})
    with pytest.raises(InputError, match="m: 'l0' is not the key of a layer"):
        naive_bytes(wrong)
    found, notes = memory_reuses([end(wrong, peak_live=5)], {wrong.id: wrong})
    assert found == [] and "leaves a model out: m: 'l0'" in notes[0]


MODELS = [
    case([linear(50, 2000)], batch=2, model="a"),
    case([linear(3000, 10), linear(10, 3000)], batch=90, model="b"),
    case([linear(700, 700)], batch=20, model="c"),
]


def reuse(cases: Sequence[InPlaceCase], ends: Sequence[CaseEnd]) -> MemoryReuse:
    (found,), _ = memory_reuses(ends, {c.id: c for c in cases})
    return found


def test_gamma_of_equal_reuse() -> None:
    ends = [end(c, n, peak_live=naive_bytes(c).total // 2) for c in MODELS for n in range(3)]
    found = reuse(MODELS, ends)
    assert (found.framework, found.device, found.family, found.measure) == (
        "torch",
        "cpu",
        "serial",
        "allocated",
    )
    assert found.gamma.value == pytest.approx(0.5, rel=1e-6)
    assert found.gamma_held_out_error == pytest.approx(0.0, abs=1e-6)
    assert (found.models, found.n) == (["a", "b", "c"], 9)
    totals = [naive_bytes(c).total for c in MODELS]
    assert (found.min_bytes, found.max_bytes) == (min(totals), max(totals))
    naive = naive_bytes(MODELS[1])
    peak = found.peak_bytes(naive.activations, naive.weights, naive.optimizer)
    assert peak == pytest.approx(naive.total / 2, rel=1e-6)


def test_three_models_tell_activations_from_the_rest() -> None:
    """Peaks of 0.3 activations + 0.9 of all that belongs to weights; noted that these share."""

    def peak(c: InPlaceCase) -> int:
        naive = naive_bytes(c)
        return round(0.3 * naive.activations + 0.9 * (naive.weights + naive.optimizer))

    (found,), notes = memory_reuses(
        [end(c, peak_live=peak(c)) for c in MODELS], {c.id: c for c in MODELS}
    )
    assert found.parts == [["activations"], ["weights", "optimizer"]]
    assert found.chosen == "refined"
    assert found.activations.value == pytest.approx(0.3, rel=1e-3)
    assert found.weights.value == found.optimizer.value == pytest.approx(0.9, rel=1e-3)
    assert found.constant_bytes == Estimate.exactly(0.0)
    assert notes == [
        "memory reuse (cpu, serial, allocated): 3 model(s) tell 2 factor(s) apart: activations; "
        "weights and optimizer"
    ]
    naive = naive_bytes(MODELS[0])
    assert found.peak_bytes(naive.activations, naive.weights, naive.optimizer) == pytest.approx(
        peak(MODELS[0]), rel=1e-3
    )


def test_families_devices_and_measures_are_apart() -> None:
    alone = MODELS[0]
    both = alone.model_copy(update={"ranks": 2, "division": Division("data", 2, 4)})
    total = naive_bytes(alone).total
    gpu = alone.model_copy(update={"device": "cuda"})
    peaks = {"peak_live": total, "peak_reserved": 2 * total, "device_used": 3 * total}
    found, _ = memory_reuses(
        [end(alone, peak_live=total // 2), end(both, peak_live=total), end(gpu, 1, **peaks)],
        {c.id: c for c in (alone, both, gpu)},
    )
    gammas = {(r.device, r.family, r.measure): r.gamma.value for r in found}
    assert gammas == pytest.approx(
        {
            ("cpu", "serial", "allocated"): 0.5,
            ("cpu", "data", "allocated"): 1.0,
            ("cuda", "serial", "allocated"): 1.0,
            ("cuda", "serial", "reserved"): 2.0,
            ("cuda", "serial", "device"): 3.0,
        },
        rel=1e-3,
    )
    assert all(r.gamma_held_out_error is None for r in found), "one model: nothing to leave out"
    assert all(r.error_factor == 10.0 for r in found)


def test_what_tells_nothing_is_left_out() -> None:
    known = {c.id: c for c in MODELS}
    ends = [
        end(MODELS[0]),
        end(MODELS[1], repetitions=0, peak_live=9),
        end(case([LOSS]), peak_live=9),
    ]
    assert memory_reuses(ends, known) == ([], [])


def test_order_does_not_matter() -> None:
    ends = [end(c, n, peak_live=n + naive_bytes(c).total // 3) for c in MODELS for n in range(3)]
    known = {c.id: c for c in MODELS}
    backwards = dict(reversed(known.items()))
    assert memory_reuses(ends, known) == memory_reuses(ends[::-1], backwards)


def counted(of: InPlaceCase, nbytes: int, **more: object) -> InPlaceCase:
    return of.model_copy(update={"live_bytes": nbytes, **more})


def test_the_count_of_live_bytes_is_checked_and_not_fitted() -> None:
    """Counts of 1000, peaks of 1000, 1100 and 900: ratio 1, off by the mean of 0, 1/11 and 1/9."""
    cases = [counted(c, 1000) for c in MODELS]
    peaks = (1000, 1100, 900)
    found = reuse(cases, [end(c, peak_live=p) for c, p in zip(cases, peaks, strict=True)])
    assert found.live is not None
    assert (found.live.ratio.value, found.live.ratio.low, found.live.ratio.high) == (1.0, 0.9, 1.1)
    assert found.live.error == pytest.approx((1 / 11 + 1 / 9) / 3)
    assert found.live.error_factor == pytest.approx(1 / 0.9)
    assert found.count_is_better, "these peaks have nothing to do with the naive sums"


def test_the_naive_sum_stays_where_it_is_nearer() -> None:
    cases = [counted(c, 7 * naive_bytes(c).total) for c in MODELS]
    found = reuse(cases, [end(c, peak_live=naive_bytes(c).total // 2) for c in cases])
    assert found.live is not None and not found.count_is_better
    assert found.live.ratio.value == pytest.approx(1 / 14, rel=1e-4)


def test_cases_without_a_count_have_no_check() -> None:
    ends = [end(c, peak_live=5000) for c in MODELS]
    assert reuse(MODELS, ends).live is None
    assert reuse([counted(MODELS[0], 5000), *MODELS[1:]], ends).live is None


def test_a_count_does_not_change_what_is_measured() -> None:
    """Equal work has an equal id, so that runs go on and merge."""
    assert counted(MODELS[0], 5000).id == MODELS[0].id


def test_other_strategies_have_other_sums() -> None:
    cases = [counted(MODELS[0], 5000), counted(MODELS[1], 5000, division=Division("filter", 2, 2))]
    assert reuse(cases, [end(c, peak_live=5000) for c in cases]).models == ["a"]
