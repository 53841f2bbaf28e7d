"""The page of `calib show --plot`: every law over its measurements.

Self-contained, as reports/page/report.py makes its pages; the tables of reports/tables/ below.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from operator import itemgetter

from calib.fitting.parameters.file import LayerTime, Parameters, WorkModel
from calib.fitting.parameters.measured_passes import measured_passes
from calib.fitting.parameters.structural import StructuralFit
from calib.fitting.parameters.work import ANY_KIND, price_of, work_of
from calib.foundation.execution import execution_of, unusual
from calib.foundation.layer_keys import execution_in, parse
from calib.foundation.operators import family_of
from calib.foundation.words import percent
from calib.microbench.records.samples import NO_SAMPLES, Samples
from calib.reports.figures.basics import Plot
from calib.reports.figures.fits import LayerPoint, structural_figure, work_figure
from calib.reports.figures.roofline import roofline_plots
from calib.reports.page.report import fill
from calib.reports.page.sections import PageSection, collectives_section, contention_section
from calib.reports.tables.parameters import absent
from calib.reports.tables.parameters import sections as tables_of

TEMPLATE = "fits.html.j2"


def render(parameters: Parameters, samples: Samples = NO_SAMPLES) -> str:
    """The page as one HTML text. `samples` are collective rows of the runs that it was fitted from."""
    sections = [section for section in _sections(parameters, samples) if section.plots]
    return fill(
        TEMPLATE,
        {plot.id: plot.figure for section in sections for plot in section.plots},
        source=parameters.provenance,
        device=parameters.device,
        sections=sections,
        tables=tables_of(parameters),
        absent=absent(parameters),
    )


def _sections(parameters: Parameters, samples: Samples) -> Iterator[PageSection]:
    yield collectives_section(parameters, samples)
    yield PageSection(
        "structural",
        "Collectives on any layout",
        "Points are medians on one layout, lines what the law says of it from the others; the dashed "
        "one is twice the largest layout.",
        plots=[_structural_plot(i, law, parameters) for i, law in enumerate(parameters.structural)],
    )
    yield contention_section(parameters)
    yield PageSection(
        "roofline",
        "Layers under the roof of the device",
        plots=roofline_plots(parameters, measured_passes(parameters)),
    )
    yield PageSection(
        "work",
        "Work laws",
        "What the laws for layers that were not measured say of those that were. Filled: forward; "
        "open: backward.",
        plots=list(_work_plots(parameters)),
    )


def _structural_plot(index: int, law: StructuralFit, parameters: Parameters) -> Plot:
    held_out = (
        f"The largest layout, predicted from the smaller ones, is off by "
        f"{percent(law.held_out_error)} on average."
        if law.held_out_error is not None
        else "One layout alone: nothing to check it with."
    )
    named = [f"{words}." for words in law.outlying_words]
    return Plot(
        id=f"structural-{index}",
        title=f"{law.operation}, {law.library}, {law.device}, {law.level}",
        caption=" ".join([held_out, *named]),
        figure=structural_figure(law, parameters.collectives),
        high_rem=30,
    )


def _work_plots(parameters: Parameters) -> Iterator[Plot]:
    laws = {
        (law.kind, law.direction, law.active_ranks, law.execution): law for law in parameters.work
    }
    groups: dict[tuple[int, str], list[LayerTime]] = defaultdict(list)
    for layer in parameters.layers:
        groups[layer.active_ranks, unusual(execution_in(layer.key))].append(layer)
    for (active, how), mine in sorted(groups.items(), key=itemgetter(0)):
        pairs = [pair for layer in mine for pair in _predicted(layer, laws)]
        if pairs:
            yield Plot(
                id=f"work-{active}{how and f'-{how}'}".replace("+", "-"),
                title=f"{active} rank{'s' * (active > 1)} of a node at work{how and f', {how}'}",
                caption=f"{len(pairs)} time(s) of {len(mine)} layer(s). The laws have seen them; how "
                "far off they are of layers that were left out is the error in the table.",
                figure=work_figure(pairs),
                high_rem=30,
            )


def _predicted(
    layer: LayerTime, laws: dict[tuple[str, str, int, str], WorkModel]
) -> Iterator[LayerPoint]:
    """Measured and predicted seconds of forward and backward.

    By the law of its kind, of its family, or of all.
    """
    named = parse(layer.key)
    if named is None:
        return
    about = layer.active_ranks, named.execution
    for direction, time in (("forward", layer.forward_s), ("backward", layer.backward_s)):
        kinds = (layer.kind, family_of(layer.kind), ANY_KIND)
        law = next(
            (laws[key] for kind in kinds if (key := (kind, direction, *about)) in laws), None
        )
        if law is not None and direction == "backward" and not named.needs_input_grad:
            law = laws.get((law.kind, "backward_weight", *about), law)
        if law is None or time.value <= 0:
            continue
        items = execution_of(named.execution).items
        work = work_of(named.shape, named.batch, direction, named.needs_input_grad, items)
        predicted = price_of(law, work).seconds
        if predicted > 0 and math.isfinite(predicted / time.value):
            yield layer.kind, direction, time.value, predicted
