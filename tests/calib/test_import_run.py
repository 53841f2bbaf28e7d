"""`calib import-run`: files of others in, run.jsonl out, or one line and nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.calib.inside import calib
from tests.calib.own_runs import STEPS, TABLE
from tests.calib.running import refused

from calib.commands import import_run
from calib.foundation.errors import CalibError, FileError, InputError
from calib.importing.trainings import is_trace
from calib.training.run.record import TrainingRun


def test_a_table_becomes_runs(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE)
    done = calib(tmp_path, "import-run", "t.csv", "-o", "runs", "--optimizer", "adam")
    assert done.returncode == 0, done.stderr
    found = {path.name: TrainingRun.read(path) for path in (tmp_path / "runs").iterdir()}
    assert set(found) == {"net-serial-p1-b8.jsonl", "net-data-p2-b16.jsonl"}
    serial = found["net-serial-p1-b8.jsonl"]
    assert [(i.warmup, i.total_seconds) for i in serial.iterations] == [(True, 0.5), (False, 0.25)]
    assert serial.header.optimizer == "adam" and serial.header.launch == "imported from t.csv"
    assert "note: 'ddp' is taken as data" in done.stderr.splitlines()
    # and never over another
    assert refused(calib(tmp_path, "import-run", "t.csv", "-o", "runs")) == (
        "runs/net-serial-p1-b8.jsonl exists; choose another"
    )


def test_a_wrong_row_is_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE + "net,serial,1,8,-3,0.1,0\n")
    done = calib(tmp_path, "import-run", "t.csv", "-o", "runs")
    assert refused(done) == "t.csv:5: seconds -3 is negative"
    assert not (tmp_path / "runs").exists()


def run(files: list[Path], output: Path, **given: object) -> None:
    import_run.command(files, output, as_json=True, **given)


def test_a_trace_becomes_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": STEPS}))
    output = tmp_path / "run.jsonl"
    with pytest.raises(InputError, match="give --model, --strategy, --batch"):
        run([path], output)
    run([path], output, model="m", strategy="single", batch=4, warmup=1)
    found = TrainingRun.read(output)
    assert [(i.index, i.warmup, i.total_seconds) for i in found.iterations] == [
        (0, True, 5e-4),
        (1, False, 5e-4),
        (2, False, 5e-4),
    ]
    (said,) = json.loads(capsys.readouterr().out)
    assert said["path"] == str(output) and said["header"]["division"]["strategy"] == "serial"
    # of serial training nothing is sent; forward and backward are not told
    assert found.timed[0].known_phases == ("halo", "layerwise", "pack", "exchange")


def test_a_trace_that_does_not_say_its_ranks(tmp_path: Path) -> None:
    path, output = tmp_path / "t.json", tmp_path / "run.jsonl"
    path.write_text(json.dumps({"traceEvents": STEPS}))
    with pytest.raises(FileError, match=r"t.json does not say how many ranks trained: give -p"):
        run([path], output, model="m", strategy="ddp", batch=4)
    assert not output.exists()
    run([path], output, model="m", strategy="ddp", batch=4, p=2)
    assert TrainingRun.read(output).header.p == 2


def test_a_phase_of_some_iterations_only_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"seconds": 1, "forward": 0.25, "halo": 0.125}\n{"seconds": 1, "halo": 0.125}\n'
    )
    given = {"model": "m", "strategy": "spatial", "p": 2, "batch": 2}
    import_run.command([path], tmp_path / "run.jsonl", **given)
    said = capsys.readouterr().out
    assert "halo 125" in said and "forward 250" not in said


def test_rows_of_a_rank_each_in_its_file_are_one_run(tmp_path: Path) -> None:
    for rank in range(2):
        rows = "".join(f"net,data,2,8,{0.5 + rank / 4},{rank}\n" for _ in range(3))
        (tmp_path / f"{rank}.csv").write_text("model,strategy,p,batch,seconds,rank\n" + rows)
    run([tmp_path / "0.csv", tmp_path / "1.csv"], tmp_path / "run.jsonl")
    found = TrainingRun.read(tmp_path / "run.jsonl")
    assert [i.whole for i in found.iterations] == [[0.5, 0.75]] * 3
    assert all(i.total_seconds == 0.75 for i in found.iterations)  # the others waited for it


@pytest.mark.parametrize(
    ("content", "trace"),
    [
        ('{"seconds": 1}\n{"seconds": 2}\n', False),
        ('{"seconds": 1}', False),
        ('{"traceEvents": []}', True),
        ('{\n "schemaVersion": 1,\n', True),
        ('\n  {"traceEvents"', True),
        ("[{}]", True),
        ("model,batch\n", False),
        ("", False),
    ],
)
def test_which_files_are_traces(tmp_path: Path, content: str, trace: bool) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    assert is_trace(path) is trace


def test_files_that_do_not_go_together(tmp_path: Path) -> None:
    table, trace = tmp_path / "t.csv", tmp_path / "t.json"
    table.write_text(TABLE)
    trace.write_text(json.dumps({"traceEvents": STEPS}))
    wrong: list[tuple[list[Path], type[CalibError], str]] = [
        ([table, trace], InputError, "tables or traces"),
        ([table, table], InputError, "given twice"),
        ([tmp_path / "none.csv"], FileError, "does not exist"),
        ([tmp_path], FileError, "cannot read"),
    ]
    for files, kind, words in wrong:
        with pytest.raises(kind, match=words):
            run(files, tmp_path / "out", model="net", strategy="serial", batch=8)
    with pytest.raises(FileError, match=r"t.csv:2: model is net, but the flag says other"):
        run([table], tmp_path / "out", model="other")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seconds", ["5e-324", "1e-20", "1e300"])
def test_a_time_that_nothing_takes(tmp_path: Path, seconds: str) -> None:
    (tmp_path / "t.csv").write_text(TABLE.replace("0.375", seconds).replace(",0.1,0", ",,0"))
    line = refused(calib(tmp_path, "import-run", "t.csv", "-o", "runs"))
    assert "net data p=2 is outside plausible bounds" in line or "is over" in line
    assert not (tmp_path / "runs").exists()
