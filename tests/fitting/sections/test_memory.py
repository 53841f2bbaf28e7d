"""Naive sums by hand, and memory reuse of runs whose peaks are known."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tests.helpers import runs
from tests.helpers.divided import model_case
from tests.helpers.runs import linear

from calib.fitting.parameters.memory import MemoryReuse
from calib.fitting.sections.memory import (
    ONE_MODEL_FACTOR,
    Naive,
    Peak,
    device_memory,
    memory_reuses,
    naive_bytes,
)
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
    assert (found.framework, found.device, found.family) == ("torch", "cpu", "serial")
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
        "memory reuse (cpu, serial, float32): 3 model(s) tell 2 factor(s) apart: activations; "
        "weights and optimizer"
    ]
    naive = naive_bytes(MODELS[0])
    assert found.peak_bytes(naive.activations, naive.weights, naive.optimizer) == pytest.approx(
        peak(MODELS[0]), rel=1e-3
    )


def test_families_and_devices_are_apart() -> None:
    alone = MODELS[0]
    both = alone.model_copy(update={"ranks": 2, "division": Division("data", 2, 4)})
    total = naive_bytes(alone).total
    gpu = alone.model_copy(update={"device": "cuda"})
    found, _ = memory_reuses(
        [
            end(alone, peak_live=total // 2),
            end(both, peak_live=total),
            end(gpu, 1, peak_live=total),
        ],
        {c.id: c for c in (alone, both, gpu)},
    )
    gammas = {(r.device, r.family): r.gamma.value for r in found}
    assert gammas == pytest.approx(
        {("cpu", "serial"): 0.5, ("cpu", "data"): 1.0, ("cuda", "serial"): 1.0}, rel=1e-3
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


GPUS = [
    counted(c, (n + 1) * 30_000_000, device="cuda", model=f"m{n}")
    for n, c in enumerate([*MODELS, MODELS[0], MODELS[1]])
]
WORKSPACE, CONTEXT, NCCL = 8 << 20, 400 << 20, 60 << 20
RESERVED = 1.12


def on_gpus(cases: Sequence[InPlaceCase], outside: int = CONTEXT) -> list[CaseEnd]:
    """Peaks of a machine of known laws."""
    live = [c.live_bytes + WORKSPACE for c in cases]
    return [
        end(c, peak_live=n, peak_reserved=round(RESERVED * n), outside=outside)
        for c, n in zip(cases, live, strict=True)
    ]


def test_the_laws_of_a_made_gpu_are_found_again() -> None:
    """Workspace, reserved by live, and what is outside, of which NCCL's is data less serial."""
    data = [c.model_copy(update={"division": Division("data", 2, 4), "ranks": 2}) for c in GPUS]
    ends = [*on_gpus(GPUS), *on_gpus(data, CONTEXT + NCCL)]
    found, _ = memory_reuses(ends, {c.id: c for c in (*GPUS, *data)})
    by_family = {of.family: of for of in found}
    for of in found:
        assert of.live is not None and of.count_is_better
        assert of.live.workspace_bytes == Estimate.exactly(float(WORKSPACE))
        assert (of.live.error, of.live.error_factor) == pytest.approx((0.0, 1.0))
        assert of.on_device is not None and of.on_device.n == len(GPUS)
        assert of.on_device.reserved.value == pytest.approx(RESERVED, rel=1e-6)
    outside = {
        family: of.on_device.outside_bytes
        for family, of in by_family.items()
        if of.on_device is not None
    }
    assert outside["serial"] is not None and outside["data"] is not None
    assert outside["serial"].value == CONTEXT
    assert outside["data"].value - outside["serial"].value == NCCL


def test_the_device_of_a_model_left_out_is_within_the_interval() -> None:
    """Of machines of eight models, what is reserved and outside 3% off; each left out in turn."""
    draw = random.Random(0)
    covered: list[bool] = []
    for _ in range(50):
        peaks = []
        for model in "abcdefgh":
            live = draw.randrange(10**7, 10**9)
            reserved = RESERVED * live * draw.lognormvariate(0.0, 0.03)
            outside = CONTEXT * draw.lognormvariate(0.0, 0.03)
            memory = {
                "peak_live": live,
                "peak_reserved": round(reserved),
                "outside": round(outside),
            }
            peaks.append(Peak(model, Naive(1, 1, 1), float(live), memory))
        for out in peaks:
            law = device_memory([peak for peak in peaks if peak is not out])
            assert law is not None
            had = out.memory["peak_reserved"] + out.memory["outside"]
            covered.append(law.peak(Estimate.exactly(out.live)).covers(had))
    assert 0.9 < sum(covered) / len(covered) < 1.0


def test_one_model_says_how_little_it_says() -> None:
    """Its workspace may as well be a share of it, so the factor is the count's alone."""
    only = GPUS[:1]
    found = reuse(only, on_gpus(only))
    assert found.live is not None and found.on_device is not None
    assert found.count_is_better, "gamma of one model is checked on nothing"
    assert found.live.workspace_bytes.numbers == (WORKSPACE, 0, 2 * WORKSPACE)
    assert found.live.error_factor == pytest.approx(1 + WORKSPACE / only[0].live_bytes)
    reserved, outside = found.on_device.reserved, found.on_device.outside_bytes
    assert (reserved.low, reserved.high) == pytest.approx((1.0, RESERVED * ONE_MODEL_FACTOR))
    assert outside is not None
    assert outside.high / outside.value == pytest.approx(ONE_MODEL_FACTOR)


def test_workspace_that_grows_with_the_model_stays_out() -> None:
    """Four counts that are all 10% short: a constant would be further off, so the factor holds it."""
    cases = [
        counted(c, 10**k * 1000, model=f"m{k}", device="cuda") for k, c in enumerate(MODELS * 2)
    ]
    ends = [end(c, peak_live=round(1.1 * c.live_bytes)) for c in cases]
    found = reuse(cases, ends)
    assert found.live is not None and found.live.workspace_bytes == Estimate.exactly(0.0)
    assert found.live.error_factor == pytest.approx(1.1)
    assert found.on_device is None, "nothing was reserved"


def test_without_nvml_nothing_is_known_of_the_outside() -> None:
    ends = [end(c, peak_live=100, peak_reserved=90) for c in GPUS]
    found = reuse(GPUS, ends).on_device
    assert found is not None and found.outside_bytes is None
    assert found.reserved == Estimate.exactly(1.0), "1 at least"
