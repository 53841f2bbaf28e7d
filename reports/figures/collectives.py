"""Figures of collectives and contention with their fits."""

from __future__ import annotations

from collections.abc import Mapping

from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.contention import ContentionFit
from calib.fitting.parameters.file import Parameters
from calib.fitting.sections.collective_rows import Direct, grouped, packed
from calib.foundation.words import bytes_words, estimate_words, number, percent
from calib.microbench.records.samples import NO_SAMPLES, Samples
from calib.reports.figures.basics import Plot, thinned
from calib.reports.figures.fits import FitPoint, collective_figure, contention_figure
from calib.reports.tables.cells import span
from calib.reports.tables.collectives import contention_name

READING = (
    "Blue: medians with 95% intervals; predictions go straight from one to the next. Green: the pieces, "
    "dotted between two of them. Orange, dashed: the line of alpha (start-up time, of the smallest "
    "sizes) and beta (time per byte, at the largest): its algorithm's steps times alpha plus its volume "
    "times beta. Between its ends it may be far off. Below: how far each median lies from the pieces."
)
REPETITIONS = " Grey: single repetitions."
OUTLIERS = " A cross is a median too far off to be fitted."


def collective_plots(parameters: Parameters, samples: Samples = NO_SAMPLES) -> list[Plot]:
    """One plot of every fit; `samples` are collective rows of the runs that it was fitted from."""
    laws = grouped(samples.usable)
    return [_plot(i, fit, laws) for i, fit in enumerate(parameters.collectives)]


def contention_plots(parameters: Parameters) -> list[Plot]:
    """One plot of every contention law: phi by groups at once."""
    return [_contention_plot(i, fit) for i, fit in enumerate(parameters.contention)]


def _contention_plot(index: int, fit: ContentionFit) -> Plot:
    return Plot(
        id=f"contention-{index}",
        title=f"{contention_name(fit)}, {fit.library}, {fit.device}, {fit.level}",
        caption=f"Law: {fit.law}; off by {percent(fit.mean_relative_error)} on average; "
        f"{span(fit.min_nbytes, fit.max_nbytes)}; one group: {fit.baseline}.",
        figure=contention_figure(fit),
        alt="; ".join(f"{x.groups} groups: phi {x.contention.value:.2f}" for x in fit.points) + ".",
    )


def reading(parameters: Parameters, samples: Samples = NO_SAMPLES) -> str:
    """What the colours of these plots mean; only what is drawn is named."""
    outliers = any(fit.outliers_nbytes for fit in parameters.collectives)
    return READING + REPETITIONS * bool(samples) + OUTLIERS * outliers


def repetitions_of(fit: CollectiveFit, laws: Mapping[Direct, Samples]) -> list[FitPoint]:
    """(bytes, seconds) of the rows that a fit was made of, out of those of all direct laws."""
    mine = [
        rows
        for key, rows in laws.items()
        if (key.operation, key.library, key.device, key.level, key.ranks)
        == (fit.operation, fit.library, fit.device, fit.level, fit.ranks)
        and fit.made_on(key.nodes, key.ranks_per_node)
    ]
    if not mine:
        return []
    rows = packed(mine[0].joined(mine[1:]))
    rows = rows.where(rows["nbytes"] > 0)
    return sorted(zip(rows["nbytes"].tolist(), rows["seconds"].tolist(), strict=True))


def _plot(index: int, fit: CollectiveFit, laws: Mapping[Direct, Samples]) -> Plot:
    dots = repetitions_of(fit, laws)
    drawn = thinned(dots)
    return Plot(
        id=f"collective-{index}",
        title=f"{fit.operation}, {fit.library}, {fit.device}, {fit.level}, {fit.ranks} ranks{fit.among}",
        caption=caption(fit, len(drawn), len(dots)),
        figure=collective_figure(fit, drawn),
        high_rem=30,
    )


def caption(fit: CollectiveFit, drawn: int, n: int) -> str:
    """The errors of the pieces, alpha and beta, how far these are off, and what all rests on."""
    beta, (low, high) = fit.beta_s_per_byte, fit.range_nbytes
    bandwidth = f" ({number(1e-9 / beta.value)} GB/s)" if beta.value > 0 else ""
    pieces = f"{len(fit.pieces)} piece{'s' * (len(fit.pieces) > 1)}"
    errors = [
        f"{pieces}, off by {percent(fit.pieces_mean_relative_error)} on average"
        if fit.pieces_mean_relative_error is not None
        else "",
        f"sizes left out, by {percent(fit.left_out_error)}"
        if fit.left_out_error is not None
        else "",
        f"alpha and beta alone, by {percent(fit.mean_relative_error)} (95% of sizes within a factor "
        f"{fit.line_error_factor:.2f})",
    ]
    raw = f"{n} repetitions" if drawn == n else f"{drawn} of {n} repetitions drawn"
    return (
        f"{'; '.join(filter(None, errors))}. alpha = {estimate_words(fit.alpha_s, 1e6)} µs, "
        f"beta = {estimate_words(beta, 1e9)} ns/B{bandwidth}; {bytes_words(low)} to {bytes_words(high)}"
        f"{f', {raw}' if n else ''}."
    )
