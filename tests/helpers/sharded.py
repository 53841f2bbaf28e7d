"""The weights that a rank trains, also of a worker that has whole ones only while it runs them."""

from __future__ import annotations

from torch import Tensor

from calib.training.strategies.fully_sharded import FullyShardedWorker
from calib.training.worker import Worker


def weights_of(worker: Worker) -> dict[str, Tensor]:
    """By parameter, copies; those of units are gathered one after the other, which is collective."""
    if not isinstance(worker, FullyShardedWorker):
        return {h.name: h.parameter.detach().clone() for h in worker.held}
    name_of, found = {h.parameter: h.name for h in worker.held}, {}
    for unit in worker.units.values():
        worker.gather(unit)
        found |= {name_of[p]: p.detach().clone() for p in unit.parameters}
    return found
