"""reports.figures.machine_speed: the references of a run beside those of the calibration."""

from __future__ import annotations

import json

import pytest
from tests.reports.records import look

from calib.fitting.parameters.speed import References, Speed, SpeedLaw
from calib.foundation.records import Estimate
from calib.reports.figures.machine_speed import (
    DISTURBED,
    QUIET,
    SLOW,
    Watched,
    machine_speed_figure,
    machine_speed_words,
    slowness,
)

T = 1.8e9
LAUNCH = Watched(
    "launch 0",
    2,
    [look(unix_s=T + k, arithmetic_s=of * 1e-3) for k, of in enumerate((1.0, 1.0, 1.1))],
)
TRAINING = Watched(
    "vgg16-mini <b>data</b> p=2",
    2,
    [
        look("cores", "slow", unix_s=T + 10, arithmetic_s=2e-3, memory_s=3e-3),
        look("slow", unix_s=T + 12, window_s=2.0, arithmetic_s=1.5e-3),
    ],
    training=True,
)
WATCHED = [LAUNCH, TRAINING]


def test_beside_the_calibration() -> None:
    known = References(ranks=2, looks=9, seconds={"arithmetic_s": Estimate.exactly(0.5e-3)})
    law = SpeedLaw(of="compute", exponents={"arithmetic_s": Estimate.exactly(0.5)}, n=9)
    found = slowness(WATCHED, Speed(references=[known], laws=[law]))
    ratios = [of.ratio for of in found if of.reference == "arithmetic_s"]
    assert ratios == pytest.approx([2.0, 2.0, 2.2, 4.0, 3.0])
    [memory] = [of.ratio for of in found if of.reference == "memory_s"]
    assert memory == 1.0  # not calibrated: beside its own median
    assert slowness(WATCHED)[3].ratio == pytest.approx(2.0 / 1.1)
    # what nothing follows is beside its own median, too
    assert slowness(WATCHED, Speed(references=[known])) == slowness(WATCHED)
    assert slowness([]) == []


def test_the_figure() -> None:
    figure = machine_speed_figure(WATCHED, slowness(WATCHED))
    json.dumps(figure)
    arithmetic, memory = figure["data"]
    assert (arithmetic["name"], memory["name"]) == ("arithmetic", "memory")
    assert arithmetic["marker"]["color"] == [QUIET, QUIET, QUIET, DISTURBED, SLOW]
    assert "&lt;b&gt;" in arithmetic["text"][3] and "other processes" in arithmetic["text"][3]
    [band] = figure["layout"]["shapes"]
    assert (band["x0"], band["x1"]) == ("2027-01-15 08:00:09.0", "2027-01-15 08:00:12.0")


def test_the_words() -> None:
    words = machine_speed_words(WATCHED, slowness(WATCHED))
    assert words.startswith(
        "5 looks at the machine, 1 training as bands: arithmetic took 1.00 times"
    )
    assert words.endswith("Others disturbed 1 of the looks.")
