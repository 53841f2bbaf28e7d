"""A model's layers by torch.export: every ATen operator, whatever it is.

The module is exported on tensors without data, at a batch that is a large prime: what it divides
(sizes, arguments) grows with the batch, and no symbol has to be carried through the model. Operators
that are a kind of layer of their own become that; all others keep their name and arguments
(foundation/operators.py). What only changes a buffer, or never reaches the output, is left out.
"""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

from calib.foundation.errors import InputError
from calib.foundation.layers import LayerShape, Shape
from calib.foundation.operators import DIFFERENTIABLE, PRIME, Operator, one_sample
from calib.oracle.model.graph import INPUT
from calib.oracle.trace.atens import OwnKind, own_kind
from calib.oracle.trace.checkpoints import region_of
from calib.oracle.trace.facts import facts_of
from calib.oracle.trace.layer_list import LayerList
from calib.oracle.trace.lines import at, made_at

MOST_CALLS = 200_000  # more come from a loop over the samples
GRADIENTS, AUTOCAST = "wrap_with_set_grad_enabled", "wrap_with_autocast"
CHECKS = ("sym_", "_assert")  # how they begin
PASSED_ON = frozenset(("lift_fresh_copy", "detach_", "alias"))
SETS_DATA = frozenset(("_has_compatible_shallow_copy_type", "set_"))  # as x.data = y does
LEAVES = "torch.nn.modules."
CONTAINERS = frozenset(("Sequential", "ModuleList", "ModuleDict", "MultiheadAttention"))


class Untraceable(InputError):
    """The message names the call that cannot be traced."""


class Part(NamedTuple):
    """A part of the forward under a context manager, as a graph of its own.

    `uncast`: the kind of device whose autocast is off in it; "" where none is.
    """

    graph: Any
    given: list[Any]
    no_grad: bool = False
    uncast: str = ""


def part_of(node: fx.Node) -> Part | None:
    """The part that a node calls, or None. Raises InputError where it runs in another item type."""
    if str(node.target) == GRADIENTS:  # torch.no_grad
        enabled, graph, *given = node.args
        return Part(graph, given, no_grad=not enabled)
    if str(node.target) == AUTOCAST:
        device, item_type, enabled, _, graph, *given = node.args
        if enabled:
            raise InputError(
                f"its forward turns autocast on, for {_word(item_type)}: leave the item type to the "
                "execution"
            )
        return Part(graph, given, uncast=str(device))
    return None


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: the layer that it comes from, or what the model holds."""

    tensor: Tensor  # without data
    source: str = ""  # layer, or "input"; "" for what is held
    held: str = ""  # name of the parameter or buffer
    is_parameter: bool = False  # that is trained: a frozen one is as a buffer

    @property
    def size(self) -> Shape:
        """At PRIME samples."""
        return tuple(self.tensor.shape)


class ExportedLayers:
    """The layers of an exported graph, one call after another."""

    def __init__(self, program: Any, layers: LayerList) -> None:
        self.layers, self._program = layers, program.graph_module
        signature = program.graph_signature
        self._no_grad = False  # in a part of the forward that computes no gradients
        self._values: dict[fx.Node, Any] = {}
        # buffers that are not saved with the model are among them, without values: the module has those
        self._constants: dict[str, Tensor] = {
            name: of for name, of in program.constants.items() if not isinstance(of, FakeTensor)
        }
        self._names = {
            **{name: (held, True) for name, held in signature.inputs_to_parameters.items()},
            **{name: (held, False) for name, held in signature.inputs_to_buffers.items()},
            **{name: (held, False) for name, held in _constants(signature)},
        }
        self._lost = {
            name for name, held in _constants(signature) if held not in self._constants
        }  # made inside by what the graph does not show
        self._user = set(signature.user_inputs)
        self._returned = set(signature.user_outputs)
        self._operators: dict[Any, Operator] = {}
        self._made_in = Counter[str]()  # call of a module -> layers that it makes

    @property
    def graph(self) -> fx.GraphModule:
        """The graph of the calls."""
        found: fx.GraphModule = self._program
        return found

    def source_of(self, node: fx.Node) -> str:
        """The layer or input whose output a node is; "" for what the model holds, or no tensor."""
        value = self._values.get(node)
        return value.source if isinstance(value, Value) else ""

    def held(self, node: fx.Node) -> str | Tensor | None:
        """Of an input of the graph: the name of a parameter or buffer, or a constant; else None."""
        if node.name in self._user:
            return None
        name: str = self._names.get(node.name, (node.name, False))[0]
        return self._constants.get(name, name)

    @property
    def names_types(self) -> bool:
        """Whether a call names torch's default item type: that of the model, or always that one."""
        default = torch.get_default_dtype()
        parts = [part for part in self._program.modules() if isinstance(part, fx.GraphModule)]
        return any(
            default in (*node.args, *node.kwargs.values())
            for part in parts
            for node in part.graph.nodes
        )

    def is_alone(self, node: fx.Node) -> bool:
        """Whether the layer of a node is all that its innermost module computes in this call."""
        return self._made_in[_call_of(node)] == 1

    def returned(self, node: fx.Node) -> list[fx.Node]:
        """What the model returns, of the graph's output: without changed buffers."""
        return [each for each in node.all_input_nodes if each.name in self._returned]

    def record(self) -> tuple[str, ...]:
        """Record every call; the layers whose outputs the model returns. Raises InputError."""
        nodes = list(self._program.graph.nodes)
        if len(nodes) > MOST_CALLS:
            raise InputError(
                f"it has over {MOST_CALLS} calls: does it loop over the samples of a batch?"
            )
        for node in nodes:
            if node.op == "placeholder":
                self._values[node] = self._placeholder(node)
            elif node.op != "output":
                self._run(node, self._program)
        return self._outputs(nodes[-1])

    def _run(self, node: fx.Node, within: fx.GraphModule) -> None:
        """Record a node that is neither an input nor the output."""
        self.layers.region = region_of(node)
        try:
            if node.op == "get_attr":
                self._values[node] = within.get_submodule(str(node.target))
            else:
                self._values[node] = self._call(node)
        except Untraceable:  # within a part
            raise
        except InputError as error:
            raise Untraceable(f"cannot trace {_words(node)}: {error}") from None

    def _part(self, part: fx.GraphModule, given: Iterable[Any], no_grad: bool) -> Any:
        """What a part of the forward returns, its calls recorded like all others."""
        before, self._no_grad = self._no_grad, self._no_grad or no_grad
        arguments, result = iter(given), None
        for node in part.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = self._argument(next(arguments))
            elif node.op == "output":
                (returned,) = node.args
                several = isinstance(returned, list | tuple)
                result = [*map(self._argument, returned)] if several else self._argument(returned)
            else:
                self._run(node, part)
        self._no_grad = before
        return result

    def _placeholder(self, node: fx.Node) -> Value | None:
        tensor = node.meta.get("val")
        if not isinstance(tensor, Tensor):
            return None
        if node.name in self._user:
            return Value(tensor, INPUT)
        if node.name in self._lost and node.users:
            raise Untraceable(
                "its forward uses a tensor beside autograd, as torch.autograd.grad and .data do"
            )
        held, is_parameter = self._names.get(node.name, (node.name, False))
        if is_parameter and not tensor.is_floating_point() and node.users:
            raise Untraceable(f"its weight {held} is {_word(tensor.dtype)}, and calib's are floats")
        return Value(tensor, held=held, is_parameter=is_parameter and self.layers.trains(held))

    def _outputs(self, node: fx.Node) -> tuple[str, ...]:
        found = []
        returned = self.returned(node)
        if len(returned) != self.layers.n_outputs:
            wanted = "one tensor" if self.layers.n_outputs == 1 else "the pair (main, auxiliary)"
            raise InputError(
                f"a model must return {wanted}, not {len(returned)}: wrap it in a module that returns "
                "what its loss is of"
            )
        for each in returned:  # not the changed buffers
            value = self._values.get(each)
            if not isinstance(value, Value) or not value.source or value.source == INPUT:
                raise InputError("a model must return a tensor that it computes from its input")
            if not value.tensor.is_floating_point():
                raise InputError(
                    f"a model must return numbers with a gradient, not {value.tensor.dtype}"
                )
            if one_sample(value.size, PRIME)[1] is not None:
                raise InputError("a model must return a tensor whose first dimension is the batch")
            found.append(value.source)
        return tuple(found)

    def _call(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            return self._argument(node.args[0])[node.args[1]]
        if (part := part_of(node)) is not None:
            return self._part(self._argument(part.graph), part.given, part.no_grad)
        if not isinstance(node.target, torch._ops.OpOverload):
            raise InputError("it is no ATen operator")
        base = node.target._schema.name.split("::")[-1]
        if base.startswith(CHECKS):
            return None
        if base in SETS_DATA:
            raise InputError("the model sets the data of a tensor in its forward")
        found = node.meta.get("val")
        if base in PASSED_ON or self.changes_buffer(node):
            return self._values[node.all_input_nodes[0]]
        made = found if isinstance(found, list | tuple) else [found]
        sizes = [size for each in made if isinstance(each, Tensor) for size in each.shape]
        if any(isinstance(size, torch.SymInt) for size in sizes):
            raise InputError("the size of its result depends on data")
        if not isinstance(found, Tensor | list | tuple):
            raise InputError(f"its result is {type(found).__name__}, not a tensor")
        own = None
        if isinstance(found, Tensor) and not self._no_grad:
            own = own_kind(node, self._argument, PRIME)
        return self._own(node, own) if own else self._operator(node, found)

    def _argument(self, given: Any) -> Any:
        return self._values.get(given) if isinstance(given, fx.Node) else given

    def changes_buffer(self, node: fx.Node) -> bool:
        """Whether it only changes what the model holds in place, as a counter of batches."""
        target: Any = node.target
        value = self._argument(node.args[0]) if node.args else None
        if not (target._schema.is_mutable and isinstance(value, Value) and value.held):
            return False
        if value.is_parameter:
            raise InputError(f"the model changes its weight {value.held} in its forward")
        return bool(target._schema.name.endswith("_"))

    def _own(self, node: fx.Node, own: OwnKind) -> Value:
        tensor = node.meta["val"]
        name = self._name(node, own.kind)
        self.layers.append(
            name,
            own.kind,
            tuple(value.source for value in own.inputs),
            tuple(tensor.shape[1:]),
            self.layers.parameters(name, [value.held for value in own.parameters]),
            own.attributes,
        )
        return Value(tensor, name)

    def _operator(self, node: fx.Node, found: Any) -> Any:
        several = list(found) if isinstance(found, list | tuple) else [found]
        tensors = [each for each in several if isinstance(each, Tensor)]
        call = _Call(self._values)
        arguments = [call.encode(each) for each in node.args]
        options = {
            name: call.encode(each)
            for name, each in node.kwargs.items()
            if name not in ("layout", "pin_memory")
        }
        target: Any = node.target
        name = self._name(node, target._schema.name.split("::")[-1].rstrip("_"))
        try:
            sizes = [one_sample(value.size, PRIME) for value in call.inputs]
            made = [one_sample(tuple(each.shape), PRIME) for each in tensors]
        except ValueError as error:
            raise InputError(str(error)) from None
        weighted = [self.layers.weighted[value.source] for value in call.inputs]
        axes = tuple(axis for _, axis in (*sizes, *made))
        types = tuple(_type(value) for value in (*[x.tensor for x in call.inputs], *tensors))
        orders = tuple(_order(value.tensor) for value in call.inputs)
        bare = Operator(
            name=str(target),
            arguments=json.dumps(arguments),
            options=json.dumps(options),
            axes=axes if any(axis is not None for axis in axes) else (),
            types=types if any(types) else (),
            orders=orders if any(orders) else (),
            fixed=tuple(
                place
                for place, value in enumerate(call.inputs)
                if any(weighted) and _type(value.tensor) in DIFFERENTIABLE and not weighted[place]
            ),
            constants=tuple((value.size, _type(value.tensor)) for value in call.constants),
            outputs=tuple(shape for shape, _ in made[1:]),
            no_grad=self._no_grad,
        )
        parameters = self.layers.parameters(name, [value.held for value in call.parameters])
        shape = LayerShape(
            kind="operator",
            input_shapes=tuple(shape for shape, _ in sizes),
            output_shape=made[0][0] if made else (),
            parameter_shapes=parameters,
            operator=bare,
        )
        key = shape.input_shapes, shape.output_shape, shape.parameter_shapes, bare
        if key not in self._operators:
            self._operators[key] = facts_of(shape)
        self.layers.append(
            name,
            "operator",
            tuple(value.source for value in call.inputs),
            shape.output_shape,
            parameters,
            operator=self._operators[key],
        )
        if not isinstance(found, list | tuple):
            return Value(found, name)
        return [
            Value(each, name if place == 0 else f"{name}[{place}]")
            for place, each in enumerate(several)
        ]

    def _name(self, node: fx.Node, kind: str) -> str:
        """The module's path where it is one of torch.nn, else the path with the operator's name."""
        path, class_name = innermost(node)
        self._made_in[_call_of(node)] += 1
        module = class_name.rpartition(".")[2]
        if path and class_name.startswith(LEAVES) and module not in CONTAINERS:
            return self.layers.unique(path)
        return self.layers.unique(f"{path}.{kind}" if path else kind)


class _Call:
    """The arguments of a call as JSON, with the tensors that they name."""

    def __init__(self, values: dict[fx.Node, Any]) -> None:
        self._values = values
        self.inputs: list[Value] = []
        self.parameters: list[Value] = []
        self.constants: list[Value] = []

    def encode(self, given: Any) -> Any:
        """One argument. Raises InputError for what JSON cannot hold."""
        found = given
        if isinstance(given, fx.Node):
            found = self._tensor(self._values.get(given))
        elif isinstance(given, list | tuple):
            found = [self.encode(each) for each in given]
        elif type(given) is int and given and given % PRIME == 0:
            found = {"batch": given // PRIME}
        elif isinstance(given, torch.dtype):
            found = {"dtype": "" if given == torch.get_default_dtype() else _word(given)}
        elif isinstance(given, torch.memory_format):
            found = {"memory_format": _word(given)}
        elif isinstance(given, torch.device):
            found = {"device": ""}
        elif not (given is None or isinstance(given, bool | int | float | str)):
            raise InputError(f"its argument {given} is no number, text or tensor")
        return found

    def _tensor(self, value: Any) -> Any:
        if not isinstance(value, Value):
            raise InputError("it reads what is no tensor")
        kind = "input" if value.source else "parameter" if value.is_parameter else "constant"
        of = {"input": self.inputs, "parameter": self.parameters, "constant": self.constants}[kind]
        place = next((at for at, each in enumerate(of) if each is value), len(of))
        if place == len(of):
            of.append(value)
        return {kind: place}


def _type(tensor: Tensor) -> str:
    return "" if tensor.dtype == torch.get_default_dtype() else _word(tensor.dtype)


def _word(item: object) -> str:
    return str(item).removeprefix("torch.")


def _order(tensor: Tensor) -> Shape:
    """Its dimensions by falling stride; () where it is contiguous."""
    if tensor.is_contiguous():
        return ()
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.dim()), key=lambda place: (-strides[place], place)))
    return () if order == tuple(range(tensor.dim())) else order


def _constants(signature: Any) -> Iterator[tuple[str, str]]:
    for spec in signature.input_specs:
        if spec.kind.name == "CONSTANT_TENSOR":
            yield spec.arg.name, spec.target


def innermost(node: fx.Node) -> tuple[str, str]:
    """Path and full class name of the innermost module whose forward made the node."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    return path, kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def _call_of(node: fx.Node) -> str:
    """The call of that module, also where it is called again."""
    return next(reversed(node.meta.get("nn_module_stack") or {}), "")


def _words(node: fx.Node) -> str:
    path, kind = innermost(node)
    where = f" in {path} ({kind.rpartition('.')[2]})" if path else ""
    target: Any = node.target
    called = target if isinstance(target, str | torch._ops.OperatorBase) else target.__name__
    return f"{called}{where}{at(made_at(node))}"
