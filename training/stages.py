"""Cut a LayerProgram into the stages of a pipeline.

A stage is a program of its own: it takes the tensors that cross the border before it (and the model's
input, where it reads that) and returns those that cross the border behind it; the last stage returns
the model's outputs. A tensor that a stage does not use is handed on. Views (flatten, identities, sizes)
cost nothing and are not sent: each stage that reads one makes it from the tensor behind it, as it makes
what depends on no sample (a mask, positions).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from calib.training.layer_program import LayerProgram
from calib.training.node_memory import NodeMemory


@dataclass(frozen=True)
class ProgramStage:
    """One stage. `program` takes the outputs of the layers `received`, then the model's input where
    `reads_input`, and returns a tuple of the outputs of `sent`, each contiguous. The last stage returns
    what the model returns; its `sent` are the layers that the loss reads.

    The program's observer sees a view's output in the first stage that reads it.
    """

    program: LayerProgram
    received: tuple[str, ...]
    sent: tuple[str, ...]
    reads_input: bool


def cut(program: LayerProgram, boundaries: tuple[int, ...], stage: int) -> ProgramStage:
    """Stage `stage` of 0..len(boundaries); it shares its modules with `program`.

    `boundaries` are increasing indices of layers, as Division.boundaries.
    """
    return _Cut(program, boundaries).stage(stage)


class _Cut:
    """Which stage makes each tensor, and which ones read it.

    A tensor is made in one stage, and sent. What costs nothing or depends on no sample is made again by
    each stage that reads it: views, sizes, masks, what the model holds. So is every view of a tensor
    that is written into, because only in the same memory does a view see what is written.
    """

    def __init__(self, program: LayerProgram, boundaries: tuple[int, ...]) -> None:
        self._program, self._nodes = program, list(program.graph.graph.nodes)
        self._last = len(boundaries)
        self._memory = NodeMemory(program)
        self._made_in = self._places(boundaries)
        self._again: list[dict[fx.Node, None]] = []  # of each stage: what it makes, as others may
        self._read: list[dict[fx.Node, None]] = []  # and what it reads that is made once
        self._read_until: dict[fx.Node, int] = {}
        self._shown_in: dict[fx.Node, int] = {}  # what is made again: the first stage that does so
        for stage in range(self._last + 1):
            again, read = self._reading(stage)
            self._again.append(again)
            self._read.append(read)
            self._read_until |= dict.fromkeys(read, stage)
            for node in again:
                self._shown_in.setdefault(node, stage)

    def _places(self, boundaries: tuple[int, ...]) -> dict[fx.Node, int]:
        """The stage of each node whose result is made once."""
        index = {
            name: i
            for i, layer in enumerate(self._program.spec.layers)
            if not layer.shape.is_free
            for name in layer.outputs
        }
        found, stage = dict[fx.Node, int](), 0
        for node in self._nodes:
            layer = self._program.layer_of.get(node.name)
            if layer in index:
                stage = bisect_right(boundaries, index[layer])
            if self._memory.is_made_once(node, layer in index):
                found[node] = stage
        return found

    def _own(self, stage: int) -> list[fx.Node]:
        """What a stage makes that no other makes, and the output of the last one."""
        own = [node for node, made in self._made_in.items() if made == stage]
        return [*own, self._nodes[-1]] if stage == self._last else own

    def _reading(self, stage: int) -> tuple[dict[fx.Node, None], dict[fx.Node, None]]:
        """What a stage makes again, and what it reads that is made once, here or before."""
        again, read = dict[fx.Node, None](), dict[fx.Node, None]()
        waiting = self._own(stage)
        while waiting:
            for node in waiting.pop().all_input_nodes:
                if node in self._made_in or node.op == "placeholder":
                    read[node] = None
                elif node not in again:
                    again[node] = None
                    written = [w for w in self._memory.writers(node) if w not in self._made_in]
                    again |= dict.fromkeys(written)
                    waiting += [node, *written]
        return again, read

    def _crossing(self, border: int) -> list[fx.Node]:
        """What is made before stage `border` and read in it or later."""
        return [
            node
            for node, made in self._made_in.items()
            if made < border <= self._read_until.get(node, 0)
        ]

    def _layers(self, nodes: list[fx.Node]) -> tuple[str, ...]:
        return tuple(self._program.layer_of[node.name] for node in nodes)

    def stage(self, number: int) -> ProgramStage:
        """One stage, its nodes in the order in which they were."""
        graph = fx.Graph()
        received = self._crossing(number)
        here = {node: graph.placeholder(node.name) for node in received}
        (model_input,) = (node for node in self._nodes if node.op == "placeholder")
        reads_input = model_input in self._read[number]
        if reads_input:
            here[model_input] = graph.placeholder(model_input.name)
        wanted = {*self._own(number), *self._again[number]}

        # torch refuses to write into what was received: a leaf that requires a gradient
        for node in received:
            if not wanted.isdisjoint(self._memory.writers(node)):
                here[node] = graph.call_method("clone", (here[node],))

        for node in self._nodes:
            if node in wanted:
                here[node] = graph.node_copy(node, here.__getitem__)
        sent = self._program.spec.layers[-1].inputs
        if number < self._last:
            crossing = self._crossing(number + 1)
            sent = self._layers(crossing)
            # memory is sent in the order in which it lies
            graph.output(tuple(graph.call_method("contiguous", (here[n],)) for n in crossing))
        shown_in = self._made_in | self._shown_in
        layer_of = {
            here[node].name: layer
            for node in wanted
            if shown_in.get(node) == number
            and (layer := self._program.layer_of.get(node.name)) is not None
        }
        module = fx.GraphModule(self._program.graph, graph)
        program = LayerProgram(self._program.spec, module, layer_of, self._program.names)
        return ProgramStage(program, self._layers(received), sent, reads_input)


def border_tensors(
    program: LayerProgram,
    boundaries: tuple[int, ...],
    number: int,
    sample: Tensor,
    device: torch.device,
    cast: AbstractContextManager[object],
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """What stage `number` receives (the first: the input) and returns, as tensors without memory.

    Under `cast` (autocast), for inputs like `sample` on `device`: their sizes, item types, and whether a
    gradient comes back. Nothing is computed, and no statistics or random numbers change.
    """
    mode, received = FakeTensorMode(), tuple[Tensor, ...]()
    with mode, cast:
        model_input = torch.empty(sample.shape, dtype=sample.dtype, device=device)
        found: Any = (model_input,)
        for stage in range(number + 1):
            part = cut(program, boundaries, stage)
            received = tuple(of.detach().requires_grad_(of.requires_grad) for of in found)
            given = (*(received if stage else ()), *([model_input] if part.reads_input else []))
            state: dict[str, Tensor] = {
                name: mode.from_tensor(of)
                for kind in (part.program.named_parameters, part.program.named_buffers)
                for name, of in kind(remove_duplicate=False)
            }
            found = functional_call(part.program, state, given)
            found = found if isinstance(found, tuple) else (found,)
    return _without_memory(received), _without_memory(found)


def _without_memory(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    return tuple(
        torch.empty(of.shape, dtype=of.dtype, device="meta", requires_grad=of.requires_grad)
        for of in tensors
    )
