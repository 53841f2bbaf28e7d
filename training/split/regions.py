"""Regions that a group of ranks shares: linear layers in parts, and all between them on parts.

Shoeybi et al. 2019 (Megatron-LM), section 3. Where a region begins, every rank reads the whole x, whose
gradients are summed (Shared, their f); where it ends, the terms of y are summed (Row, their g). With
sequence parallelism x is gathered, and y scattered (tokens.py). calib.oracle.layout.regions and
region_tokens say which layers these are and how they are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from calib.foundation.layers import LayerShape, Shape
from calib.foundation.operators import PRIME
from calib.oracle.layout.cuts import Cut, LinearWeights, Passed, linear_weights, sizes_of
from calib.oracle.layout.partitions import Range
from calib.oracle.layout.regions import Region
from calib.oracle.layout.spatial import part_range
from calib.oracle.layout.tokens import Move, TokenParts
from calib.training.layer_program import LayerProgram
from calib.training.split.moves import GroupLink, narrowed, share, summed
from calib.training.split.tokens import Moved, Parts
from calib.training.worker import Held

MOST_SEEDS = 2**31
CASTS = ("to", "_to_copy", "type_as")


class Shared(nn.Module):
    """The tensor that all ranks read; backward: the sum of their gradients."""

    def __init__(self, link: GroupLink) -> None:
        super().__init__()
        self._link = link

    def forward(self, x: Tensor) -> Tensor:
        """x in the type in which its readers compute."""
        return share(narrowed(x), self._link)


class Row(nn.Module):
    """A linear layer on this rank's input features: terms are summed, then the bias is added.

    `transposed`: its weight is (inputs, outputs). `moved`: of y a rank keeps its tokens.
    """

    def __init__(self, link: GroupLink, transposed: bool, moved: Moved | None = None) -> None:
        super().__init__()
        self._link, self._moved = link, moved
        self._product: Callable[..., Any] = torch.matmul if transposed else nn.functional.linear

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """y, in the memory of its term, or its part with the rank's tokens."""
        y = self._product(x, weight)
        y = self._moved(y) if self._moved else summed(y.contiguous(), self._link)
        return y if bias is None else y.add_(bias.to(y.dtype))


class OwnMasks(nn.Module):
    """A call that draws dropout masks: here those of this rank, while all ranks' generators stay alike.

    A rank's part has features of its own, and so has its mask (Megatron-LM does so, too).
    """

    def __init__(self, call: Callable[..., Any], rank: int) -> None:
        super().__init__()
        self._call, self._rank = call, rank

    def forward(self, x: Tensor, *more: Any, **options: Any) -> Any:
        """What the call gives, drawn from a seed that all ranks draw, plus the rank."""
        seed = int(torch.randint(MOST_SEEDS, ()))
        generator = (
            torch.cuda.default_generators[x.device.index] if x.is_cuda else torch.default_generator
        )
        before = generator.get_state()
        generator.manual_seed(seed + self._rank)
        try:
            return self._call(x, *more, **options)
        finally:
            generator.set_state(before)


def _draws(shape: LayerShape) -> bool:
    """Whether a layer draws random numbers."""
    of = shape.operator
    if of is None or of.base == "dropout":
        return shape.name == "dropout"
    given = [*of.positional[4:5], of.named.get("dropout_p", 0.0)]
    return of.base == "scaled_dot_product_attention" and given[0] > 0.0


def _read_by(call: fx.Node) -> fx.Node:
    """What a linear layer reads beside its weights."""
    return next(node for node in call.all_input_nodes if node.op != "get_attr")


class ProgramParts:
    """A program of which some layers, `parts` by their places, run on a rank's parts of tensors.

    `region` is as of a Worker, but for tensors of several blocks, of which a rank has no one range, and
    those of which parts are filled up.
    """

    averages = False  # of gradients of weights, after the backward

    def __init__(
        self, program: LayerProgram, link: GroupLink, parts: dict[int, LayerShape], batch: int
    ) -> None:
        self.region: dict[str, tuple[Range, ...]] = {}
        self._program, self._graph, self._link = program, program.graph.graph, link
        self._parts, self._batch = parts, batch
        self._layers = program.spec.layers
        self._cast = {
            of.name: of.inputs[0] for of in self._layers if of.inputs and of.shape.name in CASTS
        }
        self._calls = program.calls()

    def _move(self, move: Move) -> None:
        """Let the layers that read a tensor read what a move makes of it."""
        self._pass_on(move.name, self._moved(move), [self._reader(at) for at in move.readers])

    def _moved(self, move: Move) -> Moved:
        before, after = (self._parts_of(cut, move.size) for cut in (move.before, move.after))
        return Moved(move.way, before, after, self._link, self.averages)

    def _parts_of(self, cut: Cut | None, size: Shape) -> Parts | None:
        """With the blocks, or the items of a block, of each sample at this batch."""
        if cut is None:
            return None
        blocks, width = (
            n if n % PRIME else n // PRIME * self._batch for n in (cut.blocks, cut.width(size))
        )
        return Parts(cut.axis, blocks, width, self._link.group.size)

    def _reader(self, at: int) -> fx.Node:
        """The call of a layer; for the loss that of what the model returns."""
        if at == len(self._layers) - 1:
            return self._graph.output_node()
        return self._calls[self._layers[at].name]

    def _pass_on(self, name: str, module: nn.Module, readers: Sequence[fx.Node]) -> None:
        """Let those of the readers that read a tensor read what a module makes of it."""
        made: dict[fx.Node, fx.Node] = {}
        for call in readers:
            for source in self._sources(call, name):
                if source not in made:
                    made[source] = self._call(module, source, call)
                call.replace_input_with(source, made[source])

    def _sources(self, call: fx.Node, name: str) -> list[fx.Node]:
        """The inputs of a call that are a tensor, or it before a cast.

        In torch's default type, that of the layers, `x.float()` is x itself: they have one of the two.
        """
        behind = [(self._program.layer_behind(node), node) for node in call.all_input_nodes]
        while not (found := [node for layer, node in behind if layer == name]):
            if name not in self._cast:
                break
            name = self._cast[name]
        return found

    def _call(self, module: nn.Module, source: fx.Node, reader: fx.Node) -> fx.Node:
        """Of a module, on a tensor, before a layer that reads what it makes."""
        name = f"calib_moved_{len(self._graph.nodes)}"
        self._program.graph.add_module(name, module)
        with self._graph.inserting_before(reader):
            return self._graph.call_module(name, (source,))

    def _tell(self, at: int, passed: Passed) -> None:
        """What this rank has of a layer's outputs."""
        layer, group = self._layers[at], self._link.group
        sizes = zip(layer.outputs, sizes_of(layer.shape)[1], passed.outputs, strict=True)
        for name, size, cut in sizes:
            if cut is None or cut.width(size) % group.size:
                continue
            if cut.blocks == 1 and size[0] == PRIME:
                own = part_range(size[cut.axis], group.size, group.rank)
                self.region[name] = (*((0, n) for n in size[1 : cut.axis]), own)

    def _localize(self, at: int) -> None:
        """Give an operator the sizes of its part."""
        of, whole = self._parts[at].operator, self._layers[at].shape.operator
        if of is not None and whole is not None and of.arguments != whole.arguments:
            node = self._calls[self._layers[at].name]
            first = len(node.args) - len(of.positional)  # behind what it is called through
            given = zip(node.args[first:], of.positional, strict=True)
            node.args = (*node.args[:first], *[self._argument(*each) for each in given])

    def _draw(self, at: int) -> None:
        """Let what draws masks draw this rank's."""
        layer, program = self._layers[at], self._program
        if _draws(layer.shape):
            node = self._calls[layer.name]
            call: Any = program.module_called(node) or node.target
            name = f"calib_{node.name}"
            program.graph.add_module(name, OwnMasks(call, self._link.group.rank))
            node.op, node.target = "call_module", name

    def _argument(self, before: Any, of_part: Any) -> Any:
        """An argument of the part, with its sizes at this batch."""
        if isinstance(of_part, list):
            return [self._argument(*each) for each in zip(before, of_part, strict=True)]
        if isinstance(of_part, dict):
            return of_part["batch"] * self._batch if "batch" in of_part else before
        return of_part


class RegionParts(ProgramParts):
    """A program whose regions become those of a rank; `held` are the parts of weights, by name.

    `tokens` says which tensors between regions are cut along the tokens; `partial` are the names of
    weights whose gradients are then of the rank's tokens alone.
    """

    def __init__(
        self,
        program: LayerProgram,
        link: GroupLink,
        parts: dict[int, LayerShape],
        batch: int,
        tokens: TokenParts,
    ) -> None:
        super().__init__(program, link, parts, batch)
        self.held: dict[str, Held] = {}
        self.partial: set[str] = set()
        self._tokens = tokens
        self._parameters = {name for name, _ in program.graph.named_parameters()}

    def divide(self, regions: Sequence[Region]) -> None:
        """Let this rank compute its part of every region, and of the tokens between them."""
        for region in regions:
            self._divide(region)
        for move in self._tokens.moves:
            if not move.is_scatter:
                self._move(move)
        for at, passed in self._tokens.passed.items():
            self._localize(at)
            self._draw(at)
            self._tell(at, passed)
            self.partial |= {*self._weights(at)}

    def _divide(self, region: Region) -> None:
        """One region."""
        for name, first in region.entries.items():
            if first not in self._tokens.gathered and self._layers[first].needs_input_grad:
                columns = [at for at in region.columns if self._layers[at].inputs == (name,)]
                calls = [self._calls[self._layers[at].name] for at in columns]
                self._pass_on(name, Shared(self._link), calls)
        for at, passed in region.columns.items():
            self._cut_outputs(at, passed)
            self._tell(at, passed)
        for at, passed in region.inside.items():
            self._localize(at)
            self._draw(at)
            self._tell(at, passed)
        for at, passed in region.rows.items():
            self._sum(at, passed)
            scattered = self._tokens.scattered.get(at)
            self._tell(at, Passed((None,), (scattered.after,)) if scattered else passed)

    def _weights(self, at: int) -> list[str]:
        """Names of the weights of a layer, in the order of its arguments."""
        node = self._calls[self._layers[at].name]
        module = self._program.module_called(node)
        if module is not None:
            return [f"{node.target}.{name}" for name, _ in module.named_parameters()]
        read = [str(each.target) for each in node.all_input_nodes if each.op == "get_attr"]
        return [name for name in read if name in self._parameters]

    def _linear(self, at: int) -> tuple[LinearWeights, list[str]]:
        """Which axes its weight has, and the names of the weight and the bias of a linear layer."""
        of, names = linear_weights(self._layers[at].shape), self._weights(at)
        assert of is not None
        return of, [*names[of.place :], *names[: of.place]]

    def _keep(self, name: str, axis: int, cut: Cut | None) -> None:
        """Keep this rank's part of a weight or a bias along `axis`."""
        group = self._link.group
        assert cut is not None
        path, _, last = name.rpartition(".")
        owner = self._program.graph.get_submodule(path)
        whole = owner.get_parameter(last)
        own = part_range(whole.shape[axis] // cut.blocks, group.size, group.rank)
        ranges = (*((0, n) for n in whole.shape[:axis]), own)
        held = Held(name, whole, ranges, "own", cut.blocks)
        part = held.cut(whole.detach()).clone(memory_format=torch.contiguous_format)
        setattr(owner, last, nn.Parameter(part, whole.requires_grad))
        self.held[name] = replace(held, parameter=owner.get_parameter(last))

    def _cut_outputs(self, at: int, passed: Passed) -> None:
        """Let a linear layer make some of its output features."""
        of, (weight, *bias) = self._linear(at)
        (cut,) = passed.outputs
        self._keep(weight, of.outputs, cut)
        for name in bias:
            self._keep(name, 0, cut)

    def _sum(self, at: int, passed: Passed) -> None:
        """Let a linear layer make its term of y, and the ranks sum them.

        A module for each, whose name is no parameter's: so its time in place is that of the layer.
        """
        node, program = self._calls[self._layers[at].name], self._program
        of, names = self._linear(at)
        (cut,), x = passed.inputs, _read_by(node)
        self._keep(names[0], of.inputs, cut)
        called = f"calib_{node.name}"
        scattered = self._tokens.scattered.get(at)
        moved = self._moved(scattered) if scattered else None
        program.graph.add_module(called, Row(self._link, of.inputs == 0, moved))
        self.partial |= {*names[1:]} if moved else set()
        with self._graph.inserting_before(node):
            weight, *bias = [self._graph.get_attr(name) for name in names]
        node.op, node.target, node.kwargs = "call_module", called, {}
        node.args = (x, weight, bias[0] if bias else None)
