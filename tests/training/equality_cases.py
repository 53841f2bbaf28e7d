"""The trainings that test_equality.py compares with the serial one, by their number of ranks."""

from __future__ import annotations

from typing import Any

from tests.training.equality_program import Case, of

# what more ranks change is no matter of the item type: of each strategy a few cases are in both
EXACT: Any = {"execution": "float64"}
LEADERS: Any = {"inner": 2, "grid": (2,)}

TWO = [
    *of("vgg", "data", 2, curve=True),
    *of("vgg", "data", 2, overlap=True, checked=True),
    *of("vgg", "data", 2, ddp=True, **EXACT),
    *of("vgg", "data", 2, sharded_optimizer=True),
    *of("vgg", "data", 2, sharded_optimizer=True, optimizer="adam", **EXACT),
    *of("vgg", "data", 2, backend="gloo", **EXACT),
    *of("vgg", "data", 2, overlap=True, backend="gloo", **EXACT),
    *of("vgg", "fully_sharded", 2, curve=True, checked=True),
    *of("vgg", "fully_sharded", 2, optimizer="adam", **EXACT),
    *of("vgg", "fully_sharded", 2, backend="gloo", **EXACT),
    *of("vgg", "spatial", 2, grid=(2,), curve=True),
    *of("vgg", "spatial", 2, grid=(1, 2), **EXACT),
    *of("vgg", "spatial", 2, grid=(2,), backend="gloo", **EXACT),
    *of("vgg", "filter", 2, curve=True),
    *of("vgg", "filter", 2, optimizer="adam", **EXACT),
    *of("vgg", "filter", 2, backend="gloo", **EXACT),
    *of("vgg", "channel", 2),
    *of("vgg", "tensor", 2, curve=True, checked=True),
    *of("vgg", "tensor", 2, optimizer="adam", backend="gloo", **EXACT),
    *of("vgg", "pipeline", 2, segments=2, curve=True, checked=True),
    *of("vgg", "pipeline", 2, segments=4, schedule="1f1b", **EXACT),
    *of("vgg", "pipeline", 2, segments=2, backend="gloo", **EXACT),
    *of("alexnet", "spatial", 2, grid=(2,), **EXACT),
    *of("alexnet", "filter", 2, **EXACT),
    *of("alexnet", "channel", 2, **EXACT),
    *of("alexnet", "pipeline", 2, segments=2, **EXACT),
    *of("resnet", "data", 2, checked=True),
    *of("resnet", "data", 2, overlap=True, **EXACT),
    *of("resnet", "data", 2, synchronized=True, **EXACT),
    *of("resnet", "fully_sharded", 2, checked=True),
    *of("resnet", "fully_sharded", 2, synchronized=True, **EXACT),
    *of("resnet", "spatial", 2, grid=(2,)),
    *of("resnet", "spatial", 2, grid=(2,), synchronized=True, **EXACT),
    *of("resnet", "filter", 2),
    *of("resnet", "channel", 2),
    *of("resnet", "pipeline", 2, segments=2),
    *of("resnet", "pipeline", 2, segments=2, schedule="1f1b", checked=True, **EXACT),
    *of("cosmoflow", "data", 2),
    *of("cosmoflow", "fully_sharded", 2),
    *of("cosmoflow", "spatial", 2, grid=(2,)),
    *of("cosmoflow", "filter", 2),
    *of("cosmoflow", "channel", 2),
    *of("cosmoflow", "pipeline", 2, segments=2, checked=True),
]
# 16, 32, 64 and 128 filters on 3 ranks, and heights of 45, 22, 11 and 5
THREE = [
    *of("vgg-odd", "data", 3, **EXACT),
    *of("vgg-odd", "data", 3, sharded_optimizer=True, **EXACT),
    *of("vgg-odd", "fully_sharded", 3, **EXACT),
    *of("vgg-odd", "spatial", 3, grid=(3,), **EXACT),
    *of("vgg-odd", "spatial", 3, grid=(1, 3), **EXACT),
    *of("vgg-odd", "filter", 3, checked=True, **EXACT),
    *of("vgg-odd", "channel", 3, **EXACT),
    *of("vgg-odd", "pipeline", 3, segments=3, **EXACT),
]
FOUR = [
    *of("vgg", "data", 4, checked=True, **EXACT),
    *of("vgg", "data", 4, overlap=True, **EXACT),
    *of("vgg", "data", 4, sharded_optimizer=True, **EXACT),
    *of("vgg", "fully_sharded", 4, checked=True, **EXACT),
    *of("vgg", "spatial", 4, grid=(4,), **EXACT),
    *of("vgg", "spatial", 4, grid=(2, 2), **EXACT),
    *of("vgg", "filter", 4, **EXACT),
    *of("vgg", "tensor", 4, **EXACT),
    *of("vgg", "channel", 4, **EXACT),
    *of("vgg", "pipeline", 4, segments=4, **EXACT),
    *of("vgg", "pipeline", 4, segments=4, schedule="1f1b", checked=True, **EXACT),
    *of("vgg", "data+filter", 4, inner=2),
    *of("vgg", "data+spatial", 4, **LEADERS),
    *of("vgg", "data+spatial", 4, gradients="all", checked=True, **LEADERS, **EXACT),
    *of("vgg", "data+spatial", 4, backend="gloo", **LEADERS, **EXACT),
    *of("resnet", "data", 4, **EXACT),
    *of("resnet", "data", 4, synchronized=True, **EXACT),
    *of("resnet", "fully_sharded", 4, **EXACT),
    # float32 says little of resnet: a ReLU that rounding tips over moves gradients by half their size
    *of("resnet", "spatial", 4, grid=(2, 2), checked=True, **EXACT),
    *of("resnet", "spatial", 4, grid=(2, 2), synchronized=True, **EXACT),
    *of("resnet", "filter", 4, **EXACT),
    *of("resnet", "channel", 4, **EXACT),
    *of("resnet", "pipeline", 4, segments=4, **EXACT),
    *of("resnet", "data+filter", 4, inner=2, checked=True, **EXACT),
    *of("resnet", "data+filter", 4, inner=2, synchronized=True, **EXACT),
    *of("resnet", "data+spatial", 4, **LEADERS, **EXACT),
    *of("resnet", "data+spatial", 4, gradients="all", synchronized=True, **LEADERS, **EXACT),
    *of("resnet", "data+spatial", 4, split_until="stages.1.0.relu3", **LEADERS, **EXACT),
    *of("cosmoflow", "data", 4, **EXACT),
    *of("cosmoflow", "fully_sharded", 4, **EXACT),
    *of("cosmoflow", "spatial", 4, grid=(2, 1, 2), **EXACT),
    *of("cosmoflow", "filter", 4, **EXACT),
    *of("cosmoflow", "channel", 4, **EXACT),
    *of("cosmoflow", "pipeline", 4, segments=4, **EXACT),
    *of("cosmoflow", "data+filter", 4, inner=2, **EXACT),
    *of("cosmoflow", "data+spatial", 4, **LEADERS, **EXACT),
]
CASES: list[Case] = [*TWO, *THREE, *FOUR]
assert len({case.name for case in CASES}) == len(CASES)
