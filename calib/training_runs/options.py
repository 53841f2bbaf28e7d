"""The options of `calib train` as divisions. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from calib.foundation.division import Division, traits_of
from calib.foundation.errors import InputError
from calib.foundation.own import Loss, Own, is_own, own_name
from calib.options import sample_shape
from calib.oracle.layout.shards import fitted
from calib.oracle.model.spec import ModelSpec
from calib.oracle.template import DivisionTemplate
from calib.planning.built import require_built
from calib.predicting.choices import require_taken
from calib.training.allowed import why_not_trained
from calib.training.job import Settings
from calib.training.models import ModelEntry
from calib.training.models.specs import entry_of, named, spec, why_not_built
from calib.training.teams import BACKENDS

# torch takes seeds below 2**63, and those of replicas and stages are added to it
MAX_SEED = 2**63 - 2**32


def backend_on(device: str, libraries: Sequence[str] = ()) -> str:
    """The backend of torch.distributed that trains on a kind of device, unless another is named.

    That of the first of the `libraries` that has one there, so that training sends by what predictions
    are made of.
    """
    there = {library: name for name, (library, where) in BACKENDS.items() if where == device}
    return next(there[name] for name in (*libraries, *there) if name in there)


def asked_model(
    word: str, shape: str, loss: Loss | None, outputs: int | None, function: str
) -> tuple[str, Own | None]:
    """The name of --model, and how it is built where it is a user's: a model.json, or MODULE:FUNCTION.

    Of a user's, what cannot be trained is found here, before ranks are started. Raises InputError.
    """
    if is_own(word):
        if not shape:
            raise InputError(f"give --input with {word}, one sample's shape as 3x32x32")
        # late: it imports PyTorch, as registered models do when they are built
        from calib.training.checks.own import described

        found = described(word, sample_shape(shape), loss or "cross_entropy", outputs, function)
        return own_name(word), found
    if shape or loss or outputs is not None:
        raise InputError(
            f"--input, --loss and --outputs are of a module of your own, MODULE:FUNCTION; {word!r} "
            "is none"
        )
    model = named([word])[word]
    if entry_of(model) is None:
        raise InputError(why_not_built(model))
    if model.own is None:
        if function:
            raise InputError(f"--train-function is of a model of your own, and {word!r} is none")
        return model.name, None
    require_built([model], function)
    if not function:
        return model.name, model.own
    # late: as above
    from calib.training.checks.own import with_function

    return model.name, with_function(model.own, function)


def model_layers(name: str, own: Own | None = None, strategy: str = "this strategy") -> ModelSpec:
    """Its layers, as the oracle divides them. Raises InputError where a user's module has none."""
    if own is None:
        return spec(name)
    # late: as above
    from calib.training.checks.own import own_layers

    return own_layers(name, own, strategy)


def divided_layers(name: str, own: Own | None, strategy: str, p: int) -> ModelSpec | None:
    """The layers that a strategy divides; None where every rank runs the model as it is."""
    return model_layers(name, own, strategy) if p > 1 and not traits_of(strategy).whole else None


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
