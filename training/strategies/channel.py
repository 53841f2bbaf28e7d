"""Channel: every rank has 1/p of the input channels of each layer from the second weighted one on.

Nothing is exchanged after the backward: a rank's weights are its own, and all ranks have the same
gradients of biases and whole layers (ParaDL section 3.2 "channel", A.1.5; formulas.md).
"""

from __future__ import annotations

from calib.training.split.shared_layers import make_shared
from calib.training.worker import Task, Worker


def make(task: Task) -> Worker:
    """This rank's parts of the layers."""
    return make_shared(task, lambda held: None)
