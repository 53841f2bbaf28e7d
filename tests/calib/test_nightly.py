"""`calib nightly`: what it refuses, and what a partial night says.

Nothing here starts ranks: tests/calib/test_nightly_runs.py does.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.calib import inside
from tests.calib.nightly_runs import (
    as_it_is,
    begun_by_hand,
    calibration,
    options,
    own_lock,
    request,
    trained,
    write_run,
)
from tests.calib.running import refused
from tests.helpers import filled
from tests.training.launching import ROOT
from typer.main import get_command

from calib.app import app
from calib.commands.nightly import coded
from calib.driver.lock import only_night
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import FileError, InputError
from calib.foundation.run_files import CLUSTER_FILE
from calib.microbench.records.cluster import Cluster
from calib.microbench.timing.watchdog import HANG_SECONDS
from calib.night.directory import night_of
from calib.night.history import look_ahead
from calib.night.hold import code_of, hold, report_on
from calib.night.machine import version_changes
from calib.night.options import Judging
from calib.night.shown import check_rows
from calib.night.steps import predict, report_first, train_all
from calib.reports.drift.verdict import Verdict
from calib.reports.history.store import History
from calib.reports.night import Check, Night
from calib.training.job import TrainingJob


@pytest.fixture(autouse=True)
def _lock(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    own_lock(monkeypatch, tmp_path_factory.mktemp("locks"))


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
        ("p = [1, 4096]\n", "asks for p = 4096, and there are 1 ranks here"),
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
        (["--since", "yesterday"], "since 'yesterday'"),
        (["--since", "2026-11-22T01:00"], "since '2026-11-22T01:00': takes a date"),
        (["--baseline", "then"], "baseline 'then'"),
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
    """Of another user, with another calibration elsewhere."""
    with only_night("night of elsewhere/other"):
        line = nightly(tmp_path, "--calibration", "runs/cal")
    assert "another night is running on" in line and "night of elsewhere/other" in line
    assert not list((tmp_path / "runs").glob("*-night*/"))


# a night that is there already


def test_a_whole_night_is_not_begun_again(known: Path, tmp_path: Path) -> None:
    begun = begun_by_hand(tmp_path / "runs/night", known, request())
    for each in begun.points:
        trained(begun.run, each)
    line = nightly(tmp_path, "-o", "runs/night")
    assert "runs/night is complete" in line and "`calib report runs/night` reports it" in line


def test_a_run_with_a_wrong_result_is_trained_again(known: Path, tmp_path: Path) -> None:
    begun = begun_by_hand(tmp_path / "runs/night", known, request())
    right, wrong = begun.points
    trained(begun.run, right, gradient_difference=1e-7)
    trained(begun.run, wrong, gradient_difference=0.5)
    assert begun.missing() == [wrong]


def test_a_night_is_gone_on_with_as_it_was_begun(known: Path, tmp_path: Path) -> None:
    begun = begun_by_hand(tmp_path / "runs/night", known, request())
    how = {"iterations": 12, "seed": 3, "check_budget_s": 5.0, "hang_s": 9.0}
    begun.night.model_copy(update=how).write(begun.run)
    night = Night.read(begun.run)
    unsaid = options(known, iterations=None, seed=None, check_budget_s=None, hang_s=None)
    assert asdict(unsaid.settled) == {
        "iterations": 30,
        "seed": 0,
        "check_budget_s": 60.0,
        "hang_s": HANG_SECONDS,
    }
    assert asdict(unsaid.going_on(begun.run, night).settled) == how
    # how long one waits for ranks changes nothing that is measured
    assert replace(unsaid, hang_s=90.0).going_on(begun.run, night).settled.hang_s == 90.0
    for option, words in (
        (("--iterations", "13"), "was begun with --iterations 12, not 13; leave it out"),
        (("--seed", "0"), "was begun with --seed 3, not 0"),
        (("--check-budget", "1m"), "was begun with --check-budget 5, not 60"),
    ):
        assert words in nightly(tmp_path, "-o", "runs/night", *option)


def test_what_a_night_cannot_look_at_is_kept(
    known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_is(monkeypatch)
    content = Parameters.read(known / "parameters.json")
    bare = content.model_copy(update={"layers": [], "collectives": [], "tensor_loops": []})
    bare.write(known / "parameters.json")
    asked = request(p=(3,), strategies=("data", "data+filter"))
    asked.write(tmp_path / "other.toml")
    with night_of(options(known, plan=tmp_path / "other.toml", ranks=3, seed=None)) as begun:
        night = Night.read(begun.run)
    assert [point.label for point in night.planned] == ["cosmoflow-mini data p=3"]
    assert [each.what for each in night.unplanned] == ["cosmoflow-mini data+filter p=3"]
    assert "is not p1 x p2" in night.unplanned[0].why
    assert [each.line for each in night.unchecked] == [
        "the check: the parameters hold no measured case of these points"
    ]
    assert (night.iterations, night.seed, night.check_budget_s) == (6, 0, 1.0)
    told = "\n".join(begun.said)
    assert (
        "not planned: cosmoflow-mini data+filter p=3: " in told and "not made: the check: " in told
    )


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

    made_report, remembered = report_on(begun, Judging(least_accuracy=0.01))
    findings = made_report.findings
    assert remembered and findings.verdict is not None and findings.verdict.code == 2
    assert [(a.model, a.strategy) for a in findings.accuracies] == [(whole.model.name, "serial")]
    lines = "\n".join(each.line for each in findings.missing)
    assert len(findings.missing) == 5
    assert "rank 1 on n2 died" in lines and "was not run" in lines
    assert f"{failed.label}: rank 1 on n2 died" in lines.splitlines()
    # too low is worse than not known
    assert report_on(begun, Judging(least_accuracy=0.99))[0].findings.verdict.code == 1


def test_a_night_of_gpus(known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained by NCCL, scored by what was calibrated on GPUs, in a history of theirs."""
    asked = request(device="cuda")
    shutil.rmtree(known)
    calibration(known, asked)
    begun = begun_by_hand(tmp_path / "runs/night", known, asked)
    assert not predict(begun.run, begun.points, begun.parameters)
    jobs = []

    def train(path: Path, job: TrainingJob, launcher: str) -> None:
        jobs.append(job)
        point = next(x for x in begun.points if x.path(begun.run) == path)
        trained(begun.run, point, device="cuda", library="torch_nccl", backend="nccl")

    monkeypatch.setattr("calib.night.steps.train", train)
    train_all(begun)
    assert {job.settings.backend for job in jobs} == {"nccl"} and not begun.missing()
    made, remembered = report_on(begun, Judging(least_accuracy=0.01))
    assert remembered and len(made.findings.accuracies) == len(begun.points)
    cluster = Cluster.read(known / CLUSTER_FILE)
    with History.open(str(tmp_path / "runs/calib.db")) as store:
        assert [each.machine for each in store.machines()] == [cluster.history("cuda")]


def test_a_night_with_nothing(known: Path, tmp_path: Path) -> None:
    """As `kill -9` leaves it before the first training is done."""
    begun = begun_by_hand(tmp_path / "runs/night", known, request())
    made, _ = report_on(begun, Judging())
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
    notes = str(tmp_path / "notes.txt")
    made, remembered = report_on(begun, Judging(notes, least_accuracy=0.01))
    assert not remembered and len(made.findings.accuracies) == 2
    assert "not remembered: " in capsys.readouterr().err
    # nor does a date that the judge does not take
    made, remembered = report_on(begun, Judging(None, "2026-11-22T01:00"))
    assert not remembered and len(made.findings.accuracies) == 2
    # and it is said before the night begins
    look_ahead(options(known), Judging(notes))
    said = capsys.readouterr().err
    assert said.count("note: ") == 1 and "notes.txt" in said and "may not be remembered" in said
    look_ahead(options(known, output=tmp_path / "new/n"), Judging())
    look_ahead(options(known), Judging(str(tmp_path / "new.db")))
    assert not capsys.readouterr().err, "a history that is yet to be made"
    look_ahead(options(known), Judging(str(tmp_path / "none/new.db")))
    assert "none/new.db cannot be written" in capsys.readouterr().err


def test_versions_that_changed(known: Path, tmp_path: Path) -> None:
    begun = begun_by_hand(tmp_path / "runs/night", known, request())
    assert version_changes(begun.calibrated_on, begun.cluster) == []
    host = begun.cluster.hosts[0]
    versions = {**host.versions, "torch": "99", "new": "1"}
    del versions["numpy"]
    newer = host.model_copy(update={"versions": versions, "kernel": "Linux 99"})
    begun.cluster = begun.cluster.model_copy(update={"hosts": [newer]})
    assert version_changes(begun.calibrated_on, begun.cluster) == [
        f"kernel {host.kernel} -> Linux 99",
        "new none -> 1",
        f"numpy {host.versions['numpy']} -> none",
        f"torch {host.versions['torch']} -> 99",
    ]
    assert begun.cluster.machine == begun.calibrated_on.machine


def test_the_table_of_the_check() -> None:
    def check(case: str, expected: float, measured: float) -> Check:
        return Check(
            kind="network",
            what="allreduce, torch_mpi, node, p=2",
            case=case,
            expected=filled.near(expected),
            measured=filled.near(measured),
        )

    # geometric mean of 2, 0.5 and 1.21: 1.21 ** (1/3) = 1.0656
    ((what, cases, change, farthest),) = check_rows(
        [check("8 B", 1e-5, 2e-5), check("4 KiB", 1e-4, 4e-5), check("1 MiB", 1e-3, 1.5125e-3)]
    )
    assert (what, cases) == ("allreduce, torch_mpi, node, p=2", "3")
    assert change == "+6.6%" and farthest == "-60.0% 4 KiB: 100 µs -> 40 µs"


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


def test_what_is_wrong_stays_so_where_a_night_was_stopped(known: Path, tmp_path: Path) -> None:
    begun = begun_by_hand(tmp_path / "runs/night", known, request())
    found = report_on(begun, Judging())[0].findings
    for of, done, code in (
        (0, True, 0),
        (1, True, 1),
        (2, True, 2),
        (0, False, 2),
        (1, False, 1),
        (2, False, 2),
        (3, True, 3),
        (3, False, 2),
    ):
        assert code_of(replace(found, verdict=Verdict(of, ("why",))), done) == code
    assert code_of(replace(found, verdict=None), True) == 2


def test_a_signal_is_never_silent(
    known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> bool:
        raise KeyboardInterrupt

    assert coded(stopped) == 2 and capsys.readouterr().err == "interrupted\n"
    as_it_is(monkeypatch)
    monkeypatch.setattr("calib.night.hold.measured", stopped)
    assert hold(options(known, output=tmp_path / "runs/n"), Judging()) == 2
    assert f"interrupted; `calib report {tmp_path / 'runs/n'}`" in capsys.readouterr().err


@pytest.fixture
def signals() -> Iterator[Callable[[], list[object]]]:
    """How SIGTERM and SIGINT are handled; afterwards they are as they were."""
    both = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(each) for each in both]
    yield lambda: [signal.getsignal(each) for each in both]
    for each, handler in zip(both, before, strict=True):
        signal.signal(each, handler)


def test_the_report_comes_first(
    signals: Callable[[], list[object]], capfd: pytest.CaptureFixture[str]
) -> None:
    """Of what was measured: a batch system's signals wait for it; a second Ctrl-C ends it."""
    before, done = signals(), []
    with pytest.raises(KeyboardInterrupt), report_first():
        signal.raise_signal(signal.SIGINT)
        done.append("a part")
        signal.raise_signal(signal.SIGINT)
        done.append("too much")
    assert done == ["a part"] and signals() == before
    assert capfd.readouterr().err.count("the report comes first") == 1
    with report_first():
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        done.append("the report")
    assert done == ["a part", "the report"]
    assert capfd.readouterr().err.count("the report comes first") == 2
    assert signals() == [signal.SIG_IGN, signal.SIG_IGN], "the exit code could still be lost"


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
        only_night("other"),
        pytest.raises(InputError, match="another night"),
        night_of(options(known)),
    ):
        pass
