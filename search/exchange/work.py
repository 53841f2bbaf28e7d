"""What P3 schedules: layers in the order of the forward with their times, and their tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.layers import ITEM_BYTES
from calib.oracle.cost import NOTHING, Cost
from calib.oracle.layout.workload import workload
from calib.oracle.memory.live_bytes import live_bytes
from calib.oracle.model.recomputed import regions
from calib.oracle.model.spec import ModelSpec
from calib.oracle.strategies.common import DIRECTIONS, compute_terms
from calib.oracle.terms import by_phase
from calib.search.pipelines.profile import PipelineProfile
from calib.search.pipelines.work import batch_of
from calib.search.request import SearchRequest


class Tensor(NamedTuple):
    """A weight or bias, by the index of its layer."""

    name: str
    layer: int
    items: int


@dataclass(frozen=True)
class ExchangeWork:
    """Seconds of each layer, their sums with intervals, and the tensors; 0 bytes are unknown ones."""

    name: str
    layers: tuple[str, ...]
    kinds: tuple[str, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]
    forward: Cost
    backward: Cost
    update: Cost
    tensors: tuple[Tensor, ...]
    bytes_per_device: int
    gradient_item_bytes: int = ITEM_BYTES

    @property
    def compute_s(self) -> float:
        """Seconds of an iteration that only computes."""
        return self.forward.seconds + self.backward.seconds + self.update.seconds

    @property
    def largest(self) -> int:
        """Items of the largest tensor."""
        return max((tensor.items for tensor in self.tensors), default=1)

    @property
    def layer_of(self) -> list[int]:
        """The layer of each tensor."""
        return [tensor.layer for tensor in self.tensors]

    def at(self, forward: float, backward: float, update: float) -> ExchangeWork:
        """The same with other sums of seconds, each layer's in proportion."""
        return replace(
            self,
            forward_s=_share(self.forward_s, forward),
            backward_s=_share(self.backward_s, backward),
            update_s=_share(self.update_s, update),
        )


def work_of(request: SearchRequest) -> ExchangeWork:
    """Layers at B/p samples per device, with all devices of a node at work.

    A model's have the calibrated costs, with what an iteration adds to isolated layers spread over them;
    a profile's have its own times, without an update. Raises InputError where p does not divide B and
    where the memory is too small, MissingParameter.
    """
    p = request.devices.p
    batch, _ = batch_of(request, p)
    if batch is not None and batch % p:
        raise InputError(f"p = {p} does not divide the batch of {batch} samples")
    if isinstance(request.model, PipelineProfile):
        return _profiled(request.model)
    model = request.spec
    work = _calibrated(model, request)
    limit = request.devices.memory_bytes
    if limit and work.bytes_per_device > limit:
        raise request.no_room(work.bytes_per_device, "data parallelism does not fit")
    return work


def _calibrated(model: ModelSpec, request: SearchRequest) -> ExchangeWork:
    p = request.devices.p
    division = Division("data", p, request.samples)
    active = min(p, request.devices.per_node)
    costs = request.machine.costs(active, request.optimizer, model.execution)
    of, batch = workload(model, division), division.local_batch
    phases = by_phase(compute_terms(model, division, costs))
    forward, backward = (
        [cost.seconds for cost in costs.layers.each(of, batch, way)] for way in DIRECTIONS
    )
    for region in regions(model):  # run again when the backward comes to the last that saves
        backward[region.saving] += sum(forward[region.first : region.again])
    share = p if request.options.get("architecture") == "server" else 1
    shapes = [layer.own_parameters for layer in model.layers]
    update = costs.tensors.update(of.weights, request.optimizer, share) if any(shapes) else NOTHING
    items = [float(layer.own_parameter_items) for layer in model.layers]
    return ExchangeWork(
        model.name,
        tuple(layer.name for layer in model.layers),
        tuple(layer.shape.name for layer in model.layers),
        _share(forward, phases["forward"].seconds),
        _share(backward, phases["backward"].seconds),
        _share(items, update.seconds),
        phases["forward"],
        phases["backward"],
        update,
        tuple(
            Tensor(name, place, math.prod(shape))
            for place, layer in enumerate(model.layers)
            for name, shape in layer.named_parameters.items()
        ),
        live_bytes(model, division, request.optimizer),
        model.items.weight_bytes,
    )


def _profiled(profile: PipelineProfile) -> ExchangeWork:
    nodes = [profile.nodes[k] for k in _in_order(profile)]
    items = [round(node.parameter_bytes / ITEM_BYTES) for node in nodes]
    forward = tuple(node.forward_s for node in nodes)
    backward = tuple(node.backward_s for node in nodes)
    return ExchangeWork(
        profile.name,
        tuple(node.name for node in nodes),
        tuple(node.what.split("(")[0].lower() for node in nodes),
        forward,
        backward,
        (0.0,) * len(nodes),
        Cost(sum(forward), "measured"),
        Cost(sum(backward), "measured"),
        NOTHING,
        tuple(
            Tensor(node.name, k, n)
            for k, (node, n) in enumerate(zip(nodes, items, strict=True))
            if n
        ),
        0,
    )


def _in_order(of: PipelineProfile) -> list[int]:
    """Each layer after those that it reads, otherwise by their numbers."""
    before: dict[int, list[int]] = {}
    for source, reader in of.edges:
        before.setdefault(reader, []).append(source)
    left = sorted(range(len(of.nodes)), key=lambda k: (len(of.nodes[k].name), of.nodes[k].name))
    order: dict[int, None] = {}
    while left:
        ready = next(k for k in left if all(b in order for b in before.get(k, ())))
        order[ready] = None
        left.remove(ready)
    return list(order)


def _share(parts: Sequence[float], whole: float) -> tuple[float, ...]:
    """The parts, in proportion, so that they sum to `whole`."""
    together = sum(parts)
    return tuple(part * whole / together for part in parts) if together else tuple(parts)
