"""NumPy's array types under short names. Apart from other modules, because it imports NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Float32s = NDArray[np.float32]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]
