"""The last screen of `calib calibrate`: its numbers are the report's, and its commands can be typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.reports.made_findings import HOSTILE, made
from tests.reports.records import at_speed, point

from calib.app import VERBS
from calib.foundation.words import percent
from calib.reports.drift.verdict import verdict
from calib.reports.scoring.accuracy import Accuracy
from calib.reports.scoring.summary import summary
from calib.terminal.calibrated import show

RUN = Path("runs/2026-11-23-vm")


def shown(capsys: pytest.CaptureFixture[str], points: list[Accuracy], ranks: int = 2) -> list[str]:
    show(made(points), RUN, 451.2, "vgg16-mini", ranks)
    return capsys.readouterr().out.splitlines()


def test_the_numbers_are_those_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    points = [
        point(0.9, 1.0, strategy="serial", p=1),
        point(1.0, 1.0, strategy="data", p=1),
        point(1.6, 1.0, strategy="data", p=2),
    ]
    lines = shown(capsys, points)
    of = made(points).summary
    values = {line.split()[0]: line.split()[1] for line in lines if line.startswith("  ")}
    assert "Calibrated in 7:31" in lines
    assert values["accuracy"] == percent(of.mean_of_strategy_means)
    assert values["worst"] == percent(0.4) and "data p=2" in "".join(lines)
    assert values["covered"] == percent(of.coverage)
    assert of.noise_ceiling is not None and values["repeats"] == percent(of.noise_ceiling.mean)
    assert lines[-1] == f"  page      {RUN}/report.html"


def test_a_disturbed_calibration_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Both accuracies, what disturbed, how wide the intervals are, and the verdict."""
    points = [at_speed(1.0, 1.6, 1.0, ["cores"], p=2 + k) for k in range(3)]
    findings = made(points, verdict=verdict(summary(points), [], None, 0.8))
    show(findings, RUN, 451.2, "vgg16-mini", 2)
    lines = capsys.readouterr().out.splitlines()
    numbers = lines[: next(k for k, line in enumerate(lines) if "verdict" in line)]
    values = {line.split()[0]: line.split()[1] for line in numbers if line.startswith("  ")}
    assert values["accuracy"] == percent(1 - 0.6 / 1.6) and values["covered"] == "0.0%"
    assert "  at speed   100.0%  accuracy at the speed of the calibration, worst 100.0%" in lines
    assert any("by 95% intervals of +-10.0% in the mean" in line for line in lines)
    assert any(line.startswith("  verdict   disturbed") for line in lines)
    assert any("other processes on the ranks' cores (3 of 3 points)" in line for line in lines)
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize(("seconds", "said"), [(0.8, True), (0.9, True), (0.999, False)])
def test_a_noisy_machine_is_told_to_repeat(
    capsys: pytest.CaptureFixture[str], seconds: float, said: bool
) -> None:
    """The same work twice, serial and data on one rank: one predicts the other to 80, 90, 99.9%."""
    points = [
        point(1.0, 1.0, strategy="serial", p=1),
        point(1.0, 1.0 / seconds, strategy="data", p=1),
    ]
    lines = shown(capsys, points)
    assert any("calibrate again" in line for line in lines) == said


def test_commands_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, [point(0.9, 1.0)], ranks=4)
    commands = [line.split("calib ", 1)[1].split() for line in lines if "calib " in line]
    assert [words[0] for words in commands] == ["predict", "report"]
    assert {words[0] for words in commands} <= set(VERBS)
    assert commands[0][-2:] == ["-p", "8"] and commands[1][1] == str(RUN)


def test_without_a_point_no_accuracy_is_stated(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, [])
    assert "  accuracy        -  no point was scored that counts" in lines


@pytest.mark.parametrize("name", HOSTILE)
def test_a_screen_of_plain_lines(capsys: pytest.CaptureFixture[str], name: str) -> None:
    lines = shown(capsys, [point(0.9, 1.0, model=name)])
    assert len(lines) < 16 and all(line.isprintable() for line in lines)
    assert all(len(line) <= 100 for line in lines)
