"""`calib train --plan`: which plans are run, what is refused before any rank starts, what is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.calib import inside
from tests.calib.running import calib, refused
from tests.training.launching import needs_mpiexec

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.layout.partitions import Configuration, why_impossible
from calib.oracle.projection import PhaseTime
from calib.search.plan import Certificate, PlanLayer, PlanStage, Searched, SearchedPlan
from calib.training.job import Settings, TrainingJob
from calib.training.plans.division import LayerwiseDivision
from calib.training.run.record import TrainingRun
from calib.training_runs.options import model_layers
from calib.training_runs.plan import PlanFile, comparison
from calib.training_runs.runs import TrainingRequest

VGG = model_layers("vgg16-mini")
TIME = PhaseTime(value=0.05, low=0.04, high=0.06, basis="measured")


def layerwise(choose: Callable[[Any], Configuration], p: int = 2, **more: Any) -> SearchedPlan:
    """A plan of vgg16-mini on p devices; by samples where what is chosen cannot be."""
    layers = []
    for layer in VGG.layers:
        of = choose(layer)
        if why_impossible(layer.shape, of, 8):
            of = Configuration(p)
        layers.append(
            PlanLayer(name=layer.name, kind=layer.shape.kind, choice=str(of), degrees=of.degrees)
        )
    given: dict[str, Any] = {"space": "layerwise", "layers": tuple(layers)}
    return plan_of(p, **(given | more))


def pipeline(p: int = 2, at: int = 10, **more: Any) -> SearchedPlan:
    """Two stages of vgg16-mini."""
    n = len(VGG.layers)
    stages = tuple(
        PlanStage(first=a, stop=b, replicas=1, seconds=0.02) for a, b in ((0, at), (at, n))
    )
    given: dict[str, Any] = {
        "space": "pipeline",
        "layers": (),
        "stages": stages,
        "details": {"microbatches": "4", "schedule": "1f1b"},
    }
    return plan_of(p, **(given | more))


def plan_of(p: int, **more: Any) -> SearchedPlan:
    given: dict[str, Any] = {
        "method": "by hand",
        "model": "vgg16-mini",
        "nodes": 1,
        "devices_per_node": p,
        "batch": 8,
        "form": "measured",
        "phases": {"compute": TIME},
        "total": TIME,
        "bytes_per_device": 0,
        "searched": Searched(
            evaluated=0, log10_space=0.0, tables_seconds=0.0, seconds=0.0, stopped="complete"
        ),
        "certificate": Certificate(kind="none", why="by hand"),
        "parameters": "nobody's",
    }
    return SearchedPlan(**(given | more))


def asked(plan: SearchedPlan, path: Path) -> TrainingRequest:
    plan.write(path)
    found = PlanFile.read(path)
    return TrainingRequest(
        "vgg16-mini", "serial", [], plan.p, plan.batch or 1, Settings(), None, "local", plan=found
    )


def by_samples(layer: Any) -> Configuration:
    return Configuration(2)


def test_a_plan_is_the_division(tmp_path: Path) -> None:
    plan = layerwise(lambda layer: Configuration(channel=2))
    ((job, path),), reasons = asked(plan, tmp_path / "plan.json").runs()
    division = job.division
    assert isinstance(division, LayerwiseDivision) and not reasons and path.name == "run.jsonl"
    assert (division.p, division.batch, division.strategy) == (2, 8, "layerwise")
    assert division.configurations[0] == Configuration(channel=2)
    assert division.configurations[-1] == Configuration(2)
    assert TrainingJob.model_validate_json(job.model_dump_json()) == job


def test_a_pipeline_is_the_strategy(tmp_path: Path) -> None:
    ((job, _),), _ = asked(pipeline(), tmp_path / "plan.json").runs()
    expected = Division("pipeline", 2, 8, segments=4, schedule="1f1b", boundaries=(10,))
    assert job.division == expected


STAGE = PlanStage(first=0, stop=len(VGG.layers), replicas=2, seconds=0.02)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (plan_of(2, space="sbp", layers=()), "a plan of the space sbp cannot be trained"),
        (pipeline(batch=None), "the plan does not say its batch, so it cannot be trained"),
        (layerwise(by_samples, layers=()), "the plan's layers are not those of vgg16-mini"),
        (layerwise(by_samples, batch=7), "2 does not divide the batch of 7 samples"),
        (layerwise(lambda layer: Configuration(4), p=2), "4 parts are more than the 2 devices"),
        (pipeline(stages=(STAGE,)), "replicated stages cannot be trained"),
        (
            pipeline(details={"recompute": "yes"}),
            "forwards again (recompute=yes) cannot be trained",
        ),
        (pipeline(p=3), "2 stages on 3 devices"),
        (pipeline(details={"schedule": "interleaved"}), "training has no schedule 'interleaved'"),
        (pipeline(details={"microbatches": "many"}), "microbatches=many is not a whole number"),
    ],
)
def test_a_plan_that_cannot_be_trained_is_refused_in_one_line(
    tmp_path: Path, plan: SearchedPlan, words: str
) -> None:
    plan.write(tmp_path / "plan.json")
    assert words in refused(inside.calib(tmp_path, "train --plan plan.json"))


def test_uneven_and_unknown_cuts_are_refused(tmp_path: Path) -> None:
    content = layerwise(by_samples).model_dump(mode="json")
    for degrees, words in (
        ({"channel": 3}, "cannot be cut by channel=3: 3 does not divide its"),
        ({"time": 2}, "unknown dimension 'time'"),
        ({"sample": 0}, "degrees.sample: must be greater than or equal to 1"),
    ):
        content["layers"][0]["degrees"] = degrees
        content["devices_per_node"] = 3
        (tmp_path / "plan.json").write_text(json.dumps(content))
        assert words in refused(inside.calib(tmp_path, "train --plan plan.json"))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"space": "layerwise"}', '{"format_version": 99}']
)
def test_what_is_no_plan_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    assert "plan.json" in refused(inside.calib(tmp_path, "train --plan plan.json"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--strategy", "data"], "leave out --strategy"),
        (["-p", "2"], "leave out -p"),
        (["--batch", "8"], "leave out --batch"),
        (["--segments", "2"], "leave out the options of a strategy"),
        (["--optimizer", "adam"], "the plan is for the optimizer momentum, not adam"),
        (["--sync-batch-norm"], "synchronized batch norm and Distributed"),
        (["--execution", "bfloat16-mixed"], "in one item type"),
        (["--execution", "float32+channels_last"], "in one item type, without channels_last"),
        (["--accumulate", "2"], "leave out the options of a strategy"),
        (["--model", "alexnet-mini"], "the plan's layers are not those of alexnet-mini"),
    ],
)
def test_options_that_a_plan_leaves_no_room_for(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    layerwise(by_samples).write(tmp_path / "plan.json")
    assert words in refused(inside.calib(tmp_path, "train", "--plan", "plan.json", *arguments))


def test_no_plan_and_no_model(tmp_path: Path) -> None:
    assert "does not exist" in refused(inside.calib(tmp_path, "train --plan no.json"))
    assert "give a --model, or a --plan" in refused(inside.calib(tmp_path, "train"))


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
def test_a_plan_is_run_and_its_prediction_told(tmp_path: Path) -> None:
    """From plan.json to run.jsonl, and predicted beside measured."""

    def choose(layer: Any) -> Configuration:
        spatial = len(layer.shape.output_shape) > 1
        return Configuration(spatial=(2,)) if spatial else Configuration(channel=2)

    plan = layerwise(choose)
    plan.write(tmp_path / "plan.json")
    done = calib(tmp_path, "train", "--plan", "plan.json", "--iterations", "6", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    run = TrainingRun.read(tmp_path / "run.jsonl")
    head = run.header
    assert (head.strategy, head.exchange, len(head.plan)) == ("layerwise", "flat", 64)
    assert head.layout == "31 x height=2; 8 x channel=2; sample=2"
    assert head.gradient_difference is not None and head.gradient_difference < 1e-10
    file = PlanFile.read(tmp_path / "plan.json")
    assert found["plan"] == json.loads(json.dumps(comparison(file, run)))
    measured = found["plan"]["measured_s"]
    assert found["plan"]["accuracy"] == pytest.approx(1.0 - abs(0.05 - measured) / measured)

    content = json.loads((tmp_path / "plan.json").read_text())
    content["total"].update(value=measured, low=measured, high=measured)
    (tmp_path / "plan.json").write_text(json.dumps(content))
    edited = comparison(PlanFile.read(tmp_path / "plan.json"), run)
    assert edited["predicted_s"] == measured and edited["accuracy"] is None
    assert edited["edited"] == "its signature is not that of its content"


def test_the_optimizer_is_the_plans() -> None:
    plan = plan_of(2, space="layerwise", layers=(), optimizer="adam")
    file = PlanFile(Path("plan.json"), plan, "")
    assert file.settings(Settings()).optimizer == "adam"
    with pytest.raises(InputError, match="for the optimizer adam, not sgd"):
        file.settings(Settings(optimizer="sgd"))
