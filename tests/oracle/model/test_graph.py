"""Graphs that are not models are refused with a line that says what and where."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.oracle.handmade import mlp

from calib.foundation.errors import FileError, InputError
from calib.foundation.layers import LayerShape
from calib.foundation.operators import Operator
from calib.microbench.layers.build import build_layer, make_inputs
from calib.oracle.model.graph import Memory, check_graph
from calib.oracle.model.graph_layers import why_impossible
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.training.models import model_names
from calib.training.models.specs import spec

Content = dict[str, Any]


def layer(kind: str, inputs: dict[str, list[int]], output: list[int], **more: Any) -> Content:
    """One layer of a model.json; `inputs` are the layers that it reads and their shapes."""
    shape = {"kind": kind, "input_shapes": list(inputs.values()), "output_shape": output, **more}
    return {"shape": shape, "inputs": list(inputs), "needs_input_grad": True}


def window(kernel: list[int], padding: list[int], **more: Any) -> Content:
    return {"kernel": kernel, "stride": [1] * len(kernel), "padding": padding, **more}


def forked() -> Content:
    """A model.json with every join: two branches that are joined, added to, pooled and flattened."""
    layers = {
        "conv": layer(
            "conv",
            {"input": [3, 6, 5]},
            [4, 6, 5],
            parameter_shapes=[[4, 3, 3, 1], [4]],
            attributes=window([3, 1], [1, 0], groups=1),
        ),
        "norm": layer("batch_norm", {"conv": [4, 6, 5]}, [4, 6, 5], parameter_shapes=[[4], [4]]),
        "relu": layer("relu", {"conv": [4, 6, 5]}, [4, 6, 5]),
        "add": layer("add", {"norm": [4, 6, 5], "relu": [4, 6, 5]}, [4, 6, 5]),
        "cat": layer("concat", {"add": [4, 6, 5], "conv": [4, 6, 5]}, [8, 6, 5]),
        "pool": layer(
            "max_pool",
            {"cat": [8, 6, 5]},
            [8, 4, 3],
            attributes=window([3, 3], [0, 0], ceil_mode=False),
        ),
        "flat": layer("flatten", {"pool": [8, 4, 3]}, [96]),
        "drop": layer("dropout", {"flat": [96]}, [96], attributes={"probability": 0.5}),
        "fc": layer("linear", {"drop": [96]}, [7], parameter_shapes=[[7, 96], [7]]),
        "loss": layer("cross_entropy", {"fc": [7]}, []),
    }
    layers["conv"]["needs_input_grad"] = False
    each = [{"name": name, **content} for name, content in layers.items()]
    return {"name": "forked", "input_shape": [3, 6, 5], "classes": 7, "layers": each}


def at(content: Content, name: str) -> Content:
    found: Content = next(x for x in content["layers"] if x["name"] == name)
    return found


def refused(content: Content, tmp_path: Path) -> str:
    """The line that the model.json is refused with."""
    path = tmp_path / "model.json"
    path.write_text(json.dumps(content))
    with pytest.raises(FileError) as caught:
        ModelSpec.read(path)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(f"model file {path}: ")
    return message


def test_whole_model_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(forked()))
    assert [x.name for x in ModelSpec.read(path).layers] == [x["name"] for x in forked()["layers"]]


def shape_of(name: str, **changes: Any) -> Callable[[Content], Any]:
    return lambda c: at(c, name)["shape"].update(changes)


def attribute_of(name: str, **changes: Any) -> Callable[[Content], Any]:
    return lambda c: at(c, name)["shape"]["attributes"].update(changes)


def reads(name: str, *sources: str) -> Callable[[Content], Any]:
    return lambda c: at(c, name).update(inputs=list(sources))


def both(*changes: Callable[[Content], Any]) -> Callable[[Content], Any]:
    return lambda c: [change(c) for change in changes]


LATE_LOSS = layer("relu", {"fc": [7]}, [7])
SPOILT: dict[str, tuple[Callable[[Content], Any], list[str]]] = {
    "unknown kind": (shape_of("relu", kind="gelu"), ["'relu'", "unknown kind 'gelu'", "max_pool"]),
    "unknown kind without a name": (
        both(shape_of("relu", kind="gelu"), lambda c: at(c, "relu").pop("name")),
        ["'number 3'"],
    ),
    "name twice": (lambda c: at(c, "norm").update(name="conv"), ["'conv'", "used twice"]),
    "name of the input": (
        lambda c: at(c, "conv").update(name="input"),
        ["'input'", "model's input"],
    ),
    "source that is not there": (reads("relu", "cnov"), ["'relu' reads 'cnov'", "no layer"]),
    "cycle": (reads("conv", "relu"), ["'conv' reads 'relu'", "runs after it", "cycle"]),
    "cycle of one": (reads("relu", "relu"), ["'relu' reads 'relu'", "cycle"]),
    "no inputs": (both(reads("relu"), shape_of("relu", input_shapes=[])), ["'relu' reads nothing"]),
    "an input without a shape": (
        reads("add", "norm", "relu", "conv"),
        ["'add'", "3 layer(s)", "2"],
    ),
    "dead end": (reads("add", "norm", "norm"), ["'relu' never reaches the loss, 'loss'"]),
    "unlike edge": (
        shape_of("relu", input_shapes=[[4, 6, 4]]),
        ["'relu' reads 4 x 6 x 4 from 'conv'", "puts out 4 x 6 x 5"],
    ),
    "unlike model input": (
        lambda c: c.update(input_shape=[3, 6, 6]),
        ["'conv' reads 3 x 6 x 5 from 'input'", "3 x 6 x 6"],
    ),
    "zero in the model's input": (
        lambda c: c.update(input_shape=[3, 0, 5]),
        ["input is 3 x 0 x 5"],
    ),
    "no dimension of the input": (lambda c: c.update(input_shape=[]), ["the model's input"]),
    "zero output": (shape_of("fc", output_shape=[0]), ["'fc' (linear)", "output is 0"]),
    "negative output": (shape_of("fc", output_shape=[-7]), ["'fc'", "output is -7", "at least 1"]),
    "zero weight": (shape_of("fc", parameter_shapes=[[7, 0], [7]]), ["'fc'", "parameter is 7 x 0"]),
    "zero stride": (attribute_of("pool", stride=[0, 1]), ["'pool'", "stride is 0 x 1"]),
    "zero kernel": (attribute_of("pool", kernel=[3, 0]), ["'pool'", "kernel is 3 x 0"]),
    "negative padding": (attribute_of("pool", padding=[-1, 0]), ["'pool'", "padding is -1 x 0"]),
    "zero groups": (attribute_of("conv", groups=0), ["'conv'", "groups is 0"]),
    "no kernel": (
        lambda c: at(c, "pool")["shape"]["attributes"].pop("kernel"),
        ["'pool' (max_pool)", "no attribute 'kernel'"],
    ),
    "kernel of one number": (attribute_of("pool", kernel=3), ["'pool'", "each spatial dimension"]),
    "kernel of another rank": (attribute_of("pool", kernel=[3, 3, 3]), ["'pool'", "2 dimensions"]),
    "output that the window does not give": (
        attribute_of("pool", padding=[1, 1]),
        ["'pool'", "puts out 8 x 4 x 3, not 8 x 6 x 5"],
    ),
    "weight of another convolution": (
        shape_of("conv", parameter_shapes=[[4, 3, 1, 3], [4]]),
        ["'conv'", "4 x 3 x 1 x 3, not 4 x 3 x 3 x 1"],
    ),
    "weight of another size": (
        shape_of("fc", parameter_shapes=[[7, 95], [7]]),
        ["'fc'", "7 x 95, not 7 x 96"],
    ),
    "no weight": (shape_of("fc", parameter_shapes=[]), ["'fc'", "its weight"]),
    "concat that loses a channel": (
        shape_of("cat", output_shape=[7, 6, 5]),
        ["'cat' (concat)", "7 x 6 x 5, not 8 x 6 x 5"],
    ),
    "flatten that loses an item": (shape_of("flat", output_shape=[95]), ["'flat'", "95, not 96"]),
    "relu that changes the size": (shape_of("drop", output_shape=[95]), ["'drop'", "95, not 96"]),
    "no loss": (
        lambda c: c["layers"].pop(),
        ["'fc'", "linear and not a loss", "cross_entropy or mse"],
    ),
    "loss before the end": (
        lambda c: c["layers"].insert(9, {"name": "early", **layer("mse", {"fc": [7]}, [])}),
        ["'early'", "never reaches the loss"],
    ),
    "layer after the loss": (
        lambda c: c["layers"].append({"name": "late", **LATE_LOSS}),
        ["'late'", "not a loss"],
    ),
    "loss of two outputs": (
        both(reads("loss", "fc", "fc"), shape_of("loss", input_shapes=[[7], [7]])),
        ["'loss'", "one output"],
    ),
    "conv of two": (
        both(reads("conv", "input", "input"), shape_of("conv", input_shapes=[[3, 6, 5]] * 2)),
        ["'conv' (conv)", "number of inputs is 2, not 1"],
    ),
    "add of three": (
        both(reads("add", "norm", "relu", "conv"), shape_of("add", input_shapes=[[4, 6, 5]] * 3)),
        ["'add'", "number of inputs is 3, not 2"],
    ),
    "add of one": (
        both(reads("add", "norm"), shape_of("add", input_shapes=[[4, 6, 5]])),
        ["'add'", "number of inputs is 1, not 2"],
    ),
    "norm of no bias": (
        shape_of("norm", parameter_shapes=[[4]]),
        ["'norm'", "its bias is missing"],
    ),
    "norm of another size": (
        shape_of("norm", parameter_shapes=[[999999], [4]]),
        ["'norm'", "its weight is 999999, not 4"],
    ),
    "relu with weights": (
        shape_of("relu", parameter_shapes=[[10**9]]),
        ["'relu'", "1 parameter tensors, and its kind at most 0"],
    ),
    "bias of an image": (
        shape_of("conv", parameter_shapes=[[4, 3, 3, 1], [7, 7]]),
        ["'conv'", "its bias is 7 x 7, not 4"],
    ),
    "fifty parameters": (
        shape_of("conv", parameter_shapes=[[4, 3, 3, 1], *[[4]] * 49]),
        ["'conv'", "50 parameter tensors, and its kind at most 2"],
    ),
    "bias of another size": (
        shape_of("fc", parameter_shapes=[[7, 96], [8]]),
        ["'fc'", "its bias is 8, not 7"],
    ),
    "half a group": (
        attribute_of("conv", groups=1.5),
        ["'conv'", "its groups is not a whole number"],
    ),
    "one group in words": (attribute_of("conv", groups=True), ["'conv'", "not a whole number"]),
    "no number of groups": (attribute_of("conv", groups=[]), ["'conv'", "not a whole number"]),
    "groups of two dimensions": (
        attribute_of("conv", groups=[1, 1]),
        ["'conv'", "not a whole number"],
    ),
    "endless groups": (attribute_of("conv", groups=math.inf), ["'conv'", "not a whole number"]),
    "no groups": (attribute_of("conv", groups=0), ["'conv'", "groups is 0", "at least 1"]),
    "groups of a part": (
        attribute_of("conv", groups=3),
        ["'conv'", "its 3 groups do not divide 3 channels and 4 filters"],
    ),
    "stride of another rank": (
        attribute_of("conv", stride=[1]),
        ["'conv'", "2 dimensions and a stride of 1"],
    ),
    "padding in words": (attribute_of("conv", padding=True), ["'conv'", "one number for each"]),
    "padding beyond half the kernel": (
        attribute_of("pool", padding=[2, 0]),
        ["'pool'", "half the kernel"],
    ),
    "ceil_mode of a number": (attribute_of("pool", ceil_mode=2), ["'pool'", "not true or false"]),
    "endless probability": (attribute_of("drop", probability=math.inf), ["'drop'", "from 0 to 1"]),
    "no probability": (attribute_of("drop", probability=math.nan), ["'drop'", "from 0 to 1"]),
    "large probability": (attribute_of("drop", probability=10**400), ["'drop'", "from 0 to 1"]),
    "attribute of another kind": (
        attribute_of("conv", dilation=[2, 2]),
        ["'conv'", "no attribute 'dilation'"],
    ),
    "a number like a checked one": (
        both(
            lambda c: c["layers"].insert(
                7,
                {
                    "name": "drop1",
                    **layer("dropout", {"flat": [96]}, [96], attributes={"probability": 1}),
                },
            ),
            attribute_of("drop", probability=True),
            reads("drop", "drop1"),
        ),
        ["'drop' (dropout)", "from 0 to 1"],
    ),
    "long size": (
        shape_of("fc", parameter_shapes=[[7, 10**400], [7]]),
        ["'fc'", "its parameter is 7 x (401 digits)", "at most 2^40"],
    ),
    "large size": (shape_of("fc", parameter_shapes=[[7, 10**30], [7]]), ["'fc'", "at most 2^40"]),
    "large tensor": (
        shape_of("relu", parameter_shapes=[[2**40, 2**24]]),
        ["'relu'", "at most 2^63 items"],
    ),
    "large input": (
        lambda c: c.update(input_shape=[3, 10**400, 5]),
        ["model's input", "(401 digits)"],
    ),
    "large weight that nothing uses": (
        lambda c: c.update(unused={"aux.weight": [7, 10**400]}),
        ["weight aux.weight, 7 x (401 digits)", "at most 2^40"],
    ),
    "long padding": (
        attribute_of("conv", padding=[10**400, 0]),
        ["'conv'", "its padding is (401 digits)"],
    ),
    "many classes": (
        lambda c: c.update(classes=10**9),
        ["1000000000 classes", "'fc', has 7 outputs"],
    ),
    "gradient of the input": (
        lambda c: at(c, "conv").update(needs_input_grad=True),
        ["'conv' has needs_input_grad true", "no layer before it has weights"],
    ),
    "no gradient": (
        lambda c: at(c, "fc").update(needs_input_grad=False),
        ["'fc' has needs_input_grad false", "a layer before it has weights"],
    ),
    "only a loss": (
        lambda c: c.update(
            layers=[
                {
                    "name": "loss",
                    **layer("mse", {"input": [3, 6, 5]}, []),
                    "needs_input_grad": False,
                }
            ]
        ),
        ["the model has no weights"],
    ),
    "no name of a layer": (lambda c: at(c, "relu").update(name=""), ["a layer's name, '',"]),
    "no name of the model": (lambda c: c.update(name=" "), ["the model's name, ' ',"]),
    "name of two lines": (
        lambda c: at(c, "relu").update(name="a\nb"),
        ["'a\\nb'", "cannot be printed"],
    ),
    "format 0": (lambda c: c.update(format_version=0), ["format_version 0 is no version"]),
    "format below 0": (lambda c: c.update(format_version=-1), ["format_version"]),
    "loss that puts out a vector": (
        shape_of("loss", output_shape=[7]),
        ["'loss'", "not one number"],
    ),
}


@pytest.mark.parametrize("case", SPOILT)
def test_refused_in_one_line_that_says_what_and_where(case: str, tmp_path: Path) -> None:
    change, words = SPOILT[case]
    content = forked()
    change(content)
    message = refused(content, tmp_path)
    for word in words:
        assert word in message


def test_loss_of_an_auxiliary_head_is_taken() -> None:
    content = forked()
    both(
        reads("loss", "fc", "fc"),
        shape_of("loss", input_shapes=[[7], [7]], attributes={"auxiliary_weight": 0.4}),
    )(content)
    assert ModelSpec(**content).layers[-1].inputs == ("fc", "fc")


def test_made_by_hand_is_checked_too() -> None:
    """Not only what is read: the constructor raises the line of a user's mistake."""
    whole = mlp([4, 3, 2])
    with pytest.raises(InputError, match="'fc2' reads 3 from 'input', which puts out 4"):
        ModelSpec(
            name="x",
            input_shape=(4,),
            classes=2,
            layers=(
                *whole.layers[:1],
                whole.layers[2].model_copy(update={"inputs": ("input",)}),
                whole.layers[3],
            ),
        )


# kinds, sizes of input and output, parameters and attributes of layers that torch has
POSSIBLE: dict[str, tuple[str, list[int], list[int], list[list[int]], Content]] = {
    "conv of groups, no bias": (
        "conv",
        [4, 9],
        [6, 7],
        [[6, 2, 3]],
        {"kernel": [3], "stride": [1], "padding": [0], "groups": 2},
    ),
    "norm, affine=False": ("batch_norm", [4, 9], [4, 9], [], {}),
    "norm of a vector": ("batch_norm", [4], [4], [[4], [4]], {}),
    "layer norm": ("layer_norm", [4, 9], [4, 9], [[9], [9]], {"normalized_shape": [9]}),
    "layer norm, bias=False": (
        "layer_norm",
        [4, 9],
        [4, 9],
        [[4, 9]],
        {"normalized_shape": [4, 9]},
    ),
    "layer norm, elementwise_affine=False": (
        "layer_norm",
        [4, 9],
        [4, 9],
        [],
        {"normalized_shape": [9]},
    ),
    "linear of rows": ("linear", [5, 4], [5, 3], [[3, 4]], {}),
    "embedding": ("embedding", [5], [5, 3], [[99, 3]], {}),
    "image that is made larger": ("adaptive_avg_pool", [4, 2, 2], [4, 7, 1], [], {}),
    "dropout of all": ("dropout", [4], [4], [], {"probability": 1}),
}
# what makes one of them impossible, and what is said of it
WORSE: list[tuple[str, Content, str]] = [
    ("layer norm", {"attributes": {"normalized_shape": [4]}}, "normalizes over 4, and reads 4 x 9"),
    ("layer norm", {"attributes": {"normalized_shape": []}}, "a list of sizes"),
    ("layer norm", {"parameter_shapes": [[9], [8]]}, "its bias is 8, not 9"),
    ("layer norm", {"output_shape": [4, 8]}, "puts out 4 x 8, not 4 x 9"),
    ("linear of rows", {"output_shape": [6, 3]}, "puts out 6 x 3, not 5 x 3"),
    ("embedding", {"output_shape": [6, 3]}, "puts out 6 x 3, not 5 x 3"),
    ("embedding", {"parameter_shapes": []}, "its weight is missing"),
    ("embedding", {"parameter_shapes": [[99, 4]]}, "its weight is 99 x 4, not 99 x 3"),
    ("embedding", {"parameter_shapes": [[99]]}, "its weight is 99, not 99 x 3"),
    ("embedding", {"parameter_shapes": [[99, 3], [3]]}, "its kind at most 1"),
    ("image that is made larger", {"output_shape": [5, 7, 1]}, "5 x 7 x 1, not 4 x 7 x 1"),
    ("image that is made larger", {"output_shape": [4, 7]}, "another rank"),
    ("norm of a vector", {"input_shapes": [[4], [4]]}, "inputs is 2, not 1"),
    ("conv of groups, no bias", {"parameter_shapes": [[6, 4, 3]]}, "6 x 4 x 3, not 6 x 2 x 3"),
]


def possible(case: str) -> Content:
    kind, read, made, parameters, attributes = POSSIBLE[case]
    return {
        "kind": kind,
        "input_shapes": [read],
        "output_shape": made,
        "parameter_shapes": parameters,
        "attributes": attributes,
    }


@pytest.mark.parametrize("case", POSSIBLE)
def test_layers_that_torch_has_are_taken(case: str) -> None:
    """Torch makes it, and it puts out what is said."""
    shape = LayerShape(**possible(case))
    assert why_impossible(shape) == ""
    cpu = torch.device("cpu")
    built = build_layer(shape, torch.float32, cpu)
    inputs = make_inputs(shape, 3, torch.float32, cpu, False, torch.Generator().manual_seed(0))
    assert tuple(built(*inputs).shape) == (3, *shape.output_shape)
    assert tuple(tuple(x.shape) for x in built.parameters) == shape.parameter_shapes


@pytest.mark.parametrize(("case", "change", "said"), WORSE)
def test_layers_that_torch_does_not_have_are_refused(case: str, change: Content, said: str) -> None:
    assert said in why_impossible(LayerShape(**(possible(case) | change)))


@pytest.mark.parametrize("name", model_names())
def test_every_registered_model_is_a_model(name: str) -> None:
    """It validates again; one inverted needs_input_grad is found."""
    content = spec(name).model_dump()
    assert ModelSpec(**content) == spec(name)
    content["layers"][-2]["needs_input_grad"] ^= True
    with pytest.raises(InputError, match="needs_input_grad"):
        ModelSpec(**content)


@settings(max_examples=60)
@given(data=st.data())
def test_any_mutation_is_refused_with_a_line(data: st.DataObject) -> None:
    """Drop an edge, swap two neighbours that depend on each other, or spoil one size anywhere."""
    content = copy.deepcopy(forked())
    layers = content["layers"]
    how = data.draw(st.sampled_from(["edge", "order", "size"]))
    if how == "edge":
        spoilt = data.draw(st.sampled_from(layers))
        spoilt["inputs"].pop(data.draw(st.integers(0, len(spoilt["inputs"]) - 1)))
        named = spoilt["name"]
    elif how == "order":
        numbers = [i for i in range(9) if layers[i]["name"] in layers[i + 1]["inputs"]]
        number = data.draw(st.sampled_from(numbers))
        layers[number], layers[number + 1] = layers[number + 1], layers[number]
        named = layers[number]["name"]
    else:
        spoilt = data.draw(st.sampled_from(layers))
        shape = spoilt["shape"]
        places = [shape["output_shape"], *shape["input_shapes"], *shape.get("parameter_shapes", [])]
        place = data.draw(st.sampled_from([x for x in places if x]))
        place[data.draw(st.integers(0, len(place) - 1))] = data.draw(st.integers(-3, 0))
        named = spoilt["name"]
    with pytest.raises(InputError) as caught:
        ModelSpec(**content)
    assert "\n" not in str(caught.value) and repr(named) in str(caught.value)


@st.composite
def nets(draw: st.DrawFn) -> list[Layer]:
    """A random graph of fully connected layers, joins and ReLU over vectors, and its loss."""
    widths, graded = {"input": 4}, {"input": False}
    unread = {"input"}
    layers: list[Layer] = []

    def append(kind: Any, sources: list[str], width: int) -> None:
        name = f"{kind}{len(layers)}"
        shape = LayerShape(
            kind=kind,
            input_shapes=tuple((widths[x],) for x in sources),
            output_shape=() if kind == "mse" else (width,),
            parameter_shapes=((width, widths[sources[0]]),) if kind == "linear" else (),
        )
        needed = any(graded[x] for x in sources)
        layers.append(Layer(name=name, shape=shape, inputs=tuple(sources), needs_input_grad=needed))
        graded[name] = needed or kind == "linear"
        unread.difference_update(sources)
        unread.add(name)
        widths[name] = width

    for _ in range(draw(st.integers(0, 12))):
        source = draw(st.sampled_from(sorted(widths)))
        kind = draw(st.sampled_from(["linear", "relu", "add", "concat"]))
        if kind == "concat":
            sources = [source, *draw(st.lists(st.sampled_from(sorted(widths)), max_size=3))]
            append(kind, sources, sum(widths[x] for x in sources))
        elif kind == "add":
            like = [x for x in sorted(widths) if widths[x] == widths[source]]
            append(kind, [source, draw(st.sampled_from(like))], widths[source])
        else:
            append(kind, [source], draw(st.integers(1, 5)) if kind == "linear" else widths[source])
    ends = sorted(unread)
    append("concat", ends, sum(widths[x] for x in ends))
    append("linear", [layers[-1].name], 2)
    append("mse", [layers[-1].name], 1)
    return layers


@settings(max_examples=60)
@given(layers=nets())
def test_random_graphs_are_taken(layers: list[Layer]) -> None:
    check_graph((4,), layers)
    assert ModelSpec(name="x", input_shape=(4,), classes=2, layers=tuple(layers)).layers == tuple(
        layers
    )


@settings(max_examples=60)
@given(layers=nets(), data=st.data())
def test_a_layer_that_is_left_out_is_missed(layers: list[Layer], data: st.DataObject) -> None:
    """The error names its reader, or says that the loss is missing."""
    number = data.draw(st.integers(0, len(layers) - 1))
    left = layers[:number] + layers[number + 1 :]
    readers = [x.name for x in left if layers[number].name in x.inputs]
    said = f"{readers[0]!r} reads {layers[number].name!r}" if readers else "not a loss"
    with pytest.raises(InputError) as caught:
        check_graph((4,), left)
    assert said in str(caught.value)


@settings(max_examples=80)
@given(
    n=st.integers(1, 12),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    padding=st.integers(0, 2),
    ceil=st.booleans(),
    off=st.sampled_from([-1, 1]),
)
def test_windows_are_those_of_torch(
    n: int, kernel: int, stride: int, padding: int, ceil: bool, off: int
) -> None:
    assume(padding <= kernel // 2 and n + 2 * padding >= kernel)  # torch takes no other pooling
    count = F.avg_pool1d(torch.zeros(1, 2, n), kernel, stride, padding, ceil).shape[2]
    for outputs in (count, count + off):
        shape = LayerShape(
            kind="avg_pool",
            input_shapes=((2, n),),
            output_shape=(2, outputs),
            attributes={
                "kernel": (kernel,),
                "stride": (stride,),
                "padding": (padding,),
                "ceil_mode": ceil,
            },
        )
        assert (why_impossible(shape) == "") == (outputs == count)


def test_what_is_written_again_and_again_gets_its_gradient_once() -> None:
    """A chain of n calls in place was n * n / 2 steps: ten thousand took a minute."""
    sin = Operator(name="aten.sin_.default", arguments='[{"input": 0}]')
    size = {"input_shapes": ((4,),), "output_shape": (4,)}
    shape = LayerShape(kind="operator", operator=sin, **size)
    memory = Memory()
    given = [
        memory.add(Layer(name=f"{n + 1}", shape=shape, inputs=(f"{n}",), needs_input_grad=n > 0))
        for n in range(5)
    ]
    assert [list(names) for names in given] == [[], ["0", "1"], ["2"], ["3"], ["4"]]
    assert memory.shared("0") == list("012345")
