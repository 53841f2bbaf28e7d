"""A searched plan as tables and lines: layers, time, baselines, uncertainty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from calib.foundation.words import (
    bytes_words,
    counted,
    estimate_words,
    number,
    percent,
    seconds_words,
)
from calib.oracle.projection import PhaseTime
from calib.reports.tables.table import Table, in_columns
from calib.reports.words import marked
from calib.search.plan import Baseline, PlanLayer, PlanStage, SearchedPlan

SECONDS_FROM = 10.0
MOST_SPACE = 6  # decades that are written out


def tables(plan: SearchedPlan) -> list[Table]:
    """Layers or stages, what the plan is compared with, and the space's own: sweeps, partitions."""
    own = [
        Table(name, *in_columns({column: _cell(x) for column, x in row.items()} for row in rows))
        for name, rows in plan.tables.items()
    ]
    return [
        layers_table(plan),
        *([stages_table(plan)] if plan.stages else []),
        *([baselines_table(plan)] if plan.baselines else []),
        *own,
    ]


def layers_table(plan: SearchedPlan) -> Table:
    """Neighbouring layers with the same choice are one row; times in ms (s, where they are long)."""
    unit, scale = _unit(plan.total.value)
    causes = list(dict.fromkeys(cause for layer in plan.layers for cause in layer.seconds))
    held = any(layer.bytes_per_device for layer in plan.layers)
    rows = []
    for of in runs_of(plan.layers):
        last = f" .. {of[-1].name} ({len(of)})" if len(of) > 1 else ""
        row = {"layers": f"{of[0].name}{last}", "choice": of[0].choice}
        for cause in causes:
            seconds = sum(layer.seconds.get(cause, 0.0) for layer in of)
            row[f"{cause} {unit}"] = _amount(scale * seconds)
        if held:
            row["per device"] = bytes_words(sum(layer.bytes_per_device for layer in of))
        rows.append(row)
    return Table(title(plan), *in_columns(rows))


def title(plan: SearchedPlan) -> str:
    """Which plan it is."""
    form = ", in the paper's form" if plan.form == "paper" else ""
    batch = "B unknown" if plan.batch is None else f"B = {plan.batch}"
    return (
        f"{plan.model} on {plan.nodes} x {plan.devices_per_node} devices, {batch}: "
        f"{plan.space} plan by {plan.method}{form}"
    )


def runs_of(layers: Sequence[PlanLayer]) -> Iterator[list[PlanLayer]]:
    """Neighbours that were given the same."""
    for _, of in groupby(layers, key=lambda layer: (layer.choice, layer.stage)):
        yield list(of)


def stages_table(plan: SearchedPlan) -> Table:
    """Stages with the layers that they hold; stages inside a machine below theirs."""
    unit, scale = _unit(max(stage.seconds for stage in plan.stages))

    def rows_of(stage: PlanStage, depth: int = 0) -> Iterator[dict[str, str]]:
        yield {
            "layers": f"{'  ' * depth}{stage.first} .. {stage.stop - 1}",
            "replicas": str(stage.replicas),
            f"stage {unit}": _amount(scale * stage.seconds),
            "per device": bytes_words(stage.bytes_per_device) if stage.bytes_per_device else "-",
        }
        for inside in stage.inner:
            yield from rows_of(inside, depth + 1)

    return Table("Stages", *in_columns(row for stage in plan.stages for row in rows_of(stage)))


def baselines_table(plan: SearchedPlan) -> Table:
    """The plan beside what people take without a search."""
    totals = [plan.total, *(of.total for of in plan.baselines if of.total)]
    unit, scale = _unit(max(total.value for total in totals))
    rows = [
        ["this plan", _interval(plan.total, scale), "1.00", *_room(plan.bytes_per_device, True)],
        *(_baseline_row(plan, of, scale) for of in plan.baselines),
    ]
    columns = ["", f"iteration {unit} [95%]", "of this plan", "per device", "fits"]
    remarks = [f"{of.name}: {of.why}" for of in plan.baselines if of.why]
    return Table("Against plans without a search", columns, rows, remarks=remarks)


def _baseline_row(plan: SearchedPlan, of: Baseline, scale: float) -> list[str]:
    if of.total is None:
        return [of.name, "-", "-", "-", "no"]
    times = f"{of.total.value / plan.total.value:.2f}" if plan.total.value else "-"
    return [of.name, _interval(of.total, scale), times, *_room(of.bytes_per_device, of.feasible)]


def _room(nbytes: int, fits: bool) -> list[str]:
    """Bytes of a device and whether it has them; neither where they are not known."""
    return [bytes_words(nbytes), "yes" if fits else "no"] if nbytes else ["-", "-"]


def lines(plan: SearchedPlan) -> list[str]:
    """What is said below the tables: time, memory, the search, its certificate, notes."""
    unit, scale = _unit(plan.total.value)
    causes = ", ".join(
        f"{name} {_amount(scale * time.value)}" for name, time in plan.phases.items() if time.value
    )
    found = [f"Iteration: {_interval(plan.total, scale)} {unit} ({causes})."]
    limit = f" of {bytes_words(plan.memory_limit_bytes)}" if plan.memory_limit_bytes else ""
    if plan.bytes_per_device:
        found.append(f"Memory: {bytes_words(plan.bytes_per_device)}{limit} on the fullest device.")
    found += [
        f"{name.replace('_', ' ').capitalize()}: {_short(value)}."
        for name, value in plan.details.items()
    ]
    return [*found, searched_line(plan), certificate_line(plan)]


def searched_line(plan: SearchedPlan) -> str:
    """How far was looked, and how long that took."""
    of = plan.searched
    steps = "".join(f", {name} {count:,}" for name, count in of.steps.items())
    ended = "" if of.stopped == "complete" else "; the budget ended it"
    return (
        f"Searched: {counted(of.evaluated, 'cost')} of a space of {space_words(of.log10_space)} "
        f"in {seconds_words(of.seconds)}, tables of costs in "
        f"{seconds_words(of.tables_seconds)}{steps}{ended}."
    )


def certificate_line(plan: SearchedPlan) -> str:
    """What is known of better plans."""
    of = plan.certificate
    within = f" within the pruned set ({of.within})" if of.within else ""
    if of.kind == "optimal":
        return f"Certificate: optimal{within} under this cost model ({of.why})."
    if of.kind == "bound" and of.gap is not None:
        return f"Certificate: at most {percent(of.gap)} above the best{within} ({of.why})."
    return f"Certificate: none{f', searched{within}' if within else ''} ({of.why})."


def space_words(log10: float) -> str:
    """So many plans."""
    if log10 <= MOST_SPACE:
        return counted(round(10**log10), "plan")
    return f"10^{log10:.1f} plans"


def _unit(seconds: float) -> tuple[str, float]:
    return ("s", 1.0) if seconds >= SECONDS_FROM else ("ms", 1e3)


def _amount(value: float) -> str:
    return number(value) if value else "."


def _interval(time: PhaseTime, scale: float) -> str:
    return marked(time, estimate_words(time, scale))


def _short(text: str) -> str:
    """A number with more digits than anybody reads, shorter."""
    try:
        return f"{float(text):.4g}" if "." in text else text
    except ValueError:
        return text


def _cell(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
