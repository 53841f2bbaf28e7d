"""Times of one execution say nothing about another: laws of both come out as if each were alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from tests.helpers import runs
from tests.helpers.divided import model_case
from tests.helpers.rows import as_samples, constant

from calib.fitting.parameters.file import LayerTime, TensorLoop, WorkModel
from calib.fitting.parameters.work import ANY_KIND
from calib.fitting.sections.composition import compositions
from calib.fitting.sections.compute import layer_times
from calib.fitting.sections.layers_in_place import with_in_place
from calib.fitting.sections.loops import tensor_loops
from calib.fitting.sections.memory import memory_reuses, naive_bytes
from calib.fitting.sections.overlap import overlaps
from calib.fitting.sections.work_laws import work_models
from calib.foundation.execution import execution_of
from calib.foundation.layers import LayerShape
from calib.microbench.cases import InPlaceCase, LayerCase, TensorsCase
from calib.microbench.peaks import square_product
from calib.microbench.records.samples import Sample

# how much longer everything takes, by execution
SLOWER = {"float32": 1.0, "bfloat16": 0.25, "bfloat16-mixed": 3.0}
CALL, PER_FLOP, PER_BYTE = 4e-6, 3e-11, 2e-10


def linear(n_in: int, n_out: int, batch: int, execution: str) -> LayerCase:
    return LayerCase(ranks=2, layer=runs.linear(n_in, n_out), batch=batch, execution=execution)


def image(kind: str, channels: int, execution: str) -> LayerCase:
    shape = LayerShape.model_validate(
        {"kind": kind, "input_shapes": [[channels, 8, 8]], "output_shape": [channels, 8, 8]}
    )
    return LayerCase(ranks=2, layer=shape, batch=8, execution=execution)


def linears(execution: str) -> list[LayerCase]:
    sizes = ((3, 9, 0), (9, 3, 5), (6, 6, 2), (10, 10, 0), (4, 4, 8), (8, 7, 6))
    return [linear(2**i, 2**j, 2**k, execution) for i, j, k in sizes]


def truth(case: LayerCase, slower: float) -> float:
    """Of 2 b n m operations; x, y and w, b once, in bytes of the execution's types."""
    n, m = case.layer.input_shapes[0][0], case.layer.output_shape[0]
    items = execution_of(case.execution).items
    moved = items.activation_bytes * case.batch * (n + m) + items.weight_bytes * (n * m + m)
    return slower * (CALL + 2 * case.batch * n * m * PER_FLOP + moved * PER_BYTE)


def models_of(
    cases: Iterable[LayerCase], rows: Sequence[Sample]
) -> tuple[list[LayerTime], list[WorkModel]]:
    by_id = {case.id: case for case in cases}
    times = layer_times(as_samples(rows), by_id)
    return times, work_models(times, by_id, as_samples(rows))


def forwards(execution: str) -> tuple[list[LayerCase], list[Sample]]:
    cases = linears(execution)
    rows = [constant(case, "forward", truth(case, SLOWER[execution])) for case in cases]
    return cases, [row for of in rows for row in of]


def test_work_models() -> None:
    each = {execution: forwards(execution) for execution in SLOWER}
    cases = [case for cases, _ in each.values() for case in cases]
    times, models = models_of(cases, [row for _, rows in each.values() for row in rows])
    assert len(times) == len(cases) == len({time.key for time in times})
    assert [model.execution for model in models] == sorted(SLOWER)
    for model in models:
        slower = SLOWER[model.execution]
        prices = model.call_s, model.s_per_flop, model.s_per_byte
        expected = [slower * price for price in (CALL, PER_FLOP, PER_BYTE)]
        assert prices == pytest.approx(expected, rel=1e-6)
        assert model.error_factor == pytest.approx(1.0, rel=1e-6)
        assert model.n_layers == 6
        assert models_of(*each[model.execution])[1] == [model]


def test_channels_last_has_the_layers_that_it_changes_nothing_of() -> None:
    """The law of linear layers is that of both; of images each has its own."""
    last = "float32+channels_last"
    relus = {name: [image("relu", 2**i, name) for i in range(1, 6)] for name in ("float32", last)}
    rows = forwards("float32")[1]
    for name, of in relus.items():
        factor = 1.0 if name == "float32" else 0.5
        for case in of:
            seconds = factor * (CALL + PER_BYTE * case.layer.moved_bytes(8))
            rows += constant(case, "forward", seconds)
    _, models = models_of([*linears("float32"), *relus["float32"], *relus[last]], rows)
    by_key = {(model.kind, model.execution): model for model in models}
    assert set(by_key) == {
        (kind, name) for kind in ("linear", "relu", ANY_KIND) for name in ("float32", last)
    }
    plain = by_key["linear", "float32"]
    assert by_key["linear", last] == plain.model_copy(update={"execution": last})
    pair = by_key["relu", "float32"], by_key["relu", last]
    assert pair[1].call_s == pytest.approx(0.5 * pair[0].call_s, rel=1e-6)
    assert pair[0].call_s == pytest.approx(CALL, rel=1e-6)
    assert by_key[ANY_KIND, "float32"].n_layers == by_key[ANY_KIND, last].n_layers == 11


def test_a_peak_makes_no_law_of_an_execution_that_no_layer_has() -> None:
    """That of autocast's products is of bfloat16, in which nothing else was measured."""
    peak = square_product(64, ranks=2, execution="bfloat16")
    cases, rows = forwards("bfloat16-mixed")
    _, models = models_of([*cases, peak], rows + constant(peak, "forward", 1.0))
    assert [model.execution for model in models] == ["bfloat16-mixed"]


def test_fresh_pages_have_a_price_for_each() -> None:
    """float32 wrote some, bfloat16 none: no price is borrowed."""
    cases, rows = [], []
    for execution in ("float32", "bfloat16"):
        of, mine = forwards(execution)
        cases, rows = [*cases, *of], [*rows, *mine]
    sizes = (2**10, 2**14, 2**18, 10 * 2**17, 20 * 2**17)
    for items in sizes:
        shape = LayerShape(kind="relu", input_shapes=((items,),), output_shape=(items,))
        case = LayerCase(ranks=2, layer=shape, batch=8)
        fresh = 4 * 8 * items if 4 * 8 * items > 32 * 2**20 else 0
        seconds = CALL + PER_BYTE * shape.moved_bytes(8) + 0.5e-9 * fresh
        cases, rows = [*cases, case], rows + constant(case, "forward", seconds)
    _, models = models_of(cases, rows)
    prices = {(m.kind, m.execution): m.s_per_fresh_byte for m in models}
    assert prices["linear", "float32"] == pytest.approx(0.5e-9, rel=1e-6)
    assert prices["linear", "bfloat16"] == 0.0


LISTS = ((10,), (5,) * 40, (100_000, 3), (1000,) * 7, (9,) * 200, (50_000,) * 3)


def loops_of(execution: str, operation: str) -> list[Sample]:
    """10 us + 2 us a tensor + 0.25 ns a byte, times the execution's factor."""
    found: list[Sample] = []
    each = execution_of(execution).items.weight_bytes
    for sizes in LISTS:
        case = TensorsCase.model_validate(
            {
                "ranks": 2,
                "operation": operation,
                "key": f"{len(sizes)}x{sizes[0]}",
                "shapes": [[n] for n in sizes],
                "execution": execution,
            }
        )
        nbytes = each * sum(sizes)
        seconds = SLOWER[execution] * (10e-6 + 2e-6 * len(sizes) + 0.25e-9 * nbytes)
        found += constant(case, operation, seconds, nbytes=nbytes)
    return found


def test_tensor_loops() -> None:
    each = {name: loops_of(name, "accumulate") for name in SLOWER}
    loops = tensor_loops(as_samples(row for rows in each.values() for row in rows))
    assert [loop.execution for loop in loops] == sorted(SLOWER)
    for loop in loops:
        slower = SLOWER[loop.execution]
        prices = loop.call_s, loop.s_per_tensor, loop.s_per_byte
        expected = [slower * price for price in (10e-6, 2e-6, 0.25e-9)]
        assert prices == pytest.approx(expected, rel=1e-6)
        assert tensor_loops(as_samples(each[loop.execution])) == [loop]
        assert loop.operation == "accumulate" and len(loop.measured) == len(LISTS)


GRAPH = "bfloat16+cuda_graph"
KEYS = {name: linears(name) for name in ("float32", "bfloat16")}


def model(name: str, layers: Sequence[int], execution: str) -> InPlaceCase:
    """A model of layers of KEYS; its activations are no multiple of their number."""
    of = KEYS[execution_of(execution).kernels.name]
    return model_case(
        name,
        layer_keys=tuple(of[i].key for i in layers),
        layer_names=tuple(f"l{n}" for n in range(len(layers))),
        activation_bytes=10**6 * len(name) * layers[0],
        gradient_bytes=4096,
        execution=execution,
    )


MODELS = {
    name: [model("a", [1] * 20, name), model("bb", [5, 4, 3], name), model("ccc", [2, 0] * 4, name)]
    for name in ("float32", "bfloat16", GRAPH)
}


def layers() -> tuple[list[LayerTime], dict[str, float]]:
    """All layers alone, and their seconds by key."""
    each = [forwards(name) for name in KEYS]
    cases = [case for cases, _ in each for case in cases]
    times, _ = models_of(cases, [row for _, rows in each for row in rows])
    return times, {time.key: time.forward_s.value for time in times}


def test_compositions() -> None:
    """Per layer 10 us more in float32, 20 us in bfloat16, and none where a graph launches them."""
    per_layer = {"float32": 10e-6, "bfloat16": 20e-6, GRAPH: 0.0}
    times, seconds = layers()
    rows, cases, update = [], {}, []
    for name, models in MODELS.items():
        for case in models:
            whole = sum(seconds[key] + per_layer[name] for key in case.layer_keys)
            rows += constant(case, "forward", whole)
            update += constant(case, "update", 2e-3 if name == "float32" else 1e-3)
            cases[case.id] = case
    found = compositions(as_samples(rows), cases, times, [], [])
    assert [(law.phase, law.execution) for law in found] == [
        ("forward", name) for name in ("bfloat16", GRAPH, "float32")
    ]
    for law in found:
        assert law.s_per_layer == pytest.approx(per_layer[law.execution], rel=1e-6, abs=1e-15)
        assert len(law.models) == 3
    # the pass over weights of bfloat16, for the graph as well
    loops = [loop(name, 1e-3 * factor) for name, factor in (("float32", 2), ("bfloat16", 1))]
    found = compositions(as_samples(update), cases, times, loops, [])
    assert [law.execution for law in found] == ["bfloat16", GRAPH, "float32"]
    assert all(law.sum_error_factor == pytest.approx(1.0) for law in found)


def loop(execution: str, seconds: float) -> TensorLoop:
    about: dict[str, Any] = {"call_s": 0.0, "s_per_tensor": 0.0, "s_per_byte": 0.0}
    measured = {"k": {"value": seconds, "low": seconds, "high": seconds}}
    return TensorLoop.model_validate(
        {
            "operation": "update",
            "execution": execution,
            "active_ranks": 2,
            "error_factor": 1.0,
            "max_bytes": 1e6,
            "measured": measured,
            **about,
        }
    )


def test_layers_in_place() -> None:
    """A graph's iterations are of the same layers, and say nothing of them."""
    times, seconds = layers()
    rows, cases = [], {}
    for name, factor in (("float32", 2.0), ("bfloat16", 3.0), (GRAPH, 7.0)):
        case = MODELS[name][1]
        cases[case.id] = case
        for layer, key in zip(case.layer_names, case.layer_keys, strict=True):
            about = f"{case.model}:{layer}"
            rows += constant(case, "layer_forward", factor * seconds[key], key=about)
        rows += constant(case, "forward", factor * sum(seconds[key] for key in case.layer_keys))
    found = with_in_place(times, as_samples(rows), cases)
    ratios = {
        time.key: time.in_place_forward_s.value / time.forward_s.value
        for time in found
        if time.in_place_forward_s is not None
    }
    expected = {
        key: factor
        for name, factor in (("float32", 2.0), ("bfloat16", 3.0))
        for key in MODELS[name][1].layer_keys
    }
    assert ratios == pytest.approx(expected)


def test_memory_reuse() -> None:
    """The naive sum is of the execution's bytes, and so is gamma."""
    share = {"float32": 0.5, "bfloat16": 0.75, GRAPH: 0.9}
    cases = [case for models in MODELS.values() for case in models]
    ends = [
        runs.end(
            case.id, memory={"peak_live": round(share[case.execution] * naive_bytes(case).total)}
        )
        for case in cases
    ]
    found, _ = memory_reuses(ends, {case.id: case for case in cases})
    assert [reuse.execution for reuse in found] == ["bfloat16", GRAPH, "float32"]
    gammas = {reuse.execution: reuse.gamma.value for reuse in found}
    assert gammas == pytest.approx(share, rel=1e-3)
    activations = [naive_bytes(MODELS[name][0]).activations for name in share]
    assert activations == [activations[0], activations[0] // 2, activations[0] // 2]


def test_overlap_is_of_the_first_execution() -> None:
    """A third of its exchange is hidden; of the other all is, and nobody asks."""
    rows: list[Sample] = []
    for execution, hidden in (("float32", 1.0), ("bfloat16", 3.0)):
        case = model_case("m", is_overlap=True, execution=execution)
        about: dict[str, Any] = {"library": case.library}
        rows += constant(case, "blocking", 10.0, **about)
        rows += constant(case, "overlapped", 10.0 - hidden, **about)
        rows += constant(case, "backward", 5.0, **about) + constant(case, "exchange", 3.0, **about)
    (law,), notes = overlaps(as_samples(rows))
    assert law.eta.value == pytest.approx(1 / 3)
    assert notes == ["overlap of m x 8 in bfloat16: left out, as it is of float32"]
