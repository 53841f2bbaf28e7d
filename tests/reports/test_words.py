"""Layers and kernels as people read them."""

from __future__ import annotations

from tests.helpers import filled as f

from calib.reports.words import kernels_words, layer_words


def test_layers() -> None:
    strided = "conv(groups=1,kernel=7x7,padding=3x3,stride=2x2)|2*3x8x8->4x4x4|4x3x7x7|float32"
    assert layer_words(f.CONV_KEY) == "conv 3x3 8*4x8x8 -> 4x8x8"
    assert layer_words(strided) == "conv 7x7 2*3x8x8 -> 4x4x4, stride 2x2"
    assert layer_words("add()|1*5+5->5|-|float32") == "add 1*5+5 -> 5"
    assert layer_words("no layer") == "no layer"


def test_kernels() -> None:
    names = [
        "void at::native::(anonymous namespace)::f<4, at::native::Add>(int, float*)",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x5_nn_align1>(Params)",
        "third",
    ]
    first, second = "f<4, Add>", "Kernel2<cutlass_80_simt_sgemm_128x128_8x5_nn_align1>"
    assert kernels_words(names) == f"{first}, {second} and 1 more"
    assert kernels_words(["x" * 100]) == "x" * 57 + "..."
