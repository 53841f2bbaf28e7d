"""Contention from published logs: phi by a plain ratio of bandwidths, and as calib fits it.

OSU mbw_mr, the saturation tests of platform-calibration, the Alpa table, Galvatron's profile; see
../shared/data/DATA.md. Only finite groups count, and the plain ratio is at the largest message.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.published import DATA, needs_data
from tests.helpers.rows import as_samples, sample

from calib.fitting.parameters.algorithms import steps_and_volume
from calib.fitting.parameters.contention import ContentionFit
from calib.fitting.sections.contention import contentions
from calib.microbench.records.samples import Sample

pytestmark = needs_data
ALPA_PER_HOST = 8


def close(found: float, plain: float) -> bool:
    """The bar of the issue: within 10%."""
    return abs(found / plain - 1.0) <= 0.10


def fitted(rows: list[Sample]) -> list[ContentionFit]:
    """The records of rows that all belong to one log."""
    return contentions(as_samples(rows), seed=0)[0]


def phi_of(record: ContentionFit) -> dict[int, float]:
    """k -> phi."""
    return {point.groups: point.contention.value for point in record.points}


def found(pattern: str, text: str) -> str:
    """The first group of a pattern that must be in the text."""
    match = re.search(pattern, text)
    assert match is not None, pattern
    return match[1]


# OSU mbw_mr: MB/s of all pairs together


def osu(path: Path) -> tuple[int, dict[int, float]]:
    """(pairs, bytes -> B/s of all pairs together) of a mbw_mr log."""
    text = path.read_text()
    pairs = int(found(r"\[ pairs: (\d+) \]", text))
    rows = re.findall(r"^(\d+)\s+([\d.]+)\s+[\d.]+$", text, re.MULTILINE)
    return pairs, {int(size): 1e6 * float(rate) for size, rate in rows}


OSU = {
    "stackhpc": [
        f"stackhpc_alaska_ib-gcc9-openmpi4-ucx_Osu_mbw_mr_{pairs}.txt"
        for pairs in ("1_0", "2", "32", "8")
    ],
    "abci gpu": [
        f"abci_V_osu_bandwidth_gpu_inter_{job}.txt" for job in ("job01_7249112", "job04_7249113")
    ],
    "abci prc": [
        f"abci_V_osu_bandwidth_prc_inter_{job}.txt" for job in ("job01_7249112", "job04_7249113")
    ],
}


def osu_case(name: str) -> tuple[list[Sample], dict[int, float]]:
    """(rows, pairs -> phi by the plain ratio k BW(1) / BW(k))."""
    logs = dict(osu(DATA / "osu" / log) for log in OSU[name])
    rows = [
        sample(
            operation="p2p_stream",
            level="system",
            nodes=2,
            active_ranks=pairs,
            groups=pairs,
            nbytes=size,
            seconds=pairs * size / rate,
        )
        for pairs, rates in logs.items()
        for size, rate in rates.items()
    ]
    largest = max(logs[1])
    return rows, {k: k * logs[1][largest] / rates[largest] for k, rates in logs.items()}


def test_two_interfaces_are_full_with_two_gpu_streams() -> None:
    """ABCI V nodes have two InfiniBand EDR ports; one GPU stream fills one (10.2 of 12.1 GB/s)."""
    (record,) = fitted(osu_case("abci gpu")[0])
    assert record.law.startswith("saturation")
    assert record.capacity is not None and record.capacity.value == pytest.approx(2.0, rel=0.05)
    assert record.contention(8).value == pytest.approx(4.0, rel=0.05)


# platform-calibration, saturation: index, operation, bytes, start (ms), duration (ms)

SATURATION = ("load_send", "load_sendrecv_diff")
REPEATS = 10  # LoadAnalyze.Rnw of that repository: num_iters


def saturation_case(name: str) -> tuple[list[Sample], dict[int, float]]:
    """(rows, k -> phi). At step k a k-th set of senders begins, and every sender sends 10 times.

    A process that began at step j has 10 rows for each step from j on. Plain: the ratio of the
    steps' medians, at least 1 and never falling.
    """
    times: dict[int, list[tuple[float, float, int]]] = defaultdict(list)
    path = DATA / "platform-calibration" / "saturation" / f"{name}.csv"
    with path.open() as stream:
        for index, _, nbytes, start, duration in csv.reader(stream):
            times[int(index)].append((float(start), 1e-3 * float(duration), int(nbytes)))
    steps = max(map(len, times.values())) // REPEATS
    rows = []
    for sent in times.values():
        first = steps - len(sent) // REPEATS
        for number, (_, seconds, nbytes) in enumerate(sorted(sent)):
            rows.append(
                sample(
                    operation="p2p",
                    level="system",
                    nodes=2,
                    nbytes=nbytes,
                    seconds=seconds,
                    groups=1 + first + number // REPEATS,
                    repetition=number,
                )
            )
    middle = {
        k: float(np.median([r.seconds for r in rows if r.groups == k])) for k in range(1, steps + 1)
    }
    ratios = np.maximum.accumulate([max(middle[k] / middle[1], 1.0) for k in sorted(middle)])
    return rows, dict(zip(sorted(middle), ratios.tolist(), strict=True))


@pytest.mark.parametrize("name", [*OSU, *SATURATION])
def test_pairs(name: str) -> None:
    """Of saturation, up to 8 pairs of nodes on one switch: it is never full, phi stays 1."""
    rows, plain = (saturation_case if name in SATURATION else osu_case)(name)
    (record,) = fitted(rows)
    found = phi_of(record)
    assert found.keys() == plain.keys()
    for k, phi in found.items():
        assert close(phi, max(plain[k], 1.0)), (name, k, phi, plain[k])


# Alpa: groups of devices on 1 and 2 hosts; sizes are elements; times forced monotone (doublings)

ALPA_OPERATIONS = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
}


def alpa_rows(dtype: str) -> list[Sample]:
    """The collectives of one dtype; groups without a finite time stay as they are in the file."""
    rows = []
    with (DATA / "alpa" / "prof_database_1_and_2_hosts.csv").open() as stream:
        for row in csv.DictReader(stream):
            operation = ALPA_OPERATIONS.get(row["primitive"])
            ranks, groups = int(row["group_size"]), int(row["num_groups"])
            if operation is None or row["dtype"] != dtype or ranks < 2:
                continue
            ranks_of_one = found(r"\(([\d,]+)\)", row["replica_groups"])
            first = [int(device) for device in ranks_of_one.split(",")]
            nodes = len({device // ALPA_PER_HOST for device in first})
            elements = int(row["size_elements_or_flop"])
            rows.append(
                sample(
                    operation=operation,
                    library="nccl",
                    device="cuda",
                    ranks=ranks,
                    groups=groups,
                    level="node" if nodes == 1 else "system",
                    nodes=nodes,
                    stride=max(int(row["group_stride"]), 1),
                    active_ranks=int(row["mesh_devices_per_host"]),
                    dtype=dtype,
                    nbytes=elements * (4 if dtype == "f32" else 2),
                    seconds=float(row["time_s"]),
                )
            )
    return rows


def alpa_plain(rows: list[Sample], record: ContentionFit) -> dict[int, float]:
    """k -> bus bandwidth of one group alone / that of k, each group's, at the largest buffer."""
    names = ("operation", "level", "nodes")
    mine = [r for r in rows if all(getattr(r, n) == getattr(record, n) for n in names)]

    def rates(ranks: int, stride: int, groups: int) -> dict[int, float]:
        _, volume = steps_and_volume(record.operation, ranks)
        return {
            r.nbytes: volume * r.nbytes / r.seconds
            for r in mine
            if (r.ranks, r.stride, r.groups) == (ranks, stride, groups) and math.isfinite(r.seconds)
        }

    ranks = record.ranks
    if record.baseline == "other ranks":
        ranks = max(r.ranks for r in mine if r.groups == 1)
    alone = rates(ranks, 1, 1)
    result = {}
    for point in record.points[1:]:
        several = rates(record.ranks, record.stride, point.groups)
        largest = max(several.keys() & alone.keys())
        result[point.groups] = alone[largest] / several[largest]
    return result


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_alpa(dtype: str) -> None:
    """Of each operation 6 layouts inside a node, and of each ring 3 between nodes."""
    rows = alpa_rows(dtype)
    records = fitted(rows)
    assert len(records) == 4 * 6 + 3 * 3
    for record in records:
        plain = alpa_plain(rows, record)
        for k, phi in plain.items():
            assert close(phi_of(record)[k], max(phi, 1.0)), (record.operation, record.ranks, k, phi)


def test_alpa_layouts_that_contend() -> None:
    """DATA.md: one ring of 2 x 8 has 4.62 GB/s, 8 pairs between nodes at once 0.32 each: 14.4.

    Inside a node, groups side by side do not disturb each other; two rings of four that cross do.
    """
    found = {
        (r.level, r.ranks, r.stride): r
        for r in fitted(alpa_rows("f32"))
        if r.operation == "allreduce"
    }
    pairs = found["system", 2, 8]
    assert pairs.baseline == "other ranks"
    assert close(phi_of(pairs)[8], 4.62 / 0.32)
    assert phi_of(found["node", 4, 1])[2] == pytest.approx(1.0, abs=0.02)
    assert phi_of(found["node", 4, 2])[2] == pytest.approx(1.86, rel=0.02)


def test_a_group_without_a_finite_time_is_left_out_and_said() -> None:
    rows = as_samples(alpa_rows("f32"))
    lost = (rows["ranks"] == 2) & (rows["groups"] == 8) & (rows["level"] == "node")
    rows = rows.with_column("seconds", np.where(lost, math.inf, rows["seconds"]))
    records, notes = contentions(rows, seed=0)
    counts = {
        k for r in records if (r.ranks, r.stride, r.level) == (2, 1, "node") for k in phi_of(r)
    }
    assert counts == {1, 2, 4}
    assert any("without a finite time" in note for note in notes)


# Galvatron: allreduce bus bandwidth (MiB/ms), all GPUs busy; consec_0 are groups of one GPU per node


def galvatron_rows(nodes: int, gpus: int) -> tuple[list[Sample], dict[int, float]]:
    """(rows, ranks of a strided group -> bus bandwidth of the one ring of all / that of the groups)."""
    name = f"allreduce_bandwidth_{nodes}nodes_{gpus}gpus_per_node.json"
    profile = json.loads((DATA / "galvatron" / name).read_text())
    rows, rates = [], {}
    for key, rate in profile.items():
        _, _, size, _, consecutive = key.split("_")
        ranks, near = int(size), consecutive == "1"
        groups = nodes * gpus // ranks
        spanned = max(1, ranks // gpus) if near else nodes
        nbytes = 2**29
        _, volume = steps_and_volume("allreduce", ranks)
        rows.append(
            sample(
                operation="allreduce",
                library="nccl",
                device="cuda",
                ranks=ranks,
                groups=groups,
                stride=1 if near else groups,
                level="node" if spanned == 1 else "system",
                nodes=spanned,
                active_ranks=gpus,
                nbytes=nbytes,
                seconds=volume * nbytes / (rate * 2**20 * 1e3),
            )
        )
        rates[ranks, near] = rate
    whole = rates[nodes * gpus, True]
    return rows, {ranks: whole / rate for (ranks, near), rate in rates.items() if not near}


def test_galvatron_strided_groups_between_nodes() -> None:
    rows, plain = galvatron_rows(2, 8)
    records = {r.ranks: r for r in fitted(rows) if r.level == "system"}
    assert records.keys() == plain.keys() == {2, 4, 8}
    for ranks, record in records.items():
        assert record.baseline == "other ranks"
        assert close(record.points[-1].contention.value, plain[ranks])
