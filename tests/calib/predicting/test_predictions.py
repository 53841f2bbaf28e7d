"""calib.predicting.file: what a report says of a predictions.json that is not as it was written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.calib.inside import calib
from tests.calib.machines import full_machine, two_executions
from tests.calib.nightly_runs import calibration, known_points, predicted, request, trained
from tests.fitting.parameters.edits import by_hand, sha
from tests.reports.records import run as training

from calib.fitting.parameters.file import Parameters, read_signed
from calib.fitting.parameters.signature import digest, with_signature, without_signature
from calib.foundation.errors import FileError
from calib.foundation.files import write_json
from calib.foundation.run_files import PARAMETERS_FILE, PREDICTIONS_FILE
from calib.oracle.costs.machine import Machine
from calib.oracle.model.spec import tensors_key
from calib.oracle.predict import project
from calib.oracle.predicted import Predicted
from calib.predicting.file import _Kept, predictions_of, projected, write_predictions
from calib.scoring.findings import report_of
from calib.scoring.run import ScoredRun, scored
from calib.training.models.specs import spec

Content = dict[str, Any]
MEASURED_S = 0.025 * 1.0035  # the middle of the eight iterations of `trained`


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory: predicted, then trained, 25 ms an iteration."""
    made = calibration(tmp_path / "runs" / "one")
    [point] = known_points(request())[:1]
    predicted(made, [point])
    trained(made, point)
    return made


def content(run: Path) -> Content:
    found: Content = json.loads((run / PREDICTIONS_FILE).read_text())
    return found


def written(run: Path, of: Any, signed: bool) -> None:
    """`of` as predictions.json, with the signature that it has or the one that fits."""
    write_json(run / PREDICTIONS_FILE, with_signature(of) if signed else of)


def true_s(run: Path) -> float:
    """The sum of what the parameters say of the layers and the update."""
    parameters, model = Parameters.read(run / PARAMETERS_FILE), spec("cosmoflow-mini")
    stored = {x.key: x.forward_s.value + x.backward_s.value for x in parameters.layers}
    # a flatten costs nothing and is not there
    keys = [x.shape.key(4, "float32", x.needs_input_grad) for x in model.layers]
    [update] = [x for x in parameters.tensor_loops if x.operation == "update"]
    return (
        sum(stored.get(key, 0.0) for key in keys)
        + update.measured[tensors_key(model.parameter_shapes)].value
    )


def scale(of: Content, share: float) -> None:
    """All times of all projections, as one who wants them to be right does."""
    for projection in of["projections"]:
        for time in [projection["total"], *projection["phases"].values()]:
            for name in ("value", "low", "high"):
                time[name] *= share


def signature(of: Content) -> str:
    """By the hand-written RFC 8785."""
    return sha(by_hand(without_signature(of)))


def code(run: Path) -> int:
    verdict = report_of([run], record=False, least_accuracy=0.01).findings.verdict
    assert verdict is not None
    return verdict.code


def lines(found: ScoredRun) -> list[str]:
    return [one.line for one in found.missing]


def accuracy(found: ScoredRun) -> float | None:
    [point] = found.accuracies
    return point.total.accuracy


def test_as_it_was_written(run: Path) -> None:
    of = content(run)
    assert of["format_version"] == 1 and of["signature"] == digest(of) == signature(of)
    parameters = json.loads((run / PARAMETERS_FILE).read_text())
    assert of["parameters_sha256"] == signature(parameters)
    [name] = of["models_sha256"]
    assert of["models_sha256"][name] == signature(spec(name).model_dump(mode="json"))
    found = scored(run)
    assert (found.missing, found.notes) == ([], [])
    assert accuracy(found) == pytest.approx(2 - true_s(run) / MEASURED_S)
    assert code(run) == 0


@pytest.mark.parametrize("signed", [False, True])
def test_scaled_to_what_was_measured(run: Path, signed: bool) -> None:
    """Also where its signature was made to fit: the parameters give something else."""
    before = scored(run).accuracies
    of = content(run)
    true = true_s(run)
    scale(of, MEASURED_S / true)
    written(run, of, signed)
    found = scored(run)
    assert found.accuracies == before, "what the parameters give is scored"
    said = (
        f"says {1e3 * MEASURED_S:.2f} ms, the parameters give {1e3 * true:.2f} ms "
        f"({100 * (true / MEASURED_S - 1):+.1f}%), which is scored"
    )
    assert any(said in line for line in lines(found))
    edited = [line for line in lines(found) if "its signature is not that of its content" in line]
    assert len(edited) == (not signed)
    assert code(run) == 2
    done = calib(run.parent, "report", "one", "--least-accuracy", "1%")
    assert done.returncode == 2 and "says 25.09 ms" in done.stdout
    assert "fine" not in done.stdout and "100.0%" not in done.stdout


def widen(of: Content) -> None:
    of["projections"][0]["total"]["high"] *= 3


def surer(of: Content) -> None:
    of["projections"][0]["phases"]["forward"]["basis"] = "extrapolated"


def another_phase(of: Content) -> None:
    phases = of["projections"][0]["phases"]
    phases["exchange"] = dict(phases["forward"])


def less_memory(of: Content) -> None:
    of["projections"][0]["peak_bytes"] = {"value": 1.0, "low": 1.0, "high": 1.0}


@pytest.mark.parametrize("edit", [widen, surer, another_phase, less_memory])
def test_an_edit_beside_the_total(run: Path, edit: Callable[[Content], None]) -> None:
    before = scored(run).accuracies
    of = content(run)
    edit(of)
    written(run, of, signed=True)
    found = scored(run)
    assert found.accuracies == before and code(run) == 2
    [line] = lines(found)
    assert "has other phases, intervals or bytes than the parameters give" in line


@pytest.mark.parametrize("key", ["made", "program_version"])
def test_an_edit_of_what_is_not_scored(run: Path, key: str) -> None:
    of = content(run)
    of[key] = "2026-01-01T00:00:00+00:00"
    written(run, of, signed=False)
    assert code(run) == 2
    of.pop("signature")
    written(run, of, signed=False)
    assert "it has no signature" in "".join(lines(scored(run))) and code(run) == 2


def test_other_parameters(run: Path) -> None:
    """It cannot be made again from parameters that are not here: said, and not fine."""
    before = accuracy(scored(run))
    of = content(run)
    of["parameters_sha256"] = "sha256:" + "0" * 64
    written(run, of, signed=True)
    found = scored(run)
    [line] = lines(found)
    assert "could not be made again: it was made from other parameters (sha256:0000" in line
    assert "scored as it says: cosmoflow-mini serial p=1" in line
    assert accuracy(found) == before and code(run) == 2
    scale(of, 0.5)
    written(run, of, signed=False)  # edited, and nothing to hold it against
    found = scored(run)
    assert found.accuracies == [] and "so not scored" in "".join(lines(found))


@pytest.mark.filterwarnings("ignore::calib.fitting.parameters.signature.EditedWarning")
@pytest.mark.parametrize("signed", [False, True])
def test_parameters_edited_after_the_training(run: Path, signed: bool) -> None:
    path = run / PARAMETERS_FILE
    of = json.loads(path.read_text())
    for layer in of["layers"]:
        for name in ("forward_s", "backward_s"):
            layer[name] = {key: 1.6 * value for key, value in layer[name].items()}
    write_json(path, with_signature(of) if signed else of)
    found = scored(run)
    assert any("it was made from other parameters" in line for line in lines(found))
    assert any("edited by hand after its fit" in line for line in lines(found)) != signed
    assert code(run) == 2
    (run / PREDICTIONS_FILE).unlink()  # then this report predicts, and says so
    found = scored(run)
    [note] = found.notes
    assert note.startswith("predicted by this report, after the training: cosmoflow-mini serial")
    assert code(run) == (0 if signed else 2)


def test_parameters_that_are_gone(run: Path) -> None:
    (run / PARAMETERS_FILE).unlink()
    with pytest.raises(FileError, match=r"so its predictions\.json cannot be made again"):
        scored(run)
    done = calib(run.parent, "report", "one")
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_another_model_of_that_name(run: Path) -> None:
    of = content(run)
    of["models_sha256"] = {"cosmoflow-mini": "sha256:" + "0" * 64}
    written(run, of, signed=True)
    [line] = lines(scored(run))
    assert "cosmoflow-mini has other layers now" in line and code(run) == 2


def test_predicted_after_the_training(run: Path) -> None:
    predicted(run, known_points(request())[:1], made="2026-11-04T00:00:00+00:00")
    [note] = scored(run).notes
    assert note.startswith(
        "predictions.json was written (2026-11-04T00:00:00+00:00) after training"
    )


@pytest.mark.parametrize(
    "text",
    [
        "5",
        '{"format_version": 1}',
        '{"format_version": 2, "projections": []}',
        "[{}]",
        '{"projections": [], "projections": []}',
    ],
)
def test_no_predictions(run: Path, text: str) -> None:
    (run / PREDICTIONS_FILE).write_text(text)
    with pytest.raises(FileError, match=r"^predictions .*predictions\.json"):
        scored(run)


def test_written_again_it_stays(run: Path) -> None:
    """It says when that was predicted first; other predictions replace it."""
    path = run / PREDICTIONS_FILE
    before, (of, _) = path.read_bytes(), Predicted.read(path)
    write_predictions(run, of.projections)
    assert path.read_bytes() == before
    write_predictions(run, [])
    assert content(run)["projections"] == []
    path.write_text("[")  # half a file
    write_predictions(run, of.projections)
    assert not Predicted.read(path)[1]


def test_of_the_execution_that_was_trained(tmp_path: Path) -> None:
    """A run in half precision is predicted by its laws; where there are none a note says so."""
    name = "vgg16-mini"
    both, alone = two_executions("bfloat16"), full_machine()
    half = training(
        [0.02] * 8, model=name, batch_per_rank=4, execution="bfloat16", optimizer="momentum"
    )
    for parameters, predicted_in in ((both, ["bfloat16"]), (alone, [])):
        parameters.write(tmp_path / PARAMETERS_FILE)
        source = read_signed(tmp_path / PARAMETERS_FILE)
        found = predictions_of(tmp_path, source, Machine(source.parameters), [half], nightly=False)
        assert [of.execution for of in found.projections] == predicted_in
        told = [note for note in found.notes if "no times of layers in bfloat16" in note]
        assert bool(told) == (not predicted_in)
    division = half.header.division
    whole, other = (
        projected(Machine(both), spec(name), division, execution=run)
        for run in ("float32", "bfloat16")
    )
    assert whole.total != other.total
    assert project(spec(name).run_as("bfloat16"), division, both) == other
    # and made again as what it is
    both.write(tmp_path / PARAMETERS_FILE)
    write_predictions(tmp_path, [other])
    source = read_signed(tmp_path / PARAMETERS_FILE)
    record = Predicted.read(tmp_path / PREDICTIONS_FILE)
    kept = _Kept(*record, source, tmp_path)
    kept.check(record[0].projections[0], "it", Machine(source.parameters))
    assert kept.right == [other] and kept.wrong() == []
