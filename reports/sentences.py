"""Sentences of a report: summary, choices, checks, verdict."""

from __future__ import annotations

from collections.abc import Sequence

from calib.foundation.statistics import median
from calib.foundation.text import plain
from calib.foundation.words import counted, percent, signed_percent
from calib.reports.drift.moved import moved
from calib.reports.drift.verdict import Verdict, at_speed_lines, disturbed_lines
from calib.reports.night import Check
from calib.reports.scoring.accuracy import Accuracy
from calib.reports.scoring.choice import Option, StrategyChoices
from calib.reports.scoring.paper import PaperRow
from calib.reports.scoring.summary import NoiseCeiling, Summary, Worst
from calib.reports.words import BASIS_MARKS, LEGEND, OVERSUBSCRIBED_MARK, case_words, strategy_text

# of the exit codes of a night
VERDICTS = {
    0: "fine",
    1: "not right",
    2: "not known, as something is missing",
    3: "disturbed, and fine at the speed of the calibration",
}


def strategy_words(accuracy: Accuracy) -> str:
    """The strategy and its layout, marked where the run was oversubscribed."""
    return strategy_text(accuracy.strategy, accuracy.layout, accuracy.oversubscribed)


def worst_words(worst: Worst) -> str:
    """The case of a worst point, with its accuracy."""
    case = case_words(worst.model, worst.strategy, worst.layout, worst.p, worst.batch_per_rank)
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
        *_interval_lines(of),
        *_disturbed_lines(of),
        *_memory_lines(of),
        _ceiling_line(of.noise_ceiling),
    ]
    return [*lines, *left_out]


def _interval_lines(of: Summary) -> list[str]:
    """Width and score of the intervals."""
    each = of.intervals
    if each is None:
        return []
    lines = [
        f"Interval width: {spread(each.half_width)} (90%: {spread(each.half_width_90)}) in the mean; "
        f"interval score {_score(each.score)}, smaller is better."
    ]
    if len(of.strategy_intervals) > 1:
        parts = (
            f"{plain(name)} {percent(x.coverage)} by {spread(x.half_width)} ({_score(x.score)})"
            for name, x in of.strategy_intervals.items()
        )
        lines.append(f"Intervals held (score): {', '.join(parts)}.")
    return lines


def _score(score: float | None) -> str:
    return "infinite" if score is None else f"{score:.3f}"


def spread(share: float) -> str:
    """`+-10.0%`."""
    return f"+-{percent(share)}"


def _disturbed_lines(of: Summary) -> list[str]:
    """What made the machine slower or faster while it trained, and the accuracy without that."""
    because = disturbed_lines(of)
    return [
        f"{line[0].upper()}{line[1:]}." for line in because + at_speed_lines(of) * bool(because)
    ]


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
        f"Noise ceiling: a launch predicts the next one of the same work to {percent(ceiling.mean)} "
        f"({counted(ceiling.pairs, 'pair')}, worst {percent(ceiling.worst)})."
    )


def choice_lines(of: StrategyChoices | None) -> list[str]:
    """Whether the oracle picks the fastest strategy, in sentences."""
    if of is None:
        return [
            "Choice of strategy: not judged, as no model ran under two strategies on the same ranks."
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
    """How far the short check is off the parameters: per kind, the median and the farthest case."""
    lines = []
    for kind in dict.fromkeys(check.kind for check in checks):
        of = [check for check in checks if check.kind == kind and check.expected.value > 0]
        changes = [check.measured.value / check.expected.value - 1.0 for check in of]
        if not changes:
            continue
        change, farthest = max(zip(changes, of, strict=True), key=lambda pair: abs(pair[0]))
        lines.append(
            f"Check of {kind} ({counted(len(of), 'case')}): {signed_percent(median(changes))} against "
            f"the parameters in the median; farthest {plain(farthest.what)}, "
            f"{plain(farthest.case)}: {signed_percent(change)}."
        )
    disturbed = sum(check.disturbed_by_others for check in checks)
    if disturbed:
        lines.append(
            f"Others disturbed {disturbed} of {counted(len(checks), 'case')} of the check."
        )
    if (shift := moved(checks)) is not None:
        lines.append(f"{shift.words[0].upper()}{shift.words[1:]}.")
    return lines


def verdict_lines(of: Verdict) -> list[str]:
    """The verdict with its reasons; what is missing is listed elsewhere."""
    reasons = [line for line in of.lines if not line.startswith("missing: ")]
    words = VERDICTS.get(of.code, str(of.code))
    if len(reasons) == 1:
        return [f"Verdict: {words}: {reasons[0].removesuffix('.')}."]
    return [f"Verdict: {words}{':' if reasons else '.'}", *(f"- {reason}" for reason in reasons)]


def legend_lines(accuracies: Sequence[Accuracy]) -> list[str]:
    """What the marks mean that these points use; empty when they use none."""
    times = [pair.predicted for of in accuracies for pair in (of.total, *of.phases.values())]
    marks = {BASIS_MARKS[time.basis] for time in times}
    if any(of.oversubscribed for of in accuracies):
        marks.add(OVERSUBSCRIBED_MARK)
    return [f"{mark} {meaning}" for mark, meaning in LEGEND.items() if mark in marks]
