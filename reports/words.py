"""How numbers are written, the same in terminal and page: digits, units, marks, sentences."""

from __future__ import annotations

import math

from fitting.records import Estimate
from oracle.projection import Basis, PhaseTime
from reports.accuracy import Accuracy, MeasuredTime, samples_words
from reports.summary import Summary

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


def plain(text: str) -> str:
    """`text` on one line without control characters, so that a name cannot drive a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


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


def estimate(of: Estimate, scale: float = 1.0) -> str:
    """A fitted value with its 95% interval, times `scale`."""
    return with_interval(of.value, of.low, of.high, scale)


def predicted_ms(time: PhaseTime, interval: bool = False) -> str:
    """A predicted time in ms with the mark of its basis, with or without its interval."""
    text = (
        with_interval(time.seconds, time.low, time.high, 1e3)
        if interval
        else number(time.seconds * 1e3)
    )
    return BASIS_MARKS[time.basis] + text


def measured_ms(time: MeasuredTime, interval: bool = False) -> str:
    """A measured time in ms, with or without its interval."""
    if interval:
        return with_interval(time.seconds, time.low, time.high, 1e3)
    return number(time.seconds * 1e3)


def percent(share: float | None) -> str:
    """An accuracy or share as `94.3%`; a dash where there is none."""
    return "-" if share is None else f"{100 * share:.1f}%"


def strategy_words(accuracy: Accuracy) -> str:
    """The strategy and its layout, marked where the run was oversubscribed."""
    words = f"{accuracy.strategy}, {accuracy.layout}" if accuracy.layout else accuracy.strategy
    return plain(words) + (OVERSUBSCRIBED_MARK if accuracy.oversubscribed else "")


def bytes_words(nbytes: int) -> str:
    """`8 B`, `4 KiB`, `64 MiB`."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:g} {unit}" if size == int(size) else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:g} GiB" if size == int(size) else f"{size:.1f} GiB"


def seconds_words(seconds: float) -> str:
    """`10 s`, `1 ms`, `100 µs`, `1 ns`."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 0.9999:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def _points(n: int) -> str:
    return "1 point" if n == 1 else f"{n} points"


def summary_lines(of: Summary) -> list[str]:
    """The summary in sentences; without a point that counts it says so and states no accuracy."""
    left_out = (
        f"{_points(of.oversubscribed)} oversubscribed: scored, and left out of all means."
        if of.oversubscribed
        else ""
    )
    if of.mean_over_points is None or of.worst is None:
        lines = ["No point was scored that counts, so no accuracy is stated."]
        return [*lines, left_out] if left_out else lines
    means = ", ".join(f"{plain(s)} {percent(mean)}" for s, mean in of.strategy_means.items())
    worst = of.worst
    lines = [
        f"Accuracy per strategy (mean): {means}.",
        (
            f"Mean of the strategy means: {percent(of.mean_of_strategy_means)}; "
            f"mean over {_points(of.points)}: {percent(of.mean_over_points)}."
        ),
        (
            f"Worst point: {plain(worst.model)} {plain(worst.strategy)} p={worst.p} "
            f"batch {samples_words(worst.batch_per_pe)} per PE, {percent(worst.accuracy)}."
        ),
        (
            f"Interval coverage: {percent(of.coverage)} of the measured medians lie inside the "
            "predicted 95% interval."
        ),
    ]
    ceiling = of.noise_ceiling
    if ceiling is None:
        lines.append("Noise ceiling: unknown, as no work was run twice.")
    else:
        pairs = "1 pair" if ceiling.pairs == 1 else f"{ceiling.pairs} pairs"
        lines.append(
            f"Noise ceiling: a run predicts another of the same work to {percent(ceiling.mean)} "
            f"({pairs}, worst {percent(ceiling.worst)})."
        )
    return [*lines, left_out] if left_out else lines
