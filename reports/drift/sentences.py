"""Steps of one night in a sentence: what drifted, when, by how much, what else changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from calib.foundation.text import plain
from calib.reports.drift.records import Of, Series, Step, VersionChange
from calib.reports.history.records import Past

EXACT = 1e-9  # noise of what has none
KINDS: tuple[Of, ...] = ("network", "kernels", "memory")


def groups_of(steps: Sequence[Step]) -> list[list[Step]]:
    """Steps (in order of `first`) that begin together: a night apart, or as far as that is known.

    A step that took long to see is small beside its noise, and its first night uncertain. Two steps
    of a series are never together.
    """
    groups: list[list[Step]] = []
    for step in steps:
        if (
            groups
            and all(step.series != other.series for other in groups[-1])
            and step.first - groups[-1][-1].first
            <= max(_uncertain(step), _uncertain(groups[-1][-1]))
        ):
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def _uncertain(step: Step) -> int:
    return max(1, (step.seen - step.first) // 3)


def sentence(
    group: Sequence[Step],
    series: Mapping[str, Series],
    past: Past,
    versions: Mapping[int, Sequence[VersionChange]],
    checked: AbstractSet[Of],
) -> str:
    """What drifted with these steps. `checked`: the kinds of which a check is judged.

    A check that stepped says what it was, and else a phase of training. Where only measured against
    predicted moved, or the predictions did, it was the oracle.
    """
    steps = [step for step in group if step.is_open] or list(group)
    by_source: dict[str, list[Step]] = {}
    for step in sorted(steps, key=lambda step: -abs(step.change)):
        by_source.setdefault(series[step.series].source, []).append(step)
    # the clearest one tells the night best
    main = max(steps, key=lambda step: abs(step.change) / max(step.noise, EXACT))
    causes = [
        *_checks(by_source.get("check", ())),
        *_predicted(by_source.get("predicted", ()), series, past),
        *_phases(by_source.get("phase", ()), by_source.get("check", ()), series, checked),
        *_peaks(by_source.get("peak", ()), series),
    ]
    if not causes:  # changes of predictions that do not count say why, too
        known = [step for step in group if series[step.series].source == "predicted"]
        causes = _predicted(sorted(known, key=lambda step: -abs(step.change)), series, past)
    causes.sort(key=lambda cause: -cause[0])
    text = "; ".join(words for _, words in causes)
    totals = by_source.get("accuracy", ())
    if totals:
        text = _totals(text, totals, series)
    since = f" since {past.nights[main.first].started[:10]}"
    changed = next((versions[s.first] for s in [main, *steps] if versions.get(s.first)), ())
    return plain(text + since + _status(steps) + "." + _changed(changed))


def _checks(steps: Sequence[Step]) -> list[tuple[float, str]]:
    """One clause for each kind, the operation that moved most first."""
    found = []
    for kind in KINDS:
        of = [step for step in steps if step.of == kind]
        if of:
            parts = [f"{_operation(step.series)} takes {_by(step)}" for step in of]
            found.append((abs(of[0].change), f"{kind}: {', '.join(parts)}"))
    return found


def _operation(name: str) -> str:
    """`allreduce (torch_mpi, node, p=2)`."""
    what, _, where = name.partition(", ")
    return f"{what} ({where})" if where else what


def _by(step: Step, more: str = "longer", less: str = "less") -> str:
    """`12% [9, 15] longer`."""
    sign = 1.0 if step.change >= 0 else -1.0
    low, high = sorted((100 * sign * step.low, 100 * sign * step.high))
    size = 100 * abs(step.change)
    digits = 0 if size >= 10 and high - low >= 2 else 1
    between = f" [{low:.{digits}f}, {high:.{digits}f}]" if high > low else ""
    return f"{size:.{digits}f}%{between} {more if sign > 0 else less}"


def _predicted(
    steps: Sequence[Step], series: Mapping[str, Series], past: Past
) -> list[tuple[float, str]]:
    """Predictions that changed, and why."""
    if not steps:
        return []
    first, one = steps[0].first, series[steps[0].series]
    before = past.nights[max(n for n in one.nights if n < first)]
    after = past.nights[first]
    reasons = []
    if before.parameters_id != after.parameters_id:
        reasons.append("parameters replaced")
    if before.program_version != after.program_version:
        reasons.append(f"calib {before.program_version} -> {after.program_version}")
    why = " and ".join(reasons) or "with the same parameters and program"
    sizes = ", ".join(f"{series[s.series].strategy} {100 * s.change:+.1f}%" for s in steps)
    return [(abs(steps[0].change), f"oracle: predictions changed ({why}): {sizes}")]


def _phases(
    steps: Sequence[Step],
    checks: Sequence[Step],
    series: Mapping[str, Series],
    checked: AbstractSet[Of],
) -> list[tuple[float, str]]:
    """A clause for each kind: beside a check that says the same, as a consequence."""
    found = []
    for kind in KINDS:
        of = [step for step in steps if step.of == kind]
        if not of:
            continue
        if any(step.of == kind for step in checks):
            sizes = ", ".join(
                f"{series[step.series].strategy} {100 * step.change:+.1f}%" for step in of
            )
            label = of[0].series.partition(" in training")[0]
            found.append((0.0, f"in training, {label}: {sizes}"))
            continue
        parts = [
            f"({series[step.series].strategy}) {step.series.partition(' in training')[0]} "
            f"{_takes(step)} {_by(step)}"
            for step in of
        ]
        unseen = "the check did not see it" if kind in checked else "no check looks at it"
        found.append((abs(of[0].change), f"{kind} in training {', '.join(parts)}; {unseen}"))
    return found


def _takes(step: Step) -> str:
    return "take" if " and " in step.series.partition(" in training")[0] else "takes"


def _peaks(steps: Sequence[Step], series: Mapping[str, Series]) -> list[tuple[float, str]]:
    if not steps:
        return []
    parts = [f"({series[step.series].strategy}) {_by(step, 'more', 'less')}" for step in steps]
    return [(abs(steps[0].change), f"memory: the peak of training holds {', '.join(parts)}")]


def _totals(text: str, steps: Sequence[Step], series: Mapping[str, Series]) -> str:
    """The text with measured against predicted at its end."""
    if not text:
        parts = [f"({series[step.series].strategy}) takes {_by(step)}" for step in steps]
        return (
            f"oracle: training {', '.join(parts)} than predicted, "
            "and no phase and no check says why"
        )
    sizes = ", ".join(f"{series[step.series].strategy} {100 * step.change:+.1f}%" for step in steps)
    return f"{text}; training against what was predicted: {sizes}"


def _status(steps: Sequence[Step]) -> str:
    """` (accepted: new driver)`."""
    if any(step.is_open for step in steps):
        return ""
    reasons = [f"accepted: {step.accepted}" for step in steps if step.accepted]
    reasons += ["undone: the level came back" for step in steps if step.undone]
    reasons += [step.closed for step in steps if step.closed]
    return f" ({'; '.join(dict.fromkeys(reasons))})"


def _changed(versions: Sequence[VersionChange]) -> str:
    """` Changed with it: mpich 4.1 -> 4.2.`, or `Changed a night later: ...`"""
    if not versions:
        return ""
    parts = [f"{v.name} {v.before or 'none'} -> {v.after or 'none'}" for v in versions]
    off = versions[0].off
    nights = "a night" if abs(off) == 1 else f"{abs(off)} nights"
    when = "with it" if off == 0 else f"{nights} {'later' if off > 0 else 'before'}"
    return f" Changed {when}: {', '.join(parts)}."
