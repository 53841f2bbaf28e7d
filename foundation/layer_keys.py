"""Parse a layer key back into its shape (the inverse of LayerShape.key)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from calib.foundation.errors import InputError
from calib.foundation.layers import Attribute, LayerShape, Shape

_KEY = re.compile(
    r"(?P<kind>\w+)\((?P<attributes>\{[^|]*\}|[^()|]*)\)\|(?P<batch>\d+)\*(?P<inputs>-|[\dx+]+)->(?P<output>[\dx]+)"
    r"\|(?P<parameters>-|[\dx+]+)\|(?P<execution>[\w+-]+)(?P<first>\|no-input-grad)?"
)
# attributes that are one number per dimension, also where there is one dimension
PER_DIMENSION = ("kernel", "stride", "padding", "normalized_shape")


@dataclass(frozen=True)
class NamedLayer:
    """What a key says: a layer at a batch, and how it runs."""

    shape: LayerShape
    batch: int
    execution: str
    needs_input_grad: bool


def iteration_key(layers: Iterable[str], tensors: str, optimizer: str) -> str:
    """16 hex digits that name the work of a rank: keys of its layers and its weights, and its update."""
    text = "\n".join([*sorted(layers), tensors, optimizer])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def execution_in(key: str) -> str:
    """The execution in a key (without a graph); "" where the key names no layer."""
    parts = key.split("|")
    return parts[3] if len(parts) > 3 else ""


def but_batch(key: str) -> tuple[str, str]:
    """The key of a layer without its batch."""
    kind, _, rest = key.partition("|")
    return kind, rest.partition("*")[2]


def parse(key: str) -> NamedLayer | None:
    """The layer that `key` names; None where LayerShape.key would not write such a key.

    The number that a loss puts out is written as one item, and comes back as shape (1,); an operator
    comes back without what was found by running it.
    """
    found = _KEY.fullmatch(key)
    if not found:
        return None
    called = found["kind"] == "operator"
    try:
        shape = LayerShape.model_validate(
            {
                "kind": found["kind"],
                "input_shapes": _shapes(found["inputs"]),
                "output_shape": _shape(found["output"]),
                "parameter_shapes": _shapes(found["parameters"]),
                "attributes": {} if called else _attributes(found["attributes"]),
                "operator": json.loads(found["attributes"]) if called else None,
            }
        )
        layer = NamedLayer(shape, int(found["batch"]), found["execution"], not found["first"])
        again = shape.key(layer.batch, layer.execution, layer.needs_input_grad)
    except (ValidationError, ValueError, RecursionError, InputError):
        return None
    return layer if again == key else None


def _shape(text: str) -> Shape:
    return () if text == "0" else _dims(text)  # "0": an operator's number for each sample


def _dims(text: str) -> Shape:
    return tuple(map(int, text.split("x")))


def _shapes(text: str) -> tuple[Shape, ...]:
    return () if text == "-" else tuple(map(_shape, text.split("+")))


def _attributes(text: str) -> dict[str, Attribute]:
    return dict(map(_attribute, filter(None, text.split(","))))


def _attribute(text: str) -> tuple[str, Attribute]:
    name, value = text.split("=")
    if value in ("True", "False"):
        return name, value == "True"
    if name in PER_DIMENSION:
        return name, tuple(map(int, value.split("x")))
    return name, int(value) if value.isdecimal() else float(value)
