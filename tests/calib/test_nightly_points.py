"""Which points a night trains, and what is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.helpers.filled import filled
from tests.oracle.handmade import mlp

from calib.foundation.errors import InputError
from calib.microbench.records.cluster import Cluster, Host, Level
from calib.night.history import machine_of
from calib.night.machine import refuse_other_device, refuse_other_parameters
from calib.night.points import NightPoint, of_calibration, points_of
from calib.planning.request import Request


def points(ranks: int = 4, **content: object) -> list[NightPoint]:
    return points_of(Request(**content), ranks, "mpiexec -n {n}", filled())[0]


def test_points_of_a_calibration() -> None:
    """Serial and data on one rank are the same work: how well a run repeats."""
    asked = Request(models=("vgg16-mini", "cosmoflow-mini"), strategies=("filter",), p=(1, 2, 8))
    found = points_of(of_calibration(asked, 4), 4, "local", filled())[0]
    assert [point.label for point in found] == [
        "vgg16-mini serial p=1",
        "vgg16-mini data p=1",
        "vgg16-mini data p=2",
        "vgg16-mini filter p=2",
        "cosmoflow-mini serial p=1",
        "cosmoflow-mini data p=1",
        "cosmoflow-mini data p=2",
        "cosmoflow-mini filter p=2",
    ]
    assert [point.division.batch for point in found] == [
        8,
        8,
        16,
        16,
        4,
        4,
        8,
        8,
    ]  # the models' own per rank
    assert found[2].file == "training/vgg16-mini-data-p2.jsonl"
    assert {point.optimizer for point in found} == {"momentum"}


def test_parameters_of_another_cluster_are_refused() -> None:
    """As of a merge of several clusters: nothing that is trained here could be scored."""
    host = Host(name="h", kernel="k", devices=[])
    here = Cluster(name="here", hosts=[host], levels=[Level(name="node", members=2, link="l")])
    of = filled()
    with pytest.raises(
        InputError, match=r"runs/cal/p.json is of the cluster filled \(0123456789abc"
    ):
        refuse_other_parameters(of, here, Path("runs/cal/p.json"))
    mine = of.provenance.model_copy(update={"cluster_fingerprint": here.fingerprint})
    refuse_other_parameters(of.model_copy(update={"provenance": mine}), here, Path("p.json"))


def test_points_of_a_plan() -> None:
    found = points(
        models=("vgg16-mini",),
        strategies=("data", "pipeline", "filter", "data+filter", "spatial"),
        p=(1, 4),
        batch=16,
        segments=8,
        optimizers=("adam",),
    )
    # on one rank, what is not data is serial, once
    assert [(point.label, point.division.batch, point.optimizer) for point in found] == [
        ("vgg16-mini data p=1", 16, "adam"),
        ("vgg16-mini serial p=1", 16, "adam"),
        ("vgg16-mini data p=4", 16, "adam"),
        ("vgg16-mini pipeline 8 micro-batches p=4", 16, "adam"),
        ("vgg16-mini filter p=4", 16, "adam"),
        ("vgg16-mini data+filter 2 groups of 2 p=4", 16, "adam"),
        ("vgg16-mini spatial p=4", 16, "adam"),
    ]
    pipeline = found[3].division
    assert (pipeline.segments, len(pipeline.boundaries)) == (8, 3)


def test_optimizers_have_files_of_their_own() -> None:
    found = points(
        models=("vgg16-mini",), strategies=("serial",), p=(1,), optimizers=("sgd", "adam")
    )
    assert [point.file for point in found] == [
        "training/vgg16-mini-serial-p1-sgd.jsonl",
        "training/vgg16-mini-serial-p1-adam.jsonl",
    ]
    assert len({point.label for point in found}) == 2
    assert [point.planned.label for point in found] == [point.label for point in found]


def test_executions_have_files_and_labels_of_their_own() -> None:
    """float32 has the names that it has alone; the calibration's request hands its executions on."""
    asked = Request(models=("vgg16-mini",), p=(1, 2), executions=("float32", "bfloat16"))
    found = points_of(of_calibration(asked, 2), 2, "local", filled())[0]
    assert [(point.label, point.file.removeprefix("training/")) for point in found[:2]] == [
        ("vgg16-mini serial p=1", "vgg16-mini-serial-p1.jsonl"),
        ("vgg16-mini serial p=1 bfloat16", "vgg16-mini-serial-p1-bfloat16.jsonl"),
    ]
    assert [point.execution for point in found] == ["float32", "bfloat16"] * 3
    assert len({point.file for point in found}) == len({point.label for point in found}) == 6


def test_what_cannot_be_divided_is_said() -> None:
    asked = Request(models=("vgg16-mini",), strategies=("data", "data+filter"), p=(3,))
    found, left_out = points_of(asked, 4, "local", filled())
    assert [point.label for point in found] == ["vgg16-mini data p=3"]
    assert [each.what for each in left_out] == ["vgg16-mini data+filter p=3"]
    assert "is not p1 x p2" in left_out[0].why


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ({"models": ("vgg17",), "p": (1,)}, "vgg17"),
        ({"models": ("hand.json",), "p": (1,)}, "hand is predicted from its layers alone"),
        ({"p": (1, 2, 8, 16)}, "asks for p = 8, 16, and there are 4 ranks"),
        ({"p": (2,), "strategies": ("serial",)}, "add 1 to p"),
        ({"p": (3,), "strategies": ("data+filter",)}, "is not p1 x p2"),
    ],
)
def test_refused(
    content: dict[str, object], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mlp([4, 3], "hand").write(Path("hand.json"))
    with pytest.raises(InputError, match=word):
        points(**content)


def test_a_calibration_for_more_than_there_is() -> None:
    with pytest.raises(InputError, match="for p = 8, and there are 4 ranks"):
        of_calibration(Request(p=(8,)), 4)


def test_a_plan_of_another_device_is_refused() -> None:
    parameters = filled(device_kind="cuda")
    refuse_other_device(Request(p=(1,), device="cuda"), parameters, Path("p.json"))
    with pytest.raises(InputError, match=r'asks for device = "cpu", and p\.json is of cuda'):
        refuse_other_device(Request(p=(1,)), parameters, Path("p.json"))


def test_gpus_and_cores_of_a_machine_have_a_history_each(tmp_path: Path) -> None:
    host = Host(name="h", kernel="k", devices=[])
    here = Cluster(name="here", hosts=[host], levels=[Level(name="node", members=2, link="l")])
    here.write(tmp_path / "cluster.json")
    assert machine_of(tmp_path) == here.machine == here.history("cpu")
    filled(device_kind="cuda").write(tmp_path / "parameters.json")
    assert machine_of(tmp_path) == here.history("cuda") != here.machine
