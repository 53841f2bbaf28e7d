"""calib.terminal.report: what stands in a terminal and in a pipe."""

from __future__ import annotations

import contextlib
import io
import re

import pytest
from tests.reports.made_findings import HOSTILE, made
from tests.reports.records import peak, point, projection, run

from calib.foundation.records import Estimate
from calib.reports.drift.verdict import Verdict
from calib.reports.findings import Findings
from calib.reports.night import Check
from calib.reports.scoring.accuracy import Accuracy, Missing
from calib.reports.scoring.cases import by_case
from calib.reports.scoring.pairing import pair
from calib.terminal.report import show


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def text_of(findings: Findings, stream: io.StringIO | None = None) -> str:
    """As it comes out of a pipe, or on another stream; without colours."""
    stream = stream or io.StringIO()
    with contextlib.redirect_stdout(stream):
        show(findings)
    return re.sub("\x1b\\[[0-9;]*m", "", stream.getvalue())


def in_terminal(findings: Findings, width: int) -> str:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", str(width))
        return text_of(findings, Terminal())


def piped(points: list[Accuracy], unscored: tuple[Missing, ...] = ()) -> str:
    return text_of(made(points, unscored))


def with_memory(of: Accuracy, predicted: float, measured: int) -> Accuracy:
    return of.model_copy(update={"memory": peak(predicted, measured, 0.0)})


def test_a_pipe_gets_whole_lines() -> None:
    name = "a_model_with_a_very_long_name_that_no_terminal_could_hold_in_one_column" * 3
    missing = Missing(what=name, why="stopped early")
    text = piped([point(0.9, 1.0, model=name), point(2.0, 1.0)], (missing,))
    assert "…" not in text and "\x1b" not in text
    rows = [line.split() for line in text.splitlines() if line.startswith(f"  {name}")]
    # the name takes all of a line, so that every column stands beside it by itself
    assert rows[0] == [name, "data", "2", "8", "~900", "[810,", "990]"]  # 0.9 s +- 10%
    assert [row[4:] for row in rows[1:3]] == [["1000", "[unknown]"], ["90.0%"]]
    assert f"- {name}: stopped early" in text.splitlines()
    assert "~270/600" in text and "~45.0/0" in text  # forward and pack of 0.9 s
    assert "~ interpolated between measured cases" in text
    assert "! extrapolated" not in text and "oversubscribed" not in text
    assert "Accuracy per strategy, mean (and the paper's): data 45.0% (96.1%)." in text
    assert "Mean of the strategy means: 45.0%; mean over 2 points: 45.0%." in text
    assert "Worst point: vgg16_mini data p=2, 8 per rank: 0.0%." in text
    assert "Noise ceiling: unknown, as no work was run twice." in text
    assert "Choice of strategy: not judged" in text


def test_ordinary_rows_fit_100_columns_and_nine_points_a_screen() -> None:
    points = [
        with_memory(point(0.4089, 0.3911, model=model, strategy=strategy, p=p), 3e8, 310_000_000)
        for model in ("cosmoflow_mini", "resnet50_mini", "vgg16_mini")
        for strategy, p in (("data", 64), ("serial", 1), ("filter", 64))
    ]
    lines = in_terminal(made(points), 100).splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) <= 60
    # no cell was folded: every row of a table has its case
    assert (
        sum(bool(re.match(r"  \w+_mini +(data|serial|filter) +\d", line)) for line in lines) == 18
    )


def test_a_narrow_terminal_folds_and_cuts_nothing() -> None:
    assert "…" not in in_terminal(made([point(0.4089, 0.3911, model="cosmoflow_mini")]), 60)


def test_many_phases_stand_in_two_tables() -> None:
    every = ("forward", "backward", "halo", "layerwise", "pack", "exchange", "update")
    shares = dict.fromkeys(every, 1 / 7)
    model = "cosmoflow_mini"
    of = pair(projection(0.7, model, shares=shares), run([0.7] * 8, model))
    text = in_terminal(made([with_memory(of, 2.0**21, 2**22)]), 92)
    heads = [line.split() for line in text.splitlines() if line.startswith("  model ")]
    assert max(map(len, text.splitlines())) <= 92
    assert [*heads[1][3:], *heads[2][3:]] == [*every, "MiB", "of", "a", "rank"]
    assert "~100/0" in text and "2.00/4.00" in text
    means = [line.split()[2:] for line in text.splitlines() if line.startswith("  mean accuracy")]
    # 0.1 s of 0.42 s and of 0.28 s; the other phases were not measured
    assert [*means[0], *means[1]] == ["23.8%", "-", "-", "-", "-", "35.7%", "-", "50.0%"]


def test_phases_that_a_point_does_not_have_are_a_dot() -> None:
    serial = pair(
        projection(1.0, p=1, strategy="serial", shares={"forward": 1.0}),
        run([1.0] * 8, p=1, strategy="serial"),
    )
    rows = [line.split() for line in piped([serial, point(1.0, 1.0)]).splitlines()]
    assert ["vgg16_mini", "serial", "1", "~1000/1000", ".", ".", ".", "."] in rows


def test_marks() -> None:
    text = piped([point(1.0, 1.0, oversubscribed=True)])
    assert "data*" in text and "* oversubscribed" in text
    assert "No point was scored that counts, so no accuracy is stated." in text
    assert "1 point oversubscribed: scored, and left out of all means." in text
    assert "paper" not in text


def test_nothing_scored() -> None:
    text = piped([], (Missing(what="x", why="stopped early: 3 of 100 iterations"),))
    assert "%" not in text
    assert "Missing or not scored (1):\n- x: stopped early: 3 of 100 iterations" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_neither_markup_nor_escapes(name: str) -> None:
    points = [point(1.0, 1.5, model=name, strategy="[red]x[/]"), point(1.0, 1.0, model=name)]
    text = piped(points, (Missing(what=name, why=name),))
    assert "[red]x[/]" in text
    assert all(c.isprintable() or c == "\n" for c in text)
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    assert f"{shown}: {shown}" in text


def test_batch_has_a_column_in_phases_only_where_it_is_needed() -> None:
    same = piped([point(1.0, 1.0), point(1.0, 1.0, p=4)])
    both = piped([point(1.0, 1.0), point(1.0, 1.0, batch_per_rank=16)])
    assert same.count("batch") < both.count("batch")


def nights() -> list[Accuracy]:
    """Data: 0.9, 0.5, 0.8 (the newest is not the last), another machine's; filter once: 1.0."""
    days = {3: 1 / 0.9, 1: 2.0, 2: 1.25}
    runs = [point(1.0, t, started=f"2026-11-0{day}T03:00:00Z") for day, t in days.items()]
    return [*runs, point(1.0, 1.0, strategy="filter")]


def test_many_runs_of_a_case_are_one_row() -> None:
    data, filtered = by_case(nights())
    assert (data.runs, filtered.runs) == (3, 1)
    assert data.newest.started.startswith("2026-11-03")
    assert (data.median, data.worst) == pytest.approx((0.8, 0.5))
    rows = [line.split() for line in piped(nights()).splitlines()]
    for row in (
        "vgg16_mini data 2 8 ~1000 1111 90.0% no 3 80.0% 50.0%",
        "vgg16_mini filter 2 8 ~1000 1000 100.0% yes 1 100.0% 100.0%",
    ):
        assert row.split() in rows


def test_new_software_is_no_new_case_but_another_optimizer_is() -> None:
    first = point(1.0, 1.0)
    assert len(by_case([first, point(1.0, 1.0, cluster_fingerprint="new driver")])) == 1
    assert len(by_case([first, point(1.0, 1.0, optimizer="adam")])) == 2
    on_one = [point(1.0, 1.0, strategy=strategy, p=1) for strategy in ("serial", "data")]
    assert len(by_case(on_one)) == 2
    (nothing,) = by_case([point(1.0, 0.0)])
    assert (nothing.median, nothing.worst) == (None, None)


def test_choices_in_words() -> None:
    text = piped(
        [
            point(1.0, 1.0, p=4),
            point(0.9, 1.25, p=4, strategy="filter"),
            point(2.0, 2.0, p=4, strategy="channel"),
            point(1.0, 1.0, p=8),
            point(1.1, 2.0, p=8, strategy="filter"),
        ]
    )
    assert (
        "Choice of strategy: the fastest was picked in 1 of 2 groups; the pick is within 3% of it in "
        "1 of 2; rank correlation (Kendall's tau-b) 0.33."
    ) in text
    assert "Worst pick: vgg16_mini p=4 batch 32: filter, 25.0% slower than data." in text


def test_memory_in_words() -> None:
    text = piped([with_memory(point(1.0, 1.0), 9e6, 10_000_000)])
    assert (
        "Memory: mean 90.0% over 1 point, worst vgg16_mini data p=2, 8 per rank: 90.0%; 0.0% of the "
        "measured peaks lie inside the predicted interval."
    ) in text


def check(case: str, expected: float, measured: float) -> Check:
    times = [Estimate.exactly(x) for x in (expected, measured)]
    return Check(kind="network", what="allreduce", case=case, expected=times[0], measured=times[1])


def test_checks_and_verdicts_in_words() -> None:
    checks = [check("8 B", 1.0, 1.01), check("4 KiB", 1.0, 0.9), check("1 MiB", 2.0, 2.06)]
    wrong = Verdict(1, ("accuracy of data: 70.0%, under 80.0%", "drift: links", "missing: x: y"))
    lines = text_of(made([point(1.0, 1.0)], checks=checks, verdict=wrong)).splitlines()
    assert (
        "Check of network (3 cases): +1.0% against the parameters in the median; farthest allreduce, "
        "4 KiB: -10.0%."
    ) in lines
    first = lines.index("Verdict: not right:")
    assert lines[first + 1 : first + 3] == [
        "- accuracy of data: 70.0%, under 80.0%",
        "- drift: links",
    ]
    fine = text_of(made([point(1.0, 1.0)], verdict=Verdict(0, ("1 point, every strategy",))))
    assert "Verdict: fine: 1 point, every strategy." in fine
    only = text_of(made([point(1.0, 1.0)], verdict=Verdict(2, ("missing: x: y",))))
    assert "Verdict: not known, as something is missing." in only


def test_many_that_are_missing_are_cut_and_the_verdict_comes_last() -> None:
    unscored = [Missing(what=f"run {n}", why="cut off") for n in range(25)]
    of = made([point(1.0, 1.0)], unscored, verdict=Verdict(2, ("one reason, with its stop.",)))
    lines = text_of(of).splitlines()
    named = [line for line in lines if line.startswith("- run ")]
    assert named == [f"- run {n}: cut off" for n in range(20)]
    assert lines[lines.index(named[-1]) + 1] == "- and 5 more, in report.json"
    assert lines[-1] == "Verdict: not known, as something is missing: one reason, with its stop."
