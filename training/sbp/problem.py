"""What a chain of products is given: its input, its weights and the gradient of its output."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Problem:
    """Input, weights and the loss's gradient by the output, whole."""

    x: Array
    weights: list[Array]
    output_gradient: Array


def problem(rows: int, widths: Sequence[int], dtype: str, seed: int) -> Problem:
    """Normal random numbers; `widths` are K of every layer and N of the last."""
    random = np.random.default_rng(seed)

    def matrix(height: int, width: int) -> Array:
        made: Array = (random.standard_normal((height, width)) / np.sqrt(height)).astype(dtype)
        return made

    weights = [matrix(k, n) for k, n in itertools.pairwise(widths)]
    return Problem(matrix(rows, widths[0]), weights, matrix(rows, widths[-1]))
