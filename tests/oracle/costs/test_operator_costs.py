"""Operators that were not measured: whose law prices them, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.oracle.handmade import machine, rank_of, work_model

from calib.fitting.parameters.work import price_of, work_of
from calib.foundation.errors import MissingParameter
from calib.foundation.layers import LayerShape
from calib.foundation.operators import Operator
from calib.oracle.cost import NOTHING, Cost
from calib.oracle.costs.layers import BY_OTHERS, FROM_LAW, LayerCosts, merged
from calib.oracle.model.layer import Layer
from calib.oracle.sources import LAYER_LAWS

BOTH = ("forward", "backward")
X = '[{"input": 0}]'


def operator(name: str, **about: Any) -> Layer:
    called = Operator(name=f"aten.{name}.default", arguments=X, **about)
    shape = LayerShape(kind="operator", input_shapes=((8,),), output_shape=(8,), operator=called)
    return Layer(name=name, shape=shape, inputs=("fc",), needs_input_grad=True)


def cost_of(kinds: tuple[str, ...], layer: Layer, direction: Any = "forward") -> Cost:
    """With laws of these kinds alone."""
    laws = [
        work_model(kind, d, 2).model_copy(update={"call_s": 1e-6 * (1 + at)})
        for at, kind in enumerate(kinds)
        for d in BOTH
    ]
    return LayerCosts(machine(work=laws), 2).total(rank_of([layer]), "all", 4, direction)


@pytest.mark.parametrize(
    ("kinds", "whose"),
    [
        (("any", "functions", "silu"), "silu"),
        (("any", "functions", "gelu", "arithmetic"), "functions"),
        (("any", "gelu", "arithmetic"), "any"),
    ],
)
def test_the_nearest_law_prices_it(kinds: tuple[str, ...], whose: str) -> None:
    layer = operator("silu")
    law = work_model(whose, "forward", 2).model_copy(
        update={"call_s": 1e-6 * (1 + kinds.index(whose))}
    )
    cost = cost_of(kinds, layer)
    expected = price_of(law, work_of(layer.shape, 4)).seconds
    assert cost.seconds == pytest.approx(expected)
    of = "" if whose == "silu" else " for silu"
    assert [source for source, _, _ in cost.errors] == [f"{LAYER_LAWS}: {whose} forward law{of}"]
    assert cost.notes == (FROM_LAW, *([f"{BY_OTHERS}silu"] if of else []))


def test_a_product_needs_a_law_that_saw_one() -> None:
    product = operator("bmm", flops=1e6)
    with pytest.raises(MissingParameter, match=r"no forward time of aten\.bmm\.default layers"):
        cost_of(("any", "silu"), product)
    assert cost_of(("any", "linear"), product).seconds > 0
    named = [source for source, *_ in cost_of(("any", "products"), product).errors]
    assert named == [f"{LAYER_LAWS}: products forward law for bmm"]


def test_no_law_at_all_names_the_operator() -> None:
    with pytest.raises(MissingParameter, match=r"aten\.silu\.default layers \(such as 8 -> 8\)"):
        cost_of(("gelu",), operator("silu"))


def test_errors_of_different_operators_are_independent() -> None:
    """The law of all is off by the operator: two by it add up in quadrature, equal ones do not."""
    laws = [work_model("any", d, 2) for d in BOTH]
    costs = LayerCosts(machine(work=laws), 2)

    def width(*layers: Layer) -> float:
        cost = costs.total(rank_of(list(layers)), "all", 4, "forward")
        return cost.high - cost.seconds

    one = width(operator("silu"))
    assert width(operator("silu"), operator("gelu")) == pytest.approx(2**0.5 * one)
    twice = operator("silu").model_copy(update={"name": "again"})
    assert width(operator("silu"), twice) == pytest.approx(2 * one)


def test_indices_have_no_backward() -> None:
    layer = operator("argmax", types=("", "int64"))
    assert cost_of(("any",), layer, "backward") == NOTHING
    assert cost_of(("any",), layer).seconds > 0


def test_a_view_takes_a_call() -> None:
    layer = operator("chunk", is_view=True)
    law = work_model("any", "forward", 2)
    cost = cost_of(("any",), layer)
    assert cost.seconds == pytest.approx(1e-6) and cost.notes == (FROM_LAW,)
    assert law.s_per_byte > 0


def test_kinds_without_a_law_are_one_note() -> None:
    notes = ["first", *(f"{BY_OTHERS}{name}" for name in "hgfedcba"), "last"]
    assert merged(notes) == ["first", "last", f"{BY_OTHERS}a, b, c, d, e, f and 2 more"]
    assert merged(["first", "last"]) == ["first", "last"]
