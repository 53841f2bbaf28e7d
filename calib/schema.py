"""The JSON Schema (draft 2020-12) of every record that the program reads or writes.

Schemas are made from the records (pydantic), so they cannot differ from what is read and written.
Added here: the $id with the format's version, and that unknown fields are refused. Records are
imported only when their schema is asked for.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from calib.foundation.errors import InputError

DRAFT = "https://json-schema.org/draft/2020-12/schema"
SUFFIX = ".schema.json"
PARAMETERS = "parameters"
README = "README.md"
TITLE = "# Schemas of all records"
SIGNATURE = {
    "type": "string",
    "description": "sha256: and 64 hex digits, of the canonical JSON (RFC 8785) of all the rest; a file "
    "without it, or with another, was edited by hand",
}


class SchemaEntry(NamedTuple):
    """A record: its name, the file that holds it, what it is, and where it is defined (module:name).

    `version` is where the number of its format is defined; "" means 1. `written`: the program only
    writes it, with all its fields.
    """

    name: str
    file: str
    what: str
    of: str
    version: str = ""
    written: bool = False


ENTRIES = (
    SchemaEntry(
        "cluster",
        "cluster.json",
        "hosts, devices, levels and versions of a machine",
        "calib.microbench.records.cluster:Cluster",
        "calib.microbench.records.cluster:CLUSTER_FORMAT",
    ),
    SchemaEntry(
        "cluster-check",
        "cluster_check.json",
        "what of a cluster is not like the others, and what was timed",
        "calib.fitting.outliers.check:ClusterCheck",
        "calib.fitting.outliers.check:CHECK_FORMAT",
        written=True,
    ),
    SchemaEntry(
        "request", "plan.toml", "what is to be measured, as JSON", "calib.planning.request:Request"
    ),
    SchemaEntry(
        "plan", "plan.json", "the cases that follow from a request", "calib.microbench.cases:Plan"
    ),
    SchemaEntry(
        "manifest",
        "manifest.json",
        "circumstances of samples, and how every case ended",
        "calib.microbench.records.manifest:Manifest",
        "calib.microbench.records.manifest:MANIFEST_FORMAT",
    ),
    SchemaEntry(
        "samples",
        "samples.parquet",
        "one row: one timed repetition of one case",
        "calib.microbench.records.samples:Sample",
        "calib.microbench.records.samples:SAMPLES_FORMAT",
    ),
    SchemaEntry(
        PARAMETERS,
        "parameters.json",
        "what a machine costs, and how sure that is",
        "calib.fitting.parameters.file:Parameters",
        "calib.fitting.parameters.file:FORMAT_VERSION",
    ),
    SchemaEntry(
        "measured-size",
        "of `calib show --collectives --json`",
        "a measured size of a collective beside its law; --json prints a list",
        "calib.fitting.parameters.measured_sizes:MeasuredSize",
        written=True,
    ),
    SchemaEntry(
        "measured-pass",
        "of `calib show --layers --json`",
        "a pass of a measured layer beside the device's peaks; --json prints a list",
        "calib.fitting.parameters.measured_passes:MeasuredPass",
        written=True,
    ),
    SchemaEntry(
        "model",
        "model.json",
        "the layers of a model with shapes, kinds and edges",
        "calib.oracle.model.spec:ModelSpec",
        "calib.oracle.model.spec:MODEL_FORMAT",
    ),
    SchemaEntry(
        "projection",
        "in predictions.json",
        "one predicted iteration",
        "calib.oracle.projection:Projection",
    ),
    SchemaEntry(
        "predictions",
        "predictions.json",
        "what was predicted before training, and of what",
        "calib.oracle.predicted:Predicted",
        "calib.oracle.predicted:PREDICTED_FORMAT",
    ),
    SchemaEntry(
        "search-plan",
        "of `calib search -o`",
        "what a search chose; --json prints a list",
        "calib.search.plan:SearchedPlan",
        "calib.search.plan:PLAN_FORMAT",
    ),
    SchemaEntry(
        "training",
        "training/*.jsonl",
        "one line of a training run: header, iteration or end",
        "calib.training.run.lines:TrainingLine",
        "calib.training.run.record:RUN_FORMAT",
    ),
    SchemaEntry(
        "accuracy",
        "in report.json and calib.db",
        "a prediction against a training",
        "calib.reports.scoring.accuracy:Accuracy",
    ),
    SchemaEntry(
        "report",
        "report.json",
        "all that a report says, as `calib report --json` prints it",
        "calib.reports.writers.json:ReportDocument",
        written=True,
    ),
    SchemaEntry(
        "night",
        "night.json",
        "what a nightly run planned, and its short check",
        "calib.reports.night:Night",
        "calib.reports.night:NIGHT_FORMAT",
    ),
    SchemaEntry(
        "history",
        "in calib.db",
        "what one run directory adds to the history",
        "calib.reports.history.records:Entry",
    ),
    SchemaEntry(
        "acceptance",
        "in calib.db",
        "a step that somebody takes as it is",
        "calib.reports.history.records:Acceptance",
    ),
    SchemaEntry(
        "trend",
        "of `calib history --json`",
        "accuracy from night to night",
        "calib.reports.writers.history:TrendDocument",
        written=True,
    ),
    SchemaEntry(
        "doctor",
        "doctor.json",
        "what a machine can do and what will spoil its numbers",
        "calib.microbench.records.doctor:DoctorFindings",
        written=True,
    ),
    SchemaEntry(
        "watched",
        "of `calib doctor --watch`",
        "what disturbed a host in a while, and who",
        "calib.microbench.records.watched:Watched",
        written=True,
    ),
    SchemaEntry(
        "about",
        "*.about.json",
        "the side file of `calib export`",
        "calib.export.about:About",
        written=True,
    ),
)


def entry_named(name: str) -> SchemaEntry:
    """The record of that name. Raises InputError with the known ones."""
    found = next((entry for entry in ENTRIES if entry.name == name), None)
    if found is None:
        known = ", ".join(entry.name for entry in ENTRIES)
        raise InputError(f"there is no record {name!r}; known: {known}")
    return found


@cache
def schema_text(name: str) -> str:
    """The schema of a record as text with a final newline. Raises InputError for an unknown name."""
    return json.dumps(schema_of(entry_named(name)), indent=1) + "\n"


def all_texts() -> dict[str, str]:
    """File name -> content of docs/schemas: every schema, and README.md with a table of them."""
    texts = {f"{entry.name}{SUFFIX}": schema_text(entry.name) for entry in ENTRIES}
    return {README: readme(), **texts}


def readme() -> str:
    """The table of the schemas, Markdown."""
    rows = [
        f"| [{e.name}]({e.name}{SUFFIX}) | {e.file} | {e.what} | {version_of(e)} |" for e in ENTRIES
    ]
    return "\n".join(
        [
            TITLE,
            "",
            "JSON Schema, draft 2020-12, made by `calib schema --all -o docs/schemas`; one alone:",
            "`calib schema NAME`. Units are SI and stand in the names or the descriptions; bytes are "
            "those",
            "of whole buffers. Formats: [the policy](../parameters.md#formats).",
            "",
            "| record | file | what it is | format |",
            "|---|---|---|---|",
            *rows,
            "",
            "What calib writes and does not read (report, trend, doctor, watched, about, measured-size,",
            "measured-pass) has all its fields.",
            "A row of samples.parquet has NaN where its schema has null. A schema knows one number at a",
            "time: that an interval holds its value, or sizes rise, only the readers check",
            "(`calib parameters validate`).",
            "",
        ]
    )


def version_of(entry: SchemaEntry) -> int:
    """The number of the record's format."""
    found: int = _named(entry.version) if entry.version else 1
    return found


def schema_of(entry: SchemaEntry) -> dict[str, Any]:
    """The schema of a record as a JSON value."""
    from pydantic import TypeAdapter

    made = TypeAdapter[Any](_named(entry.of)).json_schema()
    version = version_of(entry)
    for record in [made, *made.get("$defs", {}).values()]:
        if "properties" in record:
            _close(record, entry, version)
    if entry.name == PARAMETERS:
        _sign(made)
    words = f"{entry.file}: {entry.what}.\n\n{made.pop('description', '')}".strip()
    head = {
        "$schema": DRAFT,
        "$id": f"calib-{entry.name}-v{version}",
        "title": made.pop("title", entry.name),
        "description": words,
    }
    return {**head, **made}


def _close(record: dict[str, Any], entry: SchemaEntry, version: int) -> None:
    """Refuse unknown fields; require all of what is only written; formats up to the entry's."""
    record.setdefault("additionalProperties", False)
    if entry.written:
        record["required"] = list(record["properties"])
    for field, content in record["properties"].items():
        content.pop("title", None)
        if field == "format_version" and entry.version:
            content.update(minimum=1, maximum=version)


def _sign(made: dict[str, Any]) -> None:
    """Add what Parameters.parse checks before it makes the record."""
    fields = made["properties"]
    version = fields.pop("format_version")
    version.pop("default")
    made["required"] = ["format_version", *made["required"]]
    made["properties"] = {"format_version": version, "signature": SIGNATURE, **fields}


def _named(place: str) -> Any:
    """What stands at module:name."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
