"""calib replay: tables in, a table or JSON out, one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.calib.inside import calib

HEAD = "model,strategy,p,b,b_means,unit,proj_comp,proj_comm,proj_total,meas_comp,meas_comm,meas_total\n"
ROW = "resnet50,d,16,64,per GPU,s/iter,0.1991,0.0142,0.2133,0.1896,0.0355,0.2251\n"
LINKS = (
    "source,library,collective,scope,p_range,alpha_s,beta_s_per_B\n"
    "tech report Fig 2,NCCL,d,inter,16-1024,3.03e-5,8e-11\n"
)
SINGLE = "model,batch_per_gpu,seconds_per_iteration\nresnet50,64,0.19965\n"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The three tables, under the names that replay looks for."""
    (tmp_path / "abci_alpha_beta_used.csv").write_text(LINKS)
    (tmp_path / "abci_single_gpu.csv").write_text(SINGLE)
    path = tmp_path / "runs.csv"
    path.write_text(HEAD + ROW + ROW.replace(",d,", ",dh,"))
    return path


def test_a_row_by_hand(runs: Path) -> None:
    """0.19965 + 2 15 (3.03e-5 + 4 25557032 8e-11 / 16) = 0.2159 s, 1.2% over the authors' bar."""
    done = calib(runs.parent, "replay", str(runs), "--json")
    content = json.loads(done.stdout)
    (row,) = content["rows"]
    expected = 0.19965 + 30 * (3.03e-5 + 4 * 25557032 * 8e-11 / 16)
    assert row["total"] == pytest.approx(expected, rel=1e-9)
    assert row["difference"] == pytest.approx(expected / 0.2133 - 1, rel=1e-9)
    assert [left["strategy"] for left in content["left_out"]] == ["dh"]


def test_the_table_names_what_was_left_out(runs: Path) -> None:
    done = calib(runs.parent, "replay", str(runs))
    assert "0.2159 / 0.2133" in done.stdout and "+1.2%" in done.stdout
    assert "data: off by 1.2% in the mean of 1" in done.stderr
    assert "left out: resnet50 dh p=16: strategy dh is none of d, s, p, f, c, df, ds" in done.stderr


def test_mistakes_are_one_line(runs: Path) -> None:
    (runs.parent / "abci_single_gpu.csv").unlink()
    done = calib(runs.parent, "replay", str(runs))
    assert done.returncode == 2
    assert done.stderr.startswith("calib: error:") and done.stderr.count("\n") == 1
    runs.write_text(HEAD + ROW.replace(",d,", ",dh,"))
    (runs.parent / "abci_single_gpu.csv").write_text(SINGLE)
    done = calib(runs.parent, "replay", str(runs))
    assert (done.returncode, "no row can be replayed" in done.stderr) == (2, True)
