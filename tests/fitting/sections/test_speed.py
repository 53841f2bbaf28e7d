"""Exponents of the references: data drawn from known ones, and what is then made of the times."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.helpers.rows import as_samples, sample

from calib.fitting.parameters.speed import Speed
from calib.fitting.sections.speed import at_one_speed, shifts_of
from calib.foundation.environment import Environment
from calib.microbench.records.looks import Look
from calib.microbench.records.manifest import CaseEnd, LaunchRecord
from calib.microbench.records.samples import Samples

CASES, LAUNCHES, EVERY_S = 40, 6, 3.0
ARITHMETIC, MEMORY = 0.5, 0.25


def launch(number: int, looks: list[Look]) -> LaunchRecord:
    return LaunchRecord(
        launch=number,
        ranks=1,
        command="a command",
        started="2026-11-27T00:00:00+00:00",
        places=[],
        oversubscribed=False,
        timer={},
        environment=Environment(),
        load_average=None,
        looks=looks,
    )


def measured(
    seed: int,
    arithmetic: float = ARITHMETIC,
    memory: float = MEMORY,
    noise: float = 0.02,
    threads: float = 0.0,
) -> tuple[Samples, list[LaunchRecord], list[CaseEnd], np.ndarray]:
    """Cases in six launches on a machine whose speed wanders; and the times without that."""
    draw = np.random.default_rng(seed)
    rows, launches, ends = [], [], []
    true = draw.uniform(1e-3, 1e-1, CASES)
    state = np.zeros(3)
    for number in range(LAUNCHES):
        looks = []
        for place, case in enumerate(draw.permutation(CASES)):
            at = 1.7e9 + 1000.0 * number + EVERY_S * place
            state = 0.9 * state + draw.normal(0, 0.1, 3)
            seen = np.exp(state + draw.normal(0, 0.03, 3)) * [5e-4, 2e-3, 3e-6]
            references = dict(zip(("arithmetic_s", "memory_s", "threads_s"), seen, strict=True))
            looks.append(Look(unix_s=at + 1.5, window_s=EVERY_S, **references))
            slower = math.exp(float(np.dot(state, [arithmetic, memory, threads])))
            for repetition in range(3):
                seconds = float(true[case] * slower * math.exp(draw.normal(0, noise)))
                rows.append(
                    sample(
                        case_id=f"{case:016x}",
                        kind="layer",
                        operation="forward",
                        key=str(case),
                        launch=number,
                        repetition=repetition,
                        seconds=seconds,
                        rank_seconds=[seconds],
                        started_unix_s=at,
                    )
                )
            ends.append(
                CaseEnd(
                    case_id=f"{case:016x}",
                    launch=number,
                    label="a layer",
                    purpose="",
                    repetitions=3,
                    half_width=None,
                    stopped_by="budget",
                    elapsed_s=1.0,
                    started_unix_s=at,
                )
            )
        launches.append(launch(number, looks))
    return as_samples(rows), launches, ends, true


def scatter(rows: Samples, true: np.ndarray) -> float:
    """How far log times are from the true ones, standard deviation."""
    of = [math.log(s / true[int(k)]) for s, k in zip(rows["seconds"], rows["key"], strict=True)]
    return float(np.std(of))


@pytest.mark.parametrize("seed", range(3))
def test_exponents_that_data_were_drawn_from_are_found(seed: int) -> None:
    rows, launches, ends, true = measured(seed, memory=0.0)
    found, speed = at_one_speed(rows, launches, ends, 0)
    (law,) = speed.laws
    assert law.of == "compute"
    # references that are read with an error, and averaged, are followed a little less
    assert law.exponent("arithmetic_s") == pytest.approx(ARITHMETIC, abs=0.15)
    assert list(law.exponents) == ["arithmetic_s"]
    assert scatter(found, true) < 0.7 * scatter(rows, true)
    assert found.rank_seconds[:, 0] == pytest.approx(found["seconds"])


def test_ranks_of_several_threads_follow_how_these_meet() -> None:
    rows, launches, ends, true = measured(6, arithmetic=0.0, memory=0.0, threads=0.6)
    found, speed = at_one_speed(rows, launches, ends, 0)
    (law,) = speed.laws
    assert list(law.exponents) == ["threads_s"]
    assert law.exponent("threads_s") == pytest.approx(0.6, abs=0.15)
    assert scatter(found, true) < 0.7 * scatter(rows, true)


def test_a_stretch_of_time_is_within_the_variation() -> None:
    """A training has the speed of one: here 0.3 of the logarithm of the reference."""
    rows, launches, ends, _ = measured(1, memory=0.0)
    _, speed = at_one_speed(rows, launches, ends, 0)
    exponent = speed.laws[0].exponent("arithmetic_s")
    stretches: dict[int, list[float]] = {}
    for look in (look for each in launches for look in each.looks):
        stretches.setdefault(int(look.unix_s / 10), []).append(math.log(look.arithmetic_s or 1.0))
    off = exponent * np.array([np.mean(logs) for logs in stretches.values()])
    off -= off.mean()
    assert 0.9 < np.mean(np.abs(off) < math.log(speed.variation(1))) < 1.0
    assert speed.variation(8) == speed.variation(1), "of the nearest number of ranks"
    assert Speed().variation(1) == 1.0
    blind = [look.model_copy(update={"arithmetic_s": None}) for look in launches[0].looks]
    partly = [*launches, launches[0].model_copy(update={"looks": blind, "launch": 9})]
    assert at_one_speed(rows, partly, ends, 0)[1].variation(1) == pytest.approx(
        speed.variation(1), rel=0.01
    )
    seen = [look.model_copy(update={"disturbed": ["cores"]}) for look in launches[0].looks]
    others = [each.model_copy(update={"looks": seen}) for each in launches]
    assert at_one_speed(rows, others, ends, 0)[1].variation(1) == 1.0, "others did that"


def test_what_a_reference_takes_beside_a_case_is_not_the_speed_of_the_machine() -> None:
    """Half as long again behind every second case: that lessens the times of none."""
    rows, launches, ends, _ = measured(3, memory=0.0)
    stops = sorted((end.started_unix_s or 0.0, end.case_id) for end in ends)
    odd = {start for start, case in stops if int(case, 16) % 2}

    def behind(look: Look) -> Look:
        slow = (look.unix_s - 1.5) in odd
        return look.model_copy(
            update={"arithmetic_s": (look.arithmetic_s or 0.0) * (1.5 if slow else 1.0)}
        )

    other = [each.model_copy(update={"looks": list(map(behind, each.looks))}) for each in launches]
    shifted = shifts_of(rows, other, ends)
    assert np.ptp(shifted[:, 0]) > 0.1
    of_case = [
        shifted[rows.mask("case_id", case.__eq__), 0].mean()
        for case in set(rows.distinct("case_id"))
    ]
    assert max(map(abs, of_case)) < 1e-9


def test_trainings_are_held_against_what_was_seen_behind_whole_iterations() -> None:
    rows, launches, ends, _ = measured(4)
    whole = {ends[0].case_id, ends[1].case_id, ends[2].case_id}
    kind = ["in_place" if case in whole else "layer" for case in rows.table["case_id"].to_pylist()]
    mixed = rows.with_column("kind", np.array(kind))
    _, speed = at_one_speed(mixed, launches, ends, 0)
    (found,) = speed.references
    starts = {end.started_unix_s for end in ends if end.case_id in whole}
    seen = [look for each in launches for look in each.looks if (look.unix_s - 1.5) in starts]
    assert found.looks == len(seen) == 3 * LAUNCHES
    middle = np.exp(np.mean([math.log(look.arithmetic_s or 0.0) for look in seen]))
    assert found.seconds["arithmetic_s"].value == pytest.approx(middle)


@pytest.mark.parametrize("seed", range(3))
def test_times_that_do_not_follow_the_references_stay(seed: int) -> None:
    rows, launches, ends, true = measured(seed, 0.0, 0.0)
    found, speed = at_one_speed(rows, launches, ends, 0)
    assert all(law.exponent(name) < 0.1 for law in speed.laws for name in law.exponents)
    assert scatter(found, true) < 1.05 * scatter(rows, true)


def test_without_looks_or_in_one_launch_rows_are_the_same() -> None:
    rows, launches, ends, _ = measured(0)
    blind = [each.model_copy(update={"looks": []}) for each in launches]
    found, speed = at_one_speed(rows, blind, ends, 0)
    assert found is rows and speed == Speed()
    once = rows.where(launch=0)
    found, speed = at_one_speed(once, launches[:1], ends, 0)
    assert found is once and speed.laws == []


def test_slowdown_of_other_work_by_the_references_at_it() -> None:
    rows, launches, ends, _ = measured(1)
    _, speed = at_one_speed(rows, launches, ends, 0)
    law, usual = speed.laws[0], speed.references[0].seconds
    draw = np.random.default_rng(5)

    def looks(factor: float, n: int = 40) -> list[Look]:
        noise = np.exp(draw.normal(0, 0.03, (n, 2)))
        return [
            Look(
                unix_s=1.8e9 + k,
                window_s=1.0,
                arithmetic_s=usual["arithmetic_s"].value * factor * a,
                memory_s=usual["memory_s"].value * m,
            )
            for k, (a, m) in enumerate(noise)
        ]

    same = speed.slowdown(looks(1.0), 1)
    assert same is not None and same.low < 1.0 < same.high < 1.1
    slower = speed.slowdown(looks(1.5), 1)
    expected = 1.5 ** law.exponent("arithmetic_s")
    assert slower is not None and slower.low <= expected <= slower.high
    assert slower.value == pytest.approx(expected, rel=0.03)
    assert speed.slowdown(looks(1.5), 2) is None, "no launch had two ranks"
    assert speed.slowdown(looks(1.5, n=2), 1) is None, "two looks are no median"
    sent = speed.slowdown(looks(1.5), 1, sent=1.0)
    assert sent is not None and sent.value == 1.0, "no law of messages is known"
