"""The Plan record of a choice of configurations, with its intervals, and the baselines beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calib.oracle.cost import Cost, total
from calib.oracle.layout.partitions import Configuration
from calib.search.layerwise.baselines import BASELINES, baseline
from calib.search.layerwise.tables import LayerPrice, Pricing, priced_layers
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
    """A plan's seconds by phase and together, its layers, and the most bytes that a device holds."""

    layers: tuple[LayerPrice, ...]
    phases: dict[str, Cost]
    total: Cost
    nbytes: int


def price(pricing: Pricing, plan: Mapping[str, Configuration]) -> Priced:
    """What a plan costs, with intervals."""
    layers, peak = priced_layers(pricing, [plan[x.name] for x in pricing.model.layers])
    phases = {name: total(getattr(layer, name) for layer in layers) for name in PHASES}
    return Priced(tuple(layers), phases, total(phases.values()), peak)


def plan_of(
    request: SearchRequest,
    pricing: Pricing,
    chosen: Sequence[Configuration],
    searched: Searched,
    certificate: Certificate,
    details: dict[str, str],
    notes: Sequence[str],
) -> SearchedPlan:
    """The record."""
    layers = request.spec.layers
    named = {layer.name: of for layer, of in zip(layers, chosen, strict=True)}
    found = price(pricing, named)
    said = [*notes, *ASSUMED]
    if any(layer.shape.kind == "batch_norm" for layer in layers):
        said.append(NORMS)
    of = request.machine.parameters
    return SearchedPlan(
        space="layerwise",
        method=request.method,
        model=request.spec.name,
        nodes=request.devices.nodes,
        devices_per_node=request.devices.per_node,
        batch=request.samples,
        form=request.form,
        optimizer=request.optimizer,
        layers=tuple(
            PlanLayer(
                name=layer.name,
                kind=layer.shape.kind,
                choice=f"{named[layer.name]}{', identity' * layer.shape.is_identity}",
                degrees=named[layer.name].degrees,
                seconds={name: getattr(cost, name).seconds for name in PHASES},
                bytes_per_device=cost.nbytes,
            )
            for layer, cost in zip(layers, found.layers, strict=True)
        ),
        details=details,
        phases={name: cost.record() for name, cost in found.phases.items()},
        total=found.total.record(),
        bytes_per_device=found.nbytes,
        memory_limit_bytes=request.devices.memory_bytes,
        searched=searched,
        certificate=certificate,
        baselines=tuple(_baselines(request, pricing)),
        parameters=of.provenance.cluster_name,
        notes=tuple(dict.fromkeys([*said, *found.total.notes])),
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
