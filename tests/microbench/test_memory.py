"""Bytes of tensors against closed forms: every number is worked out by hand from the shapes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.layer_memory import layer_memory
from torch import nn

from calib.microbench.device import CPU
from calib.microbench.devices.cuda import CudaDevice
from calib.microbench.memory import LiveBytes, bytes_of, optimizer_tensors, peak_rss_bytes
from calib.microbench.tensors import make_optimizer, update
from calib.training.footprint import account

FLOAT = 4


def test_tensors_count_while_they_live() -> None:
    with LiveBytes() as watch:
        first = torch.zeros(100)
        assert watch.live == 400
        second = first + 1
        assert watch.live == watch.peak == 800
        del first
        assert watch.live == 400
        third = torch.zeros(10, dtype=torch.float64)
        del second
        assert (watch.live, watch.peak) == (80, 800)
    del third
    assert (watch.live, watch.peak) == (80, 800), "counted only while it is entered"


def test_views_and_changes_in_place_count_once() -> None:
    with LiveBytes() as watch:
        whole = torch.zeros(8, 8)
        view = whole[2:, 1:].t()
        whole.add_(1).mul_(2)
        torch.relu_(view)
        assert watch.live == watch.peak == 8 * 8 * FLOAT
        del whole
        assert watch.live == 8 * 8 * FLOAT, "the view keeps the storage"
        del view
        assert watch.live == 0


def test_a_storage_that_is_resized() -> None:
    with LiveBytes() as watch:
        tensor = torch.zeros(10)
        tensor.resize_(1000)
        assert watch.live == watch.peak == 4000


def test_tensors_from_before_count_only_if_given() -> None:
    given, other = torch.ones(100), torch.ones(1000)
    with LiveBytes([given, given[:50]]) as watch:
        assert watch.live == 400
        other.add_(1)
        given.add_(1)
        total = given.sum() + other.sum()
        assert watch.live == 400 + total.nbytes
        del given
        assert watch.live == total.nbytes
        del other
        assert watch.live == total.nbytes


def test_a_freed_address_is_counted_anew() -> None:
    """Storages follow one another at the same address."""
    with LiveBytes() as watch:
        for items in (100, 200, 100, 50):
            tensor = torch.zeros(items)
            assert watch.live == items * FLOAT
            del tensor
            assert watch.live == 0
    assert watch.peak == 800


def accounted(
    module: nn.Module, inputs: torch.Tensor, forward: Callable[[], torch.Tensor] | None = None
) -> dict[str, int]:
    """The account of a forward and a backward from a gradient of ones, made before."""
    weights = list(module.parameters())
    run = forward or (lambda: module(inputs))
    gradient = torch.ones_like(run())
    return account(
        {"weights": weights, "buffers": list(module.buffers()), "inputs": [inputs, gradient]},
        run,
        lambda output: torch.autograd.backward(output, gradient),
        weights,
        CPU,
    )


def test_a_chain_of_linear_layers() -> None:
    """5 x 4 -> 4 -> 3: outputs of 80 and 60 B, weights and biases of 64 + 16 + 48 + 12 B."""
    found = accounted(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), torch.randn(5, 4))
    assert found["weights"] == found["gradients"] == 64 + 16 + 48 + 12
    assert found["inputs"] == 80 + 60
    assert found["activations"] == 80 + 60
    assert found["parts"] == 140 + 140 + 140 + 140
    # at the end of the second layer's backward: dL/dx of 80 B and its own gradients of 60 B beside
    # the activations; at the end of the first's: its gradients of 80 B in place of the 80 B of x
    assert found["peak_live"] == 140 + 140 + 140 + 80 + 60
    assert found["workspace"] == 0


@pytest.mark.parametrize("in_place", [False, True])
def test_a_convolution_and_a_relu(in_place: bool) -> None:
    """2 x 2 x 4 x 4 -> 3 channels, 384 B a map, of which one stays whether or not in place.

    The backward of a ReLU reads its output, that of a convolution its input: nobody keeps the map
    between them, although the naive sum counts both.
    """
    module = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.ReLU(in_place))
    inputs = torch.randn(2, 2, 4, 4)
    found = accounted(module, inputs)
    assert found["activations"] == 384
    assert found["weights"] == found["gradients"] == 3 * 2 * 3 * 3 * FLOAT
    with LiveBytes([inputs, *module.parameters()]) as watch:
        output = module(inputs)
    assert watch.peak - watch.live == (0 if in_place else 384)
    assert output.nbytes == 384


def test_what_a_layer_saves_beside_its_output() -> None:
    """Max pooling keeps int64 places, batch normalisation two statistics a channel."""
    pooled = accounted(nn.Sequential(nn.Conv2d(1, 2, 1), nn.MaxPool2d(2)), torch.randn(1, 1, 4, 4))
    assert pooled["activations"] == 2 * 16 * FLOAT + 2 * 4 * (FLOAT + 8)
    normed = accounted(nn.BatchNorm2d(3), torch.randn(2, 3, 4, 4))
    assert normed["activations"] == 2 * 3 * 16 * FLOAT + 2 * 3 * FLOAT
    assert normed["weights"] == 2 * 3 * FLOAT
    assert normed["buffers"] == 2 * 3 * FLOAT + 8  # mean, variance, int64 count of batches


def test_workspace_is_what_the_peak_has_beyond_the_parts() -> None:
    """A forward that takes 4000 B and gives them back before its end."""

    class Wasteful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(100))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.zeros(1000)
            return self.weight.sum() + x

    found = accounted(Wasteful(), torch.zeros(()))
    assert found["weights"] == found["gradients"] == 400
    assert found["inputs"] == 2 * FLOAT
    assert found["activations"] == FLOAT  # the sum, of which the addition keeps nothing
    assert found["peak_live"] == 400 + 2 * FLOAT + 4000
    assert found["workspace"] == found["peak_live"] - (2 * 400 + 3 * FLOAT)


@pytest.mark.parametrize(("name", "per_weight"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_state_of_the_optimizers(name: str, per_weight: int) -> None:
    """None, one and two tensors a weight; Adam also a count of 4 B for each tensor."""
    weights = [nn.Parameter(torch.randn(7, 3)), nn.Parameter(torch.randn(5))]
    optimizer = make_optimizer(weights, name)
    assert optimizer_tensors(optimizer) == []
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    update(optimizer)
    counts = 4 * len(weights) if name == "adam" else 0
    assert bytes_of(weights) == 4 * 26
    assert bytes_of(optimizer_tensors(optimizer)) == per_weight * 4 * 26 + counts


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_an_iteration_ends_as_it_began(name: str) -> None:
    """Warm, nothing is left behind: the next account is the same to the byte."""
    module, inputs = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1)), torch.randn(3, 6)
    weights = list(module.parameters())
    optimizer = make_optimizer(weights, name)

    def once() -> dict[str, int]:
        return account(
            {"weights": weights, "optimizer": optimizer_tensors(optimizer), "inputs": [inputs]},
            lambda: module(inputs).sum(),
            torch.autograd.backward,
            weights,
            CPU,
            lambda: update(optimizer),
        )

    once()  # the state is made
    first, second = once(), once()
    first.pop("peak_rss")
    second.pop("peak_rss")
    assert first == second
    assert all(weight.grad is None for weight in weights)
    assert first["peak_live"] >= first["weights"] + first["gradients"] + first["optimizer"]


def test_one_layer_by_itself() -> None:
    """Gradients are those of the weights and of an input that needs one."""
    layer = nn.Linear(4, 3)
    weights, gradient = list(layer.parameters()), torch.ones(5, 3)
    for needs_input_grad in (True, False):
        x = torch.randn(5, 4, requires_grad=needs_input_grad)
        found = layer_memory(layer, weights, [x], gradient)
        assert found["activations"] == 60 and found["output_gradient"] == 60
        assert found["weights"] == 60 and found["inputs"] == 80
        assert found["gradients"] == 60 + (80 if needs_input_grad else 0)
        again = layer_memory(layer, weights, [x], gradient)
        assert again["peak_live"] == found["peak_live"]


def test_a_layer_without_a_backward() -> None:
    found = layer_memory(nn.ReLU(), [], [torch.randn(10)], torch.ones(10))
    assert (found["activations"], found["gradients"], found["peak_live"]) == (40, 0, 120)


def test_errors_leave_no_mode_behind() -> None:
    def fail() -> Any:
        raise ValueError("no forward")

    with pytest.raises(ValueError, match="no forward"):
        account({"inputs": [torch.ones(3)]}, fail, torch.autograd.backward, [], CPU)
    assert torch._C._len_torch_dispatch_stack() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_peak_rss_is_in_bytes() -> None:
    """Against the kernel's own line; the counters of its threads may lag by some pages."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    assert peak_rss_bytes() == pytest.approx(kib * 1024, rel=0.05)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_account_of_a_gpu() -> None:
    """The allocator gives out multiples of 512 B: shapes are chosen to be some."""
    layer = nn.Linear(1024, 1024, bias=False, device="cuda")
    weights = list(layer.parameters())
    x, gradient = torch.randn(256, 1024, device="cuda"), torch.ones(256, 1024, device="cuda")
    device = CudaDevice(0)
    layer_memory(layer, weights, [x], gradient, device)  # the libraries' own buffers are made
    found = layer_memory(layer, weights, [x], gradient, device)
    assert found["weights"] == found["gradients"] == 1024 * 1024 * FLOAT
    assert found["activations"] == 256 * 1024 * FLOAT
    assert found["peak_reserved"] >= found["peak_live"] >= found["parts"]
