"""One law of prices per unit of work: t = call + fresh + form(operations, bytes), fitted on log t.

The least squares of prices that cannot be negative (Lawson and Hanson's NNLS) solve each step of a
Gauss-Newton descent: near the prices c, log t(c + d) = log t(c) + A d / t(c), where the law is linear
in the prices but for the form's weights, which are held for a step (the forms are homogeneous of
degree one, so the held law is exact at c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from calib.foundation.arrays import Floats

WorkForm = Literal["sum", "norm2", "max"]
# columns of X, in the order of fitting/parameters/work.py, Work; the call has no column
PRICES = (
    "call_s",
    "s_per_flop",
    "s_per_byte",
    "s_per_weight_byte",
    "s_per_patch_byte",
    "s_per_fresh_byte",
)
CALL, FLOP, FRESH = 0, 1, 5
BYTES = slice(2, 5)
# log errors over this (35%) count by their size, no longer by its square
HUBER = 0.3
STEPS = 60
SMALLEST_STEP = 1e-4


@dataclass(frozen=True)
class Terms:
    """Which prices a law has, as names of PRICES, and its form."""

    prices: tuple[str, ...]
    form: WorkForm = "sum"

    @property
    def free(self) -> NDArray[np.bool_]:
        """Which of PRICES are fitted [6]; the others are 0."""
        return np.array([name in self.prices for name in PRICES])

    @property
    def name(self) -> str:
        """Words of a report: "flop + byte + weight_byte, max"."""
        words = [p.removeprefix("s_per_").removesuffix("_s") for p in self.prices if p != "call_s"]
        return " + ".join(words) + ("" if self.form == "sum" else f", {self.form}")


def with_call(x: Floats) -> Floats:
    """X [n, 5] with the column of the call in front [n, 6]."""
    return np.column_stack([np.ones(len(x)), x])


def seconds(x: Floats, prices: Floats, form: WorkForm) -> Floats:
    """Seconds [n] of rows [n, 6] at prices [6]."""
    operations, moves = prices[FLOP] * x[:, FLOP], x[:, BYTES] @ prices[BYTES]
    rest = prices[CALL] * x[:, CALL] + prices[FRESH] * x[:, FRESH]
    if form == "sum":
        result: Floats = rest + operations + moves
    elif form == "max":
        result = rest + np.maximum(operations, moves)
    else:
        result = rest + np.hypot(operations, moves)
    return result


def held(x: Floats, prices: Floats, form: WorkForm) -> Floats:
    """Rows A [n, 6] with A c = seconds(x, c), linear in the prices near c."""
    if form == "sum":
        return x
    operations, moves = prices[FLOP] * x[:, FLOP], x[:, BYTES] @ prices[BYTES]
    if form == "max":
        on = (operations >= moves).astype(float)
        off = 1.0 - on
    else:
        both = np.maximum(np.hypot(operations, moves), np.finfo(float).tiny)
        on, off = operations / both, moves / both
    result = x.copy()
    result[:, FLOP] *= on
    result[:, BYTES] *= off[:, None]
    return result


def huber(errors: Floats) -> Floats:
    """Huber's loss of log errors; twice the loss is the square of a small one."""
    size = np.abs(errors)
    squared = np.minimum(size, HUBER)
    result: Floats = squared * (size - 0.5 * squared)
    return result


def solve(
    x: Floats,
    t: Floats,
    weight: Floats,
    terms: Terms,
    start: Floats | None = None,
    steps: int = STEPS,
    of_sum: Floats | None = None,
) -> Floats:
    """Prices [6] >= 0 of the least weighted Huber loss of log t; rows x [n, 6], t [n] > 0.

    Without a `start` the descent begins twice: at the prices of a sum (`of_sum`, where they are known),
    and at the highest prices of which each alone is too long for no row (the roofs).
    """
    free = terms.free
    scale = np.where(free, (x / t[:, None]).max(axis=0), 0.0)
    free &= scale > 0
    scale[~free] = 1.0
    scaled = np.where(free, x / scale, 0.0)
    if start is not None:
        return _descend(scaled, t, weight, terms.form, start * scale, steps)[0] / scale
    if of_sum is None:
        plain, _ = nnls(scaled / t[:, None], np.ones(len(t)))
        sum_prices, _ = _descend(scaled, t, weight, "sum", _positive(plain, free), steps)
    else:
        sum_prices = of_sum * scale
    if terms.form == "sum":
        return sum_prices / scale
    starts = [_positive(sum_prices, free), np.where(free, 0.5, 0.0)]
    tries = [_descend(scaled, t, weight, terms.form, prices, steps) for prices in starts]
    best = min(tries, key=lambda found: found[1])
    return best[0] / scale


def _positive(prices: Floats, free: NDArray[np.bool_]) -> Floats:
    """Prices off the border: a price of 0 could leave a row without a time."""
    return np.where(free, np.maximum(prices, 1e-3 * max(float(prices.max()), 1e-3)), 0.0)


def _descend(
    x: Floats, t: Floats, weight: Floats, form: WorkForm, prices: Floats, steps: int
) -> tuple[Floats, float]:
    """(prices, loss) at the end of the descent; scaled rows, none of which takes no time at first."""

    def judged(predicted: Floats) -> tuple[Floats, float]:
        """(log errors, loss)."""
        if predicted.min() <= 0:
            return predicted, float("inf")
        errors = np.log(predicted / t)
        return errors, float((weight * huber(errors)).sum())

    predicted = seconds(x, prices, form)
    errors, loss = judged(predicted)
    for _ in range(steps if loss < float("inf") else 0):
        root = np.sqrt(weight * HUBER / np.maximum(np.abs(errors), HUBER))
        rows = held(x, prices, form) / predicted[:, None]
        target, _ = nnls(rows * root[:, None], root * (1.0 - errors))
        step = 1.0
        while step > SMALLEST_STEP:
            candidate = prices + step * (target - prices)
            taken = seconds(x, candidate, form)
            off, found = judged(taken)
            if found < loss:
                break
            step /= 2.0
        else:
            break
        gained, prices, predicted, errors, loss = loss - found, candidate, taken, off, found
        if gained <= 1e-12 * loss:
            break
    return prices, loss
