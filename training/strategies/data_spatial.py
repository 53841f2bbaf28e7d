"""Data+spatial: p1 groups with B/p1 samples each, in which p2 ranks have parts of the images.

Within a group as spatial; the gradients travel by a leader of each group (ParaDL section 4.5), or all
ranks take part (Division.gradients).
"""

from __future__ import annotations

from calib.training.strategies import spatial
from calib.training.worker import Task, Worker


def make(task: Task) -> Worker:
    """This rank's part. Raises InputError where the model cannot be cut so."""
    return spatial.make(task)
