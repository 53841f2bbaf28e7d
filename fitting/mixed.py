"""What laws of several files come to stand side by side that were not fitted together.

A structural law extrapolates the collectives that it was fitted with, phi multiplies their beta, and a
composition law corrects sums of the layers, loops and exchanges of its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fitting.findings import several
from fitting.laws import label_of
from fitting.parameters import TRAINING_LIBRARIES, Composition
from fitting.records import Record
from fitting.signature import Signed

# the notes of a merge begin so; `calib check` warns of the second
MERGED, MIXED = "merged: ", "mixed: "
SHORT = len("sha256:") + 12


@dataclass(frozen=True)
class Taken:
    """A law of the merged file (rarely several that are of the same): `source` is a file's index.

    `holders` are the files that have it with this content, `others` those that have another.
    """

    laws: tuple[Record, ...]
    source: int
    holders: frozenset[int]
    others: frozenset[int]


def short(of: Signed) -> str:
    """A file in a note: the beginning of its sha256."""
    return of.sha256[:SHORT]


def mixed(files: Sequence[Signed], taken: Mapping[str, Sequence[Taken]]) -> Iterator[str]:
    """Notes on laws that stand beside others which they were not fitted with."""
    for section, bases in RESTS_ON.items():
        found: dict[tuple[int, str, int], list[str]] = {}
        for each in taken[section]:
            for base, rests in bases.items():
                apart = {
                    beside.source for beside in taken[base]
                    if rests(each.laws[0], beside.laws[0]) and not beside.holders & each.holders
                }  # fmt: skip
                for i in sorted(apart):
                    label = label_of(section, each.laws[0])
                    found.setdefault((each.source, base, i), []).append(label)
        for (mine, base, theirs), labels in sorted(found.items()):
            yield (
                f"{MIXED}{section} laws of {short(files[mine])} stand beside {base} of "
                f"{short(files[theirs])}, which they were not fitted with: {several(labels)}"
            )


def _same_operation(law: Any, collective: Any) -> bool:
    names = ("operation", "library", "device", "level")
    return all(getattr(law, name) == getattr(collective, name) for name in names)


def _corrects_layer(law: Composition, layer: Any) -> bool:
    return law.phase in ("forward", "backward") and law.active_ranks == layer.active_ranks


def _corrects_exchange(law: Composition, collective: Any) -> bool:
    sent = collective.operation == "allreduce" and collective.library in TRAINING_LIBRARIES
    return law.phase == "exchange" and sent


def _corrects_loop(law: Composition, loop: Any) -> bool:
    return (law.phase, law.active_ranks) == (loop.operation, loop.active_ranks)


# section -> the sections that its laws were fitted with, and which of their laws
RESTS_ON: dict[str, dict[str, Callable[[Any, Any], bool]]] = {
    "structural": {"collectives": _same_operation},
    "contention": {"collectives": _same_operation},
    "composition": {
        "layers": _corrects_layer,
        "tensor_loops": _corrects_loop,
        "collectives": _corrects_exchange,
    },
}
