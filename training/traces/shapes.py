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
    "short int": "int16",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "long long": "int64",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
    "c10::float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e5m2": "float8_e5m2",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
}

MOST = 1 << 50  # items, bytes or ranks: more is no number
LEVELS = 4  # lists in lists: the arguments, tensors of one, sizes


def item_type(word: Any) -> str:
    """PyTorch's name of an item type; "" for what is none, as `Scalar`."""
    return TYPE_NAMES.get(word.lower(), "") if isinstance(word, str) else ""


def item_bytes(dtype: str) -> int | None:
    """Bytes of an item; None for a type that is not known."""
    return 1 if dtype.startswith("float8") else ITEM_TYPES.get(dtype)


def parsed(text: bytes) -> list[Any]:
    """A trace's list of shapes or of types; empty where it is none, or has what is neither."""
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) and _right(found, LEVELS) else []


def _right(value: Any, levels: int) -> bool:
    """Whether these are sizes and words, in at most so many lists."""
    if isinstance(value, list):
        return levels > 0 and all(_right(part, levels - 1) for part in value)
    if isinstance(value, str):
        return value.isascii()
    return type(value) is int and 0 <= value < MOST


def elements(shape: Any) -> int | None:
    """Items of a tensor, or of all tensors of a list; None for what is neither, or too many."""
    if not isinstance(shape, list) or not shape:
        return None
    if all(type(size) is int for size in shape):
        found = math.prod(shape)
        return found if found < MOST else None
    parts = [elements(part) for part in shape]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def tensors(dims: bytes, types: bytes) -> list[tuple[int, str]]:
    """Items and item type ("" of a list of tensors) of an operator's arguments that are tensors."""
    shapes, words = parsed(dims), parsed(types)
    words += [""] * (len(shapes) - len(words))
    found = []
    for shape, word in zip(shapes, words, strict=False):
        dtype = item_type(word)
        items = 1 if shape == [] and dtype else elements(shape)  # a scalar has no sizes
        if items is not None:
            found.append((items, dtype))
    return found


def tensors_in_words(dims: Sequence[Any]) -> str:
    """The shapes of an operator's tensors: `16x3x32x32, 16x3x3x3`."""
    known = [s for s in dims if isinstance(s, list) and s and type(s[0]) is int]
    return ", ".join("x".join(str(n) for n in shape) for shape in known)
