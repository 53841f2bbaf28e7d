"""How large the layers are that tell a device's peaks, and that they are known again."""

from __future__ import annotations

import pytest

from calib.microbench.cases import LayerCase
from calib.microbench.peaks import (
    is_square_product,
    is_sum_of_arrays,
    square_product,
    sum_of_arrays,
)
from calib.planning.peaks import sizes

GIB = 2**30


@pytest.mark.parametrize(
    ("gpu_memory_bytes", "side"),
    [
        (1 * GIB, 512),
        (int(15.78 * GIB), 2048),
        (24 * GIB, 2048),
        (int(39.6 * GIB), 4096),
        (int(79.6 * GIB), 4096),
        (288 * GIB, 4096),
        (0, 2048),
    ],
)
def test_a_gpu_by_its_memory(gpu_memory_bytes: int, side: int) -> None:
    found, items = sizes("cuda", gpu_memory_bytes)
    memory = gpu_memory_bytes or 16 * GIB
    assert found == side
    # the largest L2 for its memory is that of an RTX 4090: 72 MiB of 24 GiB
    assert 3 * 4 * items > 2 * 72 / 24 / 1024 * memory
    assert 3 * 4 * items < memory / 40


def test_a_cpu_is_the_same_whatever_its_memory() -> None:
    side, items = sizes("cpu", 0)
    assert side == 512
    assert 4 * items < 32 * 2**20 < 3 * 4 * items, "no fresh pages, and beyond a cache of 32 MiB"


def test_they_are_known_again() -> None:
    product = square_product(64, ranks=2, execution="bfloat16", purpose="peak", tier=1)
    added = sum_of_arrays(1000, ranks=2, device="cuda")
    assert is_square_product(product) and not is_sum_of_arrays(product)
    assert is_sum_of_arrays(added) and not is_square_product(added)
    assert product.layer.forward_flops(64) == 2 * 64**3
    assert added.layer.moved_bytes(1) == 12 * 1000


@pytest.mark.parametrize(
    "change", [{"batch": 8}, {"needs_input_grad": True}, {"cold": True}, {"passes": "parts"}]
)
def test_other_layers_are_not_taken_for_them(change: dict[str, object]) -> None:
    of: LayerCase
    for of in (square_product(64, ranks=1), sum_of_arrays(64, ranks=1)):
        other = of.model_copy(update=change)
        assert not is_square_product(other) and not is_sum_of_arrays(other)
