"""The tables of a traced run: what they say, and that they fit."""

from __future__ import annotations

from typing import Any

import pytest

from calib.foundation.records import Estimate
from calib.reports.tables.table import table_text
from calib.reports.tables.traced_run import configuration_lines, traced_tables
from calib.training.traces.configuration import Buckets, RunConfiguration
from calib.training.traces.run import CollectiveTime, OperatorTime, PartTime, RankTime, TracedRun
from calib.training.traces.split import PARTS

LONG = "aten::_an_operator_with_a_name_that_no_table_has_room_for_beside_its_shapes_backward"


def configuration(**changes: Any) -> RunConfiguration:
    usual: dict[str, Any] = {
        "ranks": 8,
        "traced": 2,
        "hosts": ["a", "b"],
        "device": "H100",
        "backend": "nccl",
        "steps": 1,
        "strategy": "data",
        "strategy_reason": "4 allreduce in a step",
        "group_sizes": [8],
        "batch_per_rank": 16,
        "micro_batches": 4,
        "dtype": "bfloat16",
        "other_dtypes": {},
        "optimizer": "AdamW",
        "checkpointing": True,
        "buckets": Buckets(operation="allreduce", count=4, nbytes=1 << 20, largest_nbytes=1 << 19),
        "gradient_items": 100,
        "exchanged_items": 100,
    }
    return RunConfiguration(**(usual | changes))


def around(value: float) -> Estimate:
    return Estimate(value=value, low=0.9 * value, high=1.1 * value)


def run_of(ranks: int = 2, operators: int = 3, collectives: int = 2, **changes: Any) -> TracedRun:
    parts = dict.fromkeys(PARTS, 0.01)
    usual: dict[str, Any] = {
        "files": ["t.json"],
        "configuration": configuration(),
        "step": around(0.06),
        "parts": [PartTime(name=name, seconds=around(0.01)) for name in PARTS],
        "phases": [],
        "talking": around(0.02),
        "hidden": around(0.005),
        "ranks": [
            RankTime(rank=n, own=around(0.03 + n * 1e-3), parts=parts, last=n, waited_for=0.001)
            for n in range(ranks)
        ],
        "operators": [
            OperatorTime(
                phase="backward",
                name=LONG,
                shapes=[[1024, 2048, 4096], [4096, 8192, 16384], [[12, 13], [14]], []],
                dtype="bfloat16",
                calls=100.0,
                seconds=around(0.001 * (n + 1)),
            )
            for n in range(operators)
        ],
        "collectives": [
            CollectiveTime(
                operation="reduce_scatter" if n else "",
                nbytes=None if n == 1 else 1 << 30,
                elements=None,
                dtype="" if n == 1 else "float8_e4m3fn",
                size=None if n == 1 else 1024,
                calls=1000.0,
                own=around(0.001),
                bus_bandwidth=None if n == 1 else around(1e11),
                waited=None if n == 1 else 0.5,
                with_waits=n == 1,
            )
            for n in range(collectives)
        ],
        "faults": [],
        "notes": [],
    }
    return TracedRun(**(usual | changes))


def test_what_a_run_was() -> None:
    assert configuration_lines(configuration()) == [
        "8 ranks (2 traced) on 2 hosts, H100, nccl; 1 step",
        "data: 4 allreduce in a step",
        "batch 16 per rank and micro-batch, 4 micro-batches, bfloat16, AdamW, activation checkpointing",
        "gradients: 1 MiB in 4 allreduces, the largest of 512 KiB",
    ]
    unknown = configuration(
        ranks=1,
        traced=1,
        hosts=[],
        backend="",
        strategy="",
        batch_per_rank=None,
        micro_batches=1,
        dtype="",
        optimizer="",
        checkpointing=False,
        buckets=None,
    )
    assert configuration_lines(unknown) == [
        "1 rank, H100; 1 step",
        "not one of calib's strategies: 4 allreduce in a step",
        "batch unknown, item type unknown, optimizer unknown",
    ]


@pytest.mark.parametrize(
    "run",
    [
        run_of(),
        run_of(40, 40, 40),
        run_of(1, 0, 0, talking=Estimate.exactly(0.0), hidden=Estimate.exactly(0.0)),
        run_of(step=Estimate.exactly(1e5), talking=around(3e4)),
    ],
)
def test_tables_fit(run: TracedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for table in traced_tables(run):
        lines = table_text(table).splitlines()
        assert lines and max(map(len, [*lines, *table.remarks])) <= 100
        assert {len(row) for row in table.rows} <= {len(table.columns)}


def test_parts_and_their_shares() -> None:
    parts, ranks, collectives, operators = traced_tables(run_of())
    assert [row[0] for row in parts.rows] == [*PARTS, "step"]
    assert [row[2] for row in parts.rows] == ["16.7%"] * 6 + ["100.0%"]
    assert parts.remarks == [
        "communication: 20.0 [18.0, 22.0] ms of a step",
        "of it computation hides 5.00 [4.50, 5.50] ms, 25.0%",
    ]
    assert [row[0] for row in ranks.rows] == ["1", "0"]  # the slowest first
    cells = [dict(zip(collectives.columns, row, strict=True)) for row in collectives.rows]
    assert cells[0]["operation"] == "unknown" and cells[0]["busbw GB/s"] == "100"
    assert cells[1]["size"] == cells[1]["ranks"] == cells[1]["type"] == "-"
    assert cells[1]["own ms"].endswith("*") and "*: holds waits" in collectives.remarks[0]
    (first, *_) = operators.rows
    cells = [dict(zip(operators.columns, first, strict=True))]
    assert cells[0]["shapes"] == "1024x2048x4096, 4096x8192x16384 and 1 more"
    assert not any("more" in remark for remark in operators.remarks)


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("aten::conv2d", "conv2d"),
        ("aten::_foreach_add_", "_foreach_add_"),
        (
            "aten::_scaled_dot_product_efficient_attention_backward",
            "_scaled_dot_product_ efficient_attention_ backward",
        ),
        ("aten::" + "x" * 60, f"{'x' * 26} {'x' * 26} {'x' * 8}"),
    ],
)
def test_a_long_name_can_be_broken(name: str, cell: str) -> None:
    run = run_of(operators=1)
    operator = run.operators[0].model_copy(update={"name": name})
    table = traced_tables(run.model_copy(update={"operators": [operator]}))[-1]
    assert table.rows[0][1] == cell


def test_what_has_no_room_is_counted() -> None:
    _, ranks, collectives, operators = traced_tables(run_of(40, 40, 40))
    assert (len(ranks.rows), ranks.remarks[-1]) == (16, "24 more ranks, all faster: JSON has them")
    assert len(collectives.rows) == 16 and "24 more, all shorter" in collectives.remarks[-1]
    assert len(operators.rows) == 12 and operators.remarks[0].startswith("28 more take ")
