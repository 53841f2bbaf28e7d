"""What this version does with a GPU: records it, builds layers on it, times them. Needs CUDA."""

from __future__ import annotations

from functools import cache
from time import sleep
from typing import Any

import pytest
import torch
from tests.helpers.ranks import results, run_ranks
from tests.microbench.layer_shapes import LAYERS, convolution, parts_of
from tests.microbench.mixed_layers import assert_is_autocast

from calib.foundation.execution import Execution
from calib.foundation.layers import LayerShape
from calib.microbench.cases import LayerCase
from calib.microbench.devices import take_device
from calib.microbench.devices.cuda import CudaDevice, HeldStopwatch
from calib.microbench.item_types import activation_type, weight_type
from calib.microbench.layers.build import build_layer, make_inputs
from calib.microbench.layers.timing import measure_layer
from calib.microbench.layers.work import RunnableLayer, start_work
from calib.microbench.probe import read_gpus
from calib.microbench.timing.repeat import Repetitions
from calib.microbench.timing.stretches import nothing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@cache
def gpu() -> CudaDevice:
    """The first GPU."""
    return CudaDevice(0)


def test_probe_records_what_torch_sees() -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is part of the gpu extra")
    devices, problem = read_gpus()
    assert problem == ""
    assert len(devices) >= torch.cuda.device_count() > 0
    seen = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
    assert seen <= {device.name for device in devices}
    uuids = {
        str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())
    }
    assert {f"GPU-{uuid}" for uuid in uuids} <= {device.uuid for device in devices}
    smallest = min(torch.cuda.mem_get_info(i)[1] for i in range(torch.cuda.device_count()))
    # the driver keeps a little for itself
    assert max(device.memory_bytes for device in devices) >= smallest * 0.95


def test_a_convolution_on_the_gpu_equals_the_one_on_the_cpu() -> None:
    shape = LayerShape(
        kind="conv",
        input_shapes=((3, 16, 16),),
        output_shape=(8, 16, 16),
        parameter_shapes=((8, 3, 3, 3), (8,)),
        attributes={"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "groups": 1},
    )
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    generator = torch.Generator().manual_seed(0)
    here = build_layer(shape, torch.float64, cpu)
    there = build_layer(shape, torch.float64, cuda)
    with torch.no_grad():
        for source, target in zip(here.parameters, there.parameters, strict=True):
            target.copy_(source)
    inputs = make_inputs(shape, 2, torch.float64, cpu, True, generator)
    moved = [x.detach().to(cuda) for x in inputs]
    torch.testing.assert_close(there(*moved).cpu(), here(*inputs), rtol=1e-10, atol=1e-12)


def measure(case: LayerCase) -> Repetitions:
    (result,) = results(
        run_ranks(1, lambda comm: measure_layer(comm, case, 1, 0.0, 0.5, None, gpu()))
    )
    assert isinstance(result, Repetitions)
    return result


def on_gpu(shape: LayerShape, **more: Any) -> LayerCase:
    return LayerCase.model_validate(
        {"ranks": 1, "layer": shape, "batch": 3, "device": "cuda", **more}
    )


def started(case: LayerCase) -> RunnableLayer:
    ((work, _),) = results(
        run_ranks(1, lambda comm: start_work(comm, case, 3, take_device("cuda", comm)))
    )
    assert isinstance(work, RunnableLayer)
    return work


@pytest.mark.parametrize("execution", ["float32", "bfloat16", "bfloat16-mixed+channels_last"])
@pytest.mark.parametrize("passes", ["whole", "parts"])
@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer_is_timed(name: str, passes: str, execution: str) -> None:
    shape = LAYERS[name]
    result = measure(on_gpu(shape, passes=passes, execution=shape.runs_as(execution)))
    expected = {"forward", "backward"} if passes == "whole" else parts_of(shape)
    assert set(result.ranks) == set(result.host) == expected
    assert set(result.kernels) <= expected  # a view runs no kernel
    for rows in (*result.ranks.values(), *result.host.values()):
        assert all(len(row) == 1 and row[0] >= 0 for row in rows)
    assert result.first_s is not None and result.first_s > 0
    if not shape.is_free:
        first = "forward" if passes == "whole" else next(iter(expected))
        # their gradients are views of the output's
        views = shape.kind in ("add", "concat") and passes == "parts"
        assert views or result.kernels.get(first), "CUPTI names no kernel"


@pytest.mark.parametrize("dtype", ["float32", "tf32", "float16", "bfloat16", "bfloat16-mixed"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
def test_item_types_formats_and_cold_caches(
    dtype: str, channels_last: bool, cold: bool, rank: int
) -> None:
    execution = Execution(dtype, channels_last)
    case = on_gpu(convolution(rank), execution=execution.name, cold=cold)
    result = measure(case)
    assert set(result.ranks) == {"forward", "backward"} and result.seconds("backward")
    work = started(case)
    work.forward()
    assert work.output is not None and work.output.dtype == activation_type(execution)
    assert work.layer.parameters[0].dtype == weight_type(execution)
    assert (work.inputs[0].stride(1) == 1) == channels_last


@pytest.mark.parametrize("needs_input_grad", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_mixed_layers_are_those_of_autocast(name: str, needs_input_grad: bool) -> None:
    work = started(
        on_gpu(LAYERS[name], execution="bfloat16-mixed", needs_input_grad=needs_input_grad)
    )
    assert_is_autocast(work, LAYERS[name], needs_input_grad)


def test_tf32_is_used_where_it_is_allowed_and_nowhere_else() -> None:
    """Ten bits of mantissa: a product of 512 terms is off by 1e-4 to 1e-2, in float32 by 1e-6."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("the device has no TF32")
    x, y = (torch.randn(512, 512, device="cuda", dtype=torch.float64) for _ in range(2))
    exact = x @ y
    errors = {}
    for tf32 in (False, True):
        with gpu().arithmetic("tf32" if tf32 else "float32"):
            product = (x.float() @ y.float()).double()
        errors[tf32] = float((product - exact).norm() / exact.norm())
    assert errors[False] < 1e-5 < errors[True] < 1e-2


def test_the_stopwatch_knows_whether_it_held_the_stream() -> None:
    watch = HeldStopwatch(gpu(), cold=True)
    x = torch.ones(1 << 20, device="cuda")
    calls = {"double": lambda: void(x.mul_(1.0)), "again": lambda: void(x.mul_(1.0))}
    watch.ready()
    watch.lap(calls, 1, 0.05, nothing)
    watch.ready()
    held = watch.lap(calls, 1, 0.05, nothing)
    assert held.held and set(held.seconds) == {"double", "again"}
    # 4 MiB are read and written in far under the 50 ms of the spin
    assert all(0 < seconds < 0.01 for seconds in held.seconds.values())
    watch.ready()
    late = watch.lap({"slow": lambda: sleep(0.05)}, 1, 1e-4, nothing)
    assert not late.held and late.seconds["slow"] > 0.01  # the device waited for the host


def void(_: object) -> None:
    """Let a result go."""


def test_the_spin_lasts_as_long_as_its_clock_says() -> None:
    assert 1e-10 < gpu().seconds_per_cycle < 1e-8  # 0.1 to 10 GHz


def test_a_product_of_matrices_has_a_kernel_with_a_name() -> None:
    x = torch.randn(256, 256, device="cuda")
    names = gpu().kernels(lambda: void(x @ x))
    assert len(names) == len(set(names)) and any("gemm" in name.lower() for name in names)
