"""calib sweep: one table of everything, written as it comes, the same as calib predict says."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.calib.inside import calib
from tests.calib.machines import NET, full_machine, two_executions
from tests.calib.running import refused
from tests.helpers.words import words_of

from calib.foundation.errors import FileError, InputError
from calib.oracle.costs.machine import Machine
from calib.predicting.choices import Batch, templates
from calib.predicting.predictor import Predictor
from calib.predicting.rows import COLUMNS, table_of

COMMAND = ("sweep", "--models", "model.json", "--parameters", "parameters.json")
PREDICT = "predict --parameters parameters.json --model model.json --csv - "


def test_the_table_is_that_of_predict(here: Path) -> None:
    done = calib(here, *COMMAND, "-p", "1:8", "--batch-per-rank", "4")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert len(rows) == 4 * 14 and tuple(rows[0]) == COLUMNS
    asked = calib(here, PREDICT + "--strategy all -p 1:8 --batch-per-rank 4")
    assert asked.stdout == done.stdout


def test_no_cell_is_a_formula(here: Path) -> None:
    """A model's name is another's; predict and sweep write the same rows."""
    NET.model_copy(update={"name": "=1+1"}).write(here / "model.json")
    options = "-p 1 --batch-per-rank 4"
    for table in (
        calib(here, *COMMAND, *words_of(f"--strategies serial {options}")),
        calib(here, f"{PREDICT} --strategy serial {options}"),
    ):
        assert table.returncode == 0, table.stderr
        (row,) = csv.DictReader(io.StringIO(table.stdout))
        assert row["model"] == "'=1+1" and float(row["total_s"]) > 0


def test_everything_is_crossed(here: Path) -> None:
    done = calib(
        here,
        *COMMAND,
        *words_of(
            "--strategies data,pipeline,data+filter -p 4,6 --batch-per-rank 4,8 --segments 2,4 "
            "--inner 1:2 -o t.json"
        ),
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((here / "t.json").read_text())
    found = {(r["strategy"], r["p"], r["batch"], r["inner"], r["segments"]) for r in rows}
    expected = {
        (name, p, each * p, inner, segments)
        for p in (4, 6)
        for each in (4, 8)
        for name, inner, segments in [
            ("data", 1, 1),
            ("pipeline", 1, 2),
            ("pipeline", 1, 4),
            ("data+filter", 1, 1),
            ("data+filter", 2, 1),
        ]
    }
    assert found == expected and len(rows) == len(expected)


def test_executions_and_accumulation_are_crossed(here: Path) -> None:
    two_executions("float64").write(here / "parameters.json")
    words = (
        "--strategies serial,data,filter -p 2 --batch 8 --accumulate 1,2 --execution float32,float64 "
        "-o t.json"
    )
    done = calib(here, *COMMAND, *words_of(words))
    assert done.returncode == 0, done.stderr
    found = [
        (row["execution"], row["strategy"], row["accumulation"])
        for row in json.loads((here / "t.json").read_text())
    ]
    assert found == [
        (run, strategy, turns)
        for run in ("float32", "float64")
        for strategy in ("serial", "data", "filter")
        for turns in ((1,) if strategy == "filter" else (1, 2))
    ]


def test_parquet_holds_the_same(here: Path) -> None:
    import pyarrow.parquet as pq

    options = ("-p", "1,2", "--batch-per-rank", "4")
    for name in ("t.parquet", "t.json"):
        done = calib(here, *COMMAND, *options, "-o", name)
        assert done.returncode == 0, done.stderr
    rows = pq.read_table(here / "t.parquet").to_pylist()
    assert rows == json.loads((here / "t.json").read_text())


def test_a_row_that_lacks_a_parameter_says_so(here: Path) -> None:
    full_machine(collectives=[]).write(here / "parameters.json")
    done = calib(
        here, *COMMAND, "--strategies", "serial,data", "-p", "1,2", "--batch-per-rank", "4"
    )
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [bool(row["total_s"]) for row in rows] == [True, True, False, False]
    assert rows[3]["reason"].startswith("not predicted: the parameters hold no allreduce")


def test_nothing_is_left_of_a_sweep_that_failed(here: Path) -> None:
    full_machine(collectives=[]).write(here / "parameters.json")
    done = calib(
        here, *COMMAND, "--strategies", "data", "-p", "2", "--batch-per-rank", "4", "-o", "t.csv"
    )
    assert done.returncode == 2 and "hold no allreduce" in done.stderr
    assert sorted(path.name for path in here.iterdir()) == ["model.json", "parameters.json"]


@pytest.mark.parametrize("name", ["t.csv", "t.json", "t.parquet"])
def test_a_table_is_whole_or_not_there(tmp_path: Path, name: str) -> None:
    predictor = Predictor(Machine(full_machine()))
    rows = list(predictor.points([(NET, [Batch(4)])], [2], templates("data,serial")))
    (tmp_path / name).write_text("what was there")
    with pytest.raises(ZeroDivisionError), table_of(tmp_path / name) as table:
        table.add(rows[0])
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "what was there"
    with table_of(tmp_path / name) as table:
        for row in rows:
            table.add(row)
    assert (tmp_path / name).read_bytes()[:3] in (b"mod", b"[\n{", b"PAR")


def test_tables_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must end in"), table_of(tmp_path / "t.xls"):
        pass
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(FileError, match="directory"), table_of(tmp_path / "d.csv"):
        pass


def test_forgetting_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked up before is dropped now and then, so that a long sweep stays small."""

    def totals() -> Iterator[float | None]:
        predictor = Predictor(Machine(full_machine()))
        sizes = [(NET, [Batch(4), Batch(8)])]
        for found in predictor.points(sizes, [1, 2, 4], templates("data,filter,pipeline")):
            yield found.total.value if found.total else None

    kept = list(totals())
    monkeypatch.setattr("calib.oracle.once.MOST", 2)
    assert list(totals()) == kept and sum(x is not None for x in kept) > 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--models", ","), "no model"),
        (("--models", "vgg17"), "did you mean vgg16"),
        (("--strategies", "data,x"), "unknown strategy 'x'"),
        (("--batch-per-rank", "1:x"), "--batch-per-rank '1:x'"),
        (("--segments", "0"), "--segments"),
        (("--batch-per-rank", "4", "--batch", "8"), "not both"),
        (("-o", "t.txt"), "must end in"),
        (("-o", ""), "-o . is a directory"),
        (("--strategies", "data", "--segments", "2,4"), "--segments is of pipeline"),
        (("--boundaries", "1,99"), "boundaries 1,99: numbers must rise"),
        (("--set", "x*=2"), "unknown setting"),
        (("--optimizer", "lion"), "'lion' is not one of"),
    ],
)
def test_mistakes(here: Path, options: tuple[str, ...], said: str) -> None:
    batch = () if "--batch-per-rank" in options else ("--batch-per-rank", "4")
    assert said in refused(calib(here, *COMMAND, *batch, *options))
