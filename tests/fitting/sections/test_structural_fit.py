"""Structural laws from direct ones: similarity, the choice of algorithms, links, outlying layouts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.rows import as_samples, sample

from calib.fitting.parameters.algorithms import ALGORITHMS, GroupShape, Links
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.rules import OPEN_MPI, RULES
from calib.fitting.parameters.scaling import shape_of_fit
from calib.fitting.parameters.structural import StructuralFit, default_law, kriged
from calib.fitting.sections.collective_rows import unpacked_note
from calib.fitting.sections.collectives import collective_fits
from calib.fitting.sections.structural import structural_fits
from calib.microbench.records.samples import Sample

ALPHA, BETA, BASE = 2e-6, 1e-10, 1e-5
SIZES = [1 << k for k in range(2, 31)]
LINKS = Links(0.5)


def rows(ranks: int, sizes: int = 8, speed: float = 1.0, **fields: object) -> list[Sample]:
    """A ring of allreduce on p ranks, from 1 KiB on, `speed` times as long."""
    return [
        sample(
            ranks=ranks,
            nbytes=m,
            seconds=speed * (BASE + 2 * (ranks - 1) * (ALPHA + BETA * m / ranks)),
            **{"active_ranks": ranks, **fields},
        )
        for m in (2 ** (10 + k) for k in range(sizes))
    ]


def of_step(message: float) -> float:
    """Seconds of a step that sends so many bytes: two protocols, with a fall between them."""
    return 3e-6 + message * 4e-10 if message < 2e5 else 2.5e-5 + message * 8e-11


def fits(
    *shapes: tuple[int, int],
    operation: str = "allgather",
    algorithm: str = "rings",
    library: str = "nccl",
    links: Links = LINKS,
    slower: dict[tuple[int, int], float] | None = None,
    of_step: Callable[[float], float] = of_step,
) -> list[CollectiveFit]:
    """Direct laws of (nodes, ranks on each) by an algorithm whose step takes `of_step`."""
    found = []
    for nodes, each in shapes:
        shape = GroupShape(nodes * each, nodes, each)
        of = ALGORITHMS[operation][algorithm]
        found += [
            sample(
                operation=operation,
                library=library,
                device="cuda" if library == "nccl" else "cpu",
                level="system",
                ranks=shape.ranks,
                nodes=nodes,
                active_ranks=each,
                nbytes=m,
                seconds=(slower or {}).get((nodes, each), 1.0)
                * of.steps(shape)
                * of_step(m * of.message(shape, links)),
            )
            for m in SIZES
        ]
    return collective_fits(as_samples(found), 0)[0]


def off(law: StructuralFit, known: list[CollectiveFit], unknown: CollectiveFit) -> float:
    """Mean relative error of the law on a layout, from 1 MiB on."""
    on = law.on(shape_of_fit(unknown), known)
    assert on is not None
    points = [point for point in unknown.points if point.nbytes >= 1 << 20]
    return float(
        np.mean([abs(on.expected(p.nbytes).seconds / p.seconds.value - 1) for p in points])
    )


@pytest.mark.parametrize(
    ("operation", "algorithm"),
    [("allgather", "rings"), ("all_to_all", "ring"), ("broadcast", "rings")],
)
def test_a_step_is_a_function_of_its_message_whatever_the_function(
    operation: str, algorithm: str
) -> None:
    """From 2 and 4 nodes to 64: a line or a law at equal sizes would miss the change of protocol."""
    known = fits((2, 4), (4, 4), operation=operation, algorithm=algorithm)
    (unknown,) = fits((64, 4), operation=operation, algorithm=algorithm)
    (law,) = structural_fits(known)
    assert off(law, known, unknown) < 0.08
    assert law.held_out_error is not None and law.held_out_error < 0.08


@settings(max_examples=25, deadline=None)
@given(exponent=st.sampled_from([0.0, 0.5, 1.0]))
def test_links_of_a_node_are_found_from_layouts_that_differ_in_ranks_per_node(
    exponent: float,
) -> None:
    known = fits((10, 1), (10, 2), (10, 4), links=Links(exponent))
    (unknown,) = fits((10, 8), links=Links(exponent))
    (law,) = structural_fits(known)
    assert law.links_exponent.value == pytest.approx(exponent, abs=0.06)
    assert law.links_exponent.covers(exponent)
    assert off(law, known, unknown) < 0.08


@pytest.mark.parametrize("shared", [2.0, 4.0])
def test_a_backbone_that_nodes_share_is_found_from_all_operations(shared: float) -> None:
    """True time: of more nodes than `shared` each has as much less than a link."""
    links, layouts = Links(0.5, shared), [(n, 1) for n in (2, 4, 8, 16)]
    operations = ("allgather", "reduce_scatter")
    known = [fit for each in operations for fit in fits(*layouts, operation=each, links=links)]
    unknown = [fits((64, 1), operation=each, links=links)[0] for each in operations]
    laws = structural_fits(known)
    assert [law.shared_links for law in laws] == [shared] * 2
    for law, fit in zip(laws, unknown, strict=True):
        assert off(law, known, fit) < 0.1


def test_nodes_with_links_of_their_own_share_nothing() -> None:
    for shapes in ([(n, 4) for n in (1, 2, 4, 8, 16)], [(2, 4)], [(2, 4), (8, 4)]):
        laws = structural_fits(fits(*shapes) + fits(*shapes, operation="allreduce"))
        assert {law.shared_links for law in laws} == {0.0}


def by_open_mpi(nodes: int, of_step: Callable[[float], float] = of_step) -> CollectiveFit:
    """An allreduce as Open MPI chooses its algorithm, one rank on each node."""
    rule, shape = RULES[OPEN_MPI]["allreduce"], GroupShape(nodes, nodes, 1)
    found = []
    for m in SIZES[10:]:
        of = ALGORITHMS["allreduce"][rule(nodes, m)]
        seconds = of.steps(shape) * of_step(m * of.message(shape, Links(1.0)))
        found.append(
            sample(
                operation="allreduce",
                library="mpi",
                level="system",
                ranks=nodes,
                nodes=nodes,
                active_ranks=1,
                nbytes=m,
                seconds=seconds,
            )
        )
    (fit,) = collective_fits(as_samples(found), 0)[0]
    return fit


def test_the_rule_of_a_library_is_found_where_it_changes_the_algorithm() -> None:
    """64 ranks take whole buffers to 256 KiB, 32 and 256 take halves: no size says so by itself."""
    known = [by_open_mpi(nodes) for nodes in (4, 8, 12, 16, 24, 32, 48, 64, 96)]
    (law,) = structural_fits(known)
    assert law.rules[OPEN_MPI] > 0.8
    assert off(law, known, by_open_mpi(256)) < 0.1
    on = law.on(GroupShape(256, 256, 1), known)
    assert on is not None
    expected = on.expected(64 << 10)
    (at,) = [p.seconds.value for p in by_open_mpi(256).points if p.nbytes == 64 << 10]
    assert expected.seconds == pytest.approx(at, rel=0.25)
    assert expected.algorithms == "recursive halving and doubling by Open MPI's rule"
    free = law.model_copy(update={"rules": {}}).on(GroupShape(256, 256, 1), known)
    assert free is not None and free.expected(64 << 10).seconds > 1.5 * at


def test_a_library_that_takes_one_algorithm_goes_by_no_rule() -> None:
    known = fits(
        *((n, 1) for n in (4, 8, 16, 32, 64)),
        operation="allreduce",
        algorithm="recursive halving and doubling",
        library="mpi",
    )
    (law,) = structural_fits(known)
    assert law.rules.get(OPEN_MPI, 0.0) < 0.05


def test_links_that_nothing_tells_are_anything_or_as_declared() -> None:
    (law,) = structural_fits(fits((2, 4), (4, 4)))
    assert law.links_exponent.numbers == (0.75, 0.0, 1.0)
    (law,) = structural_fits(fits((2, 4), (4, 4)), links=2)
    assert law.links_exponent.value == pytest.approx(0.5) and not law.links_exponent.has_interval
    (law,) = structural_fits(fits((2, 4), (4, 4)), links=4)
    assert law.links_exponent.value == 1.0


def test_links_that_all_nodes_share_slow_each_node_with_every_other() -> None:
    """Four links for all: from 2, 4, 8 nodes to 64, whose rings have a sixteenth of a link each."""
    shapes = (2, 4), (4, 4), (8, 4), (64, 4)
    *known, unknown = fits(*shapes, algorithm="ring", library="mpi", links=Links(0.5, 4.0))
    (law,) = structural_fits(known, shared_links=4.0)
    assert law.shared_links == 4.0
    assert off(law, known, unknown) < 0.05
    (without,) = structural_fits(known)
    assert off(without, known, unknown) > 0.5
    on = default_law(known, 4.0).on(shape_of_fit(unknown), known)
    assert on is not None and on.law.shared_links == 4.0


@pytest.mark.parametrize(
    "algorithm", ["recursive doubling", "recursive halving and doubling", "ring"]
)
def test_the_algorithm_of_an_mpi_library_is_found(algorithm: str) -> None:
    known = fits(
        *((n, 1) for n in (2, 4, 8, 16)), operation="allreduce", algorithm=algorithm, library="mpi"
    )
    (unknown,) = fits((64, 1), operation="allreduce", algorithm=algorithm, library="mpi")
    (law,) = structural_fits(known)
    assert off(law, known, unknown) < 0.15
    large = [band.likeliest for band in law.bands if band.nbytes >= 1 << 20]
    if algorithm == "recursive doubling":  # the others send the same bytes
        assert set(large) == {algorithm}


@pytest.mark.parametrize("slow", [(2, 4), (4, 4), (8, 4), (16, 4)])
def test_an_outlying_layout_is_named_and_bends_nothing(slow: tuple[int, int]) -> None:
    shapes = [(2, 4), (4, 4), (8, 4), (16, 4)]
    known = fits(*shapes, slower={slow: 1.7})
    (unknown,) = fits((64, 4))
    (law,) = structural_fits(known)
    (outlying,) = [each for each in law.layouts if each.outlying]
    assert (outlying.nodes, outlying.ranks_per_node) == slow
    assert outlying.factor == pytest.approx(1.7, rel=0.05)
    assert off(law, known, unknown) < 0.08
    (words,) = law.outlying_words
    assert words.startswith(f"allgather on {4 * slow[0]} ranks of {slow[0]} nodes takes 1.7 times")


def test_few_layouts_of_machines_without_outliers_are_named() -> None:
    generator = np.random.default_rng(3)
    shapes = [(n, 4) for n in (2, 4, 8, 16, 32)]
    named = 0
    for _ in range(20):
        slower = {shape: math.exp(generator.normal(0, 0.07)) for shape in shapes}
        (law,) = structural_fits(fits(*shapes, slower=slower))
        named += bool(law.outlying_words)
    assert named <= 2


def test_intervals_cover_layouts_that_drift_as_the_priors_say() -> None:
    """Random walks over doublings of nodes: 90% intervals of 64 nodes hold 80 to 98% of 100 machines."""
    generator, shapes = np.random.default_rng(5), [(n, 4) for n in (2, 4, 8, 64)]
    (truth,) = fits((64, 4))
    held = 0
    for _ in range(100):
        walk = np.cumsum(generator.normal(0, [0.1, 0.1, 0.1, 0.1 * math.sqrt(3)]))
        own = walk + generator.normal(0, 0.07 / math.sqrt(2), 4)
        slower = dict(zip(shapes, np.exp(own).tolist(), strict=True))
        known = fits(*shapes[:3], slower=slower)
        (law,) = structural_fits(known)
        on = law.on(GroupShape(256, 64, 4), known)
        assert on is not None
        found = on.expected(2.0**24)
        true = slower[64, 4] * next(p.seconds.value for p in truth.points if p.nbytes == 2**24)
        held += abs(math.log(found.seconds / true)) < 1.645 * found.deviation
    assert 80 <= held <= 98


def test_the_bounds_of_physics() -> None:
    """More bytes or nodes take no less time, and no bandwidth is above the largest measured one's."""
    known = fits(
        (2, 4), (4, 4), operation="allreduce", of_step=lambda message: 3e-6 + 1e-10 * message
    )
    (law,) = structural_fits(known)
    before = [0.0] * 40
    for nodes in (4, 8, 16, 64, 512, 4096):
        on = law.on(GroupShape(4 * nodes, nodes, 4), known)
        assert on is not None
        times = [on.expected(2.0**k).seconds for k in range(18, 40)]
        assert times == sorted(times)
        assert all(now >= 0.999 * then for now, then in zip(times, before, strict=False))
        before = times
        assert times[-1] / times[-2] == pytest.approx(2.0, rel=0.05)


def test_weights_of_kriging_sum_to_one_and_prefer_the_near() -> None:
    (law,) = structural_fits(fits((2, 4), (4, 4), (8, 4)))
    shapes = [GroupShape(8, 2, 4), GroupShape(16, 4, 4), GroupShape(32, 8, 4)]
    weights, variance = kriged(law, GroupShape(256, 64, 4), shapes)
    assert sum(weights) == pytest.approx(1.0) and weights == sorted(weights)
    assert variance > kriged(law, GroupShape(64, 16, 4), shapes)[1]
    itself, nothing = kriged(law, shapes[1], shapes)
    assert itself == pytest.approx([0, 1, 0], abs=1e-9) and nothing == pytest.approx(0, abs=1e-12)
    # uneven and even nodes are no doubling apart
    alike = [GroupShape(10, 2, 8), GroupShape(16, 2, 8)]
    assert sum(kriged(law, GroupShape(32, 4, 8), alike)[0]) == pytest.approx(1.0)


def test_one_layout_is_scaled_by_the_default_and_less_sure() -> None:
    known = fits((2, 4))
    (law,) = structural_fits(known)
    assert law.held_out_error is None and law.layouts[0].factor is None
    assert law.deviation == default_law(known).deviation > 0.07


def test_a_law_is_of_one_data_type_over_all_p() -> None:
    """float32 has more sizes on 2 and 8 ranks and float16, twice as slow, on 4: one law, no mixture."""
    of_float32 = rows(2) + rows(4, sizes=7) + rows(8)
    half = [
        row
        for p, sizes in ((2, 7), (4, 8), (8, 7))
        for row in rows(p, sizes=sizes, speed=2.0, dtype="float16")
    ]
    (law,) = structural_fits(collective_fits(as_samples(of_float32 + half), 0)[0])
    (alone,) = structural_fits(collective_fits(as_samples(of_float32), 0)[0])
    assert law == alone


def test_rows_of_ranks_farther_apart_than_needed_are_counted_in_one_note() -> None:
    near = rows(8, level="system", nodes=2)
    far = rows(8, level="system", nodes=2, stride=2)
    other = rows(4, level="system", nodes=2) + rows(4, level="system", nodes=2, stride=3, sizes=3)
    elsewhere = rows(8, level="system", nodes=8)
    assert unpacked_note(as_samples(near + other[:8] + elsewhere)) == []
    assert unpacked_note(as_samples(near + far)) == [
        "8 rows of collectives feed no law of theirs, as others of the same layout have their ranks "
        "nearer: allreduce on 8 ranks has 8 of 16 left"
    ]
    (note,) = unpacked_note(as_samples(near + far + other))
    assert note.startswith("11 rows") and note.endswith("on 4 ranks has 8 of 11 left, and so on")
