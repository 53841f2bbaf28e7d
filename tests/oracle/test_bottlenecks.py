"""Table 6 of ParaDL on hand-made terms: which rows apply, with which share of the time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.foundation.division import STRATEGIES, Division
from calib.oracle.bottlenecks import MATTERS, NEARLY_FULL, TABLE, bottlenecks
from calib.oracle.cost import Cost, total
from calib.oracle.projection import Bottleneck, Limit, Phase
from calib.oracle.terms import Term, TermCause, TermValue

GIB = 2**30
# the columns of Table 6; serial is in none, but updates weights and fills its memory as all do
ALL = {"data", "spatial", "pipeline", "filter", "channel", "data+filter", "data+spatial"} | {
    *("fully_sharded", "tensor", "sequence")  # which the table has not
}
SPATIAL = {"spatial", "data+spatial"}
SHARED = {"filter", "channel", "tensor", "sequence", "data+filter"}
COLUMNS = {
    "gradient exchange": {"data", "spatial", "sequence", "data+filter", "data+spatial"},
    "layer-wise communication": SHARED
    | SPATIAL
    | {"fully_sharded"},  # of spatial the allgather where the split ends
    "peer-to-peer communication": {"spatial", "pipeline", "data+spatial"},
    "network congestion": ALL,
    "memory redundancy": ALL,
    "memory stalls": ALL | {"serial"},
    "weight update": ALL | {"serial"},
    "workload balancing": {"pipeline"},
    "computation redundancy": SHARED | SPATIAL,  # of spatial the layers behind the split
    "number of ranks": ALL,
}
LIMITATIONS = {
    "gradient exchange",
    "layer-wise communication",
    "weight update",
    "workload balancing",
    "number of ranks",
}
OF_TIME: dict[TermCause, tuple[Phase, str]] = {
    "redundant": ("forward", "computation redundancy"),
    "bubble": ("forward", "workload balancing"),
    "gradient exchange": ("exchange", "gradient exchange"),
    "layer-wise": ("layerwise", "layer-wise communication"),
    "p2p": ("halo", "peer-to-peer communication"),
    "update": ("update", "weight update"),
}
PARTS = {"activations": 8 * GIB, "weights": GIB, "gradients": GIB, "optimizer": 2 * GIB}
FAR = Limit(ranks=10**6, why="the limit's own reason")


def term(
    cause: TermCause,
    seconds: float,
    values: Mapping[str, TermValue] | None = None,
    cost: Cost | None = None,
    phase: Phase = "forward",
    what: str = "",
) -> Term:
    """A term of so many seconds."""
    return Term(phase, cause, what or cause, cost or Cost(seconds), "", values or {})


def divided(strategy: str, p: int = 4) -> Division:
    """A division over p ranks, of a hybrid in two groups."""
    if strategy == "serial":
        return Division("serial", 1, 64)
    hybrid = strategy in ("data+filter", "data+spatial")
    return Division(strategy, p, 64, inner=p // 2 if hybrid else 1)


def judged(
    division: Division,
    *terms: Term,
    parts: Mapping[str, int] | None = None,
    limit: Limit = FAR,
    room: float | None = None,
) -> dict[str, Bottleneck]:
    """The bottlenecks by name."""
    whole = total(t.cost for t in terms)
    found = bottlenecks(division, terms, whole, parts or {**PARTS}, limit, room)
    return {b.name: b for b in found}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_of_time_are_those_of_the_table(strategy: str) -> None:
    """Every cause takes 1/8 of the time, computing the rest: shares come out whatever the order."""
    terms = [term(cause, 0.125, phase=phase) for cause, (phase, _) in OF_TIME.items()]
    found = judged(divided(strategy), *terms, term("compute", 0.25))
    of_time = {name for name in found if found[name].share is not None}
    assert of_time == {row for _, row in OF_TIME.values() if strategy in COLUMNS[row]}
    assert all(found[name].share == pytest.approx(0.125) for name in of_time)
    assert all((b.kind == "L") is (name in LIMITATIONS) for name, b in found.items())


def test_table_has_each_row_once_with_its_columns() -> None:
    """Ten rows; L and B as printed."""
    assert {row.name: set(row.strategies) for row in TABLE} == COLUMNS
    assert {row.name for row in TABLE if row.kind == "L"} == LIMITATIONS
    assert len(TABLE) == len(COLUMNS) == 10


@pytest.mark.parametrize(("cause", "row"), [(c, row) for c, (_, row) in OF_TIME.items()])
def test_what_takes_less_than_the_threshold_is_not_named(cause: TermCause, row: str) -> None:
    """1% of the time is the first share that matters."""
    strategy = next(s for s in STRATEGIES if s in COLUMNS[row] and s != "serial")
    for seconds, named in ((MATTERS * 1.001, True), (MATTERS * 0.999, False)):
        terms = (term(cause, seconds), term("compute", 1.0 - seconds))
        assert (row in judged(divided(strategy), *terms)) is named


@given(shares=st.permutations([0.05, 0.1, 0.2, 0.3]))
def test_largest_share_first_then_those_without(shares: list[float]) -> None:
    """Of a data+spatial division, with all kinds of rows."""
    causes: tuple[TermCause, ...] = ("gradient exchange", "layer-wise", "p2p", "update")
    terms = [term(cause, share) for cause, share in zip(causes, shares, strict=True)]
    terms.append(term("compute", 0.35))
    whole = total(t.cost for t in terms)
    division = divided("data+spatial")
    found = bottlenecks(division, terms, whole, PARTS, Limit(ranks=4, why="no more"), 2.0)
    numbers = [b.share for b in found if b.share is not None]
    assert numbers == pytest.approx([0.3, 0.2, 0.1, 0.05])
    assert [b.name for b in found[4:]] == ["memory redundancy", "memory stalls", "number of ranks"]


def test_packing_is_of_the_gradient_exchange() -> None:
    """It is there for it alone; the reason says how much of it."""
    terms = (
        term("pack", 0.1, what="pack the gradients"),
        term("gradient exchange", 0.3),
        term("pack", 0.2, what="concat of halos"),
        term("compute", 0.4),
    )
    found = judged(divided("spatial"), *terms)["gradient exchange"]
    assert found.share == pytest.approx(0.4)
    assert "25% of it is packing" in found.why


def test_exchange_that_the_backward_hides_does_not_count() -> None:
    """A negative term of the same cause."""
    terms = (term("gradient exchange", 0.3), term("gradient exchange", -0.3), term("compute", 1.0))
    assert "gradient exchange" not in judged(divided("data"), *terms)


def test_congestion_is_what_phi_added_at_most() -> None:
    """phi = 4 makes t = start-ups + 4 x of start-ups + x: without start-ups 3/4 of t."""
    crowded = term("gradient exchange", 0.4, {"phi": 4.0, "W": 1e6})
    found = judged(divided("data+filter"), crowded, term("compute", 0.6))
    assert found["network congestion"].share == pytest.approx(0.3)
    assert "4 flows" in found["network congestion"].why
    alone = term("gradient exchange", 0.4, {"phi": 1.0})
    assert "network congestion" not in judged(divided("data+filter"), alone, term("compute", 0.6))


def test_congestion_of_unknown_size_has_the_note_of_the_look_up() -> None:
    """Where the cost only says that there is contention; not of a term too small to matter."""
    note = "contention from the cluster's links: 4 flows leave a node by 1"
    default = "groups at once share links or memory: phi is in the time of gradient exchange"
    for seconds, upper, notes, why in (
        (0.4, 0.1, ("another note", note), note),
        (0.4, 0.1, ("another note",), default),
        (0.4, 0.0, (note,), None),  # phi is surely 1
        (0.004, 0.001, (note,), None),
    ):
        cost = Cost(seconds, "measured", (("machine", 0.1, 0.1), ("contention", 0.0, upper)), notes)
        terms = (term("gradient exchange", seconds, cost=cost), term("compute", 0.6))
        found = judged(divided("data+filter"), *terms).get("network congestion")
        assert (found and found.why) == why
        assert found is None or found.share is None
    alone = Cost(0.4, "measured", (("machine", 0.1, 0.1),), ("other flows",))
    quiet = judged(divided("data"), term("gradient exchange", 0.4, cost=alone))
    assert "network congestion" not in quiet


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("data", ["4 GiB of weights, gradients and optimizer state on every one of 4 ranks"]),
        ("spatial", ["4 GiB of weights, gradients and optimizer state on every one of 4 ranks"]),
        (
            "data+spatial",
            ["4 GiB of weights, gradients and optimizer state on every one of 4 ranks"],
        ),
        ("filter", ["8 GiB of activations on every one of 4 ranks"]),
        ("channel", ["8 GiB of activations on every one of 4 ranks"]),
        (
            "data+filter",
            [
                "4 GiB of weights, gradients and optimizer state on every one of 2 ranks",
                "8 GiB of activations on every one of 2 ranks",
            ],
        ),
        ("pipeline", ["kept for their backward: 8 GiB"]),
    ],
)
def test_memory_that_ranks_hold_whole(strategy: str, expected: list[str]) -> None:
    """Weights where all ranks have them, activations where a group has the same samples."""
    found = judged(divided(strategy), term("compute", 1.0))["memory redundancy"]
    assert found.share is None
    assert all(part in found.why for part in expected)
    assert found.why.count("GiB") == len(expected)
    alone = judged(divided("data" if "data" in strategy else strategy, 1), term("compute", 1.0))
    assert "memory redundancy" not in alone


def test_sharded_optimizer_is_not_redundant() -> None:
    """Each rank has its own part of the state; without any state nobody speaks of it."""
    division = Division("data", 4, 64, sharded_optimizer=True)
    found = judged(division, term("compute", 1.0))["memory redundancy"]
    assert found.why.startswith("2 GiB of weights and gradients on")
    stateless = judged(divided("data"), term("compute", 1.0), parts=PARTS | {"optimizer": 0})
    assert stateless["memory redundancy"].why.startswith("2 GiB of weights and gradients on")


def test_nothing_is_redundant_where_everything_is_sharded() -> None:
    """But activations, of which each rank has other samples."""
    assert "memory redundancy" not in judged(divided("fully_sharded"), term("compute", 1.0))


def test_few_redundant_bytes_do_not_matter() -> None:
    """Less than 1% of what a rank holds."""
    parts = {"activations": 1000, "weights": 4, "gradients": 4, "optimizer": 0}
    assert "memory redundancy" not in judged(divided("data"), term("compute", 1.0), parts=parts)


def test_memory_that_is_nearly_full_stalls() -> None:
    """Over 90% of the device; an unknown capacity says nothing."""
    for room, named in ((None, False), (NEARLY_FULL, False), (0.93, True), (1.7, True)):
        found = judged(divided("serial"), term("compute", 1.0), room=room)
        assert ("memory stalls" in found) is named
    assert (
        "93% of the device"
        in judged(divided("data"), term("compute", 1.0), room=0.93)["memory stalls"].why
    )


def test_number_of_ranks_within_twice_of_the_limit() -> None:
    """The next power of two would be over it; no limit, no row."""
    for limit, named in ((8, False), (7, True), (4, True), (None, False)):
        found = judged(
            divided("filter"), term("compute", 1.0), limit=Limit(ranks=limit, why="F is 7")
        )
        assert ("number of ranks" in found) is named
        if named:
            assert "F is 7" in found["number of ranks"].why
            assert found["number of ranks"].share is None


def test_no_time_no_shares() -> None:
    """An iteration of nothing is no division by zero."""
    found = judged(divided("data"), term("compute", 0.0), term("update", 0.0))
    assert all(b.share is None for b in found.values())
