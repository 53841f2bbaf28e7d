"""`calib nightly`: what it refuses, and what a partial night says.

Nothing here starts ranks: tests/calib/test_nightly_runs.py does.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.main import get_command

from calib.cli import app
from calib.commands.nightly import coded, report_on
from calib.night import night_of
from calib.night_lock import only_night
from calib.night_machine import version_changes
from calib.night_steps import predict
from calib.night_table import check_rows
from foundation.errors import FileError, InputError
from reports.night import Check, Night
from tests.calib import inside
from tests.calib.nightly_runs import (
    begun_by_hand,
    calibration,
    options,
    request,
    trained,
    write_run,
)
from tests.calib.running import refused
from tests.helpers import filled
from tests.training.launching import ROOT


@pytest.fixture
def known(tmp_path: Path) -> Path:
    return calibration(tmp_path / "runs/cal")


def nightly(cwd: Path, *arguments: str) -> str:
    return refused(inside.calib(cwd, "nightly", *arguments))


# what is refused before anything is started


def test_no_calibration(tmp_path: Path) -> None:
    line = nightly(tmp_path)
    assert "no calibration runs/latest here; `make calibrate` makes one" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("parameters.json", "runs/cal holds no parameters.json: it is no finished calibration"),
        ("plan.toml", "runs/cal holds no plan.toml that says what to train; name one with --plan"),
        ("cluster.json", "cluster.json"),
    ],
)
def test_half_a_calibration(known: Path, tmp_path: Path, gone: str, words: str) -> None:
    (known / gone).unlink()
    assert words in nightly(tmp_path, "--calibration", "runs/cal")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["cal"]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ('models = ["vgg17"]\np = [1]\n', "vgg17"),
        ("p = [1, 4096]\n", "asks for p = 4096, and there are 1 PEs here"),
        ('p = [1]\nmodel = "vgg16"\n', "unknown key model; did you mean models?"),
        ("p = [1\n", "is not TOML"),
    ],
)
def test_a_plan_that_cannot_be(known: Path, tmp_path: Path, plan: str, words: str) -> None:
    (tmp_path / "plan.toml").write_text(plan)
    line = nightly(tmp_path, "--calibration", "runs/cal", "--plan", "plan.toml")
    assert words in line
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["cal"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--check-budget", "soon"], "--check-budget 'soon' is not a time"),
        (["--least-accuracy", "80"], "--least-accuracy '80' is not a share"),
        (["--since", "yesterday"], "--since"),
        (["--baseline", "then"], "--baseline"),
        (["--baseline", "2020-01-01..2020-02-01"], "holds no night"),
        (["--history", "mysql://host/base"], "mysql"),
        (["--night", "2026-11-01"], "--night goes with --accept"),
        (["--iterations", "5"], "greater than or equal to 6"),
        (["--launcher", "none"], "none"),
        (["--plan", "none.toml"], "none.toml"),
        (["-o", "/proc/self/night"], "/proc/self/night"),
        (["-o", "runs/cal/plan.toml"], "runs/cal/plan.toml"),
        (["-o", "n" * 300], "nnn"),
        (["--calibration", "n" * 300], "no calibration nnn"),
        (["-o", "runs/cal"], "runs/cal is there and holds no night; choose another -o"),
        (["--calibration", "runs/none"], "no calibration runs/none here"),
    ],
)
def test_options_that_cannot_be(
    known: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    assert words in nightly(tmp_path, "--calibration", "runs/cal", *arguments)
    kept = {path.name for path in (tmp_path / "runs").iterdir()} - {"calib.db"}
    assert {name for name in kept if not name.startswith(".")} == {"cal"}


def test_a_night_is_no_calibration(known: Path, tmp_path: Path) -> None:
    begun_by_hand(tmp_path / "runs/night", known, request())
    line = nightly(tmp_path, "--calibration", "runs/night")
    assert "runs/night is a night; --calibration names the run it was calibrated by" in line


def test_while_another_runs(known: Path, tmp_path: Path) -> None:
    with only_night(tmp_path / "runs", "night of runs/other"):
        line = nightly(tmp_path, "--calibration", "runs/cal")
    assert "another night is running on" in line and "night of runs/other" in line
    assert not list((tmp_path / "runs").glob("*-night*/"))


# a night that is there already


def test_a_whole_night_is_not_begun_again(known: Path, tmp_path: Path) -> None:
    begun = begun_by_hand(tmp_path / "runs/night", known, request())
    for each in begun.points:
        trained(begun.run, each)
    assert "runs/night is whole" in nightly(tmp_path, "-o", "runs/night")


def test_a_night_of_another_plan(known: Path, tmp_path: Path) -> None:
    begun_by_hand(tmp_path / "runs/night", known, request())
    request(("vgg16-mini",)).write(tmp_path / "other.toml")
    line = nightly(tmp_path, "-o", "runs/night", "--plan", "other.toml")
    assert "begun with another plan; leave --plan out to go on" in line


def test_a_partial_night_says_what_is_missing(known: Path, tmp_path: Path) -> None:
    """Of six points one is whole; the others failed, were never run, or were killed in the middle."""
    asked = request(("cosmoflow-mini", "vgg16-mini", "resnet50-mini"))
    shutil.rmtree(known)
    calibration(known, asked)
    begun = begun_by_hand(tmp_path / "runs/night", known, asked)
    assert not predict(begun.run, begun.points, begun.parameters)
    whole, failed, half, torn, _, empty = begun.points
    trained(begun.run, whole)
    begun.night.failed[failed.label] = "rank 1 on n2 died"
    begun.night.write(begun.run)
    made = trained(begun.run, half)
    write_run(
        half.path(begun.run),
        made.model_copy(update={"iterations": made.iterations[:4], "end": None}),
    )
    trained(begun.run, torn)
    torn.path(begun.run).write_text(torn.path(begun.run).read_text()[:-30])
    empty.path(begun.run).write_text("")
    assert begun.missing() == begun.points[1:]

    made_report, remembered = report_on(begun, None, "", "", 0.01)
    findings = made_report.findings
    assert remembered and findings.verdict is not None and findings.verdict.code == 2
    assert [(a.model, a.strategy) for a in findings.accuracies] == [(whole.model, "serial")]
    lines = "\n".join(each.line for each in findings.missing)
    assert len(findings.missing) == 5
    assert "rank 1 on n2 died" in lines and "was not run" in lines
    assert f"{failed.label}: rank 1 on n2 died" in lines.splitlines()
    # too low is worse than not known
    assert report_on(begun, None, "", "", 0.99)[0].findings.verdict.code == 1


def test_a_night_with_nothing(known: Path, tmp_path: Path) -> None:
    """As `kill -9` leaves it before the first training is done."""
    begun = begun_by_hand(tmp_path / "runs/night", known, request())
    made, _ = report_on(begun, None, "", "", 0.8)
    verdict = made.findings.verdict
    assert verdict is not None and verdict.code == 2
    text = "\n".join(verdict.lines)
    assert all(each.label in text for each in begun.points)
    assert (tmp_path / "runs/calib.db").exists()


def test_a_history_that_cannot_be_reached_costs_no_night(
    known: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = begun_by_hand(tmp_path / "runs/night", known, request())
    predict(begun.run, begun.points, begun.parameters)
    for each in begun.points:
        trained(begun.run, each)
    (tmp_path / "notes.txt").write_text("this is no database, but a longer text\n" * 100)
    made, remembered = report_on(begun, str(tmp_path / "notes.txt"), "", "", 0.01)
    assert not remembered and len(made.findings.accuracies) == 2
    assert "not remembered: " in capsys.readouterr().err


def test_versions_that_changed(known: Path, tmp_path: Path) -> None:
    begun = begun_by_hand(tmp_path / "runs/night", known, request())
    assert version_changes(begun.calibrated_on, begun.cluster) == []
    host = begun.cluster.hosts[0]
    versions = {**host.versions, "torch": "99", "new": "1"}
    del versions["numpy"]
    newer = host.model_copy(update={"versions": versions, "kernel": "Linux 99"})
    begun.cluster = begun.cluster.model_copy(update={"hosts": [newer]})
    assert version_changes(begun.calibrated_on, begun.cluster) == [
        f"kernel {host.kernel} -> Linux 99", "new none -> 1",
        f"numpy {host.versions['numpy']} -> none", f"torch {host.versions['torch']} -> 99",
    ]  # fmt: skip
    assert begun.cluster.machine == begun.calibrated_on.machine


def test_the_table_of_the_check() -> None:
    def check(case: str, expected: float, measured: float) -> Check:
        return Check(kind="network", what="allreduce, torch_mpi, node, p=2", case=case,
                     expected=filled.near(expected), measured=filled.near(measured))  # fmt: skip

    # geometric mean of 2, 0.5 and 1.21: 1.21 ** (1/3) = 1.0656
    ((what, cases, expected, measured, change, farthest),) = check_rows(
        [check("8 B", 1e-5, 2e-5), check("4 KiB", 1e-4, 4e-5), check("1 MiB", 1e-3, 1.5125e-3)]
    )
    assert (what, cases) == ("allreduce, torch_mpi, node, p=2", "3")
    assert (expected, measured) == ("100 µs", "40 µs")
    assert change == "+6.6%" and farthest == "-60.0% 4 KiB"


def test_the_exit_code_is_never_that_of_a_drift_by_accident(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full() -> int:
        raise OSError(28, "No space left on device")

    assert coded(lambda: 1) == 1
    assert coded(lambda: 1 // 0) == 2 and "ZeroDivisionError" in capsys.readouterr().err
    with pytest.raises(FileError, match="what the night found: No space left"):
        coded(full)
    with pytest.raises(InputError, match="as it is"):
        coded(lambda: (_ for _ in ()).throw(InputError("as it is")))


@pytest.mark.parametrize("name", ["crontab", "scrontab", "nightly.yml"])
def test_the_examples_are_of_this_program(name: str) -> None:
    """Their words are taken by the verbs that they call."""
    text = (ROOT / "docs/examples" / name).read_text()
    group = get_command(app)
    calls = re.findall(r"\.venv/bin/calib ([^>&|\n;]+)", text)
    assert calls
    for call in calls:
        verb, *words = shlex.split(call)
        group.commands[verb].make_context(verb, words)  # raises for what it does not know


def test_a_night_is_its_own_directory(known: Path, tmp_path: Path) -> None:
    """A night that was begun by hand has what `calib report` needs of it, wherever it is copied."""
    begun = begun_by_hand(tmp_path / "runs/night", known, request())
    trained(begun.run, begun.points[0])
    predict(begun.run, begun.points, begun.parameters)
    away = tmp_path / "away/night"
    shutil.copytree(begun.run, away)
    shutil.rmtree(tmp_path / "runs")
    done = inside.calib(tmp_path, "report", "away/night", "--json")
    assert done.returncode == 0, done.stderr
    assert Night.read(away).id == begun.night.id
    assert len(json.loads(done.stdout)["accuracies"]) == 1


def test_a_night_is_held_by_one_only(known: Path, tmp_path: Path) -> None:
    with (
        only_night(tmp_path / "runs", "other"),
        pytest.raises(InputError, match="another night"),
        night_of(options(known)),
    ):
        pass
