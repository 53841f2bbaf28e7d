"""Every number of every record that is read has bounds, and every format_version is a whole number."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.helpers.filled import filled
from tests.torture import seeds

from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import FileError
from calib.foundation.run_files import NIGHT_FILE
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.manifest import Manifest
from calib.oracle.model.spec import ModelSpec
from calib.reports.night import Night
from calib.schema import ENTRIES, schema_text
from calib.search.plan import SearchedPlan
from calib.training.run.record import TrainingRun

# a loss may be anything, and so may gradients that are wrong, which are no result; sizes of layers
# are checked by oracle/model/graph.py, which names the layer, and a case of an impossible size
# fails as a case
FREE = {("training", "loss"), ("training", "gradient_difference")} | {
    (record, field)
    for record in ("model", "plan")
    for field in (
        "input_shape",
        "input_shapes",
        "output_shape",
        "parameter_shapes",
        "attributes",
        "classes",
        "shapes",
        "places",
        "axes",
        "orders",
        "fixed",
        "constants",
        "outputs",
        "inputs",
        "passed",
        "unused",
        "stopped",
    )
}
READ = [entry for entry in ENTRIES if not entry.written and entry.name != "samples"]
VERSIONED = {
    "run/cluster.json": lambda home: Cluster.read(home / "run/cluster.json"),
    "run/manifest.json": lambda home: Manifest.read(home / "run"),
    "parameters.json": lambda home: Parameters.read(home / "parameters.json"),
    "model.json": lambda home: ModelSpec.read(home / "model.json"),
    "found.json": lambda home: SearchedPlan.read(home / "found.json"),
    "night/night.json": lambda home: Night.read((home / "night" / NIGHT_FILE).parent),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The valid files that `make torture` mutates."""
    made = tmp_path_factory.mktemp("seeds")
    seeds.make(made)
    return made


def numbers(schema: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every (field, schema of a number) inside a schema."""
    if isinstance(schema, list):
        for each in schema:
            yield from numbers(each, name)
    elif isinstance(schema, dict):
        if schema.get("type") in ("number", "integer"):
            yield name, schema
        for key, of in schema.items():
            if key in ("properties", "$defs"):
                for field, content in of.items():
                    yield from numbers(content, field)
            elif key not in ("default", "const", "enum", "examples"):
                yield from numbers(of, name)


@pytest.mark.parametrize("entry", READ, ids=lambda entry: entry.name)
def test_every_number_has_bounds(entry: Any) -> None:
    schema = json.loads(schema_text(entry.name))
    open_ended = {
        field
        for field, of in numbers(schema)
        if not (
            {"maximum", "exclusiveMaximum"} & set(of) and {"minimum", "exclusiveMinimum"} & set(of)
        )
    }
    assert {(entry.name, field) for field in open_ended} <= FREE


@pytest.mark.parametrize("version", [1e9, 1.0, True, "1", None, 0, -1, [1]])
@pytest.mark.parametrize("name", VERSIONED)
def test_a_version_that_is_no_whole_number(
    home: Path, tmp_path: Path, name: str, version: object
) -> None:
    copy = tmp_path / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    content = json.loads((home / name).read_text())
    copy.write_text(json.dumps({**content, "format_version": version}))
    with pytest.raises(FileError, match="format_version"):
        VERSIONED[name](tmp_path)


@pytest.mark.parametrize("version", [1e9, 2.0, True, "2", None])
def test_a_version_of_a_training(home: Path, tmp_path: Path, version: object) -> None:
    lines = next((home / "night" / "training").glob("*.jsonl")).read_text().split("\n")
    header = {**json.loads(lines[0]), "format_version": version}
    (tmp_path / "t.jsonl").write_text("\n".join([json.dumps(header), *lines[1:]]))
    with pytest.raises(FileError, match="format_version"):
        TrainingRun.read(tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("work", 0, "s_per_byte"), 1e30),
        (("work", 0, "s_per_flop"), 1e3),
        (("work", 0, "call_s"), 1e12),
        (("work", 0, "max_bytes"), 1e25),
        (("work", 0, "reach"), 1e-200),
        (("tensor_loops", 0, "s_per_tensor"), 1e12),
        (("composition", 0, "s_per_layer"), 1e12),
        (("layers", 0, "forward_s", "high"), 1e12),
        (("collectives", 0, "slope_s_per_byte", "high"), 1e12),
        (("collectives", 0, "pieces", 0, "intercept_s", "high"), 1e12),
        (("collectives", 0, "line_error_factor"), 1e200),
        (("contention", 0, "points", 1, "contention", "high"), 1e200),
        (("memory", 0, "constant_bytes", "high"), 1e40),
        (("partitions", 0, "parallel_s", "high"), 1e40),
        (("device_memory_bytes",), 10**30),
    ],
)
def test_absurd_numbers_of_parameters(
    tmp_path: Path, place: tuple[str | int, ...], value: float
) -> None:
    content = json.loads(json.dumps(filled().signed()))
    holder = content
    for key in place[:-1]:
        holder = holder[key]
    assert place[-1] in holder
    holder[place[-1]] = value
    path = tmp_path / "parameters.json"
    path.write_text(json.dumps(content))
    line = refused(calib(tmp_path, "show", "parameters.json"))
    assert line.startswith(f"parameter file parameters.json: {place[0]}")
