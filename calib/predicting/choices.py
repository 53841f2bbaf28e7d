"""What `calib predict` and `calib sweep` predict: the strategies and numbers that options choose."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise

from calib.fitting.merging.merge import across_note
from calib.foundation.errors import InputError, MissingParameter
from calib.options import MOST
from calib.oracle.costs.in_place import PLAN
from calib.oracle.costs.machine import Machine
from calib.oracle.division import HYBRIDS, SPATIAL, STRATEGIES, Division
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.projection import Form, Projection
from calib.oracle.sweep import EVERY, Choices, Variant, variant_name
from calib.oracle.what_if.changes import notes_of
from calib.planning.points import batch_of

MOST_NUMBERS = 100_000
NOT_PREDICTED = "not predicted: "


def variants(text: str, overlap: bool = False, sharded: bool = False) -> list[Variant]:
    """The strategies of an option; "all" has data in its three variants. Raises InputError."""
    words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if words == ["all"]:
        both = [Variant("data", True, True)] if overlap and sharded else []
        return [*EVERY, *both]
    if "all" in words:
        raise InputError(f"{text!r}: all is every strategy already; give it alone, or without it")
    unknown = next((word for word in words if word not in STRATEGIES), None)
    if unknown is not None or not words:
        raise InputError(
            f"unknown strategy {unknown or text!r}; known: {', '.join(STRATEGIES)}, and all"
        )
    if (overlap or sharded) and "data" not in words:
        raise InputError("--overlap and --sharded-optimizer are of data parallelism; add it")
    return [Variant(word, overlap and word == "data", sharded and word == "data") for word in words]


def numbers(text: str, option: str) -> list[int]:
    """Whole numbers from 1: "1,2,6", "4:64" (4, 8, ..., 64), "2:10:+4" (2, 6, 10), or a mixture.

    In rising order, each once. Raises InputError.
    """
    found: set[int] = set()
    for word in text.split(","):
        found.update(_range(word, text, option))
        if len(found) > MOST_NUMBERS:
            raise InputError(f"{option} {text!r}: over {MOST_NUMBERS} numbers")
    return sorted(found)


def _range(word: str, text: str, option: str) -> Sequence[int]:
    ends, plus, step = word.partition(":+")
    parts = [*ends.split(":"), *([step] if plus else [])]
    digits = [part.strip() for part in parts]
    if len(parts) > 2 + bool(plus) or (plus and len(parts) != 3) or not all(map(_whole, digits)):
        raise InputError(
            f"{option} {text!r} is not a list of numbers such as 1,2,4, a range 4:64 that doubles, "
            "or one with steps 2:10:+4"
        )
    first, last, *by = [int(part) for part in digits] if len(digits) > 1 else [int(digits[0])] * 2
    if min(first, last, *by) < 1 or max(first, last) > MOST:
        raise InputError(f"{option}: numbers must be from 1 to {MOST}")
    if first > last:
        raise InputError(f"{option} {word!r}: a range goes up")
    if by:
        return range(first, last + 1, by[0])[: MOST_NUMBERS + 1]
    return [first << k for k in range((last // first).bit_length())]


def _whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 20


@dataclass(frozen=True)
class Batch:
    """Samples by PE or by node (weak scaling), or in all (strong scaling): `per` says which."""

    samples: int
    per: str = "PE"

    def of(self, p: int, ranks_per_node: int) -> int:
        """B on p PEs; nodes are filled one after the other."""
        if self.per == "node":
            return self.samples * -(-p // ranks_per_node)
        return self.samples * (p if self.per == "PE" else 1)


def batches(
    name: str, per_pe: Sequence[int], per_node: Sequence[int], whole: Sequence[int]
) -> list[Batch]:
    """The batches of the options, of which one may be given; else the model's own per PE."""
    check_batches(per_pe, per_node, whole)
    if per_node:
        return [Batch(n, "node") for n in per_node]
    if whole:
        return [Batch(n, "all") for n in whole]
    return [Batch(n) for n in per_pe or [batch_of(name, None)]]


def check_batches(*given: object) -> None:
    """Raise InputError where more than one of the options of the batch is given."""
    if sum(map(bool, given)) > 1:
        raise InputError("give --batch-per-pe, --batch-per-node or --batch, not both")


# options that only some strategies have
OPTIONS_OF = {
    "--inner": HYBRIDS,
    "--segments": ("pipeline",),
    "--schedule": ("pipeline",),
    "--boundaries": ("pipeline",),
    "--grid": SPATIAL,
    "--split-until": SPATIAL,
}


def check_options(given: Mapping[str, object], chosen: Sequence[Variant]) -> None:
    """Raise InputError for an option of OPTIONS_OF that none of the chosen strategies has."""
    names = {variant.strategy for variant in chosen}
    for option, strategies in OPTIONS_OF.items():
        if given.get(option) not in (None, "") and not names & set(strategies):
            which = "one of them" if len(strategies) > 1 else "it"
            raise InputError(f"{option} is of {' and '.join(strategies)}; choose {which}")


def check_layers(choices: Choices, model: ModelSpec) -> None:
    """Raise InputError for a layer that the model does not have, by name or by number."""
    names, until, borders = [x.name for x in model.layers], choices.split_until, choices.boundaries
    if until and until not in names:
        near = get_close_matches(until, names, n=3)
        guess = f"did you mean {', '.join(near)}?" if near else f"it has {names[0]} to {names[-1]}"
        raise InputError(f"--split-until {until!r}: {model.name} has no such layer; {guess}")
    if borders and (borders[-1] >= len(names) or any(a >= b for a, b in pairwise(borders))):
        raise InputError(
            f"--boundaries {','.join(map(str, borders))}: numbers must rise from 1 to "
            f"{len(names) - 1} ({model.name} has {len(names)} layers, the first is 0)"
        )


@dataclass
class Predictor:
    """One machine, asked for many points. `missing` is the first parameter that was not there.

    `called` are the models' names as the user gave them, where these are others: of files. `plan` are
    the options of a `calib plan` of all points; without it notes have that of their own point.
    """

    machine: Machine
    choices: Choices = field(default_factory=Choices)
    form: Form = "measured"
    optimizer: str = "momentum"
    samples: int | None = None
    explain: bool = False
    missing: MissingParameter | None = None
    predicted: int = 0
    called: dict[str, str] = field(default_factory=dict)
    plan: str = ""

    def points(
        self, model: ModelSpec, chosen: Sequence[Variant], p: int, batch: Batch
    ) -> Iterator[Projection]:
        """The projection of every strategy, in their order."""
        for variant in chosen:
            yield self.one(model, variant, p, batch)

    def one(self, model: ModelSpec, variant: Variant, p: int, batch: Batch) -> Projection:
        """One projection. One that lacks a parameter says so in its limits, and has no time."""
        node = self.machine.parameters.ranks_per_node
        division = self.choices.division(model, variant, p, batch.of(p, node), node)
        if division.strategy in HYBRIDS and division.inner == 1 < p and not self.choices.inner:
            reason = f"p = {p} is not p1 x p2 with both at least 2 (--inner takes others)"
            return self._without_time(model, division, reason)
        try:
            found = project(
                model, division, self.machine, self.form, self.optimizer, self.samples, self.explain
            )
        except MissingParameter as error:
            why = self._filled(str(error), model.name, division)
            self.missing = self.missing or MissingParameter(why)
            return self._without_time(model, division, f"{NOT_PREDICTED}{why}")
        self.predicted += found.total is not None
        return self._noted(found, division)

    def _without_time(self, model: ModelSpec, division: Division, reason: str) -> Projection:
        """The answer where the oracle has none."""
        details = {"overlap": "yes"} if division.overlap else {}
        details |= {"sharded_optimizer": "yes"} if division.sharded_optimizer else {}
        each, rest = divmod(division.batch, division.p)
        return self._noted(
            Projection(
                model=model.name,
                strategy=division.strategy,
                form=self.form,
                p=division.p,
                batch=division.batch,
                batch_per_pe=division.batch / division.p if rest else each,
                inner=division.inner,
                segments=division.segments,
                grid=division.grid,
                details=details,
                phases={},
                bytes_per_pe=0,
                bytes_by_part={},
                feasible=False,
                limits=[reason],
            ),
            division,
        )

    def _noted(self, found: Projection, division: Division) -> Projection:
        """With what was changed in the parameters among its notes, and commands filled in."""
        about = [*notes_of(self.machine.parameters), *self._across]
        changed = [note for note in about if note not in found.notes]
        own = [self._filled(note, found.model, division) for note in found.notes]
        if not changed and own == found.notes:
            return found
        return found.model_copy(update={"notes": [*changed, *own]})

    @cached_property
    def _across(self) -> list[str]:
        """What is to be said of parameters of several clusters."""
        if not self.machine.parameters.provenance.merged:
            return []
        note = across_note(self.machine.parameters)
        return [f"the parameter file was {note}"] if note else []

    def _filled(self, text: str, model: str, of: Division) -> str:
        """The text with a `calib plan` that can be pasted, where it has that of any point."""
        if PLAN not in text:
            return text
        options, (each, rest) = self.plan, divmod(of.batch, of.p)
        if not options:
            batch = f"--batch {of.batch}" if rest else f"--batch-per-pe {each}"
            segments = f" --segments {of.segments}" if of.strategy == "pipeline" else ""
            options = f"--strategies {of.strategy} -p {of.p} {batch}{segments}"
        name = shlex.quote(self.called.get(model, model))
        return text.replace(PLAN, f"`calib plan --models {name} {options} -o plan.toml`")


def named(projection: Projection) -> str:
    """Strategy and layout: data+filter 16 groups of 4, pipeline 4 micro-batches, spatial grid 4x2."""
    of, details = projection, projection.details
    name = variant_name(of.strategy, "overlap" in details, "sharded_optimizer" in details)
    words = [name]
    if of.strategy in HYBRIDS and of.p % of.inner == 0 and of.inner > 1:
        words.append(f"{of.p // of.inner} groups of {of.inner}")
    if of.strategy in SPATIAL and len([n for n in of.grid if n > 1]) > 1:
        words.append(f"grid {'x'.join(map(str, of.grid))}")
    if of.strategy == "pipeline":
        words.append(f"{of.segments} micro-batches")
        words += [details["schedule"]] if details.get("schedule", "gpipe") != "gpipe" else []
    return " ".join(words)
