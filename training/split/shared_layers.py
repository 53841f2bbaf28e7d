"""Layers whose weights a group of ranks shares, by filters or input channels.

filter (ParaDL A.1.4): each rank computes the channels of y of its filters, which are joined (allgather),
and the terms of dL/dx of its filters, which are summed (allreduce). channel (A.1.5): each computes the
terms of y of its channels of x, which are summed (allreduce) before biases are added, and its channels
of dL/dx, which are joined (allgather). All other layers are whole on every rank (section 4.5.2).
calib.oracle.layout.traffic lists what is sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calib.oracle.layout.partitions import Range
from calib.oracle.layout.shards import split_layers
from calib.training.checkpoints import checkpoint_regions
from calib.training.split.moves import Channels, GroupLink, cut, join, narrowed, share, summed
from calib.training.worker import Exchange, Held, Task, Worker, whole_parameters

SharedFunction = Callable[[Tensor, Tensor, Tensor | None], Tensor]
# by spatial dimensions
CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class SplitLayer(nn.Module, ABC):
    """A convolution or fully connected layer with a part of its weights on this rank.

    `ranges`, by a parameter's name in the layer: the part that this rank has; others are whole. Reads
    and returns whole tensors.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, layer: nn.Module, link: GroupLink, needs_input_grad: bool) -> None:
        super().__init__()
        self._needs_input_grad, self._link = needs_input_grad, link
        self._compute, self._is_linear = _compute_of(layer), isinstance(layer, nn.Linear)
        self.channels, self.ranges = self.parts(layer.get_parameter("weight"))
        self.register_parameter("bias", None)
        for name, whole in layer.named_parameters():
            part = Held(name, whole, self.ranges.get(name, ())).cut(whole.detach())
            # always a copy, so that the whole tensor can be freed
            own = nn.Parameter(
                part.clone(memory_format=torch.contiguous_format), whole.requires_grad
            )
            self.register_parameter(name, own)

    def forward(self, x: Tensor) -> Tensor:
        """y of x, (batch, channels, ...); for a fully connected layer also (batch, ..., features)."""
        x = narrowed(x)
        if self._is_linear and x.dim() > 2:
            return self.split(x.flatten(0, -2)).view(*x.shape[:-1], -1)
        return self.split(x)

    @abstractmethod
    def parts(self, weight: Tensor) -> tuple[Channels, dict[str, tuple[Range, ...]]]:
        """The channels that are cut, and `ranges`, given the whole layer's weight."""

    @abstractmethod
    def split(self, x: Tensor) -> Tensor:
        """y of x, both (batch, channels, ...)."""


class FilterLayer(SplitLayer):
    """A range of the filters; biases go with them."""

    def parts(self, weight: Tensor) -> tuple[Channels, dict[str, tuple[Range, ...]]]:
        """Cuts the channels of y."""
        channels = Channels(self._link, weight.shape[0])
        return channels, {"weight": (channels.own,), "bias": (channels.own,)}

    def split(self, x: Tensor) -> Tensor:
        """y is joined; every rank has the terms of dL/dx of its filters."""
        if self._needs_input_grad:
            x = share(x, self._link)
        return join(self._compute(x, self.weight, self.bias), self.channels)


class ChannelLayer(SplitLayer):
    """A range of the input channels; every rank has all biases, which are added to the sum."""

    def parts(self, weight: Tensor) -> tuple[Channels, dict[str, tuple[Range, ...]]]:
        """Cuts the channels of x."""
        channels = Channels(self._link, weight.shape[1])
        return channels, {"weight": ((0, weight.shape[0]), channels.own)}

    def split(self, x: Tensor) -> Tensor:
        """The terms of y are summed; dL/dx is joined."""
        part = cut(x, self.channels) if self._needs_input_grad else self.channels.cut(x)
        y = summed(self._compute(part, self.weight, None), self._link)
        if self.bias is None:
            return y
        return y.add_(self.bias.to(y.dtype).view(-1, *[1] * (y.dim() - 2)))


def make_shared(task: Task, exchange: Callable[[list[Held]], Exchange | None]) -> Worker:
    """The worker of filter, channel or data+filter; `exchange` is made from what a rank holds."""
    division, group = task.division, task.teams.group
    if group is None:
        held = whole_parameters(task.module)
        return Worker(task, task.module, held, exchange(held))
    program = task.program
    make = ChannelLayer if division.traits.cuts == "channels" else FilterLayer
    link = GroupLink(group, task.clock)
    ranges: dict[str, tuple[Range, ...]] = {}
    for layer in split_layers(program.spec, division):
        name = str(program.node_of(layer.name).target)
        part = make(program.graph.get_submodule(name), link, layer.needs_input_grad)
        program.replace_module(layer.name, part)
        of_layer = {f"{name}.{parameter}": of for parameter, of in part.ranges.items()}
        ranges |= {program.names.get(known, known): of for known, of in of_layer.items()}
    program.recompile()
    held = [
        Held(name, parameter, ranges[name], "own") if name in ranges else Held(name, parameter)
        for name, parameter in program.trained()
    ]
    checkpoint_regions(program)
    return Worker(task, program, held, exchange(held))


def _compute_of(layer: nn.Module) -> SharedFunction:
    """The layer as a function of x, weights and biases."""
    if isinstance(layer, nn.Linear):
        return F.linear
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)  # what split_layers splits
    return partial(
        CONVOLUTIONS[len(layer.kernel_size)],
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
    )
