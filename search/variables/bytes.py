"""Parallax, Table 3: bytes in and out of a machine in one iteration (formulas.md, "Parallax").

w bytes of a variable on N machines with one worker each; a is the fraction of its elements that a
worker uses. Indices of rows are left out, as in the paper. `variables` = m: of a machine among m
variables of w bytes that are spread evenly; None: of the machine that owns the one variable.
"""

from __future__ import annotations

from calib.foundation.errors import InputError


def server_bytes(w: float, machines: int, a: float = 1.0, variables: int | None = None) -> float:
    """By parameter server: 2 a w (N-1) of the owner, 4 a w m (N-1)/N balanced; dense: a = 1."""
    _check(w, machines, a)
    if variables is None:
        return 2.0 * a * w * (machines - 1)
    return 4.0 * a * w * variables * (machines - 1) / machines


def allreduce_bytes(w: float, machines: int, variables: int = 1) -> float:
    """By a ring allreduce, of a dense variable: 4 w m (N-1)/N; nobody owns more than others."""
    _check(w, machines, 1.0)
    return 4.0 * w * variables * (machines - 1) / machines


def allgatherv_bytes(w: float, machines: int, a: float, variables: int = 1) -> float:
    """By a ring allgatherv, of a sparse variable: 2 a w m (N-1)."""
    _check(w, machines, a)
    return 2.0 * a * w * variables * (machines - 1)


def fraction(a: float, what: str = "a") -> float:
    """a, checked. Raises InputError outside (0, 1]."""
    if not 0.0 < a <= 1.0:
        raise InputError(f"{what}={a:g} is no fraction of elements: give one above 0, 1 at most")
    return a


def _check(w: float, machines: int, a: float) -> None:
    """Raises InputError."""
    fraction(a)
    if w < 0 or machines < 1:
        raise InputError(f"a variable of {w:g} bytes on {machines} machines cannot be")
