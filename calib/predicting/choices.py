"""Strategies and numbers chosen by the options of `calib predict` and `calib sweep`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calib.foundation.division import STRATEGIES, Schedule, taking
from calib.foundation.errors import InputError
from calib.options import MOST
from calib.oracle.layout.shards import why_no_layers
from calib.oracle.model.spec import ModelSpec
from calib.oracle.projection import Projection
from calib.oracle.sweep import EVERY, Choices, Variant
from calib.planning.points import batch_of

MOST_NUMBERS = 100_000


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
    overlapping, sharding = taking("overlap"), taking("sharded_optimizer")
    if (overlap and not {*words} & {*overlapping}) or (sharded and not {*words} & {*sharding}):
        raise InputError("--overlap and --sharded-optimizer are of data parallelism; add it")
    return [
        Variant(word, overlap and word in overlapping, sharded and word in sharding)
        for word in words
    ]


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
    """Samples by rank or by node (weak scaling), or in all (strong scaling): `per` says which."""

    samples: int
    per: str = "rank"

    def of(self, p: int, ranks_per_node: int) -> int:
        """B on p ranks; nodes are filled one after the other."""
        if self.per == "node":
            return self.samples * -(-p // ranks_per_node)
        return self.samples * (p if self.per == "rank" else 1)


def batches(
    name: str, per_rank: Sequence[int], per_node: Sequence[int], whole: Sequence[int]
) -> list[Batch]:
    """The batches of the options, of which one may be given; else the model's own per rank."""
    check_batches(per_rank, per_node, whole)
    if per_node:
        return [Batch(n, "node") for n in per_node]
    if whole:
        return [Batch(n, "all") for n in whole]
    return [Batch(n) for n in per_rank or [batch_of(name, None)]]


def check_batches(*given: object) -> None:
    """Raise InputError where more than one of the options of the batch is given."""
    if sum(map(bool, given)) > 1:
        raise InputError("give --batch-per-rank, --batch-per-node or --batch, not both")


# options that only some strategies have
OPTIONS_OF = {
    f"--{name.replace('_', '-')}": taking(name)
    for name in ("inner", "segments", "schedule", "boundaries", "grid", "split_until")
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
    reasons = why_no_layers(model, choices.split_until, choices.boundaries)
    if reasons:
        raise InputError(reasons[0])


def named(projection: Projection) -> str:
    """Strategy and layout: data+filter, 16 groups of 4; data, overlapped; spatial, grid 4x2."""
    return projection.division.words


def schedule_of(name: str | None) -> Schedule | None:
    """The schedule of --schedule. Raises InputError."""
    found: dict[str | None, Schedule | None] = {None: None, "gpipe": "gpipe", "1f1b": "1f1b"}
    if name in found:
        return found[name]
    raise InputError(f"unknown schedule {name!r}; known: gpipe, 1f1b")


def choices_of(
    inner: int | None,
    segments: int | None,
    schedule: str | None,
    boundaries: str | None,
    grid: str | None,
    split_until: str,
) -> Choices:
    """What the options give the strategies. Raises InputError."""
    return Choices(
        inner or 0,
        segments or 4,
        schedule_of(schedule) or "gpipe",
        whole_numbers(boundaries, ",", "--boundaries", "3,7,12"),
        whole_numbers(grid, "x", "--grid", "4x2"),
        split_until,
    )


def whole_numbers(text: str | None, between: str, option: str, example: str) -> tuple[int, ...]:
    """Numbers from 1 in their order. Raises InputError."""
    words = [] if text is None else [word.strip() for word in text.split(between)]
    if not all(word.isascii() and word.isdecimal() and int(word[:9]) > 0 for word in words):
        raise InputError(f"{option} {text!r} is not like {example}")
    if any(len(word) > 9 for word in words) or (option == "--grid" and len(words) > 3):
        raise InputError(f"{option} {text!r}: too many or too large")
    return tuple(map(int, words))
