"""The arguments of a node: three lists that run in parallel, of values, shapes and types.

A tensor's value is [tensor id, storage id, offset, elements, bytes of an element, device]; a list of
tensors has a list in each, and its type names those of all: GenericList[Tensor(float),Tensor(float)].

References
----------
pytorch: torch/csrc/profiler/standalone/execution_trace_observer.cpp (convertIValue).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from calib.foundation.layers import Shape
from calib.training.importers.execution_traces.record import MOST_TENSORS, TraceTensor, dtype_named

LIST, DEEPEST = "GenericList[", 8
STORAGE, ELEMENTS, ITEM_BYTES, WHOLE = 1, 3, 4, 6  # places in a tensor's value, and its length


class Argument(NamedTuple):
    """A tensor of a node's arguments; `value` is [] where the trace has only shapes and types."""

    shape: Shape
    dtype: str
    value: Sequence[Any] = ()

    @property
    def storage(self) -> int | None:
        """What memory it is in."""
        known = len(self.value) >= WHOLE and isinstance(self.value[STORAGE], int)
        return self.value[STORAGE] if known else None

    @property
    def elements(self) -> int:
        """How many; raises ValueError where the trace does not say."""
        return _count(self.value, ELEMENTS)

    @property
    def nbytes(self) -> int:
        """Its bytes; raises ValueError where the trace does not say."""
        return self.elements * _count(self.value, ITEM_BYTES)

    @property
    def tensor(self) -> TraceTensor:
        """Shape and type alone."""
        return TraceTensor(self.shape, self.dtype)


def _count(value: Sequence[Any], place: int) -> int:
    if len(value) < WHOLE or not isinstance(value[place], int) or value[place] < 0:
        raise ValueError(f"a tensor of {str(value)[:80]}")
    return int(value[place])


def arguments(values: Any, shapes: Any, types: Any) -> tuple[Argument, ...]:
    """The tensors of the lists, those in lists too, in order. Raises ValueError where they differ."""
    for each in (shapes, types):
        if not isinstance(each, list):
            raise ValueError("its arguments are no list")
    found = list(_tensors(values, shapes, types, DEEPEST))
    if len(found) > MOST_TENSORS:
        raise ValueError(f"more than {MOST_TENSORS} tensors")
    return tuple(found)


def _tensors(values: Any, shapes: Any, types: Sequence[Any], depth: int) -> Iterator[Argument]:
    if not isinstance(shapes, list) or len(shapes) < len(types) or depth == 0:
        raise ValueError("shapes and types of its arguments differ")
    known = isinstance(values, list) and len(values) >= len(types)
    for at, kind in enumerate(types):
        value = values[at] if known else []
        if not isinstance(kind, str):
            raise ValueError(f"an argument of type {kind!r:.40}")
        if kind.startswith("Tensor("):
            yield Argument(_shape(shapes[at]), dtype_named(kind), _list(value))
        elif kind.startswith(LIST) and "Tensor(" in kind:
            yield from _tensors(value, shapes[at], _split(kind), depth - 1)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _shape(of: Any) -> Shape:
    if not isinstance(of, list) or not all(isinstance(n, int) and n >= 0 for n in of):
        raise ValueError(f"a tensor of shape {str(of)[:80]}")
    return tuple(of)


def _split(kind: str) -> list[str]:
    """The types in a list of them: commas count outside brackets alone."""
    found, depth, word = [], 0, ""
    for character in kind.removeprefix(LIST).removesuffix("]"):
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            found.append(word)
            word = ""
        else:
            word += character
    return [each.strip() for each in [*found, word] if each.strip()]


def of_text(shapes: str, types: str) -> tuple[Argument, ...]:
    """Of Chakra's IOInfo, whose lists are written as Python prints them.

    A text that is no such list (cut off, say) has no tensors.
    """
    try:
        lists = [json.loads(text.replace("'", '"')) for text in (shapes or "[]", types or "[]")]
        return arguments([], *lists)
    except (ValueError, RecursionError):
        return ()
