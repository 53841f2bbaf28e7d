"""Spatial: p parts of every image, in a grid of one, two or three dimensions (ParaDL section 3.2).

Split layers run on a part each, with halos of x in the forward and of dL/dy in the backward; where the
split ends y is gathered, and each rank takes its part of dL/dy. Batch norms are local (section 4.5.2)
unless they are synchronised. All weights are on every rank; one allreduce sums their gradients.
"""

from __future__ import annotations

from calib.training.split import spatial_program
from calib.training.worker import Task, Worker


def make(task: Task) -> Worker:
    """This rank's part. Raises InputError where the model cannot be cut so."""
    return spatial_program.make(task)
