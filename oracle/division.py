"""How a strategy divides training: the one strategy object of plans, predictions and training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from calib.foundation.errors import InputError

STRATEGIES = (
    "serial",
    "data",
    "spatial",
    "pipeline",
    "filter",
    "channel",
    "data+filter",
    "data+spatial",
)
SPATIAL = ("spatial", "data+spatial")
HYBRIDS = ("data+filter", "data+spatial")
# all weights on every PE, whose gradients one exchange sums
REPLICATED = ("data", *SPATIAL)
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
        if self.strategy in SPATIAL and not self.grid:
            object.__setattr__(self, "grid", (self.parts,))
            object.__setattr__(self, "grid_is_chosen", False)
        of = {
            "stage boundaries": not self.boundaries or self.strategy == "pipeline",
            "a grid": not self.grid or self.strategy in SPATIAL,
            "where the split ends": not self.split_until or self.strategy in SPATIAL,
            "overlap": not self.overlap or self.strategy == "data",
            "a sharded optimizer": not self.sharded_optimizer or self.strategy == "data",
            "gradients by all PEs of a group": (
                self.gradients == "leaders" or self.strategy == "data+spatial"
            ),
        }
        for what, right in of.items():
            if not right:
                raise InputError(f"{self.strategy} parallelism has no {what.removeprefix('a ')}")

    @property
    def faults(self) -> list[str]:
        """Why these numbers cannot be, whatever the model; empty where they can."""
        found = []
        if self.strategy == "serial" and self.p > 1:
            found.append(f"serial runs on 1 PE, not on {self.p}")
        if self.strategy in HYBRIDS and self.p % self.inner:
            found.append(f"p = {self.p} is not p1 x p2 with p2 = {self.inner}")
        elif self.grid and math.prod(self.grid) != self.parts:
            found.append(f"grid {self.grid} is not a layout of {self.parts} PEs")
        elif self.replicas > self.batch:
            what, of = ("p", "PE") if self.strategy == "data" else ("p1", "group")
            found.append(
                f"{what} = {self.replicas} is over the batch of {self.batch} samples: every {of} has "
                f"one at least, so {what} is at most {self.batch}"
            )
        elif self.batch % self.replicas:
            what = "p" if self.strategy == "data" else "p1"
            found.append(
                f"{what} = {self.replicas} does not divide the batch of {self.batch} samples"
            )
        if self.strategy == "pipeline" and self.batch % self.segments:
            found.append(
                f"{self.segments} segments do not divide the batch of {self.batch} samples"
            )
        if self.boundaries and len(self.boundaries) != self.p - 1:
            found.append(f"{len(self.boundaries)} stage boundaries are not p - 1 = {self.p - 1}")
        return found

    @cached_property
    def replicas(self) -> int:
        """Groups of PEs with different samples: p1 of a hybrid, p of data, else 1."""
        return self.p // self.inner if self.strategy in (*HYBRIDS, "data") else 1

    @cached_property
    def parts(self) -> int:
        """PEs that share a layer: p2 of a hybrid, p of spatial, filter and channel, else 1."""
        if self.strategy in HYBRIDS:
            return self.inner
        return self.p if self.strategy in ("spatial", "filter", "channel") else 1

    @cached_property
    def local_batch(self) -> int:
        """Samples that a rank runs at once: B/p, B/p1, or B/S in a pipeline."""
        segments = self.segments if self.strategy == "pipeline" else 1
        return self.batch // (self.replicas * segments)

    @property
    def layout(self) -> str:
        """What the strategy and p leave open, in words: 2 groups of 2, grid 2x2, 4 micro-batches."""
        words = []
        if self.strategy in HYBRIDS and 1 < self.inner < self.p:
            words.append(f"{self.p // self.inner} groups of {self.inner}")
        if self.strategy in SPATIAL and sum(n > 1 for n in self.grid) > 1:
            words.append(f"grid {'x'.join(map(str, self.grid))}")
        if self.strategy == "data+spatial" and self.gradients != "leaders":
            words.append(f"{self.gradients} ranks exchange")
        if self.strategy == "pipeline":
            words.append(f"{self.segments} micro-batches")
            words += [self.schedule] if self.schedule != "gpipe" else []
        marks = {"overlapped": self.overlap, "sharded optimizer": self.sharded_optimizer}
        return ", ".join([*words, *(word for word, marked in marks.items() if marked)])

    @cached_property
    def geometry(self) -> tuple[object, ...]:
        """Equal for divisions that cut a model into the same parts, whatever the batch and p1."""
        kind = "whole" if self.parts == 1 else self.strategy.removeprefix("data+")
        return kind, self.parts, self.grid if self.parts > 1 else (), self.split_until
