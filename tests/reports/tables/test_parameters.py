"""The tables of a parameter file: units, intervals turned round, empty sections."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.helpers import filled as f

from calib.fitting.merging.differences import differences
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.measured_passes import measured_passes
from calib.fitting.review.review import review
from calib.foundation.errors import FileError
from calib.foundation.records import Estimate
from calib.foundation.words import bytes_words
from calib.reports.tables.cells import bandwidth, factor, span
from calib.reports.tables.collectives import every_size
from calib.reports.tables.compute import median_half_width, slowest_passes
from calib.reports.tables.parameters import absent, sections
from calib.reports.tables.table import Table, table_text

LISTS = [name for name, value in f.filled() if isinstance(value, list)]


def section(parameters: Parameters, title: str) -> Table:
    return next(each for each in sections(parameters) if each.title.startswith(title))


def test_every_section_is_a_table_and_every_row_fits_it() -> None:
    found = sections(f.filled())
    # collectives have a size and pieces too, structural laws algorithms, partitions other methods
    assert len(found) == 1 + len(LISTS) + 4
    for each in [*found, slowest_passes(measured_passes(f.filled()))]:
        assert each.rows and all(len(row) == len(each.columns) for row in each.rows), each.title
    assert absent(f.filled()) == ""


@pytest.mark.parametrize("name", LISTS)
def test_an_empty_section_is_left_out_and_named(name: str) -> None:
    bare = f.filled(**{name: []})
    assert len(sections(bare)) < len(sections(f.filled()))
    assert absent(bare).startswith("not measured, so not in this file: ")


def test_a_file_of_nothing_is_its_provenance() -> None:
    bare = f.filled(**{name: [] for name in LISTS})
    assert [each.title for each in sections(bare)] == ["Where the numbers come from"]
    assert absent(bare).partition(": ")[2].count(",") == len(LISTS) - 1


def test_collectives_in_us_and_gigabytes() -> None:
    row = section(f.filled(), "Collectives: one message").rows[0]
    # alpha 2 us +- 5%; 0.5 ns/B is 2 GB/s, its interval 1 / 0.525 and 1 / 0.475
    assert row == [
        "allreduce",
        "mpi, cpu, node",
        "2 (1)",
        "2.00 [1.90, 2.10]",
        "2.00 [1.90, 2.11]",
        "12.0%",
        "1.0% (2)",
        "3.0%",
        "8 B to 16 MiB (8)",
        "160",
    ]


def test_a_beta_of_other_operations_is_marked() -> None:
    fits = [f.collective(2), f.collective(4, slope_from=["allgather", "p2p"])]
    table = section(f.filled(collectives=fits), "Collectives: one message")
    assert [row[4].endswith("*") for row in table.rows] == [False, True]
    assert table.remarks[-1] == (
        "*: of allreduce, whose largest size is too small for it, beta is from allgather, p2p"
    )


def test_sizes_as_measured() -> None:
    """16 MiB take 6.048 us + 8388.608 us: 1.9986 GB/s, and on 4 ranks 1.5 times that on the bus."""
    quad = f.collective(ranks=4, outliers_nbytes=[64])
    rows = every_size(f.filled(collectives=[quad])).rows
    assert len(rows) == len(f.SIZES) and [bool(row[0]) for row in rows] == [True] + 7 * [False]
    assert rows[0] == [
        "allreduce, p=4 (mpi, cpu, node)",
        "8 B",
        "4.01 [3.81, 4.21]",
        "4.01",
        "+0.0%",
        "0.00200",
        "0.00299",
        "20",
    ]
    assert [row[4] for row in rows[:3]] == ["+0.0%", "+0.0%*", "+0.0%"]
    last = section(f.filled(collectives=[quad]), "Collectives as measured: the largest").rows
    assert last == [[rows[0][0], *rows[-1][1:]]]
    assert last[0][1:] == ["16 MiB", "8395 [7975, 8814]", "8395", "+0.0%", "2.00", "3.00", "20"]


def test_operations_without_a_bus_bandwidth_leave_it_empty() -> None:
    nothing = f.collective().points[0].model_copy(update={"seconds": f.near(0.0)})
    of = f.filled(
        collectives=[
            f.collective(operation="halo"),
            f.collective(operation="broadcast"),
            f.collective(pieces=[], points=[nothing, *f.collective().points[1:]]),
        ]
    )
    rows = every_size(of).rows
    assert [row[-3:-1] for row in rows[7:17:8]] == [["2.00", ""], ["2.00", "2.00"]]
    assert rows[16][-3:-1] == ["", ""] and rows[16][4] == "-100.0%"


@pytest.mark.parametrize("operation", ["allreduce", "hierarchical_allreduce inner=16"])
def test_the_sizes_fit_100_columns(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    law = f.collective(64, operation=operation, library="torch_nccl", device="cuda", level="system")
    text = table_text(every_size(f.filled(collectives=[law])))
    assert max(map(len, text.splitlines())) <= 100 and "leave out" not in text


def test_what_nccl_expects_stands_beside_what_it_took() -> None:
    law = f.collective(library="nccl", device="cuda")
    assert "NCCL expects us" not in every_size(f.filled(collectives=[law])).columns
    first, *rest = law.points
    told = law.model_copy(
        update={
            "points": [
                first.model_copy(update={"estimate_s": 7.5e-6, "channels": {"ring/ll": 4}}),
                *rest,
            ]
        }
    )
    table = every_size(f.filled(collectives=[told]))
    assert [row[table.columns.index("NCCL expects us")] for row in table.rows] == [
        "7.50",
        *[""] * 7,
    ]
    assert [row[table.columns.index("channels")] for row in table.rows] == ["4 ring/ll", *[""] * 7]


def _told(start: float, per_byte: float, operation: str, **more: Any) -> CollectiveFit:
    """An allreduce of NCCL, start us + per_byte ns/B of 1 KiB to 16 MiB."""
    piece = {
        "from_nbytes": 1024,
        "to_nbytes": 2**24,
        "intercept_s": f.near(start * 1e-6).model_dump(),
        "slope_s_per_byte": f.near(per_byte * 1e-9).model_dump(),
    }
    points = [
        {"nbytes": m, "seconds": f.near((start + per_byte * m * 1e-3) * 1e-6).model_dump(), "n": 9}
        for m in (2**k for k in range(10, 25))
    ]
    of = {"library": "nccl", "device": "cuda", "operation": operation, "pieces": [piece]}
    return f.collective(4, **of, points=points, **more)


def test_the_fastest_algorithm_by_size() -> None:
    """10 us + 1 ns/B and 20 us + 0.5 ns/B meet at 20 000 B; NCCL takes 9 us there and then.

    They are known at powers of two, and between these straight in log-log: up to 2% more.
    """
    tree = _told(10.0, 1.0, "allreduce algorithm=tree protocol=simple")
    ring = _told(20.0, 0.5, "allreduce algorithm=ring protocol=simple")
    table = section(
        f.filled(collectives=[ring, tree, _told(9.0, 1.0, "allreduce")]), "Collectives of"
    )
    assert [row[1:] for row in table.rows] == [
        ["1 KiB to 19.6 KiB", "tree/simple", "11.0", "10.0"],
        ["19.6 KiB to 16 MiB", "ring/simple", "30.4", "29.3"],
    ]
    assert [row[0] for row in table.rows] == ["allreduce, p=4 (nccl, cuda, node)", ""]
    alone = f.filled(collectives=[tree, _told(9.0, 1.0, "allreduce")])
    assert not any(each.title.startswith("Collectives of") for each in sections(alone))


def test_pieces() -> None:
    rows = section(f.filled(collectives=[f.collective()]), "Collectives: the pieces").rows
    assert [row[1:] for row in rows] == [
        ["8 B", "4 KiB", "4.00 [3.80, 4.20]", "1.000 [0.952, 1.053]"],
        ["4 KiB", "16 MiB", "6.05 [5.75, 6.35]", "2.00 [1.90, 2.11]"],
    ]
    assert [bool(row[0]) for row in rows] == [True, False], "the law is named once"


def test_a_run_of_sizes_with_one_algorithm_is_one_row() -> None:
    bands = f.structural().bands
    tree = bands[1].model_copy(update={"weights": {"ring or tree": 1.0}, "nbytes": 2.0**25})
    law = f.structural(bands=[*bands, tree])
    rows = section(f.filled(structural=[law]), "Collectives on any layout: algorithms").rows
    assert [row[1:] for row in rows] == [
        ["8 B to 16 MiB", "ring", "75%"],
        ["32 MiB", "ring or tree", "100%"],
    ]


def test_an_outlying_layout_is_named_under_the_table() -> None:
    layouts = [
        f.scaled_layout(2),
        f.scaled_layout(4),
        f.scaled_layout(8, outlying=True, factor=1.7),
    ]
    law = f.structural(layouts=layouts)
    table = section(f.filled(structural=[law]), "Collectives on any layout: structural")
    assert any("on 8 ranks takes 1.7 times what 2 ranks, 4 ranks say" in x for x in table.remarks)


def test_prices_are_rates() -> None:
    row = section(f.filled(), "Work laws").rows[0]
    assert row[:7] == ["conv", "forward", "2", "sum", "10.0", "10.0", "5.00"]
    assert row[-4:] == ["12", "1", "8.0%", "flop 10.0%"]


HALF, GRAPH = "bfloat16-mixed+channels_last", "bfloat16-mixed+channels_last+cuda_graph"


def _executions() -> dict[str, list[Any]]:
    """Every law of float32 that an execution has, and the same of another."""
    reuse = f.filled().memory[0]
    return {
        "layers": [f.layer(), f.layer(key=f.CONV_KEY.replace("float32", HALF))],
        "work": [f.work(), f.work(execution=HALF)],
        "tensor_loops": [f.loop(), f.loop(execution=HALF)],
        "composition": [f.composition(), f.composition(execution=GRAPH)],
        "memory": [reuse, reuse.model_copy(update={"execution": GRAPH})],
    }


@pytest.mark.parametrize("name", _executions())
def test_tables_name_executions_where_one_is_not_float32(name: str) -> None:
    titles = {
        "layers": "Layers that",
        "work": "Work laws",
        "tensor_loops": "Passes over",
        "composition": "Composition",
        "memory": "Memory reuse",
    }
    of = _executions()[name]
    file = f.filled(**{name: of})
    table = section(file, titles[name])
    at = table.columns.index("execution")
    shown = {row[at].replace(" ", "") for row in table.rows}
    assert shown == {"float32", GRAPH if name in ("composition", "memory") else HALF}
    assert len(table.rows) == 2, "what ran otherwise is no part of a row"
    for other in titles.values():
        assert "execution" not in section(f.filled(), other).columns
        assert "execution" in section(file, other).columns


def test_tables_with_executions_keep_to_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    file = f.filled(**_executions())
    passes = slowest_passes(measured_passes(file))
    for each in [*sections(file), passes]:
        assert max(map(len, table_text(each).splitlines())) <= 100, each.title
    assert {row[2].replace(" ", "") for row in passes.rows} == {"float32", HALF}
    assert "execution" not in slowest_passes(measured_passes(f.filled())).columns


def test_control_characters_of_names_do_not_reach_a_terminal() -> None:
    hostile = "x\x1b[31m\nred"
    file = f.filled(
        device=hostile,
        collectives=[f.collective(operation=hostile, library=hostile)],
        work=[f.work(kind=hostile, runner_up=hostile)],
        layers=[f.layer(kind=hostile, key=hostile)],
        partitions=[f.partitions(library=hostile)],
        overlap=[f.overlap(models=[hostile])],
    )
    for each in [*sections(file), slowest_passes(measured_passes(file))]:
        assert all(c.isprintable() or c == "\n" for c in table_text(each))


def test_bandwidths_without_a_slope() -> None:
    def beta(value: float, low: float, high: float) -> str:
        return bandwidth(Estimate(value=value, low=low, high=high))

    assert beta(1e-10, 0.5e-10, 2e-10) == "10.0 [5.0, 20.0]"
    assert beta(1e-10, 0.0, 2e-10) == "10.0 [5.00, inf]"
    assert beta(0.0, 0.0, 2e-10) == "inf [5.00, inf]"
    assert beta(0.0, 0.0, 0.0) == "-"


@pytest.mark.parametrize("seed", range(5))
def test_numbers_at_the_edge_of_what_a_file_may_hold(seed: int) -> None:
    """Nothing, tiny, huge: if the file is read, it is shown, checked and compared."""
    generator = random.Random(seed)
    for _ in range(100):
        content = json.loads(f.filled().model_dump_json())
        law = generator.choice(content[generator.choice(LISTS)])
        name = generator.choice([k for k, v in law.items() if isinstance(v, int | float | dict)])
        factor = generator.choice([0, 5e-324, 1e-200, 1e-9, 1e9, 1e200])
        value = law[name]
        law[name] = (
            {key: factor * v for key, v in value.items() if isinstance(v, float)}
            if isinstance(value, dict)
            else int(min(factor, 2**62))
            if isinstance(value, int)
            else factor
        )
        try:
            file = Parameters.parse(content, "the file")
        except FileError:
            continue
        assert sections(file) and slowest_passes(measured_passes(file)).rows
        assert review(file, datetime(2026, 11, 21, tzinfo=UTC), gradients={"m": 10**7})
        differences(f.filled(), file)


def test_words() -> None:
    assert [factor(x) for x in (None, 1.325, 123.4)] == ["-", "x1.32", "x123"]
    assert (bytes_words(7758348.0), span(8, 8), span(8, 4096)) == ("7.4 MiB", "8 B", "8 B to 4 KiB")
    assert median_half_width(
        [f.near(1.0, 0.1), f.near(2.0, 0.3), f.near(5.0, 0.2)]
    ) == pytest.approx(0.2)
    assert median_half_width([Estimate.exactly(0.0)]) is None
