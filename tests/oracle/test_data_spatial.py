"""Data+spatial against two simulated levels of rings, and against data and spatial."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.oracle.cuts import SOME, WIRES, Cut, drawn, exchanged, hand_machine, model_from, tables
from tests.oracle.handmade import seconds
from tests.oracle.shapes import conv, model_of, relu, small
from tests.oracle.simulated import ring_allgather, ring_allreduce, wire

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.cost import NOTHING, Cost
from calib.oracle.layout.shards import why_impossible
from calib.oracle.layout.traffic import gradient_messages
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.projection import Form, Projection
from calib.oracle.strategies import data, data_spatial, spatial
from calib.oracle.strategies.common import exchange_terms
from calib.oracle.terms import Term


@SOME
@given(drawn(), st.integers(1, 5), st.integers(1, 4), st.integers(1, 40))
def test_paper_form_is_the_simulation(
    case: tuple[list[Cut], tuple[int, ...]], each: int, groups: int, node: int
) -> None:
    """B/p1 samples inside a group; W is summed in every group, then by the leaders in one ring."""
    cuts, grid = case
    model, inner = model_from(cuts), math.prod(grid)
    p, last = groups * inner, cuts[-1]
    division = Division(
        "data+spatial", p, groups * each, inner, grid=grid, split_until=f"l{len(cuts)}"
    )
    assume(not why_impossible(model, division))
    costs = tables(model, node)
    found = seconds(data_spatial.paper(model, division, costs))

    inside, outside = ("node" if n <= node else "rack" for n in (inner, p))
    p2p, gather = wire(*WIRES[inside, "p2p"]), wire(*WIRES[inside, "allgather"])
    halos = math.fsum(
        exchanged(c.channels, c.size, grid, c.kernel // 2, each, p2p)
        + exchanged(c.filters, c.output, grid, c.kernel // 2, each, p2p)
        for c in cuts
    )
    assert found["halo"] == pytest.approx(halos, rel=1e-9)
    items = last.filters * math.prod(last.output)
    gathered = max(ring_allgather(inner, 4.0 * each * items, gather))
    assert found["layerwise"] == pytest.approx(2 * gathered, rel=1e-9)

    weights = 4.0 * sum(math.prod(shape) for shape in model.parameter_shapes)
    summed = ring_allreduce(inner, weights, wire(*WIRES[inside, "allreduce"]))
    leaders = [max(summed)] * groups
    done = ring_allreduce(groups, weights, wire(*WIRES[outside, "allreduce"]), leaders)
    assert found["exchange"] == pytest.approx(max(done), rel=1e-9)

    whole = sum(costs.forward[name] for name in ("fc", "loss", "flatten"))
    split = sum(costs.forward[f"l{n}"] for n in range(1, len(cuts) + 1))
    assert found["forward"] == pytest.approx(each * (split / inner + whole), rel=1e-9)


def test_one_ring_of_leaders_shares_no_link() -> None:
    """phi = 1 however few links a node has: with twice the links nothing changes."""
    model = small()
    division = Division("data+spatial", 8, 8, inner=2)
    one, two = (data_spatial.paper(model, division, tables(model, 4, n)) for n in (1, 2))
    assert one == two
    assert [t.values.get("phi", 1.0) for t in one if t.phase == "exchange"] == [1.0, 1.0]


def facts(found: Projection) -> tuple[object, ...]:
    assert found.total is not None
    return found.phases, found.total, found.bytes_by_part, found.bytes_per_rank


def deep() -> ModelSpec:
    return model_of(
        [conv(3, 4, (16, 12), 3, 1, 1), relu(4, (16, 12)), conv(4, 8, (16, 12), 5, 1, 2)]
    )


@pytest.mark.parametrize("form", get_args(Form))
@pytest.mark.parametrize("model", [small(), deep()], ids=["small", "deep"])
def test_identities(model: ModelSpec, form: Form) -> None:
    """p2 = 1 is data, p1 = 1 is spatial on the same grid, p = 1 is serial: to the last bit."""
    machine = hand_machine(True)

    def answer(
        strategy: str, p: int, inner: int = 1, grid: tuple[int, ...] = ()
    ) -> tuple[object, ...]:
        return facts(project(model, Division(strategy, p, 12, inner, grid=grid), machine, form))

    for p in (2, 4):
        assert answer("data+spatial", p, 1) == answer("data", p)
        assert answer("data+spatial", p, p) == answer("spatial", p)
    assert answer("data+spatial", 4, 4, (2, 2)) == answer("spatial", 4, 1, (2, 2))
    assert answer("spatial", 1) == answer("data+spatial", 1) == answer("serial", 1)
    assert answer("data+spatial", 4, 2) not in (answer("data", 4), answer("spatial", 4))


def test_terms_of_the_limits_are_theirs() -> None:
    """The paper form term by term, not only summed."""

    def costs_of(terms: list[Term]) -> list[tuple[str, float]]:
        return sorted((str(t.phase), t.cost.seconds) for t in terms if t.cost.seconds)

    model = small()
    costs = tables(model)
    group = data_spatial.paper(model, Division("data+spatial", 4, 12, 4), costs)
    assert costs_of(group) == costs_of(spatial.paper(model, Division("spatial", 4, 12), costs))
    replicas = data_spatial.paper(model, Division("data+spatial", 4, 12, 1), costs)
    assert costs_of(replicas) == costs_of(data.paper(model, Division("data", 4, 12), costs))


def test_gradients_by_all_ranks_of_a_group() -> None:
    """small() has 406 weights: 1624 B, of which each of 2 ranks of a group takes 812 across 3 groups."""
    model = small()
    found = gradient_messages(model, Division("data+spatial", 6, 12, 2, gradients="all"))
    assert [(m.operation, m.nbytes, m.group_size, m.stride, m.groups) for m in found] == [
        ("reduce_scatter", 1624, 2, 1, 3),
        ("allreduce", 812, 3, 2, 2),
        ("allgather", 1624, 2, 1, 3),
    ]
    # 406 items in 4 slices: 102 each, the last one padded
    four = gradient_messages(model, Division("data+spatial", 8, 12, 4, gradients="all"))
    assert [m.nbytes for m in four] == [1624, 408, 1624]
    for inner in (1, 6):  # no group or no other one: nothing to choose
        one = Division("data+spatial", 6, 12, inner)
        assert gradient_messages(model, replace(one, gradients="all")) == gradient_messages(
            model, one
        )


def test_all_three_messages_are_one_exchange_of_the_weights() -> None:
    """An iteration adds to W bytes, whether in one message or in three."""
    asked: list[float] = []

    def exchanging(cost: Cost, nbytes: float) -> Cost:
        asked.append(nbytes)
        return cost

    tensors = SimpleNamespace(passing=lambda *_: NOTHING, exchanging=exchanging)
    nothing = {"sent": lambda *_: NOTHING, "rested": lambda *_: NOTHING}
    costs: Any = SimpleNamespace(tensors=tensors, **nothing)
    exchange_terms(small(), Division("data+spatial", 4, 12, 2, gradients="all"), costs)
    assert len(asked) == 3 and sum(asked) == pytest.approx(1624, rel=1e-12)


def test_paper_form_of_all_ranks() -> None:
    """AR(p2, W) in a group as by leaders; across, p2 rings of W/p2 at once share the node's link."""
    model, weights = small(), 1624
    division = Division("data+spatial", 8, 8, 2, gradients="all")
    costs = tables(model, 2, 1)
    found = [t for t in data_spatial.paper(model, division, costs) if t.phase == "exchange"]
    inside, outside = WIRES["node", "allreduce"], WIRES["rack", "allreduce"]
    assert [t.cost.seconds for t in found] == pytest.approx(
        [
            2 * (inside[0] + weights * inside[1] / 2),
            6 * (outside[0] + weights / 2 * 2 * outside[1] / 4),
        ]
    )


@pytest.mark.parametrize("strategy", ["spatial", "data", "data+filter"])
def test_only_data_spatial_says_who_takes_gradients_across(strategy: str) -> None:
    of = Division(strategy, 4, 12, 2, gradients="all")
    assert f"{strategy} parallelism has no gradients by all ranks of a group" in of.faults
    with pytest.raises(InputError, match="unknown gradients 'some'; known: leaders, all"):
        Division("data+spatial", 4, 12, 2, gradients="some")


def test_gradients_are_exchanged_as_by_the_kind_that_is_left() -> None:
    model = small()
    for p in (2, 4):
        plain = gradient_messages(model, Division("data", p, 12))
        assert gradient_messages(model, Division("spatial", p, 12)) == plain
        for inner in (1, p):
            hybrid = Division("data+spatial", p, 12, inner)
            assert gradient_messages(model, hybrid) == plain
        assert gradient_messages(model, Division("data+filter", p, 12, 1)) == plain
        assert gradient_messages(model, Division("data+filter", p, 12, p)) == []
    (leaders,) = gradient_messages(model, Division("data+spatial", 4, 12, 2))
    assert (leaders.operation, leaders.group_size, leaders.inner) == (
        "hierarchical_allreduce",
        4,
        2,
    )
    for strategy in ("serial", "filter", "channel", "pipeline"):
        p = 1 if strategy == "serial" else 2
        assert gradient_messages(model, Division(strategy, p, 12)) == []


def test_memory_and_limit() -> None:
    """2 B / (p1 p2) of split layers, 2 B / p1 of whole ones, all weights; B times spatial's limit."""
    model, division = small(), Division("data+spatial", 8, 12, inner=2)
    parts = data_spatial.memory(model, division, "momentum")
    assert parts == {
        "activations": 2 * 4 * (12 * 960 // 8 + 12 * 61 // 4),
        "weights": 4 * 406,
        "gradients": 4 * 406,
        "optimizer": 4 * 406,
        "exchange": 4 * 406,
    }
    limit = data_spatial.limit(model, division)
    assert limit.ranks == 12 * 48
    assert limit.why.startswith("p2 <= 8 x 6 parts")
    assert limit.why.endswith("one sample for each of p1 <= B = 12 groups")
