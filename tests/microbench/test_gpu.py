"""What this version does with a GPU: records it, and builds layers on it. Needs a CUDA device."""

from __future__ import annotations

import pytest
import torch

from foundation.layers import LayerShape
from microbench.layers.build import build_layer, make_inputs
from microbench.probe import gpu_devices

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_probe_records_what_torch_sees() -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is part of the gpu extra")
    devices = gpu_devices()
    assert len(devices) >= torch.cuda.device_count() > 0
    seen = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
    assert seen <= {device.name for device in devices}
    smallest = min(torch.cuda.mem_get_info(i)[1] for i in range(torch.cuda.device_count()))
    # the driver keeps a little for itself
    assert max(device.memory_bytes for device in devices) >= smallest * 0.95


def test_a_convolution_on_the_gpu_equals_the_one_on_the_cpu() -> None:
    shape = LayerShape(
        kind="conv", input_shapes=((3, 16, 16),), output_shape=(8, 16, 16),
        parameter_shapes=((8, 3, 3, 3), (8,)),
        attributes={"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "groups": 1},
    )  # fmt: skip
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
