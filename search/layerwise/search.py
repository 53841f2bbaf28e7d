"""Layer-wise parallelism: a configuration for every layer (Jia et al., "Exploring Hidden Dimensions").

t_O = sum over layers of t_C + t_S, and over edges of t_X (equation 1). Costs: prices.py (t_C, t_S),
moving.py (t_X); the search: elimination.py, or enumeration.py; within a memory: constrained.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from calib.foundation.errors import InputError
from calib.oracle.layout.partitions import Configuration
from calib.search.layerwise.baselines import BASELINES, baseline
from calib.search.layerwise.configurations import ConfigurationChoices
from calib.search.layerwise.constrained import smallest, solve_within
from calib.search.layerwise.elimination import Solution, cost_of
from calib.search.layerwise.enumeration import enumerated, lower_bound
from calib.search.layerwise.plan_of import plan_of, price
from calib.search.layerwise.prices import LayerPrices
from calib.search.layerwise.tables import CostTables, Pricing, tables
from calib.search.links import Links, machine_of
from calib.search.plan import Certificate, Searched, SearchedPlan
from calib.search.request import (
    FASTER,
    LIMITED,
    Budget,
    BudgetOver,
    Look,
    SearchRequest,
    Space,
    Spending,
    never,
)

ELIMINATION, ENUMERATION = "elimination", "enumeration"
ELIMINATED = "node and edge elimination keep the optimum"
ENUMERATED = "all plans were looked at, or cut off as no better"
LAGRANGIAN = "Lagrangian bound of the memory limit, by elimination"
WHY = {
    ELIMINATION: (ELIMINATED, LAGRANGIAN),
    ENUMERATION: (ENUMERATED, "the best of all plans that keep no more than the limit"),
}
MOST_ROUNDS = 8  # of searches, each with less room
ENDED = (
    "the budget ended before there were tables of costs or a plan by them: only plans that cut samples "
    "on 1 device, a node or all were looked at"
)


def pricing_of(request: SearchRequest) -> tuple[Pricing, tuple[str, ...]]:
    """The costs of a request, and what is to be told of its machine."""
    machine, notes = machine_of(request.machine, request.devices)
    links = Links(machine, request.devices, request.form)
    return Pricing(LayerPrices(request, machine, links)), notes


def tables_of(
    request: SearchRequest,
    pricing: Pricing,
    choices: ConfigurationChoices | None = None,
    look: Look = never,
) -> CostTables:
    """The tables of all configurations that a request allows, or of those of `choices`."""
    choices = choices or ConfigurationChoices.of(request)
    known: dict[int, tuple[Configuration, ...]] = {}
    for layer, alike in zip(request.spec.layers, request.spec.alike, strict=True):
        if alike not in known:
            known[alike] = choices.configurations(layer.shape, look)
    chosen = [known[alike] for alike in request.spec.alike]
    return tables(pricing, chosen, request.progress, look)


def find(request: SearchRequest) -> SearchedPlan:
    """The fastest plan. Raises InputError where none fits, MissingParameter where a law is missing."""
    spending = request.budget.started()
    pricing, notes = pricing_of(request)
    asked = ConfigurationChoices.of(request)
    try:
        made, found = _looked(request, pricing, asked, spending)
    except BudgetOver:
        made, found = _few(request, pricing, asked.few(), spending)
    chosen = _configurations(made, found.choices)
    details = {
        "degrees": asked.degrees,
        "dimensions": ",".join(asked.dimensions),
        "sync": pricing.prices.sync,
        "exchange": "flat" if pricing.prices.flat else "layers",
        "configurations": str(max(len(of) for of in made.configurations)),
        **({LIMITED: FASTER} if found.limited else {}),
    }
    certificate = found.certificate
    certificate = certificate.model_copy(update={"within": certificate.within or asked.pruned})
    return plan_of(request, pricing, chosen, found.searched, certificate, details, notes)


def _looked(
    request: SearchRequest, pricing: Pricing, choices: ConfigurationChoices, spending: Spending
) -> tuple[CostTables, FoundPlan]:
    """By the method that was asked for. Raises BudgetOver before there is any plan."""
    made = tables_of(request, pricing, choices, spending.look)
    ready = spending.seconds
    request.progress("search", 0.0)
    return made, _within_memory(request, pricing, made, spending, ready)


def _few(
    request: SearchRequest, pricing: Pricing, few: ConfigurationChoices, spending: Spending
) -> tuple[CostTables, FoundPlan]:
    """The best of few plans, which takes no time: the budget ended before there was any of all.

    Raises BudgetOver where none of them fits.
    """
    made, unlimited = tables_of(request, pricing, few), Budget(None).started()
    ready, request = spending.seconds, replace(request, method=ELIMINATION)
    try:
        found = _within_memory(request, pricing, made, unlimited, ready)
    except InputError as error:
        raise BudgetOver(
            f"the budget ended while the tables of costs were made: give a longer budget, or "
            f"fewer configurations (degrees=powers or machine); of plans that cut samples alone {error}"
        ) from error
    return made, found._replace(
        searched=found.searched.model_copy(update={"stopped": "budget"}),
        certificate=Certificate(kind="none", within=few.pruned, why=ENDED),
    )


class FoundPlan(NamedTuple):
    """A plan; `limited`: a faster one has no room."""

    choices: tuple[int, ...]
    searched: Searched
    certificate: Certificate
    limited: bool = False


def _configurations(made: CostTables, choices: Sequence[int]) -> list[Configuration]:
    return [of[choice] for of, choice in zip(made.configurations, choices, strict=True)]


def _within_memory(
    request: SearchRequest, pricing: Pricing, made: CostTables, spending: Spending, ready: float
) -> FoundPlan:
    """The fastest plan whose peak fits. Raises InputError where none was found, BudgetOver.

    The search keeps a sum that is below the peak within the limit. What a plan's peak is over the
    limit, the next plan's sum is to be less; the bound of the first holds for all.
    """
    search = _eliminate if request.method == ELIMINATION else _enumerate
    limit = request.devices.memory_bytes
    if not limit:
        return search(made, math.inf, spending, ready)
    layers, lightest = request.spec.layers, smallest(made.kept, spending.look)
    least = made.kept.of(lightest)

    def peak(choices: Sequence[int]) -> int:
        of = zip(layers, _configurations(made, choices), strict=True)
        return price(pricing, {layer.name: one for layer, one in of}).nbytes

    room, bound, fitting = float(limit), None, list[tuple[int, ...]]()
    for _ in range(MOST_ROUNDS):
        if room < least or (bound is not None and spending.over):
            break
        try:
            found = search(made, room, spending, ready)
        except BudgetOver:
            if bound is None:
                raise
            break
        held = peak(found.choices)
        if bound is None and held <= limit and not found.limited:
            return found
        bound = found.certificate.lower_bound_s if bound is None else bound
        if held <= limit:
            fitting.append(found.choices)
            break
        room = made.kept.of(found.choices) - (held - limit)
    known = {of: peak(of) for of in [lightest, *_known(request, made, spending.look)]}
    fitting += [of for of, held in known.items() if held <= limit]
    if bound is None or not fitting:
        raise request.no_room(min(known.values()))
    best = min(fitting, key=lambda of: cost_of(made.nodes, made.edges, of))
    cost = cost_of(made.nodes, made.edges, best)
    exact, otherwise = WHY[request.method]
    certificate = _certificate(cost, bound, exact if cost <= bound else "", otherwise)
    return found._replace(choices=best, certificate=certificate, limited=True)


def _known(request: SearchRequest, made: CostTables, look: Look) -> list[tuple[int, ...]]:
    """Plans without a search: one that holds little, and the baselines that the tables have."""
    found = []
    with suppress(BudgetOver):
        found.append(smallest(made.unfreed, look))
    for name in BASELINES:
        plan, _ = baseline(request.spec, name, request.samples, request.devices.p)
        pairs = zip(request.spec.layers, made.configurations, strict=True)
        places = [of.index(plan[x.name]) for x, of in pairs if plan.get(x.name) in of]
        found += [tuple(places)] if len(places) == len(made.configurations) else []
    return found


def _certificate(cost: float, bound: float, exact: str, otherwise: str) -> Certificate:
    """`exact` is why nothing is better, "" where that is not known; `otherwise` what the bound is."""
    if exact:
        return Certificate(kind="optimal", lower_bound_s=bound, gap=0.0, why=exact)
    gap = (cost - bound) / bound if bound else None
    return Certificate(kind="bound", lower_bound_s=bound, gap=gap, why=otherwise)


def _eliminate(made: CostTables, limit: float, spending: Spending, ready: float) -> FoundPlan:
    within = solve_within(made.nodes, made.edges, made.kept, limit, spending)
    first, exact = within.first, within.total <= within.bound
    searched = Searched(
        evaluated=first.entries * max(1, spending.evaluated),
        log10_space=made.log10_plans,
        tables_seconds=ready,
        seconds=max(0.0, spending.seconds - ready),
        stopped="complete" if within.complete else "budget",
        steps=_steps(first, made),
        course=tuple(within.course),
    )
    certificate = _certificate(within.total, within.bound, ELIMINATED if exact else "", LAGRANGIAN)
    return FoundPlan(within.choices, searched, certificate, within.choices != first.choices)


def _steps(of: Solution, made: CostTables) -> dict[str, int]:
    return {
        "layers": len(made.nodes),
        "edges": len(made.edges),
        "nodes eliminated": of.nodes_eliminated,
        "edges eliminated": of.edges_eliminated,
        "nodes left (K)": of.left,
        "entries of tables": made.entries,
    }


def _enumerate(made: CostTables, limit: float, spending: Spending, ready: float) -> FoundPlan:
    start = smallest(made.kept, spending.look) if limit < math.inf else None
    best = enumerated(made.nodes, made.edges, spending, made.kept, limit, start=start)
    assert best.choices is not None  # without a limit the first way down ends in a plan
    bound = best.total if best.complete else lower_bound(made.nodes, made.edges)
    searched = Searched(
        evaluated=spending.evaluated,
        log10_space=made.log10_plans,
        tables_seconds=ready,
        seconds=max(0.0, spending.seconds - ready),
        stopped="complete" if best.complete else "budget",
        steps={
            "layers": len(made.nodes),
            "edges": len(made.edges),
            "entries of tables": made.entries,
        },
        course=tuple(best.course),
    )
    return FoundPlan(
        best.choices,
        searched,
        _certificate(
            best.total,
            bound,
            ENUMERATED if best.complete else "",
            "each layer and edge by itself at its best",
        ),
    )


SPACE = Space(
    name="layerwise",
    about="a configuration for every layer over sample, channel, height, width, depth (OptCNN)",
    methods={
        ELIMINATION: "node and edge elimination: the optimum; within a memory limit with a bound",
        ENUMERATION: "depth-first search over all plans, within the budget",
    },
    find=find,
    options={
        "dimensions": "comma-separated, of sample, channel, height, width, depth, input",
        "degrees": "any (default to 16 devices), powers of 2 (to 64), machine (1 device, a node or all)",
        "sync": "allreduce or server: how gradients are summed (measured: allreduce; paper: server)",
        "exchange": "flat (default): a layer's part of one exchange of all; layers: one each",
    },
)
