"""A checked cluster: who is not like the others, kept in a run directory, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calib import __version__
from calib.driver.peers import time_peers
from calib.fitting.outliers.check import ClusterCheck, check
from calib.fitting.parameters.file import Parameters
from calib.foundation.division import Division
from calib.foundation.files import write_whole
from calib.foundation.names import DeviceName
from calib.foundation.run_files import CLUSTER_CHECK_FILE, LOG_FILE
from calib.foundation.words import with_interval
from calib.oracle.model.spec import ModelSpec
from calib.predicting.slowed import Cost, cost_of

CHECK_PAGE = "cluster_check.html"


def check_ranks(
    launcher: str,
    ranks: int,
    device: DeviceName,
    library: str | None = None,
    quick: bool = False,
    log: Path | None = None,
) -> ClusterCheck:
    """Start the ranks, let them time everything, and compare. Raises as `time_peers` does."""
    peers, ended = time_peers(launcher, ranks, device, library, quick, log)
    return check(peers, [f"the ranks ended early: {ended}"] if ended else [])


def checked(run: Path, launcher: str, ranks: int, device: DeviceName) -> ClusterCheck:
    """The check of a run directory: the one that is there, or a new one with its page."""
    path = run / CLUSTER_CHECK_FILE
    if path.exists():
        return ClusterCheck.read(path)
    found = check_ranks(launcher, ranks, device, log=run / LOG_FILE)
    # late: it draws a page
    from calib.reports.page.cluster_check import render

    write_whole(run / CHECK_PAGE, render(found, __version__))
    found.write(path)
    return found


def costs_of(
    of: ClusterCheck,
    model: ModelSpec,
    division: Division,
    parameters: Parameters,
    included: bool = False,
) -> list[Cost]:
    """What each culprit costs an iteration, where the parameters tell; see `cost_of`."""
    costs = (cost_of(each, model, division, parameters, included) for each in of.culprits)
    return [each for each in costs if each is not None]


def cost_lines(costs: Sequence[Cost], model: ModelSpec, division: Division) -> list[str]:
    """`node h2: data-parallel resnet50 on 16 ranks takes 14% [11, 17] longer with it`."""
    what = f"{model.name} {division.slug} on {division.p} ranks"
    return [
        f"{cost.culprit.kind} {cost.culprit.name}: {what} takes {'at most ' * cost.at_most}"
        f"{with_interval(*cost.share.numbers, 100.0)}% longer with it"
        for cost in costs
    ]
