"""Numbers as they are written: digits, units, intervals."""

from __future__ import annotations

import pytest

from calib.foundation.records import Estimate
from calib.foundation.words import (
    bytes_words,
    clock_words,
    estimate_words,
    exact_bytes,
    number,
    seconds_words,
    with_interval,
)


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
    assert estimate_words(Estimate.exactly(0.0412), 1e3) == "41.2 [unknown]"  # a single time


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (1e-9, "1 ns"),
        (1e-4, "100 µs"),
        (0.0005, "500 µs"),
        (0.25, "250 ms"),
        (0.9999999, "1 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (9000.0, "2.5 h"),
        (86400.0 * 30, "30 days"),
        (4e7, "> 1 year"),
    ],
)
def test_a_time_has_a_unit_that_can_be_read(seconds: float, text: str) -> None:
    assert seconds_words(seconds) == text


def test_waiting_is_told_as_a_clock_does() -> None:
    assert [clock_words(seconds) for seconds in (0, 65.4, 59.6, 6000)] == [
        "0:00",
        "1:05",
        "1:00",
        "100:00",
    ]


@pytest.mark.parametrize(
    ("nbytes", "text", "exact"),
    [
        (8, "8 B", "8 B"),
        (1536, "1.5 KiB", "1536 B"),
        (4096, "4 KiB", "4 KiB"),
        (10392784, "9.91 MiB", "10392784 B"),
        (3 * 2**20, "3 MiB", "3 MiB"),
        (2**30, "1 GiB", "1 GiB"),
        (2**50, "1024 TiB", "1048576 GiB"),
        (0, "0 B", "0 B"),
    ],
)
def test_bytes_in_three_digits_and_exactly(nbytes: int, text: str, exact: str) -> None:
    assert (bytes_words(nbytes), exact_bytes(nbytes)) == (text, exact)
