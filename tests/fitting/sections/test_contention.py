"""From samples to contention records: which rows count, what is compared with what, links."""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from tests.helpers.rows import as_samples, sample

from calib.fitting.estimators.collectives.contention import ContentionLaw
from calib.fitting.parameters.contention import ContentionFit
from calib.fitting.sections.contention import analytical, contentions
from calib.microbench.records.cluster import Cluster, Host, Level
from calib.microbench.records.samples import Sample

SIZES = [2**e for e in range(10, 25)]
START_S, SLOPE = 5e-6, 1e-10


def runs(groups: int, phi: float, factor: float = 1.0, **fields: Any) -> list[Sample]:
    """Three repetitions of every size, `groups` at once."""
    return [
        sample(
            nbytes=m,
            groups=groups,
            repetition=i,
            active_ranks=2 * groups,
            seconds=factor * (START_S + SLOPE * phi * m) * (1 + 0.001 * (i - 1)),
            **fields,
        )
        for m in SIZES
        for i in range(3)
    ]


def rows() -> list[Sample]:
    """1, 2 and 4 groups of a link that two flows fill."""
    return runs(1, 1.0) + runs(2, 1.0) + runs(4, 2.0)


def cluster(**interfaces: float | None) -> Cluster:
    host = Host(name="a", kernel="k", devices=[], network_interfaces=interfaces)
    levels = [Level(name="node", members=8, link="shared memory")]
    return Cluster(name="c", hosts=[host], levels=levels)


def test_phi_of_a_layout() -> None:
    (record,), notes = contentions(as_samples(rows()), seed=1)
    assert not notes
    assert (record.baseline, record.library, record.ranks) == ("same layout", "mpi", 2)
    assert record.law == "saturation"
    assert record.capacity is not None and record.capacity.value == pytest.approx(2.0, rel=1e-3)
    assert [p.groups for p in record.points] == [1, 2, 4]
    assert [p.contention.value for p in record.points] == pytest.approx([1, 1, 2], rel=1e-3)
    assert record.slope_s_per_byte.value == pytest.approx(SLOPE, rel=1e-3)


def test_the_order_of_rows_does_not_matter() -> None:
    first = contentions(as_samples(rows()), seed=1)
    assert contentions(as_samples(rows()[::-1]), seed=1) == first


@pytest.mark.parametrize(
    "spoiled",
    [
        {"warmup": True},
        {"cold": True},
        {"oversubscribed": True},
        {"marks": "throttled"},
        {"start": "window"},
        {"kind": "tensors"},
    ],
    ids=str,
)
def test_rows_that_are_not_plain_do_not_count(spoiled: dict[str, Any]) -> None:
    assert contentions(as_samples(rows() + runs(4, 50.0, **spoiled)), 1) == contentions(
        as_samples(rows()), 1
    )


def test_rows_without_a_finite_time_are_left_out_with_a_note() -> None:
    broken = [sample(nbytes=m, groups=8, seconds=math.inf) for m in SIZES]
    records, notes = contentions(as_samples(rows() + broken), 1)
    assert [p.groups for p in records[0].points] == [1, 2, 4]
    assert notes == [f"contention: {len(SIZES)} rows without a finite time left out"]


def test_groups_without_one_alone_are_said() -> None:
    records, notes = contentions(as_samples(runs(2, 1.0) + runs(4, 2.0)), 1)
    assert not records
    assert notes == [
        "mpi allreduce on 2 ranks, 1 apart (node), 2, 4 groups at once: no run of one group alone; "
        "no contention from them"
    ]
    assert contentions(as_samples(runs(1, 1.0)), 1) == ([], [])


def test_ranks_apart_compare_with_packed_ones() -> None:
    (record,), _ = contentions(as_samples(runs(1, 1.0) + runs(4, 3.0, stride=4)), 1)
    assert (record.baseline, record.stride) == ("packed", 4)
    assert record.points[-1].contention.value == pytest.approx(3.0, rel=1e-3)


def test_rings_between_nodes_compare_with_a_longer_ring_by_step() -> None:
    """allreduce, formulas.md: 2 (p-1) (alpha + m beta phi / p); p = 16 alone, 8 pairs at phi = 8."""

    def ring(ranks: int, groups: int, phi: float, operation: str) -> list[Sample]:
        return [
            sample(
                operation=operation,
                level="system",
                nodes=2,
                ranks=ranks,
                groups=groups,
                stride=16 // ranks,
                active_ranks=8,
                nbytes=m,
                seconds=2 * (ranks - 1) * (START_S + m * SLOPE * phi / ranks),
            )
            for m in SIZES
        ]

    (record,), _ = contentions(
        as_samples(ring(16, 1, 1.0, "allreduce") + ring(2, 8, 8.0, "allreduce")),
        1,
        cluster(ib0=12.5e9, ib1=12.5e9, lo=1e9, eth0=1.25e8),
    )
    assert record.baseline == "other ranks"
    assert record.points[-1].contention.value == pytest.approx(8.0, rel=1e-6)
    assert [point.analytical for point in record.points] == [1.0, 4.0]
    assert record.slope_s_per_byte.value == pytest.approx(SLOPE, rel=1e-6)
    for operation in ("p2p_stream", "all_to_all"):  # no ring
        none, notes = contentions(
            as_samples(ring(16, 1, 1.0, operation) + ring(2, 8, 8.0, operation)), 1
        )
        assert not none and "no run of one group alone" in notes[0]


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize(
    ("other", "note"),
    [
        ({"dtype": "float16"}, "of float16, float32 only float32 is fitted"),
        ({"mode": "graph"}, "no run of one group alone"),
        ({"mode": "in_place"}, ""),
    ],
)
def test_other_types_graphs_and_places_are_no_repetitions(
    groups: int, other: dict[str, Any], note: str
) -> None:
    """Times half as long, of one group alone or of four, leave phi as it is."""
    records, notes = contentions(as_samples(rows() + runs(groups, 2.0, 0.5, **other)), 1)
    assert records == contentions(as_samples(rows()), 1)[0]
    said = bool(note) and (groups > 1 or "mode" not in other)  # a graph alone is just another law
    assert [note in each for each in notes] == [True] * said


def test_a_cuda_graph_has_a_phi_of_its_own() -> None:
    graph = [dataclasses.replace(row, mode="graph") for row in runs(1, 1.0) + runs(4, 3.0)]
    records, notes = contentions(as_samples(rows() + graph), 1)
    assert [record.operation for record in records] == ["allreduce", "allreduce graph"]
    assert not notes and records[:1] == contentions(as_samples(rows()), 1)[0]
    assert records[1].points[-1].contention.value == pytest.approx(3.0, rel=1e-3)


def test_the_type_that_was_timed_alone_is_fitted_then_that_of_most_sizes() -> None:
    def of(dtype: str, samples: list[Sample], least: int = 0) -> list[Sample]:
        return [dataclasses.replace(s, dtype=dtype) for s in samples if s.nbytes > least]

    crowd = runs(4, 3.0)
    for plenty, few, fitted in (
        (of("int8", crowd), of("float64", rows(), 2**12), "float64"),
        (of("float64", rows()), of("int8", rows(), 2**12), "float64"),
        (of("int8", rows()), of("float64", rows(), 2**12), "int8"),
    ):
        (record,), (note,) = contentions(as_samples(plenty + few), 1)
        assert note.endswith(f"of float64, int8 only {fitted} is fitted")
        assert record.points[-1].contention.value == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("stride", [1, 4])
def test_one_type_is_no_baseline_of_another(stride: int) -> None:
    crowd = runs(4, 3.0, stride=stride, dtype="float16")
    records, notes = contentions(as_samples(runs(1, 1.0) + crowd), 1)
    assert not records and "no run of one group alone" in notes[0]


def test_small_messages_do_not_count() -> None:
    """A protocol of small messages that contends 10 times as much leaves phi as it is."""
    samples = [
        dataclasses.replace(row, seconds=10 * row.seconds)
        if row.nbytes < 2**17 and row.groups > 1
        else row
        for row in rows()
    ]
    (record,), _ = contentions(as_samples(samples), 1)
    assert record.min_nbytes >= 2**17
    assert record.points[-1].contention.value == pytest.approx(2.0, rel=0.01)


def test_analytical_phi() -> None:
    """formulas.md, data+filter: phi = p2 / n, n interfaces of a node; None where nothing is stated."""
    two = cluster(ib0=12.5e9, ib1=12.5e9, lo=1.25e10, eth0=1.25e8, ib2=None)
    assert analytical(two, "system", 8.0) == 4.0
    assert analytical(two, "system", 1.0) == 1.0
    assert analytical(two, "node", 8.0) is None
    assert analytical(cluster(eth0=None), "system", 8.0) is None
    assert analytical(None, "system", 8.0) is None


def record_of(
    contention: list[float], capacity: float | None
) -> tuple[ContentionFit, ContentionLaw]:
    """A record and the estimator behind it, for k = 1, 2, 4, 8."""
    samples = [row for k, phi in zip((1, 2, 4, 8), contention, strict=True) for row in runs(k, phi)]
    (record,), _ = contentions(as_samples(samples), 1)
    assert (record.capacity is None) == (capacity is None)
    kept = [row for row in samples if row.nbytes >= record.min_nbytes]
    x = [[row.nbytes, row.groups] for row in kept]
    return record, ContentionLaw(seed=1).fit(x, [row.seconds for row in kept])


@pytest.mark.parametrize(
    ("contention", "capacity"), [([1, 1, 2, 4], 2.0), ([1, 1.1, 1.2, 4], None)]
)
def test_the_record_says_what_the_estimator_does(
    contention: list[float], capacity: float | None
) -> None:
    record, model = record_of(contention, capacity)
    at = [1.0, 1.5, 3.0, 8.0, 16.0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.contention(np.array(at))
    assert [record.contention(k).value for k in at] == pytest.approx(expected, rel=1e-3)
    beyond = record.contention(16)
    assert beyond.low <= record.contention(8).value and beyond.high >= 2 * contention[-1] * 0.999


def test_a_record_starts_with_one_group() -> None:
    (record,), _ = contentions(as_samples(rows()), seed=1)
    content = record.model_dump() | {"points": record.model_dump()["points"][1:]}
    with pytest.raises(ValidationError, match="from 1 on"):
        ContentionFit.model_validate(content)
    assert ContentionFit.model_validate_json(record.model_dump_json()) == record
