"""What the conformance suite needs to know of an estimator: one known law, and how its numbers scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Example:
    """A law with known parameters.

    `make()` is a new estimator; `x` [n, k] are features whose noiseless seconds are `seconds` [n];
    `truth` maps learned attributes (floats or arrays) to their true values, which `fit` must recover to
    `tolerance` (relative) from noiseless rows; `beyond` [1, k] is a feature row outside x,
    and `below` [1, k] one below its smallest (see `conformance.below`);
    `per_second` maps learned attributes to the power with which they scale when all times are
    multiplied by a constant; `per_feature` the same for column `scaled_column` of x (None: units of the
    features cannot be changed, as those of a count). `seconds_columns` of x are seconds themselves, and
    are multiplied with the times.
    """

    name: str
    make: Callable[[], Any]
    x: Floats
    seconds: Floats
    truth: dict[str, Any]
    beyond: Floats
    per_second: dict[str, float] = field(default_factory=dict)
    per_feature: dict[str, float] = field(default_factory=dict)
    scaled_column: int | None = 0
    seconds_columns: tuple[int, ...] = ()
    tolerance: float = 1e-6
    below: Floats | None = None
    # relative, of the repetitions that the suite makes for the intervals, and of their launches
    noise: float = 0.02
    launch_noise: float = 0.05
