"""The in-place calibration: whole iterations of a model, to see what the sum of its parts leaves out.

Handed to microbench's session by the front door as the runner of `in_place` cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from microbench.cases import InPlaceCase
from microbench.repeat import Block, Repetitions, repeat
from training.run import RUN_PHASES
from training.step import TrainingStep

if TYPE_CHECKING:
    from microbench.communicators import Communicator


def measure_in_place(
    communicator: Communicator, case: InPlaceCase, seed: int, budget_s: float, target: float
) -> Repetitions:
    """Repetitions of every phase that runs on this number of ranks, in seconds."""
    strategy = "serial" if communicator.size == 1 else "data"
    step = TrainingStep(case.model, strategy, case.batch, seed % 2**31, communicator)
    return repeat(communicator, in_place_block(step), budget_s, target)


def in_place_block(step: TrainingStep) -> Block:
    """The timed loop: phases kept apart by barriers."""
    exchanged = step.exchange is not None
    phases = [p for p in RUN_PHASES if exchanged or p not in ("pack", "exchange", "unpack")]

    def block(n: int) -> dict[str, list[float]]:
        rows = [step.iterate(apart=True)[0] for _ in range(n)]
        return {phase: [row[phase] for row in rows] for phase in phases}

    return block
