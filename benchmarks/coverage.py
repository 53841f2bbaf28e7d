"""How often the 95% intervals of a collective's pieces hold the truth, on sweeps of a known law.

The law is that of the median repetition: with one-sided noise, the noiseless law times the median of the
noise. An interval that says 95% should hold it 90 to 99% of the time. Of two that do, the interval score
(reports/scoring/intervals.py) tells the better one: it grows with the width, and with what is missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.sweeps import (
    BORDERS,
    INTERCEPTS,
    NOISES,
    SLOPES,
    made_law,
    made_sizes,
    median_noise,
    noise,
)
from calib.fitting.estimators.collectives.segmented_hockney import SegmentedHockney
from calib.foundation.arrays import Floats
from calib.reports.scoring.intervals import interval_score

if TYPE_CHECKING:
    from numpy.typing import NDArray


# a size in the middle of each piece of the law, which says which fitted piece is meant
MIDDLES = 2.0 ** np.array([8.5, 17.0, 23.0])


SEEDS = 40  # in a minute


@dataclass(frozen=True)
class Design:
    """One way to measure: sizes, launches, repetitions of each, the noise, how launches differ."""

    sizes: int
    launches: int
    repetitions: int
    noise: str
    between: float = 0.0  # relative standard deviation from launch to launch

    @property
    def name(self) -> str:
        """In words."""
        rows = f"{self.sizes} sizes, {self.launches} x {self.repetitions}"
        apart = f", launches {100 * self.between:.1f}% apart" if self.between else ""
        return f"{rows}, {self.noise}{apart}"


@dataclass(frozen=True)
class Coverage:
    """Shares of intervals that hold the truth: intercepts and slopes [s, 3], the law [s, n].

    Of the law's intervals also the relative half-widths and the interval scores [s, n].
    `borders` [s, 2]: whether the border of the law lies within one step of the grid of a fitted one.
    `pieces` [s] is how many were chosen.
    """

    intercepts: NDArray[np.bool_]
    slopes: NDArray[np.bool_]
    law: NDArray[np.bool_]
    half_widths: Floats
    scores: Floats
    borders: NDArray[np.bool_]
    pieces: NDArray[np.int64]


DESIGNS = tuple(
    Design(sizes, launches, repetitions, kind)
    for kind in NOISES
    for sizes in (24, 47)
    for launches, repetitions in ((3, 20), (1, 20), (1, 1))
) + tuple(Design(24, 3, 20, NOISES[0], between) for between in (0.005, 0.02))


def made_rows(design: Design, seed: int) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """(bytes, seconds, launch) of every repetition [n]."""
    generator = np.random.default_rng([design.sizes, design.launches, design.repetitions, seed])
    m = made_sizes(design.sizes)
    each = design.launches * design.repetitions
    launch = np.tile(np.repeat(np.arange(design.launches), design.repetitions), len(m))
    seconds = np.repeat(made_law(m), each) * noise(generator, len(m) * each, design.noise)
    if design.between:
        seconds *= (1.0 + design.between * generator.standard_normal(design.launches))[launch]
    return np.repeat(m, each), seconds, launch


def coverage_of(design: Design, seeds: int) -> Coverage:
    """Fit the design's rows `seeds` times."""
    typical = median_noise(design.noise)
    m = made_sizes(design.sizes)
    truth = made_law(m) * typical
    step = np.log(m[-1] / m[0]) / (len(m) - 1) * (1 + 1e-9)
    intercepts, slopes, law, borders = [], [], [], []
    half_widths, scores, pieces = [], [], []
    for seed in range(seeds):
        x, y, launch = made_rows(design, seed)
        model = SegmentedHockney(seed=seed).fit(x, y, groups=launch)
        at = np.clip(np.searchsorted(model.from_, MIDDLES, side="right") - 1, 0, None)
        of_intercepts, of_slopes = model.coefficient_intervals()
        intercepts.append(_inside(INTERCEPTS * typical, *of_intercepts[at].T))
        slopes.append(_inside(SLOPES * typical, *of_slopes[at].T))
        low, high = model.predict_interval(m)
        law.append(_inside(truth, low, high))
        half_widths.append((high - low) / (2.0 * model.predict(m)))
        scores.append([interval_score(*of) for of in zip(low, high, truth, strict=True)])
        apart = np.abs(np.log(BORDERS[:, None] / model.borders_[None, :]))
        borders.append((apart <= step).any(axis=1))
        pieces.append(len(model.pieces_))
    return Coverage(
        np.array(intercepts),
        np.array(slopes),
        np.array(law),
        np.array(half_widths),
        np.array(scores),
        np.array(borders),
        np.array(pieces),
    )


def _inside(value: Floats, low: Floats, high: Floats) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] = (low <= value) & (value <= high)
    return result


def coverage(seeds: int = SEEDS) -> list[str]:
    """One row per design: percentages that hold the truth, of three pieces or all sizes together."""
    rows = [
        f"95% intervals that hold the truth, % of {seeds} seeds: intercepts, slopes, the law; of the "
        "law their mean half-width and interval score"
    ]
    for design in DESIGNS:
        found = coverage_of(design, seeds)
        shares = [
            100 * float(np.mean(part)) for part in (found.intercepts, found.slopes, found.law)
        ]
        worst = 100 * float(found.law.mean(axis=0).min())
        rows.append(
            f"{design.name:72s} {shares[0]:5.1f} {shares[1]:5.1f} {shares[2]:5.1f} (worst size "
            f"{worst:.1f}; +-{100 * float(found.half_widths.mean()):.1f}%, score "
            f"{float(found.scores.mean()):.4f}); borders within a step "
            f"{100 * float(found.borders.mean()):.1f}; pieces "
            + ", ".join(f"{k}: {n}" for k, n in enumerate(np.bincount(found.pieces)) if n)
        )
    return rows
