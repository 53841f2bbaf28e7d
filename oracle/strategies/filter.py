"""Filter: every rank has 1/p of the filters of each convolution and fully connected layer.

(B/p) sum_split(FW + BW) + B sum_rest(FW + BW) + sum(WU)/p, and between layers the allgather of y in
the forward (except the last) and the allreduce of dL/dx in the backward (except the first):
formulas.md; ParaDL A.1.4, equations 15 and 16. The measured form gathers the last y too, as training
does: the loss needs all logits. BN, ReLU, pooling and grouped convolutions are replicated and send
nothing.
"""

from __future__ import annotations

from calib.oracle.strategies.shared_layers import limit, measured, memory, paper

__all__ = ["limit", "measured", "memory", "paper"]
