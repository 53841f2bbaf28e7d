"""Sections of report.html with plots: words and tables, or why one is empty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.measured_passes import MeasuredPass, measured_passes
from calib.microbench.records.samples import Samples
from calib.reports.figures.basics import PHASE_COLOURS, Plot, bars_words, phase_bars
from calib.reports.figures.check import check_figure, checked, checks_words
from calib.reports.figures.collectives import collective_plots, contention_plots, reading
from calib.reports.figures.history import history_figure, history_words
from calib.reports.figures.history_lines import HistoryLine, StepMark, marks, strategy_lines
from calib.reports.figures.layers import in_place, layers_figure, layers_words
from calib.reports.figures.machine_speed import (
    Watched,
    machine_speed_figure,
    machine_speed_words,
    slowness,
)
from calib.reports.figures.memory import memory_figure, memory_words, with_memory
from calib.reports.figures.roofline import roofline_plots
from calib.reports.figures.strategy_looks import rank_of
from calib.reports.findings import Findings
from calib.reports.page.tables import checked_cases, farthest_layers, step_sentences, steps
from calib.reports.scoring.accuracy import Accuracy, occurring
from calib.reports.scoring.layer_pairs import LayerPair
from calib.reports.scoring.summary import Summary
from calib.reports.sentences import check_lines
from calib.reports.tables.collectives import every_size
from calib.reports.tables.compute import composition, slowest_passes
from calib.reports.tables.scores import memory, phases
from calib.reports.tables.sources import widest
from calib.reports.tables.table import Table

MOST_PASSES = 40


@dataclass
class PageSection:
    """A part of the page under a heading of its own: plots, then tables."""

    id: str
    title: str
    about: str = ""
    lines: Sequence[str] = ()
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    empty: str = ""  # said where there is nothing to show
    swatches: dict[str, str] = field(default_factory=dict)
    choices: Sequence[HistoryLine] = ()

    @property
    def bare(self) -> bool:
        """Whether there is nothing in it."""
        return not (self.plots or self.tables or self.lines)


def bars_section(newest: Sequence[Accuracy], summary: Summary) -> PageSection:
    return PageSection(
        "bars",
        "Predicted and measured",
        about="Left of each pair, hatched: predicted; right: measured. Above: the accuracy. The newest "
        "run of each case; the diamond is the median of the whole iteration with its 95% interval.",
        plots=list(_bar_plots(newest)),
        tables=[table for table in (phases(newest, summary), widest(newest)) if table]
        if newest
        else [],
        swatches={phase: PHASE_COLOURS[phase] for phase in occurring(newest)},
    )


def _bar_plots(accuracies: Sequence[Accuracy]) -> Iterator[Plot]:
    by_model: dict[str, list[Accuracy]] = {}
    for accuracy in accuracies:
        by_model.setdefault(accuracy.model, []).append(accuracy)
    for points in by_model.values():
        points.sort(key=lambda of: (rank_of(of.strategy), of.strategy, of.p, of.layout))
    for i, (model, points) in enumerate(by_model.items()):
        yield Plot(
            id=f"bars-{i}",
            title=model,
            caption="",
            alt=bars_words(points),
            figure=phase_bars(points),
            wide_rem=6 * len(points) + 4,
            high_rem=26,
        )


def history_section(findings: Findings) -> PageSection:
    """Empty where nothing was scored in two nights."""
    past, drift = findings.past, findings.drift
    empty = "There is no history."
    if past is None or not past.points or len({point.night for point in past.points}) < 2:
        if past is not None:
            empty = "The history holds one night with a result: a line needs two."
        return PageSection("history", "History", empty=empty)
    lines, found = strategy_lines(past), marks(drift)
    plot = Plot(
        id="history-plot",
        title="Accuracy of every night",
        caption="A gap is a night without a result. Triangles at the bottom: versions that changed. "
        "Vertical lines are steps, numbered as in the table: solid ones are open, dashed ones were "
        "accepted, dotted ones undone. Grey rings: nights with points that others disturbed, on which "
        "no step rests. With a mouse, drag to look closer; a double click goes back.",
        alt=history_words(past, lines, drift),
        figure=history_figure(past, lines, drift),
        wide_rem=30,
        high_rem=32,
    )
    return PageSection(
        "history",
        "History",
        about="The mean accuracy of each strategy's points in every night, and, thick, the mean of "
        "these means.",
        lines=_open_lines(found, findings.verdict is not None) if drift else [],
        plots=[plot],
        tables=[steps(past, found), step_sentences(found)] if found else [],
        choices=lines,
    )


def _open_lines(found: Sequence[StepMark], in_verdict: bool) -> list[str]:
    """The open steps; only their numbers where the verdict says them in words."""
    of = [mark for mark in found if mark.state == "open"]
    if not of:
        return ["No step is open."]
    if not in_verdict:
        return [f"{mark.number}: {mark.sentence}" for mark in of]
    *first, last = (str(mark.number) for mark in of)
    which = f"Steps {', '.join(first)} and {last} are" if first else f"Step {last} is"
    return [f"{which} open, see the verdict."]


def checks_section(findings: Findings) -> PageSection:
    found = checked(findings.checks)
    section = PageSection(
        "checks",
        "Tonight against the stored parameters",
        about="A short calibration check: a few cases measured again. 0% is as the parameters have it; "
        "to the right, tonight takes more time. Thick strokes: medians over the cases. Grey: disturbed.",
        empty="No calibration check was made.",
    )
    if not found:
        return section
    plot = Plot(
        id="checks-plot",
        title="Time of the checked cases",
        caption="",
        alt=checks_words(found),
        figure=check_figure(found),
        wide_rem=19,  # a phone shows it whole
        high_rem=9 + 2.6 * len(found),
    )
    section.lines, section.plots = check_lines(findings.checks), [plot]
    section.tables = [checked_cases(found)]
    return section


def speed_section(parameters: Parameters | None, watched: Sequence[Watched]) -> PageSection:
    """The references while the newest run measured, checked and trained."""
    found = slowness(watched, parameters.speed if parameters else None)
    if not found:
        return PageSection(
            "speed", "Speed of the machine", empty="No look at the machine was recorded."
        )
    plot = Plot(
        id="speed-plot",
        title="References over the time of the run",
        caption="Small kernels and a message that always do the same, run between what is timed: how "
        "many times as long they took as when the machine was calibrated. Grey bands are trainings. "
        "Blue: quiet; orange: slow, though nobody disturbed; red: others disturbed.",
        alt=machine_speed_words(watched, found),
        figure=machine_speed_figure(watched, found),
        wide_rem=30,
        high_rem=24,
    )
    return PageSection("speed", "Speed of the machine", plots=[plot])


def memory_section(newest: Sequence[Accuracy]) -> PageSection:
    pairs = with_memory(newest)
    if not pairs:
        return PageSection(
            "memory", "Memory", empty="No point has a peak that was both predicted and measured."
        )
    plot = Plot(
        id="memory-plot",
        title="Peak memory of a rank",
        caption="Predicted, with its 95% interval, over measured; on the dashed line it is right.",
        alt=memory_words(pairs),
        figure=memory_figure(pairs),
        high_rem=30,
    )
    return PageSection("memory", "Memory", plots=[plot], tables=[memory(newest)])


def collectives_section(parameters: Parameters | None, samples: Samples) -> PageSection:
    """Fits over the samples that they were made from."""
    plots = collective_plots(parameters, samples) if parameters else []
    return PageSection(
        "fits",
        "Fitted communication",
        about=reading(parameters, samples) if parameters else "",
        plots=plots,
        tables=[every_size(parameters)] if parameters and plots else [],
        empty="There is no fitted collective.",
    )


def contention_section(parameters: Parameters | None) -> PageSection:
    return PageSection(
        "contention",
        "Contention",
        about="phi multiplies the time per byte where several groups send at once: 1 is none, and as "
        "many as there are groups is a link that one group fills.",
        plots=contention_plots(parameters) if parameters else [],
        empty="No contention was measured: it takes several groups of ranks that send at once.",
    )


def layers_section(
    parameters: Parameters | None, layers: Sequence[LayerPair], layer_keys: frozenset[str]
) -> PageSection:
    times = in_place(layers)
    plots = []
    tables = []
    if times:
        plots.append(
            Plot(
                id="layers-in-place",
                title="Layer times in place",
                caption="Predicted over measured while the whole model trains. Filled: forward; open: "
                "backward. Predicted: from times alone, as layers are that were not timed in place; of "
                "these here, predictions take the times in place.",
                alt=layers_words(times),
                figure=layers_figure(times),
                high_rem=30,
            )
        )
        tables.append(farthest_layers(times))
    if parameters is not None and (alone := passes_of_models(parameters, layer_keys)):
        plots += roofline_plots(parameters, alone)
        tables.append(slowest_passes(alone, MOST_PASSES))
    if parameters is not None and parameters.composition:
        tables.append(replace(composition(parameters), folded=True))
    return PageSection(
        "layers", "Layers", plots=plots, tables=tables, empty="No layer was measured."
    )


def passes_of_models(parameters: Parameters, keys: frozenset[str]) -> list[MeasuredPass]:
    """The measured layers of the models that were run; all where that is not known.

    Others were measured for the device's peaks, and for the laws of layers that were not (large passes
    over fresh pages).
    """
    return [of for of in measured_passes(parameters) if not keys or of.key in keys]
