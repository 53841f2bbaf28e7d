"""What a plan's budget is spent on: the shares of cases, and what of a slow network it holds.

Layers and passes share the time by weight, and tiers are left out as it is spent. A collective on a slow
network may take as long as a whole launch at its fewest repetitions. So the first launch of a size times
a few calls (collectives/expected.py), and `chosen` then decides once what is measured: three sizes of
every law, then more sizes, then more launches; what is left goes into repetitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from calib.foundation.words import seconds_words
from calib.microbench.cases import OWN_LAUNCHES, Case, CollectiveCase, Held, Plan, law_of
from calib.microbench.timing.repeat import FEWEST_REPETITIONS

# a case's share of the time, relative to others: a whole iteration takes long, and corrects every
# prediction; what no prediction looks up can wait
WEIGHTS = {"collective": 1.0, "layer": 1.0, "tensors": 1.5, "in_place": 24.0, "sparse": 1.0}
TIER_WEIGHTS = (1.0, 1.0, 0.5)
# what a case takes beyond its repetitions (set-up, check, writing rows), until that is known
FIRST_OVERHEAD_S = 0.02
# a tier is left out once this many times the launch's budget is spent; tier 0 never is
OVERRUN = {1: 2.0}
LATER_TIERS_OVERRUN = 1.0
# of a collective: its check, the trial that says how many calls a timing holds; and a warm-up
BEFORE_REPETITIONS = 2
FEWEST_CALLS = BEFORE_REPETITIONS + 1 + FEWEST_REPETITIONS
REPEATED = 1 - BEFORE_REPETITIONS / FEWEST_CALLS  # of these, the share of the repetitions
# of a size's time, what the fewest repetitions may take: the rest is for more of them, for the layers
# that can be left out, and for what takes longer than was expected
FILLED = 0.8
# what three sizes of every law may take of the time; the rest is for the sizes that are sent
OF_THREE_SIZES = 0.5
# three sizes may take so many times what the three smallest do, which is set-up and checks for the most
# part: where the time does not hold even those, a size that says something of the link is worth it
OF_THE_SMALLEST = 3.0
# a size that strategies send, and that takes no longer than this, is always measured
SHORT_S = 0.3
FEWEST_LAUNCHES = 2  # one does not tell a bad day


def weight_of(case: Case) -> float:
    """A case's share of the time, relative to others: as predictions need it, else by its kind."""
    if case.weight is not None:
        return case.weight
    return WEIGHTS[case.kind] * TIER_WEIGHTS[min(case.tier, len(TIER_WEIGHTS) - 1)]


def weights_of(cases: Iterable[Case]) -> float:
    """The weight of cases together."""
    return sum(map(weight_of, cases))


def seconds_of_size(plan: Plan, ranks: int) -> float:
    """Seconds that all launches of a size have, whatever of its cases was left out."""
    every = {case.id: case for case in plan.cases}.values()
    mine = weights_of(case for case in every if case.ranks == ranks)
    return plan.budget_seconds * mine / weights_of(every)


def budget_of(plan: Plan, ranks: int, todo: Sequence[Case]) -> float:
    """Seconds for cases of one launch: their share, by weight, of the launch's part of the budget.

    A launch that is begun again after an interruption has time for what is left, and no more. Cases that
    only some launches have take the time of the others there.
    """
    held, launches = plan.held_of(ranks), plan.launches_of(ranks)
    each = held.seconds if held else seconds_of_size(plan, ranks) / launches
    whole = weights_of(plan.cases_for(ranks))
    own = weights_of(case for case in todo if case.has_own_ranks and case.weight is None)
    mine = weights_of(todo) + own * (launches / min(launches, OWN_LAUNCHES) - 1.0)
    return each * mine / whole if whole else 0.0  # no prediction needs this size


def is_first(case: Case) -> bool:
    """Whether it is one of the sizes of a law that a short budget is spent on first."""
    return isinstance(case, CollectiveCase) and case.first


def is_left_out(case: Case, spent_s: float, budget_s: float) -> bool:
    """Whether too much of the budget is spent for a case of this tier."""
    if is_first(case):
        return False
    return case.tier > 0 and spent_s > budget_s * OVERRUN.get(case.tier, LATER_TIERS_OVERRUN)


def fewest_s(case: Case) -> float:
    """Seconds of a case's fewest repetitions, as far as they are known."""
    return (case.fewest_s or 0.0) if isinstance(case, CollectiveCase) else 0.0


def at_its_fewest(repetitions: int, elapsed_s: float) -> float:
    """Seconds that a case of so many repetitions would have taken at its fewest."""
    return elapsed_s * min(1.0, FEWEST_CALLS / (repetitions + BEFORE_REPETITIONS))


def chosen(
    plan: Plan,
    ranks: int,
    needs: Mapping[str, float],
    spent_s: float = 0.0,
    others_s: float = 0.0,
    own_s: float = 0.0,
) -> Plan:
    """The plan with what its budget holds of the collectives of a size.

    Parameters
    ----------
    plan
        The cases, and the budget for all launches.
    ranks
        The size of the launch.
    needs
        Case -> s of its fewest repetitions. A case without is measured in any case.
    spent_s
        Seconds of the size's time that are gone.
    others_s
        Seconds that a launch takes for what it never leaves out, at the fewest repetitions.
    own_s
        The same of cases with ranks of their own, which OWN_LAUNCHES have.

    Returns
    -------
    Plan
        With `fewest_s` of each case, `left_out` of those that the time does not hold, and the number of
        launches: as many as hold every case at its fewest repetitions, but not fewer than two; of what
        two do not hold, three sizes of every law come first (the largest that fit), then the largest
        that strategies send of each (the longest allreduce before all others), the other sizes that
        they send, and the other tiers, the quickest first.
    """
    known = [
        case
        for case in plan.cases_for(ranks)
        if isinstance(case, CollectiveCase) and case.id in needs
    ]
    time_s = max(seconds_of_size(plan, ranks) - spent_s, 0.0)
    total = sum(needs[case.id] for case in known)
    filled_s = time_s * FILLED
    least = min(FEWEST_LAUNCHES, plan.launches)

    def beside(n: int) -> float:
        """Seconds of a launch, one of n, that collectives do not have."""
        return others_s + own_s * min(n, OWN_LAUNCHES) / n

    several = range(plan.launches, least, -1)
    launches = next((n for n in several if n * (total + beside(n)) <= filled_s), least)
    most_s, beside_s = filled_s / launches, beside(launches)
    share = weights_of(known) / weights_of(plan.cases_for(ranks))
    free = max(most_s - beside_s, most_s * share)
    first, kept = set[str](), set(needs)
    if total + beside_s > most_s:
        first, kept = needed_most(known, needs, free, most_s)

    def told(case: Case) -> Case:
        if not isinstance(case, CollectiveCase) or case.id not in needs:
            return case
        need, why = needs[case.id], ""
        if case.id not in kept:
            of = seconds_words(free if case.tier else most_s)
            why = f"{seconds_words(need)} at its fewest repetitions, of {of} for all in a launch"
        about = {"fewest_s": need, "left_out": why, "first": case.id in first}
        return case.model_copy(update=about)

    cases = tuple(told(case) if case.ranks == ranks else case for case in plan.cases)
    held = Held(ranks=ranks, launches=launches, seconds=time_s / launches)
    return plan.model_copy(update={"cases": cases, "held": (*plan.held, held)})


def needed_most(
    cases: Sequence[CollectiveCase], needs: Mapping[str, float], free_s: float, most_s: float
) -> tuple[set[str], set[str]]:
    """Ids of the three sizes of every law, and of all cases that `free_s` seconds hold.

    The sizes that strategies send may take `most_s` with them.
    """
    laws: dict[tuple[object, ...], list[CollectiveCase]] = {}
    for case in sorted(cases, key=lambda case: case.nbytes):
        laws.setdefault(law_of(case), []).append(case)
    part_s = free_s * OF_THREE_SIZES / len(laws)
    first = {case.id for of_law in laws.values() for case in three_sizes(of_law, needs, part_s)}
    kept, taken_s = set(first), sum(needs[name] for name in first)
    largest = {some[-1].id: some[-1] for of_law in laws.values() if (some := sent_of(of_law))}
    allreduces = [case for case in largest.values() if case.operation == "allreduce"]
    longest = max(allreduces, key=lambda case: case.nbytes, default=None)

    def order(case: CollectiveCase) -> tuple[int, bool, bool, float]:
        return case.tier, case is not longest, case.id not in largest, needs[case.id]

    for case in sorted(cases, key=order):
        need, sent = needs[case.id], case.tier == 0
        held = taken_s + need <= (most_s if sent else free_s) or (sent and need <= SHORT_S)
        if case.id not in kept and held:
            kept.add(case.id)
            taken_s += need
    return first, kept


def three_sizes(
    of_law: Sequence[CollectiveCase], needs: Mapping[str, float], part_s: float
) -> list[CollectiveCase]:
    """The smallest case of a law, the largest with which three fit, and the middle one between.

    That is the largest that strategies send, or a smaller one; of what they never send, any.
    """
    sent = sent_of(of_law)
    largest = max(of_law.index(sent[-1]), 2) if sent else len(of_law) - 1
    most_s = max(part_s, OF_THE_SMALLEST * sum(needs[case.id] for case in of_law[:3]))
    for last in range(largest, 2, -1):
        three = [of_law[place] for place in (0, (last + 1) // 2, last)]
        if sum(needs[case.id] for case in three) <= most_s:
            return three
    return list(of_law[:3])


def sent_of(of_law: Sequence[CollectiveCase]) -> list[CollectiveCase]:
    """Those of the sizes of a law that strategies send."""
    return [case for case in of_law if case.tier == 0]
