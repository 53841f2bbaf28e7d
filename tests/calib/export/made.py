"""Any parameter file that validates, for hypothesis: few laws, odd numbers, hostile names."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st
from tests.helpers.filled import collective, contention, filled, layer, loop, memory, overlap, work

from calib.fitting.parameters.algorithms import ALGORITHMS
from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint, HockneyPiece
from calib.fitting.parameters.contention import ContentionFit
from calib.fitting.parameters.file import LayerTime, Parameters, TensorLoop, WorkModel
from calib.fitting.parameters.memory import Overlap
from calib.fitting.parameters.rules import rules_of
from calib.fitting.parameters.structural import ScaledLayout, StructuralBand, StructuralFit
from calib.foundation.quantities import MAX_BYTES, MAX_FLOPS, MAX_S_PER_BYTE, MAX_SECONDS
from calib.foundation.records import Estimate


class Numbers(NamedTuple):
    """What a time, a price or a number of ranks may be."""

    seconds: st.SearchStrategy[float]
    prices: st.SearchStrategy[float]
    ranks: st.SearchStrategy[int]
    starts: st.SearchStrategy[float]  # of a piece


# as machines have them; and nothing at all, or far from any machine
USUAL = Numbers(
    st.floats(1e-6, 1.0),
    st.floats(1e-12, 1e-8),
    st.sampled_from([2, 3, 4, 8, 16, 64]),
    st.floats(-1e-7, 1e-3),
)
ODD = Numbers(
    st.one_of(USUAL.seconds, st.sampled_from([0.0, 1e-300, 1e-30, 1e5, MAX_SECONDS])),
    st.one_of(USUAL.prices, st.sampled_from([0.0, 1e-300, 1e-30, 1.0, MAX_S_PER_BYTE])),
    st.one_of(USUAL.ranks, st.sampled_from([1000, 10**9])),
    st.one_of(USUAL.starts, st.sampled_from([-1e-3, 1e-300, -1e-300, 1e9])),
)
NAMES = ("vm", "a\nb", 'q"<&>--\x1b[31m', "=1+1", "\u202eé, -1;", "--> ]]>", "", "nan")
names = st.sampled_from(NAMES)
LIBRARIES = ("mpi", "torch_mpi", "nccl")
LIBRARY = st.sampled_from(LIBRARIES[:2])
RELU_KEY = "relu()|8*4x8x8->4x8x8|-|float32"
LEVELS = ("node", "rack", "system")
OPERATIONS = (
    "allreduce",
    "allreduce",
    "p2p",
    "p2p_both",
    "allgather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "halo 2x2",
    "hierarchical_allreduce inner=2",
    "allreduce algorithm=ring protocol=ll",
    "allreduce algorithm=tree",
    "something else",
)


def exactly(value: float) -> Estimate:
    return Estimate.exactly(value)


def home(library: str) -> str:
    return "cuda" if library == "nccl" else "cpu"


@st.composite
def collectives(draw: st.DrawFn, of: Numbers) -> CollectiveFit:
    """A direct law: points anywhere, and pieces that need not go through them."""
    library = draw(st.sampled_from(LIBRARIES))
    number = draw(st.integers(2, 4))
    sizes = sorted(draw(st.sets(st.integers(1, 2**30), min_size=number, max_size=number)))
    times = draw(st.lists(of.seconds, min_size=number, max_size=number))
    pieces = []
    if draw(st.booleans()):
        border = sizes[len(sizes) // 2]
        for low, high in ((sizes[0], border), (border, sizes[-1])):
            start = draw(of.starts)
            pieces.append(
                HockneyPiece(
                    from_nbytes=low,
                    to_nbytes=high,
                    intercept_s=Estimate.exactly(start),
                    slope_s_per_byte=exactly(draw(of.prices)),
                )
            )
    p = draw(of.ranks)
    return collective(
        p,
        operation=draw(st.sampled_from(OPERATIONS)),
        library=library,
        device=home(library),
        level=draw(st.sampled_from(LEVELS)),
        nodes=draw(st.sampled_from([0, 1, 2, p])),
        intercept_s=exactly(min(draw(of.seconds), 10.0)),
        slope_s_per_byte=exactly(draw(of.prices)),
        pieces=pieces,
        points=[
            CollectivePoint(nbytes=m, seconds=exactly(t), n=1)
            for m, t in zip(sizes, times, strict=True)
        ],
    )


@st.composite
def structurals(draw: st.DrawFn, of: Numbers) -> StructuralFit:
    """A law for any layout."""
    library, operation = draw(st.sampled_from(LIBRARIES)), draw(st.sampled_from(sorted(ALGORITHMS)))
    counts = sorted(draw(st.sets(of.ranks, min_size=1, max_size=3)))
    sizes = sorted(draw(st.sets(st.floats(1.0, 2.0**30), min_size=1, max_size=3)))
    layouts = [
        ScaledLayout(
            ranks=p,
            nodes=draw(st.sampled_from([1, 2, p])),
            ranks_per_node=draw(st.integers(1, p)),
            factor=draw(st.sampled_from([None, 0.5, 1.7])),
            outlying=p > counts[0] and draw(st.booleans()),
        )
        for p in counts
    ]
    return StructuralFit(
        operation=operation,
        library=library,
        device=home(library),
        level=draw(st.sampled_from(LEVELS)),
        layouts=layouts,
        links_exponent=exactly(draw(st.floats(0.0, 1.0))),
        shared_links=draw(st.sampled_from([0.0, 0.5, 4.0])),
        rules={name: 0.5 for name in rules_of(operation, library)},
        bands=[
            StructuralBand(
                nbytes=m, weights={draw(st.sampled_from(sorted(ALGORITHMS[operation]))): 1.0}
            )
            for m in sizes
        ],
        deviation=draw(st.floats(0.0, 1.0)),
        doubling_deviation=draw(st.floats(0.0, 1.0)),
        held_out_error=draw(st.sampled_from([None, 0.1])),
    )


@st.composite
def contentions(draw: st.DrawFn) -> ContentionFit:
    library = draw(st.sampled_from(LIBRARIES))
    return contention(library=library, device=home(library), level=draw(st.sampled_from(LEVELS)))


@st.composite
def layer_times(draw: st.DrawFn, of: Numbers) -> LayerTime:
    """Of the key that filled() has, or of one that names no layer."""
    content = {"key": draw(names)} if draw(st.booleans()) else {}
    return layer(
        forward_s=exactly(draw(of.seconds)),
        backward_s=exactly(draw(of.seconds)),
        active_ranks=draw(st.integers(1, 4)),
        **content,
    )


@st.composite
def works(draw: st.DrawFn, of: Numbers) -> WorkModel:
    return work(
        kind=draw(st.sampled_from(["conv", "linear", "relu", "batch_norm", "any", "odd, kind"])),
        direction=draw(st.sampled_from(["forward", "backward"])),
        call_s=draw(of.seconds),
        s_per_flop=draw(of.prices),
        s_per_byte=draw(of.prices),
        active_ranks=draw(st.integers(1, 4)),
        form=draw(st.sampled_from(["sum", "norm2", "max"])),
        max_flops=draw(st.sampled_from([0.0, 1.0, 1e9, MAX_FLOPS])),
        max_bytes=draw(st.sampled_from([0.0, 1.0, 1e8, MAX_BYTES])),
    )


@st.composite
def loops(draw: st.DrawFn, of: Numbers) -> TensorLoop:
    return loop(
        operation=draw(st.sampled_from(["pack", "unpack", "update", "copy", "odd"])),
        call_s=draw(of.seconds),
        s_per_tensor=draw(of.seconds),
        s_per_byte=draw(of.prices),
        active_ranks=draw(st.integers(1, 4)),
        device=draw(st.sampled_from(["cpu", "cuda"])),
    )


@st.composite
def overlaps(draw: st.DrawFn, of: Numbers) -> Overlap:
    return overlap(
        library=draw(st.sampled_from(LIBRARIES)),
        ranks=draw(of.ranks),
        eta=exactly(draw(st.floats(0.0, 1.0))),
    )


def usual_points(factor: float) -> list[CollectivePoint]:
    """Those of filled(), so many times as slow."""
    return [
        point.model_copy(update={"seconds": point.seconds.scaled(factor)})
        for point in collective().points
    ]


def usual_collectives(counts: tuple[int, ...], library: str) -> list[CollectiveFit]:
    """An allreduce on so many ranks; of several also messages, an all-to-all, and forced algorithms."""
    names = ("allreduce", "p2p", "all_to_all") if len(counts) > 1 else ("allreduce",)
    forced = [
        collective(
            4,
            operation=f"allreduce algorithm={name} protocol=simple",
            library="nccl",
            device="cuda",
            points=usual_points(factor),
            pieces=[],
        )
        for name, factor in (("ring", 1.0), ("tree", 0.5))
    ]
    between = [collective(16, library=library, level="system", nodes=2)]
    return (forced + between) * (len(counts) > 1) + [
        collective(2 if name == "p2p" else p, operation=name, library=library)
        for name in names
        for p in (counts[:1] if name == "p2p" else counts)
    ]


@st.composite
def parameter_files(draw: st.DrawFn) -> Parameters:
    """The record of a file that validates."""

    of = draw(st.sampled_from([USUAL, USUAL, ODD]))

    def some(laws: st.SearchStrategy[Any], most: int = 3) -> list[Any]:
        return draw(st.lists(laws, max_size=most))

    base = filled()
    name = draw(names)
    known = usual_collectives(draw(st.sampled_from([(4, 8), (4, 8), (2,), ()])), draw(LIBRARY))
    layered = draw(st.sampled_from([True, True, False]))
    measured = [layer(), layer(key=RELU_KEY, kind="relu")] if layered else []
    memory_bytes = draw(st.sampled_from([2**33, 2**33, 2**33, 2**33, 0, 1, 2**63 - 1]))
    return filled(
        provenance=base.provenance.model_copy(update={"cluster_name": name, "notes": [name]}),
        device=draw(names),
        device_memory_bytes=memory_bytes,
        ranks_per_node=draw(st.sampled_from([8, 8, 8, 1, 2, 10**9])),
        nodes=draw(st.sampled_from([1, 0, 1, 2, 5, 1000, 10**9])),
        nodes_per_rack=draw(st.sampled_from([0, 0, 1, 2, 40])),
        links_per_node=draw(st.sampled_from([0, 1, 4])),
        collectives=known + some(collectives(of), 4),
        structural=some(structurals(of), 2),
        contention=some(contentions(), 1),
        layers=measured + some(layer_times(of)),
        work=some(works(of)),
        tensor_loops=some(loops(of)),
        memory=[memory()] if draw(st.booleans()) else [],
        overlap=some(overlaps(of), 1),
    )
