"""Programs of models that torch.export traces: they compute what the module computes."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import pytest
import torch
from tests.training.operator_models import ENTRIES, Mobile
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.trace.tracing import trace
from calib.training.checks.chance import WithoutChance
from calib.training.layer_program import LayerProgram, layer_program
from calib.training.models import ModelEntry, built, entry
from calib.training.step import in_type, loss_function, synthetic_batch
from calib.training.strategies import make_worker
from calib.training.worker import Task, WorkerOptions

FULL = ("awkward", "convnext")  # the modules themselves make numbers in float32
EACH = pytest.mark.parametrize("name", sorted(ENTRIES))


def both(name: str, batch: int, dtype: torch.dtype) -> tuple[nn.Module, nn.Module, LayerProgram]:
    """A module, an equal one, and the program of that."""
    module = built(ENTRIES[name], 3).to(dtype).train()
    other = copy.deepcopy(module)
    return module, other, layer_program(other, ENTRIES[name], batch)


def stepped(run: nn.Module, name: str, batch: int, dtype: torch.dtype) -> Tensor:
    """The loss of a forward, after its backward; random numbers are the same each time."""
    inputs, targets = synthetic_batch(ENTRIES[name], batch, 1)
    torch.manual_seed(5)
    output = run(in_type(inputs, dtype))
    loss: Tensor = loss_function(ENTRIES[name])(output, in_type(targets, dtype))
    loss.backward()
    return loss


@EACH
@pytest.mark.parametrize(("batch", "dtype"), [(3, torch.float64), (4, torch.bfloat16)])
def test_a_program_is_its_module(name: str, batch: int, dtype: torch.dtype) -> None:
    """Losses, gradients and buffers after two steps, with the same dropout."""
    if dtype == torch.bfloat16 and name in FULL:
        return
    module, other, program = both(name, batch, dtype)
    names = dict(program.trained())
    assert {name: id(p) for name, p in names.items()} == {
        name: id(p) for name, p in other.named_parameters()
    }
    for _ in range(2):
        assert torch.equal(
            stepped(program, name, batch, dtype), stepped(module, name, batch, dtype)
        )
    wanted = dict(module.named_parameters())
    close = {"rtol": 1e-12, "atol": 1e-14} if dtype == torch.float64 else {"rtol": 0.0, "atol": 0.0}
    for weight, parameter in names.items():
        torch.testing.assert_close(parameter.grad, wanted[weight].grad, **close)
    found = dict(other.named_buffers())
    for buffer, value in module.named_buffers():
        assert torch.equal(found[buffer], value), buffer


@EACH
def test_the_module_is_left_as_it_is(name: str) -> None:
    module = built(ENTRIES[name], 3)
    before = [*module.state_dict()], repr(module), [*module.named_modules()]
    held = [id(x) for x in (*module.parameters(), *module.buffers())]
    layer_program(module, ENTRIES[name], 2)
    assert before == ([*module.state_dict()], repr(module), [*module.named_modules()])
    assert held == [id(x) for x in (*module.parameters(), *module.buffers())]


@EACH
def test_every_layer_is_seen_with_the_shape_of_its_record(name: str) -> None:
    _, _, program = both(name, 3, torch.float32)
    seen: dict[str, Tensor] = {}
    program.observer = seen.__setitem__
    stepped(program, name, 3, torch.float32)
    wanted = {
        output: size
        for layer in program.spec.layers[:-1]
        for output, size in zip(layer.outputs, layer.shape.output_sizes(3), strict=True)
    }
    assert {layer: tuple(output.shape) for layer, output in seen.items()} == {
        layer: size for layer, size in wanted.items() if layer in seen
    }
    read = {source for layer in program.spec.layers for source in layer.inputs} - {"input"}
    assert read <= seen.keys()


def test_convolutions_products_and_batch_norms_are_modules() -> None:
    """So that a strategy can put a part in their place; weights keep their names."""
    for name in ("vit", "mobile"):
        _, _, program = both(name, 2, torch.float32)
        for layer in program.spec.layers:
            if layer.shape.kind in ("conv", "linear", "batch_norm"):
                module = program.module_of(layer.name)
                shapes = tuple(tuple(p.shape) for p in module.parameters())
                assert shapes == layer.shape.parameter_shapes
    owners = both("vit", 2, torch.float32)[2].parameter_layers()
    assert owners["encoder.layers.0.self_attn.in_proj_weight"].startswith(
        "encoder.layers.0.self_attn"
    )


def test_a_tied_weight_has_its_first_name() -> None:
    _, _, program = both("gpt", 2, torch.float32)
    assert [name for name, _ in program.graph.named_parameters()].count("tokens.weight") == 1
    assert program.parameter_layers()["tokens.weight"] == "tokens"
    assert "head.weight" not in dict(program.trained())


def test_batches_are_counted_once() -> None:
    _, other, program = both("mobile", 4, torch.float32)
    for _ in range(3):
        stepped(program, "mobile", 4, torch.float32)
    assert isinstance(other, Mobile)
    norms = [part for part in other.modules() if isinstance(part, nn.BatchNorm2d)]
    assert [int(norm.num_batches_tracked or 0) for norm in norms] == [3, 3, 3]


@pytest.mark.parametrize("name", ["vit", "mobile", "convnext", "awkward"])
def test_without_dropout_a_program_draws_no_random_number(name: str) -> None:
    """Nor does the module, and both are the same for any seed."""
    module, _, program = both(name, 3, torch.float64)
    inputs = in_type(synthetic_batch(ENTRIES[name], 3, 1)[0], torch.float64)
    found: list[Any] = []
    for seed, run in enumerate((module, program, module, program)):
        torch.manual_seed(seed)
        with WithoutChance():
            found.append(run(inputs))
    assert all(torch.equal(found[0], other) for other in found[1:])


class _Calls(TorchDispatchMode):
    """Counts what runs, by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "name", ["resnet50-mini", "vgg16-mini", "alexnet-mini", "inception-v3-mini", "cosmoflow-mini"]
)
def test_a_program_of_a_registered_model_runs_the_models_calls(name: str) -> None:
    """Forward and backward, operator by operator; an adaptive pooling that is the identity is none."""
    about, counts, gradients = entry(name), list[Counter[str]](), list[list[Tensor | None]]()
    inputs, targets = synthetic_batch(about, 2, 1)
    spec = trace(about.build(), about.input_shape, name, about.loss, about.auxiliary_weight)
    for is_program in (False, True):
        module = built(about, 3)
        run = layer_program(module, about, 2) if is_program else module
        torch.manual_seed(5)
        with _Calls() as calls:
            loss_function(about)(run(inputs), targets).backward()
        counts.append(calls.counts)
        gradients.append([parameter.grad for parameter in module.parameters()])
        if isinstance(run, LayerProgram):
            assert run.spec == spec
    assert counts[0] == counts[1] and counts[0]["aten.convolution.default"]
    assert all(
        a is not None and b is not None and torch.equal(a, b)
        for a, b in zip(*gradients, strict=True)
    )


def test_modules_of_torch_nn_are_called() -> None:
    """So that their times are measured one by one: all that the model has."""
    about = entry("alexnet-mini")
    program = layer_program(built(about, 3), about, 2)
    called = {str(node.target) for node in program.graph.graph.nodes if node.op == "call_module"}
    leaves = {name for name, of in built(about, 3).named_modules() if not list(of.children())}
    assert called == leaves and "avgpool" in called


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.second = nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.relu(self.second(self.relu(self.first(x))))
        return made


def test_a_module_that_is_used_twice_is_called_twice() -> None:
    about = ModelEntry("twice", Twice, (6,), "mse", 6, 2)
    program = layer_program(Twice(), about, 2)
    called = [str(of.target) for of in program.graph.graph.nodes if of.op == "call_module"]
    assert called == ["first", "relu", "second", "relu"]
    assert [x.name for x in program.spec.layers[:-1]] == ["first", "relu", "second", "relu#2"]


class Patched(nn.Module):
    """One layer whose forward is more than the call of its kind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.twice = nn.Linear(6, 6), nn.ReLU()
        self.twice.forward = lambda x: torch.relu(x) + torch.relu(-x)  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.twice(self.linear(x))
        return made


def test_a_module_that_computes_more_is_not_called() -> None:
    about, module = ModelEntry("patched", Patched, (6,), "mse", 6, 2), Patched()
    program, x = layer_program(module, about, 2), torch.arange(12.0).sin().view(2, 6)
    assert torch.equal(program(x), module(x))
    assert [x.shape.name for x in program.spec.layers[1:-1]] == ["relu", "neg", "relu", "add"]


class Positions(nn.Module):
    """With a buffer that is not saved with the model, as transformers' BERT has them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(8, 4), nn.Linear(4, 3)
        self.register_buffer("places", torch.arange(6).flip(0)[None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(nn.functional.gelu(x + self.table(self.places[:, : x.shape[1]])))
        return made.mean(1)


def test_a_buffer_that_is_not_saved_has_its_values() -> None:
    """torch.export keeps a tensor without memory in its place."""
    about, module = ModelEntry("positions", Positions, (6, 4), "mse", 3, 2), Positions()
    program, x = layer_program(module, about, 2), torch.arange(48.0).sin().view(2, 6, 4)
    assert torch.equal(program(x), module(x))
    assert [name for name, _ in program.graph.named_buffers()] == ["places"]


class Rotated(nn.Module):
    """Angles in full precision, as rotary embeddings have them: of positions, or of what x says."""

    rates: Tensor

    def __init__(self, reads: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.register_buffer("rates", torch.tensor([[0.3, 0.5, 0.7, 1.1]]))
        self.reads = reads

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        places = torch.arange(x.shape[1], device=x.device)[:, None].float()
        with torch.autocast(x.device.type, enabled=False):
            angles = (places @ self.rates).cos()
            if self.reads:
                angles = angles + y.float().mean(1, keepdim=True)
        made: Tensor = self.last(y * angles).mean(1)
        return made


def test_where_a_model_turns_autocast_off_so_does_its_program() -> None:
    """Products of hundreds in bfloat16 would be off by turns."""
    about, module = ModelEntry("rotated", Rotated, (300, 4), "mse", 3, 2), Rotated()
    program, x = layer_program(module, about, 2), torch.arange(2400.0).sin().view(2, 300, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(program(x), module(x))
    assert torch.equal(program(x), module(x)) and not program.narrowed


@pytest.mark.parametrize("execution", ["float32", "bfloat16-mixed"])
def test_what_enters_it_narrow_is_refused_under_autocast(execution: str) -> None:
    """A trace in float32 does not have the casts to float32."""
    about, nobody = (
        ModelEntry("rotated", lambda: Rotated(True), (300, 4), "mse", 3, 2),
        cast(Any, None),
    )
    options, division = WorkerOptions(execution=execution), Division("pipeline", 2, 2)
    task = Task(about, about.build(), nobody, division, nobody, nobody, options)
    if execution == "float32":
        assert task.program.narrowed == "first"
        return
    with pytest.raises(InputError, match=r"^rotated turns autocast off and reads first there"):
        make_worker(task)
