"""Tables of report.html as text, ready for the template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calib.fitting.parameters.file import LayerTime, Parameters
from calib.foundation.text import plain
from calib.foundation.words import (
    bytes_words,
    counted,
    estimate_words,
    number,
    percent,
    signed_percent,
)
from calib.reports.drift.records import Step
from calib.reports.figures.check import CheckedCases, off, ratio_of
from calib.reports.figures.history_lines import StepMark, change_words, state_of, what_drifted
from calib.reports.figures.layers import DirectionInPlace, farthest
from calib.reports.figures.memory import MemoryPair
from calib.reports.findings import Findings
from calib.reports.history.records import Past
from calib.reports.scoring.accuracy import Accuracy, occurring
from calib.reports.sentences import strategy_words
from calib.reports.words import ms_words, samples_words

MAX_LAYERS = 20
MAX_MEMORY = 60
MAX_STEPS = 12  # more are folded away


@dataclass(frozen=True)
class PageTable:
    """A table: columns are (header, whether it holds numbers); the first cell of a row heads it."""

    title: str
    about: str
    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[str]]
    folded: bool = False


def phases_sheet(accuracies: Sequence[Accuracy]) -> PageTable:
    """Every phase of every case: predicted / measured in ms, and the accuracy of the phase."""
    names = occurring(accuracies)
    head = [("model", False), ("strategy", False), ("p", True), ("batch per rank", True)]
    return PageTable(
        "Phases",
        "Predicted / measured in ms, and the accuracy of the phase.",
        [*head, *((f"{name} (ms)", True) for name in names)],
        [
            [
                plain(a.model),
                strategy_words(a),
                str(a.p),
                samples_words(a.batch_per_rank),
                *(
                    f"{ms_words(of.predicted)} / {ms_words(of.measured)} {percent(of.accuracy)}"
                    for of in (a.phases[name] for name in names)
                ),
            ]
            for a in accuracies
        ],
        folded=True,
    )


def steps_sheet(past: Past, found: Sequence[StepMark]) -> PageTable:
    """Every step: numbered as in the figure, with its night, series, change and state."""
    rows = [
        [
            str(mark.number),
            past.nights[step.first].started[:10],
            what_drifted(step),
            plain(step.series),
            f"{signed_percent(step.change)} [{signed_percent(step.low)}, {signed_percent(step.high)}]",
            percent(step.noise),
            past.nights[step.seen].started[:10],
            _state_words(step),
            "; ".join(map(change_words, mark.versions)) or "none known",
        ]
        for mark in found
        for step in mark.steps
    ]
    return PageTable(
        "Steps",
        "The number is that of the mark in the figure: steps that begin together have one. Change: of "
        "the measured over the expected time, with its 95% interval; noise: one standard deviation "
        "from night to night.",
        [
            ("mark", False),
            ("since", False),
            ("what", False),
            ("series", False),
            ("change", True),
            ("noise", True),
            ("found", False),
            ("state", False),
            ("versions changed", False),
        ],
        rows,
        folded=len(rows) > MAX_STEPS,
    )


def sentences_sheet(found: Sequence[StepMark]) -> PageTable:
    """Every group of steps in words."""
    return PageTable(
        "Every change in words",
        "",
        [("mark", False), ("state", False), ("what changed", False)],
        [[str(mark.number), mark.state, plain(mark.sentence)] for mark in found],
        folded=True,
    )


def _state_words(step: Step) -> str:
    state = state_of(step)
    reason = step.accepted or step.closed if state != "undone" else ""
    return f"{state}: {plain(reason)}" if reason else state


def checks_sheet(found: Sequence[CheckedCases]) -> PageTable:
    """Every case of tonight's check: microseconds with 95% intervals."""
    return PageTable(
        "Every case of the check",
        "Times in µs with 95% intervals; change is measured against expected.",
        [
            ("what", False),
            ("case", False),
            ("kind", False),
            ("expected (µs)", True),
            ("tonight (µs)", True),
            ("change", True),
        ],
        [
            [
                plain(check.what),
                plain(check.case),
                check.kind,
                estimate_words(check.expected, 1e6),
                estimate_words(check.measured, 1e6),
                off(ratio_of(check)),
            ]
            for of in found
            for check in of.cases
        ],
        folded=True,
    )


def memory_sheet(pairs: Sequence[MemoryPair], limit: int = MAX_MEMORY) -> PageTable:
    """Peaks of a rank, the farthest off first."""
    ordered = sorted(pairs, key=lambda pair: pair[1].accuracy)[:limit]
    shown = "" if len(pairs) <= limit else f" {limit} of {len(pairs)} points."
    return PageTable(
        "Peak memory of a rank",
        f"The farthest off first; predicted with its 95% interval, in MiB.{shown}",
        [
            ("model", False),
            ("strategy", False),
            ("p", True),
            ("batch per rank", True),
            ("predicted (MiB)", True),
            ("measured", True),
            ("accuracy", True),
            ("in the interval", False),
        ],
        [
            [
                plain(a.model),
                strategy_words(a),
                str(a.p),
                samples_words(a.batch_per_rank),
                estimate_words(m.predicted, 2**-20),
                bytes_words(m.measured_bytes),
                percent(m.accuracy),
                "yes" if m.covered else "no",
            ]
            for a, m in ordered
        ],
        folded=True,
    )


def farthest_sheet(times: Sequence[DirectionInPlace]) -> PageTable:
    """The layers whose prediction in place is off by the most time."""
    rows = farthest(times)
    return PageTable(
        "Layers that are farthest off",
        f"{len(rows)} of {counted(len(times), 'time')} of layers, by the time that they are off. "
        "Predicted: measured alone, and its part of what a model in place takes beside its layers; "
        "predictions take the time in place where there is one.",
        [
            ("layer", False),
            ("model", False),
            ("kind", False),
            ("direction", False),
            ("ranks", True),
            ("predicted (ms)", True),
            ("measured in place (ms)", True),
            ("off (ms)", True),
            ("predicted / measured", True),
        ],
        [
            [
                plain(row["layer"]),
                plain(row["model"]),
                plain(row["kind"]),
                row["direction"],
                row["ranks"],
                row["predicted"],
                row["measured"],
                row["off"],
                row["ratio"],
            ]
            for row in rows
        ],
    )


def slowest_layers_sheet(layers: Sequence[LayerTime], limit: int = MAX_LAYERS) -> PageTable:
    """The layers with the longest forward + backward alone, in ms with 95% intervals."""
    ordered = sorted(layers, key=lambda layer: -(layer.forward_s.value + layer.backward_s.value))
    shown = ordered[:limit]
    return PageTable(
        "Slowest layers, measured alone",
        f"{len(shown)} of {len(layers)} measured layers of these models, by forward + backward of one "
        "call on the whole batch; ms with 95% intervals.",
        [
            ("layer", False),
            ("shape", False),
            ("batch", True),
            ("active ranks", True),
            ("forward (ms)", True),
            ("backward (ms)", True),
            ("repetitions", True),
        ],
        [
            [
                x.kind,
                x.key,
                str(x.batch),
                str(x.active_ranks),
                estimate_words(x.forward_s, 1e3),
                estimate_words(x.backward_s, 1e3),
                str(x.n),
            ]
            for x in shown
        ],
        folded=True,
    )


def composition_sheet(parameters: Parameters) -> PageTable:
    """The composition terms: µs per layer, ns per byte."""
    return PageTable(
        "What the sum of isolated parts leaves out",
        "Added to the sum of the parts of a phase. Error factor f: 95% of the times lay within "
        "[t/f, t f] of a model that was left out of the fit.",
        [
            ("phase", False),
            ("active ranks", True),
            ("per layer (µs)", True),
            ("per byte (ns)", True),
            ("error factor", True),
            ("of the sum alone", True),
            ("from the models", False),
        ],
        [
            [
                term.phase,
                str(term.active_ranks),
                number(term.s_per_layer * 1e6),
                number(term.s_per_byte * 1e9),
                f"{term.error_factor:.2f}",
                f"{term.sum_error_factor:.2f}",
                ", ".join(map(plain, term.models)),
            ]
            for term in parameters.composition
        ],
        folded=True,
    )


def paper_sheet(findings: Findings) -> PageTable:
    """Our mean accuracy per strategy beside the paper's."""
    return PageTable(
        "Per strategy, beside the ParaDL paper's",
        "",
        [("strategy", False), ("here", True), ("points", True), ("paper", True)],
        [
            [plain(row.strategy), percent(row.ours), str(row.points), percent(row.paper)]
            for row in findings.paper
        ],
    )
