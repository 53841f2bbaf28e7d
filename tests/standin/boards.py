"""The GPUs of the stand-in, as NVML has them: in the order of the bus, which is not CUDA's."""

from __future__ import annotations

from tests.helpers.nvml import Board

NAME = "Stand-in GPU"
L2_BYTES = 8 << 20
MEMORY_BYTES = 1 << 30  # little, so that plans are for a slow GPU
UUIDS = ("aaaaaaaa-0000", "bbbbbbbb-1111")  # in CUDA's order, without NVML's prefix

BOARDS = [Board(f"GPU-{uuid}", NAME, MEMORY_BYTES) for uuid in reversed(UUIDS)]


def board_of(uuid: str) -> Board:
    """The board with a UUID as CUDA gives it."""
    return next(board for board in BOARDS if board.uuid == f"GPU-{uuid}")
