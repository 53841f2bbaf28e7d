"""What counts as a disturbance: looks made by hand, on both sides of every threshold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.microbench.disturbance import LATEST, SLOW, SLOW_MESSAGE, disturbances, usual
from calib.microbench.records.looks import Disturbance, Look, disturbed_between


def look(at: float = 0.0, **seen: Any) -> Look:
    return Look(unix_s=1e9 + at, window_s=1.0, **seen)


QUIET = {"arithmetic_s": 1e-3, "memory_s": 2e-3, "message_s": 5e-5, "waited": 0.001}
USUAL = [look(at, **QUIET) for at in range(20)]


def test_a_quiet_machine_is_not_disturbed() -> None:
    assert disturbances([]) == []
    assert disturbances(USUAL) == []
    assert disturbances([look()]) == [], "of what the system does not tell nothing is known"


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"waited": 0.021}, ["cores"]),
        ({"waited": 0.3, "others": 0.03}, ["cores"]),
        ({"waited": 0.3, "others": 0.01}, []),
        ({"waited": None, "others": 0.06}, ["cores"]),
        ({"others": 0.06}, []),
        ({"stolen": 0.03}, ["stolen"]),
        ({"resent": 11.0}, ["network"]),
        ({"congested": 11.0}, ["network"]),
        ({"foreign": 3e6}, ["network"]),
        ({"gpu_processes": 1}, ["gpu"]),
        ({"waited": 0.3, "resent": 50.0}, ["cores", "network"]),
    ],
)
def test_each_counter_has_its_word(seen: dict[str, Any], words: list[Disturbance]) -> None:
    assert disturbances([*USUAL, look(20, **{**QUIET, **seen})]) == words


@pytest.mark.parametrize(
    ("name", "factor", "word"),
    [
        ("arithmetic_s", SLOW, "slow"),
        ("memory_s", SLOW, "slow"),
        ("message_s", SLOW_MESSAGE, "network"),
    ],
)
def test_a_reference_is_slow_beside_what_is_usual(name: str, factor: float, word: str) -> None:
    def after(number: int, times: float) -> list[Disturbance]:
        slow = {**QUIET, name: QUIET[name] * times}
        return disturbances([*USUAL, *(look(20 + n, **slow) for n in range(number))])

    assert after(LATEST, factor * 1.05) == [word]
    assert after(LATEST, factor * 0.95) == []
    assert after(1, factor * 3) == [], "one look varies more than the machine"


def test_what_the_ranks_own_messages_cause_all_the_time_is_usual() -> None:
    lossy = [look(n, **QUIET, resent=50.0) for n in range(20)]
    assert disturbances([*lossy, look(20, **QUIET, resent=200.0)]) == []
    assert disturbances([*lossy, look(20, **QUIET, resent=300.0)]) == ["network"]


def test_waiting_is_judged_by_a_second() -> None:
    """A burst may lie between two short looks; one that was two seconds ago does not count."""

    def short(waited: float) -> Look:
        return Look(unix_s=1e9, window_s=0.25, waited=waited, others=waited)

    burst, quiet = short(0.2), short(0.0)
    assert disturbances([burst, quiet, quiet, quiet]) == ["cores"]
    assert disturbances([burst, *[quiet] * 4]) == []


def test_usual_is_what_undisturbed_looks_say() -> None:
    busy = [look(n, arithmetic_s=9e-3, disturbed=["cores"]) for n in range(50)]
    assert usual([*busy, *USUAL], "arithmetic_s") == 1e-3
    assert usual(busy, "arithmetic_s") == 9e-3, "where it was always disturbed, that is usual"
    assert usual(USUAL[: LATEST - 1], "arithmetic_s") is None


@given(
    start=st.floats(0, 50, allow_nan=False),
    length=st.floats(0, 20, allow_nan=False),
    bad=st.sets(st.integers(0, 49)),
)
def test_a_case_has_the_words_of_the_looks_whose_windows_meet_it(
    start: float, length: float, bad: set[int]
) -> None:
    looks = [look(n, disturbed=["slow"] if n in bad else []) for n in range(50)]
    met = [n for n in range(50) if n > start and n - 1 < start + length]
    words = disturbed_between(looks, 1e9 + start, 1e9 + start + length)
    assert words == (["slow"] if bad.intersection(met) else [])
