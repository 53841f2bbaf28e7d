"""The chain on one rank: what every strategy's result must be."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Result:
    """Output [M, N], gradient of the input [M, K], gradients of all weights [K, N]."""

    output: Array
    input_gradient: Array
    weight_gradients: list[Array]


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


def run(given: Problem) -> Result:
    """Forward and backward of ReLU between products."""
    inputs, product = [given.x], given.x @ given.weights[0]
    for weight in given.weights[1:]:
        inputs.append(np.maximum(product, 0))
        product = inputs[-1] @ weight
    gradient, gradients = given.output_gradient, []
    for x, weight in zip(reversed(inputs), reversed(given.weights), strict=True):
        gradients.append(x.T @ gradient)
        gradient = gradient @ weight.T
        if x is not given.x:
            gradient = gradient * (x > 0)
    return Result(product, gradient, gradients[::-1])
