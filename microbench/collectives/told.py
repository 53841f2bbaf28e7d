"""What NCCL is told to use for a case, and how long it expects a call to take itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from calib.foundation.errors import MachineError, Unavailable
from calib.foundation.nccl import CHOSEN
from calib.microbench.agreement import together
from calib.microbench.cases import CollectiveCase
from calib.microbench.collectives.operations import Exercise
from calib.microbench.communicator import Communicator, ToldCommunicator
from calib.microbench.control import Control

Made = TypeVar("Made")


def telling(
    control: Control, case: CollectiveCase, communicator: Communicator | None
) -> Communicator | None:
    """The communicator of a case's calls; collective.

    Raises Unavailable on all ranks where NCCL cannot be told what the case asks for.
    """

    def told() -> Communicator | None:
        if communicator is None:
            return None
        nccl = cast("ToldCommunicator", communicator)
        return nccl.telling(case.algorithm, case.protocol)

    return _available(control, told) if case.algorithm else communicator


def estimate_s(control: Control, case: CollectiveCase, exercise: Exercise | None) -> float | None:
    """NCCL's own estimate of a call of the case, s, the most of all ranks; collective.

    None of other libraries, and of what is no single collective. Raises Unavailable on all ranks
    where NCCL refuses the call: it lacks what the case asks for.
    """
    if case.library != "nccl" or case.operation not in CHOSEN:
        return None

    def mine() -> float | None:
        if exercise is None:
            return None
        return cast("ToldCommunicator", exercise.comm).estimate_s(exercise.call)

    everyone = control.allgather_object(_available(control, mine))
    return max((seconds for seconds in everyone if seconds is not None), default=None)


def _available(control: Control, call: Callable[[], Made]) -> Made:
    try:
        return together(control, call)
    except MachineError as error:
        raise Unavailable(str(error)) from error
