"""A model.json whose operators are wrong is refused in one line, and none of it is run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.oracle.operator_models import MODELS, traced

from calib.foundation.errors import FileError
from calib.oracle.model.spec import ModelSpec

Content = dict[str, Any]


def test_models_of_operators_are_written_and_read(tmp_path: Path) -> None:
    for name in MODELS:
        traced(name).write(tmp_path / "model.json")
        assert ModelSpec.read(tmp_path / "model.json") == traced(name)


def layer(content: Content, name: str) -> Content:
    found: Content = next(of for of in content["layers"] if of["name"] == name)
    return found


def changed(layer_name: str, /, **changes: Any) -> Callable[[Content], None]:
    return lambda content: layer(content, layer_name)["shape"]["operator"].update(changes)


def shape(name: str, **changes: Any) -> Callable[[Content], None]:
    return lambda content: layer(content, name)["shape"].update(changes)


def shares(name: str, shared: dict[int, str]) -> Callable[[Content], None]:
    return lambda content: layer(content, name).update(shared_parameters=shared)


CHUNK = "attention.chunk"
BAD: dict[str, tuple[Callable[[Content], None], list[str]]] = {
    "code": (changed("mlp.1", arguments="print(1)"), ["arguments", "no JSON list"]),
    "a name with a call": (changed("mlp.1", name="os.system('id')"), ["no name of an operator"]),
    "a file": (changed("mlp.1", name="aten.from_file.default"), ["no name of an operator"]),
    "an input too many": (
        changed("mlp.1", arguments='[{"input": 1}]'),
        ["'mlp.1' (operator)", "name input 1, and it has 1"],
    ),
    "an input before the first": (changed("mlp.1", arguments='[{"input": -1}]'), ["input -1"]),
    "a parameter that is not there": (
        changed("add", arguments='[{"input": 0}, {"parameter": 1}]'),
        ["'add'", "parameter 1, and it has 1"],
    ),
    "no batch": (changed("mlp.1", arguments='[{"batch": 0}]'), ["0 times the batch"]),
    "an unknown type": (changed("mlp.1", arguments='[{"dtype": "load"}]'), ["'load'"]),
    "an unknown type of a tensor": (changed("mlp.1", types=["", "hub"]), ["item type 'hub'"]),
    "axes of another number": (changed(CHUNK, axes=[None, -1]), ["its axes are 2", "has 4"]),
    "a dimension that is not there": (
        changed("mlp.1", axes=[2, None]),
        ["the batch is at dimension 2 of 5 x 32"],
    ),
    "a dimension before the first": (changed("mlp.1", axes=[-2, None]), ["dimension -2"]),
    "an order of other dimensions": (changed("mlp.1", orders=[[0, 1, 1]]), ["3 dimensions"]),
    "an endless output": (changed(CHUNK, outputs=[[5, 16], [5, 2**50]]), [CHUNK, "at most 2^40"]),
    "a large output": (changed(CHUNK, outputs=[[5, 16], [2**39, 2**39]]), [CHUNK, "2^63 items"]),
    "an empty output": (shape("select", output_shape=[0]), ["'select'", "puts out 0"]),
    "what it has not is kept": (changed("mlp.1", saved={"inputs": [1]}), ["no input 1"]),
    "attributes": (shape("mlp.1", attributes={"kernel": 3}), ["no attributes"]),
    "another kind": (shape("mlp.2", kind="operator"), ["'mlp.2'", "no other does"]),
    "no operator": (shape("mlp.1", operator=None), ["'mlp.1'", "calls an ATen operator"]),
    "a name taken by an output": (
        lambda content: (
            layer(content, "patch").update(name=f"{CHUNK}[1]")
            or layer(content, "flatten").update(inputs=[f"{CHUNK}[1]"])
        ),
        [CHUNK, "used twice"],
    ),
    "an output that is not there": (
        lambda content: layer(content, "attention.view#3").update(inputs=[f"{CHUNK}[3]"]),
        [f"'{CHUNK}[3]'", "no layer has that name"],
    ),
    "weights shared with a later layer": (shares("mlp.0", {0: "mlp.3"}), ["'mlp.3'", "no layer"]),
    "weights of another size": (shares("mlp.3", {0: "mlp.0"}), ["'mlp.3'", "parameter 0"]),
    "a weight that is not there": (shares("mlp.3", {2: "mlp.0"}), ["'mlp.3'", "parameter 2"]),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_model(name: str, tmp_path: Path) -> None:
    break_it, words = BAD[name]
    content = json.loads(traced("vit").model_dump_json())
    break_it(content)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(content))
    with pytest.raises(FileError) as refused:
        ModelSpec.read(path)
    assert all(word in str(refused.value) for word in words), str(refused.value)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 600
