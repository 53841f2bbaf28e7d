"""How training is divided over ranks: one record, inside every other that says what ran or will."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from calib.foundation.errors import InputError
from calib.foundation.names import RankCount, StrategyLabel
from calib.foundation.quantities import Count, CountOrNone, Ranks

CutWhat = Literal["", "image", "filters", "channels", "regions", "tokens"]


@dataclass(frozen=True)
class StrategyTraits:
    """How a strategy divides training.

    `module` is its file in oracle/strategies and in training/strategies. `cuts`: what the ranks that
    share samples split. `replicas`: groups of ranks have different samples. `stages`: each rank has a
    run of layers. `shards`: each rank keeps 1/p of weights, gradients and optimizer state, and gathers
    weights for their layers. `options`: fields of Division that it takes beside p and the batch.
    """

    module: str
    cuts: CutWhat = ""
    replicas: bool = False
    stages: bool = False
    shards: bool = False
    options: tuple[str, ...] = ()

    @property
    def hybrid(self) -> bool:
        """Whether p is p1 groups of p2 ranks that share samples."""
        return self.replicas and bool(self.cuts)

    @property
    def replicated(self) -> bool:
        """Whether every rank has all weights, whose gradients one exchange sums."""
        if self.cuts in ("image", "tokens"):
            return True
        return self.replicas and not self.cuts and not self.shards

    @property
    def whole(self) -> bool:
        """Whether every rank runs the model as it is: it need not be known layer by layer."""
        return bool(self.module) and not self.cuts and not self.stages

    @property
    def parallel(self) -> bool:
        """Whether ranks work together at all; serial training has one."""
        return self.replicas or self.stages or bool(self.cuts)


STRATEGIES = {
    "serial": StrategyTraits("serial", options=("accumulation",)),
    "data": StrategyTraits(
        "data", replicas=True, options=("overlap", "sharded_optimizer", "accumulation")
    ),
    "fully_sharded": StrategyTraits("fully_sharded", replicas=True, shards=True),
    "spatial": StrategyTraits("spatial", "image", options=("grid", "split_until")),
    "pipeline": StrategyTraits(
        "pipeline", stages=True, options=("segments", "schedule", "boundaries")
    ),
    "filter": StrategyTraits("filter", "filters"),
    "channel": StrategyTraits("channel", "channels"),
    "tensor": StrategyTraits("tensor", "regions", options=("sequence_parallel",)),
    "sequence": StrategyTraits("sequence", "tokens"),
    "data+filter": StrategyTraits("data_filter", "filters", replicas=True, options=("inner",)),
    "data+spatial": StrategyTraits(
        "data_spatial", "image", True, options=("inner", "grid", "split_until", "gradients")
    ),
}
CALIBRATED = ("serial", "data")  # by default
UNKNOWN = StrategyTraits("")  # of a plan per layer, and of imported training
# options that a strategy without them refuses: in words, and their defaults
OPTION_WORDS = {
    "boundaries": ("stage boundaries", ()),
    "grid": ("grid", ()),
    "split_until": ("where the split ends", ""),
    "overlap": ("overlap", False),
    "sharded_optimizer": ("sharded optimizer", False),
    "sequence_parallel": ("sequence parallelism", False),
    "gradients": ("gradients by all ranks of a group", "leaders"),
    "accumulation": ("accumulation of gradients", 1),
}


def traits_of(strategy: str) -> StrategyTraits:
    """How the strategy of that name divides training; UNKNOWN for one that calib does not have."""
    return STRATEGIES.get(strategy, UNKNOWN)


def taking(option: str) -> list[str]:
    """The strategies that take an option: a field of Division."""
    return [name for name, traits in STRATEGIES.items() if option in traits.options]


Schedule = Literal["gpipe", "1f1b"]
# who takes gradients across the groups of data+spatial
Gradients = Literal["leaders", "all"]


@dataclass(frozen=True)
class Division:
    """How training is divided over p ranks: the field's parallel configuration.

    Numbers that do not divide and options that a strategy does not take are not errors here but
    `faults`: a record may be of imported training, under a strategy that calib does not have.

    Raises
    ------
    InputError
        A number under 1, an unknown schedule or gradients.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    strategy: StrategyLabel
    p: RankCount
    batch: Annotated[Count, Field(description="global mini-batch B, samples")]
    inner: Annotated[
        Ranks, Field(description="p2 of a hybrid: ranks that share samples, in p / p2 groups")
    ] = 1
    segments: Annotated[Count, Field(description="S of a pipeline: micro-batches")] = 1
    grid: Annotated[
        tuple[Ranks, ...],
        Field(
            description="parts of an image along height, width, depth; empty: not chosen, the best for "
            "the model is taken"
        ),
    ] = ()
    schedule: Annotated[Schedule, Field(description="order of a pipeline's micro-batches")] = (
        "gpipe"
    )
    boundaries: Annotated[
        tuple[CountOrNone, ...],
        Field(description="index of the first layer of each later stage; empty: balanced"),
    ] = ()
    split_until: Annotated[
        str, Field(description='the last layer that is split; "": the last that can be')
    ] = ""
    overlap: Annotated[
        bool, Field(description="whether gradients are exchanged during the backward (data)")
    ] = False
    sharded_optimizer: Annotated[
        bool,
        Field(description="whether each rank updates 1/p of the weights, then they are gathered"),
    ] = False
    sequence_parallel: Annotated[
        bool,
        Field(
            description="whether each rank has 1/p of the tokens between the regions of tensor "
            "(Korthikanti et al. 2022)"
        ),
    ] = False
    gradients: Annotated[
        Gradients,
        Field(
            description="who sums them across the groups of data+spatial: a leader of each group "
            "(ParaDL section 4.5), or all ranks, each a 1/p2 of them"
        ),
    ] = "leaders"
    accumulation: Annotated[
        Count,
        Field(
            description="micro-batches that a rank runs one after the other, adding up their "
            "gradients, before these are exchanged"
        ),
    ] = 1

    def __post_init__(self) -> None:
        counts = self.p, self.batch, self.inner, self.segments, self.accumulation
        if min(*counts, *self.grid) < 1:
            raise InputError(
                "p, the batch, p2, the segments, the accumulation and the grid must be at least 1"
            )
        if self.schedule not in ("gpipe", "1f1b"):
            raise InputError(f"unknown schedule {self.schedule!r}; known: gpipe, 1f1b")
        if self.gradients not in ("leaders", "all"):
            raise InputError(f"unknown gradients {self.gradients!r}; known: leaders, all")

    @cached_property
    def traits(self) -> StrategyTraits:
        """How the strategy divides training."""
        return traits_of(self.strategy)

    @property
    def faults(self) -> list[str]:
        """Why this is impossible, whatever the model; empty where it is not."""
        if not self.traits.module:
            return [f"unknown strategy {self.strategy!r}; known: {', '.join(STRATEGIES)}"]
        found = [
            f"{self.strategy} parallelism has no {words}"
            for option, (words, without) in OPTION_WORDS.items()
            if option not in self.traits.options and getattr(self, option) != without
        ]
        if not self.traits.parallel and self.p > 1:
            found.append(f"{self.strategy} runs on 1 rank, not on {self.p}")
        if self.traits.hybrid and self.p % self.inner:
            found.append(f"p = {self.p} is not p1 x p2 with p2 = {self.inner}")
        elif self.traits.cuts == "image" and math.prod(self.cells) != self.parts:
            found.append(f"grid {self.cells} is not a layout of {self.parts} ranks")
        elif self.replicas > self.batch:
            what, of = ("p1", "group") if self.traits.hybrid else ("p", "rank")
            found.append(
                f"{what} = {self.replicas} is over the batch of {self.batch} samples: every {of} has "
                f"one at least, so {what} is at most {self.batch}"
            )
        elif self.batch % self.replicas:
            what = "p1" if self.traits.hybrid else "p"
            found.append(
                f"{what} = {self.replicas} does not divide the batch of {self.batch} samples"
            )
        elif self.batch % (self.replicas * self.accumulation):
            found.append(
                f"{self.accumulation} micro-batches do not divide the {self.batch // self.replicas} "
                "samples of a rank"
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
        """Groups of ranks with different samples: p1 of a hybrid, p of data, else 1."""
        return self.p // self.inner if self.traits.replicas else 1

    @cached_property
    def parts(self) -> int:
        """Ranks that share a layer: p2 of a hybrid, p of all that cut layers, else 1."""
        if self.traits.hybrid:
            return self.inner
        return self.p if self.traits.cuts else 1

    @cached_property
    def cells(self) -> tuple[int, ...]:
        """The grid of the parts of an image; along the height where none is chosen."""
        return self.grid or ((self.parts,) if self.traits.cuts == "image" else ())

    @property
    def shards(self) -> bool:
        """Whether each rank keeps 1/p of all weights, gradients and optimizer state."""
        return self.traits.shards and self.p > 1

    @property
    def batch_per_rank(self) -> int | float:
        """B / p, samples; whole where it is."""
        each, rest = divmod(self.batch, self.p)
        return self.batch / self.p if rest else each

    @cached_property
    def local_batch(self) -> int:
        """Samples that a rank runs at once: B/p, B/p1, of these a micro-batch; B/S in a pipeline."""
        segments = self.segments if self.traits.stages else 1
        return self.batch // (self.replicas * segments * self.accumulation)

    @property
    def layout(self) -> str:
        """What the strategy and p leave open, in words: 2 groups of 2, grid 2x2, 4 micro-batches."""
        words = []
        if self.traits.hybrid and 1 < self.inner < self.p:
            words.append(f"{self.p // self.inner} groups of {self.inner}")
        if self.traits.cuts == "image" and sum(n > 1 for n in self.cells) > 1:
            words.append(f"grid {'x'.join(map(str, self.cells))}")
        if self.gradients != "leaders":
            words.append(f"{self.gradients} ranks exchange")
        if self.traits.stages:
            words.append(f"{self.segments} micro-batches")
            words += [self.schedule] if self.schedule != "gpipe" else []
        if self.accumulation > 1:
            words.append(f"{self.accumulation} accumulated")
        return ", ".join([*words, *self._marks])

    @property
    def words(self) -> str:
        """The strategy and its layout: data, overlapped; data+filter, 2 groups of 2."""
        return ", ".join(filter(None, (self.strategy, self.layout)))

    @property
    def slug(self) -> str:
        """The strategy in the name of a file: data, data-overlapped, data-sharded."""
        return "-".join([self.strategy, *(mark.split()[0] for mark in self._marks)])

    @property
    def _marks(self) -> list[str]:
        marks = {
            "overlapped": self.overlap,
            "sharded optimizer": self.sharded_optimizer,
            "sequence parallel": self.sequence_parallel,
        }
        return [mark for mark, is_so in marks.items() if is_so]

    @property
    def cuts_tokens(self) -> bool:
        """Whether each rank has a part of the tokens between regions."""
        return self.sequence_parallel and self.parts > 1

    @cached_property
    def geometry(self) -> tuple[object, ...]:
        """Equal for divisions that cut a model into the same parts, whatever the batch and p1."""
        whole = self.parts == 1 and not self.shards
        kind = "whole" if whole else self.strategy.removeprefix("data+")
        cells = self.cells if self.parts > 1 else ()
        return kind, self.parts, cells, self.split_until, self.cuts_tokens


class Divided(BaseModel):
    """Base of the records of training that was, or will be, divided."""

    model_config = ConfigDict(frozen=True)

    division: Division = Field(description="how training is divided")

    @property
    def strategy(self) -> str:
        """The division's."""
        return self.division.strategy

    @property
    def p(self) -> int:
        """The division's number of ranks."""
        return self.division.p

    @property
    def batch_per_rank(self) -> int | float:
        """The division's B / p, samples."""
        return self.division.batch_per_rank
