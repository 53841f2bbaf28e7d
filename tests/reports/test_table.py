"""reports.table and reports.words: what stands in a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from reports.accuracy import Accuracy
from reports.summary import summary
from reports.table import console_for, print_report
from reports.words import bytes_words, number, seconds_words, with_interval
from tests.reports.records import point


def piped(points: list[Accuracy], unscored: tuple[str, ...] = ()) -> str:
    stream = io.StringIO()
    print_report(points, summary(points), unscored, console_for(stream))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (41.23, "41.2"), (0.0123456, "0.0123"), (1234.4, "1234"), (9.999, "10.00")],
)
def test_numbers_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert number(value) == text


def test_intervals_have_the_decimals_that_they_need() -> None:
    assert with_interval(41.2, 39.04, 44.12) == "41.2 [39.0, 44.1]"
    assert with_interval(0.383, 0.355, 0.414, 1e3) == "383 [355, 414]"
    assert with_interval(0.1032, 0.1027, 0.1045, 1e3) == "103.2 [102.7, 104.5]"
    assert with_interval(0, 0, 0) == "0 [0, 0]"
    assert with_interval(0, 0, 0.25) == "0.000 [0.000, 0.250]"


def test_units() -> None:
    assert [bytes_words(n) for n in (8, 1536, 4096, 2**26)] == ["8 B", "1.5 KiB", "4 KiB", "64 MiB"]
    assert [seconds_words(10.0**k) for k in (1, -3, -4, -9)] == ["10 s", "1 ms", "100 µs", "1 ns"]


def test_a_pipe_gets_whole_lines() -> None:
    name = "a_model_with_a_very_long_name_that_no_terminal_could_hold_in_one_column" * 3
    text = piped([point(0.9, 1.0, model=name), point(2.0, 1.0)], (f"{name}: stopped early",))
    assert "…" not in text and "\x1b" not in text
    row = next(line for line in text.splitlines() if line.startswith(name))
    # 0.9 s +- 10% against 1 s: 90.0
    numbers = "data 2 8 ~900 [810, 990] 1000 [1000, 1000] 90.0"
    assert row.split() == [name, *numbers.split()]
    assert f"  {name}: stopped early" in text.splitlines()
    assert "~270/600" in text and "~45.0/0" in text  # forward and pack of 0.9 s
    assert "~ interpolated between measured cases" in text
    assert "! extrapolated" not in text and "oversubscribed" not in text
    assert "Mean of the strategy means: 45.0%; mean over 2 points: 45.0%." in text
    assert "Worst point: vgg16_mini data p=2 batch 8 per PE, 0.0%." in text
    assert "Noise ceiling: unknown, as no work was run twice." in text


def test_ordinary_rows_fit_100_columns() -> None:
    points = [point(0.4089, 0.3911, model="cosmoflow_mini", strategy="data", p=64)] * 2
    assert max(len(line.rstrip()) for line in piped(points).splitlines()) <= 100


def test_a_narrow_terminal_folds_and_cuts_nothing() -> None:
    stream = io.StringIO()
    points = [point(0.4089, 0.3911, model="cosmoflow_mini")]
    console = Console(file=stream, width=60, force_terminal=True, color_system=None)
    print_report(points, summary(points), (), console)
    assert "…" not in stream.getvalue()


def test_marks() -> None:
    text = piped([point(1.0, 1.0, oversubscribed=True)])
    assert "data*" in text and "* oversubscribed" in text
    assert "No point was scored that counts, so no accuracy is stated." in text
    assert "1 point oversubscribed: scored, and left out of all means." in text


def test_nothing_scored() -> None:
    text = piped([], ("x: stopped early: 3 of 100 iterations",))
    assert "%" not in text
    assert "Not scored (1):" in text


def test_names_are_neither_markup_nor_escapes() -> None:
    text = piped([point(1.0, 1.0, model="[red]x[/]\x1b[31m")])
    assert "[red]x[/]" in text and "\x1b" not in text


def test_batch_has_a_column_in_phases_only_where_it_is_needed() -> None:
    same = piped([point(1.0, 1.0), point(1.0, 1.0, p=4)])
    both = piped([point(1.0, 1.0), point(1.0, 1.0, batch_per_pe=16)])
    assert same.count("per PE  ") < both.count("per PE  ")
