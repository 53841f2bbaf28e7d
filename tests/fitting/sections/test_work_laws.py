"""Laws of kinds, of families and of all layers, from rows whose truth is known."""

from __future__ import annotations

import math

import pytest
from tests.helpers.rows import as_samples, constant

from calib.fitting.parameters.file import WorkModel
from calib.fitting.parameters.work import ANY_KIND, price_of, work_of
from calib.fitting.sections.compute import layer_times
from calib.fitting.sections.work_laws import work_models
from calib.foundation.layers import LayerShape
from calib.foundation.operators import Operator
from calib.microbench.cases import LayerCase

CALL, PER_BYTE = 4e-6, 2e-10
SIZES = (2**14, 2**17)
ARITHMETIC = ("neg", "abs", "square", "clamp")
FUNCTIONS = ("silu", "gelu", "erf", "tanh")


def passing(name: str, items: int, is_view: bool = False) -> LayerCase:
    operator = Operator(name=f"aten.{name}.default", arguments='[{"input": 0}]', is_view=is_view)
    shape = LayerShape(
        kind="operator", input_shapes=((items,),), output_shape=(items,), operator=operator
    )
    return LayerCase(ranks=2, layer=shape, batch=8)


def seconds(case: LayerCase, dearer: float) -> float:
    """A call, and x and y once."""
    return CALL + dearer * PER_BYTE * 8 * case.batch * case.layer.output_items


def fitted(dearer: dict[str, float], sizes: tuple[int, ...] = SIZES) -> dict[str, WorkModel]:
    """Laws of the forward by kind."""
    cases = [(passing(name, items), d) for name, d in dearer.items() for items in sizes]
    samples = [row for case, d in cases for row in constant(case, "forward", seconds(case, d))]
    by_id = {case.id: case for case, _ in cases}
    models = work_models(layer_times(as_samples(samples), by_id), by_id)
    return {model.kind: model for model in models}


def off(law: WorkModel, case: LayerCase, dearer: float) -> float:
    """By what factor the law is off, whichever way."""
    ratio = price_of(law, work_of(case.layer, case.batch)).seconds / seconds(case, dearer)
    return math.exp(abs(math.log(ratio)))


def test_an_operator_is_a_kind_by_its_name() -> None:
    laws = fitted({"silu": 1.0, "gelu": 1.0}, (2**10, 2**12, 2**14, 2**16))
    assert set(laws) == {"silu", "gelu", ANY_KIND}
    assert laws["silu"].call_s == pytest.approx(CALL, rel=1e-6)
    assert (laws["silu"].n_layers, laws["silu"].n_kinds) == (4, 1)
    assert (laws[ANY_KIND].n_layers, laws[ANY_KIND].n_kinds) == (8, 2)


def test_a_family_knows_its_kinds_better_than_the_law_of_all() -> None:
    """Functions take ten times as long as sums: each family is exact, the law of all is between."""
    laws = fitted(dict.fromkeys(ARITHMETIC, 1.0) | dict.fromkeys(FUNCTIONS, 10.0))
    for family, dearer in (("arithmetic", 1.0), ("functions", 10.0)):
        law = laws[family]
        assert (law.n_kinds, law.n_layers) == (4, 8)
        assert law.error_factor == pytest.approx(1.0, abs=0.01)
        assert off(law, passing("mish", 2**16), dearer) < 1.01
    # two layers of equal work and another kind are not one
    assert laws[ANY_KIND].n_kinds == 8
    assert laws[ANY_KIND].error_factor > 3


def test_the_law_of_all_holds_for_kinds_that_it_never_saw() -> None:
    """Twelve kinds, dearer by up to 4: each is within the error factor of the law of the others."""
    dearer = {f"kind{i}": 4.0 ** (i / 11) for i in range(12)}
    whole = fitted(dearer)[ANY_KIND]
    for name, times in dearer.items():
        law = fitted({other: d for other, d in dearer.items() if other != name})[ANY_KIND]
        assert off(law, passing(name, SIZES[1]), times) <= whole.error_factor * 1.05
    assert 1.5 < whole.error_factor < 4.0


def test_a_kind_of_few_layers_is_dearer_than_the_law_of_all() -> None:
    """One of nine kinds takes five times as long, measured in two sizes: a third follows."""
    laws = fitted(dict.fromkeys((*ARITHMETIC, *FUNCTIONS), 1.0) | {"cumsum": 5.0})
    new = passing("cumsum", 2**20)
    assert off(laws[ANY_KIND], new, 5.0) > 3
    assert off(laws["cumsum"], new, 5.0) < 1.05
    assert laws["cumsum"].error_factor < 1.1 < laws[ANY_KIND].error_factor
    assert laws["cumsum"].n_layers == 2
    assert laws["cumsum"].intervals["call_s"] == laws[ANY_KIND].intervals["call_s"]


def test_a_cheaper_kind_has_a_cheaper_call() -> None:
    laws = fitted(dict.fromkeys((*ARITHMETIC, *FUNCTIONS), 1.0) | {"cumsum": 0.1})
    plain, cheap = laws[ANY_KIND], laws["cumsum"]
    assert cheap.call_s < plain.call_s
    assert cheap.call_s / plain.call_s == pytest.approx(cheap.s_per_byte / plain.s_per_byte)


def test_kinds_of_few_kinds_are_checked_on_layers() -> None:
    """Of three kinds none can be spared: layers are left out, and a kind of one has the law of all."""
    laws = fitted({"neg": 1.0, "abs": 1.0, "square": 1.0})
    assert set(laws) == {ANY_KIND}
    assert laws[ANY_KIND].error_factor == pytest.approx(1.0, abs=0.01)


def test_a_view_has_no_forward_to_learn_from() -> None:
    cases = [passing("chunk", items, is_view=True) for items in SIZES]
    cases += [passing("neg", items) for items in SIZES]
    samples = [
        row
        for case in cases
        for way in ("forward", "backward")
        for row in constant(case, way, 1e-5)
    ]
    by_id = {case.id: case for case in cases}
    models = work_models(layer_times(as_samples(samples), by_id), by_id)
    assert {m.direction: m.n_layers for m in models} == {"forward": 2, "backward": 4}
    assert work_of(cases[0].layer, 8).nbytes == 0
    assert work_of(cases[0].layer, 8, "backward").nbytes == 8 * 8 * SIZES[0]
