"""Users' models are built here once, before ranks are started that would fail to."""

from __future__ import annotations

from collections.abc import Iterable

from calib.oracle.model.spec import ModelSpec
from calib.training.models.specs import require_torch


def require_built(models: Iterable[ModelSpec], function: str = "") -> None:
    """Raise InputError unless users' code still builds these models, and can be trained.

    By the training `function`, where there is one. Models that are not a user's are skipped.
    """
    for model in models:
        if model.own is not None:
            require_torch(f"building {model.name}")
            # late: it imports PyTorch, and only users' models need it here
            from calib.training.checks.own import require_as_traced

            require_as_traced(model, function)
