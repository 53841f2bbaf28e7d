"""Cost of a rank's layers: measured times, else the laws of their work.

A model repeats its layers, so the distinct pieces of a workload are looked up once each and counted.
What a piece has to do is linear in the batch, but for its weights, and found once for all batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calib.fitting.parameters.file import LayerTime, Parameters
from calib.fitting.parameters.work import (
    ANY_KIND,
    FRESH_OVER_BYTES,
    UNPRICED_FACTOR,
    PricedWork,
    Work,
    no_fresh,
    patch_items,
    priced,
)
from calib.foundation.errors import MissingParameter
from calib.foundation.layers import ITEM_BYTES, Direction, LayerShape
from calib.foundation.records import Estimate
from calib.oracle.cost import MACHINE, NOTHING, RANK, Cost
from calib.oracle.costs.in_place import InPlaceLaws, ranks_at_work
from calib.oracle.layout.shards import WEIGHTED
from calib.oracle.layout.workload import FREE, LayerPiece, Select, Workload
from calib.oracle.projection import Basis

# a sum takes 1 to 2 kB, the costs of each layer some 20 kB; when so many are held, all are dropped
MAX_SUMS, MAX_EACH, MAX_PIECES = 20_000, 500, 50_000
FROM_LAW = "some layers were not measured at this shape and batch: their times are of a regression"
UNPRICED = (
    f"some results are over {FRESH_OVER_BYTES >> 20} MiB, which the system gives fresh pages each "
    f"time, and no such layer was measured: these may take {UNPRICED_FACTOR:.0f} times as long"
)
NO_ERROR = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class KindLaw:
    """A law of a kind; `source` of its errors, `no_fresh` where it has no price of fresh pages."""

    ask: PricedWork
    source: str
    no_fresh: bool


FREE_LAW = KindLaw(lambda *_: (0.0, 1.0, 0.0), "", False)


class PieceWork:
    """A piece at any batch: its key in the parameter file, its Work and its law in both directions."""

    __slots__ = (
        "_flops",
        "_key",
        "_large",
        "_moved",
        "_once",
        "_patches",
        "_results",
        "_weights",
        "last",
        "laws",
        "output_bytes",
        "piece",
    )

    def __init__(self, piece: LayerPiece) -> None:
        shape = piece.shape
        self.piece = piece
        self.laws: dict[Direction, KindLaw] = {}
        self.last: dict[Direction, tuple[int, Cost]] = {}
        self._key: tuple[str, str] | None = None
        # as work_of has them, of one sample
        inputs = [ITEM_BYTES * float(math.prod(x)) for x in shape.input_shapes]
        weights = [ITEM_BYTES * float(math.prod(w)) for w in shape.parameter_shapes]
        self.output_bytes = output = ITEM_BYTES * float(math.prod(shape.output_shape))
        self._flops, self._patches, self._weights = (
            shape.forward_flops(1),
            sum(inputs),
            sum(weights),
        )
        self._moved, self._once = self._patches + output, self._weights
        has_dx = piece.needs_input_grad
        if shape.kind == "conv":
            self._patches = float(ITEM_BYTES * patch_items(shape))
        elif shape.kind == "embedding":
            self._moved, self._once, has_dx = shape.moved_bytes(1), 0.0, False
        # buffers that a pass writes, bytes per sample: y forward, dL/dx backward; and dL/dw
        self._results = [output], inputs if has_dx else []
        self._large = sum([size for size in weights if size > FRESH_OVER_BYTES])

    def key(self, batch: int) -> str:
        """LayerShape.key of the piece at this batch, put together from its ends."""
        if self._key is None:
            whole = self.piece.shape.key(1, "float32", self.piece.needs_input_grad)
            head, _, tail = whole.partition("|1*")
            self._key = (f"{head}|", f"*{tail}")
        return f"{self._key[0]}{batch}{self._key[1]}"

    def features(self, batch: int, backward: bool) -> tuple[float, float, float, float, float]:
        """Those of its Work."""
        fresh = self._large if backward else 0.0
        for size in self._results[backward]:
            if size * batch > FRESH_OVER_BYTES:
                fresh += size * batch
        moved = self._moved * batch + self._once
        return self._flops * batch, moved, self._weights, self._patches * batch, fresh

    def at(self, batch: int, direction: Direction) -> Work:
        """As work_of(shape, batch, direction, needs_input_grad)."""
        return Work(*self.features(batch, direction == "backward"))


class LayerCosts:
    """Looks up forward and backward for ranks that have `active_ranks` of their node at work."""

    def __init__(self, parameters: Parameters, active_ranks: int) -> None:
        self.active_ranks, self._about = ranks_at_work(parameters, active_ranks)
        active = self.active_ranks
        self._times = {t.key: t for t in parameters.layers if t.active_ranks == active}
        self._batches = {t.batch for t in self._times.values()}
        self._laws = {(w.kind, w.direction): w for w in parameters.work if w.active_ranks == active}
        self._has_none = not parameters.layers and not parameters.work
        self._in_place = InPlaceLaws(parameters, active)
        self._from_law = (*self._about, FROM_LAW)
        self._unpriced = (*self._about, FROM_LAW, UNPRICED)
        self._chosen: dict[tuple[str, str, bool], KindLaw] = {}
        self._pieces: dict[tuple[int, bool], PieceWork] = {}
        self._works: dict[Workload, tuple[PieceWork, ...]] = {}
        self._sums: dict[tuple[Workload, Select, int, Direction], Cost] = {}
        self._each: dict[tuple[Workload, int, Direction], tuple[Cost, ...]] = {}

    def total(self, work: Workload, select: Select, batch: int, direction: Direction) -> Cost:
        """Forward or backward of the layers that `select` names, at `batch` samples on this rank.

        Raises MissingParameter when neither a layer nor any of its kind was measured.
        """
        key = (work, select, batch, direction)
        cost = self._sums.get(key)
        if cost is None:
            cost = self._sum(self._pieces_of(work), work.counts[select], batch, direction)
            if len(self._sums) >= MAX_SUMS:
                self._sums.clear()
            self._sums[key] = cost
        return cost

    def each(self, work: Workload, batch: int, direction: Direction) -> tuple[Cost, ...]:
        """The same of every layer of the model, in order; NOTHING for a view."""
        key = (work, batch, direction)
        costs = self._each.get(key)
        if costs is None:
            distinct = self.pieces(work, batch, direction)
            costs = tuple([NOTHING if i == FREE else distinct[i] for i in work.index])
            if len(self._each) >= MAX_EACH:
                self._each.clear()
            self._each[key] = costs
        return costs

    def pieces(self, work: Workload, batch: int, direction: Direction) -> list[Cost]:
        """The same of every distinct piece of the workload."""
        return [self._price(of, batch, direction) for of in self._pieces_of(work)]

    def beside(
        self, work: Workload, counts: Mapping[int, int], batch: int, direction: Direction
    ) -> tuple[Cost, int, float]:
        """What those of the pieces that were not timed in place take there beside their time alone.

        With how many they are, and the bytes of their outputs. By the law of oracle/costs/in_place.py.
        """
        pieces = self._pieces_of(work)
        chosen = {
            number: count
            for number, count in counts.items()
            if not self._known_in_place(pieces[number], batch, direction)
        }
        if not chosen:
            return NOTHING, 0, 0.0
        parts = self._sum(pieces, chosen, batch, direction)
        layers = sum(chosen.values())
        nbytes = batch * sum(count * pieces[n].output_bytes for n, count in chosen.items())
        return self._in_place.extra(direction, parts, layers, nbytes), layers, nbytes

    def _known_in_place(self, piece: PieceWork, batch: int, direction: Direction) -> bool:
        time = self._times.get(piece.key(batch)) if batch in self._batches else None
        return time is not None and _in_place_of(time, direction) is not None

    def _sum(
        self,
        pieces: Sequence[PieceWork],
        counts: Mapping[int, int],
        batch: int,
        direction: Direction,
    ) -> Cost:
        """As calib.oracle.cost.total of each piece times its count, without a Cost for every product."""
        seconds: list[float] = []
        errors: dict[str, tuple[float, float]] = {}
        basis: Basis = "exact"
        notes: tuple[str, ...] = ()
        for number, count in counts.items():
            price = self._price(pieces[number], batch, direction)
            if price is NOTHING:
                continue
            time, of, [(source, down, up)], about = price
            seconds.append(count * time)
            before = errors.get(source, NO_ERROR)
            errors[source] = (before[0] + count * down, before[1] + count * up)
            if of != basis and RANK[of] > RANK[basis]:
                basis = of
            if about is not notes and about != notes:
                notes = tuple(dict.fromkeys((*notes, *about)))
        if not seconds:
            return NOTHING
        return Cost(
            math.fsum(seconds),
            basis,
            tuple([(source, down, up) for source, (down, up) in errors.items()]),
            notes,
        )

    def _pieces_of(self, work: Workload) -> tuple[PieceWork, ...]:
        """Workloads of one model share the layers that they do not split, and so their PieceWork."""
        found = self._works.get(work)
        if found is None:
            if len(self._pieces) >= MAX_PIECES:
                self._pieces.clear()
                self._works.clear()
            made = []
            for piece in work.pieces:
                key = (id(piece.shape), piece.needs_input_grad)  # PieceWork keeps the shape alive
                if key not in self._pieces:
                    self._pieces[key] = PieceWork(piece)
                made.append(self._pieces[key])
            self._works[work] = found = tuple(made)
        return found

    def _price(self, piece: PieceWork, batch: int, direction: Direction) -> Cost:
        """One piece; the last of each is kept, as strategies share their layers."""
        last = piece.last.get(direction)
        if last is not None and last[0] == batch:
            return last[1]
        price = self._measured(piece, batch, direction) if batch in self._batches else None
        if price is None:
            price = self._by_law(piece, batch, direction)
        piece.last[direction] = batch, price
        return price

    def _measured(self, piece: PieceWork, batch: int, direction: Direction) -> Cost | None:
        time = self._times.get(piece.key(batch))
        if time is None:
            return None
        found = _in_place_of(time, direction)
        if found is None:
            found = time.forward_s if direction == "forward" else time.backward_s
        value = found.value
        basis: Basis = "interpolated" if self._about else "measured"
        errors = ((MACHINE, value - found.low, found.high - value),)
        return Cost(value, basis, errors, self._about)

    def _by_law(self, piece: PieceWork, batch: int, direction: Direction) -> Cost:
        law = piece.laws.get(direction)
        if law is None:
            law = piece.laws[direction] = self._law_of(piece.piece, direction)
        if law is FREE_LAW:
            return NOTHING
        features = piece.features(batch, direction == "backward")
        seconds, factor, outside = law.ask(*features)
        down, up = seconds - seconds / factor, seconds * factor - seconds
        if features[4] and law.no_fresh:
            up = seconds * factor * UNPRICED_FACTOR - seconds
            return Cost(seconds, "extrapolated", ((law.source, down, up),), self._unpriced)
        basis: Basis = "extrapolated" if outside else "interpolated"
        return Cost(seconds, basis, ((law.source, down, up),), self._from_law)

    def _law_of(self, piece: LayerPiece, direction: Direction) -> KindLaw:
        """The law of a piece in one direction; FREE_LAW where nothing is computed."""
        kind, needs = piece.shape.kind, piece.needs_input_grad
        if direction == "backward" and not needs and not piece.shape.parameter_shapes:
            return FREE_LAW
        key = (kind, direction, needs)
        if key not in self._chosen:
            self._chosen[key] = self._choose(piece.shape, direction, needs)
        return self._chosen[key]

    def _choose(self, shape: LayerShape, direction: str, needs: bool) -> KindLaw:
        """The law of a kind that was not measured at some shape."""
        kind = shape.kind
        law = self._laws.get((kind, direction))
        if law is None and kind not in WEIGHTED:
            law = self._laws.get((ANY_KIND, direction))
        if law is None:
            raise MissingParameter(self._lacks(shape, direction))
        if direction == "backward" and not needs:
            # a first layer computes no dL/dx: the law of dL/dw alone, where that was measured
            law = self._laws.get((law.kind, "backward_weight"), law)
        return KindLaw(priced(law), f"{law.kind} {law.direction} law", no_fresh(law))

    def _lacks(self, shape: LayerShape, direction: str) -> str:
        if self._has_none:
            return (
                "the parameters hold no times of layers: imported logs of collectives alone cannot "
                "predict an iteration"
            )
        inputs = "+".join("x".join(map(str, x)) or "1" for x in shape.input_shapes)
        output = "x".join(map(str, shape.output_shape)) or "1"
        return (
            f"the parameters hold no {direction} time of {shape.kind} layers (such as {inputs} -> "
            f"{output}) with {self.active_ranks} active rank(s) per node"
        )


def _in_place_of(time: LayerTime, direction: Direction) -> Estimate | None:
    """The time in the iterations of a model, where it was measured so."""
    return time.in_place_forward_s if direction == "forward" else time.in_place_backward_s
