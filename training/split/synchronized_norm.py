"""Batch normalisation over the samples and image parts of several ranks (ParaDL section 4.5.2).

Statistics of a rank's own few samples are biased; synchronised ones (Zhang et al. 2018) are those of
serial training. First the mean, then the squared deviations from it: two allreduces in the forward, so
that a mean far from 0 costs no digits. One allreduce in the backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from calib.microbench.communicator import TorchGroup
from calib.training.clock import PhaseClock

NormTensors = tuple[Tensor, Tensor, Tensor, Tensor]


class _Normalize(torch.autograd.Function):
    """x [samples, channels, ...] -> normalised x; mean, biased variance [channels] and count [1].

    Parts may have unequal numbers of values. Gradients of weight and bias are those of this rank's part.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        team: TorchGroup,
        clock: PhaseClock,
    ) -> NormTensors:
        dimensions, shape = [0, *range(2, x.dim())], (-1, *[1] * (x.dim() - 2))
        channels = x.shape[1]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # bfloat16 cannot be summed
        # new_full does not wait for a GPU
        sums = torch.cat([wide.sum(dimensions), wide.new_full((1,), x.numel() // channels)])
        with clock.of("layerwise"):
            team.allreduce(sums)
        count = sums[channels:]
        mean = sums[:channels] / count
        centred = wide - mean.view(shape)
        squares = centred.square().sum(dimensions)
        with clock.of("layerwise"):
            team.allreduce(squares)
        variance = squares / count
        inverse = torch.rsqrt(variance + eps)
        y = centred.mul_((inverse if weight is None else inverse * weight).view(shape))
        if bias is not None:
            y.add_(bias.view(shape))
        ctx.save_for_backward(x, weight, mean, inverse, count)
        ctx.team, ctx.clock = team, clock
        ctx.mark_non_differentiable(mean, variance, count)
        return y.to(x.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, weight, mean, inverse, count = ctx.saved_tensors
        dimensions, shape = [0, *range(2, x.dim())], (-1, *[1] * (x.dim() - 2))
        channels = x.shape[1]
        dy = gradients[0].to(mean.dtype)
        centred = x.to(mean.dtype) - mean.view(shape)
        sums = torch.cat([dy.sum(dimensions), (dy * centred).sum(dimensions)])
        dx = dweight = dbias = None
        if ctx.needs_input_grad[2]:
            dbias = sums[:channels].clone()
        if ctx.needs_input_grad[1]:
            dweight = sums[channels:] * inverse
        if ctx.needs_input_grad[0]:
            with ctx.clock.of("layerwise"):
                ctx.team.allreduce(sums)
            sums /= count
            along = sums[channels:] * inverse.square()
            dx = (dy - sums[:channels].view(shape)).sub_(centred.mul_(along.view(shape)))
            dx.mul_((inverse if weight is None else inverse * weight).view(shape))
            dx = dx.to(x.dtype)
        return dx, dweight, dbias, None, None, None


_normalize: Any = _Normalize.apply  # torch has no types for it


class SynchronizedNorm(_BatchNorm):
    """A batch norm over the batch of a whole team, with the parameters and buffers of `norm`."""

    def __init__(self, norm: _BatchNorm, team: TorchGroup, clock: PhaseClock) -> None:
        super().__init__(
            norm.num_features, norm.eps, norm.momentum, affine=False, track_running_stats=False
        )
        self.affine, self.track_running_stats = norm.affine, norm.track_running_stats
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean, self.running_var = norm.running_mean, norm.running_var
        self.num_batches_tracked = norm.num_batches_tracked
        self.train(norm.training)
        self._team, self._clock = team, clock

    def forward(self, input: Tensor) -> Tensor:
        """As torch's: statistics of the batch in training (or where none run), else the running ones."""
        if not self.training and self.running_mean is not None:
            return super().forward(input)
        found: NormTensors = _normalize(
            input, self.weight, self.bias, self.eps, self._team, self._clock
        )
        y, mean, variance, count = found
        if self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                share = self._share()
                unbiased = variance * (count / (count - 1))
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
        return y

    def _share(self) -> float:
        """The weight of the newest batch in the running statistics; 1/n where momentum is None."""
        batches = self.num_batches_tracked
        if batches is not None:
            batches.add_(1)
        if self.momentum is not None:
            return self.momentum
        return 0.0 if batches is None else 1.0 / float(batches)

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions: the batch norm that this replaces was checked by its model."""


def synchronize(module: nn.Module, team: TorchGroup, clock: PhaseClock) -> None:
    """Replace every batch norm inside `module` (or a LayerProgram) by one over all of `team`.

    Parameters and buffers keep their names and objects. Communication is in phase "layerwise". Gradients
    of weights and biases are of this rank's part, to be combined like those of any other layer. Every
    member must run the same batch norms in the same order.
    """
    made: dict[nn.Module, SynchronizedNorm] = {}  # one module may have several names
    for path, norm in list(module.named_modules(remove_duplicate=False)):
        if path and isinstance(norm, _BatchNorm):
            if norm not in made:
                made[norm] = SynchronizedNorm(norm, team, clock)
            module.set_submodule(path, made[norm])
