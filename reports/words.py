"""How numbers are written, the same in terminal and page: digits, units, marks, sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from calib.fitting.parameters.records import Estimate
from calib.foundation import text
from calib.foundation.statistics import median
from calib.oracle.projection import Basis, PhaseTime
from calib.reports.scoring.accuracy import Accuracy, MeasuredTime, samples_words
from calib.reports.scoring.summary import NoiseCeiling, Summary, Worst

if TYPE_CHECKING:
    from calib.reports.drift.verdict import Verdict
    from calib.reports.night import Check
    from calib.reports.scoring.choice import Choices, Option
    from calib.reports.scoring.paper import PaperRow

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
# of the exit codes of a night
VERDICTS = {0: "fine", 1: "not right", 2: "not known, as something is missing"}


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
        known_interval(time.seconds, time.low, time.high, 1e3)
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
    return strategy_text(accuracy.strategy, accuracy.layout, accuracy.oversubscribed)


def strategy_text(strategy: str, layout: str, oversubscribed: bool) -> str:
    """The same of its parts."""
    words = f"{strategy}, {layout}" if layout else strategy
    return plain(words) + (OVERSUBSCRIBED_MARK if oversubscribed else "")


def needs_batch(accuracies: Iterable[Accuracy]) -> bool:
    """Whether model, strategy and p alone would name two different cases."""
    cases = {(a.model, a.strategy, a.layout, a.p, a.batch_per_pe) for a in accuracies}
    return len({case[:-1] for case in cases}) < len(cases)


def case_words(
    model: str, strategy: str, layout: str, p: int, batch_per_pe: float | None = None
) -> str:
    """`vgg16-mini data+filter, 2 groups of 2, p=4, 8 per PE`; not yet `plain`."""
    how = f"{strategy}, {layout}," if layout else strategy
    each = "" if batch_per_pe is None else f", {samples_words(batch_per_pe)} per PE"
    return f"{model} {how} p={p}{each}"


def bytes_words(nbytes: int) -> str:
    """`8 B`, `4 KiB`, `64 MiB`."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:g} {unit}" if size == int(size) else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:g} TiB" if size == int(size) else f"{size:.1f} TiB"


def seconds_words(seconds: float) -> str:
    """`10 s`, `1 ms`, `100 µs`, `1 ns`."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 0.9999:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def counted(n: int, one: str) -> str:
    """`1 point`, `2 points`."""
    return f"{n} {one}" if n == 1 else f"{n} {one}s"


def worst_words(worst: Worst) -> str:
    """The case of a worst point, with its accuracy."""
    case = case_words(worst.model, worst.strategy, worst.layout, worst.p, worst.batch_per_pe)
    return f"{plain(case)}: {percent(worst.accuracy)}"


def _narrower(coverage_90: float | None) -> str:
    return "" if coverage_90 is None else f", {percent(coverage_90)} inside the 90% one"


def summary_lines(of: Summary, strategies: bool = True) -> list[str]:
    """The summary in sentences; without a point that counts it says so and states no accuracy.

    `strategies`: with the means per strategy, which a table beside it may have.
    """
    left_out = (
        [
            f"{counted(of.oversubscribed, 'point')} oversubscribed: scored, and left out of all means."
        ]
        if of.oversubscribed
        else []
    )
    if of.mean_over_points is None or of.worst is None:
        none = "No point was scored that counts, so no accuracy is stated."
        return [none, *_memory_lines(of), *left_out]
    lines = []
    if strategies:
        means = ", ".join(f"{plain(s)} {percent(mean)}" for s, mean in of.strategy_means.items())
        lines.append(f"Accuracy per strategy (mean): {means}.")
    lines += [
        f"Mean of the strategy means: {percent(of.mean_of_strategy_means)}; "
        f"mean over {counted(of.points, 'point')}: {percent(of.mean_over_points)}.",
        f"Worst point: {worst_words(of.worst)}.",
        f"Interval coverage: {percent(of.coverage)} of the measured medians lie inside the "
        f"predicted 95% interval{_narrower(of.coverage_90)}"
        + (f"; {percent(of.overlap)} of the pairs overlap." if of.overlap is not None else "."),
        *_memory_lines(of),
        _ceiling_line(of.noise_ceiling),
    ]
    return [*lines, *left_out]


def strategies_line(rows: Sequence[PaperRow]) -> str:
    """Our mean accuracy of each strategy, the paper's in parentheses."""
    means = (
        f"{plain(row.strategy)} {percent(row.ours)} ({percent(row.paper)})"
        for row in rows
        if row.ours is not None
    )
    return f"Accuracy per strategy, mean (and the paper's): {', '.join(means)}."


def _memory_lines(of: Summary) -> list[str]:
    if of.memory is None:
        return []
    return [
        f"Memory: mean {percent(of.memory.mean)} over {counted(of.memory.points, 'point')}, worst "
        f"{worst_words(of.memory.worst)}; {percent(of.memory.coverage)} of the measured peaks lie "
        "inside the predicted interval."
    ]


def _ceiling_line(ceiling: NoiseCeiling | None) -> str:
    if ceiling is None:
        return "Noise ceiling: unknown, as no work was run twice."
    return (
        f"Noise ceiling: a run predicts the next one of the same work to {percent(ceiling.mean)} "
        f"({counted(ceiling.pairs, 'pair')}, worst {percent(ceiling.worst)})."
    )


def choice_lines(of: Choices | None) -> list[str]:
    """Whether the oracle picks the fastest strategy, in sentences."""
    if of is None:
        return [
            "Choice of strategy: not judged, as no model ran under two strategies on the same PEs."
        ]
    n = len(of.choices)
    tied = f" (in {of.tied} more, noise does not tell the two apart)" if of.tied else ""
    tau = "" if of.mean_tau is None else f"; rank correlation (Kendall's tau-b) {of.mean_tau:.2f}"
    lines = [
        f"Choice of strategy: the fastest was picked in {of.right} of {counted(n, 'group')}{tied}; "
        f"the pick is within 3% of it in {of.near} of {n}{tau}."
    ]
    worst = max(of.choices, key=lambda choice: choice.regret)
    if worst.regret > 0:
        lines.append(
            f"Worst pick: {plain(worst.model)} p={worst.p} batch {worst.batch}: "
            f"{option_words(worst.options[worst.picked])}, {percent(worst.regret)} slower than "
            f"{option_words(worst.options[0])}."
        )
    return lines


def option_words(option: Option) -> str:
    """The strategy with its layout in parentheses."""
    return plain(f"{option.strategy} ({option.layout})" if option.layout else option.strategy)


def check_lines(checks: Sequence[Check]) -> list[str]:
    """How far the short check is off the parameters: per kind, the median and the furthest case."""
    lines = []
    for kind in dict.fromkeys(check.kind for check in checks):
        of = [check for check in checks if check.kind == kind and check.expected.value > 0]
        changes = [check.measured.value / check.expected.value - 1.0 for check in of]
        if not changes:
            continue
        change, furthest = max(zip(changes, of, strict=True), key=lambda pair: abs(pair[0]))
        lines.append(
            f"Check of {kind} ({counted(len(of), 'case')}): {signed_percent(median(changes))} against "
            f"the parameters in the median; furthest {plain(furthest.what)}, "
            f"{plain(furthest.case)}: {signed_percent(change)}."
        )
    return lines


def signed_percent(share: float) -> str:
    """`+3.1%`, `-0.4%`."""
    return f"{100 * share:+.1f}%"


def verdict_lines(of: Verdict) -> list[str]:
    """The verdict with its reasons; what is missing is listed elsewhere."""
    reasons = [line for line in of.lines if not line.startswith("missing: ")]
    words = VERDICTS.get(of.code, str(of.code))
    if len(reasons) == 1:
        return [f"Verdict: {words}: {reasons[0].removesuffix('.')}."]
    return [f"Verdict: {words}{':' if reasons else '.'}", *(f"- {reason}" for reason in reasons)]
