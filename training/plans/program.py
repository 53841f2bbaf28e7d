"""One rank's program under a plan: its part of every layer, and the exchanges between.

Layers run in the order of the model, all in one autograd graph. Where a rank already has what a layer
reads, nothing is sent and nothing copied; where it has no part, it is idle. Each rank reads what it
needs of the model's input and targets from its own memory. Batch norms are over what a rank has, and
every rank draws its own dropout masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calib.microbench.timing.watchdog import beat
from calib.oracle.layout.partitions import Configuration, channel_axis
from calib.oracle.model.graph import INPUT
from calib.oracle.model.layer import Layer
from calib.training.exported_graph import writes
from calib.training.plans.division import LayerwiseDivision, RankTuple, any_shared, sharers, summers
from calib.training.plans.exchange import CutBox, ExchangeToken, Fetch, SumTerms
from calib.training.plans.gradients import PlanGroups, shared_gradients
from calib.training.plans.layers import PartLayer, part_layer
from calib.training.plans.routes import InputRoute, input_route, route
from calib.training.split.spatial_layers import fill_of
from calib.training.worker import Gradient, Held, Task, Worker

# the layers whose backward makes a new tensor for the gradient of their input
FRESH = ("conv", "linear", "max_pool", "avg_pool", "batch_norm", "relu")


@dataclass
class StepInput:
    """One input of a layer on this rank: the output of the layer `name`.

    `fetch` where messages or copies make it; None where it is read without a copy, or not at all.
    """

    name: str
    route: InputRoute
    fetch: Fetch | None
    carries: bool  # a gradient comes back


@dataclass
class LayerStep:
    """One layer on this rank. `part` is None where the rank is idle, and for the loss."""

    layer: Layer
    sources: list[StepInput]
    part: PartLayer | None
    terms: SumTerms | None
    done: list[str]  # what no later layer reads


class _Builder:
    """What a rank has of each layer: the `steps` that run, the weights `held` and who shares each."""

    def __init__(self, task: Task, division: LayerwiseDivision) -> None:
        self.task, self.division = task, division
        self.source, self.spec = task.program, task.program.spec
        self.rank, self.world = task.teams.world.rank, task.teams.world
        self.groups = PlanGroups(self.world)
        self.like = next(task.module.parameters()).detach()
        self.index = {layer.name: i for i, layer in enumerate(self.spec.layers)}
        self.held: list[Held] = []
        self.sharers: list[RankTuple] = []
        self.steps: list[LayerStep] = []
        self._build()

    def _build(self) -> None:
        for of in self.division.configurations:  # collective, before any rank goes its own way
            self.groups.make(sharers(of))
            self.groups.make(summers(of))
        last = {name: i for i, layer in enumerate(self.spec.layers) for name in layer.inputs}
        for i, layer in enumerate(self.spec.layers):
            of = self.division.configurations[i]
            sources = [self._source(i, which) for which in range(len(layer.inputs))]
            part = terms = None
            if layer is not self.spec.layers[-1] and self.rank < of.parts:
                part = self._part(layer, of, sources)
                terms = self._terms(layer, of)
            done = [
                name for name in dict.fromkeys(layer.inputs) if last[name] == i and name != INPUT
            ]
            self.steps.append(LayerStep(layer, sources, part, terms, done))

    def _source(self, i: int, which: int) -> StepInput:
        layer, of = self.spec.layers[i], self.division.configurations[i]
        name, batch = layer.inputs[which], self.division.batch
        here = (layer.shape, of)
        if name == INPUT:
            return StepInput(name, input_route(here, which, batch, self.rank), None, False)
        j = self.index[name]
        before = self.spec.layers[j]
        theirs = self.division.configurations[j]
        between = route((before.shape, theirs), here, which, batch, self.rank)
        carries = before.has_gradient
        fetch = None
        if between.talks or (between.whole is not None and not between.is_direct):
            same_cells = of == theirs and math.prod(of.spatial) > 1
            fetch = Fetch(
                between,
                self.world,
                self.task.clock,
                "halo" if same_cells else "layerwise",
                fill_of(layer.shape.kind),
                layer.shape.kind in FRESH,
                self.like,
            )
        return StepInput(name, between, fetch, carries)

    def _part(self, layer: Layer, of: Configuration, sources: list[StepInput]) -> PartLayer:
        node = self.source.node_of(layer.name)
        whole = self.source.module_called(node)
        inplace = writes(node, whole)
        if any(source.fetch is not None or source.name == INPUT for source in sources):
            inplace = False  # it may be a view of a layer's output, or the batch itself
        part = part_layer(layer.shape, of, self.rank, whole, inplace)
        mine = next(ranks for ranks in sharers(of) if self.rank in ranks)
        for name, parameter in part.named_parameters():
            if parameter.requires_grad and "." not in name:
                ranges = part.ranges.get(name, ())
                alone: Gradient = "own" if ranges else "same"
                known = f"{node.target}.{name}"
                known = self.source.names.get(known, known)
                self.held.append(Held(known, parameter, ranges, alone))
                self.sharers.append(mine)
        return part

    def _terms(self, layer: Layer, of: Configuration) -> SumTerms | None:
        if of.input == 1:
            return None
        mine = next(ranks for ranks in summers(of) if self.rank in ranks)
        return SumTerms(self.groups.of(mine), self.task.clock, 1 + channel_axis(layer.shape))


class LayerwiseWorker(Worker):
    """This rank's parts. Ranks with samples of the loss have one, the others None."""

    def __init__(self, task: Task, division: LayerwiseDivision) -> None:
        made = _Builder(task, division)
        exchange = None
        if any_shared(division.configurations):
            parameters = [held.parameter for held in made.held]
            exchange = shared_gradients(parameters, made.sharers, made.groups)
        parts = nn.ModuleList(step.part for step in made.steps if step.part is not None)
        super().__init__(task, parts, made.held, exchange)
        self.masks = made.rank
        self._chain, self._steps = ExchangeToken(), made.steps
        self._groups, self._like = made.groups, made.like
        self._share = 1.0 / division.configurations[-1].sample
        self._read: dict[tuple[str, int], Tensor] = {}

    def take(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """What this rank's parts read of the model's input, with filling around it; its targets."""
        self._read = {}
        for step in self._steps:
            for which, source in enumerate(step.sources):
                if source.name == INPUT and source.route.whole is not None:
                    fill = fill_of(step.layer.shape.kind)
                    self._read[step.layer.name, which] = _box_of(inputs, source.route, fill)
        loss = self._steps[-1].sources[0].route.need
        samples = slice(*(loss[0] if loss else (0, 0)))
        mine = next(iter(self._read.values()), inputs.new_empty(0))
        return mine, targets[samples].contiguous()

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over this rank's samples; 0 where it has none."""
        loss = self._run(targets)
        return self._like.new_zeros(()) if loss is None else loss

    def compute(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Forward and backward; the loss where this rank has samples of it."""
        loss = self._run(targets)
        beat()
        self.clock.switch("backward")
        roots, gradients = self._chain.roots()
        if loss is not None:
            roots.insert(0, loss)
            gradients.insert(0, torch.full_like(loss, self._share))
        if roots:
            torch.autograd.backward(roots, gradients)
        return None if loss is None else loss.detach()

    def _run(self, targets: Tensor) -> Tensor | None:
        """Run all layers; the loss of this rank's samples."""
        chain, there = self._chain, dict[str, Tensor]()
        chain.begin(self._like)
        for step in self._steps[:-1]:
            inputs = [self._input(step, which, there) for which in range(len(step.sources))]
            if step.part is not None:
                y = step.part.compute(inputs)
                if step.terms is not None:
                    summed = chain.link(y, step.terms)
                    assert summed is not None
                    y = _with_bias(summed, step.part.bias_of_sum, step.terms.axis)
                there[step.layer.name] = y
            for name in step.done:
                there.pop(name, None)
        last = self._steps[-1]
        outputs = [self._input(last, which, there) for which in range(len(last.sources))]
        whole = [y for y in outputs if y is not None]
        if not whole:
            return None
        loss: Tensor = self._loss(tuple(whole) if len(whole) > 1 else whole[0], targets)
        return loss

    def _input(self, step: LayerStep, which: int, there: dict[str, Tensor]) -> Tensor | None:
        source = step.sources[which]
        if source.name == INPUT:
            return self._read.get((step.layer.name, which))
        mine = there.get(source.name)
        if source.fetch is None:
            return mine if source.route.whole is not None else None
        if not source.carries:
            with torch.no_grad():
                return source.fetch.there(mine)
        if source.route.talks:
            return self._chain.link(mine, source.fetch)
        fill = fill_of(step.layer.shape.kind)
        return _cut_out(self._like if mine is None else mine, source.route, fill, self.clock.switch)

    def close(self) -> None:
        """Free the groups."""
        self._groups.close()


def _with_bias(y: Tensor, bias: Tensor | None, axis: int) -> Tensor:
    if bias is None:
        return y
    return y + bias.view(-1, *[1] * (y.dim() - 1 - axis))


def _cut_out(x: Tensor, of: InputRoute, fill: float, switch: Callable[[str], str]) -> Tensor:
    """What a part runs on, cut from what the rank has, without any message."""
    assert of.whole is not None
    before = switch("pack")
    if of.local is None or of.own is None:  # windows that read filling alone
        y = x.new_full([b - a for a, b in of.whole], fill)
    else:
        around = [
            (a - start, stop - b) for (a, b), (start, stop) in zip(of.local, of.whole, strict=True)
        ]
        y = CutBox(of.local, of.own).of(x)
        if any(n for sides in around for n in sides):
            y = F.pad(y, [n for sides in reversed(around) for n in sides], value=fill)
    switch(before)
    return y


def _box_of(inputs: Tensor, of: InputRoute, fill: float) -> Tensor:
    """The part of the model's input, contiguous."""
    if of.is_direct:
        return inputs
    return _cut_out(inputs, of, fill, lambda phase: phase).contiguous()


def make(task: Task) -> Worker:
    """This rank's work under a plan."""
    assert isinstance(task.division, LayerwiseDivision)
    return LayerwiseWorker(task, task.division)
