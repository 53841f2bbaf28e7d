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


class ShardedGradients:
    """Gradients reduced to their owners: rank r has the r-th of p equal parts of all of them.

    The flat buffer ends in up to p - 1 zeros. After `unpack` the average is the gradient of `piece`, and
    the gradients of the parameters are still this rank's own.
    """

    def __init__(self, piece: nn.Parameter, items: int, communicator: TorchGroup) -> None:
        self.piece = piece
        self._communicator = communicator
        self._flat = piece.new_zeros(piece.numel() * communicator.size)
        self._packed = self._flat[:items]
        self._mine = torch.empty_like(piece, requires_grad=False)

    def pack(self, gradients: Sequence[Tensor]) -> None:
        """Copy the gradients into the flat buffer."""
        pack(gradients, self._packed)

    def exchange(self) -> None:
        """Sum over the ranks; each keeps its part."""
        self._communicator.reduce_scatter(self._flat, self._mine)

    def unpack(self, gradients: Sequence[Tensor]) -> None:
        """Average; `gradients` stay as they are."""
        self.piece.grad = self._mine.div_(self._communicator.size)

    def average(self, gradients: Sequence[Tensor]) -> None:
        """For checks, between `unpack` and the update: make `gradients` the averages; collective."""
        self._communicator.allgather(self._mine, self._flat)
        pieces = torch.split(self._packed, [gradient.numel() for gradient in gradients])
        for piece, gradient in zip(pieces, gradients, strict=True):
            gradient.copy_(piece.view_as(gradient))


class ShardedWorker(Worker):
    """Parameters are views of one flat tensor, into which the updated pieces are gathered.

    A rank keeps a second copy of its own piece (1/p of the weights), because a collective may not read
    where it writes.
    """

    def __init__(self, task: Task, held: list[Held]) -> None:
        team = task.teams.world
        parameters = [h.parameter for h in held]
        items = sum(parameter.numel() for parameter in parameters)
        each = -(-items // team.size)
        self._weights = parameters[0].detach().new_zeros(each * team.size)
        pieces = torch.split(self._weights[:items], [p.numel() for p in parameters])
        with torch.no_grad():
            pack(parameters, self._weights[:items])
            for parameter, piece in zip(parameters, pieces, strict=True):
                parameter.data = piece.view(parameter.shape)
        own = self._weights[each * team.rank : each * (team.rank + 1)]
        self._team, self._piece = team, nn.Parameter(own.clone())
        exchange = ShardedGradients(self._piece, items, team)
        super().__init__(task, task.module, held, exchange)

    def make_optimizer(
        self, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    ) -> torch.optim.Optimizer:
        """The optimizer of this rank's piece."""
        return make([self._piece])

    def finish(self) -> None:
        """Gather the updated weights; drop the gradients, which the optimizer does not see."""
        with self.clock.of("exchange"):
            self._team.allgather(self._piece.detach(), self._weights)
        for parameter in self.parameters:
            parameter.grad = None
