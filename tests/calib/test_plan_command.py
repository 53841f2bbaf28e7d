"""`calib plan`: what it lists adds up, and what it writes is what it lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.calib.planning.clusters import cluster
from tests.helpers.words import words_of
from typer.testing import CliRunner

from calib.commands import plan as verb
from calib.foundation.division import STRATEGIES
from calib.foundation.errors import CalibError, FileError, InputError
from calib.microbench.records.manifest import CaseEnd, Manifest
from calib.planning.plan import draft, specs_of
from calib.planning.request import FULL, Request, Sparse

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(verb.command)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A cluster.json of one node with 4 ranks."""
    path = tmp_path / "cluster.json"
    cluster(4).write(path)
    return path


def run(*arguments: str | Path) -> tuple[str, str]:
    """(stdout, stderr) of the verb. What it raises is raised here."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(done.exception, CalibError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def content(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json")[0])
    return found


def end(case_id: str, launch: int, elapsed_s: float, repetitions: int = 9) -> CaseEnd:
    return CaseEnd(
        case_id=case_id,
        launch=launch,
        label="",
        purpose="",
        repetitions=repetitions,
        half_width=0.01,
        stopped_by="interval",
        elapsed_s=elapsed_s,
    )


def test_json_has_every_case_in_order(machine: Path) -> None:
    """The shares make up the budget; tiers rise; the cases are those of the request's plan."""
    found = content(
        *words_of("--models vgg16-mini --strategies all -p 1,2,4 --budget 10m --cluster"), machine
    )
    request = Request(
        models=("vgg16-mini",),
        p=(1, 2, 4),
        budget_s=600.0,
        sparse=Sparse(),
        strategies=tuple(STRATEGIES),
    )
    made = draft(request, cluster(4), specs_of(request))
    assert [case["id"] for case in found["cases"]] == [case.id for case in made.plan.cases]
    assert sum(case["share_s"] for case in found["cases"]) == pytest.approx(600.0, rel=1e-3)
    tiers = [case["tier"] for case in found["cases"]]
    assert tiers == sorted(tiers)
    assert (found["budget_s"], found["launches"], found["launch_sizes"]) == (600.0, 6, [1, 2, 4])
    assert found["duplicates_dropped"] == made.duplicates > 500
    assert found["left_out"] == made.left_out
    assert all(case["label"] and case["purpose"] for case in found["cases"])
    assert "measured_s" not in found["cases"][0]


def test_the_table_counts_every_case(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups add up to the title's number, and their shares to the budget."""
    monkeypatch.setenv("COLUMNS", "200")
    stdout, stderr = run(
        *words_of("--models vgg16-mini --strategies data+filter,spatial -p 2,4 --cluster"), machine
    )
    title, *lines = [line.split() for line in stdout.splitlines() if line.strip()]
    rows = [line for line in lines if line[0] in ("0", "1", "2")]
    numbers = [
        tuple(map(float, line[i + 2 : i + 4]))  # behind the library and p: cases, seconds
        for line in rows
        for i in range(2, len(line))
        if line[i] in ("torch", "torch_mpi", "mpi") and line[i + 1].isdigit()
    ]
    assert len(numbers) == len(rows) > 20
    cases, seconds = map(sum, zip(*numbers, strict=True))
    assert cases == int(title[0])
    assert seconds == pytest.approx(FULL.budget_s, abs=0.05 * len(rows))
    assert "exactly the sizes that the strategies send" in stdout
    assert "allreduce, 2 at once, 2 apart" in stdout
    assert "duplicates dropped" in stderr
    assert "left out: data+filter 2: p = 2 is not p1 x p2 with both at least 2" in stderr


def test_cases_are_listed(machine: Path) -> None:
    stdout, _ = run("--models", "vgg16-mini", "-p", "2", "--quick", "--cases", "--cluster", machine)
    found = content("--models", "vgg16-mini", "-p", "2", "--quick", "--cluster", machine)
    places = [stdout.index(case["id"]) for case in found["cases"]]
    assert places == sorted(places)


def test_times_of_an_earlier_run(machine: Path, tmp_path: Path) -> None:
    """Launches add up; a case that was left out there, or unknown, has no time."""
    arguments = ("--models", "vgg16-mini", "-p", "2", "--quick", "--cluster", machine)
    first, second, third = [case["id"] for case in content(*arguments)["cases"]][:3]
    about = {"program_version": "0", "cluster_name": "c", "cluster_fingerprint": "f"}
    manifest = Manifest(**about, seed=0, target_half_width=0.025)
    manifest.keep(
        [end(first, 0, 1.5), end(first, 1, 2.25), end(second, 0, 7.0), end("gone", 0, 9.0)]
    )
    manifest.write(tmp_path)
    found = {c["id"]: c["measured_s"] for c in content(*arguments, "--measured", tmp_path)["cases"]}
    assert (found[first], found[second], found[third]) == (3.75, 7.0, None)
    stdout, _ = run(*arguments, "--measured", tmp_path)
    # the first case is the model in place, the second one of many layers
    lines = [line for line in stdout.splitlines() if " 0 " in line]
    assert " 3.8 " in next(line for line in lines if "in place" in line)
    assert " 7.0 (1 of " in next(line for line in lines if "layers" in line)
    with pytest.raises(FileError, match=r"manifest .*none/manifest\.json does not exist"):
        run(*arguments, "--measured", tmp_path / "none")


def test_the_plan_is_written_and_read_back(machine: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    options = tuple(
        words_of(
            "--models vgg16-mini --strategies pipeline,filter -p 2 --batch 16 --segments 2 "
            "--libraries mpi,torch_gloo --sparse 500x8 --shares 0.5,1 --partitions 1,2,3,5 "
            "--budget 90s --seed 5"
        )
    )
    made = content(*options, "--cluster", machine, "-o", path)
    assert Request.read(path) == Request(
        models=("vgg16-mini",),
        strategies=("pipeline", "filter"),
        p=(2,),
        batch=16,
        segments=2,
        libraries=("mpi", "torch_gloo"),
        sparse=Sparse(rows=500, width=8, shares=(0.5, 1.0), partitions=(1, 2, 3, 5)),
        budget_s=90.0,
        seed=5,
    )
    assert content("--plan", path, "--cluster", machine) == made
    _, stderr = run(*options, "--cluster", machine, "-o", path)
    assert f"calib measure --plan {path}" in stderr


def test_mistakes(machine: Path, tmp_path: Path) -> None:
    """One exception with what to do for each."""
    path = tmp_path / "plan.toml"
    Request(p=(1,)).write(path)
    for arguments, message in (
        (("--plan", path, "--budget", "10m"), "change the file instead of giving options"),
        (("--plan", path, "--quick"), "change the file instead of giving options"),
        (("--budget", "ten"), "'ten' is not a time"),
        (("--strategies", "filter,expert"), "strategies = 'expert': must be 'serial', 'data'"),
        (("--libraries", "gloo"), "libraries = 'gloo': must be 'mpi', 'nccl'"),
        (("--batch", "4", "--batch-per-rank", "2"), "give batch or batch_per_rank, not both"),
        (("-p", "two"), "-p 'two' is not a list of numbers"),
        (("--models", "vgg17-mini"), "did you mean vgg16-mini"),
    ):
        with pytest.raises(InputError, match=message):
            run(*arguments, "--cluster", machine)
