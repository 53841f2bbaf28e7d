"""`--explain`: the terms of a projection with their numbers, phase by phase."""

from __future__ import annotations

from calib.foundation.words import decimals, number
from calib.oracle.projection import PHASES, Projection
from calib.reports.words import BASIS_MARKS

NOT_MEASURED = "not measured"
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def lines(projection: Projection) -> list[str]:
    """One paragraph for each phase: its sum, then each term with formula, numbers and result."""
    if projection.total is None:
        return []
    found = [f"total {seconds(projection.total.value)} ="]
    if projection.split_ends_after:
        found.append(f"  the split ends after {projection.split_ends_after}")
    for phase in PHASES:
        terms = [term for term in projection.terms if term.phase == phase]
        if not terms or phase not in projection.phases:
            continue
        time = projection.phases[phase]
        found.append(f"  {phase} {seconds(time.value)} =")
        for term in terms:
            values = ", ".join(f"{name} = {value_of(v)}" for name, v in term.values.items())
            mark = BASIS_MARKS[term.time.basis]
            shown = f"{mark if term.time.value else ''}{seconds(term.time.value)}"
            if term.time.basis == "extrapolated" and not term.time.value:
                shown = NOT_MEASURED  # nothing was: that is no time of 0
            found.append(f"    {shown:>12}  {term.what}: {term.formula}")
            if values:
                found.append(f"                  with {values}")
    return found


def seconds(value: float) -> str:
    """In the unit that gives it one to three digits before the point."""
    if value == 0:
        return "0"
    scale, unit = next(((s, u) for s, u in UNITS if abs(value) >= s), UNITS[-1])
    return f"{'-' if value < 0 else ''}{number(abs(value) / scale, 4)} {unit}"


def value_of(value: float | str) -> str:
    """A number that was put in: whole ones as they are, small ones in powers of ten (alpha, beta)."""
    if isinstance(value, str):
        return value
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.4g}" if abs(value) < 1e-3 else f"{value:.{decimals(value, 4)}f}"
