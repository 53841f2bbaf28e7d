"""Ratios of two runs or two parameter files, for people and for JSON."""

from __future__ import annotations

import math
from typing import Any


def without_infinity(numbers: dict[str, Any]) -> dict[str, Any]:
    """The numbers as JSON has them: null for an infinite one, and for what is not known."""
    return {
        name: None if value is None or not math.isfinite(value) else value
        for name, value in numbers.items()
    }


def share(value: float | None) -> str:
    """12.3%; unknown where no time has an interval."""
    return "unknown" if value is None else f"{value:.1%}"


def percent(log_ratio: float) -> str:
    """ln(second / first) as a signed change in percent."""
    if not math.isfinite(log_ratio):
        return "none"
    return f"{math.expm1(log_ratio):+.1%}"
