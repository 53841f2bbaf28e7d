"""Strategies and numbers as the options of `calib predict`, `sweep` and `train` give them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from calib.foundation.division import STRATEGIES, Gradients, Schedule, taking
from calib.foundation.errors import InputError
from calib.oracle.layout.shards import why_no_layers
from calib.oracle.model.spec import ModelSpec
from calib.oracle.template import EVERY, DivisionTemplate
from calib.training.models.specs import batch_of

OPTIONS = {"accumulation": "--accumulate"}  # that are not called as the field of Division


def templates(
    strategies: str,
    *,
    inner: Sequence[int] = (),
    segments: Sequence[int] = (),
    accumulation: Sequence[int] = (),
    schedule: Schedule | None = None,
    boundaries: str | None = None,
    grid: str | None = None,
    split_until: str = "",
    overlap: bool = False,
    sharded_optimizer: bool = False,
    sequence_parallel: bool = False,
    gradients: Gradients | None = None,
) -> list[DivisionTemplate]:
    """Every strategy with its options, once for each p2 and number of micro-batches that it takes.

    "all" has data in its three variants; in the fourth too, where both options of it are given. tensor
    has two.

    Raises
    ------
    InputError
        An unknown strategy, an option that none of them takes, or one that is not what it should be.
    """
    given = {
        "schedule": schedule,
        "boundaries": whole_numbers(boundaries, ",", "--boundaries", "3,7,12"),
        "grid": whole_numbers(grid, "x", "--grid", "4x2"),
        "split_until": split_until,
        "gradients": gradients,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value}
    marks: dict[str, Any] = {
        "overlap": overlap,
        "sharded_optimizer": sharded_optimizer,
        "sequence_parallel": sequence_parallel,
    }
    lists = {"inner": inner, "segments": segments, "accumulation": accumulation}
    words = list(dict.fromkeys(word.strip() for word in strategies.split(",") if word.strip()))
    if words == ["all"]:
        both = [DivisionTemplate("data", **marks)] if overlap and sharded_optimizer else []
        chosen = [*EVERY, *both]
    else:
        chosen = [DivisionTemplate(_known(word, strategies), **marks) for word in words or [""]]
    for name, value in {**options, **marks, **lists}.items():
        if value:
            require_taken(OPTIONS.get(name, f"--{name.replace('_', '-')}"), name, chosen)
    return [
        replace(template, **options, inner=p2, segments=cut, accumulation=turns)
        for template in chosen
        for p2 in _values(template, "inner", inner)
        for cut in _values(template, "segments", segments)
        for turns in _values(template, "accumulation", accumulation)
    ]


def _known(strategy: str, strategies: str) -> str:
    """A strategy of the list. Raises InputError where it is none."""
    if strategy == "all":
        raise InputError(
            f"{strategies!r}: all is every strategy already; give it alone, or without it"
        )
    if strategy not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise InputError(f"unknown strategy {strategy or strategies!r}; known: {known}, and all")
    return strategy


def _values(template: DivisionTemplate, option: str, given: Sequence[int]) -> Sequence[Any]:
    """What is given for an option, where the strategy takes it; else its default."""
    if given and template.strategy in taking(option):
        return given
    return [getattr(template, option)]


def require_taken(option: str, field: str, chosen: Iterable[DivisionTemplate]) -> None:
    """Raise InputError for an option, a field of Division, that no chosen strategy takes."""
    strategies = taking(field)
    if not {template.strategy for template in chosen} & {*strategies}:
        which = "one of them" if len(strategies) > 1 else "it"
        raise InputError(f"{option} is of {' and '.join(strategies)}; choose {which}")


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
    model: ModelSpec, per_rank: Sequence[int], per_node: Sequence[int], whole: Sequence[int]
) -> list[Batch]:
    """The batches of the options, else the model's own per rank. Raises InputError for two options."""
    refuse_two_batches(per_rank, per_node, whole)
    if per_node:
        return [Batch(n, "node") for n in per_node]
    if whole:
        return [Batch(n, "all") for n in whole]
    return [Batch(n) for n in per_rank or [batch_of(model, None)]]


def refuse_two_batches(*given: object) -> None:
    """Raise InputError where more than one option of the batch is given."""
    if sum(map(bool, given)) > 1:
        raise InputError("give --batch-per-rank, --batch-per-node or --batch, not both")


def check_layers(template: DivisionTemplate, model: ModelSpec) -> None:
    """Raise InputError for a layer that the model does not have, by name or by number."""
    reasons = why_no_layers(model, template.split_until, template.boundaries)
    if reasons:
        raise InputError(reasons[0])


def whole_numbers(text: str | None, between: str, option: str, example: str) -> tuple[int, ...]:
    """Numbers from 1 in their order. Raises InputError."""
    words = [] if text is None else [word.strip() for word in text.split(between)]
    if not all(word.isascii() and word.isdecimal() and int(word[:9]) > 0 for word in words):
        raise InputError(f"{option} {text!r} is not like {example}")
    if any(len(word) > 9 for word in words) or (option == "--grid" and len(words) > 3):
        raise InputError(f"{option} {text!r}: too many or too large")
    return tuple(map(int, words))
