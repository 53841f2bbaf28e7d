"""Modules as nobody here writes them, that PyTorch runs all the same."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Adapted(nn.Module):
    """A frozen table, layer and norm under a trained adapter of low rank, tied to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.base, self.norm = nn.Embedding(30, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        for part in (self.words, self.base, self.norm):
            part.requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        made: Tensor = self.head(self.norm(self.base(x) + self.up(self.down(x))))
        return made


class FrozenStem(nn.Module):
    """A convolution and a batch norm that are not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).requires_grad_(False)
        self.head = nn.Linear(4 * 36, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.stem(x).relu().flatten(1))
        return made


class Empty(nn.Module):
    """Rotates all channels of a head: none are left to pass on."""

    def __init__(self, rotated: int = 8) -> None:
        super().__init__()
        self.layer, self.head, self.rotated = nn.Linear(8, 8), nn.Linear(8, 5), rotated

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        turned, passed = x[..., : self.rotated], x[..., self.rotated :]
        made: Tensor = self.head(torch.cat((turned.sin(), passed), dim=-1))
        return made


class Bag(nn.Module):
    """Sums of rows: one of the four results of its operator is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(20, 8, mode="sum"), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.bag(x))
        return made


class Spectrum(nn.Module):
    """Weights that are read as complex numbers, and a mean over all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(1, 4), nn.Linear(4, 5)
        self.filters = nn.Parameter(torch.randn(4, 4, 5, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x[..., None]).transpose(1, 2)
        found = torch.einsum("bif,iof->bof", torch.fft.rfft(x), torch.view_as_complex(self.filters))
        made: Tensor = self.head(torch.fft.irfft(found, n=8).amax(-1) * x.mean())
        return made


class OneHot(nn.Module):
    """Integers that no table looks up."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4 * 6, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(F.one_hot(x, 6).float().flatten(1))
        return made


class Faked(nn.Module):
    """Quantized in training: an operator that has no kernel without data."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.fake_quantize_per_tensor_affine(self.head(x), 0.1, 0, -128, 127)


class PlainTensor(nn.Module):
    """A tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.scale = nn.Linear(8, 5), torch.arange(8.0)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(x * self.scale)
        return made


def weight_norm() -> nn.Module:
    """The older function, whose weight is an attribute that is made anew."""
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 5))


def spectral_norm() -> nn.Module:
    """Likewise."""
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 5))


class Named(nn.Module):
    """Returns a dictionary, as torchvision's models of segmentation do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.head(x)}


class Head(nn.Module):
    """A linear layer; the classes below do more in their forward."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(x)
        return made


class _Sign(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


class StraightThrough(Head):
    """A sign whose gradient is that of its output: the graph of its forward has none."""

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = _Sign.apply(self.head(x))
        return made


class Loop(Head):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.head(row) for row in x])


class Chosen(Head):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[x.sum(1) > 0])


class Replaced(Head):
    def forward(self, x: Tensor) -> Tensor:
        self.head.weight = nn.Parameter(self.head.weight * 0.9)
        return super().forward(x)


class SetData(Head):
    def forward(self, x: Tensor) -> Tensor:
        self.head.weight.data = self.head.weight.data / self.head.weight.data.norm()
        return super().forward(x)


class Force(nn.Module):
    """A gradient in the forward, as models of energies have it."""

    def __init__(self) -> None:
        super().__init__()
        self.energy, self.head = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        (force,) = torch.autograd.grad(self.energy(x).tanh().sum(), x, create_graph=True)
        made: Tensor = self.head(force)
        return made


class Stopped(Head):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class Complex(nn.Module):
    """Weights that are complex numbers, the first of all."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.head = nn.Parameter(torch.ones(5, dtype=torch.cfloat)), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=8))
        return made


class Sparse(Head):
    """A sparse buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("graph", torch.eye(8).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.sparse.mm(self.graph, x.t()).t())


def double() -> nn.Module:
    return Head().double()


def without_data() -> nn.Module:
    return nn.Linear(8, 5, device="meta")


def scripted() -> Any:
    return torch.jit.script(Head())


class SparseTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(30, 8, sparse=True), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.words(x))
        return made


class Exits(Head):
    def forward(self, x: Tensor) -> Tensor:
        raise SystemExit(3)


class Unused(Head):
    """An attribute that is never called, and a head of evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.scale = nn.Linear(8, 5), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else self.spare(x)


class Dropped(Head):
    """Its pooler runs, as BERT's does, and nothing reads what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.pooler = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))

    def forward(self, x: Tensor) -> Tensor:
        self.pooler(x)
        return super().forward(x)


class Probed(Head):
    """A trunk that no gradient comes back to, with a norm; and one of `no_grad`."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.other = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.other(x)
        return super().forward(self.trunk(x).detach() + y)


class Chooses(nn.Module):
    """One of two experts, by indices that have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.table, self.head = nn.Linear(8, 3), nn.Embedding(3, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(x + self.table(self.gate(x).argmax(-1)))
        return made


class Skips(Head):
    """A layer that is left out at random."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.layer(x) if torch.rand(()) < 0.5 else x)


class PythonsSkips(Skips):
    def forward(self, x: Tensor) -> Tensor:
        return Head.forward(self, self.layer(x) if random.random() < 0.5 else x)


class Inference(Head):
    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            y = x * 2
        return super().forward(y.clone())


class CompiledForward(Head):
    @torch.compile(backend="eager")
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class CompiledFunction(Head):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(doubled(x))


@torch.compile(backend="eager")
def doubled(x: Tensor) -> Tensor:
    return x + x


class CompiledPart(Head):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.layer.compile(backend="eager")

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.layer(x))
