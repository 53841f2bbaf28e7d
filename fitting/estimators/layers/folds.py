"""Cross-validation folds: whole layers, and layers larger than all others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.foundation.arrays import Floats, Mask
from calib.foundation.errors import InputError

# up to so many layers each is left out by itself
MOST_SINGLE, FOLDS = 12, 8
LARGEST_SHARE = 0.2
MIN_FOR_LARGEST = 5


@dataclass(frozen=True)
class Folds:
    """(kept, held out) masks of points [d]: `by_layer` holds each out once, `largest` the largest."""

    layers: int
    by_layer: list[tuple[Mask, Mask]]
    largest: list[tuple[Mask, Mask]]


def layers_of_points(points: Floats, x: ArrayLike, layers: ArrayLike | None) -> NDArray[np.int64]:
    """Number of the layer of every point [d], from 0 in the order of the points.

    `layers` [n] names the layer of each row of x [n, k]; a point of several layers is of the first
    in the order of their names. Raises InputError where there are not as many as rows.
    """
    if layers is None:
        return np.arange(len(points))
    rows, names = np.asarray(x, dtype=float), np.asarray(layers)
    if names.shape != (len(rows),):
        raise InputError(f"{names.shape} names of layers for {len(rows)} rows")
    of: dict[bytes, str] = {}
    for row, name in zip(rows, names, strict=True):
        key = row.tobytes()
        of[key] = min(of.get(key, str(name)), str(name))
    numbers: dict[str, int] = {}
    found = [numbers.setdefault(of[point.tobytes()], len(numbers)) for point in points]
    return np.array(found, dtype=np.int64)


def make_folds(points: Floats, layer: NDArray[np.int64]) -> Folds:
    """Folds of points [d, k] of these layers; columns 0 and 1 are operations and bytes."""
    n = int(layer.max()) + 1
    if n < 2:
        return Folds(n, [], [])
    parts = n if n <= MOST_SINGLE else FOLDS
    by_layer = [(layer % parts != part, layer % parts == part) for part in range(parts)]
    largest: list[tuple[Mask, Mask]] = []
    if n >= MIN_FOR_LARGEST:
        for column in (0, 1):
            size = np.zeros(n)
            np.maximum.at(size, layer, points[:, column])
            order = np.argsort(size, kind="stable")
            held = np.isin(layer, order[-max(1, round(LARGEST_SHARE * n)) :])
            if not any((held == other).all() for _, other in largest):
                largest.append((~held, held))
    return Folds(n, by_layer, largest)
