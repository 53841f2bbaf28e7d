"""Every kind of layer against torch: the most bytes of a forward and its backward, to the byte."""

from __future__ import annotations

import pytest
import torch
from tests.helpers.layer_memory import layer_memory
from tests.microbench.layer_shapes import LAYERS, layer

from calib.foundation.layers import LayerShape
from calib.microbench.layers.build import build_layer, make_inputs
from calib.microbench.memory import bytes_of
from calib.oracle.memory.live_layers import line, run_layer
from calib.oracle.memory.liveness import ByteLine, HeldTensor, Ledger, Tape

BATCH = 3
CPU = torch.device("cpu")
MORE = {
    "adaptive_avg_pool, a mean": layer("adaptive_avg_pool", ((3, 8, 8),), (3, 1, 1)),
    "adaptive_avg_pool3d, a mean": layer("adaptive_avg_pool", ((3, 4, 4, 4),), (3, 1, 1, 1)),
    "convolution without bias": layer(
        "conv",
        ((4, 9, 9),),
        (6, 5, 5),
        (6, 4, 3, 3),
        kernel=(3, 3),
        stride=(2, 2),
        padding=(1, 1),
        groups=1,
    ),
    "nothing dropped": layer("dropout", ((50,),), (50,), probability=0.0),
    "max_pool, padded": layer(
        "max_pool",
        ((3, 9, 9),),
        (3, 5, 5),
        kernel=(3, 3),
        stride=(2, 2),
        padding=(1, 1),
        ceil_mode=False,
    ),
}


def measured(shape: LayerShape, needs_input_grad: bool) -> int:
    generator = torch.Generator().manual_seed(5)
    made = build_layer(shape, torch.float32, CPU)
    inputs = make_inputs(shape, BATCH, torch.float32, CPU, needs_input_grad, generator)
    gradient = torch.ones_like(made(*inputs).detach())
    peak = layer_memory(made, made.parameters, inputs, gradient)["peak_live"]
    return peak - bytes_of([*made.parameters, *inputs, gradient])


def counted(shape: LayerShape, needs_input_grad: bool) -> int:
    """The same without inputs, weights and the gradient of the output, which are there before."""
    ledger = Ledger()
    tape = Tape(ledger)
    inputs = []
    for of in shape.input_shapes:
        there, size = ledger.make(ByteLine(0.0)), line(of)
        inputs.append(tape.leaf(there, size) if needs_input_grad else HeldTensor(there, size))
    y = run_layer(tape, shape, inputs)
    tape.backward([(y, ledger.hold(ledger.make(ByteLine(0.0))))])
    return round(max(of.of(BATCH) for of in ledger.peaks))


def can_be(shape: LayerShape, needs_input_grad: bool) -> bool:
    """Indices have no gradient; a layer without weights and without dL/dx has no backward.

    Nor is a view measured by itself: the input takes it as its gradient.
    """
    if shape.kind == "flatten":
        return False
    return shape.kind != "embedding" if needs_input_grad else bool(shape.parameter_shapes)


CASES = [
    (name, needs)
    for name, shape in (LAYERS | MORE).items()
    for needs in (True, False)
    if can_be(shape, needs)
]


@pytest.mark.parametrize(("name", "needs_input_grad"), CASES)
def test_peak_of_a_layer(name: str, needs_input_grad: bool) -> None:
    shape = (LAYERS | MORE)[name]
    assert counted(shape, needs_input_grad) == measured(shape, needs_input_grad)
