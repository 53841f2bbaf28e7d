"""One layer ready to run: its inputs and passes, and which are timed together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from calib.foundation.errors import InputError
from calib.foundation.execution import Execution, execution_of
from calib.foundation.layers import LOSSES
from calib.microbench.cases import LayerCase
from calib.microbench.control import Control
from calib.microbench.device import Device
from calib.microbench.item_types import activation_type, casting, laid_out, weight_type
from calib.microbench.layers.build import BuiltLayer, build_layer, make_inputs
from calib.microbench.timing.stretches import CallStretch, first_time
from calib.microbench.timing.watchdog import beat


class RunnableLayer:
    """A layer, its inputs and the gradient of its output, on one device.

    `forward` keeps the output, and with it what a backward needs, until `drop`.
    """

    def __init__(self, layer: BuiltLayer, inputs: list[Tensor]) -> None:
        self.layer, self.inputs = layer, inputs
        self.output: Tensor | None = None
        self.gradient: Tensor | None = None

    def leaves(self) -> dict[str, list[Tensor]]:
        """What the backward computes gradients of: the inputs (data) and the parameters (weight).

        A part that has nothing that needs a gradient is left out.
        """
        data = [x for x in self.inputs if x.requires_grad]
        parts = {"backward_data": data, "backward_weight": self.layer.parameters}
        return {name: leaves for name, leaves in parts.items() if leaves}

    def drop(self) -> None:
        """Let the last output and all gradients go, as they are gone when an iteration begins."""
        self.output = None
        for leaf in (*self.layer.parameters, *self.inputs):
            leaf.grad = None  # as zero_grad(set_to_none=True) does in training/step.py

    def forward(self) -> None:
        """Run the layer."""
        self.output = self.layer(*self.inputs)

    def backward(self) -> None:
        """Autograd's own backward of the last forward, into `grad` of every leaf."""
        assert self.output is not None
        torch.autograd.backward(self.output, self.gradient)

    def gradients(self, leaves: Sequence[Tensor], keep: bool = False) -> tuple[Tensor, ...]:
        """The gradients of these leaves alone, of the last forward; `keep` allows another call."""
        assert self.output is not None
        return torch.autograd.grad(self.output, leaves, self.gradient, retain_graph=keep)

    def workspace(self, passes: str, device: Device) -> dict[str, int]:
        """Bytes that each pass of a GPU had at most beside all that is live before or after it.

        By the allocator: what cuDNN chose its kernel for, and what PyTorch makes in between. What
        cuBLAS took at its first call and keeps is not among it.
        """
        parts = self.leaves()
        if passes == "whole":
            leaves = [leaf for leaves in parts.values() for leaf in leaves]
            parts = {"backward": leaves} if leaves else {}
        self.drop()
        with device.watch(()) as memory:
            self.forward()
        found = {"forward": memory.peak - memory.live} if passes == "whole" else {}
        for name, leaves in parts.items():
            with device.watch(()) as memory:
                kept = self.gradients(leaves, keep=True)
            found[name] = memory.peak - memory.live
            del kept
        return found

    def stretches(self, passes: str) -> list[CallStretch]:
        """What a repetition times, by LayerCase.passes.

        "whole": "forward" and (where anything needs a gradient) "backward" behind it. "parts":
        "backward_data" and "backward_weight", each behind an untimed forward of its own. In a row, a
        backward keeps its graph, and its gradients go instead of being added up.
        """
        parts = self.leaves()
        if passes == "whole":
            calls, in_a_row = {"forward": self.forward}, {}
            everything = [leaf for leaves in parts.values() for leaf in leaves]
            if everything:
                calls["backward"] = self.backward
                in_a_row["backward"] = self._gradients(everything, keep=True)
            return [CallStretch(calls, self.drop, in_a_row)]

        def prepare() -> None:
            self.drop()
            self.forward()

        return [
            CallStretch(
                {name: self._gradients(leaves, keep=False)},
                prepare,
                {name: self._gradients(leaves, keep=True)},
            )
            for name, leaves in parts.items()
        ]

    def _gradients(self, leaves: list[Tensor], keep: bool) -> Callable[[], None]:
        def call() -> None:
            self.gradients(leaves, keep)  # and let them go, in the timed call

        return call


def check_case(case: LayerCase) -> None:
    """Raise InputError for a case that cannot be, on any machine."""
    if execution_of(case.execution).cuda_graph:
        raise InputError("a layer alone is no CUDA graph: leave that mark out of its execution")
    trained = bool(case.layer.parameter_shapes)
    if case.passes == "parts" and not (trained or _input_has_gradient(case)):
        raise InputError(
            f"{case.layer.kind} has no parameters and its input needs no gradient: "
            "it has no backward whose parts could be timed"
        )
    if case.layer.runs_as(case.execution) != case.execution:
        spatial = [str(len(shape) - 1) for shape in case.layer.input_shapes]
        raise InputError(
            f"channels_last needs inputs of 2 or 3 spatial dimensions; those of this "
            f"{case.layer.kind} have {' and '.join(spatial)}"
        )


def _input_has_gradient(case: LayerCase) -> bool:
    return case.needs_input_grad and case.layer.kind != "embedding"


def make_work(case: LayerCase, seed: int, device: torch.device) -> RunnableLayer:
    """The layer of a case with random inputs; `first_call` comes next.

    Under autocast inputs have the type of activations, as behind a convolution or a matrix product, but
    that of the model's first layer the type of the data. Each call casts the weights anew, as an
    iteration does; some layers (losses, 3-D pools on a CPU, norms and softmax on a GPU) compute in
    float32. The backward runs outside of it.

    Raises InputError where the shape contradicts itself, and what torch raises where it has no such
    layer.
    """
    execution = execution_of(case.execution)
    data = weight_type(execution)
    arriving = activation_type(execution) if case.needs_input_grad else data
    generator = torch.Generator(device).manual_seed(seed)
    layer = build_layer(case.layer, data, device)
    inputs = make_inputs(
        case.layer, case.batch, arriving, device, case.needs_input_grad, generator, data
    )
    for tensor in (*layer.parameters, *inputs):
        tensor.data = laid_out(tensor.data, execution)
    if execution.items.mixed:
        layer = replace(layer, call=partial(_cast, layer.call, execution, device.type))
    return RunnableLayer(layer, inputs)


def _cast(
    call: Callable[..., Tensor], execution: Execution, device: str, *inputs: Tensor
) -> Tensor:
    with casting(execution, device):
        return call(*inputs)


def first_call(
    work: RunnableLayer, case: LayerCase, seed: int, synchronize: Callable[[], None]
) -> float:
    """Seconds of the very first forward and backward: lazy loading, choice of kernels.

    Between them it makes the gradient of the output, random like the inputs. `synchronize` returns
    when the device is done. Raises InputError where the output is not that of the layer's shape.
    """
    start = perf_counter()
    work.forward()
    synchronize()
    seconds = perf_counter() - start
    beat()
    assert work.output is not None
    output = work.output.detach()
    expected = () if case.layer.kind in LOSSES else (case.batch, *case.layer.output_shape)
    if tuple(output.shape) != expected:
        raise InputError(f"the output is {tuple(output.shape)}, not {expected}: {case.layer}")
    generator = torch.Generator(output.device).manual_seed(seed + 1)
    work.gradient = torch.empty_like(output).normal_(generator=generator)
    if work.leaves():
        start = perf_counter()
        work.backward()
        synchronize()
        seconds += perf_counter() - start
        beat()
    return seconds


def start_work(
    communicator: Control, case: LayerCase, seed: int, device: Device
) -> tuple[RunnableLayer, float]:
    """The work of a case after its first call, and the seconds of that on the slowest rank.

    Collective. Raises InputError and MeasurementError.
    """

    def begin() -> tuple[RunnableLayer, float]:
        work = make_work(case, seed, device.tensors)
        return work, first_call(work, case, seed, device.synchronize)

    return first_time(communicator, case.label, begin)
