"""The options of `calib train` as divisions. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from calib.foundation.division import Division, traits_of
from calib.foundation.errors import InputError
from calib.options import sample_shape
from calib.oracle.layout.shards import fitted
from calib.oracle.model.spec import ModelSpec
from calib.oracle.template import DivisionTemplate
from calib.predicting.choices import require_taken
from calib.training.allowed import why_not_trained
from calib.training.job import Settings
from calib.training.models import Loss, ModelEntry, entry
from calib.training.models.specs import spec
from calib.training.own.options import Own, is_own
from calib.training.teams import BACKENDS

# torch takes seeds below 2**63, and those of replicas and stages are added to it
MAX_SEED = 2**63 - 2**32


def backend_on(device: str) -> str:
    """The backend of torch.distributed that trains on a kind of device, unless another is named."""
    return next(name for name, (_, where) in BACKENDS.items() if where == device)


@cache  # looking at a user's module builds it twice
def model_entry(name: str, own: Own | None = None) -> ModelEntry:
    """The model of --model. Raises InputError with the known names."""
    if not is_own(name):
        if own is not None:
            raise InputError(
                f"--input, --loss, --outputs and --train-function are of a module of your own, "
                f"MODULE:FUNCTION; {name!r} is none"
            )
        return entry(name)
    if own is None:
        raise InputError(f"give --input and --outputs with {name}, as 3x32x32 and 10 (classes)")
    # late: it imports PyTorch, as registered models do when they are built
    from calib.training.own.model import own_entry

    return own_entry(name, own.input_shape, own.loss, own.outputs, function=own.function)


def model_layers(name: str, own: Own | None = None, strategy: str = "this strategy") -> ModelSpec:
    """Its layers, as the oracle divides them. Raises InputError where a user's module has none."""
    if own is None:
        return spec(name)
    about = model_entry(name, own)
    # late: as in model_entry
    from calib.training.own.model import OwnModel, own_layers

    assert isinstance(about, OwnModel)
    return own_layers(about, strategy)


def divided_layers(name: str, own: Own | None, strategy: str, p: int) -> ModelSpec | None:
    """The layers that a strategy divides; None where every rank runs the model as it is."""
    return model_layers(name, own, strategy) if p > 1 and not traits_of(strategy).whole else None


def own_of(shape: str, loss: Loss | None, outputs: int | None, function: str) -> Own | None:
    """What --input, --loss, --outputs and --train-function say; None where none is given."""
    if not shape and outputs is None and loss is None and not function:
        return None
    if not shape or outputs is None:
        raise InputError("a module of your own needs --input and --outputs, as 3x32x32 and 10")
    return Own(sample_shape(shape), loss or "cross_entropy", outputs, function)


def in_groups(templates: Sequence[DivisionTemplate], p: int, groups: int) -> list[DivisionTemplate]:
    """With --groups, p1 of a hybrid. Raises InputError where that cannot be."""
    require_taken("--groups", "inner", templates)
    if any(template.inner for template in templates):
        raise InputError("give --groups (p1) or --inner (p2 = p / p1), not both")
    if p % groups:
        raise InputError(f"--groups {groups} does not divide p = {p}")
    return [replace(template, inner=p // groups) for template in templates]


def trained_division(
    template: DivisionTemplate,
    p: int,
    batch: int,
    ranks_per_node: int,
    about: ModelEntry,
    model: ModelSpec | None,
    settings: Settings,
) -> Division:
    """The division of a strategy on p ranks, its grid and groups said; stages are not (stages.py).

    `model` has the `divided_layers`. Raises InputError with the reason where training cannot run it.
    """
    why = template.why_no_groups(p)
    if why:
        raise InputError(f"{template.strategy}: {why} (--groups takes others)")
    found = template.division(p, batch, ranks_per_node, model)
    if model is not None:
        found = fitted(model, found)
    require_trained(found, settings, about, model)
    return found


def require_trained(
    division: Division, settings: Settings, about: ModelEntry, model: ModelSpec | None
) -> None:
    """Raise InputError for what training cannot run.

    `model` has the `divided_layers`; those of a registered model are known in any case.
    """
    reasons = why_not_trained(
        division,
        spec(about.name) if model is None and settings.own is None else model,
        settings.execution,
        settings.synchronized_batch_norm,
        settings.ddp,
        about.input_shape,
        BACKENDS[settings.backend].device,
    )
    if reasons:
        raise InputError(reasons[0])


def batch_of_all(about: ModelEntry, p: int, batch_per_rank: int | None, batch: int | None) -> int:
    """The global batch B. Raises InputError where both are given."""
    if batch is not None and batch_per_rank is not None:
        raise InputError("give --batch or --batch-per-rank, not both")
    return batch if batch is not None else p * (batch_per_rank or about.batch_per_rank)
