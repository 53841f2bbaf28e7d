"""Every search looks at the clock: here one that ticks at each look, so that looks are the time."""

from __future__ import annotations

from typing import Any

import pytest
from tests.oracle.handmade import mlp

from calib.foundation.errors import InputError
from calib.oracle.costs.machine import Machine
from calib.search import SPACES, search, space_named
from calib.search.layerwise.elimination import solve
from calib.search.layerwise.search import tables_of
from calib.search.layerwise.tables import Pricing
from calib.search.nominal import nominal
from calib.search.pipelines.antichains import states_of
from calib.search.pipelines.profile import Node, PipelineProfile
from calib.search.plan import SearchedPlan
from calib.search.request import Budget, BudgetOver, Devices, SearchRequest
from calib.search.timelines.schedules import gpipe
from calib.search.timelines.simulation import StageTimes, simulate

MACHINE = Machine(nominal("p100"))
EIGHT = Devices(2, 4)
SMALL = mlp([64, 256, 128, 16])
AFTER = 40  # looks that a plan may take when its time is over: the course, the record, short loops


class Ticks:
    """A clock on which every look at it takes a second."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return float(self.looks)


def ended(
    seconds: float | None,
    space: str,
    method: str = "",
    model: Any = SMALL,
    devices: Devices = EIGHT,
) -> SearchedPlan:
    """The plan at the end of so many seconds of a fresh clock."""
    budget = Budget(seconds, clock=Ticks())
    return search(model, devices, MACHINE, space, method, budget, batch=64)


def dense(n: int) -> PipelineProfile:
    """Each layer reads all before it: quadratically many ways on from every cut."""
    nodes = tuple(Node(f"node{i}", "Conv2d(1, 1, 1)", 1e-3, 2e-3, 1e6, 1e6) for i in range(n))
    edges = tuple((i, j) for i in range(n) for j in range(i + 1, n))
    return PipelineProfile("dense", nodes, edges)


METHODS = [(name, method) for name in SPACES for method in space_named(name).methods]


@pytest.mark.parametrize("seconds", [1, 30, 900])
@pytest.mark.parametrize(("space", "method"), METHODS)
def test_every_method_ends_with_its_budget(space: str, method: str, seconds: int) -> None:
    """Looks at the clock after the end are few, and the plan says that the budget ended it."""
    clock = Ticks()
    budget = Budget(seconds=seconds, clock=clock)
    model = mlp([64, 256, 128, 256, 128, 64, 64, 64, 16])
    plan = search(model, EIGHT, MACHINE, space, method, budget, batch=64)
    assert clock.looks <= seconds + AFTER
    assert sum(of.value for of in plan.phases.values()) == pytest.approx(plan.total.value)
    if clock.looks > seconds + 5:
        assert plan.searched.stopped == "budget"


@pytest.mark.parametrize("method", ["pipedream", "straight", "gpipe"])
@pytest.mark.parametrize("seconds", [1, 100, 3000])
def test_cuts_are_looked_for_by_the_clock(method: str, seconds: int) -> None:
    """The graph has 60 layers, 1770 edges; the enumeration of its cuts takes over 30000 looks."""
    clock = Ticks()
    budget = Budget(seconds=seconds, clock=clock)
    plan = search(dense(60), Devices(1, 4), MACHINE, "pipeline", method, budget, batch=64)
    assert clock.looks <= seconds + AFTER
    assert plan.searched.stopped == "budget" and plan.certificate.kind == "bound"
    assert any("the budget ended" in note for note in plan.notes)
    assert len(plan.layers) == 60


def test_the_cuts_of_a_dense_graph_take_long() -> None:
    """So that the test above can fail."""
    whole = Ticks()
    states_of(dense(60), lambda: whole() and None)
    assert whole.looks > 30_000


def test_the_budget_ends_a_partition() -> None:
    """A chain of 40 layers on 16 devices: cut by the clock, the stages are those without a search."""
    model = mlp([64] * 21)
    whole, cut = (ended(s, "pipeline", "pipedream", model, Devices(4, 4)) for s in (None, 30))
    assert whole.searched.stopped == "complete" and whole.certificate.kind == "optimal"
    assert cut.searched.stopped == "budget" and cut.certificate.kind == "bound"
    assert cut.certificate.lower_bound_s is not None
    assert cut.certificate.lower_bound_s <= whole.total.value <= cut.total.value
    assert [(of.first, of.stop, of.replicas) for of in cut.stages] == [(0, len(model.layers), 4)]


def test_no_room_and_no_time() -> None:
    """What is known of the smallest memory by then; never a number that was not looked for."""
    model = mlp([64, 256, 128, 256, 128, 64, 64, 16])
    said = []
    for seconds in (None, *range(1, 700, 40)):
        with pytest.raises(InputError) as error:
            ended(seconds, "pipeline", "pipedream", model, Devices(1, 4, 1000))
        said.append(str(error.value))
    exact = int(said[0].split()[-2])
    known = [int(text.split()[-4]) for text in said[1:] if "bytes would do" in text]
    assert known and all(exact <= least for least in known)
    assert any("before any memory was found" in text for text in said)
    assert any("before a pipeline was found that fits" in text for text in said)


@pytest.mark.parametrize("method", ["elimination", "enumeration"])
def test_layers_without_time_for_tables(method: str) -> None:
    """The plan is the best of few, and nothing is claimed of the others."""
    few, every = (ended(seconds, "layerwise", method) for seconds in (5, None))
    assert few.certificate.kind == "none" and few.searched.stopped == "budget"
    assert few.total.value >= every.total.value
    assert all(set(layer.degrees) <= {"sample"} for layer in few.layers)
    data = next(of for of in few.baselines if of.name == "data")
    assert data.total is not None and few.total.value <= data.total.value * (1 + 1e-12)
    with pytest.raises(BudgetOver, match=r"the budget ended.*give a longer budget.*fits"):
        ended(5, "layerwise", method, devices=Devices(2, 4, 1000))


def test_states_without_time_for_tables() -> None:
    few = ended(3, "sbp", "descent")
    assert few.certificate.kind == "none" and few.searched.stopped == "budget"
    assert all(sum(n > 1 for n in layer.degrees.values()) <= 1 for layer in few.layers)
    with pytest.raises(BudgetOver, match="before there was any plan: give a longer budget"):
        ended(3, "sbp", "descent", devices=Devices(2, 4, 10))


def test_all_costs_of_tables_are_looked_up_by_the_clock() -> None:
    """A look at least for every configuration of every distinct layer and for every row of an edge."""
    clock = Ticks()
    spending = Budget(None, clock=clock).started()
    spending.budget = Budget(1e9, clock=clock)
    request = SearchRequest(SMALL, EIGHT, MACHINE, 64, "elimination")
    made = tables_of(request, Pricing(request), look=spending.look)
    assert clock.looks >= sum({id(of): len(of) for of in made.costs.nodes}.values())
    before = clock.looks
    solve(made.costs, spending.look)
    assert clock.looks > before


def test_a_simulation_is_ended() -> None:
    """20 stages, 200 micro-batches: over 16000 events, of which at most 256 come after the end."""
    times = StageTimes([1.0] * 20, [2.0] * 20)
    looks = Ticks()
    simulate(gpipe(20, 200), times, lambda: looks() and None)
    assert looks.looks > 30
    with pytest.raises(BudgetOver):
        simulate(gpipe(20, 200), times, Budget(3, clock=Ticks()).started().look)


def test_one_budget_is_all() -> None:
    """Tables, method and certificate are within the same seconds, which the plan adds up."""
    for space in SPACES:
        clock = Ticks()
        budget = Budget(1e6, clock=clock)
        of = search(SMALL, EIGHT, MACHINE, space, "", budget, batch=64).searched
        assert of.stopped == "complete" and of.tables_seconds + of.seconds <= clock.looks
