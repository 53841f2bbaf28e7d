"""`calib history` on a database made by hand: 40 nights, of which the 30th begins a step."""

from __future__ import annotations

import csv
import io
import json
from datetime import date, timedelta
from pathlib import Path

import pytest
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.reports.history_entries import accuracy, check, entry, large
from tests.reports.openmetrics import of, parsed

from calib.commands.history import MOST_SENTENCES
from calib.reports.history.store import History

NIGHTS, STEP = 40, 30
HOSTILE = "<b>\x1b[2J"


def wobble(k: int) -> float:
    """Noise of about 1% that is the same in every run."""
    return 1 + 0.01 * ((k * 7919) % 11 - 5) / 5


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """runs/calib.db: from the 30th night on all takes 10% longer; and a night of another machine."""
    folder = tmp_path_factory.mktemp("history") / "runs"
    folder.mkdir()
    with History.open(str(folder / "calib.db")) as history:
        for k in range(NIGHTS):
            day = date(2026, 1, 1) + timedelta(k)
            slow = 1.1 if k >= STEP else 1.0
            points = [
                accuracy(
                    f"{k:08x}{n:08x}",
                    0.1,
                    0.105 * slow * wobble(3 * k + n),
                    strategy=strategy,
                    model=model,
                )
                for n, (model, strategy) in enumerate(
                    [("vgg16-mini", "data"), ("vgg16-mini", "filter"), (HOSTILE, "data")]
                )
            ]
            history.record(
                entry(
                    1,
                    [] if k == 38 else points,
                    id=f"night-{k:04d}",
                    started=f"{day}T01:00:00Z",
                    run=f"{day}-{HOSTILE}" if k == 39 else f"{day}-vm",
                    planned=4,
                    checks=[check(1e-3, 1e-3 * slow * wobble(5 * k))],
                )
            )
        elsewhere = {"machine": "c" * 16, "cluster_name": f"old{HOSTILE}"}
        history.record(entry(2, id="elsewhere", started="2025-06-01", **elsewhere))
    return folder


def test_table(runs: Path) -> None:
    done = calib(runs.parent, "history", COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    narrow = calib(runs.parent, "history").stdout
    assert max(len(line) for line in narrow.splitlines() if line.startswith("  2026-")) <= 100
    lines = done.stdout.splitlines()
    assert lines[0].startswith("vm (machine aaaaaaaaaaaaaaaa): 30 of 40 nights")
    rows = [" ".join(line.split()) for line in lines if line.startswith("  2026-")]
    assert len(rows) == 30 and rows[0].startswith("2026-01-11 01:00 2026-01-11-vm 3/4 ")
    assert rows[-1].startswith("2026-02-09 01:00 2026-02-09-<b>\ufffd[2J 3/4 ")
    assert rows[-2].startswith("2026-02-08 01:00 2026-02-08-vm 0/4 - - - - - 1")
    assert " begin" in rows[20] and all(" begin" not in row for row in rows[:20])
    assert rows[21].endswith(" open") and "open" not in rows[19]
    trends = {words[0]: words[1] for line in lines if len(words := line.split()) == 4}
    for name in ("data", "filter"):
        marks = trends[name]
        assert len(marks) == 30 and marks[28] == "·"
        assert set(marks[:20]) <= set("▆▇█") and set(marks[20:28]) <= set("▁▂▃")
    # in whose words, reports/drift says
    assert any("allreduce" in line and "2026-01-31" in line for line in lines), done.stdout
    assert "other machines here, for --machine: cccccccccccccccc (old<b>\ufffd[2J)" in done.stderr
    assert "without a point that counts: 2026-02-08-vm" in done.stderr


def test_which_nights(runs: Path) -> None:
    def shown(*options: str) -> list[str]:
        done = calib(runs.parent, "history", "runs", *options, "--csv", "-")
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        return [row["id"] for row in csv.DictReader(io.StringIO(done.stdout))]

    def ids(*numbers: int) -> list[str]:
        return [f"night-{k:04d}" for k in numbers]

    assert shown() == ids(*range(10, 40))
    assert shown("-n", "2") == ids(38, 39)
    assert shown("--nights", "99") == ids(*range(40))
    assert shown("--since", "2026-02-08") == ids(38, 39)
    assert shown("--until", "2026-01-02") == ids(0, 1)
    assert shown("--machine", "cc") == ["elsewhere"]
    assert shown("--since", "2027-01-01") == []


def test_steps_are_judged_over_all_nights(runs: Path) -> None:
    done = calib(runs.parent, "history", "--nights", "1", "--json")
    content = json.loads(done.stdout)
    assert [x["id"] for x in content["nights"]] == ["night-0039"]
    assert "allreduce, torch_mpi, node, p=2" in content["nights"][0]["steps_open"]
    step = next(x for x in content["steps"] if x["of"] == "network")
    assert step["first"] == "night-0030" and step["open"]
    assert step["low"] <= step["change"] <= step["high"]
    assert step["change"] == pytest.approx(0.1, abs=0.02)
    assert [x["nights"] for x in content["machines"]] == [40, 1]
    assert content["nights"][0]["run"].endswith(HOSTILE), "JSON escapes it"


def test_files(runs: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{runs / 'calib.db'}"
    done = calib(tmp_path, "history", "--history", url, "--csv", "t.csv", "--openmetrics", "m.prom")
    assert done.returncode == 0 and "30 of 40 nights" in done.stdout
    assert "written: t.csv" in done.stderr and "written: m.prom" in done.stderr
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 31
    found = parsed((tmp_path / "m.prom").read_text())
    assert of(found, "calib_nights") == [40]
    assert len(of(found, "calib_accuracy_ratio")) == 3 and of(found, "calib_open_steps") != [0]
    shown = calib(tmp_path, "history", "--history", url, "--openmetrics", "-").stdout
    assert parsed(shown) == found


def test_many_steps_are_cut(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from calib.reports.drift import judge

    whole = judge.drift

    def many(*arguments: object, **more: object) -> object:
        from dataclasses import replace

        words = [f"sentence {k}." for k in range(MOST_SENTENCES + 3)]
        return replace(whole(*arguments, **more), words=words)

    monkeypatch.setattr("calib.commands.history.drift", many)
    done = calib(runs.parent, "history", "-n", "1")
    assert "sentence 2." not in done.stdout and "sentence 3." in done.stdout
    assert f"sentence {MOST_SENTENCES + 2}." in done.stdout
    assert "3 older steps; --json has them all" in done.stderr


def test_no_step(tmp_path: Path) -> None:
    with History.open(str(tmp_path / "h.db")) as history:
        history.record(large(1))
    done = calib(tmp_path, "history", "h.db")
    assert "No step that the noise does not explain." in done.stdout
    assert "1 of 1 night," in done.stdout and "other machines" not in done.stderr


def test_mistakes(runs: Path, tmp_path: Path) -> None:
    def line(*arguments: str) -> str:
        return refused(calib(tmp_path, "history", *arguments))

    with History.open(str(tmp_path / "none.db")):
        pass
    assert "holds no night yet" in line("none.db")
    assert "there is no history runs" in line()
    assert not (tmp_path / "runs").exists()
    (tmp_path / "runs").mkdir()
    assert "runs holds no calib.db, which `calib report` makes" in line("runs")
    one = runs / "2026-01-01-vm"
    one.mkdir(exist_ok=True)
    assert f"the one beside it is {runs / 'calib.db'}" in line(str(one))
    assert "not both" in line("runs", "--history", "x.db")
    where = str(runs)
    assert "choose one" in line(where, "--json", "--csv", "-")
    assert "choose one" in line(where, "--openmetrics", "-", "--csv", "-")
    assert "--since 'May' is not a date" in line(where, "--since", "May")
    unknown = line(where, "--machine", "ff")
    assert "names no machine" in unknown and "aaaaaaaaaaaaaaaa (vm)" in unknown
    assert "is a directory" in line(where, "--csv", str(tmp_path))
    secret = line("--history", "postgresql://me:s3cret@localhost:1/db")
    assert "postgresql://me@localhost:1/db" in secret and "s3cret" not in secret


def test_csv_holds_no_formula(tmp_path: Path) -> None:
    """Names of models, strategies and runs are other people's; an apostrophe makes them text."""
    bad = '=HYPERLINK("http://x")'
    with History.open(str(tmp_path / "calib.db")) as history:
        points = [accuracy("0" * 16, 0.1, 0.105, strategy="-data", model=bad)]
        history.record(
            entry(1, points, id="@night-one", run="+run", started="2026-01-01T01:00:00Z")
        )
    done = calib(tmp_path, "history", ".", "--csv", "-")
    assert done.returncode == 0, done.stderr
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    assert row["id"] == "'@night-one" and row["run"] == "'+run"
    assert row["worst_model"] == f"'{bad}" and row["worst_strategy"] == "'-data"
    assert float(row["mean_of_strategy_means"]) == float(row["accuracy_-data"])
