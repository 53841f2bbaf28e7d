"""What an iteration's exchange of gradients takes by logs of allreduce: a message per tensor.

Horovod sends a gradient when it is ready, about one in a cycle of 1 ms, so gradients are not fused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.scaling import shape_of_fit
from calib.foundation.collectives import Operation
from calib.foundation.layers import ITEM_BYTES
from calib.oracle.cost import total
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.layout.traffic import Message
from calib.oracle.model.spec import ModelSpec
from calib.oracle.projection import PhaseTime

ALLREDUCE: Operation = "allreduce"
# without a log of one node: of what two nodes take, between a ninth and all
INSIDE_SHARE, INSIDE_FACTOR = 1 / 3, 3.0

ExchangeTime = Callable[[int], PhaseTime]  # p -> of an iteration


def without_outlying(parameters: Parameters) -> tuple[Parameters, list[str]]:
    """The parameters without logs of allreduce that the others contradict, and a sentence on each.

    A training was no part of the log's run: what disturbed one need not have disturbed the other.
    """
    outlying = {
        (law.library, law.device, law.level, each.shape)
        for law in parameters.structural
        if law.operation == ALLREDUCE
        for each in law.layouts
        if each.outlying
    }
    words = [
        f"{words}, nor an exchange on its own"
        for law in parameters.structural
        if law.operation == ALLREDUCE
        for words in law.outlying_words
    ]
    fits = [
        fit
        for fit in parameters.collectives
        if fit.operation != ALLREDUCE
        or (fit.library, fit.device, fit.level, shape_of_fit(fit)) not in outlying
    ]
    return parameters.model_copy(update={"collectives": fits}), words


def exchange_of(costs: CollectiveCosts, model: ModelSpec) -> ExchangeTime:
    """Sum over the tensors of weights of their allreduce among p GPUs of neighbouring nodes.

    Where no log is of one node, an exchange inside one takes a third of that on two nodes, 3 times as
    little or as much: the link between nodes, taken for the node's own, would be too slow.
    """
    sizes = Counter(
        ITEM_BYTES * math.prod(shape)
        for layer in model.layers
        for shape in layer.shape.parameter_shapes
    )
    each = costs.levels.ranks_per_node
    inside = costs.law_of(Message(ALLREDUCE, 0, each)) or costs.fit_of(Message(ALLREDUCE, 0, each))

    def exchange(p: int) -> PhaseTime:
        if 1 < p <= each and not inside:
            value = exchange(2 * each).value * INSIDE_SHARE
            low, high = value / INSIDE_FACTOR, value * INSIDE_FACTOR
            return PhaseTime(value=value, low=low, high=high, basis="extrapolated")
        return total(
            costs.time(Message(ALLREDUCE, nbytes, p)).times(count)
            for nbytes, count in sizes.items()
        ).record()

    return exchange
