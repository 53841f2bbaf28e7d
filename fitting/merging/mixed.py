"""Laws of a merged file that were not fitted together.

A structural law extrapolates the collectives that it was fitted with, phi multiplies their beta, a work
law was fitted to the layers of its own file, and a composition law corrects their sums and those of its
loops and exchanges. Predictions use the collectives of one library alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import (
    OTHER_LIBRARIES,
    TRAINING_LIBRARIES,
    Composition,
    LayerTime,
    Signed,
    TensorLoop,
    WorkModel,
)
from calib.fitting.parameters.laws import label_of
from calib.foundation.execution import execution_of
from calib.foundation.layer_keys import parse
from calib.foundation.records import Record
from calib.foundation.words import several

# the notes of a merge begin so; `calib check` warns of the second
MERGED, MIXED = "merged: ", "mixed: "
APART = "which they were not fitted with"  # what a fit of all runs together mends
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
    """Notes on laws beside others that they were not fitted with, and on collectives not used."""
    of_training = TRAINING_LIBRARIES[files[0].parameters.device_kind]
    library = library_taken(taken["collectives"], of_training)
    training = library if library in of_training else ""
    yield from _not_used(files, taken["collectives"], library)
    for section, bases in RESTS_ON.items():
        found: dict[tuple[int, str, int], list[str]] = {}
        for each in taken[section]:
            for base, rests in bases.items():
                apart = {
                    beside.source
                    for beside in taken[base]
                    if rests(each.laws[0], beside.laws[0], training)
                    and not beside.holders & each.holders
                }
                for i in sorted(apart):
                    label = label_of(section, each.laws[0])
                    found.setdefault((each.source, base, i), []).append(label)
        for (mine, base, theirs), labels in sorted(found.items()):
            yield (
                f"{MIXED}{section} laws of {short(files[mine])} stand beside {base} of "
                f"{short(files[theirs])}, {APART}: {several(labels)}"
            )


def library_taken(collectives: Sequence[Taken], of_training: Sequence[str]) -> str:
    """The library whose collectives predictions take; "" where none is."""
    found = {law.library for law in _at_home(collectives)}
    return next((name for name in (*of_training, *OTHER_LIBRARIES) if name in found), "")


def _at_home(collectives: Sequence[Taken]) -> Iterator[CollectiveFit]:
    for each in collectives:
        yield from (law for law in each.laws if isinstance(law, CollectiveFit) and law.at_home)


def _not_used(files: Sequence[Signed], collectives: Sequence[Taken], library: str) -> Iterator[str]:
    """Notes on files whose collectives predictions ignore, because another file's are taken."""
    for i, file in enumerate(files):
        held = {law.library for law in _at_home([x for x in collectives if i in x.holders])}
        if not library or library in held:
            continue
        mine = list(_at_home([x for x in collectives if x.source == i]))
        counts = Counter(law.library for law in mine)
        told = []
        for other, count in sorted(counts.items()):
            ranks = sorted({law.ranks for law in mine if law.library == other})
            among = f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else f"{ranks[0]}"
            told.append(f"{count} of {other} (p = {among})")
        if told:
            used = "are" if len(mine) > 1 else "is"
            yield (
                f"{MIXED}predictions take collectives of {library} alone; {', '.join(told)} of "
                f"{short(file)} {used} not used"
            )


def _same_operation(law: Any, collective: Any, _: str) -> bool:
    names = ("operation", "library", "device", "level")
    return all(getattr(law, name) == getattr(collective, name) for name in names)


_parsed = lru_cache(maxsize=4096)(parse)


def _is_run(layer: LayerTime, law: WorkModel | Composition) -> bool:
    """Whether the layer is as the law's execution and its ranks at work run it."""
    if layer.active_ranks != law.active_ranks:
        return False
    named = _parsed(layer.key)
    return named is None or named.shape.runs_as(law.execution) == named.execution


def _same_kind(law: WorkModel, layer: LayerTime, _: str) -> bool:
    return law.kind == layer.kind and _is_run(layer, law)


def _corrects_layer(law: Composition, layer: LayerTime, _: str) -> bool:
    return law.phase in ("forward", "backward") and _is_run(layer, law)


def _corrects_work(law: Composition, work: WorkModel, _: str) -> bool:
    # backward_data and backward_weight are parts of a backward
    whole = law.phase in ("forward", "backward") and work.direction.startswith(law.phase)
    return whole and _same_kernels(law, work)


def _same_kernels(law: Composition, part: WorkModel | TensorLoop) -> bool:
    execution = execution_of(law.execution).kernels.name
    return (execution, law.active_ranks) == (part.execution, part.active_ranks)


def _corrects_call(law: Composition, collective: Any, training: str) -> bool:
    called = collective.operation.partition(" ")[0] in CALLS_OF.get(law.phase, ())
    return called and collective.library == (law.library or training)


def _corrects_loop(law: Composition, loop: TensorLoop, _: str) -> bool:
    loops = ("concat", "split") if law.phase == "copies" else (law.phase,)
    return loop.operation in loops and _same_kernels(law, loop)


# what ranks call in a phase (fitting/sections/composition.py)
CALLS_OF = {
    "exchange": ("allreduce",),
    "halo": ("halo",),
    "layerwise": ("allreduce", "allgather", "reduce_scatter", "all_to_all"),
}


# section -> the sections that its laws were fitted with, and which of their laws (the third argument is
# the library that training uses; "" where predictions take another)
RESTS_ON: dict[str, dict[str, Callable[[Any, Any, str], bool]]] = {
    "structural": {"collectives": _same_operation},
    "contention": {"collectives": _same_operation},
    "work": {"layers": _same_kind},
    "composition": {
        "layers": _corrects_layer,
        "work": _corrects_work,
        "tensor_loops": _corrects_loop,
        "collectives": _corrects_call,
    },
}
