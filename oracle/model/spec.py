"""The ModelSpec record (model.json): the layers of a model with shapes, kinds and edges.

It is traced from a PyTorch module (oracle/trace/tracing.py), not typed by hand, and read without torch.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import math
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from calib.fitting.parameters.signature import digest
from calib.foundation.errors import FileError, InputError
from calib.foundation.execution import USUAL, ExecutionName, ItemType, execution_of
from calib.foundation.files import read_record, write_json
from calib.foundation.garbage import rare_collections
from calib.foundation.layers import LayerShape, Shape
from calib.foundation.own import Own
from calib.foundation.quantities import FormatVersion
from calib.foundation.records import Record
from calib.oracle.model.graph import INPUT, check_graph, check_head, check_kinds
from calib.oracle.model.graph_layers import size_text, why_no_tensor
from calib.oracle.model.layer import Layer, contents
from calib.oracle.once import once

MODEL_FORMAT = 1
IDENTITY = "pooled to the size that it has, the identity: not run, so that it costs nothing"


class ModelSpec(Record):
    """A model as the oracle sees it; the last layer is the loss.

    Raises InputError if the layers do not form a model (oracle/model/graph.py).
    """

    format_version: FormatVersion = MODEL_FORMAT
    name: str = Field(description="name of the model")
    input_shape: Shape = Field(description="of one sample")
    classes: int = Field(ge=1, description="outputs of the last weighted layer")
    layers: tuple[Layer, ...] = Field(min_length=1, description="the last is the loss")
    execution: ExecutionName = USUAL
    built_by: str = Field(
        default="",
        description="MODULE:FUNCTION of the user's code that builds it; empty: not known, or registered",
    )
    unused: dict[str, Shape] = Field(
        default_factory=dict,
        description="weights without a gradient that no layer has, by their names: they take memory",
    )
    stopped: dict[str, Shape] = Field(
        default_factory=dict,
        description="weights whose gradients the model stops, by their names: constants of layers",
    )

    @model_validator(mode="before")
    @classmethod
    def _known_kinds(cls, content: Any) -> Any:
        return _with_equal_shapes_once(content)

    @model_validator(mode="after")
    def _is_a_model(self) -> ModelSpec:
        check_graph(self.input_shape, self.layers)
        check_head(self.name, self.classes, self.layers)
        for name, size in (*self.unused.items(), *self.stopped.items()):
            if why := why_no_tensor(tuple(n or 1 for n in size)):  # a weight may have no items
                raise ValueError(f"weight {name}, {size_text(size)}: {why}")
        return self

    @cached_property  # not a field: neither written nor compared, like those below
    def cache(self) -> dict[Any, Any]:
        """Results that depend on the layers alone (oracle/once.py)."""
        return {}

    def __hash__(self) -> int:
        """By name: cheap, and few models share one."""
        return hash(self.name)

    @once
    def run_as(self, execution: str) -> ModelSpec:
        """The same layers, run in another way; equal names give the same object."""
        if execution_of(execution).name == self.execution:
            return self
        return self.model_copy(update={"execution": execution_of(execution).name})

    @property
    def items(self) -> ItemType:
        """Bytes of an activation, and of a weight and its gradient."""
        return execution_of(self.execution).items

    @property
    def is_profiled(self) -> bool:
        """Whether it is one layer, whose operators are not known (`calib model profile`)."""
        of = self.layers[0].shape.operator
        return of is not None and of.is_whole

    @cached_property
    def sha256(self) -> str:
        """Hash of the canonical JSON, as parameter files are signed."""
        return digest(self.model_dump(mode="json"))

    @cached_property
    def alike(self) -> list[int]:
        """For every layer the index of the first layer of equal shape."""
        first: dict[tuple[object, ...], int] = {}
        known: dict[int, int] = {}  # by object: reading makes equal shapes one
        for index, layer in enumerate(self.layers):
            if id(layer.shape) not in known:
                known[id(layer.shape)] = first.setdefault(contents(layer.shape), index)
        return [known[id(layer.shape)] for layer in self.layers]

    @cached_property
    def parameter_shapes(self) -> tuple[Shape, ...]:
        """Shapes of all weights and biases in layer order, as an optimizer sees them."""
        return tuple([shape for layer in self.layers for shape in layer.own_parameters])

    @cached_property
    def tied(self) -> str:
        """The first two layers that share weights, in words; "" if none do."""
        for layer in self.layers:
            for owner in layer.shared_parameters.values():
                return f"{owner} and {layer.name} of {self.name} share weights"
        return ""

    @cached_property
    def tied_layers(self) -> frozenset[str]:
        """The names of all layers that share weights with another."""
        return frozenset(
            name
            for layer in self.layers
            for owner in layer.shared_parameters.values()
            for name in (owner, layer.name)
        )

    @cached_property
    def parameter_items(self) -> int:
        """Number of weights and biases."""
        return sum(map(math.prod, self.parameter_shapes))

    @cached_property
    def untrained(self) -> dict[str, Shape]:
        """The weights without a gradient, by their names."""
        return self.unused | self.stopped

    @cached_property
    def unused_items(self) -> int:
        """Number of weights that no layer has."""
        return sum(map(math.prod, self.unused.values()))

    @cached_property
    def all_items(self) -> int:
        """Number of weights and biases as publications count them: with those without a gradient."""
        return self.parameter_items + sum(map(math.prod, self.untrained.values()))

    @cached_property
    def told(self) -> list[str]:
        """Notes for every prediction: layers that are not run."""
        names = [layer.name for layer in self.layers if layer.shape.is_identity]
        return [f"{', '.join(names)}: {IDENTITY}"] if names else []

    @cached_property
    def own(self) -> Own | None:
        """How a user's code builds it, and on which data; None where it does not say."""
        if not self.built_by:
            return None
        loss = self.layers[-1].shape
        return Own(
            self.built_by,
            self.input_shape,
            "mse" if loss.kind == "mse" else "cross_entropy",
            loss.classes,
            loss.places,
            "classes_last" in loss.attributes,
            self.rows,
            untrained=tuple(sorted(self.untrained)),
        )

    @cached_property
    def rows(self) -> int:
        """Below which the integers of its input are: rows of the embeddings that look it up.

        1 where other operators read integers, 0 for an input of numbers.
        """
        if self.is_profiled and (of := self.layers[0].shape.operator):
            return int(of.named["rows"])
        indices, tables = {INPUT}, []  # the input, also where it was only given another shape
        integers = False
        for layer in self.layers:
            if indices.isdisjoint(layer.inputs):
                continue
            reads = [at for at, source in enumerate(layer.inputs) if source in indices]
            if (of := layer.shape.operator) is not None:
                integers = integers or any(of.type(at) == "int64" for at in reads)
            frozen = [size for size, _ in of.constants] if of is not None else []
            table = [*layer.shape.parameter_shapes, *frozen][:1]
            if layer.shape.name in ("embedding", "embedding_bag") and table:
                tables.append(table[0][0])
            elif layer.shape.is_view:
                indices.update(layer.outputs)
        return min(tables, default=int(integers))

    def forward_flops(self, batch: int = 1) -> float:
        """Floating-point operations of a forward over `batch` samples (a multiply-add is 2)."""
        return sum(layer.shape.forward_flops(batch) for layer in self.layers)

    def multiply_adds(self) -> float:
        """MACs per sample of convolutions and products of matrices, as publications count them."""
        products = [layer.shape for layer in self.layers if layer.shape.is_product]
        return sum(shape.forward_flops(1) for shape in products) / 2.0

    def write(self, path: Path) -> None:
        """Write model.json whole or not at all."""
        write_json(path, self.model_dump())

    @classmethod
    @rare_collections()
    def read(cls, path: Path | str) -> ModelSpec:
        """Read model.json. Raises FileError, also if its layers do not form a model."""
        try:
            return read_record(cls, Path(path), "model file", MODEL_FORMAT)
        except InputError as error:
            raise FileError(f"model file {path}: {error}") from error


def _with_equal_shapes_once(content: Any) -> Any:
    """The content of a model.json, equal shapes of its layers validated once: a deep model has few.

    Those that are wrong are left as they are.
    """
    layers = content.get("layers") if isinstance(content, dict) else None
    if not isinstance(layers, list | tuple):
        return content
    known: dict[bytes, LayerShape] = {}

    def once(layer: Any) -> Any:
        shape = layer.get("shape") if isinstance(layer, dict) else None
        if not isinstance(shape, dict):
            return layer
        key = marshal.dumps(shape, 2)  # without references
        if key not in known:
            known[key] = LayerShape.model_validate(shape)
        return layer | {"shape": known[key]}

    try:
        return content | {"layers": [once(layer) for layer in layers]}
    except ValueError:  # validated again, the error says which layer's
        check_kinds(content)
        return content


def tensors_key(shapes: tuple[Shape, ...]) -> str:
    """Hash of a list of tensor shapes: the key of measured update, pack and unpack times."""
    text = json.dumps([list(shape) for shape in shapes])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
