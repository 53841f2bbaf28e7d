"""A layer under autocast beside the same calls into torch.autocast itself."""

from __future__ import annotations

import torch

from calib.foundation.layers import LayerShape
from calib.microbench.layers.work import RunnableLayer

# what autocast leaves in bfloat16 or makes so, on a CPU and on a GPU
PRODUCTS = ("conv", "linear")


def assert_is_autocast(work: RunnableLayer, shape: LayerShape, needs_input_grad: bool) -> None:
    """Output and gradients are those of torch.autocast around the module, bit by bit."""
    floating = [x for x in work.inputs if x.is_floating_point()]
    if shape.kind == "mse":
        *floating, target = floating
        assert target.dtype == torch.float32
    arriving = torch.bfloat16 if needs_input_grad else torch.float32
    assert all(x.dtype == arriving for x in floating)
    assert all(w.dtype == torch.float32 for w in work.layer.parameters)
    device = work.inputs[0].device.type
    torch.manual_seed(7)  # dropout's mask
    work.drop()
    work.forward()
    assert work.output is not None and not torch.is_autocast_enabled(device)
    leaves = [leaf for leaves in work.leaves().values() for leaf in leaves]
    found = work.gradients(leaves) if leaves else ()
    inner = work.layer.call.args[0]  # type: ignore[attr-defined]
    torch.manual_seed(7)
    with torch.autocast(device, torch.bfloat16):
        expected = inner(*work.inputs)
    assert work.output.dtype == expected.dtype
    assert torch.equal(work.output, expected)
    if shape.kind in PRODUCTS:
        assert expected.dtype == torch.bfloat16
    if shape.kind in ("cross_entropy", "mse"):
        assert expected.dtype == torch.float32
    if leaves:
        assert work.gradient is not None and work.gradient.dtype == expected.dtype
        wanted = torch.autograd.grad(expected, leaves, work.gradient)
        for mine, theirs, leaf in zip(found, wanted, leaves, strict=True):
            assert mine.dtype == leaf.dtype
            torch.testing.assert_close(mine, theirs, rtol=0.05, atol=0.05)
