"""Fully sharded data parallelism: every rank has a shard of weights, gradients and optimizer state.

A unit (oracle/layout/units.py) is gathered when one of its modules begins, in the forward or the
backward, into a buffer that all units but the root's share: the one before is thereby freed. When the
backward has made a unit's last gradient, they are reduce-scattered. Collectives are waited for, so that
each is in its own phase. What a shard is: 1/p of the unit's flat weights, filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from calib.microbench.tensors import pack, unpack
from calib.oracle.layout.units import ROOT, units_of
from calib.training.clock import GRADIENTS
from calib.training.gradients.sharded import MemoryOrder, flattened
from calib.training.split.synchronized_norm import synchronize
from calib.training.worker import Held, Task, Worker, whole_parameters


def make(task: Task) -> Worker:
    """The module with hooks; on one rank nothing is sharded, and it is serial training."""
    held, team = whole_parameters(task.module), task.teams.world
    if team.size == 1:
        return Worker(task, task.module, held)
    if task.options.synchronized_batch_norm:
        synchronize(task.module, team, task.clock)
    return FullyShardedWorker(task, held)


class UnitShard:
    """A unit's `shard` on rank `rank` of `ranks`, and its average `gradient`.

    `missing` counts the gradients that the backward has still to make.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], rank: int, ranks: int) -> None:
        self.parameters = parameters
        self.orders = [MemoryOrder(parameter) for parameter in parameters]
        items = sum(order.items for order in self.orders)
        each = -(-items // ranks)
        self._padding = parameters[0].detach().new_zeros(each * ranks - items)
        self.size, self.missing = each * ranks, len(parameters)
        whole = self._padding.new_empty(self.size)
        self.packed([parameter.detach() for parameter in parameters], whole)
        self.shard = nn.Parameter(whole[each * rank : each * (rank + 1)].clone())
        self.gradient = torch.zeros_like(self.shard, requires_grad=False)

    def packed(self, tensors: Sequence[Tensor], buffer: Tensor) -> Tensor:
        """Weights or gradients one behind the other, in the first items of a buffer."""
        flat = buffer[: self.size]
        pack([*flattened(self.orders, tensors), self._padding], flat)
        return flat

    def views(self, buffer: Tensor) -> list[Tensor]:
        """The weights or gradients in a buffer that was packed or gathered."""
        sizes = [*(order.items for order in self.orders), len(self._padding)]
        pieces = torch.split(buffer[: self.size], sizes)
        return [of.shaped(piece) for of, piece in zip(self.orders, pieces, strict=False)]

    def place(self, buffer: Tensor) -> None:
        """Let the parameters be views of the first items of a buffer."""
        self.whole = buffer[: self.size]
        for parameter, view in zip(self.parameters, self.views(buffer), strict=True):
            parameter.data = view


class FullyShardedWorker(Worker):
    """Gathers units before they run and reduces their gradients, by hooks of modules and parameters."""

    def __init__(self, task: Task, held: list[Held]) -> None:
        self._team = team = task.teams.world
        unit_of = _unit_of(task.module, {of.parameter for of in held})
        members: dict[str, list[nn.Parameter]] = {}
        for of in held:
            members.setdefault(unit_of[of.parameter], []).append(of.parameter)
        self.units = {
            name: UnitShard(parameters, team.rank, team.size)
            for name, parameters in members.items()
        }
        self._root = self.units.get(ROOT)
        self._gathered: UnitShard | None = None  # in the shared buffer
        empty = held[0].parameter.detach().new_empty
        inner = [unit for unit in self.units.values() if unit is not self._root]
        shared = empty(max((unit.size for unit in inner), default=0))
        for unit in self.units.values():
            unit.place(empty(unit.size) if unit is self._root else shared)
        largest = max(unit.size for unit in self.units.values())
        self._flat, self._received = empty(largest), empty(largest // team.size)
        self._handles = [*self._module_hooks(task.module, unit_of), *self._gradient_hooks()]
        super().__init__(task, task.module, held)

    def _module_hooks(
        self, module: nn.Module, unit_of: dict[nn.Parameter, str]
    ) -> list[torch.utils.hooks.RemovableHandle]:
        """Every module with weights of its own, of another unit than the root, asks for its unit."""
        handles = []
        for part in module.modules():
            names = {unit_of[p] for p in part.parameters(recurse=False) if p in unit_of}
            for name in names - {ROOT}:
                # what torch.compile compiles ends at them: they change the weights
                gather = not_compiled(partial(self._need, self.units[name]))
                before = not_compiled(partial(_before_backward, gather))
                handles.append(part.register_forward_pre_hook(gather))
                handles.append(part.register_forward_hook(before))
        return handles

    def _gradient_hooks(self) -> list[torch.utils.hooks.RemovableHandle]:
        return [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._arrived, unit)
            )
            for unit in self.units.values()
            for parameter in unit.parameters
        ]

    def _need(self, unit: UnitShard, *_: Any) -> None:
        if self._gathered is not unit:
            self.gather(unit)
            self._gathered = unit

    def gather(self, unit: UnitShard) -> None:
        """Its weights in its buffer; collective."""
        with self.clock.of("layerwise"):
            self._team.allgather(unit.shard.detach(), unit.whole)

    def _arrived(self, unit: UnitShard, _: Tensor) -> None:
        unit.missing -= 1
        if not unit.missing:
            self._reduce(unit)

    def _reduce(self, unit: UnitShard) -> None:
        """The average of a unit's gradients, of which every rank keeps its part."""
        before = self.clock.switch(GRADIENTS)
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in unit.parameters]
        flat = unit.packed(found, self._flat)
        for parameter in unit.parameters:
            parameter.grad = None
        del found
        self.clock.switch("layerwise")
        received = self._received[: len(unit.gradient)]
        self._team.reduce_scatter(flat, received)
        self.clock.switch("unpack")
        unpack(received, [unit.gradient], self._team.size)
        unit.shard.grad = unit.gradient
        self.clock.switch(before)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """As Worker's. The root is gathered until the backward ends; other units again for theirs."""
        for unit in self.units.values():
            unit.missing = len(unit.parameters)
        if self._root is not None:
            self.gather(self._root)
        loss = super().forward(inputs, targets)
        self._gathered = None
        return loss

    def compute(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """As Worker's; gradients are reduced, those of weights that were not used too."""
        loss = super().compute(inputs, targets)
        for unit in self.units.values():
            if unit.missing:
                self._reduce(unit)
        self._gathered = None  # its weights are updated
        return loss

    def average_gradients(self) -> None:
        """Gather the averages; collective."""
        for unit in self.units.values():
            whole = self._flat[: unit.size]
            self._team.allgather(unit.gradient, whole)
            for parameter, view in zip(unit.parameters, unit.views(whole), strict=True):
                parameter.grad = view.clone()

    def make_optimizer(
        self, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    ) -> torch.optim.Optimizer:
        """The optimizer of this rank's shards."""
        return make([unit.shard for unit in self.units.values()])

    def close(self) -> None:
        """Remove the hooks, which refer to this worker."""
        super().close()
        for handle in self._handles:
            handle.remove()


def not_compiled(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook that torch.compile calls, and does not look into."""
    found: Callable[..., None] = torch.compiler.disable(partial(hook))  # type: ignore[no-untyped-call]
    return found


def _unit_of(module: nn.Module, trained: set[nn.Parameter]) -> dict[nn.Parameter, str]:
    """The unit of each trained parameter; the root's where modules of several units share it."""
    paths = {
        path: own
        for path, part in module.named_modules(remove_duplicate=False)
        if (own := trained & set(part.parameters(recurse=False)))
    }
    names = units_of(paths)
    found: dict[nn.Parameter, str] = {}
    for path, own in paths.items():
        for parameter in own:
            name = found.setdefault(parameter, names[path])
            found[parameter] = name if name == names[path] else ROOT
    return found


def _before_backward(
    gather: Callable[..., None], _module: nn.Module, _inputs: Any, output: Any
) -> None:
    """Gather before the nodes of a module's outputs run backward."""
    for tensor in tree_leaves(output):
        if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
            tensor.grad_fn.register_prehook(gather)
