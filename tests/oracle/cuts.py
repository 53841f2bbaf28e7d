"""Cuts of images, drawn at random and counted by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from tests.oracle.handmade import allreduce_fit, machine, tensor_loops
from tests.oracle.shapes import conv, model_of, pool
from tests.oracle.simulated import Tables, Wire

from calib.fitting.parameters.file import Parameters
from calib.oracle.model.spec import ModelSpec

SOME = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


WIRES = {
    ("node", "p2p"): (3e-6, 2e-10),
    ("node", "allgather"): (5e-6, 3e-10),
    ("node", "allreduce"): (7e-6, 5e-10),
    ("rack", "p2p"): (2e-5, 9e-10),
    ("rack", "allgather"): (3e-5, 8e-10),
    ("rack", "allreduce"): (4e-5, 7e-10),
}


@dataclass(frozen=True)
class Cut:
    """A convolution or pooling that the test has drawn: what its halos follow from."""

    channels: int
    filters: int
    size: tuple[int, ...]
    kernel: int
    stride: int
    padding: int
    is_pool: bool

    @property
    def output(self) -> tuple[int, ...]:
        return tuple((n + 2 * self.padding - self.kernel) // self.stride + 1 for n in self.size)


def model_from(cuts: list[Cut]) -> ModelSpec:
    return model_of(
        [
            pool("max_pool", c.channels, c.size, c.kernel, c.stride, c.padding)
            if c.is_pool
            else conv(c.channels, c.filters, c.size, c.kernel, c.stride, c.padding)
            for c in cuts
        ]
    )


@st.composite
def drawn(draw: st.DrawFn) -> tuple[list[Cut], tuple[int, ...]]:
    """One to three layers in one to three dimensions, and a grid; not all can be cut so."""
    size = tuple(draw(st.lists(st.integers(6, 24), min_size=1, max_size=3)))
    grid = tuple(draw(st.integers(1, 5)) for _ in range(draw(st.integers(1, len(size)))))
    assume(math.prod(grid) > 1)
    cuts: list[Cut] = []
    channels = draw(st.integers(1, 4))
    for _ in range(draw(st.integers(1, 3))):
        is_pool = draw(st.booleans())
        filters = channels if is_pool else draw(st.integers(1, 5))
        kernel, stride, padding = (
            (2, 2, 0)
            if is_pool
            else draw(st.sampled_from([(1, 1, 0), (3, 1, 1), (5, 1, 2), (3, 2, 1)]))
        )
        cuts.append(Cut(channels, filters, size, kernel, stride, padding, is_pool))
        channels, size = filters, cuts[-1].output
    assume(min(size) > 0)
    return cuts, grid


def tables(model: ModelSpec, node: int = 4, links: int = 1) -> Tables:
    """Every layer takes another time."""
    names = [layer.name for layer in model.layers]
    forward = {name: 1e-5 * (k + 1) for k, name in enumerate(names)}
    backward = {name: 3e-5 * (k + 2) for k, name in enumerate(names)}
    return Tables(model, forward, backward, {names[0]: 7e-4}, WIRES, node, links)


def exchanged(
    channels: int, size: tuple[int, ...], grid: tuple[int, ...], rows: int, batch: int, link: Wire
) -> float:
    """When all ranks have the halos of one tensor.

    Along one dimension after the other every rank sends its rows to the rank before it, then to the one
    behind; the next dimension begins when all have theirs.
    """
    clock = 0.0
    for d, parts in enumerate(grid):
        arrivals = [clock]
        for place in itertools.product(*(range(n) for n in grid)):
            own = [
                size[e] // grid[e] + (place[e] < size[e] % grid[e]) if e < len(grid) else size[e]
                for e in range(len(size))
            ]
            del own[d]
            free = clock
            for other in (place[d] - 1, place[d] + 1):
                if 0 <= other < parts and rows:
                    free = link(free, 4.0 * batch * channels * rows * math.prod(own))
                    arrivals.append(free)
        clock = max(arrivals)
    return clock


def hand_machine(concat: bool) -> Parameters:
    """The messages of small() on 2 ranks at B = 12 are measured points: halo 864 B, allgather 2304 B."""
    points = {
        "halo": ((864, 11e-6), (4096, 20e-6)),
        "allgather": ((2304, 33e-6), (4096, 44e-6)),
        "allreduce": ((1624, 55e-6), (4096, 66e-6)),
    }
    fits = [
        allreduce_fit(points=of).model_copy(update={"operation": operation})
        for operation, of in points.items()
    ]
    loops = tensor_loops("update", "pack", "unpack", *["concat"] * concat)
    return machine(collectives=fits, tensor_loops=loops)
