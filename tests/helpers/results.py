"""What became of each test of a run, in one JSON file that is whole at any time.

A pytest plugin (`-p tests.helpers.results --results FILE`) and its reader. A run is several processes of
pytest: the first only collects, and so lists all tests; each of the others passes over those that have
run, so that it goes on where another one ended.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from calib.foundation.files import write_json

NOT_RUN, UNFINISHED = "not run", "unfinished"


@dataclass
class Results:
    """The file: when the run began, on what machine, and its tests by name, in their order."""

    path: Path
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))
    machine: dict[str, Any] = field(default_factory=dict)
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Those of an earlier process."""
        found = json.loads(path.read_text())
        tests = {test["name"]: test for test in found["tests"]}
        return cls(path, datetime.fromisoformat(found["begun"]), found["machine"], tests)

    def write(self) -> None:
        """Replace the file."""
        content = {
            "begun": self.begun.isoformat(),
            "seconds": (datetime.now(UTC) - self.begun).total_seconds(),
            "counts": Counter(test["outcome"] for test in self.tests.values()),
            "machine": self.machine,
            "tests": list(self.tests.values()),
        }
        write_json(self.path, content)

    def add(self, name: str, outcome: str, message: str = "") -> None:
        """A test, of which nothing else is known yet."""
        self.tests[name] = {
            "name": name,
            "outcome": outcome,
            "seconds": 0.0,
            "message": message,
            "properties": {},
        }

    def under(self, paths: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """The tests in these files and folders."""
        return (test for test in self.tests.values() if test["name"].startswith(paths))


class Recorder:
    """The hooks of pytest that keep the file."""

    def __init__(self, path: Path) -> None:
        self.results = Results.read(path)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out what has run; list what is to."""
        ran = {name for name, test in self.results.tests.items() if test["outcome"] != NOT_RUN}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in ran])
        items[:] = [item for item in items if item.nodeid not in ran]
        for item in items:
            self.results.add(item.nodeid, NOT_RUN)
        self.results.write()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported fails as a test does."""
        if report.failed:
            self.results.add(report.nodeid, "failed", report.longreprtext)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """It is unfinished until it says otherwise."""
        self.results.tests[nodeid]["outcome"] = UNFINISHED
        self.results.write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of set-up, call and tear-down, the worst counts."""
        test = self.results.tests[report.nodeid]
        test["seconds"] += report.duration
        test["properties"] = {name: plain(value) for name, value in report.user_properties}
        if report.failed or (report.skipped and test["outcome"] != "failed"):
            test["outcome"], test["message"] = report.outcome, said(report)
        elif report.when == "call":
            test["outcome"] = "passed"
        if report.when == "teardown":
            self.results.write()


def said(report: pytest.TestReport) -> str:
    """The reason of a skip, or the traceback of a failure."""
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext


def plain(value: Any) -> Any:
    """A recorded property as JSON has it: what is no number, text, list or table is its text."""
    if isinstance(value, dict):
        return {str(key): plain(of) for key, of in value.items()}
    if isinstance(value, list | tuple):
        return [plain(of) for of in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def machine() -> dict[str, Any]:
    """This host with its GPUs and driver, and what PyTorch is built with."""
    from calib.microbench.probe import probe_host  # with MPI: in the process that collects alone

    found: dict[str, Any] = {"host": probe_host().model_dump(mode="json")}
    with suppress(ImportError):
        import torch

        found |= {"torch": torch.__version__, "cuda": torch.version.cuda}
        found["cudnn"] = torch.backends.cudnn.version()
        if torch.cuda.is_available():
            nccl: Any = torch.cuda.nccl
            found["nccl"] = ".".join(map(str, nccl.version()))
            found["gpus"] = [
                torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())
            ]
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, required=True, help="the file, which is there already")


def pytest_configure(config: pytest.Config) -> None:
    recorder = Recorder(config.getoption("--results"))
    if config.option.collectonly:
        recorder.results.machine = machine()
    config.pluginmanager.register(recorder, "results")
