"""Searches for other papers' plans, on calibrated parameters or in the papers' own forms.

`search` is the one interface. A space of plans is a module with a SPACE, and one line here: it finds a
plan; what holds of any plan (whose parameters, which notes) is added here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import InputError
from calib.foundation.execution import USUAL
from calib.foundation.quantities import possible
from calib.oracle.costs.machine import Machine
from calib.search.nominal import NOTE
from calib.search.plan import SearchedPlan
from calib.search.request import LIMITED, Budget, Devices, SearchRequest, Space

SPACES = {
    "layerwise": "calib.search.layerwise.search",
    "sbp": "calib.search.sbp.search",
    "pipeline": "calib.search.pipelines.search",
    "exchange": "calib.search.exchange.search",
    "variables": "calib.search.variables.search",
}
SAMPLES_PER_DEVICE = 32


def space_named(name: str) -> Space:
    """The space of plans `name`. Raises InputError."""
    if name not in SPACES:
        raise InputError(f"unknown space {name!r}; known: {', '.join(SPACES)}")
    found: Space = import_module(SPACES[name]).SPACE
    return found


def search(
    model: Any,
    cluster: Devices,
    parameters: Parameters | Machine,
    space: str,
    method: str = "",
    budget: Budget | None = None,
    *,
    batch: int | None = None,
    options: Mapping[str, str] | None = None,
    **more: Any,
) -> SearchedPlan:
    """Find the best plan for a model on a machine, within a budget.

    Parameters
    ----------
    model
        A ModelSpec, or one of the space's own models, such as a PipeDream profile.
    cluster
        Nodes, and devices per node.
    parameters
        The calibrated parameters, or a Machine made of them.
    space
        layerwise, sbp, pipeline, exchange or variables.
    method
        How to search; by default the space's first.
    budget
        Seconds, evaluations, or both.
    batch
        Global mini-batch; by default 32 samples per device, or that of a profile.
    options
        The space's own, as text: `-O name=value`.
    **more
        form, optimizer, seed, progress, given: see search/request.py.

    Raises
    ------
    InputError
        An unknown space, method or option; a mesh that does not divide; no plan within the memory
        limit (the message has the smallest memory that would do).
    MissingParameter
        The parameters lack a law.

    References
    ----------
    Jia et al., ICML 2018 (OptCNN); Chen et al., 2023 (AutoDDL); Narayanan et al., SOSP 2019
    (PipeDream); Jayarajan et al., MLSys 2019 (P3); Kim et al., EuroSys 2019 (Parallax).
    """

    chosen = space_named(space)
    method = method or next(iter(chosen.methods))
    if method not in chosen.methods:
        raise InputError(
            f"unknown method {method!r} of the space {space}; known: {', '.join(chosen.methods)}"
        )
    for option in options or {}:
        if option not in chosen.options:
            known = ", ".join(chosen.options) or "none"
            raise InputError(f"the space {space} has no option {option!r}; known: {known}")
    if getattr(model, "execution", USUAL) != USUAL and not chosen.any_execution:
        raise InputError(f"the space {space} prices {USUAL} alone")
    machine = parameters if isinstance(parameters, Machine) else Machine(parameters)
    if batch is None and not getattr(model, "own_batch", False):
        batch = SAMPLES_PER_DEVICE * cluster.p
    request = SearchRequest(
        model,
        cluster,
        machine,
        batch,
        method,
        budget or Budget(),
        options=options or {},
        space=space,
        **more,
    )
    with possible(f"the plan of {getattr(model, 'name', 'this')}"):
        plan = chosen.find(request)
    notes = [NOTE] if NOTE in machine.parameters.provenance.notes else []
    notes += [*excluded(plan, request), *getattr(model, "told", []), *plan.notes]
    return plan.model_copy(
        update={
            "notes": tuple(dict.fromkeys(notes)),
            "parameters_sha256": machine.parameters.signed().get("signature", ""),
        }
    )


def excluded(plan: SearchedPlan, request: SearchRequest) -> list[str]:
    """A note on what the memory limit rules out; empty where it rules out nothing."""
    limit = plan.memory_limit_bytes
    names = [of.name for of in plan.baselines if limit and of.bytes_per_device > limit]
    what = [*(["faster plans"] if LIMITED in plan.details else []), *names]
    if not what:
        return []
    words = " and ".join([", ".join(what[:-1]), what[-1]]) if what[1:] else what[0]
    return [f"{request.room} excludes {words}"]
