"""From models to cases: what `calib measure` times so that serial and data parallelism are predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foundation.errors import InputError
from foundation.layers import DTYPE_BYTES
from microbench.cases import Case, CollectiveCase, InPlaceCase, LayerCase, Plan, TensorsCase
from oracle.model import ModelSpec, tensors_key
from training.models import entry, model_names

SMALLEST_BYTES, LARGEST_BYTES = 8, 64 * 2**20
ITEM_BYTES = DTYPE_BYTES["float32"]


@dataclass(frozen=True)
class Effort:
    """How much a calibration does."""

    budget_s: float
    launches: int
    grid_factor: int
    iterations: int


FULL = Effort(budget_s=240.0, launches=6, grid_factor=2, iterations=100)
QUICK = Effort(budget_s=30.0, launches=3, grid_factor=8, iterations=20)


def batch_of(model: str, batch_per_pe: int | None) -> int:
    """Samples per PE: what was asked for, else the registered model's own. Raises InputError."""
    if batch_per_pe is not None:
        return batch_per_pe
    if model in model_names():
        return entry(model).batch_per_pe
    raise InputError(f"model file {model}: give --batch-per-pe (only registered models have one)")


def size_grid(factor: int) -> list[int]:
    """8 B to 64 MiB, both included, each `factor` times the one before."""
    sizes = []
    nbytes = SMALLEST_BYTES
    while nbytes < LARGEST_BYTES:
        sizes.append(nbytes)
        nbytes *= factor
    return [*sizes, LARGEST_BYTES]


def make_plan(
    models: Sequence[tuple[ModelSpec, int]], sizes: Sequence[int], effort: Effort, seed: int = 0
) -> Plan:
    """Cases for `models` (with the batch per PE of each) on launches of `sizes` ranks."""
    cases: list[Case] = []
    for ranks in sizes:
        if ranks > 1:
            cases += collective_cases([spec for spec, _ in models], ranks, effort.grid_factor)
        for spec, batch in models:
            cases += layer_cases(spec, batch, ranks)
            cases += tensor_cases(spec, ranks)
            if spec.name in model_names():
                cases.append(in_place_case(spec, batch, ranks))
    unique = {case.id: case for case in cases}
    return Plan(
        cases=tuple(unique.values()), launches=effort.launches, budget_seconds=effort.budget_s,
        seed=seed,
    )  # fmt: skip


def collective_cases(specs: Sequence[ModelSpec], ranks: int, factor: int) -> list[Case]:
    """allreduce and p2p over the grid, and allreduce at the gradient sizes of the models."""
    grid = size_grid(factor)
    gradients = {ITEM_BYTES * spec.parameter_items: spec.name for spec in specs}
    cases: list[Case] = [
        CollectiveCase(operation="allreduce", nbytes=nbytes, ranks=ranks,
                       purpose=f"gradients of {gradients.get(nbytes, 'any model')}")
        for nbytes in sorted({*grid, *gradients})
    ]  # fmt: skip
    cases += [
        CollectiveCase(operation="p2p", nbytes=nbytes, ranks=ranks, purpose="messages")
        for nbytes in grid
    ]
    return cases


def layer_cases(spec: ModelSpec, batch: int, ranks: int) -> list[Case]:
    """Every layer that runs a kernel, at the batch that a rank runs."""
    return [
        LayerCase(layer=layer.shape, batch=batch, needs_input_grad=layer.needs_input_grad,
                  ranks=ranks, purpose=f"{layer.name} of {spec.name}")
        for layer in spec.layers
        if not layer.shape.is_free
    ]  # fmt: skip


def tensor_cases(spec: ModelSpec, ranks: int) -> list[Case]:
    """Update and pack of the whole model, and of each layer (from which other models are fitted)."""
    lists = {tensors_key(spec.parameter_shapes): (spec.parameter_shapes, spec.name)}
    for layer in spec.layers:
        if layer.shape.parameter_shapes:
            shapes = layer.shape.parameter_shapes
            lists.setdefault(tensors_key(shapes), (shapes, f"{layer.name} of {spec.name}"))
    return [
        TensorsCase(operation=operation, key=key, shapes=shapes, ranks=ranks, purpose=purpose)
        for key, (shapes, purpose) in lists.items()
        for operation in (("update", "pack") if ranks > 1 else ("update",))
    ]


def in_place_case(spec: ModelSpec, batch: int, ranks: int) -> Case:
    """Whole iterations, and of what parts they are the sum."""
    layers = [layer for layer in spec.layers if not layer.shape.is_free]
    outputs = sum(layer.shape.output_items for layer in layers)
    return InPlaceCase(
        model=spec.name, batch=batch, ranks=ranks,
        layer_keys=tuple(
            layer.shape.key(batch, "float32", layer.needs_input_grad) for layer in layers
        ),
        activation_bytes=ITEM_BYTES * batch * outputs,
        tensors_key=tensors_key(spec.parameter_shapes),
        gradient_bytes=ITEM_BYTES * spec.parameter_items,
        purpose="what the sum of the parts leaves out",
    )  # fmt: skip
