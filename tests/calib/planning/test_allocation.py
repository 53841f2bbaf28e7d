"""Shares of cases in the time, as the intervals of predictions need them."""

from __future__ import annotations

from math import fsum, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from calib.microbench.budget import budget_of, weight_of
from calib.microbench.cases import CollectiveCase, Held, Plan, TensorsCase
from calib.oracle.sensitivity import Sensitivity
from calib.planning.allocation import NEGLIGIBLE, best_times, by_kind, needs_of, weighted

TWO = {"a": 1.0, "b": 1.0}
adds = st.floats(1e-4, 1.0)
spent = st.floats(0.01, 100.0)


def variance(
    needs: list[dict[str, float]], spent_s: dict[str, float], times: dict[str, float]
) -> float:
    return fsum(
        fsum(e * sqrt(spent_s[case] / times[case]) for case, e in of.items()) ** 2 for of in needs
    )


@given(adds, adds, spent, spent)
def test_two_cases_by_the_closed_form(a: float, b: float, s_a: float, s_b: float) -> None:
    """Errors that add up: t ~ (e sqrt(s))^(2/3)."""
    found = best_times([{"a": a, "b": b}], {"a": s_a, "b": s_b})
    first, second = (a * sqrt(s_a)) ** (2 / 3), (b * sqrt(s_b)) ** (2 / 3)
    assert found["a"] == pytest.approx(first / (first + second), rel=1e-6)
    assert found["a"] + found["b"] == pytest.approx(1.0)


@given(adds, adds)
def test_two_predictions_of_a_case_each_by_neyman(a: float, b: float) -> None:
    """Independent errors, whose squares add up: t ~ e sqrt(s)."""
    found = best_times([{"a": a}, {"b": b}], {"a": 4.0, "b": 1.0})
    assert found["a"] == pytest.approx(2 * a / (2 * a + b), rel=1e-4)


def test_several_predictions_against_a_minimiser() -> None:
    needs = [{"a": 0.2, "b": 0.1}, {"b": 0.05, "c": 0.3}, {"a": 0.01, "c": 0.02, "d": 0.2}]
    spent_s = {"a": 1.0, "b": 3.0, "c": 0.5, "d": 2.0}
    names = sorted(spent_s)

    def of(logs: list[float]) -> float:
        whole = fsum(2.0**x for x in logs)
        return variance(
            needs, spent_s, {n: 2.0**x / whole for n, x in zip(names, logs, strict=True)}
        )

    least = minimize(of, [0.0] * 4, tol=1e-12).fun
    assert variance(needs, spent_s, best_times(needs, spent_s)) == pytest.approx(least, rel=1e-6)


def test_what_adds_nothing_or_was_not_measured_has_no_time() -> None:
    assert best_times([{"a": 0.1, "b": 0.0, "c": 0.3}], {"a": 1.0, "b": 1.0}) == {"a": 1.0}
    assert best_times([], {}) == best_times([{}], {"a": 1.0}) == {}


def test_needs_sum_to_what_measured_times_add() -> None:
    of = Sensitivity(1.0, 0.10, {"a": 0.48, "b": 0.16}, {"in place": 0.36}, 0.06)
    assert needs_of(of) == pytest.approx({"a": 0.06, "b": 0.02})
    assert needs_of(Sensitivity(1.0, 0.0, {}, {}, 0.0)) == {}


def small_plan() -> Plan:
    cases = [
        *(CollectiveCase(ranks=2, group_size=2, operation="allreduce", nbytes=m) for m in (8, 64)),
        TensorsCase(ranks=2, operation="update", key="k", shapes=((3,),)),
        TensorsCase(ranks=1, operation="update", key="k", shapes=((3,),)),
    ]
    return Plan(cases=tuple(cases), budget_seconds=60.0, launches=6)


def test_a_launch_keeps_its_time_and_what_no_prediction_needs_has_none() -> None:
    plan = small_plan()
    needed, other, update, _ = plan.cases
    tiny = {other.id: 0.5 * NEGLIGIBLE}
    of = Sensitivity(1.0, 0.10, {needed.id: 0.75, update.id: 0.25, **tiny}, {}, 0.0)
    found = weighted(plan, [of], {case.id: 1.0 for case in plan.cases})
    assert [case.weight == 0 for case in found.cases] == [False, True, False, True]
    assert budget_of(found, 2, found.cases_for(2)) == pytest.approx(plan.budget_seconds / 6)
    assert budget_of(found, 1, found.cases_for(1)) == 0.0
    both = weight_of(found.cases[0]), weight_of(found.cases[2])
    assert both[0] / both[1] == pytest.approx(3 ** (2 / 3), rel=1e-6)
    # weights are not what is asked for: a calibration goes on with the same plan
    assert found.as_asked() == plan and found.cases_for(2)[0].id == needed.id
    assert by_kind(found.cases[0]) == needed


def test_sizes_of_which_the_budget_held_less_have_their_part_of_a_launch() -> None:
    """Two long launches of 2 ranks were held; the cases that count are few, so there are six again."""
    plan = small_plan()
    held = plan.model_copy(update={"held": (Held(ranks=2, launches=2, seconds=25.0),)})
    needed, _, _, alone = plan.cases
    of = Sensitivity(1.0, 0.10, {needed.id: 0.5, alone.id: 0.5}, {}, 0.0)
    found = weighted(held, [of], {case.id: 1.0 for case in plan.cases})
    assert found.launches_of(2) == found.launches_of(1) == 6
    for ranks in (1, 2):
        seconds = budget_of(found, ranks, found.cases_for(ranks))
        assert seconds == pytest.approx(plan.budget_seconds / 6 / 2)


def test_without_a_case_that_adds_anything_the_plan_stays() -> None:
    plan = small_plan()
    assert weighted(plan, [Sensitivity(1.0, 0.1, {}, {"in place": 1.0}, 0.1)], {}) == plan
