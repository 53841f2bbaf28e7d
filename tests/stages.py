"""`make test`: every stage of the tests, a line for each at the end, and one summary.

`python -m tests.stages [PYTEST OPTIONS]`. All stages run whatever an earlier one found. Exits with 1
where a test failed, a stage did not end as it should, or no test was run at all.

Tests that start ranks have the cores to themselves, but for those of whose times nothing is asked:
three files of them run at a time. All others share the cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

OK, NONE_CHOSEN = 0, 5  # pytest.ExitCode
INTERRUPTED = 130


@dataclass(frozen=True)
class Stage:
    """Tests that run under the same options of pytest and variables of the environment."""

    name: str
    options: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


STAGES = (
    Stage(
        "without ranks",
        (
            "-n",
            "logical",
            "--maxprocesses",
            "8",
            "--dist",
            "worksteal",
            "-m",
            "not (gpu or mpi or cluster or waits)",
        ),
        (("OMP_NUM_THREADS", "1"),),
    ),
    Stage(
        "waiting for ranks or a browser",
        (
            "-n",
            "3",
            "--dist",
            "loadfile",
            "--no-loadscope-reorder",  # which would begin with the files of many small tests
            "--files-marked",
            "waits",
            "-m",
            "waits and not gpu",
        ),
        (("OMP_NUM_THREADS", "1"),),  # ranks of several files share the cores
    ),
    Stage(
        "ranks alone on the cores",
        (
            "--files-marked",
            "mpi",
            "--files-marked",
            "cluster",
            "-m",
            "(mpi or cluster) and not (gpu or waits)",
        ),
    ),
)


@dataclass(frozen=True)
class Outcome:
    """How a stage ended: its exit code, counts of tests, the names of those that failed."""

    stage: Stage
    status: int
    tests: int
    skipped: int
    failed: tuple[str, ...]
    seconds: float
    not_run: int = 0

    @property
    def passed(self) -> int:
        """Tests that ran and did not fail."""
        return self.tests - self.skipped - len(self.failed) - self.not_run

    @property
    def problem(self) -> str:
        """What is wrong although no test says so: pytest itself failed."""
        if self.failed or self.status in (OK, NONE_CHOSEN):
            return ""
        return f"pytest ended with status {self.status}"

    @property
    def line(self) -> str:
        """One line for a person."""
        minutes, seconds = divmod(round(self.seconds), 60)
        left = f"{self.not_run} not run" if self.not_run else "ok"
        verdict = self.problem or ("FAILED" if self.failed else left)
        return (
            f"{self.stage.name:<31} {self.passed:>5} passed {len(self.failed):>3} failed "
            f"{self.skipped:>3} skipped  {minutes:>2}:{seconds:02}  {verdict}"
        )


def run(stage: Stage, arguments: list[str], folder: Path) -> Outcome:
    """Run a stage under pytest, whose output goes where this program's goes."""
    report = folder / "junit.xml"
    report.unlink(missing_ok=True)
    begun = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", *stage.options, f"--junitxml={report}"]
    environment = {**os.environ, **dict(stage.environment)}
    status = subprocess.run([*command, *arguments], env=environment, check=False).returncode
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    return Outcome(
        stage,
        status,
        len({_name(case) for case in cases}),
        sum(case.find("skipped") is not None for case in cases),
        tuple(
            dict.fromkeys(
                _name(case)
                for case in cases
                if {child.tag for child in case} & {"failure", "error"}
            )
        ),
        time.monotonic() - begun,
    )


def _name(case: ElementTree.Element) -> str:
    """As pytest names a test, so that it can be run again; a file that did not import has none."""
    module, test = case.get("classname", ""), case.get("name", "")
    return f"{module.replace('.', '/')}.py::{test}" if module else f"{test.replace('.', '/')}.py"


def summary(outcomes: list[Outcome]) -> tuple[list[str], int]:
    """The lines to print at the end, and the exit code."""
    failed = [name for outcome in outcomes for name in outcome.failed]
    ran = sum(outcome.tests for outcome in outcomes)
    passed, skipped, not_run = (
        sum(getattr(outcome, kind) for outcome in outcomes)
        for kind in ("passed", "skipped", "not_run")
    )
    lines = [outcome.line for outcome in outcomes] + [f"FAILED {name}" for name in failed]
    if not ran:
        lines.append("no test was chosen")
    left = f", {not_run} not run" if not_run else ""
    lines.append(f"{passed} passed, {len(failed)} failed, {skipped} skipped{left}")
    wrong = failed or not ran or any(outcome.problem for outcome in outcomes)
    return lines, int(bool(wrong))


def main(arguments: list[str]) -> int:
    """Run all stages; `arguments` are passed on to pytest."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="calib-stages-") as folder:
        for stage in STAGES:
            try:
                outcomes.append(run(stage, arguments, Path(folder)))
            except KeyboardInterrupt:
                return INTERRUPTED
    lines, status = summary(outcomes)
    print("\n" + "\n".join(lines), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
