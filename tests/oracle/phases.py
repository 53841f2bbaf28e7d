"""What terms come to, by phase."""

from __future__ import annotations

from calib.oracle.terms import Term, by_phase


def seconds(terms: list[Term], phase: str) -> float:
    return {str(name): cost.seconds for name, cost in by_phase(terms).items()}[phase]
