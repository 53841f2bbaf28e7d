"""How numbers are written, the same in terminal, page and file: digits, units, intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calib.foundation.records import Estimate

NO_INTERVAL = "[unknown]"
YEAR_S = 365.25 * 24 * 3600
# units of time in s, and the number of them from which on they are used
TIMES = ((86400.0, "days", 2.0), (3600.0, "h", 2.0), (60.0, "min", 2.0), (1.0, "s", 0.9999))
SHORT_TIMES = ((1e-3, "ms", 0.9999), (1e-6, "µs", 0.9999), (1e-9, "ns", 0.0))
SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
PREFIXES = ("", "k", "M", "G")


def decimals(value: float, digits: int = 3) -> int:
    """Decimals that give `value` about `digits` significant digits."""
    if value == 0 or not math.isfinite(value):
        return 0
    return max(0, digits - 1 - math.floor(math.log10(abs(value))))


def number(value: float, digits: int = 3) -> str:
    """`value` with about `digits` significant digits and no exponent: 0.0123, 4.56, 1234."""
    return f"{value:.{decimals(value, digits)}f}"


def with_interval(value: float, low: float, high: float, scale: float = 1.0) -> str:
    """`41.2 [39.0, 44.1]`: all three times `scale`, with as many decimals as the value needs.

    `41.2 [unknown]` where all three are equal: a single time, as in a log of one run, says nothing about
    its own error.
    """
    if low == value == high and value:
        return f"{number(value * scale)} {NO_INTERVAL}"
    places = decimals((value or high) * scale)
    half = (high - low) * scale / 2
    if half > 0:  # a narrow interval must not look like no interval
        places = max(places, min(decimals(half, 2), places + 1))
    middle, below, above = (f"{x * scale:.{places}f}" for x in (value, low, high))
    return f"{middle} [{below}, {above}]"


def estimate_words(of: Estimate, scale: float = 1.0) -> str:
    """The same of an estimate."""
    return with_interval(*of.numbers, scale)


def seconds_words(seconds: float) -> str:
    """In the unit that suits it, to three digits: `2.5 h`, `10 s`, `100 µs`."""
    if seconds > YEAR_S:
        return "> 1 year"
    if not seconds:
        return "0 s"
    size, unit = next(
        (size, unit) for size, unit, least in (*TIMES, *SHORT_TIMES) if seconds >= least * size
    )
    return f"{_short(seconds / size)} {unit}"


def clock_words(seconds: float) -> str:
    """Minutes and seconds: `6:45`."""
    return f"{round(seconds) // 60}:{round(seconds) % 60:02d}"


def bytes_words(nbytes: float) -> str:
    """In the largest unit that is not over it, to three digits: `8 B`, `4 KiB`, `54.5 MiB`."""
    power = next((k for k in (4, 3, 2, 1) if nbytes >= 1024**k), 0)
    return f"{_short(nbytes / 1024**power)} {SIZES[power]}"


def count_words(count: float) -> str:
    """With the prefix that suits it, to three digits: `131`, `25.6 M`, `4.09 G`."""
    power = next((k for k in (3, 2, 1) if count >= 1000**k), 0)
    return f"{_short(count / 1000**power)} {PREFIXES[power]}".rstrip()


def exact_bytes(nbytes: int) -> str:
    """In the largest unit that needs no rounding: two sizes never read the same."""
    power = next((k for k in (3, 2, 1) if nbytes and nbytes % 1024**k == 0), 0)
    return f"{nbytes // 1024**power} {SIZES[power]}"


def _short(value: float) -> str:
    """Three digits, or all before the point, without trailing zeros."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def percent(share: float | None) -> str:
    """An accuracy or share as `94.3%`; a dash where there is none."""
    return "-" if share is None else f"{100 * share:.1f}%"


def signed_percent(share: float) -> str:
    """`+3.1%`, `-0.4%`."""
    return f"{100 * share:+.1f}%"


def counted(n: int, one: str) -> str:
    """`1 point`, `2 points`."""
    return f"{n} {one}" if n == 1 else f"{n} {one}s"


def several(words: Sequence[str], most: int = 3, between: str = ", ") -> str:
    """The first of many: `a, b, c and 4 more`."""
    more = len(words) - most
    return between.join(words[:most]) + (f" and {more} more" if more > 0 else "")
