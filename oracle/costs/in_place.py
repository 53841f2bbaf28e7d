"""What a phase costs in an iteration beyond the sum of its isolated parts.

The laws are those of fitting/sections/composition.py. They capture what isolated timings miss: caches
filled by another layer, buffers just written, ranks that arrive late.
"""

from __future__ import annotations

from calib.fitting.parameters.file import LEAST_LEFT, Parameters
from calib.foundation.errors import MissingParameter
from calib.foundation.execution import USUAL, execution_of
from calib.foundation.layer_keys import execution_in
from calib.oracle.cost import NOTHING, Cost, widened
from calib.oracle.costs.senders import library_of
from calib.oracle.sources import IN_PLACE, source_of

NOT_IN_PLACE = "no model was measured in place: phases are sums of isolated parts"
UNKNOWN = NOTHING.noted(NOT_IN_PLACE)


def ranks_at_work(
    parameters: Parameters, active_ranks: int, kernels: str = USUAL
) -> tuple[int, tuple[str, ...]]:
    """The measured number of active ranks per node to use, with a note if it is not `active_ranks`.

    Of layers in an execution (without its graph). The next higher number is the safe choice; a single
    rank neither packs nor exchanges.
    """
    layers = {row.active_ranks for row in parameters.layers if execution_in(row.key) == kernels}
    work = {row.active_ranks for row in parameters.work if row.execution == kernels}
    measured = layers or work
    if not measured or active_ranks in measured:
        return active_ranks, ()
    above = [number for number in measured if number > active_ranks]
    taken = min(above) if above else max(measured)
    note = (
        f"layers were measured with {sorted(measured)} ranks of a node at work, "
        f"not with {active_ranks}; taken from {taken}"
    )
    return taken, (note,)


def require_measured(parameters: Parameters, kernels: str) -> None:
    """Raise MissingParameter where the file has layers, but none in this execution."""
    known = list(dict.fromkeys(execution_of(name).kernels.name for name in parameters.executions))
    if known and kernels not in known:
        raise MissingParameter(
            f"the parameters hold no times of layers in {kernels}, only in {', '.join(known)}",
            wants=f"execution {kernels}",
        )


class InPlaceLaws:
    """The composition laws for a number of active ranks per node (see `ranks_at_work`).

    `execution` is the full name: a CUDA graph changes what lies between the layers. Of how ranks meet it
    is the law of the library that operations are priced by, else of another that was measured.
    """

    def __init__(self, parameters: Parameters, active_ranks: int, execution: str = USUAL) -> None:
        of = [law for law in parameters.composition if law.execution == execution]
        self.any_measured = bool(of)  # with whatever number of ranks
        mine = library_of(parameters).library
        known = [law for law in of if law.active_ranks == active_ranks]
        self._laws = {law.phase: law for law in sorted(known, key=lambda law: law.library == mine)}

    def knows(self, phase: str) -> bool:
        """Whether this phase has a law."""
        return phase in self._laws

    def extra(self, phase: str, alone: float, layers: int, nbytes: float) -> Cost:
        """layers a + bytes b, added to `alone` seconds, below 0 a deduction; UNKNOWN without a law.

        The law is known within a factor on the whole phase, alone + extra, and the extra carries that
        error. Beyond the bytes of the fitted models it is extrapolated with a wider factor; else the
        phase is as sure as its parts.
        """
        law = self._laws.get(phase)
        if law is None:
            return UNKNOWN
        seconds = layers * law.s_per_layer + nbytes * law.s_per_byte
        seconds = max(seconds, (LEAST_LEFT - 1.0) * alone)
        factor = widened(law.error_factor, nbytes, law.max_bytes)
        whole = alone + seconds
        return Cost(
            seconds,
            "measured" if nbytes <= law.max_bytes else "extrapolated",
            ((source_of(IN_PLACE, phase), whole * (1.0 - 1.0 / factor), whole * (factor - 1.0)),),
        )
