"""Every test draws the same examples in every run: a failure can be repeated as it was.

`--files-marked NAME` (of `make test`) leaves out the files that do not say `mark.NAME`: importing all
of them takes 10 s, and only a few hold tests that start ranks. A mark must therefore stand in the file
of its test, which every run looks after.
"""

from __future__ import annotations

import gc
import os
import signal
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("seeded", derandomize=True, deadline=None)
settings.load_profile("seeded")

# tables are as wide as a pipe's, whatever xdist (80) or the tester's terminal says
os.environ.pop("COLUMNS", None)

# in the background shells ignore it, and all that a test starts would, too
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # until all is imported

MARKS = ("gpu", "mpi", "waits", "e2e", "cluster")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--files-marked",
        action="append",
        default=[],
        choices=MARKS,
        help="collect only the files that say mark.NAME; more than once: one of the names",
    )


@cache
def marks_said(path: Path) -> set[str]:
    """The marks of ours that a file names."""
    text = path.read_text(encoding="utf-8")
    return {name for name in MARKS if f"mark.{name}" in text}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """None: as pytest decides."""
    wanted = set(config.getoption("--files-marked"))
    if not wanted or collection_path.suffix != ".py" or wanted & marks_said(collection_path):
        return None
    return True


def pytest_collection_finish() -> None:
    """What was imported stays for good: no collection of garbage goes through it, then or later.

    And rarely through the rest: an eighth of the CPU time of the oracle's and the fits' tests.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before anything is left out: a mark that the file does not say would never be run."""
    for item in items:
        unsaid = {mark.name for mark in item.iter_markers()} & set(MARKS) - marks_said(item.path)
        if unsaid:
            raise pytest.UsageError(f"{item.path} must say mark.{unsaid.pop()}: see {__file__}")
    # what takes minutes begins first, or it would be alone at the end
    items.sort(key=lambda item: item.get_closest_marker("e2e") is None)
