"""What a budget is spent on: shares by weight, and what of a slow network it holds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.helpers.divided import model_case

from calib.foundation.collectives import Operation
from calib.microbench.budget import (
    FILLED,
    SHORT_S,
    WEIGHTS,
    budget_of,
    chosen,
    fewest_s,
    is_first,
    is_left_out,
    needed_most,
    seconds_of_size,
    three_sizes,
    weight_of,
)
from calib.microbench.cases import CollectiveCase, Plan, TensorsCase

SIZES = [8 << 3 * k for k in range(8)]  # 8 B to 16 MiB
OPERATIONS: tuple[Operation, ...] = ("allreduce", "p2p", "allgather", "broadcast")
BETA_S = 27.8e-9  # s a byte at 300 Mbit/s: 16 MiB take 0.47 s
START_S = 1e-3


def collective(operation: Operation, nbytes: int, tier: int = 1) -> CollectiveCase:
    return CollectiveCase(ranks=2, group_size=2, operation=operation, nbytes=nbytes, tier=tier)


def slow_plan(budget_s: float, launches: int = 6) -> Plan:
    """Every operation at each size, and two messages that a strategy sends, of 3 kB and 10 MB."""
    cases = [collective(name, nbytes) for name in OPERATIONS for nbytes in SIZES]
    sent = [collective("allreduce", nbytes, 0) for nbytes in (3000, 10_000_000)]
    return Plan(cases=(*cases, *sent), budget_seconds=budget_s, launches=launches)


def needs_of(plan: Plan, beta_s: float = BETA_S) -> dict[str, float]:
    return {
        case.id: 9 * (START_S + beta_s * case.nbytes)
        for case in plan.cases
        if isinstance(case, CollectiveCase)
    }


def held_s(plan: Plan) -> float:
    """Seconds that the fewest repetitions of what is held take in all launches."""
    return plan.launches_of(2) * sum(map(fewest_s, plan.cases_for(2)))


def test_budget_is_shared_by_weight() -> None:
    """Two launches of 1 in-place case on one rank, and 2 collectives and 1 pack on two."""
    mixed = Plan(
        cases=(
            model_case("m", 1),
            CollectiveCase(ranks=2, group_size=2, operation="p2p", nbytes=8),
            CollectiveCase(ranks=2, group_size=2, operation="p2p", nbytes=16),
            TensorsCase(ranks=2, operation="pack", key="k", shapes=((1,),)),
        ),
        budget_seconds=100.0,
        launches=2,
    )
    weights = (WEIGHTS["in_place"], 2 * WEIGHTS["collective"] + WEIGHTS["tensors"])
    one, two = (budget_of(mixed, ranks, mixed.cases_for(ranks)) for ranks in (1, 2))
    assert one == pytest.approx(50 * weights[0] / sum(weights))
    assert mixed.launches * (one + two) == pytest.approx(100.0)
    left = mixed.cases_for(2)[1:]
    rest = (WEIGHTS["collective"] + WEIGHTS["tensors"]) / weights[1]
    assert budget_of(mixed, 2, left) == pytest.approx(two * rest), "of a launch that goes on"
    assert budget_of(mixed, 2, []) == 0.0


def test_models_have_their_time_in_the_launches_that_they_are_in() -> None:
    """Three of six, unless predictions need them; together all launches have the budget."""
    model = model_case("m", 2)
    mixed = Plan(
        cases=(model, *(collective("p2p", 8 << n) for n in range(4))),
        budget_seconds=100.0,
        launches=6,
    )
    seconds = [budget_of(mixed, 2, mixed.cases_in(2, n)) for n in range(6)]
    assert sum(seconds) == pytest.approx(100.0) and seconds[0] > seconds[2] == seconds[4]
    having = [n for n in range(6) if model in mixed.cases_in(2, n)]
    assert having == [0, 1, 5]
    few = mixed.model_copy(update={"launches": 3})
    assert all(model in few.cases_in(2, n) for n in range(3))
    on_a_gpu = model.model_copy(update={"device": "cuda"})
    needed = model.model_copy(update={"weight": 2.0})
    for case in (on_a_gpu, needed):
        of = mixed.model_copy(update={"cases": (case, *mixed.cases[1:])})
        assert all(of.cases_in(2, n) == of.cases_for(2) for n in range(6))
        each = [budget_of(of, 2, of.cases_in(2, n)) for n in range(6)]
        assert each == pytest.approx([100 / 6] * 6)


def test_weights_by_kind_and_tier() -> None:
    whole = model_case("m", 1)
    message = CollectiveCase(ranks=2, group_size=2, operation="p2p", nbytes=8)
    assert weight_of(whole) == WEIGHTS["in_place"] > weight_of(message) == WEIGHTS["collective"]
    tiers = [weight_of(message.model_copy(update={"tier": tier})) for tier in range(4)]
    assert tiers == [1.0, 1.0, 0.5, 0.5]


def test_tier_zero_is_never_left_out() -> None:
    first = model_case("m", 1)
    assert not is_left_out(first, 1e9, 1.0)
    second = first.model_copy(update={"tier": 1})
    assert [is_left_out(second, spent, 10.0) for spent in (20.0, 20.1)] == [False, True]
    third = first.model_copy(update={"tier": 2})
    assert [is_left_out(third, spent, 10.0) for spent in (10.0, 10.1)] == [False, True]


TOTAL_S = sum(needs_of(slow_plan(1.0)).values())


def test_a_budget_that_holds_all_changes_nothing_that_is_measured() -> None:
    plan = slow_plan(1.01 * 6 * TOTAL_S / FILLED)
    found = chosen(plan, 2, needs_of(plan))
    assert found.cases_for(2) == list(found.cases) and found.launches_of(2) == 6
    assert [case.id for case in found.cases] == [case.id for case in plan.cases]
    assert not any(map(is_first, found.cases)), "so the order is as it was, too"
    assert budget_of(found, 2, found.cases_for(2)) == pytest.approx(plan.budget_seconds / 6)
    assert found.as_asked() == plan


def test_launches_are_fewer_before_sizes_are() -> None:
    """What holds three launches of everything is spent on three, each with a third of the time."""
    plan = slow_plan(3.5 * TOTAL_S / FILLED)
    found = chosen(plan, 2, needs_of(plan))
    assert found.launches_of(2) == 3 and found.cases_for(2) == list(found.cases)
    assert budget_of(found, 2, found.cases_for(2)) == pytest.approx(plan.budget_seconds / 3)
    assert found.sizes == [2] and found.as_asked() == plan


def test_models_count_in_three_launches() -> None:
    """Six launches of all but them and three of them are held; what always runs counts in all."""
    plan = slow_plan((6 * TOTAL_S + 3 * 5.0) * 1.0001 / FILLED)
    held = [
        chosen(plan, 2, needs_of(plan), **beside).launches_of(2)
        for beside in ({"own_s": 5.0}, {"others_s": 2.6}, {"own_s": 5.2})
    ]
    assert held == [6, 5, 5]


@pytest.mark.parametrize("budget_s", [10.0, 20.0, 30.0, 50.0])
def test_every_operation_keeps_three_sizes_in_two_launches(budget_s: float) -> None:
    """The smallest, one between, and the largest that fits, where two launches of all take 55 s."""
    plan = slow_plan(budget_s)
    found = chosen(plan, 2, needs_of(plan))
    assert found.launches_of(2) == 2
    assert held_s(found) <= FILLED * budget_s
    largest = {}
    for name in OPERATIONS:
        of_law = [c for c in found.cases_for(2) if isinstance(c, CollectiveCase)]
        sizes = sorted(case.nbytes for case in of_law if case.operation == name)
        assert sizes[0] == 8 and len(sizes) >= 3
        largest[name] = sizes[-1]
    # an eighth of half of the time: three sizes of each of four operations
    part_s = FILLED * budget_s / 2 / 2 / 4
    fits = max(n for n in SIZES if 9 * (3 * START_S + BETA_S * (n + n / 64)) <= part_s)
    assert min(largest.values()) >= fits
    out = [case for case in found.cases if isinstance(case, CollectiveCase) and case.left_out]
    assert out and all("at its fewest repetitions, of " in case.left_out for case in out)
    assert {case.id for case in out}.isdisjoint(case.id for case in found.cases_for(2))


def test_what_is_sent_comes_before_what_lies_between() -> None:
    """10 MB take 2.5 s: of the 4 s of a launch it is left out for nothing but the three sizes."""
    plan = slow_plan(10.0)
    found = chosen(plan, 2, needs_of(plan))
    sent = {case.nbytes for case in found.cases_for(2) if case.tier == 0}
    assert sent == {3000, 10_000_000}
    hopeless = slow_plan(1.0)
    found = chosen(hopeless, 2, needs_of(hopeless))
    sent = {case.nbytes for case in found.cases_for(2) if case.tier == 0}
    assert sent == {3000}, f"it takes less than {SHORT_S} s"


def test_cases_whose_time_is_not_known_are_held() -> None:
    plan = slow_plan(10.0)
    needs = needs_of(plan)
    unknown = plan.cases[7]
    needs.pop(unknown.id)
    assert unknown in chosen(plan, 2, needs).cases_for(2)
    assert chosen(plan, 2, {}).cases == plan.cases


def test_other_cases_keep_their_time() -> None:
    """What a launch never leaves out comes off its time, as do the calls by which it was found out."""
    plan = slow_plan(60.0)
    plan = plan.model_copy(update={"cases": (model_case("m", 2), model_case("n", 1), *plan.cases)})
    whole = seconds_of_size(plan, 2)
    assert whole == pytest.approx(60 * weight(plan, 2) / (weight(plan, 1) + weight(plan, 2)))
    found = chosen(plan, 2, needs_of(plan), spent_s=4.0, others_s=5.0)
    assert found.launches_of(2) == 2
    assert held_s(found) + 2 * 5.0 <= FILLED * (whole - 4.0)
    assert len(found.cases_for(2)) < len(chosen(plan, 2, needs_of(plan), 4.0).cases_for(2))
    assert found.launches_of(1) == 6, "of one rank, where nothing is sent"
    assert seconds_of_size(found, 2) == whole
    assert budget_of(found, 2, found.cases_for(2)) == pytest.approx((whole - 4.0) / 2)


def test_collectives_keep_their_share_where_others_take_all() -> None:
    plan = slow_plan(60.0)
    plan = plan.model_copy(update={"cases": (model_case("m", 2), *plan.cases)})
    found = chosen(plan, 2, needs_of(plan), others_s=1e3)
    share = 1 - WEIGHTS["in_place"] / weight(plan, 2)
    assert 0.5 * FILLED * share * 60.0 < held_s(found) <= FILLED * 60.0
    operations = {c.operation for c in found.cases_for(2) if isinstance(c, CollectiveCase)}
    assert operations == set(OPERATIONS)


def weight(plan: Plan, ranks: int) -> float:
    return sum(weight_of(case) for case in plan.cases_for(ranks))


def test_sizes_that_come_first_are_never_left_out() -> None:
    plan = slow_plan(10.0)
    first = [case for case in chosen(plan, 2, needs_of(plan)).cases if is_first(case)]
    assert len(first) == 3 * len(OPERATIONS)
    assert not any(is_left_out(case, 1e9, 1.0) for case in first)


def law_of_sizes(
    operation: Operation, sent: Sequence[int], others: Sequence[int]
) -> list[CollectiveCase]:
    cases = [collective(operation, n, 0) for n in sent] + [collective(operation, n) for n in others]
    return sorted(cases, key=lambda case: case.nbytes)


def test_the_largest_of_three_sizes_is_one_that_is_sent() -> None:
    """Each size takes as many seconds as its MB; 64 MB would fit, but no strategy sends it."""
    cases = law_of_sizes("allreduce", [10_000_000], [8, 1000, 1_000_000, 64_000_000])
    needs = {case.id: 1e-6 * case.nbytes for case in cases}
    assert [case.nbytes for case in three_sizes(cases, needs, 100.0)] == [8, 1_000_000, 10_000_000]
    unsent = [case for case in cases if case.tier]
    assert [case.nbytes for case in three_sizes(unsent, needs, 100.0)] == [8, 1_000_000, 64_000_000]
    assert [case.nbytes for case in three_sizes(cases, needs, 5.0)] == [8, 1000, 1_000_000]


def test_three_sizes_are_not_all_tiny_where_larger_ones_take_hardly_longer() -> None:
    """A case takes 25 ms whatever its size, and 1 s per MB; the budget holds none of them."""
    cases = law_of_sizes("broadcast", [], [8, 64, 512, 4096, 32768, 100_000, 1_000_000])
    needs = {case.id: 0.025 + 1e-6 * case.nbytes for case in cases}
    # three times 75 ms hold 25 + 29 + 125 ms, not 25 + 29 + 1025
    assert [case.nbytes for case in three_sizes(cases, needs, 0.0)] == [8, 4096, 100_000]


def test_the_largest_sent_sizes_come_before_smaller_ones() -> None:
    """The longest allreduce first, then each law's largest, the quickest first, then the rest."""
    small = [8, 64, 512]
    allreduce = law_of_sizes("allreduce", [1_000_000, 3_000_000, 5_000_000], small)
    allgather = law_of_sizes("allgather", [1_500_000, 4_000_000], small)
    p2p = law_of_sizes("p2p", [2_000_000], small)
    cases = [*p2p, *allgather, *allreduce]
    needs = {case.id: 1e-6 * case.nbytes for case in cases}

    def sent(most_s: float) -> set[tuple[str, int]]:
        _, kept = needed_most(cases, needs, 0.0, most_s)
        return {(c.operation, c.nbytes) for c in cases if c.id in kept and c.tier == 0}

    longest, quick = ("allreduce", 5_000_000), ("p2p", 2_000_000)
    assert sent(5.1) == {longest}
    assert sent(7.1) == {longest, quick}, "4 s of an allgather are more than are left"
    assert sent(11.1) == {longest, quick, ("allgather", 4_000_000)}
    assert sent(12.1) == {*sent(11.1), ("allreduce", 1_000_000)}
    assert sent(17.0) == {(c.operation, c.nbytes) for c in cases if c.tier == 0}
