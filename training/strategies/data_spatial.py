"""Data+spatial: p1 groups with B/p1 samples each, in which p2 ranks have parts of the images.

As spatial in a group; the gradients travel by a leader of each group (ParaDL section 4.5), or all ranks
take part (Division.gradients).
"""

from __future__ import annotations

from calib.training.split import spatial_program
from calib.training.worker import Task, Worker


def make(task: Task) -> Worker:
    """This rank's part. Raises InputError where the model cannot be cut so."""
    return spatial_program.make(task)
