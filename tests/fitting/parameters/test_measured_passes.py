"""What layers achieve of a roof of 20 GFLOP/s and 10 GB/s (tests/helpers/filled.py): closed forms."""

from __future__ import annotations

import pytest
from tests.helpers import filled as f

from calib.fitting.parameters.file import LayerTime
from calib.fitting.parameters.measured_passes import MeasuredPass, measured_passes
from calib.foundation.records import Estimate

RELU = "relu()|8*100->100|-|float32"
LINEAR = "linear()|8*100->50|50x100+50|float32"


def passes(*layers: LayerTime, **changes: object) -> dict[str, MeasuredPass]:
    found = measured_passes(f.filled(layers=list(layers), **changes))
    return {of.direction: of for of in found}


def layer(key: str, **changes: object) -> LayerTime:
    return f.layer(key=key, kind=key.partition("(")[0], **changes)


def test_a_layer_that_is_bound_by_memory() -> None:
    """Forward: 800 operations, x and y; backward: dy, y and dx."""
    found = passes(layer(RELU))
    forward, backward = found["forward"], found["backward"]
    assert (forward.flops, forward.nbytes, forward.bound) == (800.0, 4 * 1600.0, "bytes")
    assert (backward.flops, backward.nbytes) == (800.0, 4 * 2400.0)
    assert forward.intensity == pytest.approx(1 / 8)
    assert forward.peak_share == pytest.approx(6400 / 1e10 / 1e-4)
    assert forward.flops_per_s is not None and forward.bytes_per_s is not None
    assert forward.flops_per_s.value == pytest.approx(8e6)
    assert forward.bytes_per_s.numbers == pytest.approx((6.4e7, 6.4e7 / 1.05, 6.4e7 / 0.95))


def test_a_linear_layer() -> None:
    """Backward: two products; it reads dy, x and w, and writes dx and dw."""
    x, y, w, product = 800, 400, 5050, 2 * 8 * 50 * 100
    found = passes(layer(LINEAR))
    assert (found["forward"].flops, found["forward"].nbytes) == (product, 4 * (x + y + w))
    backward = found["backward"]
    assert (backward.flops, backward.nbytes) == (2 * product, 4 * (y + x + w + x + w))
    first = passes(layer(LINEAR + "|no-input-grad"))["backward"]
    assert (first.flops, first.nbytes) == (product, 4 * (y + x + w))


def test_the_roof_is_of_the_same_ranks_items_and_device() -> None:
    assert passes(layer(RELU))["forward"].peak_share is not None
    for peaks in (f.peaks(active_ranks=1), f.peaks(dtype="bfloat16"), f.peaks(device="cuda")):
        of = passes(layer(RELU), peaks=[peaks])["forward"]
        assert (of.peak_share, of.bound) == (None, None) and of.bytes_per_s is not None


@pytest.mark.parametrize("key", ["flatten()|8*4x5->20|-|float32", "no layer"])
def test_no_work_has_no_share(key: str) -> None:
    of = passes(layer(key))["forward"]
    assert (of.flops, of.nbytes, of.intensity, of.flops_per_s) == (0.0, 0.0, None, None)
    assert of.peak_share is None and of.seconds.value == 1e-4


def test_a_copy_has_a_share_and_no_operations() -> None:
    of = passes(layer("concat()|8*4+4->8|-|float32"))["forward"]
    assert (of.flops, of.intensity, of.bound) == (0.0, None, "bytes")
    assert of.peak_share == pytest.approx(8 * 16 * 4 / 1e10 / 1e-4)


def test_the_slowest_first_and_no_pass_without_time() -> None:
    found = measured_passes(
        f.filled(
            layers=[
                layer(RELU, forward_s=f.near(1e-5), backward_s=Estimate.exactly(0.0)),
                f.layer(kernels={"backward": ["a_kernel"]}, workspace_bytes={"backward": 64}),
            ]
        )
    )
    assert [(of.kind, of.direction, of.kernels) for of in found] == [
        ("conv", "backward", ["a_kernel"]),
        ("conv", "forward", []),
        ("relu", "forward", []),
    ]
    assert [of.workspace_bytes for of in found] == [64, None, None]
