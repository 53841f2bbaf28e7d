"""Work of a layer, and its time by the work models of parameters.json. Plain arithmetic.

The fit (fitting/sections/compute.py) and the oracle (oracle/costs/layers.py) share it, so that both
mean the same.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

from calib.fitting.parameters.file import WorkModel
from calib.foundation.execution import DTYPES, USUAL, ItemType
from calib.foundation.layers import LayerShape

# the law of layers of kinds that have none of their own
ANY_KIND = "any"
# glibc gives a buffer over this (DEFAULT_MMAP_THRESHOLD_MAX) back to the system when it is freed, so
# that the next one is of fresh pages, each of which costs a fault when it is first written
FRESH_OVER_BYTES = 32 * 2**20
# how much of the distance between two layers is their size, and how much what they are like
SIZE_SHARE = 0.5
# operations and moves of bytes, together (price_of)
FORMS: dict[str, Callable[[float, float], float]] = {
    "sum": operator.add,
    "norm2": math.hypot,
    "max": max,
}
# a law that saw no fresh pages may be short by this where there are some: the faults of a large ReLU
# take ten times as long as the ReLU (measured on a virtual machine)
UNPRICED_FACTOR = 10.0
# as far as a time is of fresh pages whose price is that of another kind, it may be off by this more
# (the price of a fault moved by 2.7 between two hours of that machine)
BORROWED_FACTOR = 3.0


class Work(NamedTuple):
    """One pass of one layer: a row of X of fitting/estimators/layers/roofline.py.

    Bytes are those of the forward, `fresh_bytes` those of the pass itself. `nbytes`: inputs, output
    and weights, each once. `patch_bytes`: the inputs of every output position (a convolution written
    as a matrix product, im2col); else the inputs. `fresh_bytes`: results in buffers of over
    FRESH_OVER_BYTES.
    """

    flops: float
    nbytes: float
    weight_bytes: float
    patch_bytes: float
    fresh_bytes: float = 0.0


class LayerWork:
    """The work of a layer at any batch: linear in it but for the weights and the fresh pages.

    `items`: bytes of activations, and of weights and their gradients.
    """

    def __init__(
        self, shape: LayerShape, needs_input_grad: bool = True, items: ItemType = DTYPES[USUAL]
    ) -> None:
        each, of_weights = items.activation_bytes, items.weight_bytes
        inputs = [float(each * math.prod(of)) for of in shape.input_shapes]
        outputs, gradients = [float(each * shape.output_items)], inputs
        if shape.operator is not None:
            inputs, outputs = _of_operator(shape, each)
            gradients = [float(each * math.prod(of)) for of in shape.gradient_inputs]
        weights = [float(of_weights * math.prod(of)) for of in shape.parameter_shapes]
        self.output_bytes = sum(outputs)
        self._is_view = shape.is_view
        self._flops, self._weight_bytes = shape.forward_flops(1), sum(weights)
        self._patch_bytes = sum(inputs)
        if shape.kind == "conv":
            positions, patch = shape.output_shape[1:], shape.parameter_shapes[0][2:]
            self._patch_bytes = float(
                each * math.prod(positions) * shape.input_shapes[0][0] * math.prod(patch)
            )
        elif shape.is_product and "conv" in shape.name and shape.parameter_shapes:
            self._patch_bytes = each * self._flops / (2.0 * shape.parameter_shapes[0][0])
        self._constant_bytes = shape.moved_bytes(0, of_weights)
        self._bytes_per_sample = shape.moved_bytes(1, each) - shape.moved_bytes(0, each)
        # what a pass writes: the buffers of one sample, and fresh bytes of dL/dw
        if not needs_input_grad or shape.kind == "embedding":
            gradients = []
        large = sum(size for size in weights if size > FRESH_OVER_BYTES)
        self._written: dict[str, tuple[list[float], float]] = {
            "forward": (outputs, 0.0),
            "backward": (gradients, large),
            "backward_data": (gradients, 0.0),
            "backward_weight": ([], large),
        }

    def at(self, batch: int, direction: str) -> Work:
        """A "forward", "backward", "backward_data" or "backward_weight" at `batch` samples."""
        if self._is_view and direction == "forward":  # a call, and no kernel
            return Work(0.0, 0.0, 0.0, 0.0)
        written, fresh = self._written[direction]
        for size in written:
            if size * batch > FRESH_OVER_BYTES:
                fresh += size * batch
        return Work(
            self._flops * batch,
            self._bytes_per_sample * batch + self._constant_bytes,
            self._weight_bytes,
            self._patch_bytes * batch,
            fresh,
        )


def _of_operator(shape: LayerShape, item_bytes: int) -> tuple[list[float], list[float]]:
    """Bytes per sample of the inputs and of the outputs of an operator."""
    sizes = zip(shape.operand_bytes(1, item_bytes), shape.operand_bytes(0, item_bytes), strict=True)
    each = [float(one - none) for one, none in sizes]
    return each[: len(shape.input_shapes)], each[len(shape.input_shapes) :]


def work_of(
    shape: LayerShape,
    batch: int,
    direction: str = "forward",
    needs_input_grad: bool = True,
    items: ItemType = DTYPES[USUAL],
) -> Work:
    """The work of one pass at `batch` samples (see LayerWork)."""
    return LayerWork(shape, needs_input_grad, items).at(batch, direction)


def likeness(flops: float, nbytes: float, patch_bytes: float) -> tuple[float, float, float]:
    """Where a layer lies among others: logs of intensity, of reuse of the inputs, and of size."""
    nbytes = max(nbytes, 1.0)
    return (
        math.log(max(flops, 1e-3 * nbytes) / nbytes),
        math.log(max(patch_bytes, 1e-3 * nbytes) / nbytes),
        SIZE_SHARE * math.log(nbytes),
    )


class WorkPrice(NamedTuple):
    """What a law says of a Work, and how far the work lies outside of what was fitted."""

    seconds: float
    error_factor: float
    decades_outside: float


def seconds_of(law: WorkModel, work: Work) -> float:
    """A pass without what its neighbours say: call + fresh bytes + the `form` of operations and bytes.

    Roofline (Williams, Waterman and Patterson, CACM 52, 2009): where operations and moves of bytes
    overlap the slower one counts ("max"), where they take turns their sum; "norm2" lies between. More
    work never takes less.
    """
    flops, nbytes, weight_bytes, patch_bytes, fresh_bytes = work
    moves = (
        law.s_per_byte * nbytes
        + law.s_per_weight_byte * weight_bytes
        + law.s_per_patch_byte * patch_bytes
    )
    rest = law.call_s + law.s_per_fresh_byte * fresh_bytes
    return rest + FORMS[law.form](law.s_per_flop * flops, moves)


def price_of(law: WorkModel, work: Work) -> WorkPrice:
    """Price a pass: `seconds_of` it, corrected by the measured layers that are most like it."""
    seconds = seconds_of(law, work)
    if law.neighbours:
        place = likeness(work.flops, work.nbytes, work.patch_bytes)
        seconds *= math.exp(correction(law.neighbours, law.reach, place))
    outside = max(
        decades_outside(work.flops, law.min_flops, law.max_flops),
        decades_outside(work.nbytes, law.min_bytes, law.max_bytes),
    )
    factor = law.error_factor
    if outside:
        factor *= (law.growth_per_decade or min(law.error_factor, 2.0)) ** outside
    fresh_s = law.s_per_fresh_byte * work.fresh_bytes
    if fresh_s and law.max_fresh_bytes == 0:  # the price is another kind's
        factor *= BORROWED_FACTOR ** (fresh_s / seconds)
    return WorkPrice(seconds, factor, outside)


def correction(
    neighbours: Sequence[Sequence[float]], reach: float, place: Sequence[float]
) -> float:
    """Log factor of the measured layers near `place`: (*place, log residual) each.

    Weights fall with the distance as exp(-d^2 / 2); one more, of no correction, lets it fade.
    """
    x, y, z = place  # written out: the oracle asks for thousands
    scale, exp = -0.5 / reach**2, math.exp
    total, weights = 0.0, 1.0
    for a, b, c, residual in neighbours:
        weight = exp(scale * ((d := a - x) * d + (e := b - y) * e + (f := c - z) * f))
        total += weight * residual
        weights += weight
    return total / weights


def decades_outside(value: float, low: float, high: float) -> float:
    """How many powers of ten `value` lies outside of low to high; an end of 0 is not known."""
    if high > 0 and value > high:
        return math.log10(value / high)
    if low > 0 and 0 < value < low:
        return math.log10(low / value)
    return 0.0


def no_fresh(law: WorkModel) -> bool:
    """Whether nothing that the law was fitted to wrote fresh pages, nor gave it a price of them."""
    return law.s_per_fresh_byte == 0 and law.max_fresh_bytes == 0
