"""Training iterations as SimGrid plays them: what iteration.c reads, and what the oracle predicts.

Computation takes the same seconds on both sides, those of laws made here; what differs is messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise, repeat

from torch import nn

from calib.fitting.parameters.file import Parameters, TensorLoop, WorkModel
from calib.foundation.division import Division
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.shards import fitted, why_impossible
from calib.oracle.layout.stages import crossings
from calib.oracle.layout.traffic import Message, message_bytes, messages
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import divided, project
from calib.oracle.projection import Projection
from calib.oracle.strategies.stage_terms import Stages
from calib.oracle.template import DivisionTemplate
from calib.oracle.trace.tracing import trace

STRATEGIES = (
    *("serial", "data", "filter", "pipeline", "data+filter"),
    *("channel", "spatial", "data+spatial"),
)
# every strategy on 512 ranks, all but filter and channel on 1,024; buffers of 13 MB at most
CHANNELS, IMAGE, DEEP_LAYERS = 512, 32, 1024
SHARED_BATCH = 4  # samples where all ranks share them; elsewhere one for each rank
MICRO_BATCHES = 16
KINDS = ("conv", "linear", "any")
DIRECTIONS = ("forward", "backward")
COMPUTES = ("forward", "backward", "pack", "update")


def computing(network: Parameters) -> Parameters:
    """Fitted collectives with laws of layers that have no error: 10 Tflop/s, 1 TB/s."""
    work = [
        WorkModel(
            kind=kind,
            direction=direction,
            active_ranks=active,
            call_s=1e-5,
            s_per_flop=1e-13,
            s_per_byte=1e-12,
            error_factor=1.0,
            max_flops=1e15,
            max_bytes=1e13,
            n_layers=9,
        )
        for kind in KINDS
        for direction in DIRECTIONS
        for active in (1, network.ranks_per_node)
    ]
    loops = [
        TensorLoop(
            operation=operation,
            active_ranks=active,
            call_s=1e-6,
            s_per_tensor=1e-6,
            s_per_byte=1e-12,
            error_factor=1.0,
            max_bytes=1e13,
        )
        for operation in ("update", "pack", "unpack", "concat", "split")
        for active in (1, network.ranks_per_node)
    ]
    return network.model_copy(update={"work": work, "tensor_loops": loops})


@cache
def wide() -> ModelSpec:
    """A few convolutions with many filters and channels."""
    layers = [nn.Conv2d(CHANNELS, CHANNELS, kernel, padding=kernel // 2) for kernel in (1, 3, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, CHANNELS)]
    shape = (CHANNELS, IMAGE, IMAGE)
    return trace(nn.Sequential(*layers, *head), shape, "wide", "cross_entropy")


@cache
def deep() -> ModelSpec:
    """As many convolutions as there are ranks, each like the second."""
    layers = [nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 64)]
    found = trace(nn.Sequential(*layers, *head), (64, IMAGE, IMAGE), "deep", "cross_entropy")
    first, second, *others = found.layers
    names = [first.name, *(f"c{k}" for k in range(2, DEEP_LAYERS)), second.name]
    more = [
        second.model_copy(update={"name": name, "inputs": (before,)})
        for before, name in pairwise(names)
    ]
    return found.model_copy(update={"layers": (first, *more, *others)})


@dataclass(frozen=True)
class Played:
    """A strategy on some ranks, possible for its model."""

    model: ModelSpec
    division: Division

    @property
    def name(self) -> str:
        """Of the strategy."""
        return self.division.strategy

    def prediction(self, machine: Machine) -> Projection:
        """What the oracle says of it."""
        return project(self.model, self.division, machine)

    def steps(self, machine: Machine) -> Iterator[str]:
        """The lines that iteration.c reads; of the machine, only what computing takes."""
        if self.division.traits.stages and self.division.p > 1:
            return self._stages(machine)
        phases = self.prediction(machine).phases
        seconds = sum(phases[name].value for name in COMPUTES if name in phases)
        return self._messages(seconds)

    def _messages(self, seconds: float) -> Iterator[str]:
        """Equal parts of the computation before every message, and after the last."""
        found = messages(self.model, self.division)
        part = f"compute {seconds / (len(found) + 1)!r}"
        return chain([part], *zip(map(_line, found), repeat(part), strict=False))

    def _stages(self, machine: Machine) -> Iterator[str]:
        division = divided(self.model, self.division, machine)
        active = min(division.p, machine.parameters.ranks_per_node)
        costs = machine.costs(active, "momentum", self.model.execution)
        stages, through = Stages(self.model, division, costs), crossings(self.model)
        update = self.prediction(machine).phases["update"].value
        yield f"pipeline {division.segments}"
        borders = (*division.boundaries, None)
        times = zip(stages.slots["forward"], stages.slots["backward"], borders, strict=True)
        for forward, backward, border in times:
            items = 0 if border is None else sum(through[border].forward)
            nbytes = message_bytes(items * division.local_batch, self.model.items.activation_bytes)
            yield f"stage {forward!r} {backward!r} {nbytes}"
        yield f"compute {update!r}"


def _line(message: Message) -> str:
    numbers = (message.nbytes, message.group_size, message.stride, message.groups, message.inner)
    return " ".join(map(str, (message.operation, *numbers, *message.grid)))


def played(strategy: str, ranks: int, ranks_per_node: int) -> Played | None:
    """A strategy on so many ranks; None if it cannot be divided so."""
    if (strategy == "serial") != (ranks == 1):
        return None
    model = deep() if strategy == "pipeline" else wide()
    batch = SHARED_BATCH
    if strategy == "pipeline":
        batch = MICRO_BATCHES
    elif strategy.startswith("data"):
        batch = ranks
    template = DivisionTemplate(strategy, segments=MICRO_BATCHES)
    division = fitted(model, template.division(ranks, batch, ranks_per_node, model))
    return None if why_impossible(model, division) else Played(model, division)
