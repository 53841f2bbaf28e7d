"""Cost of passes over tensors: weight update, pack and unpack, concat and split.

A list that a model's iterations were timed with takes what it took there; of others, if the file has
the law of a phase in an iteration, that is added to the pass alone.
"""

from __future__ import annotations

from typing import Any, Literal

from calib.fitting.parameters.file import Parameters, TensorLoop
from calib.foundation.errors import InputError, MissingParameter
from calib.foundation.execution import USUAL, execution_of
from calib.foundation.records import Estimate
from calib.oracle import origins
from calib.oracle.cost import NOTHING, Cost, measured, total, widened
from calib.oracle.costs.in_place import NOT_IN_PLACE, InPlaceLaws, ranks_at_work
from calib.oracle.layout.workload import Tensors
from calib.oracle.once import once
from calib.oracle.projection import Basis
from calib.oracle.sources import MACHINE, PASS_LAWS, source_of

# names of the optimizers' passes in samples and parameter files (microbench/rows.py)
UPDATES = {"momentum": "update", "adam": "update_adam", "sgd": "update_sgd"}
ACCUMULATE = "accumulate"
# momentum reads w, g and v and writes w and v; without v three of the five remain
SGD_SHARE_OF_MOMENTUM = 3.0 / 5.0
SGD_AS_MOMENTUM = (
    "the update of plain SGD was not measured: that of SGD with momentum is its upper bound; "
    'optimizers = ["momentum", "sgd"] in a plan.toml measures it'
)
ADDED_AS_MOMENTUM = (
    "adding up gradients was not measured: the update of SGD with momentum is its upper bound; "
    "calibrate a plan of serial or data training to measure it"
)
ADDED_ALONE = "adding up gradients was measured alone; in an iteration it may take longer"
OF_MOMENTUM = "what an iteration adds to an update was measured with momentum"
CUT_ALONE = "concat and split of shards were measured alone; in an iteration they may take longer"


class TensorCosts:
    """Looks up tensor passes with `active_ranks` busy ranks per node."""

    def __init__(
        self,
        parameters: Parameters,
        active_ranks: int,
        execution: str = USUAL,
        told_apart: bool = False,
    ) -> None:
        self._told_apart = told_apart
        run = execution_of(execution)
        self._kernels = run.kernels.name
        self.active_ranks, self._about = ranks_at_work(parameters, active_ranks, self._kernels)
        self._loops = {
            loop.operation: loop
            for loop in parameters.tensor_loops
            if loop.of_training(parameters.device_kind, self._kernels)
            and loop.active_ranks == self.active_ranks
        }
        self._in_place = InPlaceLaws(parameters, self.active_ranks, run.name)
        in_place = self._in_place.any_measured
        self._cut_note = (CUT_ALONE if in_place else NOT_IN_PLACE,)
        self._added_note = (ADDED_ALONE if in_place else NOT_IN_PLACE,)
        self.cache: dict[Any, Any] = {}

    @once
    def update(self, tensors: Tensors, optimizer: str, share: int = 1) -> Cost:
        """Weight update of all `tensors`, or of a `share`-th of them (a sharded optimizer).

        Raises InputError for an unknown optimizer, MissingParameter if it was not measured.
        """
        if optimizer not in UPDATES:
            raise InputError(f"unknown optimizer {optimizer!r}; known: {', '.join(UPDATES)}")
        part = _part(tensors, share)
        timed = self._in_iterations(UPDATES[optimizer], part)
        if timed is not None:
            return timed
        alone = self._update(part, optimizer)
        extra = self._in_place.extra("update", alone.seconds, part.ntensors, part.nbytes)
        if optimizer != "momentum" and self._in_place.knows("update"):
            extra = extra.at_best("interpolated").noted(OF_MOMENTUM)
        return total([alone, extra])

    @once
    def accumulating(self, gradients: Tensors) -> Cost:
        """Add gradients to those of earlier micro-batches. Raises MissingParameter.

        Not measured, it is bounded by the update of SGD with momentum, which reads and writes more.
        """
        if ACCUMULATE not in self._loops and "update" in self._loops:
            return self._at_most_momentum(gradients, ADDED_AS_MOMENTUM)
        return self._alone(self._loop(ACCUMULATE), gradients, self._added_note)

    @once
    def passing(self, operation: Literal["pack", "unpack"], tensors: Tensors) -> Cost:
        """Copy gradients into one flat buffer, or out of it. Raises MissingParameter."""
        timed = self._in_iterations(operation, tensors)
        if timed is not None:
            return timed
        alone = self._alone(self._loop(operation), tensors)
        extra = self._in_place.extra(operation, alone.seconds, tensors.ntensors, tensors.nbytes)
        return total([alone, extra])

    @once
    def cutting(
        self,
        operation: Literal["concat", "split"],
        key: str,
        parts: int,
        nbytes: int,
        count: int = 1,
    ) -> Cost:
        """Join a tensor of `nbytes` from `parts` shards, or cut it into them, `count` times.

        `key` is the tensors_key of its shape (batch, channels, ...). NOTHING for one part. Raises
        MissingParameter.
        """
        if parts == 1 or count == 0:
            return NOTHING
        # a row's key includes the number of parts (microbench/rows.py)
        shards = Tensors(f"{key}/{parts}", parts, nbytes)
        if self._in_place.knows("copies"):
            alone = self._alone(self._loop(operation), shards)
            one = total([alone, self._in_place.extra("copies", alone.seconds, 1, nbytes)])
        else:
            one = self._alone(self._loop(operation), shards, self._cut_note)
        return one.times(count)

    def exchanging(self, cost: Cost, nbytes: float) -> Cost:
        """A gradient exchange inside an iteration; alone it takes `cost`."""
        if cost is NOTHING:
            return NOTHING
        return total([cost, self._in_place.extra("exchange", cost.seconds, 0, nbytes)])

    def meeting(self, phase: str, cost: Cost, count: int) -> Cost:
        """`count` calls between layers inside an iteration; alone they take `cost`."""
        if cost is NOTHING or not self._in_place.knows(phase):
            return cost
        return total([cost, self._in_place.extra(phase, cost.seconds, count, 0)])

    def _update(self, tensors: Tensors, optimizer: str) -> Cost:
        operation = UPDATES[optimizer]
        if optimizer == "sgd" and operation not in self._loops and "update" in self._loops:
            return self._at_most_momentum(tensors, SGD_AS_MOMENTUM)
        return self._alone(self._loop(operation), tensors)

    def _at_most_momentum(self, tensors: Tensors, note: str) -> Cost:
        """A pass that reads two lists and writes one: at most momentum's time, at least its share."""
        law = self._loops["update"]
        most = self._alone(law, tensors)
        least = SGD_SHARE_OF_MOMENTUM * tensors.nbytes * law.s_per_byte
        down = (source_of(PASS_LAWS, "as momentum"), max(0.0, most.seconds - least), 0.0)
        notes = (*most.notes, note)
        return Cost(most.seconds, "extrapolated", (*most.errors, down), notes)

    def _loop(self, operation: str) -> TensorLoop:
        """The loop of an operation. Raises MissingParameter that says how to measure it."""
        loop = self._loops.get(operation)
        if loop is not None:
            return loop
        how = f"measure it on {self.active_ranks}"
        if operation in ("concat", "split"):
            how = "measure one of filter, channel and data+filter"
        elif operation in ("update_adam", "update_sgd"):
            name = operation.removeprefix("update_")
            how = f'a plan.toml with optimizers = ["momentum", "{name}"] measures it'
        run = "" if self._kernels == USUAL else f" in {self._kernels}"
        if operation in ("pack", "unpack") and self.active_ranks == 1:
            raise MissingParameter(
                f"the parameters hold no {operation} time{run}: they were measured on one rank, which "
                "exchanges no gradients",
                wants="more ranks",
            )
        raise MissingParameter(
            f"the parameters hold no {operation} time{run} with {self.active_ranks} active rank(s) per "
            f"node; {how}"
        )

    def _in_iterations(self, operation: str, tensors: Tensors) -> Cost | None:
        """What a pass took in the iterations of a model that has the list; None where none was timed."""
        loop = self._loops.get(operation)
        if loop is None or not loop.in_place or not tensors.named:
            return None
        found = loop.in_place.get(tensors.key)
        return None if found is None else self._measured(found, loop, tensors, True, self._about)

    def _measured(
        self,
        found: Estimate,
        loop: TensorLoop,
        tensors: Tensors,
        in_place: bool,
        notes: tuple[str, ...],
    ) -> Cost:
        source: str = MACHINE
        if self._told_apart:
            about = loop.operation, tensors.key, self.active_ranks, in_place
            source = origins.of_machine(origins.tensor_pass(*about))
        cost = measured(found, source, "interpolated" if self._about else "measured")
        return cost.noted(*notes) if notes else cost

    def _alone(self, loop: TensorLoop, tensors: Tensors, notes: tuple[str, ...] = ()) -> Cost:
        """One pass alone: measured, else by the law of call, tensors and bytes."""
        nbytes, notes = tensors.nbytes, (*self._about, *notes)
        found = loop.measured.get(tensors.key) if loop.measured and tensors.named else None
        if found is not None:
            return self._measured(found, loop, tensors, False, notes)
        seconds = loop.call_s + tensors.ntensors * loop.s_per_tensor + nbytes * loop.s_per_byte
        factor = loop.error_factor
        basis: Basis = "interpolated"
        if not loop.min_bytes <= nbytes <= loop.max_bytes:
            factor = widened(factor, nbytes, loop.max_bytes)
            factor = widened(factor, loop.min_bytes, max(nbytes, 1))
            basis = "extrapolated"
        source = source_of(PASS_LAWS, f"{loop.operation} law")
        error = (source, seconds - seconds / factor, seconds * factor - seconds)
        return Cost(seconds, basis, (error,), notes)


def _part(tensors: Tensors, share: int) -> Tensors:
    """One of `share` equal parts of a list, which has no measured time of its own."""
    if share == 1:
        return tensors
    return Tensors("", -(-tensors.ntensors // share), -(-tensors.nbytes // share))
