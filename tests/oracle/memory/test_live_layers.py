"""Every kind of layer against torch: the most bytes of a forward and its backward, to the byte."""

from __future__ import annotations

import pytest
import torch
from tests.helpers.layer_memory import layer_memory
from tests.microbench.layer_shapes import LAYERS, layer

from calib.foundation.execution import ItemType, execution_of
from calib.foundation.layers import LayerShape
from calib.microbench.item_types import casting, weight_type
from calib.microbench.layers.build import build_layer, make_inputs
from calib.microbench.memory import bytes_of
from calib.oracle.memory.live_layers import line, run_layer
from calib.oracle.memory.liveness import ByteLine, HeldTensor, Ledger, Tape
from calib.oracle.trace.facts import facts_of

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


def measured(shape: LayerShape, needs_input_grad: bool, execution: str, of_x: torch.dtype) -> int:
    run = execution_of(execution)
    generator = torch.Generator().manual_seed(5)
    made = build_layer(shape, weight_type(run), CPU)
    inputs = make_inputs(shape, BATCH, of_x, CPU, needs_input_grad, generator)

    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        with casting(run, "cpu"):
            return made(*inputs)

    gradient = torch.ones_like(forward(*inputs).detach())
    peak = layer_memory(forward, made.parameters, inputs, gradient)["peak_live"]
    return peak - bytes_of([*made.parameters, *inputs, gradient])


def counted(shape: LayerShape, needs_input_grad: bool, items: ItemType, of_x: int) -> int:
    """The same without inputs, weights and the gradient of the output, which are there before."""
    ledger = Ledger()
    tape = Tape(ledger, items)
    inputs = []
    for of in shape.input_shapes:
        there, size = ledger.make(ByteLine(0.0)), line(of, 1.0, of_x)
        inputs.append(
            tape.leaf(there, size, of_x)
            if needs_input_grad
            else HeldTensor(there, size, None, of_x)
        )
    y = run_layer(tape, shape, inputs)
    tape.end_autocast()
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


# the execution, and the type of x: under autocast that of the layer before
RUNS = {
    "float32": ("float32", torch.float32),
    "float64": ("float64", torch.float64),
    "bfloat16": ("bfloat16", torch.bfloat16),
    "autocast": ("bfloat16-mixed", torch.bfloat16),
    "autocast, x of float32": ("bfloat16-mixed", torch.float32),
}


def can_run(name: str, needs_input_grad: bool, run: str) -> bool:
    """Not: targets that are narrow as x is; a gradient cast back, which torch does a moment earlier."""
    if run == "autocast, x of float32":
        return not needs_input_grad
    return name != "mse" or run != "autocast"


@pytest.mark.parametrize(
    ("name", "needs_input_grad", "run"),
    [(*case, run) for case in CASES for run in RUNS if can_run(*case, run)],
)
def test_peak_of_a_layer(name: str, needs_input_grad: bool, run: str) -> None:
    shape = (LAYERS | MORE)[name]
    if shape.operator is not None:
        shape = shape.model_copy(update={"operator": facts_of(shape)})
    execution, of_x = RUNS[run]
    try:
        expected = measured(shape, needs_input_grad, execution, of_x)
    except RuntimeError as error:
        if "not implemented for 'BFloat16'" not in str(error):
            raise
        pytest.skip(str(error))
    items = execution_of(execution).items
    assert counted(shape, needs_input_grad, items, of_x.itemsize) == expected
