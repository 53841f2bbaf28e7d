"""`calib schema`: schemas that hold what the program writes, and nothing else."""

from __future__ import annotations

import copy
import json
import math
import tomllib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.calib.inside import calib
from tests.calib.nightly_runs import (
    begun_by_hand,
    calibration,
    here,
    known_points,
    request,
    trained,
)
from tests.calib.running import refused
from tests.helpers.filled import filled
from tests.helpers.rows import sample, write_rows
from tests.microbench.importers.pair_logs import slow_node, write_pairs
from tests.oracle.handmade import mlp
from tests.reports import past_records

from calib.commands.schema import command, write_all
from calib.export.about import about
from calib.export.exporting import request_of
from calib.export.target import Collapse, Exported
from calib.fitting.outliers.check import check
from calib.fitting.outliers.logs import peers_of_logs
from calib.fitting.parameters.file import FORMAT_VERSION, Parameters
from calib.fitting.parameters.measured_passes import measured_passes
from calib.fitting.parameters.measured_sizes import measured_sizes
from calib.foundation import files
from calib.foundation.errors import CalibError, FileError
from calib.importing.logs import read_runs
from calib.microbench.disturbers import watch
from calib.microbench.doctor import clocks, cores, timer
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.manifest import (
    CaseEnd,
    ClockRecord,
    GpuIdentity,
    ImportedFile,
    LaunchRecord,
    Manifest,
    RankPlace,
)
from calib.microbench.records.samples import read_table, schema
from calib.microbench.records.settings import BoardState, PeerLink, RankSoftware
from calib.night.steps import predict
from calib.planning.plan import draft, specs_of
from calib.reports.drift.judge import drift
from calib.reports.drift.trend import trend
from calib.reports.drift.verdict import verdict
from calib.reports.history.reading import MachineNights
from calib.reports.history.records import Acceptance
from calib.reports.writers.history import in_json
from calib.reports.writers.json import as_dict
from calib.schema import ENTRIES, all_texts, schema_text
from calib.scoring.findings import report_of
from calib.scoring.run import scored
from calib.search import search
from calib.search.nominal import nominal
from calib.search.plan import SearchedPlan
from calib.search.request import Devices
from calib.training.models.specs import spec

PUBLISHED = Path(__file__).parents[2] / "docs" / "schemas"
NAMES = [entry.name for entry in ENTRIES]
# of records: fields whose value may be anything
OPEN = {"gpu_before", "gpu_after", "tables", "details"}
MUTATIONS = 12


def manifest() -> Manifest:
    """A start of two ranks, a case and a log of another tool."""
    gpu = GpuIdentity(uuid="1", name="Some GPU")
    launch = LaunchRecord(
        launch=0,
        ranks=2,
        command="mpiexec -n 2",
        started="2026-11-03T09:50:00+00:00",
        places=[
            RankPlace(host="a", cores=[0], numa_node=0),
            RankPlace(host="a", cores=[1], gpu=gpu),
        ],
        oversubscribed=False,
        timer={"resolution_s": 1e-9},
        clocks=[ClockRecord(offset_s=-1e-6, drift=1e-9, error_s=1e-7)],
        load_average=0.5,
        software=[RankSoftware(ranks=[0, 1], libraries={"nccl": "2.30.4"}, environment={})],
        boards=[BoardState(uuid="1", host="a", peers=[PeerLink(uuid="2", p2p={"read": "ok"})])],
    )
    case = CaseEnd(
        case_id="0" * 16,
        launch=0,
        label="allreduce",
        purpose="grid",
        repetitions=20,
        half_width=0.01,
        stopped_by="interval",
        elapsed_s=0.5,
        memory={"peak": 1},
    )
    imported = ImportedFile(name="a.txt", sha256="0" * 64, tool="osu", rows=3, faults=[(7, "torn")])
    return Manifest(
        program_version="0.1.0",
        cluster_name="a",
        cluster_fingerprint="0" * 16,
        seed=1,
        target_half_width=0.025,
        launches=[launch],
        cases=[case],
        imported=[imported],
    )


def history() -> dict[str, Any]:
    """A report and a trend of sixteen nights whose middle has a step."""
    past = past_records.past(16, models=("vgg16_mini",), strategies=("data",), ps=(2, 4))
    found = drift(past)
    findings = past_records.findings(past, past_records.drift_of(past))
    findings.__dict__["verdict"] = verdict(findings.summary, findings.missing, findings.drift, 0.8)
    machines = [MachineNights("1" * 16, "laptop", 16, "2025-11-03", "2025-11-18")]
    nights = trend(past)
    shown = past_records.drift_of(past)
    assert found.sensitivity or found.unjudged
    return {
        "report of a history": as_dict(findings),
        "trend": in_json(past, nights, shown, machines),
    }


def exported(path: Path) -> dict[str, Any]:
    collapse = Collapse(
        "alpha", "latency", "2 us", (2, 4), (8, 1024), 16, 0.1, 0.3, 8, 4, "measured"
    )
    made = Exported({"": "x\n"}, ("2 ranks",), (collapse,), ("layers",), ("a note",))
    found: dict[str, Any] = json.loads(json.dumps(about("csv", request_of(path), made)))
    return found


def row() -> dict[str, Any]:
    """As JSON has it: null for NaN."""
    found = read_table(Path("samples.parquet")).to_pylist()[0]
    return {
        key: None if isinstance(value, float) and math.isnan(value) else value
        for key, value in found.items()
    }


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Record -> documents that the program's own writers made."""
    home = tmp_path_factory.mktemp("schemas")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        return dict(made(home))


def made(home: Path) -> Iterator[tuple[str, list[Any]]]:
    asked, cluster = request(p=(1,)), here()
    run = calibration(home / "runs" / "one", asked, cluster)
    point = known_points(asked)[0]
    trained(run, point)
    report = report_of([run])
    report.write(run / "report.html")
    begun = begun_by_hand(home / "runs" / "night", run, asked)
    assert not predict(begun.run, begun.points, begun.parameters)
    projections = read(begun.run / "predictions.json")
    spec("cosmoflow-mini").write(home / "model.json")
    both = request(p=(1, 2))
    plan = draft(both, here(2), specs_of(both)).plan
    kinds = {case.kind: case for case in plan.cases}
    assert set(kinds) == {"collective", "layer", "tensors", "in_place"}
    few = plan.model_copy(update={"cases": tuple(kinds.values())})
    manifest().write(home)
    write_rows(home / "samples.parquet", [sample()])
    filled().write(home / "filled.json")
    lines = point.path(run).read_text().splitlines()
    of_history = history()
    yield "cluster", [read(run / "cluster.json")]
    pairs = write_pairs(home / "pairs", 4, slow_node("n1", 2.0), failing=("n0 n2",))
    found = check(peers_of_logs(read_runs([pairs]), "made"))
    yield "cluster-check", [found.model_dump(mode="json")]
    yield "request", [tomllib.loads((run / "plan.toml").read_text()), {"p": [2], "budget_s": "10m"}]
    yield "plan", [json.loads(few.model_dump_json())]
    yield "manifest", [read(home / "manifest.json")]
    yield "samples", [row()]
    yield "parameters", [read(home / "filled.json")]
    yield "model", [read(home / "model.json")]
    yield "predictions", [projections]
    yield "projection", projections["projections"][:1]
    yield "training", [json.loads(line) for line in (lines[0], lines[1], lines[-1])]
    yield "night", [read(begun.run / "night.json")]
    real = read(run / "report.json")
    yield "report", [real, json.loads(json.dumps(of_history["report of a history"]))]
    yield "accuracy", real["accuracies"][:1]
    yield "history", [json.loads(scored(run).entry.model_dump_json())]
    taken = Acceptance(night="0" * 8, series="", reason="new compiler", accepted="2026-11-03")
    yield "acceptance", [json.loads(taken.model_dump_json())]
    yield "trend", [json.loads(json.dumps(of_history["trend"]))]
    sizes = measured_sizes(filled().collectives[0])
    yield "measured-size", [json.loads(size.model_dump_json()) for size in sizes]
    passes = measured_passes(filled())
    yield "measured-pass", [json.loads(of.model_dump_json()) for of in passes]
    yield "doctor", [[finding.model_dump() for finding in (cores(2), clocks(), timer())]]
    yield "watched", [json.loads(watch(1.0).model_dump_json())]
    yield "about", [exported(home / "filled.json")]
    yield (
        "search-plan",
        [
            json.loads(json.dumps(searched(space).model_dump()))
            for space in ("layerwise", "exchange")
        ],
    )


def searched(space: str) -> SearchedPlan:
    """A plan of a small net on a paper's machine."""
    devices = Devices(1, 2, 1 << 34)
    return search(mlp([16, 8, 4]), devices, nominal("p100"), space, batch=8)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def places(content: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of a document: of its objects and of its numbers."""
    if isinstance(content, dict):
        yield where
        for key, value in content.items():
            if key not in OPEN:
                yield from places(value, (*where, key))
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from places(value, (*where, index))
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield where


def spoiled(document: Any, where: tuple[Any, ...]) -> Any:
    """The document with a field that is not known, or a number that is text."""
    wrong = copy.deepcopy(document)
    at, last = wrong, None
    for step in where:
        last, at = at, at[step]
    if isinstance(at, dict):
        at["surprise"] = {"no": ["such field"]}
    else:
        last[where[-1]] = "text"
    return wrong


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_holds_what_is_written_and_nothing_else(
    name: str, documents: dict[str, list[Any]]
) -> None:
    content = json.loads(schema_text(name))
    Draft202012Validator.check_schema(content)
    check = Draft202012Validator(content)
    for document in documents[name]:
        assert [error.message for error in check.iter_errors(document)] == []
        every = list(places(document))
        for where in Random(1).sample(every, min(MUTATIONS, len(every))):
            assert not check.is_valid(spoiled(document, where)), where


@pytest.mark.parametrize(
    "name", ["report", "about", "trend", "doctor", "watched", "measured-size", "measured-pass"]
)
def test_what_is_only_written_has_all_its_fields(
    name: str, documents: dict[str, list[Any]]
) -> None:
    check = Draft202012Validator(json.loads(schema_text(name)))
    for document in documents[name][:1]:
        whole = document[0] if isinstance(document, list) else document
        for field in whole:
            less = {key: value for key, value in whole.items() if key != field}
            assert not check.is_valid([less] if isinstance(document, list) else less), field


def test_defaults_of_what_is_only_written_are_there(documents: dict[str, list[Any]]) -> None:
    """A summary without its overlap is read from an older calib, and written by none."""
    check = Draft202012Validator(json.loads(schema_text("report")))
    _, report = documents["report"]
    for record, field in (
        (report["summary"], "overlap"),
        (report["drift"]["steps"][0], "accepted"),
    ):
        value = record.pop(field)
        assert not check.is_valid(report), field
        record[field] = value
    assert check.is_valid(report)


def objects(of: Any) -> Iterator[dict[str, Any]]:
    """The records of a schema."""
    return (each for each in [of, *of.get("$defs", {}).values()] if "properties" in each)


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_says_what_it_is_of_and_what_each_field_means(name: str) -> None:
    content = json.loads(schema_text(name))
    assert content["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert content["$id"].startswith(f"calib-{name}-v") and content["title"]
    assert content["description"]
    for record in objects(content):
        assert record["additionalProperties"] is False
        for field, of in record["properties"].items():
            assert of.get("description"), (record["title"], field)


def test_versions_and_columns() -> None:
    manifest_schema = json.loads(schema_text("manifest"))
    assert manifest_schema["$id"] == "calib-manifest-v1"
    version = manifest_schema["properties"]["format_version"]
    assert (version["minimum"], version["maximum"]) == (1, 1)
    assert json.loads(schema_text("samples"))["$id"] == "calib-samples-v1"
    assert list(json.loads(schema_text("samples"))["properties"]) == schema().names


def test_the_schema_of_parameters_is_that_of_the_file() -> None:
    schema = json.loads(schema_text("parameters"))
    assert list(schema["properties"])[:2] == ["format_version", "signature"]
    assert set(schema["properties"]) == {*Parameters.model_fields, "signature"}
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Estimate"]["required"] == ["value", "low", "high"]


def test_the_published_schemas_are_current() -> None:
    texts = all_texts()
    assert {path.name for path in PUBLISHED.iterdir()} == set(texts)
    for name, text in texts.items():
        assert (PUBLISHED / name).read_text() == text, "calib schema --all -o docs/schemas"


def test_the_verb(tmp_path: Path) -> None:
    assert calib(tmp_path, "schema", "night").stdout == schema_text("night")
    assert calib(tmp_path, "schema", "night", "-o", "a/n.json").returncode == 0
    assert (tmp_path / "a" / "n.json").read_text() == schema_text("night")
    listed = calib(tmp_path, "schema", "--list", COLUMNS="200").stdout
    assert all(f" {e.name} " in listed and e.file in listed and e.what in listed for e in ENTRIES)
    assert calib(tmp_path, "schema", "--all", "-o", "all").returncode == 0
    assert {p.name: p.read_text() for p in (tmp_path / "all").iterdir()} == all_texts()


def test_a_name_that_is_none(tmp_path: Path) -> None:
    said = refused(calib(tmp_path, "schema", "nights"))
    assert said.startswith("there is no record 'nights'; known: cluster, cluster-check, request, ")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "NAME"),
        ({"name": "night", "everything": True, "output": "all"}, "one of them"),
        ({"everything": True}, "-o"),
        ({"everything": True, "output": "file"}, "is a file"),
        ({"list_records": True, "output": "x.txt"}, "--list prints a table; -o is for"),
        ({"name": "night", "output": "."}, "is a directory"),
        ({"everything": True, "output": "taken"}, "night.schema.json: it is a directory"),
        ({"everything": True, "output": "theirs"}, "has another README.md"),
    ],
)
def test_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    Path("taken/night.schema.json").mkdir(parents=True)
    Path("theirs").mkdir()
    Path("theirs/README.md").write_text("# Theirs\n")
    before = sorted(tmp_path.rglob("*"))
    if "output" in options:
        options = options | {"output": Path(options["output"])}
    with pytest.raises(CalibError, match=says):
        command(**options)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_leaves_the_schemas_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all({"a": "old", "b": "old"}, tmp_path)
    whole, calls = files.write_whole, count()

    def fails(path: Path, content: str) -> None:
        if next(calls):
            raise FileError("cannot write: no space left")
        whole(path, content)

    monkeypatch.setattr("calib.commands.schema.write_whole", fails)
    with pytest.raises(FileError, match="no space"):
        write_all({"a": "new", "b": "new"}, tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old", "b": "old"}


def test_a_link_stays_one(tmp_path: Path) -> None:
    """Also one into another directory, and one to nothing."""
    shared, place = tmp_path / "shared.json", tmp_path / "schemas"
    shared.write_text("old")
    place.mkdir()
    (place / "a").symlink_to(shared)
    (place / "b").symlink_to("../new.json")
    write_all({"a": "one", "b": "two", "c": "three"}, place)
    assert (place / "a").is_symlink() and shared.read_text() == "one"
    assert (place / "b").is_symlink() and (tmp_path / "new.json").read_text() == "two"
    assert sorted(path.name for path in place.iterdir()) == ["a", "b", "c"]


@pytest.mark.parametrize("version", [-1, 0, FORMAT_VERSION + 1, 99, None, "4", True])
def test_the_schema_of_parameters_takes_no_format_that_is_not_read(version: Any) -> None:
    content = json.loads(json.dumps(filled().signed()))
    schema = Draft202012Validator(json.loads(schema_text("parameters")))
    assert schema.is_valid(content) and schema.is_valid(content | {"format_version": 1})
    other = content | {"format_version": version}
    if version is None:
        del other["format_version"]
    assert not schema.is_valid(other)
    with pytest.raises(FileError):
        Parameters.parse(other, "it")


def test_names_are_of_the_files(documents: dict[str, list[Any]]) -> None:
    """The cluster's schema takes no manifest, and so on: every record has its own."""
    assert set(documents) == set(NAMES)
    cluster = Draft202012Validator(json.loads(schema_text("cluster")))
    assert Cluster.model_validate(documents["cluster"][0])
    assert not cluster.is_valid(documents["manifest"][0])
