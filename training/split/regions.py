"""Regions that a group of ranks shares: linear layers in parts, and all between them on parts.

Shoeybi et al. 2019 (Megatron-LM), section 3. Where a region begins, every rank reads the whole x, whose
gradients are summed (Shared, their f); where it ends, the terms of y are summed (Row, their g).
calib.oracle.layout.regions says which layers these are and how they are cut.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from calib.foundation.layers import LayerShape
from calib.foundation.operators import PRIME
from calib.oracle.layout.cuts import Cut, Passed, sizes_of
from calib.oracle.layout.partitions import Range
from calib.oracle.layout.regions import Region
from calib.oracle.layout.spatial import part_range
from calib.training.layer_program import LayerProgram
from calib.training.split.moves import GroupLink, narrowed, share, summed
from calib.training.worker import Held

MOST_SEEDS = 2**31


class Shared(nn.Module):
    """The tensor that all ranks read; backward: the sum of their gradients."""

    def __init__(self, link: GroupLink) -> None:
        super().__init__()
        self._link = link

    def forward(self, x: Tensor) -> Tensor:
        """x in the type in which its readers compute."""
        return share(narrowed(x), self._link)


class Row(nn.Module):
    """A linear layer on this rank's input features: terms are summed, then the bias is added."""

    def __init__(self, link: GroupLink) -> None:
        super().__init__()
        self._link = link

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """y, in the memory of its term."""
        y = summed(F.linear(x, weight).contiguous(), self._link)
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


class ProgramParts:
    """A program of which some layers, `parts` by their places, run on a rank's parts of tensors.

    `region` is as of a Worker, but for tensors of several blocks, of which a rank has no one range.
    """

    def __init__(
        self, program: LayerProgram, link: GroupLink, parts: dict[int, LayerShape], batch: int
    ) -> None:
        self.region: dict[str, tuple[Range, ...]] = {}
        self._program, self._graph, self._link = program, program.graph.graph, link
        self._parts, self._batch = parts, batch
        self._layers = program.spec.layers
        self._calls: dict[str, fx.Node] = {}  # by layer
        for node in self._graph.nodes:
            if node.name in program.layer_of:
                several = node.target is operator.getitem
                call = node.all_input_nodes[0] if several else node
                self._calls[program.layer_of[node.name].partition("[")[0]] = call

    def _tell(self, at: int, passed: Passed) -> None:
        """What this rank has of a layer's outputs."""
        layer, group = self._layers[at], self._link.group
        sizes = zip(layer.outputs, sizes_of(layer.shape)[1], passed.outputs, strict=True)
        for name, size, cut in sizes:
            if cut is not None and cut.blocks == 1 and size[0] == PRIME:
                own = part_range(size[cut.axis], group.size, group.rank)
                self.region[name] = (*((0, n) for n in size[1 : cut.axis]), own)

    def _localize(self, at: int) -> None:
        """Give an operator the sizes of its part."""
        of, whole = self._parts[at].operator, self._layers[at].shape.operator
        if of is not None and whole is not None and of.arguments != whole.arguments:
            node = self._calls[self._layers[at].name]
            given = zip(node.args, of.positional, strict=True)
            node.args = tuple([self._argument(*each) for each in given])

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
    """A program whose regions become those of a rank; `held` are the parts of weights, by name."""

    def __init__(
        self, program: LayerProgram, link: GroupLink, parts: dict[int, LayerShape], batch: int
    ) -> None:
        super().__init__(program, link, parts, batch)
        self.held: dict[str, Held] = {}
        program.graph.add_module("calib_shared", Shared(link))

    def divide(self, region: Region) -> None:
        """Let this rank compute its part of a region."""
        for name, first in region.entries.items():
            if self._layers[first].needs_input_grad:
                self._share(
                    name, [at for at in region.columns if self._layers[at].inputs == (name,)]
                )
        for at, passed in region.columns.items():
            self._cut_weights(at, 0, passed.outputs)
            self._tell(at, passed)
        for at, passed in region.inside.items():
            self._localize(at)
            self._draw(at)
            self._tell(at, passed)
        for at, passed in region.rows.items():
            self._sum(at, passed)

    def _share(self, name: str, columns: Sequence[int]) -> None:
        calls = [self._calls[self._layers[at].name] for at in columns]
        (source,) = {call.all_input_nodes[0] for call in calls}
        with self._graph.inserting_after(source):
            shared = self._graph.call_module("calib_shared", (source,))
        for call in calls:
            call.replace_input_with(source, shared)

    def _weights(self, node: fx.Node) -> list[str]:
        """Names of the weight and the bias of a linear layer."""
        module = self._program.module_called(node)
        if module is None:
            return [str(of.target) for of in node.all_input_nodes[1:]]
        return [f"{node.target}.{name}" for name, _ in module.named_parameters()]

    def _cut_weights(self, at: int, axis: int, cuts: Sequence[Cut | None]) -> list[str]:
        """Keep this rank's part of a layer's weight along `axis`, and of its bias where that has it."""
        (cut,), group = cuts, self._link.group
        assert cut is not None
        names = self._weights(self._calls[self._layers[at].name])
        for name in names if axis == 0 else names[:1]:
            path, _, last = name.rpartition(".")
            owner = self._program.graph.get_submodule(path)
            whole = owner.get_parameter(last)
            own = part_range(whole.shape[axis] // cut.blocks, group.size, group.rank)
            ranges = (*((0, n) for n in whole.shape[:axis]), own)
            held = Held(name, whole, ranges, "own", cut.blocks)
            part = held.cut(whole.detach()).clone(memory_format=torch.contiguous_format)
            setattr(owner, last, nn.Parameter(part, whole.requires_grad))
            self.held[name] = replace(held, parameter=owner.get_parameter(last))
        return names

    def _sum(self, at: int, passed: Passed) -> None:
        """Let a linear layer make its term of y, and the ranks sum them.

        A module for each, whose name is no parameter's: so its time in place is that of the layer.
        """
        node, program = self._calls[self._layers[at].name], self._program
        names = self._cut_weights(at, 1, passed.inputs)
        called = f"calib_{node.name}"
        program.graph.add_module(called, Row(self._link))
        with self._graph.inserting_before(node):
            weight, *bias = [self._graph.get_attr(name) for name in names]
        x = node.all_input_nodes[0]
        node.op, node.target, node.kwargs = "call_module", called, {}
        node.args = (x, weight, bias[0] if bias else None)
