"""What a calibration trains, and so predicts before."""

from __future__ import annotations

from pathlib import Path

import pytest

from calib import calibrate as calibration
from calib.calibrate import CalibrationPoint, calibrate, points_of
from calib.foundation.division import Division
from calib.foundation.errors import InputError, MeasurementError
from calib.training.job import Settings, TrainingJob
from calib.training.models.specs import spec
from calib.training.run.record import TrainingRun

VGG, COSMOFLOW = map(spec, ("vgg16-mini", "cosmoflow-mini"))


def test_one_run_of_all_ranks_overlaps_its_exchange() -> None:
    plain = [Division("serial", 1, 4), Division("data", 1, 4), Division("data", 2, 8)]
    both = [CalibrationPoint(model, division) for model in (VGG, COSMOFLOW) for division in plain]
    overlapped = CalibrationPoint(VGG, Division("data", 2, 8, overlap=True))
    found = points_of([VGG, COSMOFLOW], 4, [1, 2], True)
    assert found == [*both[:3], overlapped, *both[3:]]
    assert points_of([VGG, COSMOFLOW], 4, [1, 2], False) == both
    alone = points_of([VGG], 4, [1], True)
    assert alone == [CalibrationPoint(VGG, division) for division in plain[:2]]


def test_strategies_by_name(tmp_path: Path) -> None:
    """All but serial and data on more ranks than one; what cannot be laid out is left out."""
    found = points_of([VGG], 4, [1, 2], True, strategies=("serial", "fully_sharded"))
    assert [point.division for point in found] == [
        Division("serial", 1, 4),
        Division("fully_sharded", 2, 8),
    ]
    found = points_of([VGG], 4, [1, 2], True, strategies=("filter", "pipeline", "data+filter"))
    assert [point.division for point in found] == [
        Division("filter", 2, 8),
        Division("pipeline", 2, 8, segments=4),
    ]
    (spatial,) = points_of([VGG], 4, [1, 2], True, strategies=("spatial",))
    assert spatial.division.grid == (2,)
    with pytest.raises(InputError, match="zigzag"):
        calibrate(tmp_path / "run", ranks=1, device="cpu", strategies=["data", "zigzag"])
    assert not (tmp_path / "run").exists()


def test_every_execution_has_all_points_and_files_of_its_own(tmp_path: Path) -> None:
    names = ("float32", "bfloat16+channels_last")
    once = points_of([VGG], 4, [1, 2], True)
    found = points_of([VGG], 4, [1, 2], True, names)
    assert found == [point._replace(execution=name) for name in names for point in once]
    files = [point.path(tmp_path).name for point in found]
    assert found[3].path(tmp_path, 2).name == "vgg16-mini-data-overlapped-p2-turn3.jsonl"
    assert len({*files}) == len(files) == 8
    assert files[3] == "vgg16-mini-data-overlapped-p2.jsonl"
    assert files[7] == "vgg16-mini-data-overlapped-p2-bfloat16+channels_last.jsonl"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tf32", "tf32 is arithmetic of CUDA devices; on a CPU take float32"),
        ("bfloat16+cuda_graph", "CUDA graphs are of GPUs; on a CPU leave"),
        ("half", "unknown item type 'half'"),
    ],
)
def test_what_the_device_cannot_run_is_refused_before_anything_is_done(
    tmp_path: Path, name: str, why: str
) -> None:
    with pytest.raises(InputError, match=why) as error:
        calibrate(tmp_path / "run", ranks=1, device="cpu", executions=["float32", name])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_kernel_that_an_execution_lacks_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one execution alone, the first failure ends the calibration."""
    done: list[str] = []

    def fake(path: Path, job: TrainingJob, launcher: str) -> TrainingRun:
        if job.settings.execution == "bfloat16":
            raise MeasurementError("no kernel")
        done.append(path.name)
        return TrainingRun.model_construct(header=None, iterations=[], end=None)

    monkeypatch.setattr(calibration, "train", fake)
    found = points_of([VGG], 4, [1], False, ("bfloat16", "float32"))
    failed = calibration._train(tmp_path, found, 2, Settings(), "", "local")
    names = ("vgg16-mini serial p=1 bfloat16", "vgg16-mini data p=1 bfloat16")
    assert failed == dict.fromkeys(names, "no kernel")
    alone, data = "vgg16-mini-serial-p1", "vgg16-mini-data-p1"
    assert done == [
        f"{alone}.jsonl",
        f"{data}.jsonl",
        f"{alone}-turn2.jsonl",
        f"{data}-turn2.jsonl",
    ]
    with pytest.raises(MeasurementError, match="no kernel"):
        calibration._train(tmp_path, found[:2], 2, Settings(), "", "local")
