"""How boards are set up and connected that are made up."""

from __future__ import annotations

import sys

import pytest
from tests.helpers.nvml import Board, nvml

from calib.microbench.machine.boards import activity_of, peers_of, state_of


def visible(monkeypatch: pytest.MonkeyPatch, *boards: Board) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(boards))


def test_state(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(
        "GPU-1",
        ecc=(True, False),
        compute_mode=3,
        pcie_generation=(1, 5),
        pcie_width=(8, 16),
        nvlinks=[6, 6, 0, 7],
        uncorrected_errors=2,
        rows_replaced=(1, 2),
        rows_failed=True,
    )
    visible(monkeypatch, board)
    expected = {
        "ecc": True,
        "ecc_pending": False,
        "persistence": True,
        "compute_mode": "exclusive process",
        "mig": False,
        "pcie_generation": 1,
        "pcie_generation_max": 5,
        "pcie_width": 8,
        "pcie_width_max": 16,
        "nvlinks": {"4.0": 2, "5.0": 1},
        "uncorrected_errors": 2,
        "repairs": 3,
        "repair_pending": True,
    }
    assert state_of("1") == expected
    board.refuses = {"nvmlDeviceGetEccMode", "nvmlDeviceGetTotalEccErrors"}
    without = {"ecc", "ecc_pending", "uncorrected_errors"}
    assert state_of("1") == {key: expected[key] for key in expected if key not in without}
    assert state_of("2") == activity_of("2") == {}


@pytest.mark.parametrize("refused", ["nvmlDeviceGetRemappedRows", "nvmlDeviceGetNothing"])
@pytest.mark.parametrize("pending", [False, True])
def test_repairs_of_rows_or_pages(
    monkeypatch: pytest.MonkeyPatch, refused: str, pending: bool
) -> None:
    """Boards before Ampere retire pages, later ones remap rows."""
    visible(monkeypatch, Board("GPU-1", rows_pending=pending, refuses={refused}))
    assert state_of("1")["repair_pending"] is pending


def test_a_mig_device_has_the_state_of_its_board(monkeypatch: pytest.MonkeyPatch) -> None:
    visible(monkeypatch, Board("GPU-1", slices=["MIG-2"], pcie_width=(4, 16)))
    assert state_of("2")["mig"] is True and state_of("2")["pcie_width"] == 4


def test_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    visible(monkeypatch, Board("GPU-1", reasons={"hardware_thermal"}, processes=[7, 8]))
    expected = {"index": 0, "event_reasons": ["hardware_thermal"], "processes": 2}
    assert activity_of("1") == expected


def test_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two boards with NVLink, a third under the same host bridge, one of another machine."""
    visible(
        monkeypatch,
        Board("GPU-1", nvlinks=[6], paths={"GPU-2": 50, "GPU-3": 30}),
        Board("GPU-2", nvlinks=[6]),
        Board("GPU-3"),
    )
    assert peers_of("1", ["3", "1", "2", "9"]) == [
        {
            "uuid": "3",
            "path": "PHB",
            "p2p": {"read": "ok", "write": "ok", "nvlink": "not supported"},
        },
        {"uuid": "2", "path": "SYS", "p2p": {"read": "ok", "write": "ok", "nvlink": "ok"}},
    ]
    assert peers_of("3", ["1"])[0].keys() == {"uuid", "p2p"}, "no topology is known"
    assert peers_of("9", ["1"]) == []
