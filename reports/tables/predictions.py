"""Predictions side by side: fastest, where the time goes, what fits, what cannot run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calib.foundation.execution import USUAL
from calib.foundation.words import estimate_words, number, percent, seconds_words
from calib.oracle.memory.peak import MAY_BE_SHORT, PEAK_IS_OF
from calib.oracle.projection import PHASES, Basis, ErrorSource, PhaseTime, Projection
from calib.oracle.sources import MEANINGS
from calib.reports.tables.table import Table, in_columns
from calib.reports.words import alike, marked

BASES: dict[Basis, str] = {
    "measured": "No mark: all parts were measured",
    "interpolated": "~ some were interpolated between measured cases",
    "extrapolated": "! some were extrapolated beyond measured cases",
}
# units of a column of bytes; from the largest of which any cell has one
BYTES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
# a class of error sources with less of the variance is left out of the table; --json has all
LEAST_SHARE = 0.001
# from here on a table is in seconds
SECONDS_FROM = 10.0
# and a time over this, in the unit of its table, is in one of its own
LONG = 1e5
PHASE_WORDS = {"layerwise": "layer-wise"}
SHARES = "phases in % of it"
# of a table that is too wide: all phases or none, as they are shares
LEAST = ([PHASE_WORDS.get(phase, phase) for phase in PHASES], ["main bottleneck"])
WORDS = {"strategy", "layout", "fits", "main bottleneck"}


def words_of(projection: Projection) -> str:
    """How training is divided, and how layers run where not as usual."""
    return projection.division.words + _run(projection)


def namer(projections: Sequence[Projection]) -> Callable[[Projection], str]:
    """What tells them apart: divisions, and executions where there are several."""
    alike = len({x.execution for x in projections}) == 1
    return (lambda x: x.division.words) if alike else words_of


def ranked(projections: Sequence[Projection]) -> list[Projection]:
    """Those with a time: feasible ones first, the fastest first; equal ones keep their order."""
    timed = [x for x in projections if x.total is not None]
    return sorted(timed, key=lambda x: (not x.feasible, _seconds(x)))


def _seconds(projection: Projection) -> float:
    return projection.total.value if projection.total is not None else 0.0


def ranking(projections: Sequence[Projection]) -> Table:
    """One p: a rank, the strategy, its time and where it goes; those that cannot run below."""
    first, order = projections[0], ranked(projections)
    name, same = namer(projections), len({x.execution for x in projections}) == 1
    title = (
        f"{first.model} on p = {first.p}, B = {first.division.batch} samples "
        f"({_each(first)} per rank){_run(first) if same else ''}{_form(first)}"
    )
    feasible = [x for x in order if x.feasible]
    remarks = [fastest(feasible), *refused(projections)]
    rank = {id(x): str(k) for k, x in enumerate(feasible, 1)}
    lead = [{"#": rank.get(id(x), "-"), "strategy": name(x)} for x in order]
    return _table(title, lead, order, remarks)


def refused(projections: Sequence[Projection]) -> list[str]:
    """Every reason once, with those that it keeps from running."""
    reasons: dict[str, list[str]] = {}
    name = namer(projections)
    for x in projections:
        for reason in x.limits:
            reasons.setdefault(reason, []).append(name(x))
    return [
        f"{'All' if len(names) == len(projections) > 1 else '; '.join(names)}: {reason}"
        for reason, names in reasons.items()
    ]


def scaling(projections: Sequence[Projection]) -> Table:
    """One strategy on several p, in their order."""
    first = projections[0]
    timed = [x for x in projections if x.total is not None]
    names = list(dict.fromkeys(map(words_of, timed or projections)))
    title = f"{first.model}, {names[0] if len(names) == 1 else first.strategy}{_form(first)}"
    remarks = [_at(x.p, reason) for x in projections for reason in x.limits]
    lead = [
        {"p": str(x.p)}
        | ({"layout": words_of(x)} if len(names) > 1 else {})
        | {"B": str(x.division.batch)}
        for x in timed
    ]
    return _table(title if timed else f"{title}: cannot run", lead, timed, remarks)


def _at(p: int, reason: str) -> str:
    """A reason with the p that it is of, which it may name itself."""
    return reason if reason.startswith(f"p = {p} ") else f"p = {p}: {reason}"


def _run(projection: Projection) -> str:
    return "" if projection.execution == USUAL else f", {projection.execution}"


def _form(projection: Projection) -> str:
    return ", paper form" if projection.form == "paper" else ""


def _each(projection: Projection) -> str:
    each = projection.batch_per_rank
    return f"{each:.3g}" if isinstance(each, float) else str(each)


def fastest(order: Sequence[Projection]) -> str:
    """Which of the ranked, feasible projections is fastest, and which cannot be told apart from it."""
    if not order:
        return "None of them can run."
    first, *others = order
    name = namer(order)
    if first.p == 1 and len({(x.execution, x.division.accumulation) for x in order}) == 1:
        return "On one rank every strategy is serial training."
    if not others:
        return f"Only {name(first)} can run."
    near = [name(x) for x in others if may_be_faster(x, first)]
    if not near:
        return f"Fastest: {name(first)}."
    which = "all others" if len(near) == len(others) > 2 else "; ".join(near)
    return (
        f"Fastest: {name(first)}, but the intervals of what differs overlap with {which}: they "
        "cannot be told apart."
    )


def may_be_faster(other: Projection, first: Projection) -> bool:
    """Whether `other`, predicted slower than `first`, may be as fast after all.

    Phases that cost both the same have the same error in both: what they differ in is compared.
    """
    pairs = (
        [
            (other.phases[name], first.phases[name])
            for name in other.phases
            if other.phases[name] != first.phases.get(name)
        ]
        if first.phases
        else [(other.total, first.total)]
    )
    known = [(theirs, ours) for theirs, ours in pairs if theirs and ours]
    least = sum(theirs.low for theirs, _ in known)
    return least <= sum(ours.high for _, ours in known)


def _table(
    title: str,
    lead: Sequence[dict[str, str]],
    projections: Sequence[Projection],
    remarks: Sequence[str],
) -> Table:
    """Behind the first columns: time, shares of phases, memory, bottleneck."""
    if not projections:
        return Table(title, [], [], remarks=remarks)
    unit, scale = ("s", 1.0) if max(map(_seconds, projections)) >= SECONDS_FROM else ("ms", 1e3)
    phases = [p for p in PHASES if any(_phase(x, p) for x in projections)]
    epochs = any(x.epoch for x in projections)
    naive = all(x.peak_bytes is None for x in projections)
    room = max(map(_bytes, projections))
    unit_of_bytes, nbytes = next((of for of in BYTES if room >= of[1]), BYTES[-1])
    rows = []
    for first, x in zip(lead, projections, strict=True):
        total = x.total or PhaseTime(value=0, low=0, high=0, basis="exact")
        row = {**first, f"{unit} [95%]": marked(total, interval(total, scale))}
        if epochs:
            row["epoch"] = seconds_words(x.epoch.value) if x.epoch else "-"
        for phase in phases:
            row[PHASE_WORDS.get(phase, phase)] = _share(_phase(x, phase), total.value)
        row[f"{unit_of_bytes}/rank{' naive' if naive else ''}"] = memory(x, nbytes, naive)
        row |= {"fits": _fits(x), "main bottleneck": main_bottleneck(x)}
        rows.append(row)
    columns, cells = in_columns(rows)
    numbers = {*columns} - WORDS
    return Table(f"{title}: predicted iteration, {SHARES}", columns, cells, numbers, remarks, LEAST)


def interval(time: PhaseTime, scale: float) -> str:
    """In a table's unit; where an end is too long for it, each in a unit of its own."""
    if time.high * scale < LONG:
        return estimate_words(time, scale)
    middle, low, high = map(seconds_words, (time.value, time.low, time.high))
    return f"{middle} [{low}, {high}]"


def _fits(projection: Projection) -> str:
    if not projection.feasible:
        return "no"
    return "maybe" if any(note.startswith(MAY_BE_SHORT) for note in projection.notes) else "yes"


def _phase(projection: Projection, phase: str) -> float:
    found = projection.phases.get(phase)
    return found.value if found is not None else 0.0


def _share(seconds: float, whole: float) -> str:
    """Percent of the iteration; a dot where there is none, so that what counts stands out."""
    if seconds <= 0 or whole <= 0:
        return "."
    percent = 100 * seconds / whole
    return "<1" if percent < 0.5 else f"{percent:.0f}"


def _bytes(projection: Projection) -> float:
    peak = projection.peak_bytes
    return projection.bytes_per_rank if peak is None else peak.value


def memory(projection: Projection, unit: float, all_naive: bool = False) -> str:
    """Memory per rank: the expected peak, else the naive sum."""
    value = _bytes(projection) / unit
    text = number(value) if value < LONG else f"> {LONG:.0f}"
    return text if projection.peak_bytes is not None or all_naive else f"{text} naive"


def main_bottleneck(projection: Projection) -> str:
    """The bottleneck that takes most of the time, with its share; none: the layers do."""
    timed = [b for b in projection.bottlenecks if b.share is not None]
    if not timed:
        return "compute" if projection.phases else "-"
    worst = max(timed, key=lambda b: b.share or 0.0)
    return f"{worst.name} {100 * (worst.share or 0.0):.0f}%"


def sources(projection: Projection) -> Table:
    """The classes of error sources of an iteration: milliseconds to both sides, and the share."""
    shown = [of for of in projection.sources if of.share >= LEAST_SHARE]
    rows = [
        {
            "interval from": of.source,
            "ms [95%]": f"-{number(1e3 * of.below_s)} +{number(1e3 * of.above_s)}",
            "share": percent(of.share),
            "what it is": _meaning(of),
        }
        for of in shown
    ]
    columns, cells = in_columns(rows)
    return Table("", columns, cells, numbers={"ms [95%]", "share"})


def _meaning(of: ErrorSource) -> str:
    return MEANINGS[of.source] + (f"; mostly {of.mostly}" if of.mostly else "")


def like_notes(projections: Sequence[Projection]) -> list[str]:
    """Their notes, each once, those of most projections first.

    Of notes that differ in numbers or strategies, the first and how many. What memory is of stands in
    the legend.
    """
    return alike([note for note in x.notes if not note.startswith(PEAK_IS_OF)] for x in projections)


def legend(projections: Sequence[Projection]) -> str:
    """What the marks of the times mean that these projections have, and what their memory is of.

    Empty where there is no time.
    """
    used = {x.total.basis for x in projections if x.total is not None}
    words = [text for basis, text in BASES.items() if basis in used]
    peaks = dict.fromkeys(
        note for x in projections for note in x.notes if note.startswith(PEAK_IS_OF)
    )
    found = [f"95% intervals. {'; '.join(words)}." if words else ""]
    return " ".join([*found, *(f"P{peak[1:]}." for peak in peaks)])
