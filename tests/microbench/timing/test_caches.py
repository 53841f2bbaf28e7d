"""Sizes of caches from files as Linux writes them, and that evicting works through every line."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import calib.microbench.timing.caches
from calib.microbench.timing.caches import (
    CAP_BYTES,
    FALLBACK_BYTES,
    evict,
    last_level_bytes,
    parse_size,
    scratch,
    scratch_bytes,
)


@pytest.fixture(autouse=True)
def no_scratch() -> Iterator[None]:
    """Every test makes its own buffer and leaves none: it may be 256 MiB."""
    scratch.cache_clear()
    yield
    scratch.cache_clear()


def caches(directory: Path, *sizes: str) -> Path:
    for number, size in enumerate(sizes):
        (directory / f"index{number}").mkdir()
        (directory / f"index{number}" / "size").write_text(size)
    return directory


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("48K\n", 49152),
        ("2048K\n", 2 << 20),
        ("266240K", 260 << 20),
        ("32M", 32 << 20),
        ("1G\n", 1 << 30),
        ("512", 512),
        ("0K", 0),
    ],
)
def test_parse_size(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "K", "32 MB", "unknown"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


def test_the_last_level_is_the_largest(tmp_path: Path) -> None:
    """index0 data, index1 instructions, index2, index3: by size, not by number."""
    assert last_level_bytes(caches(tmp_path, "48K\n", "32K\n", "266240K\n", "2048K\n")) == 260 << 20


def test_unreadable_sizes_are_passed_over(tmp_path: Path) -> None:
    assert last_level_bytes(caches(tmp_path, "48K\n", "\n", "what\n")) == 48 << 10
    (tmp_path / "index7" / "size").mkdir(parents=True)
    assert last_level_bytes(tmp_path) == 48 << 10


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    assert last_level_bytes(tmp_path) is None
    assert last_level_bytes(tmp_path / "nothing") is None
    assert last_level_bytes(caches(tmp_path, "\n")) is None


def test_how_much_is_worked_through() -> None:
    assert scratch_bytes(None) == FALLBACK_BYTES == 64 << 20
    assert scratch_bytes(32 << 20) == 64 << 20
    assert scratch_bytes(128 << 20) == scratch_bytes(1 << 40) == CAP_BYTES == 256 << 20


def test_the_core_counts_and_not_the_socket(tmp_path: Path) -> None:
    """An AMD EPYC virtual machine: ten dies of 32 MiB, which getconf adds up to 320 MiB."""
    epyc = caches(tmp_path, "32K\n", "32K\n", "1024K\n", "32768K\n")
    (epyc / "index3" / "shared_cpu_list").write_text("0-1\n")
    assert last_level_bytes(epyc) == 32 << 20
    assert scratch_bytes(last_level_bytes(epyc)) == 64 << 20


def test_every_page_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer of a 2 MiB cache: each evict adds one to all of it, so to every line and page."""
    monkeypatch.setattr(calib.microbench.timing.caches, "last_level_bytes", lambda: 2 << 20)
    buffer = scratch()
    assert buffer.nbytes == 4 << 20 and not buffer.any()
    for number in (1, 2, 3):
        evict()
        assert scratch() is buffer, "made once"
        pages = buffer.view(np.uint8).reshape(-1, mmap.PAGESIZE)[:, :8].copy().view(np.uint64)
        assert (pages == number).all()
        assert (buffer == number).all()
