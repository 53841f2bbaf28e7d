"""The tables of `calib explain`: where the steps of a traced run went."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from calib.foundation.records import Estimate
from calib.foundation.words import bytes_words, counted, number, percent, seconds_words, several
from calib.reports.tables.cells import NONE, ms
from calib.reports.tables.table import Table, in_columns
from calib.training.traces.configuration import RunConfiguration
from calib.training.traces.run import CollectiveTime, OperatorTime, TracedRun
from calib.training.traces.shapes import tensors_in_words

MOST_OPERATORS, MOST_COLLECTIVES, MOST_RANKS = 12, 16, 16
LONGEST_NAME = 26  # characters in a line; wrapped beyond
WHAT = {
    "computation": "the device computes",
    "wire": "communication that no computation hides",
    "waiting": "in a collective, before the last rank came",
    "copies": "between host and device, beside nothing else",
    "input": "loading of data, up to the call of the model",
    "host": "nothing of these runs: Python, launches, the program's own waits",
}


def configuration_lines(of: RunConfiguration) -> list[str]:
    """What a run was, in a few lines."""
    traced = "" if of.traced == of.ranks else f" ({of.traced} traced)"
    hosts = f" on {counted(len(of.hosts), 'host')}" if of.hosts else ""
    backend = f", {of.backend}" if of.backend else ""
    strategy = of.strategy or "not one of calib's strategies"
    lines = [
        f"{counted(of.ranks, 'rank')}{traced}{hosts}, {of.device}{backend}; "
        f"{counted(of.steps, 'step')}",
        f"{strategy}: {of.strategy_reason}",
    ]
    batch = "batch unknown" if of.batch_per_rank is None else f"batch {of.batch_per_rank} per rank"
    if of.micro_batches > 1:
        batch += f" and micro-batch, {of.micro_batches} micro-batches"
    words = [batch, of.dtype or "item type unknown", of.optimizer or "optimizer unknown"]
    words += ["activation checkpointing"] if of.checkpointing else []
    lines.append(", ".join(words))
    if of.buckets:
        sums = of.buckets
        lines.append(
            f"gradients: {bytes_words(sums.nbytes)} in {counted(sums.count, sums.operation)}, "
            f"the largest of {bytes_words(sums.largest_nbytes)}"
        )
    return lines


def traced_tables(run: TracedRun) -> list[Table]:
    """The step and its parts, ranks, collectives, operators."""
    tables = [_parts(run)]
    if len(run.ranks) > 1:
        tables.append(_ranks(run))
    if run.collectives:
        tables.append(_collectives(run))
    return [*tables, _operators(run)]


def _share(of: Estimate, whole: Estimate) -> str:
    return percent(of.value / whole.value) if whole.value else NONE


def _parts(run: TracedRun) -> Table:
    rows = [
        [part.name, ms(part.seconds), _share(part.seconds, run.step), WHAT[part.name]]
        for part in run.parts
    ]
    rows.append(["step", ms(run.step), _share(run.step, run.step), ""])
    remarks = []
    if run.talking.value > 0:
        remarks = [
            f"communication: {ms(run.talking)} ms of a step",
            f"of it computation hides {ms(run.hidden)} ms, "
            f"{percent(run.hidden.value / run.talking.value)}",
        ]
    return Table(
        "Where the step went, mean over ranks and steps",
        ["part", "ms", "share", "what"],
        rows,
        numbers=["share"],
        remarks=remarks,
    )


def _ranks(run: TracedRun) -> Table:
    rows = [
        {
            "rank": str(one.rank),
            "own work ms": ms(one.own),
            **{
                f"{name} ms": number(one.parts[name] * 1e3) for name in ("waiting", "wire", "input")
            },
            "came last": str(one.last),
            "by ms": number(one.waited_for * 1e3),
        }
        for one in sorted(run.ranks, key=lambda one: -one.own.value)[:MOST_RANKS]
    ]
    columns, cells = in_columns(rows)
    remarks = ["came last: collectives for which others waited; by: how much of a step"]
    if len(run.ranks) > MOST_RANKS:
        remarks.append(f"{len(run.ranks) - MOST_RANKS} more ranks, all faster: JSON has them")
    return Table("Ranks, the slowest first", columns, cells, numbers=columns, remarks=remarks)


def _collectives(run: TracedRun) -> Table:
    shown = sorted(run.collectives, key=lambda one: -one.own.value * one.calls)[:MOST_COLLECTIVES]
    columns, cells = in_columns([_collective(one) for one in shown])
    remarks = ["own: from the last rank's arrival to the last end"]
    if any(one.with_waits for one in shown):
        remarks[0] += "; *: holds waits for ranks that are not compared"
    if len(run.collectives) > len(shown):
        remarks.append(f"{len(run.collectives) - len(shown)} more, all shorter: JSON has them")
    return Table(
        "Collectives",
        columns,
        cells,
        numbers=[name for name in columns if name not in ("operation", "type")],
        remarks=remarks,
        least=(["type"], ["ranks"]),
    )


def _collective(of: CollectiveTime) -> dict[str, str]:
    return {
        "operation": of.operation or "unknown",
        "size": NONE if of.nbytes is None else bytes_words(of.nbytes),
        "type": of.dtype or NONE,
        "ranks": NONE if of.size is None else str(of.size),
        "a step": number(of.calls),
        "own ms": ms(of.own) + ("*" if of.with_waits else ""),
        "busbw GB/s": NONE if of.bus_bandwidth is None else number(of.bus_bandwidth.value * 1e-9),
        "waited ms": NONE if of.waited is None else number(of.waited * 1e3),
    }


def _operators(run: TracedRun) -> Table:
    shown = run.operators[:MOST_OPERATORS]
    total = sum(one.seconds.value for one in run.operators)
    rows = [_operator(one, total) for one in shown]
    columns, cells = in_columns(rows)
    remarks = []
    if len(run.operators) > len(shown):
        left = sum(one.seconds.value for one in run.operators[MOST_OPERATORS:])
        remarks.append(
            f"{len(run.operators) - len(shown)} more take {seconds_words(left)} in all: JSON has them"
        )
    return Table(
        "Operators, the longest first",
        columns,
        cells,
        numbers=["calls", "share"],
        remarks=remarks,
        least=(["type"],),
    )


def _operator(of: OperatorTime, total: float) -> dict[str, str]:
    return {
        "phase": of.phase,
        "operator": _breakable(of.name.removeprefix("aten::")),
        "shapes": several([tensors_in_words([s]) for s in _tensors(of.shapes)], 2) or NONE,
        "type": of.dtype or NONE,
        "calls": number(of.calls),
        "ms": ms(of.seconds),
        "share": percent(of.seconds.value / total) if total else NONE,
    }


def _breakable(name: str) -> str:
    """A name that a table can break after an underscore, where it is long."""
    lines = wrap(name.replace("_", "_ "), LONGEST_NAME)
    return " ".join(line.replace("_ ", "_") for line in lines)


def _tensors(shapes: Sequence[object]) -> list[object]:
    return [shape for shape in shapes if isinstance(shape, list) and shape]
