"""`calib diff` on two files made by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.helpers import filled as f
from typer.testing import CliRunner

from calib.app import app
from calib.commands.diff import LARGEST
from calib.foundation.records import Estimate


def write(path: Path, fingerprint: str = "0123456789abcdef", **changes: Any) -> str:
    """The good file, but for the changes, from other samples."""
    source = f.filled().provenance.model_copy(
        update={"samples_sha256": ["cd" * 32], "cluster_fingerprint": fingerprint}
    )
    f.filled(provenance=source, **changes).write(path)
    return str(path)


@pytest.fixture
def first(tmp_path: Path) -> str:
    path = tmp_path / "first.json"
    f.filled().write(path)
    return str(path)


def slower(factor: float) -> list[Any]:
    """An allreduce whose alpha is so many times as long."""
    return [f.collective(intercept_s=f.near(4e-6 * factor))]


def test_tables(first: str, tmp_path: Path) -> None:
    second = write(tmp_path / "second.json", collectives=slower(1.5), overlap=[])
    done = CliRunner().invoke(app, ["diff", first, second])
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    # without the 20 quantities of p = 4 and 8, eta and the slowdown
    assert "1 of 43 differ beyond both intervals; the 1 largest changes" in text
    assert "alpha 2.00 [1.90, 2.10] us 3.00 [2.85, 3.15] us +50.0%" in text
    assert "sections that only the first file has: 2 of overlap" in done.stderr


def test_nothing_differs(first: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["diff", first, write(tmp_path / "second.json")])
    assert done.exit_code == 0
    # 3 collectives of 10, 1 structural, 5 of contention, 2 peaks, 4 of the layer, 2 prices of work, 6 of
    # the loop, 1 of composition, 5 of memory, 2 of overlap, 7 of the partitions
    assert "none of 65 quantities differs beyond both intervals" in done.stdout


def test_json(first: str, tmp_path: Path) -> None:
    none = Estimate.exactly(0.0)
    second = write(
        tmp_path / "second.json", collectives=slower(1.5), memory=[f.memory(constant_bytes=none)]
    )
    done = CliRunner().invoke(app, ["diff", first, second, "--json"])
    found = json.loads(done.stdout)
    assert [x["quantity"] for x in found["changed"]] == ["constant", "alpha"]
    assert found["changed"][0]["log_ratio"] is None, "to nothing"
    assert found["changed"][1] == {
        "section": "collectives",
        "law": "allreduce (mpi, cpu, node, p=2)",
        "quantity": "alpha",
        "unit": "s",
        "first": f.near(2e-6).model_dump(),
        "second": {k: pytest.approx(v) for k, v in f.near(3e-6).model_dump().items()},
        "log_ratio": pytest.approx(math.log(1.5)),
    }
    # of p = 4 and p = 8: alpha, beta and eight sizes each
    assert found["only_first"] == {"collectives": 20} and found["only_second"] == {}
    shown = " ".join(
        CliRunner().invoke(app, ["diff", first, second], env={"COLUMNS": "200"}).stdout.split()
    )
    assert "100.0 [95.0, 105.0] MiB 0 [0, 0] MiB to 0" in shown


def test_only_the_largest_are_shown(first: str, tmp_path: Path) -> None:
    fits = [
        f.collective(
            p,
            points=[
                point.model_copy(update={"seconds": f.near((2 + k) * point.seconds.value)})
                for k, point in enumerate(f.collective(p).points)
            ],
        )
        for p in (2, 4, 8)
    ]
    second = write(tmp_path / "second.json", collectives=fits)
    done = CliRunner().invoke(app, ["diff", first, second])
    assert done.stdout.count("+") == LARGEST
    assert f"{24 - LARGEST} more differ; --json has them all" in done.stderr
    assert done.stdout.index("+800.0%") < done.stdout.index("+700.0%")


def test_clusters(first: str, tmp_path: Path) -> None:
    second = write(tmp_path / "second.json", fingerprint="f" * 16)
    line = refused(calib(tmp_path, "diff", first, second))
    assert "of different clusters" in line and "--across" in line
    done = CliRunner().invoke(app, ["diff", first, second, "--across"])
    assert done.exit_code == 0 and "note: the files are of different clusters" in done.stderr


def test_mistakes(first: str, tmp_path: Path) -> None:
    assert "nosuch.json does not exist" in refused(calib(tmp_path, "diff", first, "nosuch.json"))
    (tmp_path / "text.json").write_text("{}")
    assert "not a parameter file" in refused(calib(tmp_path, "diff", "text.json", first))
