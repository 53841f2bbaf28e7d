"""The check of a night in a terminal or a mail: one row for what several cases are of."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

from calib.reports.night import Check
from calib.reports.words import plain, seconds_words, signed_percent

CHECK_COLUMNS = ["what", "cases", "change", "farthest case"]


def check_rows(checks: Sequence[Check]) -> list[list[str]]:
    """One row for what several cases are of: their geometric mean change, and the farthest one.

    That one with its two times: of the parameters, and of tonight.
    """
    groups: dict[str, list[tuple[float, Check]]] = {}
    for check in checks:
        ratio = log(check.measured.value / check.expected.value)
        groups.setdefault(check.what, []).append((ratio, check))
    rows = []
    for what, of in groups.items():
        far, worst = max(of, key=lambda pair: abs(pair[0]))
        mean = exp(sum(ratio for ratio, _ in of) / len(of)) - 1.0
        rows.append(
            [
                plain(what),
                str(len(of)),
                signed_percent(mean),
                f"{signed_percent(exp(far) - 1.0)} {plain(case_words(worst))}: "
                f"{seconds_words(worst.expected.value)} -> {seconds_words(worst.measured.value)}",
            ]
        )
    return rows


def case_words(check: Check) -> str:
    """The case in few words: of a layer its shapes and direction, not all of its key."""
    key, _, direction = check.case.rpartition(", ")
    words = key.split("|")
    return f"{words[1]}, {direction}" if check.kind == "kernels" and len(words) > 1 else check.case
