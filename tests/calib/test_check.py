"""`calib check`: exit codes, tables, JSON, and the sizes of the default models."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.helpers import filled as f
from typer.testing import CliRunner

from calib.app import app
from calib.commands.check import gradient_bytes
from calib.foundation.errors import MachineError
from calib.options import MINIS


def write(path: Path, age_days: float = 1.0, **changes: Any) -> str:
    """A good file that was measured so many days ago, but for the changes."""
    until = (datetime.now(UTC) - timedelta(days=age_days)).isoformat(timespec="seconds")
    source = f.filled().provenance.model_copy(update={"measured_until": until})
    f.filled(provenance=source, **changes).write(path)
    return str(path)


def test_a_good_file_exits_with_0(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["check", write(tmp_path / "p.json")])
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    assert done.stderr == "0 warning(s); 2 note(s); --json lists all\n"


def test_a_warning_exits_with_1(tmp_path: Path) -> None:
    path = write(tmp_path / "p.json", work=[f.work(error_factor=3.0)])
    done = CliRunner().invoke(app, ["check", path])
    assert done.exit_code == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith("noisy: ") and len(line) <= 100
    assert done.stderr == "1 warning(s); 2 note(s); --json lists all\n"
    done = CliRunner().invoke(app, ["check", path, "--json"])
    assert done.exit_code == 1 and done.stderr == ""
    found = json.loads(done.stdout)
    assert len(found) == 3 and found[0]["section"] == "work"
    assert set(found[0]) == {"severity", "kind", "section", "subject", "message", "cause"}
    assert calib(tmp_path, "check", "p.json").returncode == 1


def test_five_lines_say_what_is_wrong(tmp_path: Path) -> None:
    """Six causes of 26 warnings: a line each for the first four, in the order of what matters."""
    source = {"edited": False, "launches": 1, "notes": ["allreduce 8 B: failed: boom"]}
    few = [point.model_copy(update={"n": 2}) for point in f.collective().points]
    path = tmp_path / "p.json"
    until = (datetime.now(UTC) - timedelta(days=50)).isoformat(timespec="seconds")
    about = f.filled().provenance.model_copy(update={**source, "measured_until": until})
    f.filled(
        provenance=about,
        work=[f.work(error_factor=3.0)] * 3,
        collectives=[
            f.collective(p, points=few[:5], slope_s_per_byte=f.near(1e-9, 0.5)) for p in range(2, 9)
        ],
    ).write(path)
    done = CliRunner().invoke(app, ["check", str(path)], env={"COLUMNS": "100"})
    assert done.exit_code == 1
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    assert len(lines) == 5 and all(len(line) <= 100 for line in lines[:4])
    words = ("stale: measured 50 days ago", "left out: allreduce 8 B", "extrapolated", "noisy")
    assert all(word in line for word, line in zip(words, lines, strict=False))
    found = json.loads(CliRunner().invoke(app, ["check", str(path), "--json"]).stdout)
    warned = [x for x in found if x["severity"] == "warning"]
    assert lines[4].startswith(f"{len(warned)} warning(s); ") and "not shown: " in lines[4]
    shown = {x["cause"] for x in warned}
    assert {"too few repetitions", "one launch"} < shown
    assert "7 thin (too few repetitions)" in lines[4] and len(shown) > 5


def test_age(tmp_path: Path) -> None:
    path = write(tmp_path / "p.json", age_days=40.2)
    done = CliRunner().invoke(app, ["check", path])
    assert done.exit_code == 1 and "measured 40 days ago, over 30" in " ".join(done.stdout.split())
    assert CliRunner().invoke(app, ["check", path, "--max-age-days", "41"]).exit_code == 0


def test_sizes_of_the_default_models() -> None:
    """VGG16 mini: 2,598,196 weights of 4 B (the others: any size that is one)."""
    sizes = gradient_bytes()
    assert list(sizes) == list(MINIS)
    assert sizes["vgg16-mini"] == 4 * 2_598_196 and min(sizes.values()) > 0


def test_gradients_beyond_the_measured_sizes(tmp_path: Path) -> None:
    short = [point for point in f.collective().points if point.nbytes < 2**20]
    path = write(tmp_path / "p.json", collectives=[f.collective(points=short)])
    found = json.loads(CliRunner().invoke(app, ["check", path, "--json"]).stdout)
    extrapolated = [x for x in found if x["kind"] == "extrapolated" and x["severity"] == "warning"]
    assert "vgg16-mini 9.91 MiB" in extrapolated[0]["message"]


def test_a_model_that_cannot_be_traced_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_torch(name: str) -> None:
        raise MachineError("needs PyTorch")

    monkeypatch.setattr("calib.commands.check.spec", no_torch)
    done = CliRunner().invoke(app, ["check", write(tmp_path / "p.json")])
    assert done.exit_code == 0 and done.stderr.count("was not checked: needs PyTorch") == len(MINIS)


def test_mistakes(tmp_path: Path) -> None:
    assert "does not exist" in refused(calib(tmp_path, "check", "nosuch.json"))
    write(tmp_path / "p.json")
    for days in ("-1", "nan", "soon"):
        line = refused(calib(tmp_path, "check", "p.json", "--max-age-days", days))
        assert "--max-age-days" in line
