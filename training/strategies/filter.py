"""Filter: every rank has 1/p of the filters of each convolution and fully connected layer.

Weights, biases and their gradients are this rank's alone, so nothing is exchanged after the backward
(ParaDL section 3.2 "filter", A.1.4; formulas.md).
"""

from __future__ import annotations

from calib.training.split.shared_layers import make_shared
from calib.training.worker import Task, Worker


def make(task: Task) -> Worker:
    """This rank's parts of the layers."""
    return make_shared(task, lambda held: None)
