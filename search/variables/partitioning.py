"""How many partitions: as measured; else by samples and the law's best (Parallax, section 3.2).

Samples are doubled, then halved, from the number of machines on. The law and its interval:
fitting/estimators/partitions.py; what was measured: fitting/sections/partitions.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from calib.fitting.estimators.partitions import PartitionsLaw, next_partitions
from calib.fitting.parameters.memory import Partitions
from calib.foundation.errors import InputError
from calib.search.request import Devices
from calib.search.variables.models import Variable

FEWEST_TO_FIT = 3  # the law has as many coefficients
ALIKE = 0.1  # shares of touched rows that differ by no more count as equal


@dataclass(frozen=True)
class Sampled:
    """Seconds by number of partitions, in the order of sampling; the law where it can be fitted."""

    times: Mapping[int, float]
    law: PartitionsLaw | None

    @property
    def fastest(self) -> int:
        """The fastest sample; of equal ones that with the fewest partitions."""
        return min(self.times, key=lambda number: (self.times[number], number))

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% interval of the best number; the upper end may be infinite.

        None without a law, and where there are no more samples than coefficients to check it.
        """
        if self.law is None or len(self.times) <= FEWEST_TO_FIT:
            return None
        return self.law.best_low_, self.law.best_high_

    def words(self) -> str:
        """The best number with its interval."""
        if self.law is None:
            return f"{self.fastest}, the fastest of {len(self.times)} samples"
        value = _number(self.law.best_partitions_)
        if self.interval is None:
            return f"{value}, of {len(self.times)} samples that nothing checks"
        return f"{value} [{_number(self.interval[0])} to {_number(self.interval[1])}]"


def _number(partitions: float) -> str:
    return f"{partitions:.0f}" if math.isfinite(partitions) else "any number"


def sample(time: Callable[[int], float], start: int, most: int) -> dict[int, float]:
    """Seconds of an iteration at the numbers of partitions that section 3.2 tries.

    `time` measures (or predicts) one; `start` is the number of machines; more than `most` cannot be.
    """
    seen: dict[int, float] = {}
    found: dict[int, float] = {}
    while (number := next_partitions(seen, min(start, most))) is not None:
        if number > most:
            seen[number] = math.inf
            continue
        seen[number] = found[number] = time(number)
    return found


def fitted(times: Mapping[int, float], seed: int = 0) -> Sampled:
    """The law of the samples. Raises InputError for times that are not positive."""
    if len(times) < FEWEST_TO_FIT:
        return Sampled(times, None)
    law = PartitionsLaw(seed=seed).fit([[float(n)] for n in times], list(times.values()))
    return Sampled(times, law)


def best_of(sampled: Sampled, time: Callable[[int], float], most: int) -> int:
    """The number to take: the law's best where `time` says that it is the fastest, else a sample."""
    candidates = {sampled.fastest}
    if sampled.law is not None and math.isfinite(sampled.law.best_partitions_):
        best = sampled.law.best_partitions_
        candidates |= {min(most, max(1, round(best)))}
    return min(candidates, key=lambda number: (time(number), number))


def measured_law(laws: Sequence[Partitions], of: Variable, devices: Devices) -> Partitions | None:
    """The law of this variable on these devices at the nearest share; None where there is none."""
    alike = [
        law
        for law in laws
        if (law.rows, law.width, law.ranks, law.nodes)
        == (of.rows, of.width, devices.p, devices.nodes)
        and abs(law.share / of.a - 1.0) <= ALIKE
    ]
    return min(alike, key=lambda law: abs(law.share - of.a), default=None)


def measured_words(law: Partitions) -> str:
    """The best number that was measured, its interval, and for what."""
    best, low, high = (
        _number(math.inf if end is None else end)
        for end in (law.best_partitions, law.best_low, law.best_high)
    )
    return f"{best} [{low} to {high}], measured for {law.name}"


def times_of(text: str) -> dict[int, float]:
    """8:0.21,16:0.19 as partitions and seconds. Raises InputError."""
    found: dict[int, float] = {}
    for word in text.split(","):
        number, _, seconds = word.strip().partition(":")
        try:
            value = float(seconds)
        except ValueError:
            value = -1.0
        if not (number.isascii() and number.isdecimal() and len(number) < 10 and int(number) > 0):
            raise InputError(f"times={text}: {number!r} is no number of partitions, 1 or more")
        if not 0 < value < math.inf:
            raise InputError(f"times={text}: {seconds!r} are no seconds")
        found[int(number)] = value
    if len(found) < FEWEST_TO_FIT:
        raise InputError(f"times={text}: {FEWEST_TO_FIT} numbers of partitions at least are needed")
    return found
