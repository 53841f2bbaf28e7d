"""Cost of a rank's layers: measured times, also those of other batches; else laws of their work.

Each distinct piece of a workload is priced once and counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from calib.fitting.parameters.file import LayerTime, Parameters, WorkModel
from calib.fitting.parameters.work import (
    ANY_KIND,
    FRESH_OVER_BYTES,
    UNPRICED_FACTOR,
    no_fresh,
    price_of,
    seconds_of,
)
from calib.foundation.errors import MissingParameter
from calib.foundation.execution import USUAL, execution_of
from calib.foundation.layer_keys import but_batch
from calib.foundation.layers import Direction, LayerShape
from calib.foundation.operators import family_of
from calib.foundation.records import Estimate
from calib.foundation.words import several
from calib.oracle import origins
from calib.oracle.cost import NOTHING, Cost, counted
from calib.oracle.costs.in_place import UNKNOWN, InPlaceLaws, ranks_at_work, require_measured
from calib.oracle.layout.workload import FREE, LayerPiece, Select, Workload
from calib.oracle.once import once
from calib.oracle.projection import Basis
from calib.oracle.sources import LAYER_LAWS, MACHINE, source_of

# cached pairs of batch and direction: strategies at one p share a few
RECENT = 16
FROM_LAW = "some layers were not measured at this shape and batch: their times are of a regression"
OTHER_BATCH = (
    "some layers were measured at another batch: their times are moved by a regression to this one"
)
BY_OTHERS = "without a law of their kind, and priced by one over several kinds of layers: "
MOST_NAMES = 6
UNPRICED = (
    f"some results are over {FRESH_OVER_BYTES >> 20} MiB, which the system gives fresh pages each "
    f"time, and no such layer was measured: these may take {UNPRICED_FACTOR:.0f} times as long"
)


class Prices(dict[LayerPiece, Cost]):
    """Prices of pieces at one batch in one direction, computed on first use."""

    def __init__(self, costs: LayerCosts, batch: int, direction: Direction) -> None:
        super().__init__()
        self._asked = costs, batch, direction

    def __missing__(self, piece: LayerPiece) -> Cost:
        costs, batch, direction = self._asked
        price = self[piece] = costs.price(piece, batch, direction)
        return price


class LayerCosts:
    """Looks up forward and backward times with `active_ranks` busy ranks per node.

    Raises MissingParameter where other executions were measured, but not this one.
    """

    def __init__(
        self,
        parameters: Parameters,
        active_ranks: int,
        execution: str = USUAL,
        told_apart: bool = False,
    ) -> None:
        self._told_apart = told_apart
        run = execution_of(execution)
        self._kernels = kernels = run.kernels.name
        require_measured(parameters, kernels)
        self.active_ranks, self._about = ranks_at_work(parameters, active_ranks, kernels)
        active = self.active_ranks
        self._times: dict[tuple[str, str], dict[int, LayerTime]] = {}
        for time in parameters.layers:
            if time.active_ranks == active:
                self._times.setdefault(but_batch(time.key), {})[time.batch] = time
        self._laws = {
            (w.kind, w.direction): w
            for w in parameters.work
            if w.active_ranks == active and w.execution == kernels
        }
        # times in place are of kernels that were launched one by one, not by a graph
        self._launched = not run.cuda_graph
        # PyTorch keeps a GPU's memory for itself, so that no page of it is fresh
        self._fresh_pages = parameters.device_kind == "cpu"
        self._has_products = any("products" in (kind, family_of(kind)) for kind, _ in self._laws)
        self._has_none = not parameters.layers and not parameters.work
        self._in_place = InPlaceLaws(parameters, active, run.name)
        self._from_law = (*self._about, FROM_LAW)
        self.cache: dict[Any, Any] = {}
        self._prices = lru_cache(maxsize=RECENT)(partial(Prices, self))

    @once
    def total(self, work: Workload, select: Select, batch: int, direction: Direction) -> Cost:
        """Forward or backward of the layers that `select` names, at `batch` samples on this rank.

        Raises MissingParameter if neither a layer nor any that a law could be fitted to was measured.
        """
        pieces, prices = work.pieces, self._prices(batch, direction)
        counts = work.counts[select]
        return counted([(prices[pieces[number]], count) for number, count in counts.items()])

    @once
    def again(self, work: Workload, batch: int) -> Cost:
        """The forward that a backward runs again, of checkpointed regions."""
        pieces, prices = work.pieces, self._prices(batch, "forward")
        return counted([(prices[pieces[number]], count) for number, count in work.again.items()])

    def each(self, work: Workload, batch: int, direction: Direction) -> list[Cost]:
        """Forward or backward of every layer of the model; NOTHING for a view."""
        distinct = self.pieces(work, batch, direction)
        return [NOTHING if number == FREE else distinct[number] for number in work.index]

    def pieces(self, work: Workload, batch: int, direction: Direction) -> list[Cost]:
        """Forward or backward of every distinct piece of the workload."""
        prices = self._prices(batch, direction)
        return [prices[piece] for piece in work.pieces]

    def beside(
        self, work: Workload, counts: Mapping[int, int], batch: int, direction: Direction
    ) -> tuple[Cost, int, float]:
        """What an iteration adds to the pieces that were not timed in place (oracle/costs/in_place.py).

        Also returns how many they are and the bytes of their outputs.
        """
        chosen = [
            (work.pieces[number], count)
            for number, count in counts.items()
            if self._in_place_of(self._time(work.pieces[number], batch), direction) is None
        ]
        if not chosen:
            return NOTHING, 0, 0.0
        layers = sum([count for _, count in chosen])
        nbytes = batch * sum([count * piece.work.output_bytes for piece, count in chosen])
        if not self._in_place.knows(direction):
            return UNKNOWN, layers, nbytes
        prices = self._prices(batch, direction)
        alone = math.fsum([count * prices[piece].seconds for piece, count in chosen])
        return self._in_place.extra(direction, alone, layers, nbytes), layers, nbytes

    def price(self, piece: LayerPiece, batch: int, direction: Direction) -> Cost:
        """One piece: its measured time, at this batch or moved from another; else by a law."""
        time = self._time(piece, batch)
        if time is None:
            return self._by_law(piece, batch, direction)
        found = self._in_place_of(time, direction)
        source: str = MACHINE
        if self._told_apart:
            about = time.key, self.active_ranks, found is not None
            source = origins.of_machine(origins.layer(*about))
        if found is None:
            found = time.forward_s if direction == "forward" else time.backward_s
        value = found.value
        if time.batch != batch and value > 0:
            return self._moved(found, time.batch, piece, batch, direction, source)
        basis: Basis = "interpolated" if self._about else "measured"
        return Cost(value, basis, ((source, value - found.low, found.high - value),), self._about)

    def _time(self, piece: LayerPiece, batch: int) -> LayerTime | None:
        """The layer as it was measured, at the batch that is nearest; of two the larger one."""
        times = self._times_of(piece)
        if not times or batch in times:
            return times.get(batch)
        return times[min(times, key=lambda other: (abs(math.log(other / batch)), -other))]

    @once
    def _times_of(self, piece: LayerPiece) -> dict[int, LayerTime]:
        """Its measured times by batch."""
        key = piece.shape.key(1, self._kernels, piece.needs_input_grad)
        return self._times.get(but_batch(key), {})

    def _moved(
        self,
        found: Estimate,
        measured: int,
        piece: LayerPiece,
        batch: int,
        direction: Direction,
        of_time: str,
    ) -> Cost:
        """A time at another batch than it was measured at: times what its law says of the two.

        That may be off by the law's `batch_factor` for each doubling, but a larger batch takes no less
        time and a smaller one no more.
        """
        law, source = self._law_of(piece.shape, direction, piece.needs_input_grad)
        before, after = (piece.work.at(n, direction) for n in (measured, batch))
        if self._fresh_pages and after.fresh_bytes > before.fresh_bytes and no_fresh(law):
            return self._by_law(piece, batch, direction)
        least = seconds_of(law, before)
        ratio = seconds_of(law, after) / least if least > 0 else batch / measured
        value, factor = ratio * found.value, law.error_factor
        if law.batch_factor:
            factor = min(factor, law.batch_factor ** abs(math.log2(batch / measured)))
        low, high = value / factor, value * factor
        if batch > measured:
            low = max(low, min(found.value, value))
        else:
            high = min(high, max(found.value, value))
        errors = (
            (of_time, ratio * (found.value - found.low), ratio * (found.high - found.value)),
            (f"{source}, of another batch", value - low, high - value),
        )
        return Cost(value, "interpolated", errors, (*self._about, OTHER_BATCH))

    def _in_place_of(self, time: LayerTime | None, direction: Direction) -> Estimate | None:
        """The time measured inside an iteration, if there is one that holds."""
        if time is None or not self._launched:
            return None
        return time.in_place_forward_s if direction == "forward" else time.in_place_backward_s

    def _by_law(self, piece: LayerPiece, batch: int, direction: Direction) -> Cost:
        shape, needs = piece.shape, piece.needs_input_grad
        has_gradient = shape.is_differentiable and (needs or shape.parameter_shapes)
        if direction == "backward" and not has_gradient:
            return NOTHING
        law, source = self._law_of(shape, direction, needs)
        is_call = shape.is_view and direction == "forward"
        own = is_call or law.kind in (shape.kernel, shape.name)
        about = self._from_law if own else self._by_others(shape.name)
        work = piece.work.at(batch, direction)
        seconds, factor, outside = price_of(law, work)
        if self._fresh_pages and work.fresh_bytes and no_fresh(law):
            down, up = seconds - seconds / factor, seconds * factor * UNPRICED_FACTOR - seconds
            return Cost(seconds, "extrapolated", ((source, down, up),), (*about, UNPRICED))
        basis: Basis = "extrapolated" if outside else "interpolated"
        # what the layers of a model have in common adds up; the rest is each one's own
        parts = {source: law.shared, f"{source}: {shape.key(1)}": 1.0 - law.shared}
        errors = [
            (of, seconds - seconds / part, seconds * part - seconds)
            for of, share in parts.items()
            if share > 0
            for part in (factor ** math.sqrt(share),)
        ]
        return Cost(seconds, basis, tuple(errors), about)

    def _law_of(
        self, shape: LayerShape, direction: Direction, needs: bool
    ) -> tuple[WorkModel, str]:
        """The law of a shape and its error source. Raises MissingParameter."""
        # what an operation takes is known where some product was measured
        known = self._has_products or not shape.is_product
        found = self._law(shape.kernel, shape.name, direction, needs) if known else None
        if found is None:
            raise MissingParameter(self._lacks(shape, direction))
        return found

    @once
    def _by_others(self, name: str) -> tuple[str, ...]:
        return (*self._from_law, BY_OTHERS + name)

    @once
    def _law(
        self, kernel: str, name: str, direction: Direction, needs: bool
    ) -> tuple[WorkModel, str] | None:
        """The law of a kernel or its kind, else of a family, else of all; its error source. Or None."""
        kinds = kernel, name, family_of(name), ANY_KIND
        laws = (self._laws.get((kind, direction)) for kind in kinds)
        law = next((law for law in laws if law), None)
        if law is None:
            return None
        if direction == "backward" and not needs:
            # a first layer computes no dL/dx: the law of dL/dw alone, where that was measured
            law = self._laws.get((name, "backward_weight"), law)
        # what a law over kinds is off by is a matter of the kind
        of = "" if law.kind in (kernel, name) else f" for {name}"
        return law, source_of(LAYER_LAWS, f"{law.kind} {law.direction} law{of}")

    def _lacks(self, shape: LayerShape, direction: str) -> str:
        if self._has_none:
            return (
                "the parameters hold no times of layers: imported logs of collectives alone cannot "
                "predict an iteration"
            )
        inputs = "+".join("x".join(map(str, x)) or "1" for x in shape.input_shapes)
        output = "x".join(map(str, shape.output_shape)) or "1"
        run = "" if self._kernels == USUAL else f" in {self._kernels}"
        return (
            f"the parameters hold no {direction} time{run} of {_words(shape)} layers (such as "
            f"{inputs} -> {output}) with {self.active_ranks} active rank(s) per node"
        )


def merged(notes: Sequence[str]) -> list[str]:
    """Notes, with those on kinds of layers without a law of their own as one."""
    names = sorted(note.removeprefix(BY_OTHERS) for note in notes if note.startswith(BY_OTHERS))
    if not names:
        return list(notes)
    others = [note for note in notes if not note.startswith(BY_OTHERS)]
    return [*others, BY_OTHERS + several(names, MOST_NAMES)]


def _words(shape: LayerShape) -> str:
    return shape.kind if shape.operator is None else shape.operator.name
