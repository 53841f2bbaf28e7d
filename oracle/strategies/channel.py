"""Channel: every rank has 1/p of the input channels of each layer from the second weighted one on.

An image has C = 3, so the first stays whole. Times as filter, but y is summed up in the forward
(allreduce, of the last layer too) and dL/dx joined in the backward (allgather, not of the first layer
that is split): formulas.md; ParaDL A.1.5, equations 17 to 19. The measured form joins dL/dx of that one
too, as training does: the layer before it has weights, whose gradients need all of it. Biases are added
after the sum, so every rank has them whole.
"""

from __future__ import annotations

from calib.oracle.strategies.shared_layers import limit, measured, memory, paper

__all__ = ["limit", "measured", "memory", "paper"]
