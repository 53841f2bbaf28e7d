"""Plain programs under the profiler, and what is planted in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import profiled
from benchmarks.plain_programs import serial
from benchmarks.plain_programs.ddp_mistakes import MISTAKES
from benchmarks.plain_programs.models import Log
from benchmarks.traced import CONDITIONS

from calib.training.traces.rank import PHASES, read_rank


def test_every_mistake_is_a_condition() -> None:
    assert CONDITIONS.keys() == {*MISTAKES} - {"none"} | {"good"}


def test_a_program_is_traced_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profiled, "WARM_UP", 2)
    monkeypatch.setattr(profiled, "TRACED", 3)
    profiled.main(str(tmp_path), "serial", "mlp", "--batch", "2", "--steps", "6")
    assert capsys.readouterr().out.count("loss") == 6
    trace = read_rank(tmp_path / "rank0.json.gz")
    assert len(trace.steps) == 3
    assert trace.phase_s.keys() == {*PHASES}, "a step has its own forward, backward and update"
    assert serial.Log is Log, "the program is as it was"
