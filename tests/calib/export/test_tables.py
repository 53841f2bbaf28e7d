"""The targets csv and python: every number of the file, in a table and in a dict."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from tests.helpers import filled
from tests.helpers.words import words_of
from tests.reports.made_findings import HOSTILE

from calib.export import csv_table, numbers_json
from calib.export.target import Exported, ExportRequest, Source
from calib.fitting.parameters.collectives import Burst, CollectivePoint, HockneyPiece, SharedPoint
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.provenance import MergedSource
from calib.foundation.records import Estimate

SECTIONS = tuple(
    words_of(
        "collectives structural contention peaks layers work tensor_loops composition memory overlap "
        "partitions"
    )
)


def exported(parameters: Parameters, target: Any = csv_table) -> Exported:
    found: Exported = target.export(ExportRequest(parameters, Source("parameters.json", "0" * 64)))
    assert found.files[""].endswith("\n")
    return found


def rows(parameters: Parameters, **of: str) -> list[dict[str, str]]:
    """The rows of the table that have these cells."""
    text = exported(parameters).files[""]
    assert text.count("\r\n") == text.count("\n")  # RFC 4180
    found = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    assert all(None not in row and None not in row.values() for row in found)
    return [row for row in found if all(row[key] == cell for key, cell in of.items())]


def falling() -> Parameters:
    """All sections, with what may be below 0: an intercept, residuals, logs of neighbours.

    The second piece goes from 1e-6 s at 4096 B to 1e-2 s at 16 MiB.
    """
    end = float(filled.SIZES[-1])
    slope = (1e-2 - 1e-6) / (end - 4096)
    intercept = 1e-6 - slope * 4096
    assert intercept < 0
    pieces = [
        filled.collective().pieces[0],
        HockneyPiece(
            from_nbytes=4096,
            to_nbytes=end,
            slope_s_per_byte=filled.near(slope),
            intercept_s=Estimate(value=intercept, low=2 * intercept, high=1e-7),
        ),
    ]
    burst = Burst(nbytes=filled.near(131e3), share=0.75)
    law = filled.work(
        neighbours=[(-1.5, 0.25, 7.5, -0.3), (2.0, -4.0, 9.0, 0.2)],
        residual_quantiles=filled.QUANTILES,
        shared=0.5,
        batch_factor=1.25,
        intervals={"call_s": (9e-6, 1.1e-5), "unheard": (1, 2)},
    )
    content = filled.filled(
        collectives=[filled.collective(pieces=pieces, outliers_nbytes=[512], burst=burst)],
        work=[law],
        structural=[filled.structural()],
        nodes=3,
        nodes_per_rack=5,
        links_per_node=7,
    )
    part = MergedSource(
        sha256="cd" * 32,
        cluster_name="a",
        cluster_fingerprint="0" * 16,
        measured_from="2026",
        measured_until="2026",
        parts={"layers": 139},
    )
    provenance = content.provenance.model_copy(update={"launches": 11, "merged": [part]})
    return content.model_copy(update={"provenance": provenance})


def numbers(content: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Every number of a JSON value, with its place."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from numbers(value, (*where, key))
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from numbers(value, (*where, index))
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield where, content


def all_different(content: Any, counter: Iterator[int]) -> Any:
    """Every number that is no size or number of ranks made a little larger, so that no two are equal."""
    if isinstance(content, dict):
        first = [key for key in ("low", "value", "high") if key in content]
        order = [*first, *(key for key in content if key not in first)]
        return {
            key: 1000 + next(counter) if key == "n" else all_different(content[key], counter)
            for key in order
        }
    if isinstance(content, list):
        return [all_different(value, counter) for value in content]
    if isinstance(content, float):
        return content * (1 + 1e-6 * next(counter)) or 1e-9 * next(counter)
    return content


def in_the_table(where: tuple[Any, ...], value: float) -> float | None:
    """What the table has of a number of the file; None for what it says it leaves out."""
    if "residual_quantiles" in where:
        return 1 + value
    if "neighbours" in where:
        # the third is half the log of the bytes (fitting/parameters/work.py, likeness)
        return math.exp(2 * value if where[-1] == 2 else value)
    unknown = where[-1] in ("nodes", "nodes_per_rack", "links_per_node", "n", "launches")
    return None if value < 0 or (value == 0 and unknown) else value


def missing(content: Any, found: list[dict[str, str]]) -> list[tuple[Any, ...]]:
    """Places of numbers that no cell holds."""
    cells = {float(cell) for row in found for cell in row.values() if is_number(cell)}
    wanted = [(where, in_the_table(where, value)) for where, value in numbers(content)]
    return [
        where
        for where, value in wanted
        if value is not None
        and value not in cells
        and not any(math.isclose(value, cell, rel_tol=1e-12) for cell in cells)
    ]


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("section", SECTIONS)
def test_every_number_of_a_law_is_in_its_rows(section: str) -> None:
    """Of a file with this law alone, in which no two numbers are the same."""
    whole = falling()
    [law] = getattr(whole, section)
    content = all_different(json.loads(law.model_dump_json()), count(1))
    none: dict[str, list[Any]] = {name: [] for name in SECTIONS}
    alone = whole.model_copy(update=none | {section: [type(law).model_validate(content)]})
    found = rows(alone, section=section)
    assert found and missing(content, found) == []


def test_every_number_of_the_file_and_its_source() -> None:
    whole = falling()
    content = json.loads(whole.model_dump_json())
    top = {key: value for key, value in content.items() if key not in SECTIONS}
    found = [row for row in rows(whole) if row["section"] in ("cluster", "provenance")]
    assert missing(top, found) == []
    names = {row["quantity"]: row["name"] for row in found}
    assert names["cluster_fingerprint"] == "0123456789abcdef"
    assert names["samples_sha256"] == "ab" * 32


def test_a_row_is_found_without_parsing() -> None:
    whole = falling()
    [alpha] = rows(
        whole, section="collectives", operation="allreduce", law="line", quantity="alpha"
    )
    fit = whole.collectives[0]
    assert (alpha["library"], alpha["level"], alpha["ranks"], alpha["unit"]) == (
        "mpi",
        "node",
        "2",
        "s",
    )
    assert [float(alpha[key]) for key in ("value", "low95", "high95")] == [
        2e-6,
        pytest.approx(1.9e-6),
        pytest.approx(2.1e-6),
    ]
    assert (float(alpha["error"]), alpha["n"]) == (fit.mean_relative_error, "160")
    assert (alpha["from"], alpha["to"], alpha["range_unit"]) == ("8", str(2**24), "B")
    points = rows(whole, law="points", quantity="seconds", section="collectives")
    assert {int(row["from"]): float(row["value"]) for row in points} == {
        m: filled.seconds(m) for m in filled.SIZES
    }
    larger = SharedPoint(nbytes=2**30, seconds=filled.near(0.5))
    grown = filled.filled(collectives=[filled.collective(beyond=[larger])])
    [beyond] = rows(grown, law="others")
    assert [beyond[key] for key in ("quantity", "from", "value")] == ["seconds", str(2**30), "0.5"]
    halo = filled.collective(operation="halo", ranks=4)
    whole = filled.filled(collectives=[filled.collective(4), halo])
    for quantity, factors in (("algbw", [1.0, 1.0]), ("busbw", [1.5])):
        rates = rows(whole, law="points", quantity=quantity, unit="B/s", ranks="4")
        wanted = [x * m / filled.seconds(m) for x in factors for m in filled.SIZES]
        assert [float(row["value"]) for row in rates] == pytest.approx(wanted)
    layer, in_place, flops, nbytes = rows(whole, section="layers", operation="backward")
    assert [(row["quantity"], row["unit"]) for row in (flops, nbytes)] == [
        ("flops_per_s", "flop/s"),
        ("bytes_per_s", "B/s"),
    ]
    assert float(flops["value"]) == pytest.approx(2 * 2 * 8 * 64 * 4 * 4 * 9 / 2e-4)
    assert in_place["name"] == filled.CONV_KEY
    assert (layer["name"], layer["kind"]) == (filled.CONV_KEY, "conv")
    assert (float(layer["value"]), layer["batch"], layer["active_ranks"]) == (2e-4, "8", "2")


def test_a_piece_below_zero_is_given_by_its_ends() -> None:
    whole = falling()
    ends = rows(whole, section="collectives", law="pieces", part="1", quantity="seconds")
    times = {float(row["from"]): float(row["value"]) for row in ends}
    assert times == pytest.approx({4096.0: 1e-6, 2.0**24: 1e-2}, rel=1e-9)
    [intercept] = rows(whole, law="pieces", part="1", quantity="intercept")
    assert (intercept["value"], intercept["low95"], intercept["high95"]) == ("", "", "1e-07")
    assert "2 numbers below 0" in " ".join(exported(whole).lost)
    cells = [row[key] for row in rows(whole) for key in ("value", "low95", "high95", "from", "to")]
    assert not any(cell.startswith("-") or "," in cell or cell in ("nan", "inf") for cell in cells)


@pytest.mark.parametrize("name", [*HOSTILE, "nan", "-inf", "1e999"])
def test_hostile_names(name: str) -> None:
    whole = filled.filled(
        collectives=[filled.collective(operation=name, library=name, level=name)],
        partitions=[filled.partitions(library=name)],
        device=name,
    )
    for row in rows(whole):
        for cell in row.values():
            assert cell.isprintable() and (
                is_number(cell) or cell.lstrip()[:1] not in tuple("=+-@")
            )
    tree = read(whole)
    for place, _ in leaves(tree):
        assert all(word.isprintable() for word in place)
    assert len(tree["collectives"]) == len(tree["partitions"]) == 1


def test_a_name_that_a_reader_takes_for_no_number_is_text() -> None:
    """pandas and spreadsheets read nan, inf and 1e999 as numbers; 12 is one."""
    for name, cell in (
        ("nan", "'nan"),
        ("1e999", "'1e999"),
        ("Infinity", "'Infinity"),
        ("12", "12"),
    ):
        of = rows(filled.filled(device=name), section="cluster")
        assert {row["name"] for row in of} == {cell}


def test_the_table_says_what_it_leaves_out_of_this_file() -> None:
    bare: dict[str, Any] = {name: [] for name in SECTIONS}
    assert exported(filled.filled(**bare)).lost == ()
    law = filled.work(runner_up="max (log error 0.2)", neighbours=[], residual_quantiles=[])
    assert exported(filled.filled(**(bare | {"work": [law]}))).lost == (
        "remarks in words: laws that came second",
    )
    source = filled.filled().provenance.model_copy(update={"notes": ["two runs"]})
    noted = filled.filled(**(bare | {"provenance": source, "memory": [filled.memory()]}))
    assert exported(noted).lost == ("remarks in words: notes, models that laws were fitted to",)


def read(parameters: Parameters) -> dict[str, Any]:
    text = exported(parameters, numbers_json).files[""]
    found: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    return found


def law_of(parameters: Parameters) -> dict[str, Any]:
    """The only allreduce."""
    [law] = read(parameters)["collectives"]["allreduce"].values()
    assert isinstance(law, dict)
    return law


def leaves(tree: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every number with its unit, by its place."""
    for name, of in tree.items():
        for each in of if isinstance(of, list) else [of]:
            if isinstance(each.get("unit"), str):
                yield (*where, name), each
            else:
                yield from leaves(each, (*where, name))


def test_every_row_is_in_the_dict() -> None:
    """In its order under its section: its quantity, and all cells that tell of the number."""
    whole = falling()
    held = ("value", "low95", "high95", "unit", "from", "to", "range_unit", "n", "error")
    for section in (*SECTIONS, "cluster"):
        table = rows(whole, section=section)
        found = [(place, leaf) for place, leaf in leaves(read(whole)) if place[0] == section]
        assert len(found) == len(table) > 0

        def of_row(row: dict[str, str]) -> tuple[str, ...]:
            return (row["quantity"], *(row[name] for name in held))

        def of_leaf(place: tuple[str, ...], leaf: dict[str, Any]) -> tuple[str, ...]:
            return (place[-1], *(str(leaf.get(name, "")) for name in held))

        assert sorted(of_leaf(*one) for one in found) == sorted(map(of_row, table))
        for place, _ in found:
            assert any(
                all(row[name] in place for name in ("operation", "kind", "name") if row[name])
                for row in table
            )


def test_the_dict_says_what_it_leaves_out_of_this_file() -> None:
    assert exported(falling(), numbers_json).lost == exported(falling()).lost != ()


def test_an_operation_that_is_called_as_a_key_of_a_leaf() -> None:
    """Its branch was taken for a number: what is not known was null in it, all in one line."""
    fit = filled.collective(operation="unit", pieces=[], pieces_mean_relative_error=None)
    [law] = read(filled.filled(collectives=[fit]))["collectives"]["unit"].values()
    assert law["line"]["alpha"]["value"] == 4e-6


def test_a_time_follows_from_the_line() -> None:
    fit = filled.collective()
    line = law_of(filled.filled(collectives=[fit]))["line"]
    for m in filled.SIZES:
        expected = fit.intercept_s.value + fit.slope_s_per_byte.value * m
        assert line["intercept"]["value"] + m * line["slope"]["value"] == expected
    assert (line["intercept"]["unit"], line["slope"]["unit"]) == ("s", "s/B")


def test_a_time_follows_from_the_ends_of_a_piece() -> None:
    whole = falling()
    pieces = law_of(whole)["pieces"]
    parts = [of for name, of in pieces.items() if name.startswith("part ")]
    assert len(parts) == 2
    for part in parts:
        first, last = part["seconds"]
        for share in (1e-3, 0.3, 0.999):  # two pieces share a border
            m = first["from"] + share * (last["from"] - first["from"])
            time = first["value"] + share * (last["value"] - first["value"])
            assert time == pytest.approx(whole.collectives[0].described_seconds(m), rel=1e-9)


def test_laws_that_are_called_the_same_are_all_there() -> None:
    """A file may have a law twice, as a network's plain and accelerated device."""
    fits = [filled.collective(n=1), filled.collective(n=2), filled.collective(device="cuda")]
    tree = read(filled.filled(collectives=fits))["collectives"]["allreduce"]
    twice, once = tree.values()
    assert list(tree) == [f"mpi, {device}, node, ranks 2, nodes 1" for device in ("cpu", "cuda")]
    assert len(twice["line"]["alpha"]) == 2 and isinstance(once["line"]["alpha"], dict)


def test_a_file_with_next_to_nothing() -> None:
    """No law at all; and one whose numbers are as odd as the record allows."""
    empty = filled.filled(**{name: [] for name in SECTIONS})
    assert [row["section"] for row in rows(empty) if row["value"]] == [
        "cluster",
        "cluster",
        "provenance",
        "provenance",
    ]
    assert list(read(empty)) == ["cluster"]
    odd = filled.collective(
        operation="hierarchical_allreduce inner=0",
        ranks=10**9,
        device="cuda",
        pieces=[
            HockneyPiece(
                from_nbytes=1e18,
                to_nbytes=9e18,
                intercept_s=Estimate(value=-0.0, low=-1e9, high=0.0),
                slope_s_per_byte=Estimate(value=1e-300, low=0.0, high=10.0),
            )
        ],
        points=[
            CollectivePoint(nbytes=m, seconds=Estimate(value=1e-300, low=0.0, high=1e-300), n=1)
            for m in (1, 2**63 - 1)
        ],
        residual_quantiles=[-1e15, -1.0, 0.0, 1.0, 1e15, 2.0],
    )
    law = filled.work(neighbours=[(100.0, -100.0, 1e-300, 0.0)])
    whole = filled.filled(collectives=[odd], work=[law])
    cells = [row["value"] for row in rows(whole)]
    assert not any(cell.startswith("-") or cell in ("inf", "nan") for cell in cells)
    assert "1e-300" in cells
    [tree] = read(whole)["collectives"]["hierarchical_allreduce inner=0"].values()
    assert tree["line"]["alpha"]["value"] == 4e-6
    assert tree["pieces"]["part 0"]["seconds"][1]["value"] == pytest.approx(9e-282)


def test_two_layouts_of_one_p_have_two_names() -> None:
    """8 ranks on two nodes, and one on each of eight."""
    fits = [
        filled.collective(8, level="system", nodes=nodes, ranks_per_node=8 // nodes)
        for nodes in (2, 8)
    ]
    laws = read(filled.filled(collectives=[filled.collective(2), *fits]))["collectives"]
    assert list(laws["allreduce"]) == [
        "mpi, cpu, node, ranks 2, nodes 1",
        "mpi, cpu, system, ranks 8, nodes 2",
        "mpi, cpu, system, ranks 8, nodes 8",
    ]
