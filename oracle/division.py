"""How a strategy divides training: the one strategy object of plans, predictions and training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from calib.foundation.errors import InputError

Cut = Literal["", "image", "filters", "channels"]


@dataclass(frozen=True)
class StrategyTraits:
    """How a strategy divides training: what other rooms ask of it. Its name is for people.

    `module` is its file in oracle/strategies and in training/strategies. `cuts`: of what the ranks
    that share samples have parts each. `replicas`: groups of ranks have different samples. `stages`:
    each rank has a run of layers. `options`: fields of Division that it takes beside p and the batch.
    """

    module: str
    cuts: Cut = ""
    replicas: bool = False
    stages: bool = False
    options: tuple[str, ...] = ()

    @property
    def hybrid(self) -> bool:
        """Whether p is p1 groups of p2 ranks that share samples."""
        return self.replicas and bool(self.cuts)

    @property
    def replicated(self) -> bool:
        """Whether every rank has all weights, whose gradients one exchange sums."""
        return self.cuts == "image" or (self.replicas and not self.cuts)

    @property
    def whole(self) -> bool:
        """Whether every rank runs the model as it is: it need not be known layer by layer."""
        return bool(self.module) and not self.cuts and not self.stages

    @property
    def parallel(self) -> bool:
        """Whether ranks work together at all; serial training has one."""
        return self.replicas or self.stages or bool(self.cuts)


STRATEGIES = {
    "serial": StrategyTraits("serial"),
    "data": StrategyTraits("data", replicas=True, options=("overlap", "sharded_optimizer")),
    "spatial": StrategyTraits("spatial", "image", options=("grid", "split_until")),
    "pipeline": StrategyTraits(
        "pipeline", stages=True, options=("segments", "schedule", "boundaries")
    ),
    "filter": StrategyTraits("filter", "filters"),
    "channel": StrategyTraits("channel", "channels"),
    "data+filter": StrategyTraits("data_filter", "filters", replicas=True, options=("inner",)),
    "data+spatial": StrategyTraits(
        "data_spatial", "image", True, options=("inner", "grid", "split_until", "gradients")
    ),
}
UNKNOWN = StrategyTraits("")  # of training of somebody else, and of a plan that has no strategy
# options that are refused where a strategy does not take them, as words
OPTION_WORDS = {
    "boundaries": "stage boundaries",
    "grid": "grid",
    "split_until": "where the split ends",
    "overlap": "overlap",
    "sharded_optimizer": "sharded optimizer",
    "gradients": "gradients by all PEs of a group",
}


def traits_of(strategy: str) -> StrategyTraits:
    """How the strategy of that name divides training; UNKNOWN of one that is none of ours."""
    return STRATEGIES.get(strategy, UNKNOWN)


def taking(option: str) -> list[str]:
    """The strategies that take an option: a field of Division."""
    return [name for name, traits in STRATEGIES.items() if option in traits.options]


Schedule = Literal["gpipe", "1f1b"]
# who takes gradients across the groups of data+spatial
Gradients = Literal["leaders", "all"]


@dataclass(frozen=True)
class Division:
    """How a strategy divides training over p PEs; `batch` is the global mini-batch B.

    `inner` is p2, the PEs of a hybrid that share their samples (p1 = p / p2 such groups). `segments`
    is S of a pipeline (others ignore it), `schedule` the order of its micro-batches, `boundaries` the
    index of the first layer of each stage but the first (none: balanced). `grid` is the layout of the
    parts of an image, (height,), (height, width) or (height, width, depth), of as many PEs as share
    it; without one a model's best is taken (oracle/layout/shards.py, fitted). `split_until` names the
    last layer that a spatial strategy splits (none: the last that can be). `overlap`: gradients are
    exchanged during the backward; `sharded_optimizer`: each PE updates 1/p of the weights, then they
    are gathered (both of data). `gradients` of data+spatial: a leader of each group sums them across
    the groups (the paper, section 4.5), or all PEs, each a 1/p2 of them.

    Raises InputError for what no model and no machine could make sense of. Numbers that do not divide
    are no error but an answer: `faults`.
    """

    strategy: str
    p: int
    batch: int
    inner: int = 1
    segments: int = 1
    grid: tuple[int, ...] = ()
    schedule: Schedule = "gpipe"
    boundaries: tuple[int, ...] = ()
    split_until: str = ""
    overlap: bool = False
    sharded_optimizer: bool = False
    gradients: Gradients = "leaders"
    grid_is_chosen: bool = field(init=False, default=True, compare=False)

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise InputError(f"unknown strategy {self.strategy!r}; known: {', '.join(STRATEGIES)}")
        if min(self.p, self.batch, self.inner, self.segments, *self.grid, 1) < 1:
            raise InputError("p, the batch, p2, the segments and the grid must be at least 1")
        if self.schedule not in ("gpipe", "1f1b"):
            raise InputError(f"unknown schedule {self.schedule!r}; known: gpipe, 1f1b")
        if self.gradients not in ("leaders", "all"):
            raise InputError(f"unknown gradients {self.gradients!r}; known: leaders, all")
        if self.traits.cuts == "image" and not self.grid:
            object.__setattr__(self, "grid", (self.parts,))
            object.__setattr__(self, "grid_is_chosen", False)
        usual = {"gradients": "leaders"}
        for option, words in OPTION_WORDS.items():
            given = getattr(self, option) not in ((), "", False, usual.get(option))
            if given and option not in self.traits.options:
                raise InputError(f"{self.strategy} parallelism has no {words}")

    @cached_property
    def traits(self) -> StrategyTraits:
        """How the strategy divides training."""
        return traits_of(self.strategy)

    @property
    def faults(self) -> list[str]:
        """Why these numbers cannot be, whatever the model; empty where they can."""
        found = []
        if self.traits.module and not self.traits.parallel and self.p > 1:
            found.append(f"{self.strategy} runs on 1 PE, not on {self.p}")
        if self.traits.hybrid and self.p % self.inner:
            found.append(f"p = {self.p} is not p1 x p2 with p2 = {self.inner}")
        elif self.grid and math.prod(self.grid) != self.parts:
            found.append(f"grid {self.grid} is not a layout of {self.parts} PEs")
        elif self.replicas > self.batch:
            what, of = ("p1", "group") if self.traits.hybrid else ("p", "PE")
            found.append(
                f"{what} = {self.replicas} is over the batch of {self.batch} samples: every {of} has "
                f"one at least, so {what} is at most {self.batch}"
            )
        elif self.batch % self.replicas:
            what = "p1" if self.traits.hybrid else "p"
            found.append(
                f"{what} = {self.replicas} does not divide the batch of {self.batch} samples"
            )
        if self.traits.stages and self.batch % self.segments:
            found.append(
                f"{self.segments} segments do not divide the batch of {self.batch} samples"
            )
        if self.boundaries and len(self.boundaries) != self.p - 1:
            found.append(f"{len(self.boundaries)} stage boundaries are not p - 1 = {self.p - 1}")
        return found

    @cached_property
    def replicas(self) -> int:
        """Groups of PEs with different samples: p1 of a hybrid, p of data, else 1."""
        return self.p // self.inner if self.traits.replicas else 1

    @cached_property
    def parts(self) -> int:
        """PEs that share a layer: p2 of a hybrid, p of spatial, filter and channel, else 1."""
        if self.traits.hybrid:
            return self.inner
        return self.p if self.traits.cuts else 1

    @cached_property
    def local_batch(self) -> int:
        """Samples that a rank runs at once: B/p, B/p1, or B/S in a pipeline."""
        segments = self.segments if self.traits.stages else 1
        return self.batch // (self.replicas * segments)

    @property
    def layout(self) -> str:
        """What the strategy and p leave open, in words: 2 groups of 2, grid 2x2, 4 micro-batches."""
        words = []
        if self.traits.hybrid and 1 < self.inner < self.p:
            words.append(f"{self.p // self.inner} groups of {self.inner}")
        if self.traits.cuts == "image" and sum(n > 1 for n in self.grid) > 1:
            words.append(f"grid {'x'.join(map(str, self.grid))}")
        if self.gradients != "leaders":
            words.append(f"{self.gradients} ranks exchange")
        if self.traits.stages:
            words.append(f"{self.segments} micro-batches")
            words += [self.schedule] if self.schedule != "gpipe" else []
        marks = {"overlapped": self.overlap, "sharded optimizer": self.sharded_optimizer}
        return ", ".join([*words, *(word for word, marked in marks.items() if marked)])

    @cached_property
    def geometry(self) -> tuple[object, ...]:
        """Equal for divisions that cut a model into the same parts, whatever the batch and p1."""
        kind = "whole" if self.parts == 1 else self.strategy.removeprefix("data+")
        return kind, self.parts, self.grid if self.parts > 1 else (), self.split_until
