"""What the parts of an iteration cost on a calibrated machine, each with its interval and basis."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fitting.parameters import TRAINING_LIBRARY, Parameters, WorkModel
from fitting.parameters_collective import CollectiveFit, StructuralFit
from fitting.records import Estimate
from fitting.work import (
    ANY_KIND,
    FRESH_OVER_BYTES,
    UNPRICED_FACTOR,
    factor_of,
    is_unpriced,
    seconds_of,
    work_of,
)
from foundation.errors import MissingParameter
from oracle.model import Layer
from oracle.projection import Basis, PhaseTime, worst_basis

NOTHING = PhaseTime(seconds=0.0, low=0.0, high=0.0, basis="exact")
# between nodes whose link was not measured the time may be anything; this is said in a note too
UNMEASURED_LEVEL_FACTOR = 10.0


def add(parts: Iterable[PhaseTime]) -> PhaseTime:
    """The sum. Errors of one machine go together, so the ends of the intervals add up too."""
    everything = list(parts)
    return PhaseTime(
        seconds=math.fsum(part.seconds for part in everything),
        low=math.fsum(part.low for part in everything),
        high=math.fsum(part.high for part in everything),
        basis=worst_basis([part.basis for part in everything]),
    )


def exactly(estimate: Estimate, basis: Basis = "measured") -> PhaseTime:
    """An estimate of the parameter file as a part of a phase."""
    return PhaseTime(seconds=estimate.value, low=estimate.low, high=estimate.high, basis=basis)


def within_factor(seconds: float, factor: float, basis: Basis) -> PhaseTime:
    """Seconds that are right up to a factor."""
    return PhaseTime(seconds=seconds, low=seconds / factor, high=seconds * factor, basis=basis)


def widened(factor: float, value: float, largest: float) -> float:
    """The error factor at `value`, beyond the `largest` value fitted by so many decades.

    Once more the factor for every decade, at most twice: a convention, not a measurement.
    """
    beyond = math.log10(value / largest) if largest > 0 and value > largest else 0.0
    return float(factor * min(factor, 2.0) ** beyond)


class Costs:
    """Looks up a parameter file for ranks that have `active_ranks` of their node at work.

    `notes` collects what a reader must know about the look-ups that were made.
    """

    def __init__(self, parameters: Parameters, active_ranks: int) -> None:
        self._parameters = parameters
        self.notes: list[str] = []
        measured = {time.active_ranks for time in parameters.layers}
        self.active_ranks = active_ranks
        if measured and active_ranks not in measured:
            # more ranks at work is the next worse case; one rank alone has no pack and no exchange
            above = [number for number in measured if number > active_ranks]
            self.active_ranks = min(above) if above else max(measured)
            self._note(
                f"layers were measured with {sorted(measured)} ranks of a node at work, "
                f"not with {active_ranks}; taken from {self.active_ranks}"
            )
        self._shifted = self.active_ranks != active_ranks
        self._layers = {t.key: t for t in parameters.layers if t.active_ranks == self.active_ranks}
        self._work = {
            (w.kind, w.direction): w for w in parameters.work if w.active_ranks == self.active_ranks
        }

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _basis(self, basis: Basis) -> Basis:
        return worst_basis([basis, "interpolated"]) if self._shifted else basis

    def layer(self, layer: Layer, batch: int, direction: str) -> PhaseTime:
        """Forward or backward of one layer at `batch` samples on this rank.

        Raises MissingParameter when neither the layer nor any of its kind was measured.
        """
        if layer.shape.is_free:
            return NOTHING
        time = self._layers.get(layer.shape.key(batch, "float32", layer.needs_input_grad))
        if time is not None:
            estimate = time.forward_s if direction == "forward" else time.backward_s
            return exactly(estimate, self._basis("measured"))
        has_gradient = layer.needs_input_grad or bool(layer.shape.parameter_shapes)
        if direction == "backward" and not has_gradient:
            return NOTHING
        kind = layer.shape.kind
        work = self._work.get((kind, direction)) or self._work.get((ANY_KIND, direction))
        if work is None or (kind in ("conv", "linear") and work.kind != kind):
            raise MissingParameter(
                f"the parameters hold no {direction} time of {layer.name} ({kind}) and of no other "
                f"{kind}; `calib measure --models <a model with it>` provides it"
            )
        return self._from_work(layer, batch, work)

    def _from_work(self, layer: Layer, batch: int, law: WorkModel) -> PhaseTime:
        direction = law.direction
        if direction == "backward" and not layer.needs_input_grad:
            # a first layer computes no dL/dx: the law of dL/dw alone, where that was measured
            law = self._work.get((law.kind, "backward_weight"), law)
        work = work_of(layer.shape, batch, direction, layer.needs_input_grad)
        factor, outside = factor_of(law, work)
        time = within_factor(
            seconds_of(law, work), factor, "extrapolated" if outside else "interpolated"
        )
        self._note(
            "some layers were not measured at this shape and batch: their times come from a "
            "regression on operations and bytes; `calib measure --models ... --batch-per-pe ...` "
            "measures them"
        )
        if is_unpriced(law, work):
            self._note(
                f"some results are over {FRESH_OVER_BYTES >> 20} MiB, which the system gives fresh "
                "pages each time, and no such layer was measured: these may take "
                f"{UNPRICED_FACTOR:.0f} times as long"
            )
            wide = {"high": time.high * UNPRICED_FACTOR, "basis": "extrapolated"}
            return time.model_copy(update=wide)
        return time

    def loop(self, operation: str, key: str, ntensors: int, nbytes: int) -> PhaseTime:
        """Update, pack or unpack of a list of tensors. Raises MissingParameter."""
        for loop in self._parameters.tensor_loops:
            wanted = loop.of_training and loop.operation == operation
            if wanted and loop.active_ranks == self.active_ranks:
                if key in loop.measured:
                    return exactly(loop.measured[key], self._basis("measured"))
                seconds = loop.call_s + ntensors * loop.s_per_tensor + nbytes * loop.s_per_byte
                factor = widened(loop.error_factor, nbytes, loop.max_bytes)
                inside = nbytes <= loop.max_bytes
                return within_factor(seconds, factor, "interpolated" if inside else "extrapolated")
        raise MissingParameter(
            f"the parameters hold no {operation} time with {self.active_ranks} active rank(s) per "
            "node; `calib measure` with one core for each rank provides it"
        )

    def in_place(self, phase: str, parts: PhaseTime, layers: int, nbytes: int) -> PhaseTime:
        """The sum of the parts of a phase as it is inside an iteration (see fitting/composition)."""
        for law in self._parameters.composition:
            if law.phase == phase and law.active_ranks == self.active_ranks:
                extra = layers * law.s_per_layer + nbytes * law.s_per_byte
                factor = widened(law.error_factor, nbytes, law.max_bytes)
                return PhaseTime(
                    seconds=parts.seconds + extra,
                    low=(parts.low + extra) / factor,
                    high=(parts.high + extra) * factor,
                    basis=parts.basis if nbytes <= law.max_bytes else "extrapolated",
                )
        self._note("no model was measured in place: phases are sums of isolated parts")
        return parts

    def allreduce(self, ranks: int, nbytes: int) -> PhaseTime:
        """One allreduce of `nbytes` over `ranks` PEs. Raises MissingParameter without any fit."""
        if ranks == 1:
            return NOTHING
        fits = [
            fit for fit in self._parameters.collectives
            if fit.operation == "allreduce" and fit.library == TRAINING_LIBRARY and fit.at_home
        ]  # fmt: skip
        across = ranks > self._parameters.ranks_per_node
        for fit in fits:
            if fit.ranks == ranks and (fit.level != "node") == across:
                return self._measured_allreduce(fit, nbytes)
        if not fits:
            raise MissingParameter(
                "the parameters hold no allreduce; `calib measure` with 2 ranks or more provides it"
            )
        for law in self._parameters.structural:
            known = law.operation == "allreduce" and law.library == TRAINING_LIBRARY
            if known and law.device == fits[0].device and (law.level != "node") == across:
                return self._structural_allreduce(law, ranks, nbytes)
        return self._ring(fits, ranks, nbytes, across)

    def _structural_allreduce(self, law: StructuralFit, ranks: int, nbytes: int) -> PhaseTime:
        """By the law of several measured p, its error once more for every doubling beyond them."""
        nodes = -(-ranks // self._parameters.ranks_per_node)
        low, high = law.ranks[0], law.ranks[-1]
        doublings = max(math.log2(ranks / high), math.log2(low / ranks), 0.0)
        factor = law.error_factor ** max(1.0, doublings)
        if law.held_out_error is None:  # two p say nothing of which algorithm a third has
            factor *= 2.0
        self._note(
            f"allreduce on {ranks} PEs was not measured: from the law of {low} to {high} PEs"
        )
        inside = low <= ranks <= high and law.range_nbytes[0] <= nbytes <= law.range_nbytes[1]
        smallest, largest = law.range_nbytes
        factor = widened(widened(factor, nbytes, largest), smallest, max(nbytes, 1))
        seconds = law.seconds(nbytes, ranks, nodes)
        return within_factor(seconds, factor, "interpolated" if inside else "extrapolated")

    def _ring(self, fits: list[CollectiveFit], ranks: int, nbytes: int, across: bool) -> PhaseTime:
        """From the nearest measured p, as if it were a ring: formulas.md, "structural"."""
        same = [fit for fit in fits if (fit.level != "node") == across]
        fit = min(same or fits, key=lambda f: abs(math.log(f.ranks / ranks)))
        steps = 2.0 * (ranks - 1)
        alpha, beta = fit.alpha_s, fit.beta_s_per_byte
        seconds = steps * (alpha.value + nbytes * beta.value / ranks)
        beyond = max(ranks / fit.ranks, fit.ranks / ranks) * max(1.0, nbytes / fit.range_nbytes[1])
        factor = widened(fit.line_error_factor, beyond, 1.0)
        self._note(
            f"allreduce on {ranks} PEs was not measured: extrapolated from {fit.ranks} by the ring"
        )
        if across and not same:
            factor *= UNMEASURED_LEVEL_FACTOR
            self._note(
                f"{ranks} PEs are more than the {self._parameters.ranks_per_node} of one node and "
                "no link between nodes was measured: the exchange is that of a node's own memory "
                "and its interval is a guess; calibrate on two nodes or more"
            )
        return within_factor(seconds, factor, "extrapolated")

    def _measured_allreduce(self, fit: CollectiveFit, nbytes: int) -> PhaseTime:
        smallest, largest = fit.range_nbytes
        for point in fit.points:
            if point.nbytes == nbytes:
                return exactly(point.seconds)
        seconds = fit.seconds(nbytes)
        if smallest <= nbytes <= largest:
            above = next(i for i, point in enumerate(fit.points) if point.nbytes > nbytes)
            around = [point.seconds for point in fit.points[above - 1 : above + 1]]
            factor = fit.interpolation_error_factor
            return PhaseTime(
                seconds=seconds,
                low=seconds * min(e.low / e.value for e in around) / factor,
                high=seconds * max(e.high / e.value for e in around) * factor,
                basis="interpolated",
            )
        self._note(
            f"an exchange of {nbytes} B is outside the measured {smallest} to {largest} B: the "
            "fitted law"
        )
        described = fit.pieces_error_factor or fit.line_error_factor
        factor = widened(max(described, fit.interpolation_error_factor), nbytes, largest)
        return within_factor(seconds, factor, "extrapolated")
