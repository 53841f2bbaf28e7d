"""Serial training: one rank, no exchange."""

from __future__ import annotations

from calib.training.worker import Task, Worker, whole_parameters


def make(task: Task) -> Worker:
    """The module as it is."""
    return Worker(task, task.module, whole_parameters(task.module))
