"""Tasks of a pipeline: each rank has its stage's layers, and sends tensors to its neighbours.

A message is a send of the one rank and a receive of the other, which ends when the message is there, or
at once if it came before. A sender of the same node, and any under 1F1B, computes on when it has sent;
between nodes GPipe's messages travel beside what their stages compute, one after the other on a link.

Under GPipe a message inside a node also occupies its receiver from when both are ready
(oracle/strategies/stage_terms.py). A receive that comes late has less to wait for than that: the rest is
a task of its own, in which the receiver computes ("copied by its receiver").

All stages update as long as the slowest, as predicted; the iteration ends with the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.layers import Direction
from calib.oracle.costs.machine import Costs
from calib.oracle.layout.stages import crossings, ties
from calib.oracle.layout.traffic import message_bytes, tied_messages
from calib.oracle.model.spec import ModelSpec
from calib.oracle.strategies.stage_terms import Stages
from calib.oracle.tasks.program import Iteration, Program
from calib.oracle.tasks.slots import seconds_named, sent_seconds
from calib.oracle.terms import Term

MOST_TASKS = 4_000_000
PASSES = ("pack", "unpack")


def pipeline_tasks(
    model: ModelSpec, division: Division, costs: Costs, terms: Sequence[Term]
) -> Iteration:
    """The tasks of every stage. Raises InputError for more than MOST_TASKS."""
    count = 2 * division.segments * (len(model.layers) + 2 * division.p)
    if count > MOST_TASKS:
        raise InputError(
            f"{division.segments} micro-batches of {len(model.layers)} layers on {division.p} ranks are "
            f"{count} tasks, more than {MOST_TASKS}"
        )
    pipeline = Pipeline(model, division, costs)
    pipeline.run()
    pipeline.finish(terms)
    programs = [rank.tasks for rank in pipeline.ranks]
    seconds = max(rank.ready_s for rank in pipeline.ranks)
    return Iteration(division.p, seconds, programs.__getitem__)


class Pipeline:
    """The ranks of a pipeline, whose slots are run as soon as what they need has been sent."""

    def __init__(self, model: ModelSpec, division: Division, costs: Costs) -> None:
        self.model, self.division = model, division
        self.stages = Stages(model, division, costs)
        self.ranks = [Program() for _ in range(division.p)]
        # of a message: (direction, stage that gets it, micro-batch) -> when it is sent, and is there
        self._sent: dict[tuple[Direction, int, int], tuple[float, float]] = {}
        self._link: dict[
            tuple[Direction, int], int
        ] = {}  # the last send of a stage to another node
        through = crossings(model)
        self._crossing = [through[border] for border in division.boundaries]

    def run(self) -> None:
        """All slots of all stages, round by round."""
        p = self.division.p
        slots = [list(reversed(self._order(stage))) for stage in range(p)]
        while any(slots):
            for stage in range(p):
                while slots[stage] and self._arrived(stage, *slots[stage][-1]):
                    self._slot(stage, *slots[stage].pop())

    def _order(self, stage: int) -> list[tuple[Direction, int]]:
        """GPipe: all forwards, then all backwards. 1F1B: as many forwards ahead as stages behind."""
        count = self.division.segments
        ahead = count
        if self.division.schedule == "1f1b":
            ahead = min(count, self.division.p - 1 - stage)
        order: list[tuple[Direction, int]] = [("forward", j) for j in range(ahead)]
        for j in range(ahead, count):
            order += [("forward", j), ("backward", j - ahead)]
        return order + [("backward", j) for j in range(count - ahead, count)]

    def _arrived(self, stage: int, direction: Direction, j: int) -> bool:
        first = 0 if direction == "forward" else self.division.p - 1
        return stage == first or (direction, stage, j) in self._sent

    def _slot(self, stage: int, direction: Direction, j: int) -> None:
        """Receive, run the layers, and send on."""
        rank, forward = self.ranks[stage], direction == "forward"
        if (direction, stage, j) in self._sent:
            self._receive(stage, direction, j)
        first, end = self.stages.borders[stage]
        seconds = self.stages.layers.seconds[direction]
        for place in range(first, end) if forward else range(end - 1, first - 1, -1):
            if seconds[place] > 0:
                name = f"{direction} of {self.model.layers[place].name}, micro-batch {j}"
                rank.add(name, seconds[place])
        to = stage + 1 if forward else stage - 1
        if 0 <= to < self.division.p:
            self._send(stage, to, direction, j)

    def _tensors(self, direction: Direction, border: int) -> int:
        """Bytes of all tensors that cross a border in one direction."""
        crossing, batch = self._crossing[border], self.division.local_batch
        items = crossing.forward if direction == "forward" else crossing.backward
        each = self.model.items.activation_bytes
        if not items:
            raise InputError(f"no tensor goes {direction} between stages {border} and {border + 1}")
        return sum(message_bytes(n * batch, each) for n in items)

    def _send(self, stage: int, to: int, direction: Direction, j: int) -> None:
        rank, border = self.ranks[stage], min(stage, to)
        apart = self.stages.apart[border]
        after = None
        if apart:
            last = self._link.get((direction, stage))
            after = rank.waits_for if last is None else (*rank.waits_for, last)
        sent = rank.add(
            f"send of {self._what(direction)}, micro-batch {j}",
            self.stages.sends[direction][stage].seconds,
            "send",
            after=after,
            **self._about(stage, to, direction, j),
        )
        if apart:
            self._link[direction, stage] = sent
        task = rank.tasks[sent]
        self._sent[direction, to, j] = task.begin_s, task.end_s

    def _about(self, source: int, to: int, direction: Direction, j: int) -> dict[str, Any]:
        nbytes = self._tensors(direction, min(source, to))
        return {"nbytes": nbytes, "ranks": (source, to), "tag": j}

    def _what(self, direction: Direction) -> str:
        return "y" if direction == "forward" else "dL/dx"

    def _receive(self, stage: int, direction: Direction, j: int) -> None:
        rank, source = self.ranks[stage], stage - 1 if direction == "forward" else stage + 1
        begun, there = self._sent[direction, stage, j]
        ready = rank.ready_s
        what = f"{self._what(direction)}, micro-batch {j}"
        about = self._about(source, stage, direction, j)
        rank.add(f"receive of {what}", 0.0, "receive", there, **about)
        near = not self.stages.apart[min(source, stage)]
        if self.division.schedule == "gpipe" and near:
            held = max(ready, begun) + (there - begun)
            if held > rank.ready_s:
                rank.add(f"{what}, copied by its receiver", 0.0, not_before_s=held)

    def finish(self, terms: Sequence[Term]) -> None:
        """The sums of tied gradients, and the update."""
        exchange = sent_seconds(terms, ["exchange"])
        messages = tied_messages(self.model, self.division)
        of = ties(self.model, self.division.boundaries)
        members = sorted({stage for tie in of for stage in tie.stages})
        pack, unpack = (seconds_named(terms, f"{name} the gradients") for name in PASSES)
        for stage in members:
            self.ranks[stage].add("pack the gradients", pack)
        for tie, message, seconds in zip(of, messages, exchange, strict=True):
            ready = max(self.ranks[stage].ready_s for stage in tie.stages)
            for stage in tie.stages:
                self.ranks[stage].add(
                    f"{message.operation} of {message.why}",
                    0.0,
                    "collective",
                    ready + seconds,
                    operation=message.operation,
                    nbytes=message.nbytes,
                    ranks=tie.stages,
                )
        for stage in members:
            self.ranks[stage].add("unpack the gradients", unpack)
        for rank in self.ranks:
            rank.add("weight update", seconds_named(terms, "weight update of the slowest stage"))
