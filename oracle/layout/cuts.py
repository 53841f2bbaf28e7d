"""How a layer passes a cut on: a part of its inputs gives that part of its outputs, without messages.

A cut divides an axis among ranks: heads, or features. Rules are by ATen's names and by kinds of layers;
what has none passes no cut. tests/oracle/layout/test_cuts.py runs operators on parts, and compares.
`passed_on` is of layers without weights, whose whole inputs are the same on all ranks; `passed_apart`
also of layers with whole weights, and whole tensors may be cut for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from calib.foundation.layers import LayerShape, Shape
from calib.foundation.operators import FAMILIES, PRIME, one_sample


class Cut(NamedTuple):
    """An axis (of a tensor with its batch) whose `blocks` equal blocks are each cut into equal parts.

    Queries, keys and values that one product makes are three blocks. Where the parts do not divide a
    block, the last ones are filled up, to the size of the others.
    """

    axis: int
    blocks: int = 1

    def width(self, size: Shape) -> int:
        """Items along the axis in a block."""
        return size[self.axis] // self.blocks

    def part(self, size: Shape, parts: int) -> Shape:
        """The size of a part."""
        own = self.blocks * -(-self.width(size) // parts)
        return (*size[: self.axis], own, *size[self.axis + 1 :])

    def share(self, size: Shape, parts: int) -> float:
        """The whole size over that of a part: the number of parts, or less where some are filled up."""
        return size[self.axis] / self.part(size, parts)[self.axis]


Cuts = tuple[Cut | None, ...]
# positional arguments of a part, by their place, for a number of parts
Changes = Callable[[int], dict[int, Any]]


class Passed(NamedTuple):
    """How a layer's inputs and outputs are cut, and what its arguments become.

    `beside` are the cuts of its parameters, then of its constants; empty: all are whole.
    """

    inputs: Cuts
    outputs: Cuts
    arguments: Changes = lambda parts: {}
    beside: Cuts = ()


class Call:
    """A layer, with sizes at PRIME samples, and how its inputs are cut.

    `cuts_whole`: tensors that are whole may be cut, too, where the others are.
    """

    def __init__(self, shape: LayerShape, cuts: Cuts, cuts_whole: bool = False) -> None:
        self.shape, self.cuts, self.cuts_whole = shape, cuts, cuts_whole
        self.inputs, self.outputs = sizes_of(shape)

    @property
    def cut(self) -> Cut:
        """That of the only tensor that is read, or of the first that is cut."""
        return next(cut for cut in self.cuts if cut is not None)

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument, by its place or its name."""
        of = self.shape.operator
        assert of is not None
        return of.positional[place] if place < len(of.positional) else of.named.get(name, default)

    def axis(self, place: int, name: str = "dim", default: int = 0) -> int:
        """An argument that is an axis of the first input, counted from the front."""
        return int(self.argument(place, name, default)) % len(self.inputs[0])

    def of_part(self, items: int, parts: int) -> int:
        """Along the axis that is cut, where so many items of the whole are blocks, or none."""
        width = self.cut.width(self.inputs[0])
        return items // width * -(-width // parts)

    def passed(self, cuts: Sequence[Cut], arguments: Changes = lambda parts: {}) -> Passed:
        """With these outputs."""
        return Passed(self.cuts, tuple(cuts), arguments)


class LinearWeights(NamedTuple):
    """Where a linear layer has its weight among its parameters, and which axis of it is of the inputs.

    The other axis is of the outputs; the other parameter, if there is one, is the bias.
    """

    place: int = 0
    inputs: int = 1

    @property
    def outputs(self) -> int:
        """The axis of the output features."""
        return 1 - self.inputs


def linear_weights(shape: LayerShape) -> LinearWeights | None:
    """Of a product of its one input and weights, with or without biases; None for other layers.

    Weights are (outputs, inputs), as nn.Linear has them, or (inputs, outputs): in products that are
    written out, as in Conv1D of transformers' GPT-2.
    """
    of, held = shape.operator, shape.parameter_shapes
    if of is None:
        return LinearWeights() if shape.kind == "linear" else None
    x, first, second = {"input": 0}, {"parameter": 0}, {"parameter": 1}
    given = [each for each in of.positional if each is not None]
    if of.base == "linear" and held and given == [x, first, second][: 1 + len(held)]:
        return LinearWeights()
    if of.base in ("mm", "matmul") and given == [x, first] and len(held[0]) == 2:
        return LinearWeights(0, 0)
    if of.base == "addmm" and given == [first, x, second] and not of.named:
        return LinearWeights(1, 0) if held[0] == held[1][1:] else None
    return None


def sizes_of(shape: LayerShape) -> tuple[list[Shape], list[Shape]]:
    """Sizes of all inputs and outputs at PRIME samples."""
    of = shape.operator
    if of is None:
        return [(PRIME, *each) for each in shape.input_shapes], [(PRIME, *shape.output_shape)]
    inputs = [of.size(at, each, PRIME) for at, each in enumerate(shape.input_shapes)]
    return inputs, shape.output_sizes(PRIME)


def passed_on(shape: LayerShape, cuts: Cuts) -> Passed | None:
    """How a layer without weights passes on the cuts of its inputs; None if it does not."""
    of = shape.operator
    rule = (_KINDS if of is None else _OPERATORS).get(shape.name)
    if rule is None or shape.parameter_shapes or (of is not None and of.no_grad):
        return None
    return _placed(shape, rule(Call(shape, cuts)))


def _placed(shape: LayerShape, found: Passed | None) -> Passed | None:
    """What a rule found, if an argument that changes is one by its place."""
    of = shape.operator
    if found is None or of is None:
        return found
    return found if all(at < len(of.positional) for at in found.arguments(1)) else None


def passed_apart(shape: LayerShape, cuts: Cuts, cuts_whole: bool = False) -> Passed | None:
    """How a layer passes on cuts of an axis whose items it computes apart, all its weights being whole.

    As tokens: by a linear layer, a norm over features, an embedding, and item by item with a parameter
    that is the same for all tokens. What has no weights passes cuts on as above. None if it does not.
    `cuts_whole`: what is whole and broadcasts with a part is cut as that is, inputs, parameters and
    constants; else it ends the cut.
    """
    of = shape.operator
    rule = _behind_weights if linear_weights(shape) else _APART.get(shape.name)
    if rule is None and not shape.parameter_shapes:
        rule = (_KINDS if of is None else _OPERATORS).get(shape.name)
    if rule is None or (of is not None and of.no_grad):
        return None
    return _placed(shape, rule(Call(shape, cuts, cuts_whole)))


def part_of(shape: LayerShape, passed: Passed, parts: int) -> LayerShape:
    """The layer on one of `parts` parts."""
    inputs, outputs = sizes_of(shape)
    cut = [
        size if of is None else of.part(size, parts)
        for size, of in zip([*inputs, *outputs], (*passed.inputs, *passed.outputs), strict=True)
    ]
    of = shape.operator
    if of is None:
        made = [size[1:] for size in cut]
        return shape.model_copy(update={"input_shapes": tuple(made[:-1]), "output_shape": made[-1]})
    samples = [one_sample(size, PRIME) for size in cut]
    axes = tuple(axis for _, axis in samples)
    held = [*shape.parameter_shapes, *(size for size, _ in of.constants)]
    if passed.beside:
        both = zip(held, passed.beside, strict=True)
        held = [size if cut is None else cut.part(size, parts) for size, cut in both]
    first = len(shape.parameter_shapes)
    types = [each for _, each in of.constants]
    made = [each for each, _ in samples]
    arguments = list(of.positional)
    for place, argument in passed.arguments(parts).items():
        arguments[place] = argument
    cuts = zip([*inputs, *outputs], (*passed.inputs, *passed.outputs), strict=True)
    share = next(of.share(size, parts) for size, of in cuts if of is not None)
    saved = {
        name: (each / share, fixed)
        for name in ("beside", "forward", "backward")
        for each, fixed in [getattr(of.saved, name)]
    }
    operator = of.model_copy(
        update={
            "arguments": json.dumps(arguments),
            "axes": axes if any(axis is not None for axis in axes) else (),
            "outputs": tuple(made[len(inputs) + 1 :]),
            "constants": tuple(zip(held[first:], types, strict=True)),
            "flops": of.flops / share,
            "saved": of.saved.model_copy(update=saved),
        }
    )
    return shape.model_copy(
        update={
            "input_shapes": tuple(made[: len(inputs)]),
            "output_shape": made[len(inputs)],
            "parameter_shapes": tuple(held[:first]),
            "operator": operator,
        }
    )


def _written(size: Shape) -> list[Any]:
    """A size as an argument."""
    return [{"batch": n // PRIME} if n and n % PRIME == 0 else n for n in size]


def _each(call: Call, behind: int = 0) -> Passed | None:
    """Item by item, with broadcasting; `behind` dimensions at the end belong together."""
    (output,) = call.outputs
    rank = len(output)
    of = call.shape.operator
    constants = [size for size, _ in (of.constants if of else ())]
    sizes = [*call.inputs, *call.shape.parameter_shapes, *constants]
    cuts = [*call.cuts, *[None] * (len(sizes) - len(call.cuts))]
    found = {
        Cut(cut.axis + rank - len(size), cut.blocks)
        for size, cut in zip(sizes, cuts, strict=True)
        if cut is not None
    }
    if len(found) > 1:
        return None
    (made,) = found
    for number, (size, cut) in enumerate(zip(sizes, cuts, strict=True)):
        at = made.axis - rank + len(size)
        if cut is None and at >= 0 and size[at] != 1:
            if not call.cuts_whole:
                return None
            cuts[number] = Cut(at, made.blocks)
    if not 0 <= made.axis < rank - behind:
        return None
    inputs, beside = cuts[: len(call.inputs)], cuts[len(call.inputs) :]
    return Passed(tuple(inputs), (made,), beside=tuple(beside) if any(beside) else ())


def _rows_apart(call: Call) -> Passed | None:
    """Matrices, or attention head by head: the last two dimensions belong together."""
    return _each(call, behind=2) if min(map(len, call.inputs)) > 1 else None


def _view(call: Call, place: int = 1) -> Passed | None:
    """Another size of the same items in the same order; its size is the argument at `place`."""
    (output,) = call.outputs
    cut = regrouped(call.inputs[0], output, call.cut)
    if cut is None:
        return None
    return call.passed([cut], lambda parts: {place: _written(cut.part(output, parts))})


def regrouped(before: Shape, after: Shape, cut: Cut) -> Cut | None:
    """The cut of a tensor whose items stay in order; None where its parts would not be one."""
    blocks = cut.blocks * math.prod(before[: cut.axis])  # of the flat tensor
    done = 1
    for axis, length in enumerate(after):
        own, rest = divmod(blocks, done)
        if rest:
            return None
        if own and length % own == 0 and length > own:
            return Cut(axis, own)
        done *= length
    return None


def _flatten(call: Call) -> Passed | None:
    cut = regrouped(call.inputs[0], call.outputs[0], call.cut)
    return cut and call.passed([cut])


def _unflatten(call: Call) -> Passed | None:
    """Its sizes are those of one axis alone."""
    found, at = _view(call), call.axis(1)
    if found is None:
        return None
    n, (cut,) = len(call.outputs[0]) - len(call.inputs[0]) + 1, found.outputs
    assert cut is not None

    def sizes(parts: int) -> dict[int, Any]:
        return {2: _written(cut.part(call.outputs[0], parts)[at : at + n])}

    return call.passed([cut], sizes)


def _expand(call: Call) -> Passed | None:
    (size,), (output,), cut = call.inputs, call.outputs, call.cut
    made = Cut(cut.axis + len(output) - len(size), cut.blocks)
    return call.passed([made], lambda parts: {1: _written(made.part(output, parts))})


def _reordered(call: Call, order: Sequence[int]) -> Passed:
    """`order` has the input's axis of each of the output's."""
    return call.passed([Cut([*order].index(call.cut.axis), call.cut.blocks)])


def _permute(call: Call) -> Passed:
    rank = len(call.inputs[0])
    return _reordered(call, [int(at) % rank for at in call.argument(1, "dims")])


def _transpose(call: Call) -> Passed:
    order = [*range(len(call.inputs[0]))]
    a, b = call.axis(1, "dim0"), call.axis(2, "dim1")
    order[a], order[b] = b, a
    return _reordered(call, order)


def _unsqueeze(call: Call) -> Passed:
    at = int(call.argument(1, "dim")) % len(call.outputs[0])
    return call.passed([Cut(call.cut.axis + (at <= call.cut.axis), call.cut.blocks)])


def _squeeze(call: Call) -> Passed | None:
    """The axis that is left out has one item."""
    if not isinstance(call.argument(1, "dim"), int):
        return None
    at, (size,) = call.axis(1), call.inputs
    gone = size[at] == 1 and at < call.cut.axis
    return call.passed([Cut(call.cut.axis - gone, call.cut.blocks)])


def _select(call: Call) -> Passed | None:
    """One item along an axis, which goes; or all of them apart."""
    at, cut = call.axis(1), call.cut
    if at == cut.axis:
        return None
    return call.passed([Cut(cut.axis - (at < cut.axis), cut.blocks)] * len(call.outputs))


def _along(call: Call, at: int, arguments: Changes) -> Passed | None:
    """Pieces along an axis; along the cut one they must be whole blocks, whose sizes are cut, too."""
    cut = call.cut
    if at != cut.axis:
        return call.passed([cut] * len(call.outputs))
    width = cut.width(call.inputs[0])
    lengths = [size[at] for size in call.outputs]
    if any(length % width for length in lengths):
        return None
    return call.passed([Cut(at, length // width) for length in lengths], arguments)


def _split(call: Call) -> Passed | None:
    sizes, at = call.argument(1, "split_size"), call.axis(2)

    def cut(parts: int) -> dict[int, Any]:
        several = isinstance(sizes, list)
        return {
            1: [call.of_part(n, parts) for n in sizes] if several else call.of_part(sizes, parts)
        }

    return _along(call, at, cut)


def _chunk(call: Call) -> Passed | None:
    return _along(call, call.axis(2), lambda parts: {})


def _slice(call: Call) -> Passed | None:
    at, most, cut = call.axis(1), call.inputs[0], call.cut
    if at != cut.axis:
        return call.passed([cut])
    start, end = (call.argument(place, "") for place in (2, 3))
    plain = all(isinstance(n, int) and n >= 0 for n in (start, end))
    if not plain or call.argument(4, "step", 1) != 1 or start % cut.width(most):
        return None
    ends = start, min(end, most[at])
    return _along(call, at, lambda parts: {2 + n: call.of_part(ends[n], parts) for n in (0, 1)})


def _softmax(call: Call) -> Passed | None:
    """Over an axis that is not cut; a layer's own kind runs along the first of a sample."""
    at = 1 if call.shape.operator is None else call.axis(1)
    return None if at == call.cut.axis else call.passed([call.cut])


def _cat(call: Call) -> Passed | None:
    """All along an axis that is not cut; or one with nothing else, as keys behind an empty cache."""
    of = call.shape.operator
    at = 1 if of is None else call.axis(1)
    empty = all(0 in size for size, _ in (of.constants if of else ()))
    alone = len(call.inputs) == 1 and empty
    alike = set(call.cuts) == {call.cut} and (at != call.cut.axis or alone)
    return call.passed([call.cut]) if alike else None


def _reduced(call: Call) -> Passed | None:
    """A mean or a sum over axes that are not cut; they go, unless they are kept."""
    rank, over = len(call.inputs[0]), call.argument(1, "dim")
    axes = {int(at) % rank for at in (over if isinstance(over, list) else [over]) if at is not None}
    if not axes or call.cut.axis in axes:
        return None
    gone = 0 if call.argument(2, "keepdim", False) else sum(at < call.cut.axis for at in axes)
    return call.passed([Cut(call.cut.axis - gone, call.cut.blocks)])


def _behind_weights(call: Call, dimensions: int = 1) -> Passed | None:
    """Weights are of the last dimensions; along the others items are computed apart."""
    whole = len(call.inputs[0]) - dimensions
    return call.passed([call.cut]) if call.cut.axis < whole else None


def _norm(call: Call) -> Passed | None:
    """Over the last dimensions."""
    of = call.shape.operator
    over = call.shape.attributes["normalized_shape"] if of is None else call.argument(1, "")
    return _behind_weights(call, len(over)) if isinstance(over, list | tuple) else None


def _embedding(call: Call) -> Passed | None:
    """Of indices, by a table of weights."""
    return call.passed([call.cut]) if len(call.inputs) == 1 else None


Rule = Callable[[Call], Passed | None]
_KINDS: dict[str, Rule] = {
    "relu": _each,
    "dropout": _each,
    "add": _each,
    "softmax": _softmax,
    "concat": _cat,
}
_ITEM_BY_ITEM = (FAMILIES["arithmetic"] | FAMILIES["functions"]) - {
    *("glu", "softmax", "log_softmax", "logsumexp")
}
_OPERATORS: Mapping[str, Rule] = {
    **dict.fromkeys(_ITEM_BY_ITEM, _each),
    **dict.fromkeys(("clone", "contiguous", "dropout", "alias", "detach", "_to_copy"), _each),
    **dict.fromkeys(("matmul", "bmm", "scaled_dot_product_attention"), _rows_apart),
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), _view),
    **dict.fromkeys(("transpose", "swapaxes"), _transpose),
    **dict.fromkeys(("softmax", "log_softmax", "_softmax"), _softmax),
    **dict.fromkeys(("select", "unbind"), _select),
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    "flatten": _flatten,
    "unflatten": _unflatten,
    "expand": _expand,
    "permute": _permute,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "chunk": _chunk,
    "slice": _slice,
    "cat": _cat,
    "mean": _reduced,
    "sum": _reduced,
}
# with whole weights
_APART: Mapping[str, Rule] = {
    **dict.fromkeys(_ITEM_BY_ITEM, _each),
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm),
    "embedding": _embedding,
}
