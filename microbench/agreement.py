"""Problems that ranks share, and which GPU of its machine a rank takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from calib.foundation.errors import MachineError
from calib.microbench.control import Control
from calib.microbench.machine.placement import machine_id

Made = TypeVar("Made")


def agree(control: Control, problem: str) -> None:
    """Raise MachineError on all ranks where any of them has a problem; collective.

    Ranks that went on would wait for the others for ever.
    """
    problems = control.allgather_object(problem)
    for rank, found in enumerate(problems):
        if found:
            everywhere = all(other == found for other in problems)
            raise MachineError(found if everywhere else f"rank {rank}: {found}")


def together(control: Control, call: Callable[[], Made]) -> Made:
    """What `call` returns; collective. Raises MachineError on all ranks where it does on any."""
    found: list[Made] = []
    problem = ""
    try:
        found.append(call())
    except MachineError as error:
        problem = str(error)
    agree(control, problem)
    return found[0]


def gpu_index(control: Control, visible: int) -> int:
    """This rank's place among the ranks of its machine, modulo the GPUs that it sees; collective.

    Modulo: a launcher may show each rank its own GPU alone.
    """
    machines = control.allgather_object(machine_id())
    return machines[: control.rank].count(machines[control.rank]) % visible
