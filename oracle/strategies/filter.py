"""Filter: every rank has 1/p of the filters of each convolution and fully connected layer.

(B/p) sum_split(FW + BW) + B sum_rest(FW + BW) + sum(WU)/p, and between layers the allgather of y in
the forward (not of the last) and the allreduce of dL/dx in the backward (not of the first):
formulas.md; ParaDL A.1.4, equations 15 and 16. The measured form gathers the last y too, as training
does: the loss needs all logits. BN, ReLU and pooling are replicated and send nothing; so are grouped
convolutions.
"""

from __future__ import annotations

from calib.foundation.division import Division
from calib.oracle.costs.machine import Costs
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.form import PaperCosts
from calib.oracle.projection import Limit
from calib.oracle.strategies import shared_layers
from calib.oracle.terms import Term


def measured(model: ModelSpec, division: Division, costs: Costs) -> list[Term]:
    """Layers with 1/p of their filters, whole layers, joining and summing, split and concat."""
    return shared_layers.measured_terms(model, division, costs)


def paper(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """The formula, with the sums over the layers that really join and reduce."""
    return shared_layers.paper_terms(model, division, costs)


def memory(model: ModelSpec, division: Division, optimizer: str) -> dict[str, int]:
    """Activations whole; 1/p of the weights and biases of layers that are split."""
    return shared_layers.memory(model, division, optimizer)


def limit(model: ModelSpec, division: Division) -> Limit:
    """p <= min F_l over the layers that are split."""
    return shared_layers.width_limit(model, division)
