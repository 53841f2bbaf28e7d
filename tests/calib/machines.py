"""A parameter file for every strategy, made by hand."""

from __future__ import annotations

from typing import Any

from tests.oracle.handmade import machine, mlp, tensor_loop

from calib.fitting.parameters.file import Parameters

NET = mlp([12, 8, 8, 3])


SPLIT = ("concat", "split")


def full_machine(**changes: Any) -> Parameters:
    base = machine()
    fit = base.collectives[0]
    names = ("allreduce", "allgather", "reduce_scatter", "p2p", "p2p_both", "halo")
    fits = [fit.model_copy(update={"operation": name}) for name in names]
    loops = [tensor_loop(name, active) for name in SPLIT for active in (1, 2)]
    loops += [tensor_loop("update_adam", active) for active in (1, 2)]
    content = {"collectives": fits, "tensor_loops": [*base.tensor_loops, *loops]}
    return machine(**(content | changes))


def two_executions(name: str) -> Parameters:
    """The same with equal laws of another execution beside those of float32."""
    base, own = full_machine(), {"execution": name}
    return full_machine(
        work=[*base.work, *(law.model_copy(update=own) for law in base.work)],
        tensor_loops=[
            *base.tensor_loops,
            *(loop.model_copy(update=own) for loop in base.tensor_loops),
        ],
    )
