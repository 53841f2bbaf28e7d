"""What the driver does when ranks end early, with a launcher that is a script of the test."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.helpers.divided import model_case

from calib.driver.launches import NOT_NEEDED, Launches
from calib.driver.ranks import RanksEnded
from calib.foundation.errors import MeasurementError
from calib.microbench.cases import Case, CollectiveCase, Plan, write_plan
from calib.microbench.records.manifest import CaseEnd
from calib.microbench.records.parts import cases_done, read_ends

SIZES = (8, 16, 24)
CASES = tuple(
    CollectiveCase(operation="allreduce", nbytes=nbytes, ranks=2, group_size=2) for nbytes in SIZES
)
LOCK = sys.__stderr__.fileno()  # any open file descriptor
LAUNCHES = 2

# called as `python fake.py N python -m calib measure -o RUN --launch LAUNCH [--again ID]`; `calls`
# counts starts
HEAD = """
import json, os, sys
from pathlib import Path
from calib.microbench.cases import read_plan
from calib.microbench.records.parts import cases_done, write_part
from calib.microbench.rows import case_end
from tests.helpers.rows import sample, table_of
said = dict(zip(sys.argv[6::2], sys.argv[7::2]))
run, launch, again = Path(said["-o"]), int(said["--launch"]), said.get("--again", "")
counter = run / "calls"
calls = int(counter.read_text()) if counter.exists() else 0
counter.write_text(str(calls + 1))
def event(**content):
    print("calib-event " + json.dumps(content), flush=True)
def begin(case):
    event(event="case", id=case.id, label=case.label, done=0, of=1, launch=launch, left_s=1.0)
def measured(case):
    write_part(run, case_end(case, launch, 0.5, stopped_by="interval"),
               table_of([sample(case_id=case.id, launch=launch)]))
todo = [c for c in read_plan(run).cases_for(2) if (c.id, launch) not in cases_done(run)]
"""
GO_ON = """
for case in todo:
    begin(case)
    measured(case)
"""


def launches(
    run: Path, body: str, number: int = LAUNCHES, cases: tuple[Case, ...] = CASES
) -> Launches:
    plan = Plan(cases=cases, launches=number, budget_seconds=900.0)
    (run / "plan.json").write_text(plan.model_dump_json())
    script = run / "fake.py"
    script.write_text(HEAD + body)
    return Launches(run, plan, f"{sys.executable} {script} {{n}}", 25.0, LOCK)


def starts(run: Path) -> int:
    return int((run / "calls").read_text())


def ends(run: Path) -> dict[tuple[int, int], CaseEnd]:
    """(nbytes, launch) -> how the case ended."""
    nbytes = {case.id: case.nbytes for case in CASES}
    return {(nbytes[end.case_id], end.launch): end for end in read_ends(run)}


def stopped(run: Path) -> dict[tuple[int, int], str]:
    return {pair: end.stopped_by for pair, end in ends(run).items()}


@pytest.fixture(autouse=True)
def tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


def test_nothing_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launches(tmp_path, GO_ON).go()
    assert starts(tmp_path) == LAUNCHES
    assert set(stopped(tmp_path).values()) == {"interval"} and len(ends(tmp_path)) == 6
    assert "failed" not in capsys.readouterr().err


def test_some_of_the_launches(tmp_path: Path) -> None:
    """A round is a launch of its own; those before it are not tried again."""
    every = launches(tmp_path, GO_ON, 4)
    for numbers in (range(1), range(2, 3)):
        replace(every, numbers=numbers).go()
    assert starts(tmp_path) == 2
    assert {launch for _, launch in ends(tmp_path)} == {0, 2}


def test_a_case_without_weight_is_not_measured(tmp_path: Path) -> None:
    """And where no case of a size has any, its ranks are not started."""
    every = launches(tmp_path, GO_ON)
    plan = every.plan
    for numbers, weights in ((range(1), (0.0, 2.0, 1.0)), (range(1, 2), (0.0, 0.0, 0.0))):
        cases = [
            case.model_copy(update={"weight": weight})
            for case, weight in zip(plan.cases, weights, strict=True)
        ]
        write_plan(tmp_path, plan.model_copy(update={"cases": tuple(cases)}))
        replace(every, numbers=numbers).go()
    assert starts(tmp_path) == 1
    found = stopped(tmp_path)
    assert [found[n, 0] for n in SIZES] == [NOT_NEEDED, "interval", "interval"]
    assert [found[n, 1] for n in SIZES] == [NOT_NEEDED] * 3


def test_a_case_that_always_ends_the_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice it fails, then it is left out; all others are measured in every launch."""
    body = """
for case in todo:
    begin(case)
    if case.nbytes == 16:
        os.kill(os.getpid(), 9)
    measured(case)
"""
    launches(tmp_path, body, 3).go()
    found = stopped(tmp_path)
    assert {found[n, launch] for n in (8, 24) for launch in range(3)} == {"interval"}
    assert found[16, 2] == "skipped: it ended the ranks twice"
    for launch in range(2):
        assert found[16, launch].startswith("failed: a rank died: ")
        assert "ended with status -9" in found[16, launch]
        assert ends(tmp_path)[16, launch].ended_ranks
    assert starts(tmp_path) == 5
    said = [line for line in capsys.readouterr().err.splitlines() if "failed" in line]
    assert [line.split(": ")[1] for line in said] == [
        f"{CASES[1].label}, launch 1",
        f"{CASES[1].label}, launch 2",
    ]


def test_a_bug_in_a_case_ends_that_case(tmp_path: Path) -> None:
    """An exception on one rank is an error event and an abort: the rest goes on."""
    body = """
for case in todo:
    begin(case)
    if case.nbytes == 8 and launch == 1:
        event(event="error", message="RuntimeError on a rank: no memory")
        sys.exit(2)
    measured(case)
"""
    launches(tmp_path, body).go()
    found = stopped(tmp_path)
    assert found.pop((8, 1)) == "failed: RuntimeError on a rank: no memory"
    assert len(found) == 5 and set(found.values()) == {"interval"}
    assert starts(tmp_path) == LAUNCHES + 1


def test_a_death_between_two_cases_is_no_cases_fault(tmp_path: Path) -> None:
    """The rows of the case before were kept, the next had not begun."""
    body = """
for case in todo:
    begin(case)
    measured(case)
    if calls == 0:
        os._exit(1)
"""
    launches(tmp_path, body).go()
    assert set(stopped(tmp_path).values()) == {"interval"} and len(ends(tmp_path)) == 6
    assert starts(tmp_path) == LAUNCHES + 1


def test_a_death_after_the_last_case_is_nothing(tmp_path: Path) -> None:
    launches(tmp_path, GO_ON + "os._exit(1)").go()
    assert starts(tmp_path) == LAUNCHES and len(ends(tmp_path)) == 6


def test_ranks_that_do_not_begin_are_started_twice(tmp_path: Path) -> None:
    with pytest.raises(RanksEnded, match=r"status 7; .*--resume` goes on$"):
        launches(tmp_path, "sys.exit(7)").go()
    assert starts(tmp_path) == 2 and cases_done(tmp_path) == set()


def test_a_start_that_fails_once(tmp_path: Path) -> None:
    launches(tmp_path, "if calls % 2 == 0: sys.exit(7)\n" + GO_ON).go()
    assert len(ends(tmp_path)) == 6 and starts(tmp_path) == 2 * LAUNCHES


def test_what_ranks_report_before_a_case_is_not_tried_again(tmp_path: Path) -> None:
    body = 'event(event="error", message="the MPIs differ"); sys.exit(2)'
    with pytest.raises(MeasurementError, match=r"^the MPIs differ$"):
        launches(tmp_path, body).go()
    assert starts(tmp_path) == 1


def test_a_case_that_failed_by_itself_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong result: the ranks go on by themselves."""
    body = """
for case in todo:
    begin(case)
    if case.nbytes == 24:
        event(event="failed", label=case.label, reason="wrong sum")
        write_part(run, case_end(case, launch, 0.5, stopped_by="failed: wrong sum"))
    else:
        measured(case)
"""
    launches(tmp_path, body, 3).go()
    assert starts(tmp_path) == 3  # and it is no reason to leave it out
    assert [stopped(tmp_path)[24, launch] for launch in range(3)] == ["failed: wrong sum"] * 3
    lines = [line for line in capsys.readouterr().err.splitlines() if "wrong sum" in line]
    assert lines == [f"failed: {CASES[2].label}, launch {n}: wrong sum" for n in (1, 2, 3)]


def test_ranks_are_started_until_nothing_is_left(tmp_path: Path) -> None:
    """Some stop behind a case, as a model has ranks of its own."""
    launches(tmp_path, "todo = todo[:1]" + GO_ON).go()
    assert set(stopped(tmp_path).values()) == {"interval"} and len(ends(tmp_path)) == 6
    assert starts(tmp_path) == 6


@pytest.mark.parametrize(("disturbed", "again"), [(2, ["m1", "m0"]), (3, [])])
def test_disturbed_models_are_timed_once_more(
    tmp_path: Path, disturbed: int, again: list[str]
) -> None:
    """The worst first, at the end; none where most were. What fails then leaves what was measured."""
    body = f"""
for case in todo[:1]:
    begin(case)
    measured(case)
    if int(case.model[1:]) < {disturbed}:
        event(event="disturbed", id=case.id, waited=int(case.model[1:]) / 10)
if again:
    assert not todo
    with open(run / "again", "a") as file:
        print(again, file=file)
    sys.exit(1)
"""
    four = tuple(model_case(f"m{n}", 2) for n in range(4))
    launches(tmp_path, body, 1, four).go()
    names = {case.id: case.model for case in four}
    kept = tmp_path / "again"
    found = kept.read_text().split() if kept.exists() else []
    assert [names[case_id] for case_id in found] == again
    assert starts(tmp_path) == 4 + len(again)
    assert {end.stopped_by for end in read_ends(tmp_path)} == {"interval"}
