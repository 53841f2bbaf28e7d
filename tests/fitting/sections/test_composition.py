"""What a sum of parts leaves out: the law that was put in comes out, and none where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.optimize import lsq_linear
from tests.helpers.divided import model_case
from tests.helpers.filled import loop
from tests.helpers.rows import as_samples, constant
from tests.reports.records import estimate, parameters

from calib.fitting.parameters.file import Composition, LayerTime
from calib.fitting.sections.composition import compositions, sum_of_parts
from calib.microbench.cases import InPlaceCase
from calib.microbench.records.samples import Sample

Time = Callable[[InPlaceCase, float], float]
LAYERS = [
    LayerTime(
        key=f"l{i}",
        kind="conv",
        batch=8,
        active_ranks=2,
        forward_s=estimate(1e-3 * 1.5**i),
        backward_s=estimate(2e-3 * 1.5**i),
        n=9,
    )
    for i in range(6)
]
LOOP = parameters().model_copy()  # a line of 2 us + 0.5 ns/B, from 8 B to 16 MiB


def model(name: str, keys: Sequence[int], activations: int, gradients: int = 4096) -> InPlaceCase:
    return model_case(
        name,
        layer_keys=tuple(f"l{i}" for i in keys),
        activation_bytes=activations,
        tensors_key=name,
        gradient_bytes=gradients,
    )


# neither layers nor bytes nor the sum are proportional to one another
MODELS = [
    model("a", [0] * 20 + [3], 10**6),
    model("b", [5, 5, 5], 3 * 10**7),
    model("c", [1, 2, 3, 4] * 3, 4 * 10**6),
    model("d", [0, 5], 8 * 10**6),
]


def total(case: InPlaceCase, phase: str) -> float:
    """The sum of the parts, each counted as often as the model uses it."""
    each = 1e-3 if phase == "forward" else 2e-3
    return sum(each * 1.5 ** int(key[1:]) for key in case.layer_keys)


def composed(models: Sequence[InPlaceCase], time: Time, phase: str = "forward") -> Composition:
    rows: list[Sample] = []
    for case in models:
        rows += constant(case, phase, time(case, total(case, phase)))
    (law,) = compositions(as_samples(rows), {case.id: case for case in models}, LAYERS, [], [])
    assert law.phase == phase and law.active_ranks == 2
    assert law.models == sorted(f"{case.model} x 8" for case in models)
    return law


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("layer_s", [0.0, 50e-6])
@pytest.mark.parametrize("byte_s", [0.0, 0.3e-9])
def test_a_price_per_layer_and_byte(phase: str, layer_s: float, byte_s: float) -> None:
    def missing(case: InPlaceCase) -> float:
        return layer_s * len(case.layer_keys) + byte_s * case.activation_bytes

    law = composed(MODELS, lambda case, s: s + missing(case), phase)
    assert law.s_per_layer == pytest.approx(layer_s, rel=1e-6, abs=1e-12)
    assert law.s_per_byte == pytest.approx(byte_s, rel=1e-6, abs=1e-15)
    assert law.error_factor == pytest.approx(1.0, rel=1e-6)
    ratios = [1 + missing(c) / total(c, phase) for c in MODELS]
    assert law.sum_error_factor == pytest.approx(max(ratios), rel=1e-9)
    assert law.max_bytes == 3 * 10**7


@pytest.mark.parametrize("factor", [1.0, 0.8])
def test_a_sum_that_leaves_nothing_out_stays(factor: float) -> None:
    """Exact, or too long: no law of positive prices makes it better."""
    law = composed(MODELS, lambda _, s: factor * s)
    assert (law.s_per_layer, law.s_per_byte) == (0.0, 0.0)
    assert law.error_factor == law.sum_error_factor == pytest.approx(1 / factor)


def test_one_model_is_repeated_and_trusted_as_little_as_the_sum() -> None:
    """Nothing can be left out: 30% of the sum over 21 layers, with the error of the sum."""
    law = composed(MODELS[:1], lambda _, s: 1.3 * s)
    assert law.s_per_layer == pytest.approx(0.3 * total(MODELS[0], "forward") / 21)
    assert law.s_per_byte == 0.0
    assert law.error_factor == law.sum_error_factor == pytest.approx(1.3)


def law_by_hand(times: Sequence[float]) -> tuple[float, float, float]:
    """s_per_layer, s_per_byte and the worst factor of the law that leaving one out prefers.

    With SciPy's bounded least squares, law by law and model by model.
    """
    offset = np.array([total(case, "forward") for case in MODELS])
    t = np.array(times)
    both = np.array([[len(c.layer_keys), c.activation_bytes] for c in MODELS], dtype=float)

    def solve(columns: list[int], rows: list[int]) -> np.ndarray:
        found = np.zeros(2)
        if columns:
            x = both[np.ix_(rows, columns)] / t[rows][:, None]
            scale = x.max(axis=0)
            target = 1 - offset[rows] / t[rows]
            found[columns] = lsq_linear(x / scale, target, (0, np.inf), "bvls", 1e-14).x / scale
        return found

    best: tuple[float, list[int], float] | None = None
    for columns in ([], [0], [1], [0, 1]):
        logs = []
        for row in range(len(t)):
            others = [i for i in range(len(t)) if i != row]
            predicted = offset[row] + both[row] @ solve(columns, others)
            logs.append(math.log(predicted / t[row]))
        spread = float(np.mean(np.square(logs)))
        if best is None or spread < best[0] - 1e-15:
            best = (spread, columns, math.exp(max(map(abs, logs))))
    assert best is not None
    layer, byte = solve(best[1], list(range(len(t))))
    return float(layer), float(byte), best[2]


@pytest.mark.parametrize("seed", range(8))
def test_the_law_is_chosen_by_leaving_one_out(seed: int) -> None:
    generator = np.random.default_rng(seed)
    factors = dict(zip("abcd", generator.uniform(0.9, 1.6, 4), strict=True))
    law = composed(MODELS, lambda case, s: s * factors[case.model])
    times = [factors[case.model] * total(case, "forward") for case in MODELS]
    layer, byte, worst = law_by_hand(times)
    assert law.s_per_layer == pytest.approx(layer, rel=1e-6, abs=1e-12)
    assert law.s_per_byte == pytest.approx(byte, rel=1e-6, abs=1e-18)
    assert law.error_factor == pytest.approx(worst, rel=1e-6)


def test_a_model_with_a_part_that_was_not_measured_is_left_out() -> None:
    unknown = model("u", [0, 99], 10**6)
    assert sum_of_parts(unknown, "forward", 2, LAYERS, [], []) is None
    assert sum_of_parts(MODELS[0], "forward", 1, LAYERS, [], []) is None, "not with one rank"
    rows = constant(unknown, "forward", 9.0) + constant(MODELS[0], "forward", 9.0)
    cases = {case.id: case for case in (unknown, MODELS[0])}
    (law,) = compositions(as_samples(rows), cases, LAYERS, [], [])
    assert law.models == ["a x 8"]


def test_exchange_is_the_measured_collective() -> None:
    """Between sizes it is interpolated; beyond them it is not made up."""
    fits = LOOP.collectives
    for nbytes in (8, 64, 8**8):
        case = model("x", [], 0, nbytes)
        found = sum_of_parts(case, "exchange", 2, [], [], fits)
        assert found == (pytest.approx(2e-6 + 0.5e-9 * nbytes), 0, nbytes)
    low, high = 2e-6 + 0.5e-9 * 8**7, 2e-6 + 0.5e-9 * 8**8
    middle = model("x", [], 0, round(8**7.5))
    between = sum_of_parts(middle, "exchange", 2, [], [], fits)
    assert between is not None
    assert between[0] == pytest.approx(math.sqrt(low * high), rel=1e-6)
    assert sum_of_parts(model("x", [], 0, 8**8 + 1), "exchange", 2, [], [], fits) is None
    assert sum_of_parts(model("x", [], 0, 7), "exchange", 2, [], [], fits) is None
    other = [fit.model_copy(update={"ranks": 4}) for fit in fits]
    assert sum_of_parts(middle, "exchange", 2, [], [], other) is None
    p2p = [fit.model_copy(update={"operation": "p2p"}) for fit in fits]
    assert sum_of_parts(middle, "exchange", 2, [], [], p2p) is None


def test_bytes_of_the_exchange_are_those_of_the_gradients() -> None:
    sizes = [4096, 8**5, 8**6, 8**7]
    models = [model(name, [], 10**9, n) for name, n in zip("abcd", sizes, strict=True)]
    rows = [
        row
        for case, n in zip(models, sizes, strict=True)
        for row in constant(case, "exchange", 2e-6 + 0.5e-9 * n + 0.2e-9 * n)
    ]
    cases = {case.id: case for case in models}
    # 4096 is measured exactly: 8^4
    (law,) = compositions(as_samples(rows), cases, [], [], LOOP.collectives)
    assert (law.s_per_layer, law.max_bytes) == (0.0, 8**7)
    assert law.s_per_byte == pytest.approx(0.2e-9, rel=1e-6)


def test_gradients_that_are_exchanged_are_fewer_than_the_weights() -> None:
    """Of tensor with sequence parallelism: the pass over some is compared with that pass alone."""
    case = model_case(
        "a", strategy="tensor", sequence_parallel=True, tensors_key="all", partial=("some", 3, 64)
    )
    alone = {
        "pack": {"some": estimate(2e-3), "all": estimate(9e-3)},
        "update": {"all": estimate(4e-3)},
    }
    loops = [loop(operation=name, active_ranks=2, measured=of) for name, of in alone.items()]
    rows = constant(case, "pack", 2.5e-3) + constant(case, "update", 4e-3)
    laws = compositions(as_samples(rows), {case.id: case}, [], loops, [])
    found = {law.phase: (law.s_per_layer, law.max_bytes, law.models) for law in laws}
    assert found["pack"] == (pytest.approx(0.5e-3 / 3), 64, ["a tensor-sequence x 8"])
    assert found["update"][0] == 0.0


def test_ranks_meet_in_another_way_by_another_library() -> None:
    """A call takes 3 us more than in a loop by one library, and 40 us more by the other."""
    extra = {"torch_mpi": 3e-6, "torch_gloo": 40e-6}
    loop_s = {"torch_mpi": 2e-6, "torch_gloo": 5e-6}
    whole = LOOP.collectives[0]
    point = whole.points[0]
    fits = [
        whole.model_copy(
            update={
                "operation": "allgather",
                "library": library,
                "points": [point.model_copy(update={"seconds": estimate(seconds)})],
            }
        )
        for library, seconds in loop_s.items()
    ]
    cases = [
        model_case(
            name, strategy="filter", library=library, meetings=(("layerwise", "allgather", n),)
        )
        for library in extra
        for name, n in (("a", 4), ("b", 10), ("c", 31))
    ]
    rows = [
        row
        for case in cases
        for n in [case.meetings[0][2]]
        for row in constant(case, "layerwise", n * (loop_s[case.library] + extra[case.library]))
    ]
    laws = compositions(as_samples(rows), {case.id: case for case in cases}, [], [], fits)
    assert {law.library: law.s_per_layer for law in laws} == {
        library: pytest.approx(seconds, rel=1e-6) for library, seconds in extra.items()
    }
