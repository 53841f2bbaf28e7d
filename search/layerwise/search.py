"""Layer-wise parallelism: a configuration for every layer (Jia et al., "Exploring Hidden Dimensions").

t_O = sum over layers of t_C + t_S, and over edges of t_X (equation 1). Costs: prices.py (t_C, t_S),
moving.py (t_X); the search: elimination.py, or enumeration.py; the peak of memory: memory.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from calib.foundation.errors import InputError
from calib.oracle.layout.partitions import Configuration
from calib.search.best import Choices
from calib.search.layerwise.baselines import BASELINES, baseline
from calib.search.layerwise.configurations import ConfigurationChoices
from calib.search.layerwise.elimination import solve, solve_within
from calib.search.layerwise.enumeration import enumerated, lower_bound
from calib.search.layerwise.plan_of import plan_of, price
from calib.search.layerwise.tables import CostTables, Pricing, tables
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


class FoundPlan(NamedTuple):
    """A plan; `limited`: a faster one does not fit."""

    choices: Choices
    searched: Searched
    certificate: Certificate
    limited: bool = False


def tables_of(
    request: SearchRequest,
    pricing: Pricing,
    choices: ConfigurationChoices | None = None,
    look: Look = never,
) -> CostTables:
    """The tables of `choices`, or of all configurations that the request allows."""
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
    pricing = Pricing(request)
    asked = ConfigurationChoices.of(request)
    try:
        made = tables_of(request, pricing, asked, spending.look)
        spending.tables_s = spending.seconds
        request.progress("search", 0.0)
        found = _within_memory(request, pricing, made, spending)
    except BudgetOver:
        made, found = _few(request, pricing, asked.few(), spending)
    details = {
        "degrees": asked.degrees,
        "dimensions": ",".join(asked.dimensions),
        "sync": pricing.prices.sync,
        "exchange": "flat" if pricing.prices.flat else "layers",
        "configurations": str(max(len(of) for of in made.configurations)),
        **({LIMITED: FASTER} if found.limited else {}),
    }
    within = found.certificate.within or asked.pruned
    certificate = found.certificate.model_copy(update={"within": within})
    chosen = made.chosen(found.choices)
    return plan_of(request, pricing, chosen, found.searched, certificate, details)


def _few(
    request: SearchRequest, pricing: Pricing, few: ConfigurationChoices, spending: Spending
) -> tuple[CostTables, FoundPlan]:
    """The best of few plans, which takes no time: the budget ended before there was any other.

    Raises BudgetOver where none of them fits.
    """
    made, unlimited = tables_of(request, pricing, few), Budget(None).started()
    unlimited.tables_s = spending.seconds
    try:
        found = _within_memory(replace(request, method=ELIMINATION), pricing, made, unlimited)
    except InputError as error:
        raise BudgetOver(
            f"the budget ended while the tables of costs were made: give a longer budget, or "
            f"fewer configurations (degrees=powers or machine); of plans that cut samples alone {error}"
        ) from error
    return made, found._replace(
        searched=found.searched.model_copy(update={"stopped": "budget"}),
        certificate=Certificate(kind="none", within=few.pruned, why=ENDED),
    )


def _within_memory(
    request: SearchRequest, pricing: Pricing, made: CostTables, spending: Spending
) -> FoundPlan:
    """The fastest plan whose peak fits. Raises InputError where none was found, BudgetOver.

    The search keeps a sum that no peak is below within the limit. Where a plan's peak is over the limit,
    the next plan's sum has to be smaller by as much; the bound of the first search holds for all.
    """
    search = _eliminate if request.method == ELIMINATION else _enumerate
    limit = request.devices.memory_bytes
    if not limit:
        return search(made, math.inf, spending)
    lightest = solve(made.kept, spending.look).choices
    least = made.kept.of(lightest)

    def peak(choices: Sequence[int]) -> int:
        return price(pricing, made.chosen(choices)).nbytes

    room, bound, fitting = float(limit), None, list[Choices]()
    for _ in range(MOST_ROUNDS):
        if room < least or (bound is not None and spending.over):
            break
        try:
            found = search(made, room, spending)
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
    best = min(fitting, key=made.costs.of)
    cost = made.costs.of(best)
    exact, otherwise = WHY[request.method]
    certificate = _certificate(cost, bound, exact if cost <= bound else "", otherwise)
    return found._replace(choices=best, certificate=certificate, limited=True)


def _known(request: SearchRequest, made: CostTables, look: Look) -> list[Choices]:
    """Plans without a search: one that holds little, and the baselines that the tables have."""
    found = []
    with suppress(BudgetOver):
        found.append(solve(made.unfreed, look).choices)
    for name in BASELINES:
        plan, _ = baseline(request.spec, name, request.samples, request.devices.p)
        if plan and all(one in of for of, one in zip(made.configurations, plan, strict=True)):
            found.append(tuple(map(tuple.index, made.configurations, plan)))
    return found


def _certificate(cost: float, bound: float, exact: str, otherwise: str) -> Certificate:
    """`exact` is why nothing is better ("": that is not known); `otherwise` is what the bound is."""
    if exact:
        return Certificate(kind="optimal", lower_bound_s=bound, gap=0.0, why=exact)
    gap = (cost - bound) / bound if bound else None
    return Certificate(kind="bound", lower_bound_s=bound, gap=gap, why=otherwise)


def _eliminate(made: CostTables, limit: float, spending: Spending) -> FoundPlan:
    best, first = solve_within(made.costs, made.kept, limit, spending)
    steps = made.steps(
        {
            "nodes eliminated": first.nodes_eliminated,
            "edges eliminated": first.edges_eliminated,
            "nodes left (K)": first.left,
        }
    )
    evaluated = first.entries * spending.evaluated
    searched = spending.searched(made.log10_plans, best.complete, best.course, steps, evaluated)
    exact = ELIMINATED if best.total <= best.bound else ""
    certificate = _certificate(best.total, best.bound, exact, LAGRANGIAN)
    return FoundPlan(best.choices, searched, certificate, best.choices != first.choices)


def _enumerate(made: CostTables, limit: float, spending: Spending) -> FoundPlan:
    start = solve(made.kept, spending.look).choices if limit < math.inf else ()
    best = enumerated(made.costs, spending, made.kept, limit, start=start)
    searched = spending.searched(made.log10_plans, best.complete, best.course, made.steps({}))
    bound, exact = (best.total, ENUMERATED) if best.complete else (lower_bound(made.costs), "")
    otherwise = "each layer and edge by itself at its best"
    return FoundPlan(best.choices, searched, _certificate(best.total, bound, exact, otherwise))


SPACE = Space(
    name="layerwise",
    about="a configuration for every layer over sample, channel, height, width, depth (OptCNN)",
    methods={
        ELIMINATION: "node and edge elimination: the optimum; within a memory limit with a bound",
        ENUMERATION: "depth-first search over all plans, within the budget",
    },
    find=find,
    any_execution=True,
    options={
        "dimensions": "comma-separated, of sample, channel, height, width, depth, input",
        "degrees": "any (default to 16 devices), powers of 2 (to 64), machine (1 device, a node or all)",
        "sync": "allreduce or server: how gradients are summed (measured: allreduce; paper: server)",
        "exchange": "flat (default): a layer's part of one exchange of all; layers: one each",
    },
)
