"""Layer-wise parallelism: a configuration for every layer (Jia et al., "Exploring Hidden Dimensions").

t_O = sum over layers of t_C + t_S, and over edges of t_X (equation 1). Costs: prices.py (t_C, t_S),
moving.py (t_X); the search: elimination.py, or enumeration.py; within a memory: constrained.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from foundation.errors import InputError
from oracle.partitions import Configuration, why_impossible
from oracle.search.layerwise.configurations import Choices
from oracle.search.layerwise.constrained import require_room, solve_within
from oracle.search.layerwise.elimination import Solution, solve
from oracle.search.layerwise.enumeration import Best, enumerated, lower_bound
from oracle.search.layerwise.plan_of import Priced, plan_of, price
from oracle.search.layerwise.prices import Prices
from oracle.search.layerwise.tables import Pricing, Tables, tables
from oracle.search.links import Links, machine_of
from oracle.search.plan import Certificate, Plan, Searched
from oracle.search.request import Request, Space

ELIMINATION, ENUMERATION = "elimination", "enumeration"


def pricing_of(request: Request) -> tuple[Pricing, tuple[str, ...]]:
    """The costs of a request, and what is to be told of its machine."""
    machine, notes = machine_of(request.machine, request.devices)
    links = Links(machine, request.devices, request.form)
    return Pricing(Prices(request, machine, links)), notes


def priced(request: Request, plan: Mapping[str, Configuration]) -> Priced:
    """What a plan costs, by phase, with intervals. Raises InputError where a layer cannot be cut so."""
    for layer in request.spec.layers:
        if layer.name not in plan:
            raise InputError(f"the plan has no configuration for {layer.name}")
        of = plan[layer.name]
        why = why_impossible(layer.shape, of, request.batch)
        if of.parts > request.devices.p:
            why = f"{of.parts} parts are more than the {request.devices.p} devices"
        if why:
            raise InputError(f"{layer.name} cannot be cut by {of}: {why}")
    return price(pricing_of(request)[0], plan, request.optimizer)


def tables_of(request: Request, pricing: Pricing) -> Tables:
    """The tables of all configurations that a request allows."""
    choices = Choices.of(request)
    known: dict[int, tuple[Configuration, ...]] = {}
    for layer, alike in zip(request.spec.layers, request.spec.alike, strict=True):
        if alike not in known:
            known[alike] = choices.configurations(layer.shape)
    chosen = [known[alike] for alike in request.spec.alike]
    return tables(pricing, chosen, request.optimizer, request.progress)


def find(request: Request) -> Plan:
    """The fastest plan. Raises InputError where none fits, MissingParameter where a law is missing."""
    start = perf_counter()
    pricing, notes = pricing_of(request)
    made = tables_of(request, pricing)
    ready = perf_counter()
    look = _eliminate if request.method == ELIMINATION else _enumerate
    request.progress("search", 0.0)
    choices, searched, certificate = look(request, made, ready - start)
    chosen = [of[choice] for of, choice in zip(made.configurations, choices, strict=True)]
    details = {
        "degrees": Choices.of(request).degrees,
        "dimensions": ",".join(Choices.of(request).dimensions),
        "sync": pricing.prices.sync,
        "exchange": "flat" if pricing.prices.flat else "layers",
        "configurations": str(max(len(of) for of in made.configurations)),
    }
    return plan_of(request, pricing, chosen, searched, certificate, details, notes)


Found = tuple[tuple[int, ...], Searched, Certificate]


def _eliminate(request: Request, made: Tables, tables_seconds: float) -> Found:
    limit, spending = request.devices.memory_bytes, request.budget.started()
    if limit:
        within = solve_within(made.nodes, made.edges, made.nbytes, limit, spending)
        choices, cost, first = within.choices, within.total, within.first
        bound, course, complete = within.bound, within.course, within.complete
    else:
        first = solve(made.nodes, made.edges)
        choices, cost, bound, complete = first.choices, first.total, first.total, True
        course = [(spending.seconds, cost)]
    exact = cost <= bound
    certificate = Certificate(
        kind="optimal" if exact else "bound", lower_bound_s=bound,
        gap=0.0 if exact else (cost - bound) / bound if bound else None,
        why="node and edge elimination keep the optimum" if exact
        else "Lagrangian bound of the memory limit, by elimination",
    )  # fmt: skip
    searched = Searched(
        evaluated=first.entries * max(1, spending.evaluated), log10_space=made.log10_plans,
        tables_seconds=tables_seconds, seconds=spending.seconds,
        stopped="complete" if complete else "budget", steps=_steps(first, made), course=tuple(course),
    )  # fmt: skip
    return choices, searched, certificate


def _steps(of: Solution, made: Tables) -> dict[str, int]:
    return {
        "layers": len(made.nodes), "edges": len(made.edges),
        "nodes eliminated": of.nodes_eliminated, "edges eliminated": of.edges_eliminated,
        "nodes left (K)": of.left, "entries of tables": made.entries,
    }  # fmt: skip


def _enumerate(request: Request, made: Tables, tables_seconds: float) -> Found:
    limit, spending = float(request.devices.memory_bytes or "inf"), request.budget.started()
    require_room(made.nbytes, limit)
    best: Best = enumerated(made.nodes, made.edges, spending, made.nbytes, limit)
    assert best.choices is not None  # the first way down ends in a plan
    bound = best.total if best.complete else lower_bound(made.nodes, made.edges)
    certificate = Certificate(
        kind="optimal" if best.complete else "bound", lower_bound_s=bound,
        gap=(best.total - bound) / bound if bound else None,
        why="all plans were looked at, or cut off as no better" if best.complete
        else "each layer and edge by itself at its best",
    )  # fmt: skip
    searched = Searched(
        evaluated=spending.evaluated, log10_space=made.log10_plans, tables_seconds=tables_seconds,
        seconds=spending.seconds, stopped="complete" if best.complete else "budget",
        steps={"layers": len(made.nodes), "edges": len(made.edges),
               "entries of tables": made.entries},
        course=tuple(best.course),
    )  # fmt: skip
    return best.choices, searched, certificate


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
