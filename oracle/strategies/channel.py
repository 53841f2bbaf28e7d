"""Channel: every rank has 1/p of the input channels of each layer from the second weighted one on.

An image has C = 3, so the first stays whole. Times as filter, but y is summed up in the forward
(allreduce, of the last layer too) and dL/dx joined in the backward (allgather, not of the first layer
that is split): formulas.md; ParaDL A.1.5, equations 17 to 19. The measured form joins dL/dx of that one
too, as training does: the layer before it has weights, whose gradients need all of it. Biases are added
after the sum, so every rank has them whole.
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
    """Layers with 1/p of their channels, whole layers, summing and joining, split and concat."""
    return shared_layers.measured_terms(model, division, costs)


def paper(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """The formula, with the sums over the layers that really reduce and join."""
    return shared_layers.paper_terms(model, division, costs)


def memory(model: ModelSpec, division: Division, optimizer: str) -> dict[str, int]:
    """Activations and biases whole; 1/p of the weights of layers that are split."""
    return shared_layers.memory(model, division, optimizer)


def limit(model: ModelSpec, division: Division) -> Limit:
    """p <= min C_l over the layers that are split."""
    return shared_layers.width_limit(model, division)
