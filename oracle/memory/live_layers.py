"""What each kind of layer allocates, keeps for its backward and frees in PyTorch's autograd.

Source: PyTorch's tools/autograd/derivatives.yaml (whatever a formula names is saved) and the CPU kernels
it calls; tests/oracle/memory/test_live_layers.py measures each kind. In short:

    convolution, linear     keep x; make dL/dx, dL/dw and dL/db in one operation (in a checkpoint
                            a linear layer's dL/db when x has gone)
    batch and layer norm    keep x, and the mean and 1 / deviation of each channel (row)
    ReLU, softmax           keep y
    max pooling             keeps x, and for every item of y an index of 8 bytes
    average pooling         keeps x; to one value per channel it is a mean, which keeps nothing;
                            to the size of the input it is not run
    dropout                 keeps its mask, which is as large as y (float32 on a CPU)
    add, concat, flatten    keep nothing; their gradients are dL/dy itself or views of it
    embedding               makes dL/dw as large as the table
    operator                what was found when the model was traced (oracle/trace/facts.py)
    cross entropy           makes and keeps the log-probabilities; mean squared error keeps x

Under autocast a convolution or linear layer casts x and its weights where they are not narrow yet, and
keeps those copies; autocast holds the copies of all weights until the forward ends. The gradients of
weights are narrow first, then cast. Norms run in the type of x, with statistics in that of the weights;
losses and 3-D pooling (of CPUs) in that of the weights. In half precision throughout everything is
narrow, statistics too (cuDNN keeps those in float32: some bytes for each channel).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from calib.foundation.execution import DTYPES, USUAL, ItemType
from calib.foundation.layers import INDEX_BYTES, ITEM_BYTES, ITEM_TYPES, LayerShape, Shape
from calib.foundation.operators import family_of
from calib.oracle.layout.item_bytes import made_bytes
from calib.oracle.memory.liveness import UNCOUNTED, Back, ByteLine, HeldTensor, Ledger, Tape

Run = Callable[[Tape, LayerShape, Sequence[HeldTensor]], HeldTensor]


def line(shape: Shape, share: float = 1.0, item_bytes: int = ITEM_BYTES) -> ByteLine:
    """Bytes of a tensor (samples, *shape), or of a `share` of its samples."""
    return ByteLine(share * item_bytes * math.prod(shape))


def weight_bytes(shape: LayerShape, item_bytes: int = ITEM_BYTES) -> tuple[float, ...]:
    """Bytes of each weight and bias."""
    return tuple([float(item_bytes * math.prod(of)) for of in shape.parameter_shapes])


def run_layer(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    """The output of a layer, held once; a number for a loss."""
    return _KINDS[shape.kind](tape, shape, inputs)


class Kept(NamedTuple):
    """What a layer keeps for its backward: which inputs, its output or not, and bytes beside them."""

    inputs: tuple[bool, ...]
    output: bool
    beside: ByteLine
    is_view: bool


def kept_by(shape: LayerShape, items: ItemType = DTYPES[USUAL]) -> Kept:
    """What a layer with gradients keeps, for all samples; a view keeps nothing of its own."""
    ledger, each = Ledger(), items.activation_bytes
    tape = Tape(ledger, items)
    sizes = [line(of, 1.0, each) for of in shape.input_shapes]
    inputs = [tape.leaf(ledger.make(size), size, each) for size in sizes]
    output = run_layer(tape, shape, inputs)
    tape.end_autocast()
    is_view = any(output.tensor == value.tensor for value in inputs)
    for value in (*inputs, output, *output.more):
        ledger.drop(value.tensor)
    held = [ledger.is_held(value.tensor) for value in (*inputs, output)]
    beside = ledger.live
    kept = {value.tensor: value.size for value in (output, *inputs)}  # a view is its input
    for tensor, size in kept.items():
        beside = beside.plus(size, -float(ledger.is_held(tensor)))
    return Kept(tuple(held[:-1]), held[-1], beside, is_view)


def cast(tape: Tape, x: HeldTensor, item_bytes: int) -> HeldTensor:
    """x in items of so many bytes, held once more: itself, or a copy whose gradient is cast back."""
    if x.item_bytes == item_bytes:
        tape.ledger.hold(x.tensor)
        return x
    times = item_bytes / x.item_bytes
    size = ByteLine(times * x.size.each, times * x.size.fixed)
    return tape.run([x], size, Back((x.size,)), item_bytes=item_bytes)


def cast_weights(tape: Tape, shape: LayerShape) -> tuple[list[int], tuple[float, ...]]:
    """Autocast's copies of weights and biases, which it holds, and their bytes; else none."""
    if not tape.items.mixed:
        return [], ()
    halves = weight_bytes(shape, tape.items.activation_bytes)
    made = [tape.ledger.make(ByteLine(0.0, nbytes)) for nbytes in halves]
    tape.cache(made)
    return made, halves


def _product(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    x = cast(tape, inputs[0], tape.items.activation_bytes)
    made, halves = cast_weights(tape, shape)
    weights = weight_bytes(shape, tape.items.weight_bytes)
    summed = len(weights) - 1 if shape.kind == "linear" else 0
    back = Back((x.size,), weights, casts=halves, summed=summed)
    y = tape.run([x], _made(tape, shape, x), back, saves=[x.tensor, *made[:1]])
    tape.ledger.drop(x.tensor)
    return y


def _embedding(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    (x,), each = inputs, tape.items.weight_bytes
    back = Back((x.size,), weight_bytes(shape, each))
    size = line(shape.output_shape, tape.share, each)
    return tape.run(inputs, size, back, saves=[x.tensor], item_bytes=each)


def _made(tape: Tape, shape: LayerShape, x: HeldTensor) -> ByteLine:
    """Bytes of the output, in items as those of x."""
    return line(shape.output_shape, tape.share, x.item_bytes)


def _keeps_input(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    (x,) = inputs
    return tape.run(inputs, _made(tape, shape, x), Back((x.size,)), saves=[x.tensor])


def _avg_pool(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    return _whole_in_3d(tape, shape, inputs, _keeps_input)


def _whole_in_3d(
    tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor], run: Run
) -> HeldTensor:
    """Pooling in three dimensions: autocast on a CPU runs it in the type of the weights."""
    if not tape.items.mixed or len(shape.output_shape) < 4:
        return run(tape, shape, inputs)
    x = cast(tape, inputs[0], tape.items.weight_bytes)
    y = run(tape, shape, [x])
    tape.ledger.drop(x.tensor)
    return y


def _norm(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    (x,), over = inputs, shape.attributes.get("normalized_shape")
    each = tape.items.weight_bytes
    if isinstance(over, tuple):  # a layer norm
        statistics = line(shape.input_shapes[0][: -len(over)], tape.share, each)
    else:
        statistics = ByteLine(0.0, each * shape.input_shapes[0][0])
    back = Back((x.size,), weight_bytes(shape, each))
    return tape.run(inputs, x.size, back, saves=[x.tensor], extra=[statistics, statistics])


def _keeps_output(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    size = _made(tape, shape, inputs[0])
    return tape.run(inputs, size, Back((inputs[0].size,)), saves_output=True)


def _max_pool(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    def run(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
        (x,) = inputs
        indices = ByteLine(tape.share * INDEX_BYTES * shape.output_items)
        size = _made(tape, shape, x)
        return tape.run(inputs, size, Back((x.size,)), saves=[x.tensor], extra=[indices])

    return _whole_in_3d(tape, shape, inputs, run)


def _adaptive(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    if shape.is_free:
        return _view(tape, shape, inputs)
    return _whole_in_3d(tape, shape, inputs, _adaptive_in_type)


def _adaptive_in_type(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    if math.prod(shape.output_shape[1:]) > 1:
        return _keeps_input(tape, shape, inputs)
    # a mean
    return tape.run(inputs, _made(tape, shape, inputs[0]), Back((inputs[0].size,)))


def _joins(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    each = max(x.item_bytes for x in inputs)
    size = line(shape.output_shape, tape.share, each)
    return tape.run(inputs, size, Back((None,) * len(inputs)), item_bytes=each)


def _view(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    return tape.run(inputs, None, Back((None,)))


def _dropout(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    if not shape.attributes["probability"]:
        return _view(tape, shape, inputs)
    size = _made(tape, shape, inputs[0])
    return tape.run(inputs, size, Back((inputs[0].size,)), extra=[size], extra_first=True)


def _operator(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    """What was found by running it (oracle/trace/facts.py), in items as wide as this model's."""
    of, ledger, items = shape.operator, tape.ledger, tape.items
    assert of is not None
    casts = items.mixed != "" and family_of(of.base) == "products"
    read = [
        cast(tape, x, items.activation_bytes) if casts and x.node is not None else x for x in inputs
    ]
    each = made_bytes(items, shape, [x.item_bytes for x in read])

    def scaled(found: tuple[float, float]) -> ByteLine:
        per_sample, fixed = (nbytes * each / ITEM_BYTES for nbytes in found)
        return ByteLine(tape.share * per_sample, fixed)

    narrow, halves = cast_weights(tape, shape) if casts else ([], ())
    stops = tape.stops and not (of.saved.output or any(of.saved.beside))
    temporary = UNCOUNTED if stops else ledger.make(scaled(of.saved.forward))
    outputs = list[HeldTensor]()
    for number, size in enumerate(_output_lines(tape, shape, each), len(inputs)):
        if stops:
            tensor = UNCOUNTED
        elif of.is_view:
            tensor = ledger.hold(read[0].tensor) if read else UNCOUNTED
        else:
            tensor = ledger.make(size)
        outputs.append(HeldTensor(tensor, size, None, ITEM_TYPES.get(of.type(number), each)))
    beside = [ledger.make(scaled(of.saved.beside))] if any(of.saved.beside) else []
    ledger.drop(temporary)
    weights, more = weight_bytes(shape, items.weight_bytes), scaled(of.saved.backward)
    back = Back(
        tuple([None if at in of.saved.passed else x.size for at, x in enumerate(read)]),
        weights,
        # beside all gradients, of which those of the weights are made last
        (more.plus(ByteLine(0.0, sum(weights))),) if any(more) else (),
        halves,
    )
    saves = [*(read[at].tensor for at in of.saved.inputs), *narrow[:1]]
    saves += [outputs[0].tensor] if of.saved.output else []
    y = (
        tape.record(read, outputs, back, saves, beside)
        if of.is_differentiable
        else tape.record([], outputs, Back(()), (), beside)
    )
    for x, given in zip(read, inputs, strict=True):
        if casts and given.node is not None:
            ledger.drop(x.tensor)
    return y


def _output_lines(tape: Tape, shape: LayerShape, item_bytes: int) -> list[ByteLine]:
    """Bytes of every output of an operator."""
    first = len(shape.input_shapes)
    fixed, one = (shape.operand_bytes(batch, item_bytes)[first:] for batch in (0, 1))
    return [ByteLine(tape.share * (b - a), a) for a, b in zip(fixed, one, strict=True)]


def _losses(tape: Tape, shape: LayerShape, inputs: Sequence[HeldTensor]) -> HeldTensor:
    """A loss for each output of the model; an auxiliary one is weighted and added."""
    one = _cross_entropy if shape.kind == "cross_entropy" else _squares
    losses = []
    for x in inputs:  # autocast computes losses in the type of the weights
        whole = cast(tape, x, tape.items.weight_bytes)
        losses.append(one(tape, whole))
        tape.ledger.drop(whole.tensor)
    while len(losses) > 1:
        auxiliary, main = losses.pop(), losses.pop()
        weighed = tape.run([auxiliary], tape.scalar, Back((tape.scalar,)))
        losses.append(tape.run([main, weighed], tape.scalar, Back((None, None))))
        for number in (auxiliary, main, weighed):
            tape.ledger.drop(number.tensor)
    return losses[0]


def _cross_entropy(tape: Tape, x: HeldTensor) -> HeldTensor:
    logarithms = tape.run([x], x.size, Back((x.size,)), saves_output=True)
    number, back = tape.scalar, Back((x.size,))
    total = [number]  # the sum of the class weights
    loss = tape.run([logarithms], number, back, saves=[logarithms.tensor], extra=total)
    tape.ledger.drop(logarithms.tensor)
    return loss


def _squares(tape: Tape, x: HeldTensor) -> HeldTensor:
    # the mean reuses the memory of the squares (mse_loss_out in Loss.cpp)
    return tape.run([x], x.size, Back((x.size,)), saves=[x.tensor])


_KINDS: dict[str, Run] = {
    "conv": _product,
    "linear": _product,
    "embedding": _embedding,
    "avg_pool": _avg_pool,
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
    "operator": _operator,
    "cross_entropy": _losses,
    "mse": _losses,
}
