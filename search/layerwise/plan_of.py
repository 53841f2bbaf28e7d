"""What a choice of configurations costs, with its intervals; the Plan record with its baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calib.oracle.cost import Cost, total
from calib.oracle.layout.partitions import Configuration
from calib.search.layerwise.baselines import BASELINES, baseline
from calib.search.layerwise.tables import Pricing
from calib.search.plan import Baseline, Certificate, PlanLayer, Searched, SearchedPlan
from calib.search.request import SearchRequest

PHASES = ("compute", "synchronize", "update", "redistribute")
ASSUMED = (
    "redistribution: each item has one owner; all devices send and receive at once, and the busiest "
    "device of each level counts, as one message, there and back",
    "nothing overlaps: phases of layers are summed (equation 1)",
    "memory: the most that tensors take at once, as PyTorch frees them; of a layer its weights, their "
    "state and what it keeps for its backward. What libraries take (cuDNN, NCCL) is not in it",
)
NORMS = "batch normalisation is over a part's samples and pixels alone"


@dataclass(frozen=True)
class Priced:
    """What a plan costs: by phase of each layer, by phase, and together.

    `layer_bytes` are those that a layer takes on a device, `nbytes` the peak of a device.
    """

    layers: list[dict[str, Cost]]
    phases: dict[str, Cost]
    total: Cost
    layer_bytes: list[int]
    nbytes: int


def price(pricing: Pricing, of: Sequence[Configuration]) -> Priced:
    """What a plan with these configurations of the layers costs."""
    layers, prices, memory = pricing.model.layers, pricing.prices, pricing.memory
    incoming: list[list[Cost]] = [[] for _ in layers]
    nbytes = [memory.layer(j, one)[0] for j, one in enumerate(of)]
    joined: dict[tuple[int, int], float] = {}
    for j, which, i in pricing.edges:
        size = layers[j].shape.input_shapes[which]
        own, need = pricing.own(i, of[i : i + 1], size), pricing.need(j, which, of[j : j + 1])
        within, between = (float(m[0, 0]) for m in pricing.moved(own, need))
        there, back = (float(m[0, 0]) for m in pricing.copied(own, need))
        both_ways = layers[i].has_gradient
        moved = total([prices.move(within, False), prices.move(between, True)])
        incoming[j] += [
            moved.times(2.0 if both_ways else 1.0),
            prices.copy(there),
            prices.copy(back if both_ways else 0.0),
        ]
        edge = memory.edge(j, which, own, need, of[j : j + 1])
        joined[j, which], kept = (float(m[0, 0]) for m in edge)
        nbytes[j] += kept
    found = [
        {
            "compute": prices.compute(j, one),
            "synchronize": prices.synchronize(j, one),
            "update": prices.update(j, one),
            "redistribute": total([*incoming[j], prices.terms(j, one)]),
        }
        for j, one in enumerate(of)
    ]
    phases = {name: total(layer[name] for layer in found) for name in PHASES}
    peak = memory.peak(of, joined)
    return Priced(found, phases, total(phases.values()), list(map(round, nbytes)), peak)


def plan_of(
    request: SearchRequest,
    pricing: Pricing,
    chosen: Sequence[Configuration],
    searched: Searched,
    certificate: Certificate,
    details: dict[str, str],
) -> SearchedPlan:
    """The record of these configurations."""
    layers, found = request.spec.layers, price(pricing, chosen)
    norms = any(layer.shape.kind == "batch_norm" for layer in layers)
    return SearchedPlan(
        **request.head(),
        layers=tuple(
            PlanLayer(
                name=layer.name,
                kind=layer.shape.name,
                choice=f"{of}{', identity' * layer.shape.is_identity}",
                degrees=of.degrees,
                seconds={name: cost.seconds for name, cost in costs.items()},
                bytes_per_device=nbytes,
            )
            for layer, of, costs, nbytes in zip(
                layers, chosen, found.layers, found.layer_bytes, strict=True
            )
        ),
        details=details,
        phases={name: cost.record() for name, cost in found.phases.items()},
        total=found.total.record(),
        bytes_per_device=found.nbytes,
        searched=searched,
        certificate=certificate,
        baselines=tuple(_baselines(request, pricing)),
        notes=(
            *pricing.prices.links.notes,
            *ASSUMED,
            *([NORMS] if norms else []),
            *found.total.notes,
        ),
    )


def _baselines(request: SearchRequest, pricing: Pricing) -> list[Baseline]:
    limit, found = request.devices.memory_bytes, []
    for name in BASELINES:
        plan, told = baseline(request.spec, name, request.samples, request.devices.p)
        if not plan:
            found.append(Baseline(name=name, total=None, feasible=False, why=told))
            continue
        cost = price(pricing, plan)
        found.append(Baseline.judged(name, cost.total.record(), cost.nbytes, limit, told))
    return found
