"""What a rank sends, receives and keeps between two layers. Pure geometry.

The boxes are those of oracle/layout/partitions.py: [from, to) of samples, then of every dimension of a
sample. Windows at the border of an image also read filling, which is not sent: coordinates below 0 or
beyond the image.
"""

from __future__ import annotations

from dataclasses import dataclass

from calib.foundation.layers import LayerShape
from calib.oracle.layout.partitions import (
    Box,
    Configuration,
    computed,
    items,
    moves,
    needed,
    overlap,
    owned,
)
from calib.oracle.layout.spatial import WINDOWED, window

RoutedPieces = tuple[tuple[int, Box], ...]  # (the other rank, the box)


@dataclass(frozen=True)
class InputRoute:
    """One input of a layer on one rank.

    `own` is the box of the tensor that the rank has and `need` the box that it reads, None for nothing.
    `whole` is what its part runs on: `need`, with filling around it where windows reach beyond the
    image. `local` is the part of `need` that the rank has. `cut` are the dimensions in which `whole` is
    exact; in the others a part may also be given rows that no window reaches.
    """

    own: Box | None
    need: Box | None
    whole: Box | None
    local: Box | None
    sends: RoutedPieces
    receives: RoutedPieces
    cut: frozenset[int]

    @property
    def talks(self) -> bool:
        """Whether this rank sends or receives anything."""
        return bool(self.sends or self.receives)

    @property
    def is_direct(self) -> bool:
        """Whether the part runs on what the rank has, without a copy."""
        if self.whole is None or self.own is None or self.local is None or self.receives:
            return False
        pairs = enumerate(zip(self.whole, self.own, strict=True))
        return self.local == self.need and all(
            a == b or (d not in self.cut and b[0] == a[0] and b[1] >= a[1]) for d, (a, b) in pairs
        )


def route(
    producer: tuple[LayerShape, Configuration],
    consumer: tuple[LayerShape, Configuration],
    which: int,
    batch: int,
    rank: int,
) -> InputRoute:
    """The route of rank `rank` for input `which` of the consumer: the producer's output."""
    shape, of = producer
    owners = [owned(shape, of, batch, part) for part in range(of.parts)]
    own = owners[rank] if rank < len(owners) else None
    need, whole, cut = _reads(consumer, which, batch, rank)
    shape, of = consumer
    sends, receives = [], []
    if own is not None:
        readers = [needed(shape, of, batch, part, which) for part in range(of.parts)]
        sends = [(m.target, m.box) for m in moves([own], readers) if m.target != rank]
    if need is not None:
        receives = [(m.source, m.box) for m in moves(owners, [need]) if m.source != rank]
    local = None
    if own is not None and need is not None:
        common = overlap(own, need)
        local = common if items(common) else None
    return InputRoute(own, need, whole, local, tuple(sends), tuple(receives), cut)


def input_route(
    consumer: tuple[LayerShape, Configuration], which: int, batch: int, rank: int
) -> InputRoute:
    """The route of the model's input, which every rank has whole."""
    shape, _ = consumer
    everything: Box = ((0, batch), *((0, n) for n in shape.input_shapes[which]))
    need, whole, cut = _reads(consumer, which, batch, rank)
    return InputRoute(everything, need, whole, need, (), (), cut)


def _reads(
    consumer: tuple[LayerShape, Configuration], which: int, batch: int, rank: int
) -> tuple[Box | None, Box | None, frozenset[int]]:
    """`need`, `whole` and `cut` of an InputRoute."""
    shape, of = consumer
    every = frozenset(range(1 + len(shape.input_shapes[which])))
    if rank >= of.parts:
        return None, None, every
    need = needed(shape, of, batch, rank, which)
    whole = need
    if shape.kind in WINDOWED:
        output, dims = computed(shape, of, batch, rank), list(need)
        apart = [d for d, degree in enumerate(of.spatial) if degree > 1]
        for d in apart:
            dims[2 + d] = window(shape, d).inputs_of(output[2 + d])
        whole = tuple(dims)
        every = frozenset((0, 1, *(2 + d for d in apart)))
    if not items(whole):
        return None, None, every
    return (need if items(need) else None), whole, every
