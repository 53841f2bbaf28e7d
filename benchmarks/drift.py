"""False alarms and power of the drift detector, on series whose noise is known.

    python -m benchmarks.drift YEARS [NOISE ...]          false alarms: years of one series per row
    python -m benchmarks.drift STEPS power [NOISE ...]    how soon steps are found

A year of one series is 365 nights. A year of many series has a false alarm where any of them has; they
are made independent, which is the worst case.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import beta

from calib.foundation.arrays import Floats
from calib.reports.drift.detector import watch

if TYPE_CHECKING:
    pass


NIGHTS = 365
COUNTS = (1, 8, 80)
# size of the noise, series, part of the years: the largest noise has the most alarms, because
# changes of under 2% never are any
CELLS = ((0.02, 80, 1.0), (0.02, 8, 0.25), (0.02, 1, 0.25), (0.01, 80, 0.25), (0.003, 80, 0.25))
POWER_SIZES = (0.003, 0.005, 0.0075, 0.01, 0.02)
STEPS = (0.02, 0.03, 0.05, 0.1)
AFTER = (3, 4, 5, 7, 10, 14)
Random = np.random.Generator


def _hanging(generator: Random, n: int, rho: float) -> Floats:
    """An autoregression of order 1 of one standard deviation [n]."""
    shocks = generator.standard_normal(n) * np.sqrt(1 - rho**2)
    x = np.empty(n)
    x[0] = generator.standard_normal()
    for night in range(1, n):
        x[night] = rho * x[night - 1] + shocks[night]
    return x


def _outliers(generator: Random, n: int, size: float) -> Floats:
    out = generator.random(n) < 0.02
    noise: Floats = size * generator.standard_normal(n) + out * generator.choice([-0.3, 0.3], n)
    return noise


def _season(generator: Random, n: int, size: float) -> Floats:
    turn = 2 * np.pi * (np.arange(n) / NIGHTS + generator.random())
    return 0.01 * np.sin(turn) + size * generator.standard_normal(n)


# each: [n] nights of noise of about that standard deviation
NOISES: dict[str, Callable[[Random, int, float], Floats]] = {
    "Gaussian": lambda g, n, size: size * g.standard_normal(n),
    "Laplace": lambda g, n, size: size * g.laplace(size=n) / np.sqrt(2),
    "Student t3": lambda g, n, size: size * g.standard_t(3, n) / np.sqrt(3),
    "slow nights": lambda g, n, size: (
        size * (0.7 * g.standard_normal(n) + 0.7 * g.exponential(size=n))
    ),
    "2% outliers": _outliers,
    "AR 0.3": lambda g, n, size: size * _hanging(g, n, 0.3),
    "AR 0.6": lambda g, n, size: size * _hanging(g, n, 0.6),
    "10% gaps": lambda g, n, size: size * g.standard_normal(n)[g.random(n) >= 0.1],
    "season": _season,
}


def interval(found: int, of: int) -> tuple[float, float]:
    """95% interval of a probability (Clopper and Pearson, Biometrika 26, 1934)."""
    low = float(beta.ppf(0.025, found, of - found + 1)) if found else 0.0
    return low, float(beta.ppf(0.975, found + 1, of - found)) if found < of else 1.0


def false_alarms(kind: str, size: float, count: int, series: int, seed: int = 1) -> int:
    """Of `series` years of one series each, judged as one of `count`: how many have an alarm."""
    generator = np.random.default_rng([seed, round(1e4 * size), count, list(NOISES).index(kind)])
    make = NOISES[kind]
    return sum(bool(watch(make(generator, NIGHTS, size), count).steps) for _ in range(series))


def delays(kind: str, size: float, step: float, count: int, series: int, seed: int = 1) -> Floats:
    """Nights until a step at night 100 is seen (inf: not within 14), and begun where it did."""
    generator = np.random.default_rng([seed, round(1e4 * size), round(1e4 * step), count])
    at, found = 100, np.full(series, np.inf)
    for number in range(series):
        x = NOISES[kind](generator, at + 14, size)
        x[at:] += step
        seen = [s.seen - at + 1 for s in watch(x, count).steps if s.seen >= at and s.change > 0]
        found[number] = seen[0] if seen else np.inf
    return found


def sensitivity(size: float, count: int, series: int = 40) -> float:
    """The median sensitivity after 100 nights of normal noise."""
    generator = np.random.default_rng([7, count])
    found = [watch(size * generator.standard_normal(100), count).sensitivity for _ in range(series)]
    return float(np.median([value for value in found if value is not None]))


def false_alarm_rows(series: int, kinds: Sequence[str] = tuple(NOISES)) -> list[str]:
    """Years of all series together with a false alarm, per 1000, with the 95% interval."""
    rows = ["noise | its size | series | years with an alarm per 1000 (95% interval) | alarms of"]
    for kind in kinds:
        for size, count, part in CELLS:
            years = max(1, round(part * series))
            found = false_alarms(kind, size, count, years)
            of = [1000 * (1 - (1 - p) ** count) for p in (found / years, *interval(found, years))]
            text = f"{of[0]:.1f} [{of[1]:.1f}, {of[2]:.1f}] | {found} of {years}"
            rows.append(f"{kind} | {100 * size:g}% | {count} | {text}")
            print(f"| {rows[-1]} |", file=sys.stderr, flush=True)
    return rows


def power_rows(series: int, kinds: Sequence[str] = ("Gaussian",)) -> list[str]:
    """Share of steps found, % by night."""
    nights = " | ".join(map(str, AFTER))
    rows = [f"noise | series | its size | step | % found by night {nights}"]
    for kind in kinds:
        for count in COUNTS:
            for size in POWER_SIZES:
                for step in STEPS:
                    found = delays(kind, size, step, count, series)
                    shares = " | ".join(f"{100 * np.mean(found <= after):.0f}" for after in AFTER)
                    rows.append(f"{kind} | {count} | {100 * size:g}% | {100 * step:g}% | {shares}")
                    print(f"| {rows[-1]} |", file=sys.stderr, flush=True)
    return rows


def drift(series: int = 20) -> list[str]:
    """A short look, for `make bench`: what would be found, and when a step of 5% is."""
    rows = [f"sensitivity, one of {n} series, 1% noise: {sensitivity(0.01, n):.3f}" for n in COUNTS]
    for size in (0.005, 0.01):
        found = delays("Gaussian", size, 0.05, 8, series)
        share = 100 * float(np.mean(found <= 3))
        rows.append(f"5% steps found by their third night, {100 * size:g}% noise: {share:.0f}%")
    alarms = false_alarms("Gaussian", 0.02, 1, series)
    return [*rows, f"years of one series with a false alarm: {alarms} of {series}"]


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    if "power" in sys.argv[2:]:
        power_rows(number, [word for word in sys.argv[2:] if word != "power"] or ["Gaussian"])
    else:
        false_alarm_rows(number, sys.argv[2:] or tuple(NOISES))
