"""Where a calibration goes: today's unfinished directory, else a new one; `latest` beside it."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from calib.foundation.errors import FileError
from calib.foundation.run_files import REPORT_JSON
from calib.rundir import RUNS, default_run, link_latest, training_path, training_runs

DAY = date(2026, 11, 21)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def finish(run: Path) -> None:
    run.mkdir(parents=True, exist_ok=True)
    (run / REPORT_JSON).write_text("{}")


def test_an_unfinished_run_is_gone_on_with_and_a_finished_one_is_kept() -> None:
    first = default_run("box", DAY)
    assert first == RUNS / "2026-11-21-box"
    first.mkdir(parents=True)
    assert default_run("box", DAY) == first
    finish(first)
    second = default_run("box", DAY)
    assert second == RUNS / "2026-11-21-box-2"
    finish(second)
    assert default_run("box", DAY) == RUNS / "2026-11-21-box-3"
    assert default_run("other", DAY) == RUNS / "2026-11-21-other"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a b", "a-b"),
        ("../../etc", "etc"),
        ("..", "cluster"),
        ("", "cluster"),
        ("/", "cluster"),
        ("-n", "n"),
        ("Blüte", "Bl-te"),
        ("node_1.site", "node_1.site"),
    ],
)
def test_odd_names_stay_in_runs(name: str, expected: str) -> None:
    assert default_run(name, DAY) == RUNS / f"2026-11-21-{expected}"


def test_latest_follows_the_newest() -> None:
    for name in ("a", "b"):
        (Path("runs") / name).mkdir(parents=True)
        link_latest(Path("runs") / name)
        assert Path("runs/latest").readlink() == Path(name)
    assert sorted(path.name for path in Path("runs").iterdir()) == ["a", "b", "latest"]


def test_a_directory_called_latest_is_the_users() -> None:
    Path("runs/latest").mkdir(parents=True)
    Path("runs/a").mkdir()
    link_latest(Path("runs/a"))
    assert not Path("runs/latest").is_symlink()
    assert sorted(path.name for path in Path("runs").iterdir()) == ["a", "latest"]


def test_going_on_by_the_name_latest_keeps_the_link() -> None:
    Path("runs/a").mkdir(parents=True)
    link_latest(Path("runs/a"))
    link_latest(Path("runs/latest"))
    assert Path("runs/latest").resolve() == Path("runs/a").resolve()


def test_training_runs() -> None:
    run = Path("run")
    with pytest.raises(FileError, match="does not exist"):
        training_runs(run)
    run.mkdir()
    with pytest.raises(FileError, match="no training runs"):
        training_runs(run)
    paths = [training_path(run, "vgg16-mini", "data", p) for p in (2, 1)]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_text("")
    (paths[0].parent / "ranks.log").write_text("")
    assert training_runs(run) == sorted(paths)
