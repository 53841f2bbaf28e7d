"""The environment that a program's times hold for: threads, cores, allocator, variables.

Where two of them differ, times of one say nothing about those of the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Annotated

from pydantic import AfterValidator, Field

from calib.foundation.errors import InputError
from calib.foundation.quantities import KnownRanks
from calib.foundation.records import Record

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OURS = "CALIB_"  # what the driver tells its ranks
SEVERAL = " | "  # between the values that ranks of one launch have
THREADS_VARIABLE = "OMP_NUM_THREADS"
# what these do is compared by itself: threads, allocator
BY_EFFECT = (THREADS_VARIABLE, "MKL_NUM_THREADS", "MALLOC_")


def checked(variables: dict[str, str]) -> dict[str, str]:
    """Variables that ranks can be started with. Raises ValueError."""
    for name, value in variables.items():
        if not NAME.fullmatch(name) or name.startswith(OURS):
            raise ValueError(f"{name!r} is no name of a variable for ranks")
        one_line(value)
    return variables


def one_line(text: str) -> str:
    """The text, which a shell may be given in a comment. Raises ValueError."""
    if not text.isprintable():
        raise ValueError(f"{text!r} is not one line of text")
    return text


Variables = Annotated[
    dict[str, str],
    AfterValidator(checked),
    Field(description="environment variables that the ranks are started with, on purpose"),
]


class Environment(Record):
    """What the ranks of a launch ran in, as far as it changes times. Not known: `Environment()`."""

    ranks: KnownRanks = Field(default=0, description="the most on one machine; 0: nothing is known")
    threads: KnownRanks = Field(
        default=0, description="threads of PyTorch in each rank, the fewest"
    )
    cores: KnownRanks = Field(
        default=0, description="physical cores that a rank may run on, the fewest"
    )
    allocator: Annotated[str, AfterValidator(one_line)] = Field(
        default="", description="malloc: its library, and what is fixed of it"
    )
    variables: Annotated[dict[str, str], AfterValidator(checked)] = Field(
        default_factory=dict, description="environment variables that change times, where set"
    )
    on_purpose: list[str] = Field(
        default_factory=list, description="those of the variables that were set on purpose"
    )

    @property
    def words(self) -> str:
        """In one line."""
        others = [f"{name}={value}" for name, value in self._compared.items()]
        if not self.ranks:
            return "not known"
        counts = f"{self.ranks} x {self.threads} threads on {self.cores} cores"
        return ", ".join([counts, f"malloc of {self.allocator or 'an unknown library'}", *others])

    @property
    def _compared(self) -> dict[str, str]:
        """The variables whose effect is not in another field."""
        return {k: v for k, v in sorted(self.variables.items()) if not k.startswith(BY_EFFECT)}

    def differs_in(self, other: Environment) -> str:
        """What differs, in words, "" where nothing that is known of both does."""
        if not (self.ranks and other.ranks):
            return ""
        found = []
        for name in ("threads", "cores", "allocator"):
            one, two = getattr(self, name), getattr(other, name)
            if one != two:
                found.append(f"{name}: {one} and {two}")
        one, two = self._compared, other._compared
        for name in sorted(one.keys() | two.keys()):
            if one.get(name) != two.get(name):
                found.append(f"{name}: {one.get(name, 'not set')} and {two.get(name, 'not set')}")
        return "; ".join(found)


def environment_on(ranks: int, known: Sequence[Environment]) -> Environment:
    """The environment of so many ranks on a machine.

    Where that number was not measured, what such a launch would get: the nearest one, with the cores
    shared out again among ranks that share them.
    """
    if not known:
        return Environment()
    nearest = min(known, key=lambda each: (abs(each.ranks - ranks), -each.ranks))
    shared = len({each.cores for each in known}) == 1 and THREADS_VARIABLE not in nearest.variables
    if nearest.ranks == ranks or not shared:
        return nearest
    return nearest.model_copy(update={"ranks": ranks, "threads": max(1, nearest.cores // ranks)})


def one_of_each(found: Iterable[Environment]) -> list[Environment]:
    """The environment of each number of ranks on a machine, where known.

    Raises InputError where two differ.
    """
    kept = []
    in_order = sorted((each for each in found if each.ranks), key=lambda each: each.ranks)
    for ranks, alike in groupby(in_order, key=lambda each: each.ranks):
        first, *others = alike
        if differing := next(filter(None, map(first.differs_in, others)), ""):
            raise InputError(
                f"launches of {ranks} ranks ran in different environments: {differing}; take one of them"
            )
        kept.append(first)
    return kept
