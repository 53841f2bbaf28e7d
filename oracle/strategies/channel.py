"""Channel: every rank has 1/p of the input channels of each weighted layer but the first.

The first stays whole, as an image has C = 3. The terms are filter's, but the forward sums y (allreduce,
also for the last layer) and the backward joins dL/dx (allgather, except for the first split layer):
formulas.md; ParaDL A.1.5, equations 17 to 19. The measured form joins that dL/dx too, as training does:
the layer before has weights, whose gradients need all of it. Biases are added after the sum, so every
rank has them whole.
"""

from __future__ import annotations

from calib.oracle.strategies.shared_layers import limit, measured, memory, paper

__all__ = ["limit", "measured", "memory", "paper"]
