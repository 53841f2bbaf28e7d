"""Tasks where every rank does the same: all strategies but the pipeline.

What a rank sends beside a layer is in `Around`; it waits for each of these. Gradients are exchanged
after the last backward. Where the exchange is overlapped, the prediction has no buckets, but a part of
the exchange that the backward hides (eta): that part is a collective of its own, with as many of the
bytes as of the seconds. It begins so long before the backward's end, if need be within a layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.layers import Direction
from calib.oracle.costs.machine import Costs
from calib.oracle.layout.traffic import MULTIPLE, Message, gradient_messages
from calib.oracle.model.spec import ModelSpec
from calib.oracle.strategies.common import ADDED_UP
from calib.oracle.strategies.data import HIDDEN
from calib.oracle.tasks.around import Around, Beside
from calib.oracle.tasks.flows import around_layers
from calib.oracle.tasks.program import Iteration, Program, Task
from calib.oracle.tasks.slots import Slot, layer_slots, seconds_named, sent_seconds
from calib.oracle.tasks.units import around_units
from calib.oracle.terms import Term

NOT_WORTH_S = 1e-12  # a part of a layer, or of an exchange, that is rounding


def replica_tasks(
    model: ModelSpec, division: Division, costs: Costs, terms: Sequence[Term]
) -> Iteration:
    """The tasks of ranks that all do the same. Raises InputError for messages that cannot be placed."""
    of_rank = Replica(model, division, costs, terms).run()
    same = all(len(task.ranks) in (0, division.p) for task in of_rank.tasks)

    def program(rank: int) -> list[Task]:
        return of_rank.tasks if same else [_moved(task, rank) for task in of_rank.tasks]

    return Iteration(division.p, of_rank.ready_s, program)


def _moved(task: Task, rank: int) -> Task:
    """A task of rank 0 as one of another rank: its group has equal steps, and so have all groups."""
    if not task.ranks:
        return task
    size, stride = len(task.ranks), task.ranks[1] - task.ranks[0]
    first = rank - rank // stride % size * stride
    return task._replace(ranks=tuple(range(first, first + size * stride, stride)))


class Replica:
    """Rank 0 of them; `run` gives its program."""

    def __init__(
        self, model: ModelSpec, division: Division, costs: Costs, terms: Sequence[Term]
    ) -> None:
        self.model, self.division, self.terms = model, division, terms
        self.slots = layer_slots(model, division, costs, terms)
        make = around_units if division.shards else around_layers
        self.around: Around = make(model, division, costs, terms)
        self.messages = gradient_messages(model, division)
        seconds = sent_seconds(terms, ["exchange"], leave_out=HIDDEN)
        if len(seconds) != len(self.messages):
            raise InputError(f"the gradients of {division.strategy} are not sent one by one")
        self.exchange_s = seconds
        self.program = Program()

    def run(self) -> Program:
        """All tasks of an iteration."""
        turns = self.division.accumulation
        added = seconds_named(self.terms, ADDED_UP) / max(1, turns - 1)
        sent: list[int] = []
        for turn in range(turns):
            of = f", micro-batch {turn}" if turns > 1 else ""
            self._layers("forward", self.slots["forward"], of)
            if turn == turns - 1:
                sent = self._last_backward(of)
            else:
                self._layers("backward", self.slots["backward"], of)
            if turn and added:
                self.program.add(f"{ADDED_UP}{of}", added)
        self._exchange(sent)
        return self.program

    def _layers(self, direction: Direction, slots: Sequence[Slot], of: str) -> None:
        for place, seconds in slots:
            self._layer(direction, place, seconds, of)

    def _layer(self, direction: Direction, place: int, seconds: float, of: str) -> None:
        before, after = self.around.at(direction, place)
        for beside in before:
            self._beside(beside)
        if seconds > 0:
            self.program.add(f"{direction} of {self.model.layers[place].name}{of}", seconds)
        for beside in after:
            self._beside(beside)

    def _beside(self, beside: Beside) -> None:
        if beside.message is None:
            self.program.add(beside.name, beside.seconds)
        else:
            self._send(beside.message, beside.seconds, beside.name)

    def _send(
        self, message: Message, seconds: float, name: str = "", after: tuple[int, ...] | None = None
    ) -> int:
        size, stride = message.group_size, message.stride
        return self.program.add(
            name or f"{message.operation} of {message.why}",
            seconds,
            "collective",
            after=after,
            operation=message.operation,
            nbytes=message.nbytes,
            ranks=tuple(range(0, size * stride, stride)),
        )

    def _last_backward(self, of: str) -> list[int]:
        """With the part of the exchange that it hides, which is returned."""
        hidden = -seconds_named(self.terms, HIDDEN)
        slots = self.slots["backward"]
        if hidden <= NOT_WORTH_S:
            self._layers("backward", slots, of)
            return []
        left = sum(slot.seconds for slot in slots)
        sent: list[int] = []
        for place, seconds in slots:
            left -= seconds
            if sent or left >= hidden or not seconds:
                self._layer("backward", place, seconds, of)
                continue
            first = max(0.0, left + seconds - hidden)
            if first > NOT_WORTH_S:
                self._layer("backward", place, first, of)
            sent.append(self._send_hidden(hidden))
            self._layer("backward", place, seconds - first, f"{of}, while gradients are sent")
        return sent

    def _send_hidden(self, hidden: float) -> int:
        message, seconds = self.messages[0], self.exchange_s[0]
        nbytes = round(message.nbytes * min(1.0, hidden / seconds) / MULTIPLE) * MULTIPLE
        if seconds - hidden <= NOT_WORTH_S:
            nbytes = message.nbytes
        elif not 0 < nbytes < message.nbytes:
            raise InputError(f"an exchange of {message.nbytes} bytes has no part that is hidden")
        self.messages[0] = message._replace(nbytes=message.nbytes - nbytes)
        self.exchange_s[0] = max(0.0, seconds - hidden)
        part = message._replace(nbytes=nbytes, why=f"{message.why}, behind the backward")
        return self._send(part, hidden, after=self.program.waits_for)

    def _exchange(self, sent: Sequence[int]) -> None:
        """Gradients, packed and unpacked; a sharded optimizer gathers its weights after the update."""
        program, update = self.program, seconds_named(self.terms, "weight update")
        packed = {} if self.division.shards else {w: self._packing(w) for w in ("pack", "unpack")}
        sending = list(zip(self.messages, self.exchange_s, strict=True))
        late = sending[1:] if self.division.sharded_optimizer else []
        if sending:
            program.add("pack the gradients", packed["pack"])
        program.join(*sent)
        for message, seconds in sending[: len(sending) - len(late)]:
            if message.nbytes:
                self._send(message, seconds)
        if sending:
            program.add("unpack the gradients", packed["unpack"])
        program.add("weight update", update)
        for message, seconds in late:
            self._send(message, seconds)

    def _packing(self, name: str) -> float:
        return seconds_named(self.terms, f"{name} the gradients")
