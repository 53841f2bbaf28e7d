"""The two layers that say what a device can do at most: a matrix product and a sum of two arrays."""

from __future__ import annotations

from typing import Any

from calib.foundation.layers import LayerShape
from calib.microbench.cases import LayerCase


def square_product(side: int, **more: Any) -> LayerCase:
    """The product of two matrices of `side` rows and columns: a linear layer without a bias.

    `more` are other fields of the case. Of its passes the forward is the product.
    """
    shape = LayerShape(
        kind="linear",
        input_shapes=((side,),),
        output_shape=(side,),
        parameter_shapes=((side, side),),
    )
    return LayerCase(layer=shape, batch=side, needs_input_grad=False, **more)


def sum_of_arrays(items: int, **more: Any) -> LayerCase:
    """c = a + b, three arrays of `items` each: STREAM's "add" (McCalpin, 1995)."""
    shape = LayerShape(kind="add", input_shapes=((items,), (items,)), output_shape=(items,))
    return LayerCase(layer=shape, batch=1, needs_input_grad=False, **more)


def is_square_product(case: LayerCase) -> bool:
    """Whether `square_product` makes this case."""
    return case.layer.kind == "linear" and _same(case, square_product(case.batch, **_other(case)))


def is_sum_of_arrays(case: LayerCase) -> bool:
    """Whether `sum_of_arrays` makes this case."""
    items = case.layer.output_items
    return case.layer.kind == "add" and _same(case, sum_of_arrays(items, **_other(case)))


def is_for_peaks(case: LayerCase) -> bool:
    """Whether a case is one of the two."""
    return is_square_product(case) or is_sum_of_arrays(case)


def _other(case: LayerCase) -> dict[str, Any]:
    return {"ranks": case.ranks, "execution": case.execution, "device": case.device}


def _same(one: LayerCase, other: LayerCase) -> bool:
    return one.id == other.id
