"""How numbers are written, the same in terminal and page: digits, units, marks, sentences."""

from __future__ import annotations

import math

from calib.foundation import text
from calib.foundation.records import Estimate
from calib.oracle.projection import Basis, PhaseTime

plain = text.plain
BASIS_MARKS: dict[Basis, str] = {
    "exact": "",
    "measured": "",
    "interpolated": "~",
    "extrapolated": "!",
}
OVERSUBSCRIBED_MARK = "*"
LEGEND = {
    "~": "interpolated between measured cases",
    "!": "extrapolated beyond them",
    OVERSUBSCRIBED_MARK: "oversubscribed (more ranks than cores): left out of the means",
}


NO_INTERVAL = "[unknown]"


def decimals(value: float, digits: int = 3) -> int:
    """Decimals that give `value` about `digits` significant digits."""
    if value == 0 or not math.isfinite(value):
        return 0
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def number(value: float, digits: int = 3) -> str:
    """`value` with about `digits` significant digits and no exponent: 0.0123, 4.56, 1234."""
    return f"{value:.{decimals(value, digits)}f}"


def with_interval(value: float, low: float, high: float, scale: float = 1.0) -> str:
    """`41.2 [39.0, 44.1]`: all three times `scale`, with as many decimals as the value needs."""
    places = decimals((value or high) * scale)
    half = (high - low) * scale / 2
    if half > 0:  # a narrow interval must not look like none
        places = max(places, min(decimals(half, 2), places + 1))
    middle, below, above = (f"{x * scale:.{places}f}" for x in (value, low, high))
    return f"{middle} [{below}, {above}]"


def known_interval(value: float, low: float, high: float, scale: float = 1.0) -> str:
    """The same of what was fitted or predicted; `41.2 [unknown]` where the three are one.

    A single time, as of a log of one run, says nothing about its own error.
    """
    if low == value == high and value:
        return f"{number(value * scale)} {NO_INTERVAL}"
    return with_interval(value, low, high, scale)


def estimate(of: Estimate, scale: float = 1.0) -> str:
    """A fitted value with its 95% interval, times `scale`."""
    return known_interval(of.value, of.low, of.high, scale)


def predicted_ms(time: PhaseTime, interval: bool = False) -> str:
    """A predicted time in ms with the mark of its basis, with or without its interval."""
    text = (
        known_interval(time.value, time.low, time.high, 1e3)
        if interval
        else number(time.value * 1e3)
    )
    return BASIS_MARKS[time.basis] + text


def percent(share: float | None) -> str:
    """An accuracy or share as `94.3%`; a dash where there is none."""
    return "-" if share is None else f"{100 * share:.1f}%"


def strategy_text(strategy: str, layout: str, oversubscribed: bool) -> str:
    """The same of its parts."""
    words = f"{strategy}, {layout}" if layout else strategy
    return plain(words) + (OVERSUBSCRIBED_MARK if oversubscribed else "")


def case_words(
    model: str, strategy: str, layout: str, p: int, batch_per_pe: float | None = None
) -> str:
    """`vgg16-mini data+filter, 2 groups of 2, p=4, 8 per PE`; not yet `plain`."""
    how = f"{strategy}, {layout}," if layout else strategy
    each = "" if batch_per_pe is None else f", {samples_words(batch_per_pe)} per PE"
    return f"{model} {how} p={p}{each}"


def seconds_words(seconds: float) -> str:
    """`10 s`, `1 ms`, `100 µs`, `1 ns`."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 0.9999:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def counted(n: int, one: str) -> str:
    """`1 point`, `2 points`."""
    return f"{n} {one}" if n == 1 else f"{n} {one}s"


def signed_percent(share: float) -> str:
    """`+3.1%`, `-0.4%`."""
    return f"{100 * share:+.1f}%"


def samples_words(batch_per_pe: float) -> str:
    """8; 0.25."""
    return str(batch_per_pe) if isinstance(batch_per_pe, int) else f"{batch_per_pe:.4g}"
