"""What each kind of layer allocates, keeps for its backward and frees in PyTorch's autograd.

Source: PyTorch's tools/autograd/derivatives.yaml (whatever a formula names is saved) and the CPU kernels
it calls; tests/oracle/memory/test_live_layers.py measures each kind. All in float32. In short:

    convolution, linear     keep x; make dL/dx, dL/dw and dL/db in one operation
    batch and layer norm    keep x, and the mean and 1 / deviation of each channel (row)
    ReLU, softmax           keep y
    max pooling             keeps x, and for every item of y an index of 8 bytes
    average pooling         keeps x; to one value per channel it is a mean, which keeps nothing;
                            to the size of the input it is not run
    dropout                 keeps its mask, which is as large as y (float32 on a CPU)
    add, concat, flatten    keep nothing; their gradients are dL/dy itself or views of it
    embedding               makes dL/dw as large as the table
    cross entropy           makes and keeps the log-probabilities; mean squared error keeps x
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from calib.foundation.layers import INDEX_BYTES, ITEM_BYTES, LayerShape, Shape
from calib.oracle.memory.liveness import Back, ByteLine, HeldTensor, Ledger, Tape

SCALAR = ByteLine(0.0, ITEM_BYTES)


def line(shape: Shape, share: float = 1.0) -> ByteLine:
    """Bytes of a float32 tensor (samples, *shape), or of a `share` of its samples."""
    return ByteLine(share * ITEM_BYTES * math.prod(shape))


def weight_bytes(shape: LayerShape) -> tuple[float, ...]:
    """Bytes of each weight and bias."""
    return tuple([float(ITEM_BYTES * math.prod(of)) for of in shape.parameter_shapes])


def run_layer(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    """The output of a layer, held once; a number for a loss."""
    return _KINDS[shape.kind](tape, shape, inputs)


class Kept(NamedTuple):
    """What a layer keeps for its backward: which inputs, its output or not, and bytes beside them."""

    inputs: tuple[bool, ...]
    output: bool
    beside: ByteLine
    is_view: bool


def kept_by(shape: LayerShape) -> Kept:
    """What a layer with gradients keeps, for all samples; a view keeps nothing of its own."""
    ledger = Ledger()
    tape = Tape(ledger)
    inputs = [tape.leaf(ledger.make(line(of)), line(of)) for of in shape.input_shapes]
    output = run_layer(tape, shape, inputs)
    is_view = any(output.tensor == value.tensor for value in inputs)
    for value in (*inputs, output):
        ledger.drop(value.tensor)
    held = [ledger.is_held(value.tensor) for value in (*inputs, output)]
    beside = ledger.live
    for value, is_held in zip((*inputs, output), held, strict=True):
        beside = beside.plus(value.size, -float(is_held))
    return Kept(tuple(held[:-1]), held[-1], beside, is_view)


def _keeps_input(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    (x,) = inputs
    back = Back((x.size,), weight_bytes(shape))
    return tape.run(inputs, line(shape.output_shape, tape.share), back, saves=[x.tensor])


def _norm(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    (x,), over = inputs, shape.attributes.get("normalized_shape")
    if isinstance(over, tuple):  # a layer norm
        statistics = line(shape.input_shapes[0][: -len(over)], tape.share)
    else:
        statistics = ByteLine(0.0, ITEM_BYTES * shape.input_shapes[0][0])
    back = Back((x.size,), weight_bytes(shape))
    return tape.run(inputs, x.size, back, saves=[x.tensor], extra=[statistics, statistics])


def _keeps_output(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    size = line(shape.output_shape, tape.share)
    return tape.run(inputs, size, Back((inputs[0].size,)), saves_output=True)


def _max_pool(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    (x,) = inputs
    indices = ByteLine(tape.share * INDEX_BYTES * shape.output_items)
    size = line(shape.output_shape, tape.share)
    return tape.run(inputs, size, Back((x.size,)), saves=[x.tensor], extra=[indices])


def _adaptive(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    if shape.is_free:
        return _view(tape, shape, inputs)
    if math.prod(shape.output_shape[1:]) > 1:
        return _keeps_input(tape, shape, inputs)
    # a mean
    return tape.run(inputs, line(shape.output_shape, tape.share), Back((inputs[0].size,)))


def _joins(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    return tape.run(inputs, line(shape.output_shape, tape.share), Back((None,) * len(inputs)))


def _view(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    return tape.run(inputs, None, Back((None,)))


def _dropout(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    if not shape.attributes["probability"]:
        return _view(tape, shape, inputs)
    size = line(shape.output_shape, tape.share)
    return tape.run(inputs, size, Back((inputs[0].size,)), extra=[size])


def _losses(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    """A loss for each output of the model; an auxiliary one is weighted and added."""
    one = _cross_entropy if shape.kind == "cross_entropy" else _squares
    losses = [one(tape, x) for x in inputs]
    while len(losses) > 1:
        auxiliary, main = losses.pop(), losses.pop()
        weighed = tape.run([auxiliary], SCALAR, Back((SCALAR,)))
        losses.append(tape.run([main, weighed], SCALAR, Back((None, None))))
        for number in (auxiliary, main, weighed):
            tape.ledger.drop(number.tensor)
    return losses[0]


def _cross_entropy(tape: Tape, x: HeldTensor) -> HeldTensor:
    logarithms = tape.run([x], x.size, Back((x.size,)), saves_output=True)
    total = [SCALAR]  # the sum of the class weights
    loss = tape.run([logarithms], SCALAR, Back((x.size,)), saves=[logarithms.tensor], extra=total)
    tape.ledger.drop(logarithms.tensor)
    return loss


def _squares(tape: Tape, x: HeldTensor) -> HeldTensor:
    # the mean reuses the memory of the squares (mse_loss_out in Loss.cpp)
    return tape.run([x], x.size, Back((x.size,)), saves=[x.tensor])


_KINDS: dict[str, Callable[[Tape, LayerShape, Sequence[HeldTensor]], HeldTensor]] = {
    "conv": _keeps_input,
    "linear": _keeps_input,
    "embedding": _keeps_input,
    "avg_pool": _keeps_input,
    "batch_norm": _norm,
    "layer_norm": _norm,
    "relu": _keeps_output,
    "softmax": _keeps_output,
    "max_pool": _max_pool,
    "adaptive_avg_pool": _adaptive,
    "add": _joins,
    "concat": _joins,
    "flatten": _view,
    "dropout": _dropout,
    "cross_entropy": _losses,
    "mse": _losses,
}
