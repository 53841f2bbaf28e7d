"""Shapes and item types of operators, as traces write them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from calib.foundation.layers import ITEM_TYPES

# names of C++, of c10 and of torch.distributed, and PyTorch's own
TYPE_NAMES = {
    **{name: name for name in ITEM_TYPES},
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "c10::half": "float16",
    "c10::bfloat16": "bfloat16",
    "unsigned char": "uint8",
    "byte": "uint8",
    "signed char": "int8",
    "char": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "long long": "int64",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e5m2": "float8_e5m2",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
}


def item_type(word: Any) -> str:
    """PyTorch's name of an item type; "" for what is none, as `Scalar`."""
    return TYPE_NAMES.get(word.lower(), "") if isinstance(word, str) else ""


def item_bytes(dtype: str) -> int | None:
    """Bytes of an item; None for a type that is not known."""
    return 1 if dtype.startswith("float8") else ITEM_TYPES.get(dtype)


def parsed(text: bytes) -> list[Any]:
    """A trace's list of shapes or of types; empty where it is none."""
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def elements(shape: Any) -> int | None:
    """Items of a tensor, or of all tensors of a list; None for what is neither."""
    if not isinstance(shape, list) or not shape:
        return None
    if all(type(size) is int and size >= 0 for size in shape):
        return math.prod(shape)
    parts = [elements(part) for part in shape]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def first_tensor(dims: bytes, types: bytes) -> tuple[int | None, str]:
    """Items and item type of an operator's first argument; None and "" where the trace has none."""
    shapes, words = parsed(dims), parsed(types)
    return elements(shapes[0]) if shapes else None, item_type(words[0]) if words else ""


def tensors_in_words(dims: Sequence[Any]) -> str:
    """The shapes of an operator's tensors: `16x3x32x32, 16x3x3x3`."""
    known = [s for s in dims if isinstance(s, list) and s and type(s[0]) is int]
    return ", ".join("x".join(str(n) for n in shape) for shape in known)
