"""The work of a layer counted by hand, and the laws of parameters.json in plain arithmetic."""

from __future__ import annotations

import math
from typing import Any

import pytest

from calib.fitting.parameters.file import WorkModel
from calib.fitting.parameters.work import (
    BORROWED_FACTOR,
    FRESH_OVER_BYTES,
    LayerWork,
    Work,
    correction,
    decades_outside,
    likeness,
    no_fresh,
    price_of,
    work_of,
)
from calib.foundation.execution import DTYPES
from calib.foundation.layers import LayerShape

CONV = LayerShape(
    kind="conv",
    input_shapes=((3, 9, 9),),
    output_shape=(5, 4, 4),
    parameter_shapes=((5, 3, 3, 3), (5,)),
    attributes={"kernel": (3, 3), "stride": (2, 2), "padding": (0, 0), "groups": 1},
)
ADD = LayerShape(kind="add", input_shapes=((10, 7), (10, 7)), output_shape=(10, 7))


def law(**changes: Any) -> WorkModel:
    content = {
        "kind": "conv",
        "direction": "forward",
        "active_ranks": 1,
        "call_s": 1e-6,
        "s_per_flop": 3e-9,
        "s_per_byte": 2e-9,
        "error_factor": 1.5,
        "max_flops": 1e4,
        "max_bytes": 1e4,
        "n_layers": 9,
    }
    return WorkModel.model_validate(content | changes)


def test_the_work_of_a_convolution() -> None:
    """Batch 2: 16 positions x 27 items a patch; x 243, y 80, w 135 + 5 items."""
    work = work_of(CONV, 2)
    assert work.flops == 2 * 2 * 80 * 27
    assert work.nbytes == 4 * (2 * (243 + 80) + 140)
    assert work.weight_bytes == 4 * 140
    assert work.patch_bytes == 4 * 2 * 16 * 27
    assert work.fresh_bytes == 0.0
    # each input is in the patches of one group
    depthwise = CONV.model_copy(
        update={
            "output_shape": (3, 4, 4),
            "parameter_shapes": ((3, 1, 3, 3), (3,)),
            "attributes": CONV.attributes | {"groups": 3},
        }
    )
    assert work_of(depthwise, 2).patch_bytes == work.patch_bytes
    assert work_of(depthwise, 2).flops == 2 * 2 * 48 * 9
    # of other kinds the patches are the inputs
    assert work_of(ADD, 2).patch_bytes == 4 * 2 * 140


@pytest.mark.parametrize(
    "shape",
    [
        CONV,
        ADD,
        LayerShape(
            kind="embedding",
            input_shapes=((900,),),
            output_shape=(900, 8),
            parameter_shapes=((100, 8),),
        ),
        LayerShape(
            kind="linear",
            input_shapes=((5000,),),
            output_shape=(2000,),
            parameter_shapes=((2000, 5000), (2000,)),
        ),
        LayerShape(kind="cross_entropy", input_shapes=((4,),), output_shape=()),
    ],
)
@pytest.mark.parametrize("batch", [1, 7, 10**5])
def test_the_work_of_any_batch_is_what_the_shape_says(shape: LayerShape, batch: int) -> None:
    for direction in ("forward", "backward"):
        work = LayerWork(shape).at(batch, direction)
        assert work.flops == shape.forward_flops(batch)
        assert work.nbytes == shape.moved_bytes(batch)
        assert work.weight_bytes == 4 * shape.parameter_items
    assert LayerWork(shape).output_bytes == 4 * shape.output_items


def test_items_of_an_execution() -> None:
    """Half the bytes of float32; under autocast the weights, and their gradients, stay as they are."""
    full, half, mixed = (
        work_of(CONV, 2, items=DTYPES[name]) for name in ("float32", "float16", "bfloat16-mixed")
    )
    assert work_of(CONV, 2) == full
    assert half == (full.flops, *(of / 2 for of in full[1:]))
    assert (mixed.flops, mixed.patch_bytes) == (half.flops, half.patch_bytes)
    assert mixed.weight_bytes == full.weight_bytes
    assert mixed.nbytes == 2 * 2 * (243 + 80) + 4 * 140
    large = FRESH_OVER_BYTES // (2 * 70) + 1
    assert work_of(ADD, large - 1, items=DTYPES["float16"]).fresh_bytes == 0.0
    assert work_of(ADD, large, items=DTYPES["float16"]).fresh_bytes == 2.0 * 70 * large


def test_fresh_pages_are_of_what_the_pass_writes() -> None:
    """An add of 10 x 7 items: up to 2^25 / 280 samples a tensor is not over 32 MiB."""
    large = FRESH_OVER_BYTES // (4 * 70) + 1
    size = 4.0 * 70 * large
    assert work_of(ADD, large - 1).fresh_bytes == 0.0
    assert work_of(ADD, large).fresh_bytes == size
    assert work_of(ADD, large, "backward").fresh_bytes == 2 * size  # two gradients
    assert work_of(ADD, large, "backward", needs_input_grad=False).fresh_bytes == 0.0


def test_fresh_pages_of_large_weights_are_those_of_their_gradient() -> None:
    weights = 4.0 * 4096 * 4096
    linear = LayerShape(
        kind="linear",
        input_shapes=((4096,),),
        output_shape=(4096,),
        parameter_shapes=((4096, 4096), (4096,)),
    )
    fresh = {
        direction: work_of(linear, 1, direction).fresh_bytes
        for direction in ("forward", "backward", "backward_data", "backward_weight")
    }
    assert fresh == {
        "forward": 0.0,
        "backward": weights,
        "backward_data": 0.0,
        "backward_weight": weights,
    }


@pytest.mark.parametrize(
    ("form", "both"), [("sum", 3.0 + 4.0), ("norm2", 5.0), ("max", 4.0)]
)  # operations take 3 us, moves 4
def test_the_forms(form: str, both: float) -> None:
    work = Work(flops=1000.0, nbytes=1000.0, weight_bytes=100.0, patch_bytes=500.0)
    found = law(form=form, s_per_weight_byte=5e-9, s_per_patch_byte=3e-9)
    assert price_of(found, work).seconds == pytest.approx(1e-6 + both * 1e-6)


def test_fresh_pages_add_up_whatever_the_form() -> None:
    work = Work(flops=1000.0, nbytes=1000.0, weight_bytes=0.0, patch_bytes=0.0, fresh_bytes=200.0)
    found = law(form="max", s_per_fresh_byte=1e-8)
    assert price_of(found, work).seconds == pytest.approx(1e-6 + 3e-6 + 2e-6)


def test_a_law_of_few_fields() -> None:
    """The required ones alone: a sum of three terms, the factor once more per decade."""
    work = Work(flops=1e6, nbytes=100.0, weight_bytes=50.0, patch_bytes=60.0, fresh_bytes=10.0)
    assert price_of(law(), work).seconds == pytest.approx(1e-6 + 3e-3 + 200e-9)
    assert price_of(law(), work)[1:] == pytest.approx((1.5**3, 2.0))
    assert price_of(law(error_factor=5.0), work)[1] == pytest.approx(5.0 * 4.0)


def test_neighbours_correct_the_law_near_them() -> None:
    """One neighbour: its residual / 2 at its place, exp(-1/2) / (1 + exp(-1/2)) of it one reach away."""
    work = Work(flops=1000.0, nbytes=1000.0, weight_bytes=0.0, patch_bytes=500.0)
    here = likeness(work.flops, work.nbytes, work.patch_bytes)
    assert here == pytest.approx((0.0, math.log(0.5), 0.5 * math.log(1000.0)))
    plain = price_of(law(), work).seconds
    near = law(neighbours=[(*here, 0.8)])
    assert price_of(near, work).seconds == pytest.approx(plain * math.exp(0.4))
    fading = math.exp(-0.5)
    assert correction([(1.0, 2.0, 3.0, 0.8)], 0.25, (1.25, 2.0, 3.0)) == pytest.approx(
        0.8 * fading / (1 + fading)
    )
    assert correction([(1.0, 2.0, 3.0, 0.8)], 0.25, (9.0, 2.0, 3.0)) == pytest.approx(
        0.0, abs=1e-30
    )


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (50.0, 10.0, 100.0, 0.0),
        (1e4, 10.0, 100.0, 2.0),
        (1.0, 10.0, 100.0, 1.0),
        (0.0, 10.0, 100.0, 0.0),
        (1e-9, 0.0, 100.0, 0.0),
        (5.0, 0.0, 0.0, 0.0),
    ],
)
def test_decades_outside(value: float, low: float, high: float, expected: float) -> None:
    assert decades_outside(value, low, high) == pytest.approx(expected)


def test_the_factor_grows_as_the_law_says() -> None:
    found = law(growth_per_decade=3.0, min_flops=100.0, min_bytes=100.0)
    inside = Work(flops=1e3, nbytes=1e3, weight_bytes=0.0, patch_bytes=0.0)
    assert price_of(found, inside)[1:] == pytest.approx((1.5, 0.0))
    small = Work(flops=1.0, nbytes=50.0, weight_bytes=0.0, patch_bytes=0.0)
    assert price_of(found, small)[1:] == pytest.approx((1.5 * 3.0**2, 2.0))


def test_a_price_of_another_kind_is_trusted_less() -> None:
    """Half of the time is of fresh pages: the root of the factor."""
    work = Work(flops=1000.0, nbytes=0.0, weight_bytes=0.0, patch_bytes=0.0, fresh_bytes=400.0)
    borrowed = law(s_per_fresh_byte=1e-8)
    assert price_of(borrowed, work)[1] == pytest.approx(1.5 * math.sqrt(BORROWED_FACTOR))
    own = law(s_per_fresh_byte=1e-8, max_fresh_bytes=100.0)
    assert price_of(own, work)[1] == pytest.approx(1.5)


def test_no_price_of_fresh_pages_is_said() -> None:
    assert no_fresh(law())
    assert not no_fresh(law(s_per_fresh_byte=1e-9))
    assert not no_fresh(law(max_fresh_bytes=100.0))  # they were there, and cost nothing
