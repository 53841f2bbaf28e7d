"""Cut a LayerProgram into the stages of a pipeline.

A stage is a program of its own: it takes the tensors that cross the border before it (and the model's
input, where it reads that) and returns those that cross the border behind it; the last stage returns
the model's outputs. A tensor that a stage does not use is handed on. Views (flatten, identities, sizes)
cost nothing and are not sent: each stage that reads one makes it from the tensor behind it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from calib.training.layer_program import LayerProgram


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
    """Which stage makes each tensor, and which one reads it last."""

    def __init__(self, program: LayerProgram, boundaries: tuple[int, ...]) -> None:
        self._program, self._nodes = program, list(program.graph.graph.nodes)
        self._last = len(boundaries)
        self._made_in: dict[fx.Node, int] = {}  # without views and the model's input
        self._read_until: dict[fx.Node, int] = {}
        self._shown_in: dict[fx.Node, int] = {}  # views: the first stage that reads them
        index = {
            name: i
            for i, layer in enumerate(program.spec.layers)
            if not layer.shape.is_free
            for name in layer.outputs
        }
        for node in self._nodes:
            layer = program.layer_of.get(node.name)
            if node.op == "output":
                self._read(node, self._last)
            elif layer in index:
                self._made_in[node] = bisect_right(boundaries, index[layer])
                self._read(node, self._made_in[node])

    def _read(self, reader: fx.Node, stage: int) -> None:
        for source in self._sources(reader, stage):
            self._read_until[source] = max(stage, self._read_until.get(source, 0))

    def _sources(self, reader: fx.Node, stage: int) -> Iterator[fx.Node]:
        """What a node reads, looking through views."""
        for read in reader.all_input_nodes:
            if read in self._made_in or read.op == "placeholder":
                yield read
            else:
                self._shown_in.setdefault(read, stage)
                yield from self._sources(read, stage)

    def _crossing(self, border: int) -> list[fx.Node]:
        """What is made before stage `border` and read in it or later."""
        return [
            node
            for node, made in self._made_in.items()
            if made < border <= self._read_until.get(node, 0)
        ]

    def _in_place(self, node: fx.Node) -> bool:
        """Whether a node writes into what it reads."""
        module = self._program.module_called(node)
        if module is not None:
            return bool(getattr(module, "inplace", False))
        if isinstance(node.target, torch._ops.OpOverload):
            return bool(node.target._schema.is_mutable)
        name = str(getattr(node.target, "__name__", node.target))
        told = any(given is True for given in (node.kwargs.get("inplace"), *node.args))
        return told or name.endswith("_") or name == "iadd"

    def _layers(self, nodes: list[fx.Node]) -> tuple[str, ...]:
        return tuple(self._program.layer_of[node.name] for node in nodes)

    def stage(self, number: int) -> ProgramStage:
        graph = fx.Graph()
        received = self._crossing(number)
        here = {node: graph.placeholder(node.name) for node in received}
        (model_input,) = (node for node in self._nodes if node.op == "placeholder")
        own = [node for node, made in self._made_in.items() if made == number]
        readers = [*own, self._nodes[-1]] if number == self._last else own
        reads_input = any(model_input in self._sources(node, number) for node in readers)
        if reads_input:
            here[model_input] = graph.placeholder(model_input.name)

        # torch refuses to write into what was received: a leaf that requires a gradient
        written = {
            source for node in own if self._in_place(node) for source in self._sources(node, number)
        }
        for node in received:
            if node in written:
                here[node] = graph.call_method("clone", (here[node],))

        def value(node: fx.Node) -> fx.Node:
            if node not in here:  # of this stage, or a view
                here[node] = graph.node_copy(node, value)
            return here[node]

        for node in own:
            value(node)
        if number == self._last:
            sent = self._program.spec.layers[-1].inputs
            graph.node_copy(self._nodes[-1], value)
        else:
            crossing = self._crossing(number + 1)
            sent = self._layers(crossing)
            # memory is sent in the order in which it lies
            graph.output(tuple(graph.call_method("contiguous", (here[n],)) for n in crossing))
        shown = {node for node in here if (self._made_in | self._shown_in).get(node) == number}
        layer_of = {
            here[node].name: layer
            for node in shown
            if (layer := self._program.layer_of.get(node.name)) is not None
        }
        module = fx.GraphModule(self._program.graph, graph)
        program = LayerProgram(self._program.spec, module, layer_of)
        return ProgramStage(program, self._layers(received), sent, reads_input)


def item_types(
    program: LayerProgram,
    sample: Tensor,
    device: torch.device,
    cast: AbstractContextManager[object],
) -> dict[str, torch.dtype]:
    """Item type of every layer's output under `cast` (autocast), for inputs like `sample` on `device`.

    The tensors are fake: nothing is computed, and no statistics or random numbers change.
    """
    found: dict[str, torch.dtype] = {}
    mode = FakeTensorMode()
    state: dict[str, Tensor] = {
        name: mode.from_tensor(tensor) for name, tensor in program.state_dict().items()
    }
    before, program.observer = program.observer, lambda layer, y: found.update({layer: y.dtype})
    try:
        with mode, cast, torch.no_grad():
            fake = torch.empty(sample.shape, dtype=sample.dtype, device=device)
            functional_call(program, state, (fake,))
    finally:
        program.observer = before
    return found
