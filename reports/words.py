"""Predicted times, strategies and cases as text, with their marks: in terminal and page alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from calib.foundation.layer_keys import parse
from calib.foundation.records import Estimate
from calib.foundation.text import plain
from calib.foundation.words import estimate_words, number, several
from calib.oracle.projection import Basis, PhaseTime

BASIS_MARKS: dict[Basis, str] = {
    "exact": "",
    "measured": "",
    "interpolated": "~",
    "extrapolated": "!",
}
OVERSUBSCRIBED_MARK = "*"
# notes that differ in these only are one
VARYING = re.compile(
    r"\d[\d.,]*(?:e[+-]?\d+)?|"
    r"\b(?:data\+filter|data\+spatial|spatial|filter|channel)\b"
)
MOST_KERNELS, KERNEL_LETTERS = 2, 60
LEGEND = {
    "~": "interpolated between measured cases",
    "!": "extrapolated beyond them",
    OVERSUBSCRIBED_MARK: "oversubscribed (more ranks than cores): left out of the means",
}


def marked(time: Estimate, text: str) -> str:
    """With the mark of what a predicted time rests on; a measured one has none."""
    return (BASIS_MARKS[time.basis] if isinstance(time, PhaseTime) else "") + text


def ms_words(time: Estimate, interval: bool = False) -> str:
    """A predicted or measured time in ms, with its mark, with or without its interval."""
    return marked(time, estimate_words(time, 1e3) if interval else number(time.value * 1e3))


def alike(notes: Iterable[Sequence[str]]) -> list[str]:
    """The notes of many results, each once, those of most results first.

    Of notes that differ in numbers or strategies, the first and how many.
    """
    groups: dict[str, dict[str, None]] = {}
    concerned: Counter[str] = Counter()
    for of_one in notes:
        concerned.update({VARYING.sub("#", note) for note in of_one})
        for note in of_one:
            groups.setdefault(VARYING.sub("#", note), {})[note] = None
    return [
        next(iter(found)) + (f" (and {len(found) - 1} more like it)" if len(found) > 1 else "")
        for _, found in sorted(groups.items(), key=lambda group: -concerned[group[0]])
    ]


def strategy_text(strategy: str, layout: str, oversubscribed: bool) -> str:
    """A strategy with its layout, marked where it was oversubscribed."""
    words = f"{strategy}, {layout}" if layout else strategy
    return plain(words) + (OVERSUBSCRIBED_MARK if oversubscribed else "")


def case_words(
    model: str, strategy: str, layout: str, p: int, batch_per_rank: float | None = None
) -> str:
    """`vgg16-mini data+filter, 2 groups of 2, p=4, 8 per rank`; not yet `plain`."""
    how = f"{strategy}, {layout}," if layout else strategy
    each = "" if batch_per_rank is None else f", {samples_words(batch_per_rank)} per rank"
    return f"{model} {how} p={p}{each}"


def samples_words(batch_per_rank: float) -> str:
    """8; 0.25."""
    return str(batch_per_rank) if isinstance(batch_per_rank, int) else f"{batch_per_rank:.4g}"


def layer_words(key: str) -> str:
    """`conv 3x3 8*4x16x16 -> 8x8x8, stride 2x2`: a layer's key for people; not yet `plain`.

    Kind, kernel, batch * input, output. The key itself where it names no layer.
    """
    named = parse(key)
    if named is None:
        return key
    shape, kernel = named.shape, named.shape.attributes.get("kernel")
    words = [shape.name, *([dims(kernel)] if isinstance(kernel, tuple) else [])]
    inputs = "+".join(map(dims, shape.input_shapes))
    stride = shape.attributes.get("stride")
    apart = isinstance(stride, tuple) and set(stride) != {1} and shape.kind == "conv"
    strided = f", stride {dims(stride)}" if isinstance(stride, tuple) and apart else ""
    return f"{' '.join(words)} {named.batch}*{inputs} -> {dims(shape.output_shape)}{strided}"


def dims(shape: Sequence[int]) -> str:
    """`3x224x224`."""
    return "x".join(map(str, shape)) or "1"


def kernels_words(names: Sequence[str]) -> str:
    """The first kernels without namespaces and arguments, and how many more ran; not yet `plain`."""
    return several([_kernel(name) for name in names], MOST_KERNELS)


def _kernel(name: str) -> str:
    """`ampere_sgemm_128x64_nn`; of `void at::native::f<4>(int, float*)` the `f<4>`."""
    whole = name.replace("(anonymous namespace)::", "").removeprefix("void ").partition("(")[0]
    short = re.sub(r"\w+::", "", whole)
    return short if len(short) <= KERNEL_LETTERS else short[: KERNEL_LETTERS - 3] + "..."
