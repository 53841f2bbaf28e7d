"""AutoDDL: an SBP state for every layer over a mesh of (nodes, devices per node).

What states are and what they send: states.py; costs and their tables: prices.py; methods.py;
networks.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from calib.foundation.errors import InputError
from calib.oracle.cost import Cost, total
from calib.search.best import BestSoFar, Choices
from calib.search.links import Links
from calib.search.plan import Baseline, Certificate, PlanLayer, SearchedPlan
from calib.search.request import (
    FASTER,
    LIMITED,
    Budget,
    BudgetOver,
    Look,
    SearchRequest,
    Space,
    Spending,
)
from calib.search.sbp import methods
from calib.search.sbp.methods import CostChain, cheapest
from calib.search.sbp.networks import NAMES, ChainNetwork, named, of_spec
from calib.search.sbp.prices import PHASES, ChainPrices, chain_of
from calib.search.sbp.states import ONE, State, states_of

CHAINED = (
    "what stands between two layers with weights follows the first of them, and takes no time",
    "nothing overlaps: phases of layers are summed",
)
DENSE = ("linear", "embedding")
FEW = "every layer cuts rows, columns or terms alone, over all devices"
ENDED = "the budget ended before there were tables of costs of all states, or a plan by them"

PricesAt = Callable[[int], ChainPrices]  # by the number of micro-batches
ChainTables = dict[int, tuple[ChainPrices, CostChain]]  # by the same
# by baseline, the plans that can be, with their number of micro-batches
KnownChoices = dict[str, list[tuple[int, Choices]]]


def find(request: SearchRequest) -> SearchedPlan:
    """The fastest plan. Raises InputError where none fits, MissingParameter where a law is missing."""
    spending = request.budget.started()
    network = request.model if isinstance(request.model, ChainNetwork) else of_spec(request.spec)
    links = Links(request.machine, request.devices, request.form)
    states = states_of(request.devices, _mesh(request))
    delta = int(request.word("bytes", ("4", "2")))

    def prices_at(micro: int) -> ChainPrices:
        return ChainPrices(request, links, network, micro, delta)

    try:
        of = _searched(request, states, prices_at, spending)
    except BudgetOver:
        of, spending.tables_s = _of_few(request, states, prices_at), spending.seconds
    return _plan(request, of, spending)


class _Found(NamedTuple):
    """What was found among `states`."""

    states: Sequence[State]
    prices: ChainPrices
    chain: CostChain
    found: BestSoFar
    certificate: Certificate
    baselines: list[Baseline]
    limited: bool  # by the memory


def _searched(
    request: SearchRequest, states: Sequence[State], prices_at: PricesAt, spending: Spending
) -> _Found:
    """The best by the method of the request. Raises InputError, BudgetOver before there is any plan."""
    tables = _tables(request, states, prices_at, spending.look)
    spending.tables_s = spending.seconds
    known = _known(tables, states)
    number = _fastest_number(request, tables, known, spending)
    prices, chain = tables[number.micro]
    found = BestSoFar(spending)
    try:
        _run(request, chain, found)
    except BudgetOver:
        found = number.found
        found.complete = False
    if request.method in ("descent", "exact"):  # the others only draw or enumerate
        _keep(known, number.micro, chain, found)
    bounds = number.bounds | {number.micro: max(number.bounds[number.micro], found.bound)}
    return _Found(
        states,
        prices,
        chain,
        found,
        _certificate(found.total, min(bounds.values()), len(bounds) > 1),
        [_baseline(name, tables, states, able) for name, able in known.items()],
        number.limited,
    )


def _of_few(request: SearchRequest, states: Sequence[State], prices_at: PricesAt) -> _Found:
    """The best of few plans, which takes no time: the budget ended before there was any other.

    Raises BudgetOver where none of them can be.
    """
    few = [state for state in states if sum(group.size > 1 for group in state) <= 1]
    unlimited = replace(request, method="exact", budget=Budget(None))
    try:
        if not few:
            raise InputError("the mesh has none")
        of = _searched(unlimited, few, prices_at, unlimited.budget.started())
    except InputError as error:
        raise BudgetOver(
            f"the budget ended before there was any plan: give a longer budget; of plans that cut one "
            f"thing alone {error}"
        ) from error
    of.found.complete = False
    return of._replace(certificate=Certificate(kind="none", within=FEW, why=ENDED))


def _mesh(request: SearchRequest) -> tuple[int, ...]:
    text = request.options.get("mesh", "")
    if not text:
        return ()
    words = text.split("x")
    if len(words) > 3 or not all(w.isascii() and w.isdecimal() and int(w) > 0 for w in words):
        raise InputError(f"mesh={text} is not one to three whole numbers such as 4x2x2")
    return tuple(int(word) for word in words)


def _tables(
    request: SearchRequest, states: Sequence[State], prices_at: PricesAt, look: Look
) -> ChainTables:
    """Prices and tables at the number of micro-batches asked for, else at all powers of 2."""
    text = request.options.get("micro", "") or "auto"
    counts = [1 << k for k in range(21)] if text == "auto" else [request.whole("micro", 1)]
    counts = [count for count in counts if request.samples % count == 0]
    if not counts:
        raise InputError(f"{text} micro-batches do not divide the batch of {request.samples}")
    found: ChainTables = {}
    why = InputError("")
    limit = float(request.devices.memory_bytes or math.inf)
    for count in counts:
        prices = prices_at(count)
        try:
            found[count] = prices, chain_of(prices, states, limit, look)
        except BudgetOver:
            raise
        except InputError as error:
            why = error
    if not found:
        raise why
    return found


class _Number(NamedTuple):
    """The fastest number of micro-batches; what no plan of each number is below, in seconds."""

    micro: int
    found: BestSoFar
    bounds: dict[int, float]
    limited: bool  # by the memory


def _keep(known: KnownChoices, micro: int, chain: CostChain, found: BestSoFar) -> None:
    """Take a plan that is known without a search where it is faster."""
    for count, plan in (one for able in known.values() for one in able):
        if count == micro:
            found.keep(plan, chain.cost(plan))


def _fastest_number(
    request: SearchRequest, tables: ChainTables, known: KnownChoices, spending: Spending
) -> _Number:
    """By dynamic programming within the memory, and from plans that are known.

    Raises InputError where no plan of any number fits, BudgetOver before there is one.
    """
    chains = {count: chain for count, (_, chain) in tables.items()}
    bounds = {
        count: of.without_limit.cost(cheapest(of, look=spending.look))
        for count, of in chains.items()
    }
    clock = Spending(replace(request.budget, evaluations=None), spending.start)
    free, best, micro = min(bounds.values()), BestSoFar(clock), 0
    for count, chain in chains.items():
        if chain.held(chain.smallest()) > chain.limit:
            bounds[count] = math.inf  # no plan
        if bounds[count] >= best.total:
            continue
        found = BestSoFar(clock)
        try:
            methods.exact(chain, found)
        except BudgetOver:
            if micro:
                break
            raise
        _keep(known, count, chain, found)
        bounds[count] = max(bounds[count], found.bound)
        if found.total < best.total:
            best, micro = found, count
    if not micro:
        raise request.no_room(int(min(of.held(of.smallest()) for of in chains.values())))
    return _Number(micro, best, bounds, best.total > free * (1 + 1e-9))


def _run(request: SearchRequest, chain: CostChain, found: BestSoFar) -> None:
    """Search by the method of the request. Raises InputError where nothing fits, BudgetOver."""
    random = np.random.default_rng(request.seed)
    if request.method == "exact":
        methods.exact(chain, found)
    elif request.method == "exhaustive":
        methods.exhaustive(chain, found)
    elif request.method == "random":
        methods.at_random(chain, found, random)
    elif request.method == "metropolis":
        weight = request.number("lambda", 100.0 / chain.cost(chain.smallest()))
        methods.metropolis(chain, found, random, weight)
    else:
        methods.descent(chain, found, random)
    if not found.choices:
        raise InputError(f"{request.method} found no plan that fits within the budget")


def _certificate(seconds: float, bound: float, several: bool) -> Certificate:
    """Against the optimum over the chain, or its Lagrangian bound within a memory."""
    numbers = ", of every number of micro-batches" if several else ""
    why = f"dynamic programming, within a memory with Lagrange's multiplier{numbers}"
    found = Certificate.bounded(seconds, bound, why)
    if found.gap is not None and found.gap > 1e-9:
        return found
    why = f"the optimum of dynamic programming over the chain{numbers}"
    return Certificate(kind="optimal", lower_bound_s=bound, gap=0.0, why=why)


def _plan(request: SearchRequest, of: _Found, spending: Spending) -> SearchedPlan:
    prices, states, found, choices = of.prices, of.states, of.found, of.found.choices
    certificate, mesh = of.certificate, request.options.get("mesh", "")
    if mesh and not certificate.within:
        within = f"degrees are made of the mesh {mesh}"
        certificate = certificate.model_copy(update={"within": within})
    network, layers = prices.network, []
    costs = _costs(prices, states, choices)
    for k, (layer, choice, own) in enumerate(zip(network.layers, choices, costs, strict=True)):
        degrees = dict(zip(("p1", "p2", "p3"), states[choice].degrees, strict=True))
        layers.append(
            PlanLayer(
                name=layer.name,
                kind=layer.kind,
                choice=str(states[choice]),
                degrees=degrees,
                seconds={name: cost.seconds for name, cost in own.items()},
                bytes_per_device=prices.nbytes(k, states[choice]),
            )
        )
    sums = {name: total(own[name] for own in costs) for name in PHASES}
    together = total(sums.values())
    return SearchedPlan(
        **request.head(),
        layers=tuple(layers),
        details={
            "micro-batches": str(prices.micro),
            "bytes of an item": str(prices.delta),
            "states": str(len(states)),
            "mesh": mesh or "any",
            **({LIMITED: FASTER} if of.limited else {}),
        },
        phases={name: cost.record() for name, cost in sums.items()},
        total=together.record(),
        bytes_per_device=int(of.chain.held(choices)),
        searched=spending.searched(
            sum(math.log10(len(able)) for able in of.chain.possible()),
            found.complete,
            found.course,
            found.steps,
            found.spending.evaluated,
        ),
        certificate=certificate,
        baselines=tuple(of.baselines),
        notes=(*prices.links.notes, *network.notes, *CHAINED, *together.notes),
    )


def _costs(prices: ChainPrices, states: Sequence[State], choices: Choices) -> list[dict[str, Cost]]:
    """The costs of every layer by phase."""
    found = []
    for k, choice in enumerate(choices):
        own = prices.node(k, states[choice])
        if k:
            moved = prices.change(k, states[choices[k - 1]], states[choice])
            own["redistribute"] = total([own["redistribute"], moved])
        found.append(own)
    return found


def _known(tables: ChainTables, states: Sequence[State]) -> KnownChoices:
    """data; megatron: p1 x p2 with columns and rows cut in turn; one-weird-trick of CNNs."""
    data = [k for k, state in enumerate(states) if state.columns == 1]
    cut = [k for k, state in enumerate(states) if state.partial == ONE]

    def plans(name: str, network: ChainNetwork, chain: CostChain) -> list[Choices]:
        if name == "data":
            return [tuple(data[:1]) * len(network.layers)]
        if name == "megatron":
            return [_in_turn(network, states, k) for k in cut]
        return [_weird(chain, network, states, data)]

    names = ["data", "megatron"]
    if any(layer.kind == "conv" for layer in next(iter(tables.values()))[0].network.layers):
        names.append("one-weird-trick")
    return {
        name: [
            (count, plan)
            for count, (prices, chain) in tables.items()
            for plan in plans(name, prices.network, chain)
            if plan and math.isfinite(chain.without_limit.cost(plan))
        ]
        for name in names
    }


def _baseline(
    name: str, tables: ChainTables, states: Sequence[State], able: Sequence[tuple[int, Choices]]
) -> Baseline:
    """With its own best number of micro-batches: the fastest that fits, else that of fewest bytes."""
    if not able:
        return Baseline(
            name=name, total=None, feasible=False, why="the mesh, batch or widths do not allow it"
        )

    def order(one: tuple[int, Choices]) -> tuple[float, float]:
        chain = tables[one[0]][1]
        return chain.cost(one[1]), chain.held(one[1])  # infinite where it does not fit

    count, best = min(able, key=order)
    prices, chain = tables[count]
    held, limit = int(chain.held(best)), chain.limit
    whole = total(cost for own in _costs(prices, states, best) for cost in own.values())
    fits = held <= limit
    why = f"micro-batches: {count}"
    if not fits:
        why += f", the fewest bytes; {held} on a device are more than {limit:.0f}"
    return Baseline(name=name, bytes_per_device=held, feasible=fits, total=whole.record(), why=why)


def _weird(
    chain: CostChain, network: ChainNetwork, states: Sequence[State], data: Sequence[int]
) -> Choices:
    """Convolutions by samples, dense layers by columns over all devices, or by rows if those fit."""
    whole = [k for k, state in enumerate(states) if state.split.size == 1]
    cut = sorted(
        (k for k in whole if ONE in (states[k].broadcast, states[k].partial)),
        key=lambda k: states[k].partial.size,
    )
    chosen = []
    for layer, node in zip(network.layers, chain.nodes, strict=True):
        able = [k for k in (cut if layer.kind in DENSE else data) if math.isfinite(node[k])]
        if not able:
            return ()
        chosen.append(able[0])
    return tuple(chosen)


def _in_turn(network: ChainNetwork, states: Sequence[State], which: int) -> Choices:
    """Columns of one dense layer, rows of the next; convolutions by samples over all devices."""
    state = states[which]
    other = State(state.split, state.partial, state.broadcast)
    data = next((k for k, s in enumerate(states) if s.columns == 1), which)
    if other not in states:
        return ()
    pair, dense = (which, list(states).index(other)), 0
    chosen: list[int] = []
    for layer in network.layers:
        chosen.append(data if layer.kind == "conv" else pair[dense % 2])
        dense += layer.kind == "linear"
    return tuple(chosen)


SPACE = Space(
    name="sbp",
    about="an SBP state for every layer over a mesh of nodes and devices (AutoDDL)",
    methods={
        "descent": "coordinate descent with random restarts",
        "exact": "dynamic programming over the chain: the optimum; within a memory limit a bound",
        "exhaustive": "every plan, within the budget",
        "random": "plans drawn at random, within the budget",
        "metropolis": "Metropolis-Hastings: one layer redrawn per step",
    },
    find=find,
    options={
        "mesh": "sizes such as 4x2x2 that degrees are made of (default: any)",
        "micro": "micro-batches of gradient accumulation: a number, or auto: the fastest that fits",
        "bytes": "4 (default), or 2: mixed precision",
        "lambda": "of metropolis, 1/s (default: 100 by the time of the smallest plan)",
    },
    model_of=named,
    models=NAMES,
)
