"""Steps in processes of their own: limits, reasons, and the two files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.kernels import tritons
from benchmarks.gpu.process import PREFIX, run_step, take
from benchmarks.gpu.results import Result, Results
from benchmarks.gpu.steps import STEPS, Missing, Row, Setting

from calib.foundation.errors import InputError, MachineError

MACHINE = {"gpu": "A GPU", "uuid": "a-1", "driver": "580"}


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        (Row("a", 5e-7, "s"), ["a", "500", "ns", ""]),
        (Row("a", 0.0, "s"), ["a", "0", "s", ""]),
        (Row("a", 3 * 2**20, "B", "n"), ["a", "3", "MiB", "n"]),
        (Row("a", 7.98e14, "FLOP/s"), ["a", "798", "TFLOP/s", ""]),
        (Row("a", 1.98e9, "Hz"), ["a", "1980", "MHz", ""]),
        (Row("a", 12), ["a", "12", "", ""]),
        (Row("a", 1.02345), ["a", "1.02", "", ""]),
        (Row("a", "ring"), ["a", "ring", "", ""]),
    ],
)
def test_a_row_as_a_person_reads_it(row: Row, cells: list[str]) -> None:
    assert row.cells == cells


def test_what_a_process_said_before_it_ended_is_kept() -> None:
    """Lines of others are not its own, and one that broke off said nothing of an end."""
    said = [["Row", ["a", 1.0, "s", ""]], ["Identity", [MACHINE]], ["Missing", ["a graph", "none"]]]
    text = "".join(f"{PREFIX}{json.dumps(each)}\n" for each in said)
    result = Result("events", "2026-11-25T00:00:00Z")
    assert take("NCCL version 2.28\n" + text, result) == (MACHINE, False)
    assert (result.rows, result.missing) == ([Row("a", 1.0, "s")], [Missing("a graph", "none")])
    assert take(f"{PREFIX}{json.dumps(['ended', 'failed: x'])}\n", result) == ({}, True)
    assert result.ended == "failed: x" and result.spoiled


def test_a_step_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    result, machine = run_step(STEPS["predict"], Setting(tmp_path, True), 0.05)
    assert result.ended == "out of time: it took over 50 ms" and result.spoiled
    assert machine == {} and result.rows == []


def test_a_step_that_cannot_run_says_why_and_has_not_failed(tmp_path: Path) -> None:
    result, _ = run_step(STEPS["predict"], Setting(tmp_path, True), 100.0)
    assert result.ended == "not run: there is no calibration; run the step calibrate first"
    assert not result.spoiled


def test_without_a_gpu_nothing_is_run_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--out", str(tmp_path), "--only", "events"]) == 2
    assert "torch sees no CUDA device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def results(folder: Path) -> Results:
    """Of three steps, one of them spoiled, in another order than they are run in."""
    found = Results(folder, False, MACHINE)
    for name, ended in (
        ("spin", "failed: CUDA error"),
        ("events", "done"),
        ("train", "not run: x"),
    ):
        found.steps[name] = Result(name, "2026-11-25T10:00:00Z", 1.0, ended)
    found.steps["events"].rows = [Row("a|b", 5e-7, "s", "by torch_nccl")]
    found.steps["events"].missing = [Missing("a graph", "no <such> thing")]
    return found


def test_both_files_hold_all_that_was_found(tmp_path: Path) -> None:
    before = results(tmp_path)
    before.write()
    after = Results.read(tmp_path, rehearsed=False)
    assert after == before
    assert [after.steps[name].spoiled for name in ("spin", "events", "train")] == [
        True,
        False,
        False,
    ]
    assert (tmp_path / "gpu.md").read_text().splitlines() == [
        "# A GPU, 2026-11-25",
        "",
        "uuid a-1, driver 580.",
        "",
        "Made by `python -m benchmarks.gpu`.",
        "",
        "## How finely events time",
        "",
        "| what | value | unit | note |",
        "| :-- | --: | :-- | :-- |",
        "| a\\|b | 500 | ns | by torch\\_nccl |",
        "",
        "- a graph: no &lt;such&gt; thing",
        "",
        "## A stream held by a spin, and not",
        "",
        "- failed: CUDA error",
        "",
        "## Serial training in three kinds of arithmetic",
        "",
        "- not run: x",
    ]


def test_numbers_of_two_machines_or_of_a_rehearsal_are_not_mixed(tmp_path: Path) -> None:
    found = results(tmp_path)
    found.write()
    found.require(dict(MACHINE))
    with pytest.raises(InputError, match=r"another machine \(uuid: a-1, now b-2\)"):
        found.require(MACHINE | {"uuid": "b-2"})
    with pytest.raises(InputError, match=r"\(nccl \(loaded\): none, now 2.32\)"):
        found.require(MACHINE | {"nccl (loaded)": "2.32"})
    with pytest.raises(InputError, match="is of a measurement; choose another --out"):
        Results.read(tmp_path, rehearsed=True)


def test_do_bench_gives_its_median_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """In ms, as that of Triton 3.6."""

    def bench(fn: Callable[[], object], return_mode: str = "mean", **_: Any) -> float:
        fn()
        return {"median": 2.0}[return_mode]

    for name, module in {"triton": None, "triton.testing": None}.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(MachineError, match="triton cannot be imported"):
        tritons()
    monkeypatch.setitem(sys.modules, "triton.testing", SimpleNamespace(do_bench=bench))
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace())
    assert tritons()(lambda: None) == pytest.approx(2e-3)
