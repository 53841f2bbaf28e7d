"""A traced step beside the predicted one, line by line; the differences add up to the whole.

Forward, backward, update and what lies between them (packing; Python) are times without communication.
Of communication there are the time that collectives take (wire), that of it which computation hides
(overlap), and waiting for other ranks, of which no strategy's prediction has any but a pipeline's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pydantic import Field

from calib.foundation.records import Estimate, Record
from calib.oracle.projection import Phase, Projection
from calib.training.traces.run import PartTime, TracedRun
from calib.training.traces.split import BETWEEN

COMMUNICATION: tuple[Phase, ...] = ("exchange", "halo", "layerwise")
NOTHING = Estimate.exactly(0.0)


class ExplainedLine(Record):
    """One part of the step, s: as traced, as predicted, and the difference."""

    name: str
    measured: Estimate = Field(description="s")
    predicted: Estimate = Field(description="s")
    difference: Estimate = Field(description="s, measured - predicted")


def lines_of(run: TracedRun, predicted: Projection) -> list[ExplainedLine]:
    """The lines of a run whose prediction has its terms; the last is the whole step.

    Raises ValueError for a projection without time.
    """
    if predicted.total is None:
        raise ValueError("a projection without time explains nothing")
    parts, phases = _by_name(run.parts), _by_name(run.phases)
    hidden = negated(
        summed(term.time for term in predicted.terms if term.time.value < 0)
        if any(term.time.value < 0 for term in predicted.terms)
        else NOTHING
    )
    exposed = summed(predicted.phases[name] for name in COMMUNICATION if name in predicted.phases)
    of = predicted.phases
    pairs: list[tuple[str, Estimate, Estimate]] = [
        *(
            (name, phases[name], of.get(name, NOTHING))
            for name in ("forward", "backward", "update")
        ),
        (BETWEEN, phases[BETWEEN], of.get("pack", NOTHING)),
        ("wire", summed((parts["wire"], run.hidden)), summed((exposed, hidden))),
        ("overlap", negated(run.hidden), negated(hidden)),
        ("waiting", parts["waiting"], NOTHING),
        ("input", parts["input"], NOTHING),
        ("step", run.step, predicted.total),
    ]
    return [line_of(name, measured, other) for name, measured, other in pairs]


def _by_name(parts: Iterable[PartTime]) -> dict[str, Estimate]:
    return {part.name: part.seconds for part in parts}


def line_of(name: str, measured: Estimate, predicted: Estimate) -> ExplainedLine:
    """A line whose two numbers have independent errors."""
    return ExplainedLine(
        name=name,
        measured=plain(measured),
        predicted=plain(predicted),
        difference=summed((measured, negated(predicted))),
    )


def plain(of: Estimate) -> Estimate:
    """An estimate alone, of a record that is more."""
    return Estimate(value=of.value, low=of.low, high=of.high)


def negated(of: Estimate) -> Estimate:
    """- x."""
    return Estimate(value=0.0 - of.value, low=0.0 - of.high, high=0.0 - of.low)


def summed(parts: Iterable[Estimate]) -> Estimate:
    """The sum of estimates with independent errors."""
    of: Sequence[Estimate] = list(parts)
    value = math.fsum(x.value for x in of)
    below = math.sqrt(math.fsum((x.value - x.low) ** 2 for x in of))
    above = math.sqrt(math.fsum((x.high - x.value) ** 2 for x in of))
    return Estimate(value=value, low=value - below, high=value + above)
