"""calib.scoring: what a run directory says, and what is remembered of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.calib.nightly_runs import (
    calibration,
    known_points,
    predicted,
    request,
    trained,
    write_run,
)
from tests.helpers.filled import of_two_clusters
from tests.reports.records import look
from tests.reports.records import projection as plain_projection
from tests.reports.records import run as training_run

from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.signature import EditedWarning
from calib.fitting.parameters.speed import References, Speed, SpeedLaw
from calib.foundation.division import Division
from calib.foundation.errors import FileError, InputError
from calib.foundation.records import Estimate
from calib.foundation.run_files import (
    CALIBRATED_ON,
    CLUSTER_FILE,
    HISTORY_FILE,
    PARAMETERS_FILE,
    PREDICTIONS_FILE,
)
from calib.microbench.records.cluster import Cluster, Level
from calib.microbench.records.looks import Disturbance
from calib.night.options import Settled
from calib.night.points import NightPoint
from calib.reports.drift.verdict import DISTURBED
from calib.reports.history.store import History
from calib.reports.night import Check, Night, PlannedPoint
from calib.reports.scoring.accuracy import Missing
from calib.scoring.findings import Report, report_of
from calib.scoring.run import scored
from calib.training.run.record import TrainingRun


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with one whole training, of 25 ms an iteration."""
    made = calibration(tmp_path / "runs" / "one")
    predicted(made, [point()])
    trained(made, point())
    return made


def point() -> NightPoint:
    return known_points(request())[0]


def remembered(report: Report) -> list[str]:
    assert report.findings.past is not None
    return [night.run for night in report.findings.past.nights]


def test_a_run_is_scored_against_its_parameters(run: Path) -> None:
    found = scored(run)
    [accuracy] = found.accuracies
    assert accuracy.total.measured.value == pytest.approx(0.025 * 1.0035)  # the middle of 0 to 7
    assert (found.missing, found.notes, found.night) == ([], [], None)
    entry = found.entry
    assert (entry.run, entry.planned, entry.nightly) == ("one", 1, False)
    assert entry.machine == Cluster.read(run / CLUSTER_FILE).machine
    assert entry.started == accuracy.started


def test_a_copy_is_the_same_run(run: Path) -> None:
    """Also after it was renamed, and after it grew."""
    first = scored(run).entry.id
    copy = Path(shutil.copytree(run, run.with_name("copy")))
    write_run(copy / "training" / "later.jsonl", another(run, "2026-11-24T10:00:00Z"))
    assert scored(copy).entry.id == first and len(scored(copy).accuracies) == 2
    with pytest.raises(InputError, match="the same run"):
        report_of([run, copy])


def test_the_same_training_twice_counts_once(run: Path) -> None:
    shutil.copy(point().path(run), run / "training" / "copy.jsonl")
    found = scored(run)
    assert len(found.accuracies) == 1
    assert [note.partition(": ")[2] for note in found.notes] == [
        "the same training as another file here; counted once"
    ]


def another(run: Path, started: str) -> TrainingRun:
    """The same work on another day, 30 ms an iteration."""
    return training_run(
        [0.03] * 8,
        model=point().model.name,
        strategy="serial",
        p=1,
        batch_per_rank=4,
        optimizer="momentum",
        started=started,
        cluster_fingerprint=Cluster.read(run / CLUSTER_FILE).fingerprint,
    )


@pytest.mark.parametrize("model", ["/etc/passwd", "nosuch.json", "x" * 300, "a\x1b[31mb\nc"])
def test_a_model_that_is_none_costs_its_own_run(run: Path, model: str) -> None:
    """Its name may be a file's, or no file's: the others are scored."""
    odd = another(run, "2026-11-24T10:00:00Z")
    header = odd.header.model_copy(update={"model": model})
    write_run(run / "training" / "odd.jsonl", odd.model_copy(update={"header": header}))
    report = report_of([run])
    assert len(report.findings.accuracies) == 1
    assert any("not predicted" in note for note in report.findings.notes)
    report.write(run / "report.html")


def test_predictions_that_are_no_numbers(run: Path) -> None:
    projection = plain_projection(1.0).model_dump()
    text = json.dumps({"projections": [projection]}).replace("0.3", "1e999", 1)
    (run / PREDICTIONS_FILE).write_text(text)
    with pytest.raises(FileError, match=r"predictions\.json: projections\.0\..*finite number"):
        scored(run)


def test_parameters_of_another(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    (run / PARAMETERS_FILE).rename(other)
    with pytest.raises(FileError, match=r"holds no parameters\.json .*--parameters FILE"):
        scored(run)
    assert len(scored(run, other).accuracies) == 1
    content = other.read_text().replace(Cluster.read(run / CLUSTER_FILE).fingerprint, "0" * 16)
    other.write_text(content)
    with pytest.warns(EditedWarning):
        whys = [missing.why for missing in scored(run, other).missing]
    assert [why.split(" (")[0] for why in whys] == [
        "it was edited by hand after its fit: what it predicts was not measured",
        "could not be made again: it was made from other parameters",
        "ran on another machine",
    ]


def test_parameters_of_several_clusters_are_said(run: Path) -> None:
    of_two_clusters(Parameters.read(run / PARAMETERS_FILE)).write(run / PARAMETERS_FILE)
    [note] = scored(run).notes
    assert note.startswith(f"{run / PARAMETERS_FILE}: merged of different clusters: ")


def test_another_machine_and_other_versions(run: Path) -> None:
    """Runs of other versions count on the same hardware, where the run says what was calibrated."""
    before = Cluster.read(run / CLUSTER_FILE)
    [host] = before.hosts
    versions = host.model_copy(update={"versions": {**host.versions, "torch": "1.0"}})
    now = before.model_copy(update={"hosts": [versions]})
    assert now.fingerprint != before.fingerprint and now.machine == before.machine
    now.write(run / CLUSTER_FILE)
    trained(run, point())
    [missing] = scored(run).missing
    assert "ran on another machine" in missing.why
    before.write(run / CALIBRATED_ON)
    found = scored(run)
    assert len(found.accuracies) == 1 and found.calibrated_on == before
    assert found.entry.versions["torch"] == "1.0"
    larger = now.model_copy(
        update={"levels": [Level(name="node", members=64, link="shared memory")]}
    )
    larger.write(run / CLUSTER_FILE)
    trained(run, point())
    [missing] = scored(run).missing
    assert "ran on another machine" in missing.why


def night_of(
    run: Path,
    failed: dict[str, str],
    checks: Sequence[Check] = (),
    unplanned: Sequence[Missing] = (),
) -> Night:
    """A night that planned the run's training and two that are not there."""
    first = PlannedPoint(
        model="a",
        division=Division("serial", 1, 4),
        label="first",
        file=str(point().path(run).relative_to(run)),
    )
    others = [first.model_copy(update={"label": x, "file": f"training/{x}.jsonl"}) for x in "bc"]
    made = Night(
        id="0123456789abcdef",
        started="2026-11-22T01:00:00+00:00",
        calibration="nowhere",
        planned=[first, *others],
        failed=failed,
        unchecked=[Missing(what="allreduce", why="no time", kind="network")],
        checks=list(checks),
        unplanned=list(unplanned),
        **asdict(Settled()),
    )
    made.write(run)
    return made


def test_a_night_says_what_is_missing(run: Path) -> None:
    made = night_of(run, {"b": "node h3 is down"})
    found = scored(run)
    assert len(found.accuracies) == 1
    assert [one.line for one in found.missing] == ["b: node h3 is down", "c: was not run"]
    assert found.entry.id == made.id and found.entry.planned == 3
    assert [one.what for one in found.entry.missing] == ["b", "c", "allreduce"]
    report = report_of([run], least_accuracy=0.01)
    assert report.findings.verdict is not None and report.findings.verdict.code == 2
    lines = [line for line in report.findings.verdict.lines if "the check" in line]
    assert lines == ["missing: the check of network: allreduce: no time"]
    assert any("has no end" in note for note in report.findings.notes)


def test_a_check_that_was_made_in_part(run: Path) -> None:
    """Of each kind something must be there; of a night whose plan could not be laid out, too."""
    time = Estimate(value=1.0, low=0.9, high=1.1)
    made = Check(kind="network", what="allreduce", case="8 B", expected=time, measured=time)
    night_of(run, {}, [made])
    verdict = report_of([run], least_accuracy=0.01).findings.verdict
    assert verdict is not None and not any("the check" in line for line in verdict.lines)
    night_of(run, {}, [made], [Missing(what="pipeline", why="7 segments")])
    assert "pipeline: 7 segments" in [one.line for one in scored(run).missing]


def test_a_night_of_which_nothing_ran(run: Path) -> None:
    night_of(run, {})
    shutil.rmtree(run / "training")
    found = scored(run)
    assert found.accuracies == [] and len(found.missing) == 3
    assert report_of([run]).findings.summary.points == 0


@pytest.mark.parametrize("lines", [0, 1, 4])
def test_a_half_run_is_never_scored(run: Path, lines: int) -> None:
    """Cut after so many lines (or inside the first), and why it failed is said."""
    path = point().path(run)
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:lines]) or whole[0][:40])
    found = scored(run)
    assert found.accuracies == [] and len(found.missing) == 1
    night_of(run, {"first": "rank 1 died"})
    found = scored(run)
    assert found.accuracies == []
    assert found.missing[0].line == "first: rank 1 died"
    assert [one.what for one in found.missing] == ["first", "b", "c"]


def test_a_run_is_remembered_once(run: Path) -> None:
    assert remembered(report_of([run])) == ["one"]
    assert remembered(report_of([run])) == ["one"]
    copy = Path(shutil.copytree(run, run.with_name("two")))
    write_run(point().path(copy), another(run, "2026-11-23T10:00:00Z"))
    both = report_of([copy, run])
    assert remembered(both) == ["one", "two"] and list(both.findings.runs) == ["one", "two"]
    assert both.found[-1].path == copy
    assert len(both.findings.accuracies) == 2


def test_a_history_that_is_not_wanted_is_not_made(run: Path) -> None:
    report = report_of([run], record=False)
    assert report.findings.past is None and report.findings.drift is None
    assert not (run.parent / HISTORY_FILE).exists()
    with pytest.raises(InputError, match="there is none"):
        report_of([run], record=False, since="2026-01-01")


def test_a_history_that_is_spoilt(run: Path, tmp_path: Path) -> None:
    """Beside the runs, it is said; one that was asked for must work."""
    (run.parent / HISTORY_FILE).write_text("this is no database, whatever its name says" * 30)
    report = report_of([run], least_accuracy=0.01)
    [note] = report.findings.notes
    assert note.startswith("not remembered: ") and report.findings.past is None
    assert report.findings.verdict is not None and report.findings.verdict.code == 2
    with pytest.raises((FileError, InputError)):
        report_of([run], str(run.parent / HISTORY_FILE))
    elsewhere = tmp_path / "elsewhere.db"
    assert remembered(report_of([run], str(elsewhere))) == ["one"]
    with History.open(str(elsewhere), read_only=True) as history:
        assert len(history.past().points) == 1


def test_the_report_is_written(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "out" / "page.html"
    report_of([run]).write(page)
    assert "<html" in page.read_text() and (page.parent / "report.json").exists()


def test_threads_that_wait_for_one_another_are_no_disturbance(run: Path) -> None:
    predicted(run, [point()])
    [guess] = [of.total.predicted.value for of in scored(run).accuracies]
    trained(run, point(), guess, waited=[guess / 2] * 8, looks=[look() for _ in range(4)])
    [of] = report_of([run]).findings.accuracies
    assert of.waited == 0.0 and of.disturbed == []
    assert of.at_speed is not None and of.at_speed.measured == of.total.measured


@pytest.mark.parametrize("disturbed", [["cores"], ["cores", "slow"]])
def test_a_disturbed_training_is_not_the_oracles_fault(
    run: Path, disturbed: list[Disturbance]
) -> None:
    """A rank waited for a third of its time; the rest took twice as long, as its reference did."""
    known = References(ranks=1, looks=9, seconds={"arithmetic_s": Estimate.exactly(1e-3)})
    law = SpeedLaw(of="compute", exponents={"arithmetic_s": Estimate.exactly(1.0)}, n=9)
    content = Parameters.read(run / PARAMETERS_FILE)
    with_speed = content.model_copy(update={"speed": Speed(references=[known], laws=[law])})
    with_speed.write(run / PARAMETERS_FILE)
    predicted(run, [point()])
    [guess] = [of.total.predicted.value for of in scored(run).accuracies]
    looks = [look(*disturbed, arithmetic_s=2e-3) for _ in range(4)]
    trained(run, point(), 3 * guess, waited=[guess] * 8, looks=looks)

    report = report_of([run])
    [of] = report.findings.accuracies
    assert of.total.accuracy == pytest.approx(1 / 3, abs=0.01)
    assert of.waited == pytest.approx(1 / 3, abs=0.01) and of.disturbed == disturbed
    assert of.slowdown is not None and of.slowdown.value == pytest.approx(2.0)
    assert of.at_speed is not None and of.at_speed.accuracy == pytest.approx(1.0, abs=0.01)
    assert report.findings.verdict is not None and report.findings.verdict.code == DISTURBED
    past = report.findings.past
    assert past is not None
    [kept] = past.points
    assert kept.disturbed == ",".join(disturbed)
    assert kept.at_speed_s == pytest.approx(of.at_speed.measured.value)
    assert (kept.waited, kept.slowdown) == (of.waited, of.slowdown.value)
    report.write(run / "report.html")
    document = json.loads((run / "report.json").read_text())
    assert document["summary"]["at_speed"]["slowdown"] == pytest.approx(2.0)
    assert document["accuracies"][0]["disturbed"] == disturbed
