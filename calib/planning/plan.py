"""From a request to a plan: what `calib measure` times, in the order of its use to predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from calib.foundation.errors import InputError
from calib.foundation.files import ensure_directory
from calib.foundation.run_files import PLAN_FILE, REQUEST_FILE
from calib.foundation.words import several
from calib.microbench.cases import Case, Plan, SparseCase, read_plan, write_plan
from calib.microbench.records.cluster import Cluster
from calib.oracle.model.spec import ModelSpec
from calib.planning.collectives import collective_cases
from calib.planning.layers import in_place_cases, layer_cases, overlap_cases
from calib.planning.peaks import peak_cases
from calib.planning.points import PlannedLaunches, planned_launches, points_of, with_tokens_cut
from calib.planning.request import Request
from calib.planning.tensors import tensor_cases
from calib.terminal.printing import say
from calib.training.models.specs import keep_models, named, why_not_built

# purposes named of a case that serves many points
NAMED_PURPOSES = 2


@dataclass(frozen=True)
class Draft:
    """A plan, how many duplicate cases were dropped, and what was left out and why."""

    plan: Plan
    duplicates: int
    left_out: list[str]


def draft(request: Request, cluster: Cluster, specs: Mapping[str, ModelSpec]) -> Draft:
    """The plan of a request on a cluster; `specs` has the model of each name in the request.

    Raises InputError where no point can be run.
    """
    machine = planned_launches(request, cluster)
    points, left_out = points_of(request, machine, specs)
    apart = with_tokens_cut(points)
    collectives, unsent = collective_cases(request, machine, apart)
    cases = [
        *in_place_cases(request, apart),
        *overlap_cases(request, machine, points),
        *layer_cases(request, apart),
        *peak_cases(request, machine, points),
        *tensor_cases(request, apart),
        *collectives,
        *sparse_cases(request, machine),
    ]
    unique = merged(cases)
    plan = Plan(
        cases=tuple(sorted(unique, key=lambda case: case.tier)),
        launches=request.launches,
        budget_seconds=request.budget_s,
        seed=request.seed,
        target_half_width=request.target,
        variables=request.variables,
    )
    unbuilt = [why for model in specs.values() if (why := why_not_built(model))]
    return Draft(plan, len(cases) - len(unique), left_out + unbuilt + unsent)


def sparse_cases(request: Request, machine: PlannedLaunches) -> list[Case]:
    """Every method at every share, on all launches of 2 ranks or more; the server also in parts."""
    if request.sparse is None:
        return []
    of = request.sparse
    ways = [("server", parts) for parts in of.partitions] + [("allgatherv", 1), ("allreduce", 1)]
    return [
        SparseCase(
            rows=of.rows,
            width=of.width,
            share=share,
            method=method,
            partitions=parts,
            ranks=ranks,
            purpose="which exchange of a sparse gradient is fastest, in how many parts",
        )
        for ranks in sorted({machine.launch_for(p) for p in request.p} - {1})
        for share in of.shares
        for method, parts in ways
    ]


def merged(cases: list[Case]) -> list[Case]:
    """Each case once, with its smallest tier and the purposes that it serves."""
    same: dict[str, list[Case]] = {}
    for case in cases:
        same.setdefault(case.id, []).append(case)
    return [
        group[0].model_copy(
            update={
                "tier": min(case.tier for case in group),
                "purpose": joined([case.purpose for case in group]),
            }
        )
        for group in same.values()
    ]


def joined(purposes: list[str]) -> str:
    """The first purposes, and how many more there are."""
    return several(list(dict.fromkeys(purposes)), NAMED_PURPOSES, "; ")


def specs_of(request: Request) -> dict[str, ModelSpec]:
    """The model of each name in the request. Raises InputError or FileError."""
    return named(request.models)


def plan_for_run(run: Path, request: Request, cluster: Cluster) -> Plan:
    """The plan of a run directory: the one it has, else a new one, written to plan.json.

    plan.toml keeps the request beside it. Raises InputError when the directory was begun with
    another plan.
    """
    specs = specs_of(request)
    drafted = draft(request, cluster, specs)
    plan = drafted.plan
    path = ensure_directory(run) / PLAN_FILE
    if path.exists():
        known = read_plan(run)
        if known.as_asked() != plan:
            raise InputError(
                f"{run} was begun with another plan ({_difference(run, request)}); "
                "give the same options to go on, or another -o"
            )
        return known
    for line in drafted.left_out:
        say(f"left out: {line}")
    keep_models(run, specs.values())
    request.write(run / REQUEST_FILE)
    write_plan(run, plan)
    return plan


def _difference(run: Path, request: Request) -> str:
    """How a request differs from that of the run directory."""
    if not (run / REQUEST_FILE).exists():
        return "its plan.toml is missing"
    before, now = Request.read(run / REQUEST_FILE).model_dump(), request.model_dump()
    other = [
        f"{key} was {_word(before[key])}, now {_word(now[key])}"
        for key in now
        if before[key] != now[key]
    ]
    return "; ".join(other) or "its models, the machine or this program have changed since"


def _word(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
