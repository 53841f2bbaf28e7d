"""Show a parameter file as tables, and how sure each number is.

It has alpha, bandwidths, pieces, layers and laws. Examples: calib show parameters.json; calib show
parameters.json --layers; calib show parameters.json --plot fits.html --run runs/latest
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.measured_passes import measured_passes
from calib.fitting.parameters.measured_sizes import measured_sizes
from calib.foundation.errors import InputError
from calib.foundation.files import destination, write_whole
from calib.foundation.run_files import CLUSTER_FILE
from calib.microbench.records.cluster import Cluster
from calib.reports.tables.collectives import every_size
from calib.reports.tables.compute import slowest_passes
from calib.reports.tables.parameters import absent, sections
from calib.terminal.printing import check_targets, print_json, print_table, say


def command(
    parameters: Annotated[Path, typer.Argument(help="A parameter file, as `calib fit` makes it.")],
    layers: Annotated[
        bool,
        typer.Option(
            "--layers",
            help="Only the layers as measured, the slowest pass first: time, TFLOP/s, GB/s, share of "
            "the device's peak, kernels.",
        ),
    ] = False,
    collectives: Annotated[
        bool,
        typer.Option(
            "--collectives",
            help="Only the collectives as measured, size by size: time, law, algbw and busbw.",
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.html", help="Write a page with the fits drawn: points, pieces, residuals."
        ),
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="A run that the file was fitted from, so that --plot shows its "
            "repetitions; may be given several times.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the whole file (with --collectives or --layers, these alone) as JSON on "
            "stdout, in SI units.",
        ),
    ] = False,
) -> None:
    if collectives and layers:
        raise InputError("--collectives and --layers print nothing else; give one of them")
    if runs and plot is None:
        raise InputError("--run gives --plot its repetitions; name a page with --plot OUT.html")
    check_targets({"--plot": plot}, parameters)
    content = Parameters.read(parameters)
    # first, so that a reader of the tables who leaves early (a pager, head) has the page
    if plot is not None:
        draw(content, plot, runs or [])
    if collectives:
        show_collectives(content, as_json)
    elif layers:
        show_layers(content, as_json)
    elif as_json:
        print_json(content.signed())
    else:
        show(content)


def show(parameters: Parameters) -> None:
    """All sections that the file fills, and one line on those that it does not."""
    for table in sections(parameters):
        print_table(table)
    missing = absent(parameters)
    if missing:
        say(f"note: {missing}")


def show_collectives(parameters: Parameters, as_json: bool) -> None:
    """Every measured size of every collective, as a table or a JSON list."""
    if as_json:
        sizes = [size for fit in parameters.collectives for size in measured_sizes(fit)]
        print_json([size.model_dump() for size in sizes])
    else:
        print_table(every_size(parameters))


def show_layers(parameters: Parameters, as_json: bool) -> None:
    """Every pass of every measured layer, as a table or a JSON list."""
    passes = measured_passes(parameters)
    if as_json:
        print_json([of.model_dump() for of in passes])
    else:
        print_table(slowest_passes(passes))


def draw(parameters: Parameters, page: Path, runs: list[Path]) -> None:
    """Write the page of plots, with the repetitions of these runs as dots."""
    # late: what draws a page takes longer to import than the tables to print
    from calib.microbench.records.samples import read_samples
    from calib.reports.page.fits import render

    for run in runs:
        fingerprint = Cluster.read(run / CLUSTER_FILE).fingerprint
        if fingerprint != parameters.provenance.cluster_fingerprint:
            raise InputError(
                f"{run} is a run of another cluster ({fingerprint}) than the parameters"
            )
    write_whole(destination(page), render(parameters, read_samples(*runs, kind="collective")))
    say(f"page: {page}")
