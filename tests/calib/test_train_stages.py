"""A pipeline is trained in the stages that its prediction has, where there are times to predict by."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.oracle.handmade import allreduce_fit, layer_time, machine

from calib.fitting.parameters.file import Parameters
from calib.foundation.division import Division
from calib.foundation.run_files import PARAMETERS_FILE
from calib.night.points import points_of
from calib.oracle.layout.stages import stage_names, with_boundaries
from calib.oracle.predict import project
from calib.planning.request import Request
from calib.predicting.choices import templates
from calib.rundir import LATEST_PARAMETERS
from calib.training.job import Settings
from calib.training_runs.options import model_layers
from calib.training_runs.runs import TrainingRequest

VGG = model_layers("vgg16-mini")
P, BATCH, SEGMENTS = 2, 8, 2
ASKED = Division("pipeline", P, BATCH, segments=SEGMENTS)
BY_OPERATIONS = with_boundaries(VGG, ASKED)
# the last layer takes as long as all before it, which operations put at next to nothing
LAST = len(VGG.layers) - 1


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No runs/latest but that of the test."""
    monkeypatch.chdir(tmp_path)


def parameters(**changes: object) -> Parameters:
    times = [(float(LAST) if k == LAST else 1.0) for k in range(LAST + 1)]
    layers = [
        layer_time(layer, BATCH // SEGMENTS, P, t, t)
        for layer, t in zip(VGG.layers, times, strict=True)
    ]
    message = allreduce_fit(2).model_copy(update={"operation": "p2p"})
    return machine(layers=layers, collectives=[message]).model_copy(update=changes)


def trained(output: Path | None = None, **layout: object) -> Division:
    """What `calib train` lays out."""
    chosen = templates("pipeline", segments=[SEGMENTS], **layout)
    asked = TrainingRequest("vgg16-mini", "pipeline", chosen, P, BATCH, Settings(), output, "local")
    ((job, _),), _ = asked.runs()
    assert isinstance(job.division, Division)
    return job.division


def in_run(of: Parameters, name: str = "mine") -> Path:
    run = Path("runs") / name
    run.mkdir(parents=True)
    of.write(run / PARAMETERS_FILE)
    return run


@pytest.mark.parametrize("inside", ["", "training/x.jsonl"])
def test_in_a_run_directory_it_has_the_predicted_stages(
    inside: str, capsys: pytest.CaptureFixture[str]
) -> None:
    known = parameters()
    run = in_run(known)
    (run / "training").mkdir()
    found = trained(run / inside)
    assert found.boundaries == (LAST,) != BY_OPERATIONS.boundaries
    terms = project(VGG, ASKED, known, explain=True).terms
    (predicted,) = {term.values["stages"] for term in terms if "stages" in term.values}
    assert stage_names(VGG, found.boundaries) == predicted
    (line,) = capsys.readouterr().err.splitlines()
    assert str(predicted) in line and f"the times of {run / PARAMETERS_FILE}" in line


def test_elsewhere_the_latest_calibration_is_taken() -> None:
    in_run(parameters(), LATEST_PARAMETERS.parent.name)
    assert trained().boundaries == trained(Path("x.jsonl")).boundaries == (LAST,)
    assert trained(boundaries="3").boundaries == (3,), "what is asked for stays"
    # a run directory's own parameters come first
    equal = parameters(layers=[layer_time(x, 4, P, 1.0, 1.0) for x in VGG.layers])
    assert trained(in_run(equal)).boundaries != (LAST,)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (None, f"there is no {LATEST_PARAMETERS}"),
        ({"device_kind": "cuda"}, "is of cuda, and cpu trains"),
        ({"layers": [], "work": []}, "layer"),
    ],
)
def test_without_times_operations_balance_it(
    changes: dict[str, object] | None, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if changes is not None:
        in_run(parameters(**changes), LATEST_PARAMETERS.parent.name)
    assert trained() == BY_OPERATIONS
    said = capsys.readouterr().err
    assert "balanced by operations, not times: " in said and why in said


def test_a_damaged_calibration_is_no_reason_not_to_train(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = in_run(parameters(), LATEST_PARAMETERS.parent.name)
    (run / PARAMETERS_FILE).write_text("{")
    assert trained() == BY_OPERATIONS
    assert str(LATEST_PARAMETERS) in capsys.readouterr().err


def test_other_strategies_read_no_calibration(capsys: pytest.CaptureFixture[str]) -> None:
    run = in_run(parameters())
    (run / PARAMETERS_FILE).write_text("{")
    chosen = templates("data")
    asked = TrainingRequest("vgg16-mini", "data", chosen, P, BATCH, Settings(), run, "local")
    assert len(asked.runs()[0]) == 1 and capsys.readouterr().err == ""


def test_a_night_trains_the_predicted_stages() -> None:
    asked = Request(
        models=("vgg16-mini",), strategies=("pipeline",), p=(P,), batch=BATCH, segments=SEGMENTS
    )
    (point,), _ = points_of(asked, P, "local", parameters())
    assert point.division.boundaries == (LAST,)
    nothing = parameters(layers=[], work=[])
    (point,), _ = points_of(asked, P, "local", nothing)
    assert point.division == BY_OPERATIONS, (
        "laid out all the same: that it has no prediction is said"
    )
