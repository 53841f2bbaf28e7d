"""Work of a layer, and its time by the work models of parameters.json. Plain arithmetic.

The fit (fitting/sections/compute.py) and the oracle (oracle/costs/machine.py) share it, so that both
mean the same.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calib.foundation.layers import ITEM_BYTES, LayerShape

if TYPE_CHECKING:
    from calib.fitting.parameters.file import WorkModel

from calib.fitting.parameters.file import WorkModel

# the law of layers of kinds that have none of their own
ANY_KIND = "any"
# glibc gives a buffer over this (DEFAULT_MMAP_THRESHOLD_MAX) back to the system when it is freed, so
# that the next one is of fresh pages, each of which costs a fault when it is first written
FRESH_OVER_BYTES = 32 * 2**20
# how much of the distance between two layers is their size, and how much what they are like
SIZE_SHARE = 0.5
# operations and moves of bytes, together (seconds_of)
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


@dataclass(frozen=True)
class Work:
    """One pass of one layer. Bytes are those of the forward, `fresh_bytes` those of the pass itself.

    `nbytes`: inputs, output and weights, each once. `patch_bytes`: the inputs of every output
    position (a convolution written as a matrix product, im2col); else the inputs. `fresh_bytes`:
    results in buffers of over FRESH_OVER_BYTES.
    """

    flops: float
    nbytes: float
    weight_bytes: float
    patch_bytes: float
    fresh_bytes: float = 0.0

    @property
    def features(self) -> tuple[float, float, float, float, float]:
        """A row of X of fitting/estimators/layers/roofline.py."""
        return self.flops, self.nbytes, self.weight_bytes, self.patch_bytes, self.fresh_bytes


def work_of(
    shape: LayerShape, batch: int, direction: str = "forward", needs_input_grad: bool = True
) -> Work:
    """The work of a "forward", "backward", "backward_data" or "backward_weight" at `batch` samples."""
    inputs = [float(ITEM_BYTES * batch * math.prod(x)) for x in shape.input_shapes]
    weights = [float(ITEM_BYTES * math.prod(w)) for w in shape.parameter_shapes]
    patches = (
        float(ITEM_BYTES * batch * patch_items(shape)) if shape.kind == "conv" else sum(inputs)
    )
    if direction == "forward":
        results = [float(ITEM_BYTES * batch * shape.output_items)]
    else:
        has_dx = direction != "backward_weight" and needs_input_grad and shape.kind != "embedding"
        results = inputs if has_dx else []
        results = results if direction == "backward_data" else results + weights
    return Work(
        flops=shape.forward_flops(batch),
        nbytes=shape.moved_bytes(batch, ITEM_BYTES),
        weight_bytes=sum(weights),
        patch_bytes=patches,
        fresh_bytes=sum([size for size in results if size > FRESH_OVER_BYTES]),
    )


def patch_items(shape: LayerShape) -> int:
    """The inputs of every output position of a convolution, of one sample."""
    return math.prod(shape.output_shape[1:]) * math.prod(shape.parameter_shapes[0][1:])


def likeness(flops: float, nbytes: float, patch_bytes: float) -> tuple[float, float, float]:
    """Where a layer lies among others: logs of intensity, of reuse of the inputs, and of size."""
    nbytes = max(nbytes, 1.0)
    return (
        math.log(max(flops, 1e-3 * nbytes) / nbytes),
        math.log(max(patch_bytes, 1e-3 * nbytes) / nbytes),
        SIZE_SHARE * math.log(nbytes),
    )


# (seconds, error factor, decades outside of what was fitted) of the features of a Work
PricedWork = Callable[[float, float, float, float, float], tuple[float, float, float]]


def priced(law: WorkModel) -> PricedWork:
    """The law as a function of Work.features, for who asks thousands of times.

    Seconds: call + fresh bytes + the `form` of operations and bytes, and neighbours. Roofline (Williams,
    Waterman and Patterson, CACM 52, 2009): where both go on side by side the slower one counts ("max"),
    where they take turns their sum; "norm2" lies between.
    """
    form, call_s, s_per_flop, s_per_byte = (
        FORMS[law.form],
        law.call_s,
        law.s_per_flop,
        law.s_per_byte,
    )
    s_per_weight_byte, s_per_patch_byte = law.s_per_weight_byte, law.s_per_patch_byte
    s_per_fresh_byte, borrows = law.s_per_fresh_byte, law.max_fresh_bytes == 0
    neighbours, reach, error_factor = law.neighbours, law.reach, float(law.error_factor)
    growth = law.growth_per_decade or min(law.error_factor, 2.0)
    # an end of 0 is not known
    flops_range = law.min_flops, law.max_flops or math.inf
    bytes_range = law.min_bytes, law.max_bytes or math.inf
    (least_flops, most_flops), (least_bytes, most_bytes) = flops_range, bytes_range

    def ask(
        flops: float, nbytes: float, weight_bytes: float, patch_bytes: float, fresh_bytes: float
    ) -> tuple[float, float, float]:
        moves = (
            s_per_byte * nbytes + s_per_weight_byte * weight_bytes + s_per_patch_byte * patch_bytes
        )
        fresh_s = s_per_fresh_byte * fresh_bytes
        seconds = call_s + form(s_per_flop * flops, moves) + fresh_s
        if neighbours:
            seconds *= math.exp(correction(neighbours, reach, likeness(flops, nbytes, patch_bytes)))
        factor, outside = error_factor, 0.0
        if not (least_flops <= flops <= most_flops and least_bytes <= nbytes <= most_bytes):
            outside = max(
                decades_outside(flops, *flops_range), decades_outside(nbytes, *bytes_range)
            )
            factor *= growth**outside
        if borrows and fresh_s:
            factor *= BORROWED_FACTOR ** (fresh_s / seconds)
        return seconds, factor, outside

    return ask


def seconds_of(law: WorkModel, work: Work) -> float:
    """Seconds of the law (see `priced`)."""
    return priced(law)(*work.features)[0]


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
