"""Hold the training runs of a run directory against their predictions: a table and report.html.

Example: calib report runs/latest
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib.options import Json, print_json, say
from calib.rundir import PARAMETERS_FILE, PREDICTIONS_FILE, REPORT_HTML, REPORT_JSON, training_runs
from foundation.files import write_json, write_whole

if TYPE_CHECKING:
    from fitting.parameters import Parameters
    from oracle.projection import Projection
    from reports.accuracy import Accuracy
    from reports.summary import Summary
    from training.run import TrainingRun


@dataclass(frozen=True)
class Findings:
    """What a report says."""

    accuracies: list[Accuracy]
    summary: Summary
    unscored: list[str]

    def as_dict(self) -> dict[str, Any]:
        """For report.json and --json."""
        return {
            "accuracies": [accuracy.model_dump() for accuracy in self.accuracies],
            "summary": self.summary.model_dump(),
            "unscored": self.unscored,
        }


def command(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page; default RUN/report.html.")
    ] = None,
    as_json: Json = False,
) -> None:
    page = output or run / REPORT_HTML
    findings = report(run, page)
    if as_json:
        print_json(findings.as_dict())
    else:
        show(findings)
        say(f"page: {page}")


def show(findings: Findings) -> None:
    """The tables and the summary."""
    from reports.table import print_report

    print_report(findings.accuracies, findings.summary, findings.unscored)


def report(run: Path, page: Path) -> Findings:
    """Score the runs, write the page and report.json beside it."""
    from fitting.fit import CLUSTER_FILE
    from fitting.parameters import Parameters
    from microbench.cluster import Cluster
    from microbench.samples import SAMPLES_FILE, read_samples
    from reports.page import ReportData, render
    from reports.scoring import score_runs
    from reports.summary import summary
    from training.run import TrainingRun

    paths = training_runs(run)
    parameters = Parameters.read(run / PARAMETERS_FILE)
    runs = [TrainingRun.read(path) for path in paths]
    predictions = predictions_of(run, parameters, runs)
    for path, item in zip(paths, runs, strict=True):
        if not item.header.cluster_fingerprint:
            say(f"note: {path}: the machine of this run is not known")
    cluster = Cluster.read(run / CLUSTER_FILE).model_dump()
    accuracies, unscored = score_runs(predictions, runs, parameters.provenance.cluster_fingerprint)
    findings = Findings(accuracies, summary(accuracies), unscored)
    samples = read_samples(run, "collective") if (run / SAMPLES_FILE).exists() else []
    data = ReportData(
        parameters=parameters, accuracies=accuracies, summary=findings.summary, cluster=cluster,
        unscored=unscored, samples=samples, layer_keys=layer_keys(runs),
    )  # fmt: skip
    write_whole(page, render(data))
    write_json(page.parent / REPORT_JSON, findings.as_dict())
    return findings


def predictions_of(run: Path, parameters: Parameters, runs: list[TrainingRun]) -> list[Projection]:
    """The predictions that were written before the training; made now for runs without one."""
    from pydantic import TypeAdapter, ValidationError

    from foundation.errors import FileError, InputError, MissingParameter
    from foundation.files import first_error, read_json
    from oracle.predict import project
    from oracle.projection import Projection
    from reports.scoring import is_of
    from training.models.specs import spec

    path = run / PREDICTIONS_FILE
    kept = read_json(path, "predictions") if path.exists() else []
    try:
        predictions = TypeAdapter(list[Projection]).validate_python(kept)
    except ValidationError as error:
        raise FileError(f"predictions {path}: {first_error(error)}") from error
    for item in runs:
        if any(is_of(projection, item) for projection in predictions):
            continue
        head = item.header
        try:
            predictions.append(
                project(spec(head.model), head.division, parameters, optimizer=head.optimizer)
            )
        except (InputError, MissingParameter) as error:
            say(f"not predicted: {head.model} {head.strategy} p={head.p}: {error}")
    return predictions


def layer_keys(runs: list[TrainingRun]) -> frozenset[str]:
    """The keys of the layers, or of their parts, that the ranks of these runs ran."""
    from foundation.errors import InputError
    from oracle.shards import rank_shards
    from training.models.specs import spec

    shards = []
    for run in runs:
        with suppress(InputError):  # of a model that is not registered here
            shards += rank_shards(spec(run.header.model), run.header.division)
    return frozenset(x.layer.key(x.batch, "float32", x.needs_input_grad) for x in shards)
