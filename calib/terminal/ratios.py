"""Ratios of two runs or two parameter files, in words."""

from __future__ import annotations

import math


def share(value: float | None) -> str:
    """12.3%; unknown where no time has an interval."""
    return "unknown" if value is None else f"{value:.1%}"


def percent(log_ratio: float) -> str:
    """ln(second / first) as a signed change in percent."""
    if not math.isfinite(log_ratio):
        return "none"
    return f"{math.expm1(log_ratio):+.1%}"
