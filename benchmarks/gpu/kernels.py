"""Kernels: products and copies beside triton.testing.do_bench, and layers as calib measures them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module

import torch

from benchmarks.gpu.steps import Found, Missing, Row, Setting
from benchmarks.gpu.timing import own_device, watched
from calib.foundation.errors import MachineError, MeasurementError
from calib.foundation.statistics import median
from calib.foundation.words import bytes_words
from calib.microbench.calls import measure_calls
from calib.microbench.cases import LayerCase
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.devices.cuda import CudaDevice
from calib.microbench.layers.timing import measure_layer
from calib.microbench.timing.stretches import CallStretch
from calib.training.models.specs import spec

BUDGET_S, BUDGET_SMALL_S, TARGET = 2.0, 0.3, 0.01
PRODUCTS, PRODUCTS_SMALL = (512, 4096), (256,)
COPIES, COPIES_SMALL = (4 << 20, 256 << 20), (1 << 20,)
LAYERS = ("conv1", "bn1", "relu", "stages.0.0.conv2", "fc")  # of ResNet-50
# execution, and whether caches are cold
WAYS = {
    "warm": ("float32", False),
    "cold": ("float32", True),
    "autocast": ("bfloat16-mixed", False),
    "channels last": ("float32+channels_last", False),
}
BATCH, BATCH_SMALL = 32, 4
DoBench = Callable[[Callable[[], object]], float]


def do_bench(setting: Setting) -> Iterator[Found]:
    """Seconds of a product and a copy, warm and cold, and by Triton's loop, which clears L2."""
    device = own_device(MpiCommunicator())
    theirs: DoBench | None = None
    try:
        theirs = tritons()
    except MachineError as error:
        yield Missing("triton.testing.do_bench", str(error))
    for n in PRODUCTS_SMALL if setting.small else PRODUCTS:
        for dtype in ("float32", "tf32", "bfloat16"):
            item = torch.bfloat16 if dtype == "bfloat16" else torch.float32
            a, b = (torch.randn(n, n, device=device.tensors, dtype=item) for _ in range(2))
            call = partial(torch.mm, a, b, out=torch.empty_like(a))
            with device.arithmetic(dtype):
                about = f"product of {n}, {dtype}"
                yield from beside(setting, device, about, call, theirs, 2.0 * n**3, "FLOP/s")
    for nbytes in COPIES_SMALL if setting.small else COPIES:
        source = torch.randn(nbytes // 4, device=device.tensors)
        call = partial(torch.empty_like(source).copy_, source)
        about = f"copy of {bytes_words(nbytes)}"
        yield from beside(setting, device, about, call, theirs, 2.0 * nbytes, "B/s")


def tritons() -> DoBench:
    """do_bench's median, in seconds. Raises MachineError without Triton."""
    try:
        bench = import_module("triton.testing").do_bench
    except ImportError as error:
        raise MachineError(f"triton cannot be imported ({error})") from error
    return lambda call: float(bench(call, return_mode="median")) * 1e-3


def beside(
    setting: Setting,
    device: CudaDevice,
    about: str,
    call: Callable[[], object],
    theirs: DoBench | None,
    work: float,
    unit: str,
) -> Iterator[Found]:
    """A call warm, cold and by do_bench; `work` a second is its rate."""
    control, stretches = MpiCommunicator(), [CallStretch({"call": call})]
    budget_s, seconds = BUDGET_SMALL_S if setting.small else BUDGET_S, {}
    for word, cold in (("warm", False), ("cold", True)):
        found, marked = watched(
            device,
            partial(measure_calls, control, device, about, stretches, 0.0, budget_s, TARGET, cold),
        )
        seconds[word] = median(found.seconds("call"))
        note = [f"{found.calls} to a timing", *marked, *found.kernels.get("call", [])]
        yield Row(f"{about}, {word}", seconds[word], "s", ", ".join(note))
    yield Row(f"{about}, rate when warm", work / seconds["warm"], unit)
    if theirs is not None:
        other = theirs(call)
        yield Row(f"{about}, do_bench", other, "s")
        yield Row(f"{about}, cold / do_bench", seconds["cold"] / other)


def layers(setting: Setting) -> Iterator[Found]:
    """Forward and backward of some layers by measure_layer."""
    control = MpiCommunicator()
    device = own_device(control)
    model, batch = ("resnet50-mini", BATCH_SMALL) if setting.small else ("resnet50", BATCH)
    budget_s = BUDGET_SMALL_S if setting.small else BUDGET_S
    known = {layer.name: layer.shape for layer in spec(model).layers}
    for name in LAYERS:
        for word, (execution, cold) in WAYS.items():
            case = LayerCase(
                ranks=1,
                layer=known[name],
                batch=batch,
                device="cuda",
                execution=known[name].runs_as(execution),
                cold=cold,
            )
            about = f"{name} of {model}, batch {batch}, {word}"
            try:
                found, marked = watched(
                    device,
                    partial(measure_layer, control, case, 0, budget_s, TARGET, device=device),
                )
            except MeasurementError as error:
                yield Missing(about, str(error).removeprefix(f"{case.label}: "))
                continue
            for operation in found.ranks:
                note = ", ".join([*marked, *found.kernels.get(operation, [])])
                yield Row(f"{about}, {operation}", median(found.seconds(operation)), "s", note)
