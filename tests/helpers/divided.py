"""Contents of records whose division is given flat, as tests like to say it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from calib.foundation.division import Division
from calib.microbench.cases import InPlaceCase
from calib.oracle.layout.shards import possible_division
from calib.oracle.model.spec import ModelSpec

FIELDS = {field.name for field in fields(Division)}


def divided(content: dict[str, Any]) -> dict[str, Any]:
    """`content` with what it says of a division in a Division; `batch_per_rank` gives the batch."""
    of = {name: value for name, value in content.items() if name in FIELDS}
    rest = {name: value for name, value in content.items() if name not in FIELDS}
    each = rest.pop("batch_per_rank", None)
    if each is not None and "batch" not in of:
        of["batch"] = round(of["p"] * each)
    return {**rest, "division": Division(**of)}


def divide(
    model: ModelSpec, strategy: str, p: int, batch: int, inner: int = 1, segments: int = 1
) -> Division:
    """The division of a model, fitted. Raises InputError with the reason where it is impossible."""
    return possible_division(model, Division(strategy, p, batch, inner, segments))


def model_case(model: str = "m", ranks: int = 2, batch: int = 8, **more: Any) -> InPlaceCase:
    """A case of no layers whose ranks run `batch` samples at once, serial or data by default."""
    content: dict[str, Any] = {
        "strategy": "data" if ranks > 1 else "serial",
        "p": ranks,
        "batch": 1,
        "layer_keys": (),
        "activation_bytes": 0,
        "tensors_key": "k",
        "gradient_bytes": 0,
    }
    of = InPlaceCase(ranks=ranks, model=model, **divided(content | more))
    division = of.division
    whole = batch * division.replicas * (division.segments if division.traits.stages else 1)
    return of.model_copy(update=divided({**vars(division), "batch": whole}))
