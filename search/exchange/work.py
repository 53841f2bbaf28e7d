"""What P3 schedules: layers in the order of the forward with their times, and their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.cost import NOTHING, Cost
from calib.oracle.layout.workload import workload
from calib.oracle.memory.peak import live_bytes
from calib.oracle.model.spec import ModelSpec
from calib.oracle.strategies.common import compute_terms
from calib.oracle.terms import by_phase
from calib.search.exchange.profile import ExchangeProfile
from calib.search.request import SearchRequest

PARTS = ("weight", "bias")


class Tensor(NamedTuple):
    """A weight or bias, by the index of its layer."""

    name: str
    layer: int
    items: int


@dataclass(frozen=True)
class ExchangeWork:
    """Layers [layers] with their seconds, the same as sums with intervals, and tensors [tensors]."""

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

    @property
    def compute_s(self) -> float:
        """Of an iteration."""
        return self.forward.seconds + self.backward.seconds + self.update.seconds

    @property
    def layer_of(self) -> list[int]:
        """The layer of each tensor."""
        return [tensor.layer for tensor in self.tensors]

    def at(self, forward: float, backward: float, update: float) -> ExchangeWork:
        """The same with other sums of seconds, each layer's in proportion."""
        return ExchangeWork(
            self.name,
            self.layers,
            self.kinds,
            _share(self.forward_s, forward),
            _share(self.backward_s, backward),
            _share(self.update_s, update),
            self.forward,
            self.backward,
            self.update,
            self.tensors,
            self.bytes_per_device,
        )


def batch_of(request: SearchRequest) -> tuple[int | None, tuple[str, ...]]:
    """The global mini-batch, None where it is not known, and what is told of it.

    Of a profile every device does its own mini-batch.
    """
    if isinstance(request.model, ExchangeProfile):
        return request.model.source.batch_on(request.devices.p, request.batch)
    return request.samples, ()


def work_of(request: SearchRequest) -> ExchangeWork:
    """Layers at B/p samples on a device, on all devices of a node at once.

    Of a model by the calibrated costs, what an iteration adds to isolated layers spread over them; of
    a profile its own times, without an update. Raises InputError where p does not divide B and where
    the memory is too small, MissingParameter.
    """
    p, batch = request.devices.p, batch_of(request)[0]
    if batch is not None and batch % p:
        raise InputError(f"p = {p} does not divide the batch of {batch} samples")
    if isinstance(request.model, ExchangeProfile):
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
    costs = request.machine.costs(active, request.optimizer)
    of, batch = workload(model, division), division.local_batch
    phases = by_phase(compute_terms(model, division, costs))
    shares = {
        way: _share(
            [cost.seconds for cost in costs.layers.each(of, batch, way)], phases[way].seconds
        )
        for way in ("forward", "backward")
    }
    share = p if request.options.get("architecture") == "server" else 1
    shapes = [layer.shape.parameter_shapes for layer in model.layers]
    update = costs.tensors.update(of.weights, request.optimizer, share) if any(shapes) else NOTHING
    items = [float(layer.shape.parameter_items) for layer in model.layers]
    return ExchangeWork(
        model.name,
        tuple(layer.name for layer in model.layers),
        tuple(layer.shape.kind for layer in model.layers),
        shares["forward"],
        shares["backward"],
        _share(items, update.seconds),
        phases["forward"],
        phases["backward"],
        update,
        tuple(
            Tensor(f"{layer.name}.{part}", place, _items(shape))
            for place, layer in enumerate(model.layers)
            for part, shape in zip(PARTS, layer.shape.parameter_shapes, strict=False)
        ),
        live_bytes(model, division, request.optimizer),
    )


def _profiled(profile: ExchangeProfile) -> ExchangeWork:
    return ExchangeWork(
        profile.name,
        profile.names,
        profile.kinds,
        profile.forward_s,
        profile.backward_s,
        (0.0,) * len(profile.names),
        Cost(sum(profile.forward_s), "measured"),
        Cost(sum(profile.backward_s), "measured"),
        NOTHING,
        tuple(
            Tensor(name, place, items)
            for place, (name, items) in enumerate(zip(profile.names, profile.items, strict=True))
            if items
        ),
        0,
    )


def _share(parts: Sequence[float], whole: float) -> tuple[float, ...]:
    """The parts, in proportion, so that they sum to `whole`."""
    together = sum(parts)
    return tuple(part * whole / together for part in parts) if together else tuple(parts)


def _items(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
