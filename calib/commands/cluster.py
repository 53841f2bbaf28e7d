"""Find which device, node or link of a cluster is slow.

Example: calib cluster check --launcher slurm
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from calib import __version__
from calib.checked import check_ranks, cost_lines, costs_of
from calib.driver.defaults import default_device, default_ranks, require_device
from calib.driver.peers import time_peers_as_rank
from calib.driver.ranks import as_rank
from calib.fitting.outliers.check import ClusterCheck, check
from calib.fitting.outliers.logs import peers_of_logs
from calib.foundation.errors import InputError
from calib.foundation.files import write_whole
from calib.importing.logs import read_runs
from calib.lazy import new_app
from calib.options import (
    MOST,
    BatchPerRank,
    DeviceOption,
    Json,
    Launcher,
    ParameterFile,
    RanksOption,
)
from calib.oracle.template import DivisionTemplate
from calib.predicting.predictor import parameters_of
from calib.reports.tables.cluster_check import culprit_lines, levels_table, settings_lines, verdict
from calib.rundir import LATEST_PARAMETERS
from calib.terminal.printing import check_targets, print_json, print_table, say
from calib.training.models.specs import batch_of, spec

app = new_app()


@app.callback()
def of_cluster() -> None:
    """Find which device, node or link of a cluster is slow."""


@app.command("check")
def check_cluster(
    logs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[LOG...]", help="With --logs: logs of nccl-tests, or directories."),
    ] = None,
    from_logs: Annotated[
        bool, typer.Option("--logs", help="Time nothing: compare the runs of logs of others.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="log2 n rounds of pairs, then those of who looks bad.")
    ] = False,
    ranks: RanksOption = None,
    device: DeviceOption = None,
    launcher: Launcher = "local",
    library: Annotated[
        str | None,
        typer.Option(help="What sends: mpi, torch_nccl, ...; default mpi, of cuda torch_nccl."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the result as JSON, too.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page with the pairs drawn.")] = None,
    exclude: Annotated[
        bool,
        typer.Option(
            "--exclude", help="Print the hosts to leave out, as srun --exclude takes them."
        ),
    ] = False,
    hosts: Annotated[
        Path | None, typer.Option(help="Write the good hosts, a line each, as mpiexec -f takes.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Also say what a culprit costs an iteration of this model's training."),
    ] = None,
    p: Annotated[
        int | None, typer.Option("-p", min=1, max=MOST, help="Ranks of that; default those here.")
    ] = None,
    strategy: Annotated[str, typer.Option(help="How it is divided.")] = "data",
    batch_per_rank: BatchPerRank = None,
    parameters: ParameterFile = LATEST_PARAMETERS,
    as_json: Json = False,
) -> None:
    """Compare devices, nodes and pairs of nodes, name who is slower, and say what it costs.

    Exit code 0: all are alike; 1: something is slower, or fails; 2: it could not be looked at.
    """
    device = device or default_device()
    if as_rank():
        assert output is not None
        time_peers_as_rank(output, device, library, quick)
        return
    check_targets({"-o": output, "--junit": junit, "--page": page, "--hosts": hosts}, *(logs or []))
    if from_logs != bool(logs):
        raise InputError("--logs takes the logs behind it, as --logs logs/*.txt; without it none")
    asked = None
    if model is not None:  # mistakes are said before anything is timed
        chosen, known, template = (
            spec(model),
            parameters_of(parameters, ()),
            DivisionTemplate(strategy),
        )
        asked = chosen, known, template, batch_of(chosen, batch_per_rank)
    if logs:
        peers = peers_of_logs(read_runs(logs), "logs")
        if not peers.times:
            raise InputError("no run of these logs names the hosts of its ranks")
        found = check(peers)
    else:
        require_device(device, launcher)
        count = ranks or default_ranks(launcher, device)
        found = check_ranks(launcher, count, device, library, quick)
    if output is not None:
        found.write(output)
    costs = []
    if asked is not None:
        chosen, known, template, each = asked
        count = p or len({place for time in found.peers.times for place in time.places})
        division = template.division(count, count * each, known.ranks_per_node, chosen)
        costs = cost_lines(costs_of(found, chosen, division, known), chosen, division)
    if junit is not None:
        # late: what writes XML or draws a page takes longer to import than the lines to print
        from calib.reports.writers.junit import cluster_junit

        write_whole(junit, cluster_junit(found, costs))
    if page is not None:
        from calib.reports.page.cluster_check import render

        write_whole(page, render(found, __version__, costs))
    if hosts is not None:
        write_whole(hosts, "".join(f"{host}\n" for host in found.good_hosts))
    _put(found, costs, exclude, as_json)
    if found.code:
        raise typer.Exit(found.code)


def _put(found: ClusterCheck, costs: Sequence[str], exclude: bool, as_json: bool) -> None:
    """Print the result: JSON, the hosts to leave out, or tables for people."""
    if as_json:
        print_json(found.model_dump(mode="json") | {"costs": list(costs)})
        return
    if exclude:
        typer.echo(",".join(found.excluded))
    else:
        print_table(levels_table(found))
    for line in (verdict(found), *culprit_lines(found), *costs, *settings_lines(found)):
        say(line)
    if any(culprit.disturbed for culprit in found.culprits):
        say("`calib doctor --watch 60s` on a disturbed host says who disturbs it")
    for note in found.notes:
        say(f"note: {note}")
    if found.excluded and not exclude:
        say(f"leave out: {','.join(found.excluded)}")
