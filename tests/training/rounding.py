"""How far a float32 training may be from the exact one: a bound made of the lengths of its sums.

Locally: of a sum of n products each partial sum s_k is rounded, by at most u |s_k|, u = 2^-24, so that
the worst is gamma_n sum |a_i b_i|, gamma_n = n u / (1 - n u), in whatever order it is summed (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., eq. 3.4). Roundings go up and down, and add up
to about sqrt(n) u max |s_k| (Higham and Mary 2019, theorem 2.4, with lambda = 1), where a partial sum
stays within |s_n| + 2 sqrt(sum (a_i b_i)^2): the way to the end, and two standard deviations of a walk.
A convolution and a fully connected layer are such sums in the forward (n = fan in + 1), in dL/dx
(n = filters x kernel) and in dL/dw (n = samples x positions); so is a pooling that averages. Batch
normalisation is two means over n = samples x positions and some products with them, in the backward two
more. What is elementwise beside them (a shortcut's sum, a division by p, a partial sum of another rank)
is a few roundings more: EXTRA u.

Through the network: the same training runs in float64 with every such sum made wrong by its whole local
bound, up or down as is drawn for each item (Monte Carlo arithmetic: Parker 1997), forward, backward and
update, for all iterations. The worst of all directions would bound nothing: sum |w| |x| is about 17
times |sum w x| at a fan in of 288, and there are 16 layers. Drawn ones add up as rounding does, and a
ReLU or a maximum that rounding can tip over is tipped here too. The bound is WIDER times the farthest of
DRAWN trainings, tensor by tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from tests.helpers.norms import norms_of
from torch import Tensor, nn
from torch.func import functional_call

from calib.training.layer_program import LayerProgram

UNIT = 2.0**-24  # u of float32
EXTRA = 2
DRAWN, WIDER = 2, 2.0


def rounding(n: float) -> float:
    """The relative error of a sum of n products, with EXTRA roundings around it."""
    return (math.sqrt(n) + EXTRA) * UNIT


class Noise:
    """Directions, from a seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def off(self, value: Tensor, n: float, magnitude: Tensor) -> Tensor:
        """`value` wrong by rounding(n) times `magnitude`, up or down item by item."""
        signs = torch.randint(0, 2, value.shape, generator=self._generator).mul_(2).sub_(1)
        return value + rounding(n) * magnitude * signs


def _backward(call: Callable[..., Tensor], tensors: list[Tensor], dy: Tensor) -> list[Tensor]:
    """What `call`, linear in each of `tensors`, gives back for dy."""
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        return list(torch.autograd.grad(call(*leaves), leaves, dy))


def _walk(exact: Tensor, squares: Tensor) -> Tensor:
    """How far the partial sums of `exact` go, of which `squares` are the sums of the squared terms."""
    return exact.abs() + 2.0 * squares.sqrt()


class _Linear(torch.autograd.Function):
    """A layer that is linear in its input and in each of its parameters."""

    @staticmethod
    def forward(ctx: Any, layer: RoundedLayer, *tensors: Tensor) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(*tensors)
        y = layer.call(*tensors)
        squares = layer.squared(*(tensor.square() for tensor in tensors))
        return layer.noise.off(y, layer.lengths(tensors)[0], _walk(y, squares))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (dy,), layer, tensors = gradients, ctx.layer, list(ctx.saved_tensors)
        exact = _backward(layer.call, tensors, dy)
        squares = _backward(layer.squared, [tensor.square() for tensor in tensors], dy.square())
        walks = map(_walk, exact, squares)
        return None, *map(layer.noise.off, exact, layer.lengths(tensors)[1:], walks)


class RoundedLayer(nn.Module):
    """A convolution, a fully connected layer or a pooling that averages, wrong by its local bound."""

    def __init__(self, layer: nn.Module, noise: Noise) -> None:
        super().__init__()
        self._layer, self.noise = (
            [layer],
            noise,
        )  # in a list: no child, whose weights had other names
        self._names = [name for name, _ in layer.named_parameters()]
        for name, parameter in layer.named_parameters():
            self.register_parameter(name, parameter)
        self._lengths: list[float] = []

    def call(self, x: Tensor, *parameters: Tensor) -> Tensor:
        """The layer with these weights."""
        found: Tensor = functional_call(
            self._layer[0], dict(zip(self._names, parameters, strict=True)), (x,)
        )
        return found

    def squared(self, *tensors: Tensor) -> Tensor:
        """Of squared tensors, the sums of the squared terms; an average has weights 1/n."""
        n = 1.0 if self._names else self.lengths(tensors)[0]
        return self.call(*tensors) / n

    def lengths(self, tensors: Any) -> list[float]:
        """Terms of the longest sum of y, then of the gradient of each tensor: y of nothing but ones."""
        if not self._lengths:
            ones = [torch.ones_like(tensor) for tensor in tensors]
            y = self.call(*ones)
            if not self._names:  # an average has weights 1/n
                n = ones[0].numel() / y.numel()
                kernel: Any = getattr(self._layer[0], "kernel_size", 1)
                sides = kernel if isinstance(kernel, tuple) else (kernel,) * (y.dim() - 2)
                self._lengths = [max(n, math.prod(sides))] * 2
            else:
                back = _backward(self.call, ones, torch.ones_like(y))
                self._lengths = [float(tensor.max()) for tensor in (y, *back)]
        return self._lengths

    def forward(self, x: Tensor) -> Tensor:
        """As the layer's."""
        rounded: Any = _Linear.apply
        y: Tensor = rounded(self, x, *(getattr(self, name) for name in self._names))
        return y


class _Norm(torch.autograd.Function):
    """Batch normalisation of (samples, channels, ...); also the mean and the unbiased variance."""

    @staticmethod
    def forward(ctx: Any, noise: Noise, eps: float, x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        over, wide = [0, *range(2, x.dim())], (-1, *[1] * (x.dim() - 2))
        n = x.numel() // x.shape[1]
        mean = x.mean(over)
        mean = noise.off(mean, n, _walk(mean, x.square().mean(over) / n))
        variance = (x - mean.view(wide)).square().mean(over)
        variance = noise.off(variance, n, variance + mean.square() * rounding(n))
        inverse = torch.rsqrt(variance + eps).view(wide)
        normal, g = (x - mean.view(wide)) * inverse, weight.view(wide)
        size = (x.abs() + mean.abs().view(wide)) * inverse
        y = noise.off(normal * g + bias.view(wide), 0, size * g.abs() + bias.abs().view(wide))
        ctx.noise, ctx.over, ctx.n = noise, over, n
        ctx.save_for_backward(normal, size, g * inverse)
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance * n / (n - 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        dy, noise, over, n = gradients[0], ctx.noise, ctx.over, ctx.n
        normal, size, factor = ctx.saved_tensors
        dbias, dweight = dy.sum(over), (dy * normal).sum(over)
        dbias = noise.off(dbias, n, _walk(dbias, dy.square().sum(over)))
        dweight = noise.off(dweight, n, _walk(dweight, (dy * size).square().sum(over)))
        wide = (-1, *[1] * (dy.dim() - 2))
        means = (dbias / n).view(wide), (dweight / n).view(wide)
        dx = factor * (dy - means[0] - normal * means[1])
        far = dy.abs() + means[0].abs() + size * means[1].abs()
        return None, None, noise.off(dx, 0, factor.abs() * far), dweight, dbias


def _normalize(noise: Noise) -> Callable[..., Tensor]:
    """F.batch_norm in training, wrong by its local bound."""

    def normalize(
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        weight: Tensor,
        bias: Tensor,
        train: bool,
        momentum: float,
        eps: float,
    ) -> Tensor:
        apply: Any = _Norm.apply
        y, found, unbiased = apply(noise, eps, x, weight, bias)
        mean.lerp_(found, momentum)
        variance.lerp_(unbiased, momentum)
        result: Tensor = y
        return result

    return normalize


class _Loss(torch.autograd.Function):
    """A loss whose value and gradient are wrong by a few roundings of their terms."""

    @staticmethod
    def forward(
        ctx: Any, noise: Noise, loss: nn.Module, outputs: Tensor, targets: Tensor
    ) -> Tensor:
        (found,) = _backward(lambda z: loss(z, targets), [outputs], torch.ones(()).double())
        n, largest = outputs.numel(), outputs.abs().max()
        if targets.is_floating_point():
            size = 2.0 * (outputs.abs() + targets.abs()) / n
            height = (outputs.abs() + targets.abs()).square().mean()
        else:  # softmax - 1 of the target's class; exp of z has the error of z
            one = F.one_hot(targets, outputs.shape[1]) / len(targets)
            size, height = (found + 2.0 * one) * (1.0 + 2.0 * largest), 1.0 + 2.0 * largest
        ctx.save_for_backward(noise.off(found, outputs.shape[1], size))
        return noise.off(loss(outputs, targets), n, height)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None, ctx.saved_tensors[0] * gradients[0], None


def round_program(program: LayerProgram, noise: Noise) -> None:
    """Make every sum of a serial float64 program, its norms defined, wrong by its local bound."""
    for layer in program.spec.layers:
        if layer.shape.kind in ("conv", "linear", "avg_pool", "adaptive_avg_pool"):
            module = program.graph.get_submodule(str(program.node_of(layer.name).target))
            program.replace_module(layer.name, RoundedLayer(module, noise))
    for _, norm in norms_of(program):
        norm.normalize = _normalize(noise)
    program.recompile()


def rounded_loss(loss: nn.Module, noise: Noise) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss, wrong by its local bound."""
    apply: Any = _Loss.apply
    return lambda outputs, targets: apply(noise, loss, outputs, targets)


def round_weights(parameters: list[nn.Parameter], noise: Noise) -> None:
    """After an update: each weight is rounded."""
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(noise.off(parameter, 0, parameter.abs()))
