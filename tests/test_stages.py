"""`make test`: no stage hides another, and one that broke off is no success."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests import stages
from tests.stages import Outcome, Stage, main, summary

# nothing of this project's own configuration
ALONE = ("-c", os.devnull, "-p", "no:cacheprovider")


def staged(monkeypatch: pytest.MonkeyPatch, folder: Path, **files: str) -> None:
    """A stage for each file, which holds this text."""
    found = []
    for name, text in files.items():
        path = folder / f"test_{name}.py"
        path.write_text(text)
        found.append(Stage(name, (*ALONE, f"--rootdir={folder}", str(path))))
    monkeypatch.setattr(stages, "STAGES", tuple(found))


def test_all_stages_run_and_one_summary_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    staged(
        monkeypatch,
        tmp_path,
        broken="import nowhere_at_all\n",
        failing="def test_a():\n    assert 0\n\ndef test_b():\n    pass\n",
        skipping="import pytest\n\n@pytest.mark.skip\ndef test_a():\n    pass\n",
        good="def test_a():\n    pass\n\ndef test_b():\n    pass\n",
    )
    assert main([]) == 1
    *lines, last = capfd.readouterr().out.splitlines()[-7:]
    assert [line.split()[:6] for line in lines[:4]] == [
        ["broken", "0", "passed", "1", "failed", "0"],
        ["failing", "1", "passed", "1", "failed", "0"],
        ["skipping", "0", "passed", "0", "failed", "1"],
        ["good", "2", "passed", "0", "failed", "0"],
    ]
    assert [line.split()[-1] for line in lines[:4]] == ["FAILED", "FAILED", "ok", "ok"]
    assert lines[4:] == ["FAILED test_broken.py", "FAILED test_failing.py::test_a"]
    assert last == "3 passed, 2 failed, 1 skipped"


def test_arguments_choose_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A stage without the chosen tests is fine; a choice that no stage has is a typing mistake."""
    good = "def test_a():\n    pass\n\ndef test_b():\n    pass\n"
    staged(monkeypatch, tmp_path, first=good, second=good.replace("test_a", "test_c"))
    assert main(["-k", "test_c"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"
    assert main(["-k", "nothing_like_it"]) == 1
    assert capfd.readouterr().out.splitlines()[-2] == "no test was chosen"


def test_a_stage_that_ends_before_its_report_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    staged(monkeypatch, tmp_path, dies="import os\n\ndef test_a():\n    os._exit(9)\n")
    assert main([]) == 1
    assert "pytest ended with status 9" in capfd.readouterr().out


def test_a_failed_stage_without_a_failed_test_is_no_success() -> None:
    """As --cov-fail-under or an internal error of pytest."""
    stage = Stage("one", ())
    lines, status = summary([Outcome(stage, 3, 5, 0, (), 61.0)])
    assert status == 1 and lines[0].endswith("1:01  pytest ended with status 3")
    assert summary([Outcome(stage, 0, 5, 0, (), 61.0)])[1] == 0
