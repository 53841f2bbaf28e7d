"""Data parallelism with a sharded optimizer: each rank updates 1/p of the weights.

Gradients are reduce-scattered, each rank updates its piece of one flat copy of all weights, and
the pieces are gathered (Xu et al., arXiv:2004.13336; ZeRO's first stage). SGD, momentum and Adam
treat every weight alike, so that the weights are those of the unsharded optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from calib.microbench.communicator import TorchGroup
from calib.microbench.tensors import pack
from calib.training.worker import Held, Task, Worker


class MemoryOrder:
    """A parameter's items in the order of its memory, which is not that of its dimensions where channels
    come last: flat weights must lie as they do in the tensors that are views of them.
    """

    def __init__(self, parameter: Tensor) -> None:
        self.items = parameter.numel()
        self._order = sorted(range(parameter.dim()), key=parameter.stride, reverse=True)
        self._shape = [parameter.shape[d] for d in self._order]
        self._back = [self._order.index(d) for d in range(parameter.dim())]

    def flat(self, tensor: Tensor) -> Tensor:
        """The parameter, or its gradient (which autograd lays out alike), in one dimension: a view."""
        return tensor.permute(self._order).reshape(-1)

    def shaped(self, flat: Tensor) -> Tensor:
        """The inverse: a view of the parameter's shape and strides."""
        return flat.view(self._shape).permute(self._back)


class ShardedGradients:
    """Gradients reduced to their owners: rank r has the r-th of p equal parts of all of them.

    The flat buffer ends in up to p - 1 zeros. After `unpack` the average is the gradient of `piece`, and
    the gradients of the parameters are still this rank's own.
    """

    def __init__(
        self, piece: nn.Parameter, orders: Sequence[MemoryOrder], communicator: TorchGroup
    ) -> None:
        self.piece, self._orders = piece, orders
        self._communicator = communicator
        self._flat = piece.new_zeros(piece.numel() * communicator.size)
        self._packed = self._flat[: sum(order.items for order in orders)]
        self._mine = torch.empty_like(piece, requires_grad=False)

    def pack(self, gradients: Sequence[Tensor]) -> None:
        """Copy the gradients into the flat buffer."""
        pack(flattened(self._orders, gradients), self._packed)

    def exchange(self) -> None:
        """Sum over the ranks; each keeps its part."""
        self._communicator.reduce_scatter(self._flat, self._mine)

    def unpack(self, gradients: Sequence[Tensor]) -> None:
        """Average; `gradients` stay as they are."""
        self.piece.grad = self._mine.div_(self._communicator.size)

    def average(self, gradients: Sequence[Tensor]) -> None:
        """For checks, between `unpack` and the update: make `gradients` the averages; collective."""
        self._communicator.allgather(self._mine, self._flat)
        pieces = torch.split(self._packed, [order.items for order in self._orders])
        for piece, order, gradient in zip(pieces, self._orders, gradients, strict=True):
            gradient.copy_(order.shaped(piece))


def flattened(orders: Sequence[MemoryOrder], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Every tensor in its parameter's order, in one dimension."""
    return [order.flat(tensor) for order, tensor in zip(orders, tensors, strict=True)]


class ShardedWorker(Worker):
    """Parameters are views of one flat tensor, into which the updated pieces are gathered.

    A rank keeps a second copy of its own piece (1/p of the weights), because a collective may not read
    where it writes.
    """

    def __init__(self, task: Task, held: list[Held]) -> None:
        team = task.teams.world
        parameters = [h.parameter for h in held]
        orders = [MemoryOrder(parameter) for parameter in parameters]
        items = sum(order.items for order in orders)
        each = -(-items // team.size)
        self._weights = parameters[0].detach().new_zeros(each * team.size)
        pieces = torch.split(self._weights[:items], [order.items for order in orders])
        with torch.no_grad():
            pack(flattened(orders, parameters), self._weights[:items])
            for parameter, order, piece in zip(parameters, orders, pieces, strict=True):
                parameter.data = order.shaped(piece)
        own = self._weights[each * team.rank : each * (team.rank + 1)]
        self._team, self._piece = team, nn.Parameter(own.clone())
        self._gradients = ShardedGradients(self._piece, orders, team)
        super().__init__(task, task.module, held, self._gradients)

    def make_optimizer(
        self, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    ) -> torch.optim.Optimizer:
        """The optimizer of this rank's piece."""
        return make([self._piece])

    def average_gradients(self) -> None:
        """Gather the averages; collective."""
        self._gradients.average([p.grad for p in self.parameters if p.grad is not None])

    def finish(self) -> None:
        """Gather the updated weights; drop the gradients, which the optimizer does not see."""
        with self.clock.of("exchange"):
            self._team.allgather(self._piece.detach(), self._weights)
        for parameter in self.parameters:
            parameter.grad = None
