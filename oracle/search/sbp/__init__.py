"""AutoDDL: an SBP state for every layer over a mesh of (nodes, devices per node).

What states are and what they send: states.py; costs: prices.py, tables.py; methods.py; networks.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from foundation.errors import InputError
from oracle.cost import Cost, total
from oracle.model import ModelSpec
from oracle.search.links import Links, machine_of
from oracle.search.plan import Baseline, Certificate, Plan, PlanLayer, Searched
from oracle.search.request import Request, Space
from oracle.search.sbp import methods
from oracle.search.sbp.methods import Chain, Choices, Found
from oracle.search.sbp.networks import NAMES, Network, named, of_spec
from oracle.search.sbp.prices import PHASES, Prices
from oracle.search.sbp.states import ONE, State, states_of
from oracle.search.sbp.tables import chain_of

CHAINED = (
    "what stands between two layers with weights follows the first of them, and takes no time",
    "nothing overlaps: phases of layers are summed",
)
DENSE = ("linear", "embedding")


def find(request: Request) -> Plan:
    """The fastest plan. Raises InputError where none fits, MissingParameter where a law is missing."""
    start = perf_counter()
    network = request.model if isinstance(request.model, Network) else of_spec(request.spec)
    machine, notes = machine_of(request.machine, request.devices)
    links = Links(machine, request.devices, request.form)
    states = states_of(request.devices, _mesh(request))
    delta = int(request.word("bytes", ("4", "2")))
    limit = float(request.devices.memory_bytes or math.inf)

    def prices_at(micro: int) -> Prices:
        return Prices(request, machine, links, network, micro, delta)

    prices, chain = _within(request, states, limit, prices_at)
    ready = perf_counter()
    found = Found(request.budget.started())
    _run(request, chain, found)
    certificate = _certificate(chain, found)
    searched = Searched(
        evaluated=found.spending.evaluated,
        log10_space=sum(math.log10(len(of)) for of in chain.possible()),
        tables_seconds=ready - start, seconds=found.spending.seconds,
        stopped="complete" if found.complete else "budget", steps=found.steps,
        course=tuple(found.course),
    )  # fmt: skip
    return _plan(request, prices, chain, states, found.choices, searched, certificate, notes)


def _mesh(request: Request) -> tuple[int, ...]:
    text = request.options.get("mesh", "")
    if not text:
        return ()
    words = text.split("x")
    if len(words) > 3 or not all(w.isascii() and w.isdecimal() and int(w) > 0 for w in words):
        raise InputError(f"mesh={text} is not one to three whole numbers such as 4x2x2")
    return tuple(int(word) for word in words)


def _within(
    request: Request, states: Sequence[State], limit: float, made: Callable[[int], Prices]
) -> tuple[Prices, Chain]:
    """Prices and tables with the micro-batches asked for, or with the fewest that fit."""
    text = request.options.get("micro", "") or "auto"
    if text != "auto":
        counts = [request.whole("micro", 1)]
    else:
        counts = [1 << k for k in range(21) if request.batch % (1 << k) == 0]
    if any(request.batch % count for count in counts):
        raise InputError(f"{text} micro-batches do not divide the batch of {request.batch}")
    least, why = math.inf, InputError("")
    for count in counts:
        prices = made(count)
        try:
            chain = chain_of(prices, states, limit)
        except InputError as error:
            why = error
            continue
        held = chain.held(chain.smallest())
        if held <= limit:
            return prices, chain
        least = min(least, held)
    if math.isinf(least):
        raise why
    raise InputError(
        f"no plan fits into {limit:.0f} bytes per device: the smallest takes {least:.0f} "
        f"({least / 2**30:.2f} GiB)"
    )


def _run(request: Request, chain: Chain, found: Found) -> None:
    random = np.random.default_rng(request.seed)
    if request.method == "exact":
        methods.exact(chain, found)
    elif request.method == "exhaustive":
        methods.exhaustive(chain, found)
    elif request.method == "random":
        methods.at_random(chain, found, random)
    elif request.method == "metropolis":
        weight = request.number("lambda", 0.0 + 100.0 / _scale(chain))
        methods.metropolis(chain, found, random, weight)
    else:
        methods.descent(chain, found, random)
    if not found.choices:
        raise InputError(f"{request.method} found no plan that fits within the budget")


def _scale(chain: Chain) -> float:
    """Seconds of the plan that takes the least memory."""
    return chain.cost(chain.smallest())


def _certificate(chain: Chain, found: Found) -> Certificate:
    """Against the optimum over the chain, or its Lagrangian bound within a memory."""
    bound = found.bound
    if bound is None:
        other = Found(found.spending.budget.started())
        methods.exact(chain, other)
        bound = other.bound or 0.0
    gap = max(0.0, found.total / bound - 1) if bound else 0.0
    exact = gap <= 1e-9
    return Certificate(
        kind="optimal" if exact else "bound", lower_bound_s=bound, gap=0.0 if exact else gap,
        why="the optimum of dynamic programming over the chain" if math.isinf(chain.limit) or exact
        else "Lagrangian bound of the memory limit, by dynamic programming",
    )  # fmt: skip


def _plan(
    request: Request, prices: Prices, chain: Chain, states: Sequence[State], choices: Choices,
    searched: Searched, certificate: Certificate, notes: Sequence[str],
) -> Plan:  # fmt: skip
    network, layers = prices.network, []
    costs = _costs(prices, states, choices)
    for k, (layer, choice, own) in enumerate(zip(network.layers, choices, costs, strict=True)):
        degrees = dict(zip(("p1", "p2", "p3"), states[choice].degrees, strict=True))
        layers.append(PlanLayer(
            name=layer.name, kind=layer.kind, choice=str(states[choice]), degrees=degrees,
            seconds={name: cost.seconds for name, cost in own.items()},
            bytes_per_device=prices.nbytes(k, states[choice]),
        ))  # fmt: skip
    sums = {name: total(own[name] for own in costs) for name in PHASES}
    together = total(sums.values())
    return Plan(
        space="sbp", method=request.method, model=network.name, nodes=request.devices.nodes,
        devices_per_node=request.devices.per_node, batch=request.batch, form=request.form,
        optimizer=request.optimizer, layers=tuple(layers),
        details={"micro-batches": str(prices.micro), "bytes of an item": str(prices.delta),
                 "states": str(len(states)), "mesh": request.options.get("mesh", "") or "any"},
        phases={name: cost.record() for name, cost in sums.items()}, total=together.record(),
        bytes_per_device=int(chain.held(choices)), memory_limit_bytes=request.devices.memory_bytes,
        searched=searched, certificate=certificate,
        baselines=tuple(_baselines(prices, chain, states)),
        parameters=request.machine.parameters.provenance.cluster_name,
        notes=tuple(dict.fromkeys([*notes, *network.notes, *CHAINED, *together.notes])),
    )  # fmt: skip


def _costs(prices: Prices, states: Sequence[State], choices: Choices) -> list[dict[str, Cost]]:
    """Of every layer by phase."""
    found = []
    for k, choice in enumerate(choices):
        own = prices.node(k, states[choice])
        if k:
            moved = prices.change(k, states[choices[k - 1]], states[choice])
            own["redistribute"] = total([own["redistribute"], moved])
        found.append(own)
    return found


def _baselines(prices: Prices, chain: Chain, states: Sequence[State]) -> list[Baseline]:
    """data; megatron: the best p1 x p2 with columns and rows cut in turn; one-weird-trick of CNNs."""
    network = prices.network
    data = [k for k, state in enumerate(states) if state.columns == 1]
    sets: dict[str, list[Choices]] = {"data": [tuple(data[:1]) * len(network.layers)]}
    sets["megatron"] = [_in_turn(network, states, k) for k, s in enumerate(states)
                        if s.partial == ONE]  # fmt: skip
    if any(layer.kind == "conv" for layer in network.layers):
        sets["one-weird-trick"] = [_weird(chain, network, states, data)]
    free, made = Chain(chain.nodes, chain.edges, chain.nbytes), []
    for name, plans in sets.items():
        able = [p for p in plans if p and math.isfinite(free.cost(p))]
        if not able:
            made.append(Baseline(name=name, total=None, feasible=False,
                                 why="the mesh, batch or widths do not allow it"))  # fmt: skip
            continue
        best = min(able, key=lambda p: (chain.cost(p), free.cost(p)))
        held = int(free.held(best))
        fits = held <= chain.limit
        whole = total(cost for own in _costs(prices, states, best) for cost in own.values())
        made.append(Baseline(
            name=name, bytes_per_device=held, feasible=fits,
            total=whole.record(),
            why="" if fits else f"{held} bytes on a device are more than {chain.limit:.0f}",
        ))  # fmt: skip
    return made


def _weird(chain: Chain, network: Network, states: Sequence[State], data: Sequence[int]) -> Choices:
    """Convolutions by samples, dense layers by columns over all devices, or by rows where those fit."""
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


def _in_turn(network: Network, states: Sequence[State], which: int) -> Choices:
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


def _model_of(name: str) -> Network | ModelSpec | None:
    return named(name)


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
        "micro": "micro-batches of gradient accumulation: a number, or auto: the fewest that fit",
        "bytes": "4 (default), or 2: mixed precision",
        "lambda": "of metropolis, 1/s (default: 100 by the time of the smallest plan)",
    },
    model_of=_model_of,
    models=NAMES,
)
