"""List models, show one's layers, or trace your own module.

A PyTorch module is traced into a model.json. Examples: calib model list; calib model show resnet50;
calib model trace my_pkg.net:build --input 3x224x224 -o model.json
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from calib.foundation.errors import InputError
from calib.foundation.files import destination
from calib.foundation.layers import Shape
from calib.foundation.own import Loss
from calib.foundation.words import count_words, counted
from calib.lazy import new_app
from calib.options import Json, sample_shape
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.terminal.printing import file_of, print_json, say, table
from calib.training.models import entry, model_names
from calib.training.models.specs import require_torch, spec

app = new_app(no_args_is_help=False)
# of these words are names of functions and classes that say nothing of a model
GENERIC = frozenset(
    ("build", "create", "factory", "get", "init", "load", "main", "make", "model", "module", "my")
) | {"net", "network", "new", ""}


@app.command("list")
def list_models(as_json: Json = False) -> None:
    """The registered models: input, parameters, multiply-adds, layers. Example: calib model list"""
    rows = []
    for name in model_names():
        found, model = entry(name), spec(name)
        rows.append({**summary(model), "loss": found.loss, "batch_per_rank": found.batch_per_rank})
    if as_json:
        print_json(rows)
        return
    columns = ["model", "input", "parameters M", "GMAC", "layers", "loss", "batch per rank"]
    cells = [[*_cells(row), row["loss"], str(row["batch_per_rank"])] for row in rows]
    table("Registered models", columns, cells)
    say("GMAC: multiply-adds of convolutions and fully connected layers, per sample")


@app.command("show")
def show_model(
    model: Annotated[str, typer.Argument(help="A registered model or a model.json.")],
    as_json: Json = False,
) -> None:
    """The layers of a model, with shapes, parameters and edges. Example: calib model show vgg16"""
    found = spec(model)
    if as_json:
        print_json({**summary(found), "each": [_layer(layer) for layer in found.layers]})
        return
    columns = ["layer", "kind", "input", "output", "parameters", "MMAC", "reads"]
    table(f"{found.name}: {len(found.layers)} layers", columns, [_row(x) for x in found.layers])
    say(_sentence(found))
    if found.untrained:
        say(_without_gradient(found))


Words = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FUNCTION",
        help="A function without arguments that returns an nn.Module, or a class; imported as "
        "from the current directory.",
    ),
]
Input = Annotated[
    str, typer.Option("--input", help="One sample's shape, without the batch: 3x224x224.")
]
LossName = Annotated[Loss, typer.Option(help="What the output is compared by.")]
Name = Annotated[
    str | None,
    typer.Option(help="The model's name; default FUNCTION's, or of build and the like MODULE's."),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="Where to write it.")]


@app.command("trace")
def trace_module(
    module: Words,
    input_: Input,
    loss: LossName = "cross_entropy",
    name: Name = None,
    output: Output = Path("model.json"),
    as_json: Json = False,
) -> None:
    """Write the model.json of your PyTorch module: each of its operators. Example: calib model trace
    my_pkg.net:build --input 3x224x224 -o model.json
    """
    require_torch(f"tracing {module}")
    # late: they import PyTorch
    from torch.compiler import set_stance

    from calib.oracle.trace.profiled import profile
    from calib.oracle.trace.tracing import NotTraced, trace

    try:
        found = _made(trace, module, input_, loss, name)
    except NotTraced as error:
        with set_stance("force_eager"):
            _made(profile, module, input_, loss, name)  # what fails by itself says how
        raise InputError(f"{error}; `calib model profile` takes it as one layer") from error
    _write(found, output, as_json)


@app.command("profile")
def profile_module(
    module: Words,
    input_: Input,
    loss: LossName = "cross_entropy",
    name: Name = None,
    output: Output = Path("model.json"),
    as_json: Json = False,
) -> None:
    """Write the model.json of a module that cannot be traced (control flow on data, operators of its
    own), as one layer: it is run here. Serial and data-parallel training are predicted for it, once it
    was measured as whole iterations. Example: calib model profile my_pkg.net:build --input 16x300
    """
    require_torch(f"profiling {module}")
    from calib.oracle.trace.profiled import profile  # late: it imports PyTorch

    _write(_made(profile, module, input_, loss, name), output, as_json)


def _made(
    make: Callable[..., ModelSpec], words: str, input_: str, loss: Loss, name: str | None
) -> ModelSpec:
    """Make the ModelSpec of a user's module, MODULE:FUNCTION."""
    from calib.training.checks.own import traced  # late: it imports PyTorch

    return traced(
        words, sample_shape(input_), default_name(words) if name is None else name, loss, make
    )


def default_name(words: str) -> str:
    """The name of a model that MODULE:FUNCTION build: FUNCTION, or where that says nothing MODULE."""
    path, _, function = words.partition(":")
    generic = {*function.lower().split("_")} <= GENERIC or function in model_names()
    return path.rpartition(".")[2] if generic else function


def _write(found: ModelSpec, output: Path, as_json: bool) -> None:
    """Write the ModelSpec of a user's module, and say what it is."""
    found.write(destination(file_of(output, "-o")))
    if as_json:
        print_json(summary(found))
    else:
        say(_sentence(found))
    if found.untrained:
        say(_without_gradient(found))
    say(f"written: {output}")


def summary(model: ModelSpec) -> dict[str, Any]:
    """Name, input shape, number of parameters, multiply-adds per sample, number of layers."""
    return {
        "name": model.name,
        "input_shape": model.input_shape,
        "parameters": model.all_items,
        "multiply_adds": model.multiply_adds(),
        "layers": len(model.layers),
    }


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["name"],
        _text(row["input_shape"]),
        f"{row['parameters'] / 1e6:.2f}",
        f"{row['multiply_adds'] / 1e9:.4g}",
        str(row["layers"]),
    ]


def _sentence(model: ModelSpec) -> str:
    parameters, products = count_words(model.all_items), count_words(model.multiply_adds())
    unit = "MAC" if products[-1].isdigit() else f"{products[-1]}MAC"
    return (
        f"{model.name}: input {_text(model.input_shape)}, {counted(len(model.layers), 'layer')}, "
        f"{parameters} parameters, {products.split()[0]} {unit} a sample"
    )


def _without_gradient(model: ModelSpec) -> str:
    """What is said of weights that get no gradient."""
    weights = counted(len(model.untrained), "weight")
    items = count_words(model.all_items - model.parameter_items)
    return (
        f"no gradient reaches {weights} ({items} parameters), first {next(iter(model.untrained))}: "
        "held in memory, not trained"
    )


def _layer(layer: Layer) -> dict[str, Any]:
    """One layer for --json; multiply-adds are of one sample."""
    return {
        "name": layer.name,
        "kind": layer.shape.kind,
        "input_shapes": layer.shape.input_shapes,
        "output_shape": layer.shape.output_shape,
        "parameter_shapes": layer.shape.parameter_shapes,
        "parameters": layer.shape.parameter_items,
        "multiply_adds": _multiply_adds(layer),
        "inputs": layer.inputs,
    }


def _multiply_adds(layer: Layer) -> float:
    return layer.shape.forward_flops(1) / 2 if layer.shape.is_product else 0.0


def _row(layer: Layer) -> list[str]:
    shape = layer.shape
    return [
        layer.name,
        shape.kind if shape.operator is None else shape.operator.base,
        " + ".join(_text(x) for x in shape.input_shapes),
        _text(shape.output_shape),
        str(shape.parameter_items or ""),
        f"{_multiply_adds(layer) / 1e6:.4g}" if _multiply_adds(layer) else "",
        ", ".join(layer.inputs),
    ]


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "1"
