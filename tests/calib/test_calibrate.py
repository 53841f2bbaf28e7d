"""What a calibration trains, and so predicts before."""

from __future__ import annotations

from calib.calibrate import points_of
from calib.foundation.division import Division


def test_one_run_of_all_ranks_overlaps_its_exchange() -> None:
    plain = [Division("serial", 1, 4), Division("data", 1, 4), Division("data", 2, 8)]
    both = [(model, division) for model in ("vgg16-mini", "cosmoflow-mini") for division in plain]
    overlapped = ("vgg16-mini", Division("data", 2, 8, overlap=True))
    found = points_of(["vgg16-mini", "cosmoflow-mini"], 4, [1, 2], True)
    assert found == [*both[:3], overlapped, *both[3:]]
    assert points_of(["vgg16-mini", "cosmoflow-mini"], 4, [1, 2], False) == both
    alone = points_of(["vgg16-mini"], 4, [1], True)
    assert alone == [("vgg16-mini", division) for division in plain[:2]]
