"""The tasks of one rank, each with its predicted begin and end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from calib.foundation.collectives import Operation

Kind = Literal["compute", "collective", "send", "receive"]


class Task(NamedTuple):
    """What a rank does from `begin_s` to `end_s`, seconds from the iteration's begin.

    It begins when the tasks `after` it (indices) have ended. A receive begins when the rank is ready for
    it and ends when the message is there. `nbytes` is the whole buffer of a collective, as a Message has
    it. `ranks` are the members of a collective, or the sender and the receiver of a message, which
    `tag` tells apart from others between the two.
    """

    name: str
    kind: Kind
    begin_s: float
    end_s: float
    after: tuple[int, ...]
    operation: Operation = "p2p"
    nbytes: int = 0
    ranks: tuple[int, ...] = ()
    tag: int = 0


class Program:
    """Tasks in the order in which a rank issues them; one follows the other unless told otherwise."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.waits_for: tuple[int, ...] = ()

    @property
    def ready_s(self) -> float:
        """When the next task can begin."""
        return self.ended(self.waits_for)

    def ended(self, tasks: Sequence[int]) -> float:
        """When all of these have ended."""
        return max((self.tasks[index].end_s for index in tasks), default=0.0)

    def add(
        self,
        name: str,
        seconds: float,
        kind: Kind = "compute",
        not_before_s: float = 0.0,
        after: tuple[int, ...] | None = None,
        **about: Any,
    ) -> int:
        """A task that ends `seconds` after it could begin, and not before; the next one waits for it.

        `after`: what it waits for beside what the rank does; the rank does not wait for it.
        """
        aside, after = after is not None, self.waits_for if after is None else after
        begin = self.ended(after)
        task = Task(name, kind, begin, max(begin + seconds, not_before_s), after, **about)
        self.tasks.append(task)
        if not aside:
            self.waits_for = (len(self.tasks) - 1,)
        return len(self.tasks) - 1

    def join(self, *tasks: int) -> None:
        """The next task waits for these, too."""
        self.waits_for = tuple(sorted({*self.waits_for, *tasks}))


class Iteration(NamedTuple):
    """The tasks of `p` ranks that take `seconds`; `program` has those of a rank."""

    p: int
    seconds: float
    program: Callable[[int], Sequence[Task]]
