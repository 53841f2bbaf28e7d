"""Cost of a phase within an iteration, beside the sum of its isolated parts.

The laws are those of fitting/sections/composition.py: caches that another layer filled, buffers that
something else just wrote, ranks that come late. Layers and passes over tensors share them.
"""

from __future__ import annotations

from calib.fitting.parameters.file import Parameters
from calib.oracle.cost import NOTHING, Cost, widened

NOT_IN_PLACE = "no model was measured in place: phases are sums of isolated parts"
UNKNOWN = NOTHING.noted(NOT_IN_PLACE)


def ranks_at_work(parameters: Parameters, active_ranks: int) -> tuple[int, tuple[str, ...]]:
    """Whose times stand for those of `active_ranks` per node, and a note if it is another number.

    More ranks at work is the next worse case; one rank alone has no pack and no exchange.
    """
    measured = {row.active_ranks for row in parameters.layers or parameters.work}
    if not measured or active_ranks in measured:
        return active_ranks, ()
    above = [number for number in measured if number > active_ranks]
    taken = min(above) if above else max(measured)
    note = (
        f"layers were measured with {sorted(measured)} ranks of a node at work, "
        f"not with {active_ranks}; taken from {taken}"
    )
    return taken, (note,)


class InPlaceLaws:
    """The composition laws of so many active ranks per node (those of `ranks_at_work`)."""

    def __init__(self, parameters: Parameters, active_ranks: int) -> None:
        self._laws = {
            law.phase: law for law in parameters.composition if law.active_ranks == active_ranks
        }

    def knows(self, phase: str) -> bool:
        """Whether there is a law of this phase."""
        return phase in self._laws

    def extra(self, phase: str, parts: Cost, layers: int, nbytes: float) -> Cost:
        """layers a + bytes b seconds more than `parts`; NOTHING with a note where no law says.

        The law is right up to a factor on the whole of the phase, so that is the error of the extra:
        total([parts, extra]) is the phase. Beyond the bytes of the fitted models it is an
        extrapolation with a wider factor; else the phase is as sure as its parts.
        """
        law = self._laws.get(phase)
        if law is None:
            return UNKNOWN
        seconds = layers * law.s_per_layer + nbytes * law.s_per_byte
        factor = widened(law.error_factor, nbytes, law.max_bytes)
        whole = parts.seconds + seconds
        return Cost(
            seconds,
            "measured" if nbytes <= law.max_bytes else "extrapolated",
            ((f"in place {phase}", whole * (1.0 - 1.0 / factor), whole * (factor - 1.0)),),
        )
