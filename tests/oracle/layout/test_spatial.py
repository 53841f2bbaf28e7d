"""Spatial: terms against ranks of a grid simulated message by message, memory and limits by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.oracle.cuts import SOME, WIRES, Cut, drawn, exchanged, hand_machine, model_from, tables
from tests.oracle.handmade import LOOP_BYTE_S, LOOP_CALL_S, LOOP_TENSOR_S, machine, mlp, seconds
from tests.oracle.shapes import conv, model_of, pool, relu, small
from tests.oracle.simulated import ring_allgather, ring_allreduce, wire

from calib.foundation.division import Division
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.grids import best_grid
from calib.oracle.layout.shards import fitted, split_layers, why_impossible
from calib.oracle.layout.spatial import why_whole
from calib.oracle.layout.traffic import messages
from calib.oracle.predict import project
from calib.oracle.strategies import spatial
from calib.oracle.strategies.halos import JoinLoop, joins, paper_halos
from calib.training.models.specs import spec


@SOME
@given(drawn(), st.integers(1, 9), st.integers(1, 30))
def test_paper_form_is_the_simulation(
    case: tuple[list[Cut], tuple[int, ...]], batch: int, node: int
) -> None:
    """Halos of x and dL/dy, allgather and scatter at the end, allreduce of W; FW and BW by 1/p."""
    cuts, grid = case
    model, p = model_from(cuts), math.prod(grid)
    division = Division("spatial", p, batch, grid=grid, split_until=f"l{len(cuts)}")
    assume(not why_impossible(model, division))
    costs = tables(model, node)
    found = seconds(spatial.paper(model, division, costs))

    level = "node" if p <= node else "rack"
    p2p, gather, reduce = (wire(*WIRES[level, o]) for o in ("p2p", "allgather", "allreduce"))
    halos = math.fsum(
        exchanged(c.channels, c.size, grid, c.kernel // 2, batch, p2p)
        + exchanged(c.filters, c.output, grid, c.kernel // 2, batch, p2p)
        for c in cuts
    )
    assert found["halo"] == pytest.approx(halos, rel=1e-9)

    last = 4.0 * batch * cuts[-1].filters * math.prod(cuts[-1].output)
    scattered = 0.0  # the leader sends their parts to the others, one by one
    for _ in range(p - 1):
        scattered = gather(scattered, last / p)
    gathered = max(ring_allgather(p, last, gather))
    assert found["layerwise"] == pytest.approx(gathered + scattered, rel=1e-9)

    weights = 4.0 * sum(math.prod(shape) for shape in model.parameter_shapes)
    assert found["exchange"] == pytest.approx(max(ring_allreduce(p, weights, reduce)), rel=1e-9)

    for phase, of in (("forward", costs.forward), ("backward", costs.backward)):
        split = sum(of[f"l{n}"] for n in range(1, len(cuts) + 1))
        whole = sum(of[name] for name in ("fc", "loss", "flatten"))
        assert found[phase] == pytest.approx(batch * (split / p + whole), rel=1e-9)
    assert (found["update"], found["pack"]) == (7e-4, 0.0)


@pytest.mark.parametrize(("p", "neighbours"), [(2, 1), (4, 2), (8, 2)])
def test_halo_by_hand(p: int, neighbours: int) -> None:
    """conv 3 -> 4, 3x3, 8 x 6: 2 [2 alpha + B delta beta (3 * 6 + 4 * 6)]; 1x1 and ReLU pay nothing.

    Of 2 ranks each has one neighbour (formulas.md).
    """
    shapes = [conv(3, 4, (8, 6), 3, 1, 1), relu(4, (8, 6)), conv(4, 9, (8, 6), 1, 1, 0)]
    model, batch = model_of(shapes), 5
    costs = tables(model, node=1000)
    found = seconds(spatial.paper(model, Division("spatial", p, batch), costs))
    alpha, beta = WIRES["node", "p2p"]
    expected = neighbours * (2 * alpha + batch * 4 * beta * (18 + 24))
    assert found["halo"] == pytest.approx(expected, rel=1e-12)


def test_kernels_of_two_lengths() -> None:
    """A 1 x 7 convolution (Inception) has a halo along the width alone: 3 columns of 8 / 2 rows."""
    shape = conv(2, 3, (8, 12), 7, 1, 3)
    flat = shape.model_copy(
        update={
            "output_shape": (3, 8, 12),
            "parameter_shapes": ((3, 2, 1, 7), (3,)),
            "attributes": shape.attributes | {"kernel": (1, 7), "padding": (0, 3)},
        }
    )
    model = model_of([flat])
    halos = paper_halos(model, Division("spatial", 6, 1, grid=(2, 3)))
    assert halos == {"forward": (2, 2 * 2 * 3 * 4), "backward": (2, 2 * 3 * 3 * 4)}
    assert paper_halos(model, Division("spatial", 2, 1)) == {}


def test_split_ends_where_it_was_told() -> None:
    """After l1: its y is gathered and l2, l3 are whole. After l3: y of the pool, a fourth of it."""
    model = small()
    costs = tables(model)
    alpha, beta = WIRES["node", "allgather"]
    for end, items, whole in (
        ("l1", 4 * 8 * 6, ("l2", "l3", "fc", "loss", "flatten")),
        ("l3", 4 * 4 * 3, ("fc", "loss", "flatten")),
    ):
        division = Division("spatial", 2, 6, split_until=end)
        assert split_layers(model, division)[-1].name == end
        terms = spatial.paper(model, division, costs)
        assert seconds(terms)["layerwise"] == pytest.approx(2 * (alpha + 4 * 6 * items * beta / 2))
        redundant = sum(
            t.cost.seconds for t in terms if t.cause == "redundant" and t.phase == "forward"
        )
        assert redundant == pytest.approx(6 * sum(costs.forward[name] for name in whole))
        gathers = [m.nbytes for m in messages(model, division) if m.operation == "allgather"]
        assert gathers == [4 * 6 * items]


@pytest.mark.parametrize(
    ("division", "reason"),
    [
        (
            Division("spatial", 8, 1, grid=(8, 1), split_until="l3"),
            "a layer before the split's end, l3, cannot be split: its height of 8 in 8 parts leaves a "
            "part without a row; at most 4 x 3 ranks",
        ),
        (Division("spatial", 2, 1, split_until="fc"), "flatten layer needs the whole image"),
        (Division("spatial", 2, 1, split_until="l9"), "split_until 'l9': stack has no such layer"),
        (Division("spatial", 4, 1, grid=(3, 2)), "not a layout of 4 ranks"),
        (Division("data+spatial", 8, 3, inner=4), "p1 = 2 does not divide the batch of 3 samples"),
    ],
)
def test_infeasible_is_an_answer(division: Division, reason: str) -> None:
    found = project(small(), division, machine())
    assert not found.feasible
    assert found.total is None
    assert reason in found.limits[0]


def test_a_halo_longer_than_the_part_is_an_answer() -> None:
    """Kernel 7 on 8 rows: parts of 3, 3 and 2 rows have what the others take, parts of 2 not."""
    model = model_of([conv(1, 1, (8,), 7, 1, 3)])
    found = project(model, Division("spatial", 4, 2), machine())
    assert "in 4 parts is shorter than the halo of 3; at most 3 ranks" in found.limits[0]
    assert (found.feasible, found.limit.ranks) == (False, 3)


def factorizations(p: int, dimensions: int) -> Iterator[tuple[int, ...]]:
    """All ordered layouts of p along so many dimensions."""
    divisors = [n for n in range(1, p + 1) if p % n == 0]
    return (g for g in itertools.product(divisors, repeat=dimensions) if math.prod(g) == p)


@pytest.mark.parametrize("end", ["", "l1", "l3", "l4"])
@pytest.mark.parametrize("kernel", [1, 3, 7])
def test_limit_by_trying(kernel: int, end: str) -> None:
    """The limit's grid is possible, and no layout of more ranks is. 16 x 12 images, pooled to 8 x 6."""
    model = model_of(
        [
            conv(3, 4, (16, 12), kernel, 1, kernel // 2),
            relu(4, (16, 12)),
            pool("max_pool", 4, (16, 12), 2, 2, 0),
            conv(4, 4, (8, 6), 5, 1, 2),
        ]
    )

    def possible(p: int) -> bool:
        return any(
            not why_impossible(model, Division("spatial", p, 1, grid=grid, split_until=end))
            for grid in factorizations(p, 2)
        )

    limit = spatial.limit(model, Division("spatial", 2, 1, split_until=end))
    assert limit.ranks == max(p for p in range(1, 16 * 12 + 2) if possible(p))


def test_limits_by_hand() -> None:
    """8 x 6 images; the pool has 4 x 3 outputs; a model without images cannot be cut."""
    model = small()
    limit = spatial.limit(model, Division("spatial", 2, 1))
    most = "p <= 8 x 6 parts that have a row and are as long as their halo"
    assert (limit.ranks, limit.why) == (48, f"{most}: height 8 (l1), width 6 (l1)")
    limit = spatial.limit(model, Division("spatial", 2, 1, split_until="l3"))
    assert (limit.ranks, "height 4 (l3), width 3 (l3)" in limit.why) == (12, True)
    assert spatial.limit(mlp([8, 4]), Division("spatial", 2, 1)).ranks == 1
    cosmoflow = spec("cosmoflow-mini")
    assert "depth" in spatial.limit(cosmoflow, Division("spatial", 2, 1)).why


@pytest.mark.parametrize("name", ["vgg16-mini", "resnet50-mini", "cosmoflow-mini"])
@pytest.mark.parametrize("p", [2, 6, 8, 16, 64])
def test_the_layout_chosen_leaves_little_work(name: str, p: int) -> None:
    """At most a tenth more of a rank's operations than any layout; one dimension where that is so."""
    model = spec(name)
    dimensions = len(model.input_shape) - 1

    def work(grid: tuple[int, ...]) -> float:
        cut, done = True, 0.0
        for layer in model.layers:
            cut = cut and not why_whole(layer.shape, grid)
            done += layer.shape.forward_flops(1) / (p if cut else 1)
        return done

    possible = [g for g in factorizations(p, dimensions) if not why_whole(model.layers[0].shape, g)]
    least = min(map(work, possible))
    chosen = best_grid(model, p)
    assert work(chosen) <= 1.1 * least * (1 + 1e-12)
    # (p,) or the last possible ones, with ones behind
    assert (
        chosen == (p,) or (p,) + (1,) * (dimensions - 1) not in possible or work((p,)) > 1.1 * least
    )


def test_images_that_are_wider_than_high() -> None:
    """4 x 64 images on 32 ranks: 4 rows cannot be 32, nor 8; 2 x 16 and 4 x 8 can."""
    model = model_of([conv(3, 4, (4, 64), 3, 1, 1), relu(4, (4, 64))])
    assert best_grid(model, 32) == (4, 8)
    assert best_grid(model, 128) == (4, 32)
    assert not why_impossible(model, fitted(model, Division("spatial", 256, 1)))


def test_memory_by_hand() -> None:
    """sum(|x| + |y|): 144 + 192, 192 + 192, 192 + 48 are split, 48 + 6 and 6 + 1 are not.

    406 weights and biases.
    """
    model, batch = small(), 5
    parts = spatial.memory(model, Division("spatial", 2, batch), "adam")
    assert parts == {
        "activations": 2 * 4 * batch * (960 // 2 + 61),
        "weights": 4 * 406,
        "gradients": 4 * 406,
        "optimizer": 2 * 4 * 406,
        "exchange": 4 * 406,
    }
    ended = spatial.memory(model, Division("spatial", 2, batch, split_until="l1"), "sgd")
    assert ended["activations"] == 2 * 4 * batch * (336 // 2 + 384 + 240 + 61)
    alone = spatial.memory(model, Division("spatial", 1, batch), "sgd")
    assert "exchange" not in alone
    assert alone["activations"] == 2 * 4 * batch * (960 + 61)


def test_cosmoflow_at_512_fits_16_gb_in_parts_only() -> None:
    """One sample of 4 x 512^3 (issue: no strategy that keeps a whole sample on a rank fits 16 GB)."""
    model = spec("cosmoflow")
    used = [
        sum(spatial.memory(model, fitted(model, Division("spatial", p, 1)), "momentum").values())
        for p in (1, 4, 8, 16, 64, 256)
    ]
    assert used == sorted(used, reverse=True)
    assert used[0] > 16e9 > used[2]


def test_measured_form_by_hand() -> None:
    """Halo, allgather and allreduce are the points. Two copies: 2 pieces to 3 x 6 x 6 items of x, and to
    the pool's 4 x 4 x 3 of y; and two passes over 4 tensors of gradients.
    """
    found = project(small(), Division("spatial", 2, 12), hand_machine(True))
    phases = found.phases
    assert phases["halo"].value == pytest.approx(11e-6)
    assert phases["layerwise"].value == pytest.approx(33e-6)
    assert phases["exchange"].value == pytest.approx(55e-6)
    assert phases["halo"].basis == phases["layerwise"].basis == "measured"
    joins = [(2, 4 * 12 * 3 * 6 * 6), (2, 4 * 12 * 4 * 4 * 3), (4, 1624), (4, 1624)]
    expected = sum(LOOP_CALL_S + n * LOOP_TENSOR_S + m * LOOP_BYTE_S for n, m in joins)
    assert phases["pack"].value == pytest.approx(expected, rel=1e-12)
    notes = " ".join(found.notes)
    assert "no concat was measured" not in notes


def test_without_concat_the_copies_are_left_out_and_that_is_said() -> None:
    found = project(small(), Division("spatial", 2, 12), hand_machine(False))
    expected = 2 * (LOOP_CALL_S + 4 * LOOP_TENSOR_S + 1624 * LOOP_BYTE_S)
    assert found.phases["pack"].value == pytest.approx(expected, rel=1e-12)
    assert any("no concat was measured" in note for note in found.notes)
    assert found.phases["pack"].basis == "extrapolated"


def test_copies_of_a_second_layer_and_dimension() -> None:
    """2 x 3 ranks, conv 1 -> 2 (5x5, 12 x 12), then conv 2 -> 2 (3x3): parts of 6 x 4.

    Rows are joined first: x of l1 4 + 6 = 10 x 4 of two pieces, then 10 x 8 of three.
    """
    model = model_of([conv(1, 2, (12, 12), 5, 1, 2), conv(2, 2, (12, 12), 3, 1, 1)])
    division = Division("spatial", 6, 1, grid=(2, 3))
    found = project(model, division, Machine(hand_machine(True)), explain=True)
    joined = {t.what: t.values for t in found.terms if t.what.startswith("concat")}
    assert {what: (v["concats"], v["sum of items"]) for what, v in joined.items()} == {
        "concat of halos of x and their parts": (4, (10 * 4 + 10 * 8) + 2 * (8 * 4 + 8 * 6)),
        # l1 is the first: nobody needs its dL/dx; a part of 6 rows has one neighbour
        "concat of halos of dL/dy and their parts": (2, 2 * (7 * 4 + 7 * 6)),
        "concat of the parts of y, where the split ends": (1, 2 * 144),
    }
    assert joins(model, division)["halos of x and their parts"] == [
        JoinLoop(2, 10 * 4),
        JoinLoop(3, 10 * 8),
        JoinLoop(2, 2 * 8 * 4),
        JoinLoop(3, 2 * 8 * 6),
    ]
