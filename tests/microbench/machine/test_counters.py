"""Counters of boards that are made up, under drivers of several years."""

from __future__ import annotations

import pytest
from tests.helpers.nvml import Board, nvml

from calib.microbench.machine.counters import energy_j, held_back_s, slowdown_fields

HELD = {
    "software_power_cap": 1.5,
    "thermal": 0.25,
    "software_thermal": 0.25,
    "hardware_thermal": 0.0,
    "hardware_power_brake": 1e-6,
}
OLD = {word: HELD[word] for word in ("software_power_cap", "thermal")}


def hot(**more: object) -> Board:
    return Board("GPU-1", held_back_s=dict(HELD), energy_j=1234.5, **more)


@pytest.mark.parametrize(
    ("driver", "first"),
    [
        ("535.183.01", None),
        ("570.172.08", None),
        ("575.51.03", 251),
        ("580.65.06", 251),
        ("580.76.05", None),  # between two that are known
        ("580.82.07", 269),
        ("580.126.09", 269),
        ("615.71.01", 269),
        ("", None),
    ],
)
def test_fields_were_moved_between_drivers(driver: str, first: int | None) -> None:
    found = list(slowdown_fields(driver).values())
    assert found == ([] if first is None else [first, first + 1, first + 2])


@pytest.mark.parametrize(
    ("driver", "known"), [("535.183.01", OLD), ("580.65.06", HELD), ("580.82.07", HELD)]
)
def test_seconds_held_back(driver: str, known: dict[str, float]) -> None:
    board = hot()
    assert held_back_s(nvml([board], driver=driver), board) == known


def test_a_board_without_fields_has_the_older_counters() -> None:
    board = hot(refuses={"nvmlDeviceGetFieldValues"})
    assert held_back_s(nvml([board]), board) == OLD
    board.refuses.add("nvmlDeviceGetViolationStatus")
    assert held_back_s(nvml([board]), board) == {}


def test_energy() -> None:
    board = hot()
    assert energy_j(nvml([board]), board) == 1234.5
