"""Names of the measured times that predictions look up, so that an error can be traced to its case.

The look-ups name them where times are told apart (oracle/costs/machine.py), and
oracle/sensitivity.py finds the cases that measure them.
"""

from __future__ import annotations

from calib.oracle.sources import FROM, MACHINE


def layer(key: str, active_ranks: int, in_place: bool) -> str:
    """A layer at one batch, alone or in the iterations of a model, with so many ranks of a node."""
    return f"layer {key} on {active_ranks}{' in place' if in_place else ''}"


def tensor_pass(operation: str, key: str, active_ranks: int, in_place: bool) -> str:
    """A pass over a list of tensors."""
    return f"{operation} {key} on {active_ranks}{' in place' if in_place else ''}"


def collective(operation: str, nbytes: int, ranks: int, library: str) -> str:
    """A size of a collective (bytes as a rank sends them), in groups of so many ranks."""
    return f"{library} {operation} {nbytes} B on {ranks}"


def of_machine(origin: str) -> str:
    """The error source of one measured time where they are told apart."""
    return f"{MACHINE}{FROM}{origin}"
