"""calib.scored_run and calib.findings: what a run directory says, and what is remembered of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from calib.findings import Report, report_of
from calib.night_points import Point
from calib.rundir import CALIBRATED_ON, HISTORY_FILE, PARAMETERS_FILE
from calib.scored_run import RUN_ID, scored
from fitting.fit import CLUSTER_FILE
from foundation.errors import FileError, InputError
from microbench.cluster import Cluster, Level
from reports.history.store import History
from reports.night import Missing, Night, PlannedPoint
from tests.calib.nightly_runs import calibration, known_points, request, trained, write_run
from tests.reports.records import run as training_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with one whole training, of 25 ms an iteration."""
    made = calibration(tmp_path / "runs" / "one")
    trained(made, point())
    return made


def point() -> Point:
    return known_points(request())[0]


def remembered(report: Report) -> list[str]:
    assert report.findings.past is not None
    return [night.run for night in report.findings.past.nights]


def test_a_run_is_scored_against_its_parameters(run: Path) -> None:
    found = scored(run)
    [accuracy] = found.accuracies
    assert accuracy.total.measured.seconds == pytest.approx(0.025 * 1.0035)  # the middle of 0 to 7
    assert (found.missing, found.notes, found.night) == ([], [], None)
    entry = found.entry
    assert (entry.run, entry.planned, entry.nightly) == ("one", 1, False)
    assert entry.machine == Cluster.read(run / CLUSTER_FILE).machine
    assert entry.started == accuracy.started


def test_a_copy_is_the_same_run(run: Path) -> None:
    first = scored(run).entry.id
    copy = Path(shutil.copytree(run, run.with_name("copy")))
    assert scored(copy).entry.id == scored(run).entry.id == first
    (copy / RUN_ID).unlink()
    assert scored(copy).entry.id != first
    with pytest.raises(InputError, match="the same run"):
        report_of([run, run])


def test_what_stands_for_an_identity_is_not_believed(run: Path) -> None:
    """A directory in its place, or something else in the file, is as if it could not be written."""
    (run / RUN_ID).mkdir()
    first = scored(run).entry.id
    assert first == scored(run).entry.id
    (run / RUN_ID).rmdir()
    (run / RUN_ID).write_text("<script>\n")
    assert scored(run).entry.id == first


def test_parameters_of_another(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    (run / PARAMETERS_FILE).rename(other)
    with pytest.raises(FileError, match=r"holds no parameters\.json .*--parameters FILE"):
        scored(run)
    assert len(scored(run, other).accuracies) == 1
    content = other.read_text().replace(Cluster.read(run / CLUSTER_FILE).fingerprint, "0" * 16)
    other.write_text(content)
    [missing] = scored(run, other).missing
    assert "ran on another machine" in missing.why


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


def night_of(run: Path, failed: dict[str, str]) -> Night:
    """A night that planned the run's training and two that are not there."""
    first = PlannedPoint(model="a", strategy="serial", p=1, label="first",
                         file=str(point().path(run).relative_to(run)))  # fmt: skip
    others = [first.model_copy(update={"label": x, "file": f"training/{x}.jsonl"}) for x in "bc"]
    made = Night(
        id="0123456789abcdef", started="2026-11-22T01:00:00+00:00", calibration="nowhere",
        planned=[first, *others], failed=failed,
        unchecked=[Missing(what="allreduce", why="no time")],
    )  # fmt: skip
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
    assert any("the whole check" in line for line in report.findings.verdict.lines)


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
    (copy / RUN_ID).unlink()
    write_run(
        point().path(copy),
        training_run([0.03] * 8, model=point().model, strategy="serial", p=1, batch_per_pe=4,
                     optimizer="momentum", started="2026-11-23T10:00:00Z",
                     cluster_fingerprint=Cluster.read(run / CLUSTER_FILE).fingerprint),
    )  # fmt: skip
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
    report = report_of([run])
    [note] = report.findings.notes
    assert note.startswith("no history: ") and report.findings.past is None
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
