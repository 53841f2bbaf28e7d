"""`calib show`: a file as tables, as JSON, and as a page with the repetitions of its run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.helpers import filled as f
from tests.helpers.runs import MESSAGES, around, cluster, write_run
from typer.testing import CliRunner

from calib.app import app
from calib.fitting.fit import fit_runs
from calib.foundation.errors import FileError, InputError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "parameters.json"
    f.filled().write(path)
    return path


def test_tables(file: Path) -> None:
    done = CliRunner().invoke(app, ["show", str(file)])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["allreduce", "mpi,", "cpu,", "node", "2", "(1)", "2.00", "[1.90,", "2.10]"] in [
        words[:9] for words in lines
    ]
    titles = (
        "Where the numbers come from,the pieces of a call,Contention: phi,Work laws,Passes over lists,"
        "Composition,Memory reuse,Overlap,Partitions"
    )
    for title in titles.split(","):
        assert title in done.stdout
    assert "the slowest first" not in done.stdout and done.stderr == ""


def test_layers_one_by_one(file: Path) -> None:
    done = CliRunner().invoke(app, ["show", str(file), "--layers"])
    lines = done.stdout.splitlines()
    assert lines[0] == "Layers measured alone, the slowest first"
    rows = [line for line in lines if line.strip().startswith("conv 3x3 8*4x8x8 ->")]
    passes = [word for row in rows for word in row.split() if word.endswith("ward")]
    assert passes == ["backward", "forward"]
    # the title, the head, the rule and both passes; remarks are wrapped by a terminal
    assert max(map(len, lines[:5])) <= 100
    as_json = CliRunner().invoke(app, ["show", str(file), "--layers", "--json"])
    first, second = json.loads(as_json.stdout)
    assert (first["direction"], second["direction"]) == ("backward", "forward")
    assert second["key"] == f.CONV_KEY and second["flops"] == 2 * 8 * 64 * 4 * 4 * 9
    assert second["peak_share"] == pytest.approx(second["flops"] / 2e10 / 1e-4)


def test_collectives_size_by_size(file: Path) -> None:
    done = CliRunner().invoke(app, ["show", str(file), "--collectives"])
    lines = done.stdout.splitlines()
    assert done.exit_code == 0 and lines[0] == "Collectives as measured: every size"
    assert "busbw" in done.stdout and "GB/s = 1e9 B/s" in done.stdout
    assert sum("[" in line for line in lines[3:]) == 1 + sum(
        len(fit.points) for fit in f.filled().collectives
    ), "and a remark"
    as_json = CliRunner().invoke(app, ["show", str(file), "--collectives", "--json"])
    size = json.loads(as_json.stdout)[-1]
    fit = f.filled().collectives[-1]
    point, factor = fit.points[-1], 2 * (fit.ranks - 1) / fit.ranks
    assert (size["operation"], size["nbytes"]) == ("allreduce", point.nbytes)
    algbw = point.nbytes / point.seconds.value
    assert size["algbw_bytes_per_s"]["value"] == pytest.approx(algbw)
    assert size["busbw_bytes_per_s"]["low"] == pytest.approx(
        factor * point.nbytes / point.seconds.high
    )


def test_what_was_not_measured_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    f.filled(overlap=[], partitions=[], layers=[]).write(path)
    done = CliRunner().invoke(app, ["show", str(path)])
    assert done.exit_code == 0 and "Overlap" not in done.stdout
    assert done.stderr == (
        "note: not measured, so not in this file: layer times, overlap laws, sparse exchanges\n"
    )


def test_a_page_with_the_repetitions_of_a_run(tmp_path: Path) -> None:
    rows = [
        row for case in MESSAGES[:8] for row in around(case, "allreduce", 1e-6 + 1e-9 * case.nbytes)
    ]
    run = write_run(tmp_path / "run", rows)
    path, page = tmp_path / "p.json", tmp_path / "out" / "fits.html"
    fit_runs([run]).write(path)
    words = ["show", str(path), "--plot", str(page), "--run", str(run), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert done.stderr == f"page: {page}\n" and json.loads(done.stdout)["collectives"]
    assert ", 64 repetitions." in page.read_text()
    done = CliRunner().invoke(app, words[:4])
    assert done.exit_code == 0 and "64 repetitions" not in page.read_text()


def test_a_run_of_another_cluster_is_refused(file: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", around(MESSAGES[0], "allreduce", 1e-3), cluster())
    words = ["show", str(file), "--plot", str(tmp_path / "x.html"), "--run", str(run)]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, InputError) and "another cluster" in str(done.exception)
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize("run", ["nosuch", "."])
def test_what_is_no_run(file: Path, tmp_path: Path, run: str) -> None:
    words = ["show", str(file), "--plot", str(tmp_path / "x.html"), "--run", str(tmp_path / run)]
    assert isinstance(CliRunner().invoke(app, words).exception, FileError)


def test_mistakes_are_one_line(file: Path, tmp_path: Path) -> None:
    assert "does not exist" in refused(calib(tmp_path, "show", "nosuch.json"))
    assert "name a page" in refused(calib(tmp_path, "show", file.name, "--run", "run"))
    assert "is a directory" in refused(calib(tmp_path, "show", file.name, "--json", "--plot", "."))
    assert "give one of them" in refused(
        calib(tmp_path, "show", file.name, "--collectives", "--layers")
    )
    (tmp_path / "text.json").write_text("alpha: 1")
    assert "truncated or not JSON" in refused(calib(tmp_path, "show", "text.json"))
