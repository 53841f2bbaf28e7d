"""Files that options name for writing: what is read, or was measured, is never replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from calib.foundation.errors import InputError
from calib.terminal.printing import MEASURED, check_targets


@pytest.fixture
def parameters(tmp_path: Path) -> Path:
    path = tmp_path / "parameters.json"
    path.write_text("{}")
    return path


def test_new_files_and_old_results_may_be_written(tmp_path: Path, parameters: Path) -> None:
    (tmp_path / "page.html").write_text("old")
    there = {"-o": tmp_path / "new.json", "--plot": tmp_path / "page.html", "--csv": None}
    check_targets(there, parameters)
    check_targets({"-o": tmp_path / "samples.parquet"}, parameters)  # nothing is lost there


def test_a_file_that_is_read(tmp_path: Path, parameters: Path) -> None:
    (tmp_path / "link").symlink_to(parameters)
    for path in (parameters, tmp_path / "x" / ".." / "parameters.json", tmp_path / "link"):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(InputError, match=r"--plot .* is one of the files that are read"):
            check_targets({"--plot": path}, parameters)


@pytest.mark.parametrize("name", sorted(MEASURED))
def test_what_was_measured(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(InputError, match="holds what was measured"):
        check_targets({"-o": tmp_path / name})


def test_one_file_for_two_options(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--csv and --markdown name the same file"):
        check_targets({"--csv": tmp_path / "x", "--markdown": tmp_path / "." / "x"})


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory"):
        check_targets({"-o": tmp_path})
