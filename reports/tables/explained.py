"""The tables of a traced run beside its prediction."""

from __future__ import annotations

from calib.foundation.records import Estimate
from calib.foundation.words import (
    bytes_words,
    counted,
    number,
    seconds_words,
    signed_percent,
    with_interval,
)
from calib.reports.explained.execution_trace import SentTrace
from calib.reports.explained.explanation import Explanation
from calib.reports.explained.lines import ExplainedLine
from calib.reports.tables.cells import ms
from calib.reports.tables.table import Table

WHAT = {
    "forward": "without communication",
    "backward": "without communication",
    "update": "optimizer and zero_grad",
    "between": "packing, Python between the phases",
    "wire": "all that collectives take by themselves",
    "overlap": "communication beside computation",
    "waiting": "for the rank that came last",
    "input": "loading of data",
    "step": "",
}
MOST_OPERATORS = 8
BAR = 24  # characters


def explained_tables(of: Explanation) -> list[Table]:
    """The waterfall from the predicted to the measured step, operators, and what would gain."""
    tables = [_waterfall(of)]
    if of.operators:
        tables.append(_operators(of))
    if of.collectives:
        tables.append(_collectives(of))
    if of.changes:
        tables.append(_changes(of))
    return tables


def _waterfall(of: Explanation) -> Table:
    whole = of.lines[-1]
    most = max(abs(line.difference.value) for line in of.lines) or 1.0
    rows = [[line.name, *_beside(line), _bar(line, most), WHAT[line.name]] for line in of.lines]
    share = signed_percent(whole.difference.value / whole.predicted.value)
    return Table(
        f"From the predicted step to the traced one: {share}",
        ["part", "traced ms", "predicted ms", "difference ms", "", "what"],
        rows,
        remarks=["the differences add up to that of the step; (~) cannot be told from 0"],
        least=(["what"], [""]),
    )


def _beside(line: ExplainedLine) -> list[str]:
    """As traced, as predicted, and the difference."""
    return [ms(line.measured), ms(line.predicted), _signed(line.difference)]


def _bar(line: ExplainedLine, most: float) -> str:
    """How much of the largest difference a line has, and its sign."""
    length = round(BAR / 2 * abs(line.difference.value) / most)
    return ("+" if line.difference.value > 0 else "-") * length


def _signed(of: Estimate) -> str:
    """Milliseconds with sign and interval, and a mark where it cannot be told from 0."""
    words = with_interval(*of.numbers, 1e3)
    mark = " (~)" if of.low <= 0 <= of.high else ""
    return f"{'+' if of.value > 0 else ''}{words}{mark}"


def _operators(of: Explanation) -> Table:
    rows = [
        [one.direction, one.kind, number(one.calls), *_beside(one.line)]
        for one in of.operators[:MOST_OPERATORS]
    ]
    return Table(
        "Operators by kind of layer, the largest difference first",
        ["phase", "layers", "calls", "traced ms", "predicted ms", "difference ms"],
        rows,
        numbers=["calls"],
        remarks=["predicted with what Python and autograd take around a layer in place"],
    )


def _collectives(of: Explanation) -> Table:
    rows = [
        [
            one.operation,
            bytes_words(one.nbytes),
            str(one.ranks),
            number(one.calls),
            *_beside(one.line),
        ]
        for one in of.collectives[:MOST_OPERATORS]
    ]
    return Table(
        "Collectives beside the calibrated machine, each by itself",
        ["operation", "size", "ranks", "a step", "own ms", "calibrated ms", "difference ms"],
        rows,
        numbers=["size", "ranks", "a step"],
    )


def _changes(of: Explanation) -> Table:
    rows = [[x.what, ms(x.predicted), _signed(x.gain)] for x in of.changes]
    return Table(
        "What to try: the changes with the largest predicted gain",
        ["instead", "predicted ms", "gain ms"],
        rows,
        remarks=["on as many ranks and the same global batch"],
    )


def sent_table(of: SentTrace) -> Table:
    """The collectives of an execution trace, with what a calibrated machine takes for them."""
    rows = [
        [
            one.operation,
            "-" if one.nbytes is None else bytes_words(one.nbytes),
            str(one.ranks or "-"),
            str(one.calls),
            "-" if one.traced is None else number(one.traced * 1e3),
            "-" if one.calibrated is None else ms(one.calibrated),
        ]
        for one in of.collectives
    ]
    remarks = [f"{of.schema_name}: {counted(of.nodes, 'node')}, {of.computing} that compute"]
    if of.compute_s is not None:
        remarks.append(f"they compute for {seconds_words(of.compute_s)}")
    columns = ["operation", "size", "ranks", "calls", "traced ms", "calibrated ms"]
    return Table("Collectives", columns, rows, numbers=columns[1:5], remarks=remarks)
