"""Kernels as exporters take them from the measured layers."""

from __future__ import annotations

import pytest
from tests.helpers.filled import filled, layer

from calib.export.devices import at_work, forwards


@pytest.mark.parametrize(
    ("execution", "dtype", "item_bytes"),
    [
        ("float32", "float32", 4),
        ("bfloat16", "bfloat16", 2),
        ("float64+channels_last", "float64", 8),
    ],
)
def test_bytes_are_those_of_the_items(execution: str, dtype: str, item_bytes: int) -> None:
    """A ReLU reads 8 x 256 items, writes as many, and compares each."""
    active = at_work(filled())
    relu = layer(
        key=f"relu()|8*4x8x8->4x8x8|-|{execution}", kind="relu", batch=8, active_ranks=active
    )
    (kernel,) = forwards(filled(layers=[relu]))
    assert (kernel.kind, kernel.dtype) == ("relu", dtype)
    assert (kernel.flops, kernel.nbytes) == (2048, 2 * 2048 * item_bytes)
    assert kernel.seconds == relu.forward_s.value
