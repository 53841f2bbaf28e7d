"""How fast the machine was when it was calibrated, and how times follow its references.

A neighbour on the socket slows a machine down for minutes. The references (microbench/reference.py),
which always do the same work, tell by how much; how far a layer or a message follows them is fitted
(fitting/sections/speed.py): t ~ prod reference^exponent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal, get_args

from pydantic import Field

from calib.foundation.quantities import CountOrNone, Factor, Ranks
from calib.foundation.records import Estimate, Record, TimeEstimate
from calib.foundation.statistics import effective_number
from calib.microbench.records.looks import Look

Reference = Literal["arithmetic_s", "memory_s", "threads_s", "message_s"]
REFERENCES: tuple[Reference, ...] = get_args(Reference)
SpeedOf = Literal["compute", "messages"]
Z = 1.96
FEWEST_LOOKS = 3


class References(Record):
    """The times of the references in launches of so many ranks, as calibrated."""

    ranks: Ranks = Field(description="of the launches")
    looks: CountOrNone = Field(description="how many looks they are the means of")
    seconds: dict[Reference, TimeEstimate] = Field(description="reference -> s")
    variation: Factor = Field(
        default=1.0,
        description="95% of undisturbed stretches of 10 s are within this factor of all, in what "
        "compute follows of the references; 1 unknown",
    )


class SpeedLaw(Record):
    """How times follow the references."""

    of: SpeedOf = Field(description="layers, passes and iterations, or collectives")
    exponents: dict[Reference, Estimate] = Field(
        description="reference -> exponent of its time: 1 where a time grows as the reference's does; "
        "one that is not known to be over 0 is left out"
    )
    n: CountOrNone = Field(description="medians of a case in a launch that it was fitted to")

    def exponent(self, reference: Reference) -> float:
        """0 where none is known."""
        found = self.exponents.get(reference)
        return found.value if found else 0.0


class Speed(Record):
    """The machine's speed in the calibration, and what it does to times."""

    references: list[References] = Field(default_factory=list, description="by number of ranks")
    laws: list[SpeedLaw] = Field(default_factory=list, description="of compute and of messages")

    def of_ranks(self, ranks: int) -> References | None:
        """The references of launches of so many ranks."""
        return next((each for each in self.references if each.ranks == ranks), None)

    def variation(self, ranks: int) -> float:
        """By which factor the machine's speed changes; of ranks not measured that of the nearest."""
        factors = {each.ranks: each.variation for each in self.references}
        return nearest(factors, ranks)

    def slowdown(self, looks: Sequence[Look], ranks: int, sent: float = 0.0) -> Estimate | None:
        """How many times as long the same work takes as when it was calibrated.

        Parameters
        ----------
        looks
            At the machine while the work was done.
        ranks
            That did it.
        sent
            Share of its time that is messages.

        Returns
        -------
        Estimate
            A ratio with its 95% interval, by the references alone: what waited for a core is not in
            it. None without laws, without FEWEST_LOOKS, or without references of so many ranks.
        """
        of = self.of_ranks(ranks)
        if of is None or not self.laws or len(looks) < FEWEST_LOOKS:
            return None
        shifts: dict[Reference, tuple[float, float]] = {}
        for name in REFERENCES:
            if (shift := _shift(of, looks, name)) is not None:
                shifts[name] = shift
        if not shifts:
            return None
        shares: dict[SpeedOf, float] = {"compute": 1.0 - sent, "messages": sent}
        value = variance = 0.0
        for name, (off, error) in shifts.items():
            followed = 0.0
            for law in self.laws:
                if (exponent := law.exponents.get(name)) is not None:
                    followed += shares[law.of] * exponent.value
                    wide = (exponent.high - exponent.low) / 2 / Z
                    variance += (shares[law.of] * wide * off) ** 2
            value += followed * off
            variance += (followed * error) ** 2
        half = Z * math.sqrt(variance)
        return Estimate.around(math.exp(value), math.exp(value - half), math.exp(value + half))


def nearest(known: Mapping[int, float], ranks: int) -> float:
    """The factor of the number of ranks nearest in ratio, of two the smaller; 1 where none is known."""
    of = min(known, key=lambda each: (abs(math.log(each / ranks)), each), default=None)
    return 1.0 if of is None else known[of]


def _shift(of: References, looks: Sequence[Look], name: Reference) -> tuple[float, float] | None:
    """Logarithm of a reference's time over the calibrated one, and its standard error."""
    usual = of.seconds.get(name)
    times = [seconds for look in looks if (seconds := getattr(look, name))]
    if usual is None or len(times) < FEWEST_LOOKS or usual.low <= 0:
        return None
    logs = [math.log(seconds) for seconds in times]
    known = math.log(usual.high / usual.low) / 2 / Z
    mean, error = mean_of(logs)
    return mean - math.log(usual.value), math.hypot(error, known)


def mean_of(logs: Sequence[float]) -> tuple[float, float]:
    """The mean of logarithms in the order of time, and its standard error.

    Of a machine with two speeds the mean is what work takes; looks that follow one another are alike
    (`effective_number`).
    """
    mean = fmean(logs)
    variance = math.fsum((each - mean) ** 2 for each in logs) / max(len(logs) - 1, 1)
    return mean, math.sqrt(variance / max(effective_number(logs), 1))
