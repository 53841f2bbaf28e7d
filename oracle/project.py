"""The oracle's one question: what will an iteration cost?"""

from __future__ import annotations

from fitting.parameters import Parameters
from foundation.errors import InputError
from oracle.costs import Costs, add
from oracle.model import ModelSpec
from oracle.projection import PHASES, Projection
from oracle.strategies import strategy_named


def batch_of_each(batch: int, p: int) -> int:
    """B/p samples per PE. Raises InputError where p does not divide the batch."""
    if batch < 1 or p < 1:
        raise InputError(f"batch {batch} and p {p} must be at least 1")
    if batch % p:
        raise InputError(f"p = {p} does not divide the batch of {batch} samples")
    return batch // p


def project(
    model: ModelSpec, strategy: str, p: int, batch_per_pe: int, parameters: Parameters
) -> Projection:
    """One iteration of `model` under `strategy` on `p` PEs with `batch_per_pe` samples each.

    Raises InputError for an unknown strategy or numbers below 1, MissingParameter when the
    parameters lack something. A strategy that cannot run there is an answer: feasible is False.
    """
    if p < 1 or batch_per_pe < 1:
        raise InputError(f"p ({p}) and the batch per PE ({batch_per_pe}) must be at least 1")
    chosen = strategy_named(strategy)
    costs = Costs(parameters, min(p, parameters.ranks_per_node))
    phases = chosen.phases(model, p, batch_per_pe, costs)
    parts = chosen.memory(model, p, batch_per_pe)
    total_bytes = sum(parts.values())
    limits = chosen.limits(model, p, batch_per_pe)
    notes = list(costs.notes)
    notes.append("bytes are the naive sum of all tensors, before any memory reuse (gamma)")
    if 0 < parameters.device_memory_bytes < total_bytes:
        notes.append(
            f"the naive sum is more than the {parameters.device_memory_bytes} B of a PE: with "
            "little reuse it will not fit"
        )
    return Projection(
        model=model.name, strategy=strategy, p=p, batch_per_pe=batch_per_pe, batch=p * batch_per_pe,
        phases={name: phases[name] for name in PHASES},
        total=add(phases[name] for name in PHASES),
        bytes_per_pe=total_bytes, bytes_by_part=parts, feasible=not limits, limits=limits,
        notes=notes,
    )  # fmt: skip
