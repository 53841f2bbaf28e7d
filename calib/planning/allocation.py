"""Shares of cases in the time of a launch, as the intervals of predictions need them.

The error that a case adds to a prediction shrinks as 1 / sqrt(time), and the errors of measured times
add up (they are one source: oracle/cost.py). So with times t the half-widths r of predictions are

    r_p(t)^2 = fixed_p + (sum over cases of e_pi sqrt(s_i / t_i))^2

where e_pi is what case i adds to prediction p after s_i seconds. Of one prediction, the times that make
r least for a given sum are t_i ~ (e_i sqrt(s_i))^(2/3). (Of independent errors, whose squares add up,
they are t_i ~ e_i sqrt(s_i): Neyman's allocation with costs, as e sqrt(s) is the standard deviation of a
repetition times the square root of what one takes.)

References
----------
Neyman, "On the two different aspects of the representative method", J. Royal Statistical Society 97
(1934); Cochran, Sampling Techniques (1977), 5.5: optimal allocation with costs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from calib.microbench.budget import weights_of
from calib.microbench.cases import Case, Held, Plan
from calib.oracle.sensitivity import Sensitivity

STEPS = 100
# the exponent of a step towards t ~ need(t): of one prediction, one step is enough
STEP = 2.0 / 3.0
# a case that adds less of the variance of an interval is not measured again for it
NEGLIGIBLE = 1e-3


def best_times(
    needs: Sequence[Mapping[str, float]], spent_s: Mapping[str, float]
) -> dict[str, float]:
    """The times of cases, summing to 1, that make the sum of the predictions' variances least.

    Parameters
    ----------
    needs
        Of each prediction, case -> e: the relative half-width that the case adds to its interval.
    spent_s
        Case -> s: how long it was measured for that.

    Returns
    -------
    dict
        Case -> share of the time, of the cases that add anything.
    """
    scaled = [
        {
            case: e * math.sqrt(spent_s[case])
            for case, e in of.items()
            if e > 0 and spent_s.get(case)
        }
        for of in needs
    ]
    cases = sorted({case for of in scaled for case in of})
    times = dict.fromkeys(cases, 1.0 / len(cases)) if cases else {}
    for _ in range(STEPS):
        # -d(variance)/d(log t_i), which at the optimum is proportional to t_i
        gain: dict[str, float] = defaultdict(float)
        for of in scaled:
            errors = {case: e / math.sqrt(times[case]) for case, e in of.items()}
            whole = math.fsum(errors.values())
            for case, error in errors.items():
                gain[case] += whole * error
        moved = {case: times[case] ** (1 - STEP) * gain[case] ** STEP for case in cases}
        whole = math.fsum(moved.values())
        moved = {case: time / whole for case, time in moved.items()}
        if all(math.isclose(moved[case], times[case], rel_tol=1e-9) for case in cases):
            return moved
        times = moved
    return times


def needs_of(of: Sensitivity) -> dict[str, float]:
    """Case -> the relative half-width that it adds, of those that count.

    Together they are what measured times add.
    """
    whole = of.half_width * math.sqrt(of.measured) if of.measured > 0 else 0.0
    return {
        case: whole * share / of.measured for case, share in of.cases.items() if share > NEGLIGIBLE
    }


def weighted(plan: Plan, found: Sequence[Sensitivity], spent_s: Mapping[str, float]) -> Plan:
    """The plan whose further launches have cases by what they add to predictions.

    Parameters
    ----------
    plan
        As it was measured so far.
    found
        The predictions whose intervals are to shrink.
    spent_s
        Case -> s that it was measured for.

    Returns
    -------
    Plan
        With weights: 0 of the cases that add nothing that counts. A launch of all sizes together takes
        its part of the budget, and a size without a case that adds anything no time. The plan as it is,
        where no case does.
    """
    best = best_times([needs_of(of) for of in found], spent_s)
    if not best:
        return plan
    whole = weights_of(map(by_kind, plan.cases))
    weights = {case.id: whole * best.get(case.id, 0.0) for case in plan.cases}
    each_s = plan.budget_seconds / plan.launches

    def again(held: Held) -> Held:
        seconds = each_s * math.fsum(best.get(case.id, 0.0) for case in plan.cases_for(held.ranks))
        return held.model_copy(update={"launches": plan.launches, "seconds": seconds})

    cases = tuple(case.model_copy(update={"weight": weights[case.id]}) for case in plan.cases)
    return plan.model_copy(update={"cases": cases, "held": tuple(map(again, plan.held))})


def by_kind(case: Case) -> Case:
    """The case without a weight of its own."""
    return case.model_copy(update={"weight": None})
