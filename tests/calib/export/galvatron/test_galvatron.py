"""galvatron: its JSON files, read and used as its cost model does, against laws that are known."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import curve_fit
from tests.calib.export.asked import NO_MORE, asking, of, refusal
from tests.helpers.filled import collective, contention, filled, near, overlap
from tests.helpers.published import DATA, needs_data

from calib.export.galvatron.files import export
from calib.export.reference import Reference
from calib.export.target import Exported
from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import MissingParameter

# of a line through points that lie on it
pytestmark = pytest.mark.filterwarnings("ignore:Covariance of the parameters")

MIB = 1 << 20
SIZES = [1 << k for k in range(3, 31)]


def law(operation: str, ranks: int, start: float, per_byte: float, **more: Any) -> CollectiveFit:
    """start + per_byte m in seconds, at every size of SIZES."""
    points = [CollectivePoint(nbytes=m, seconds=near(start + per_byte * m), n=9) for m in SIZES]
    ends = {"intercept_s": near(start), "slope_s_per_byte": near(per_byte)}
    content = {"points": points, "pieces": [], **ends}
    return collective(ranks, operation=operation, **(content | more))


def outside(operation: str, ranks: int, start: float, per_byte: float, nodes: int) -> CollectiveFit:
    return law(operation, ranks, start, per_byte, level="system", nodes=nodes)


def parameters(*fits: CollectiveFit, **more: Any) -> Parameters:
    return of(*fits, **({"overlap": [], "nodes": 1} | more))


def exported(made: Parameters, **asked: Any) -> Exported:
    return export(asking(made, **asked))


def contents(result: Exported) -> dict[str, dict[str, float]]:
    """The files by the first words of their names."""
    found = {}
    for name, text in result.files.items():
        content = json.loads(text)
        assert text.endswith("}\n") and all(type(v) is float and v > 0 for v in content.values())
        found[
            name.split("_")[0] if name.startswith("overlap") else "_".join(name.split("_")[:2])
        ] = content
    return found


# per rank and byte: what a ring of p takes for a bandwidth of so many MiB/ms
def ring(p: int, mebibytes_per_ms: float) -> float:
    return 2 * (p - 1) / p / (mebibytes_per_ms * MIB * 1e3)


WHOLE = parameters(
    law("allreduce", 2, 0.0, ring(2, 150.0)),
    law("allreduce", 4, 0.0, ring(4, 120.0)),
    law("p2p", 2, 0.0, 1 / (90.0 * MIB * 1e3)),
    law("all_to_all", 2, 1e-3, 1e-9),
    law("all_to_all", 4, 2e-3, 2e-9),
    overlap=[overlap(ranks=4, eta=near(0.75))],
)


def allreduce_of(files: dict[str, float], gpus: int) -> dict[str, float]:
    """config_utils.py, read_allreduce_bandwidth_config: every key that it asks for, as ms per MB."""
    found = {str(gpus): 1 / files[f"allreduce_size_{gpus}_consec_1"]}
    p = gpus // 2
    while p >= 2:
        for flag in "01":
            found[f"{p}_{flag}"] = 1 / files[f"allreduce_size_{p}_consec_{flag}"]
        p //= 2
    return found


def popt_of(files: dict[str, float], operation: str) -> dict[int, tuple[float, float]]:
    """Hetu-Galvatron 2.4, remap_config: p -> (m, c) by curve_fit, in ms and MB, and its assertion."""
    times: dict[int, dict[int, float]] = {}
    for key, value in files.items():
        if key.startswith(operation):
            split = key.split("_")
            halved = value / 2 if operation == "allreduce" else value
            times.setdefault(int(split[-3]), {})[int(split[-2][:-2])] = halved
    assert all(len(found) >= 8 for found in times.values())
    lines = {
        p: curve_fit(lambda x, m, c: m * x + c, list(found), list(found.values()))[0]
        for p, found in times.items()
    }
    return {p: (float(m), float(c)) for p, (m, c) in lines.items()}


def test_bandwidths_are_galvatrons() -> None:
    """Laws without a start-up go through: time = 2 (p-1)/p m / bandwidth."""
    result = exported(WHOLE)
    files = contents(result)
    assert files["allreduce_bandwidth"] == pytest.approx(
        {
            "allreduce_size_4_consec_1": 120.0,
            "allreduce_size_2_consec_1": 150.0,
            "allreduce_size_2_consec_0": 150.0,
        },
        rel=1e-9,
    )
    assert files["p2p_bandwidth"] == pytest.approx({"pp_size_4": 90.0, "pp_size_2": 90.0}, rel=1e-9)
    assert allreduce_of(files["allreduce_bandwidth"], 4)["4"] == pytest.approx(1 / 120)
    assert max(collapse.worst_error for collapse in result.collapses) < 1e-9
    # a MiB on 4 ranks: 1.5 MiB / 120 MiB/ms, as its cost model has it, and as the law
    cost_model_ms = 2 * 3 / 4 * 1.0 * allreduce_of(files["allreduce_bandwidth"], 4)["4"]
    assert cost_model_ms == pytest.approx(ring(4, 120.0) * MIB * 1e3)


def test_times_are_those_of_what_each_rank_gives() -> None:
    files = contents(exported(WHOLE))["sp_time"]
    assert len(files) == 2 * 2 * 11
    assert files["all2all_size_4_256MB_time"] == pytest.approx(2.0 + 2e-6 * 256 * MIB)
    assert files["allreduce_size_2_1024MB_time"] == pytest.approx(1024 / 150.0)
    slope, start = popt_of(files, "all2all")[2]
    assert (slope, start) == pytest.approx((1e-9 * MIB * 1e3, 1.0))
    assert popt_of(files, "allreduce")[4][0] == pytest.approx(1.5 / 120 / 2)


@pytest.mark.parametrize("eta", [0.0, 0.4, 0.75, 1.0])
@pytest.mark.parametrize("exchange", [1.0, 6.0, 10.0])
def test_overlap_as_the_cost_model_uses_it(eta: float, exchange: float) -> None:
    """bct_dp_overlap of a backward of 10 ms and an exchange no longer: B + C - eta C."""
    made = parameters(
        law("allreduce", 4, 1e-6, 1e-9), overlap=[overlap(ranks=4, eta=near(eta, 0.0))]
    )
    coe, backward = contents(exported(made))["overlap"]["overlap_coe"], 10.0
    slowed_exchange, slowed_backward = exchange * coe, backward * coe
    assert slowed_exchange <= slowed_backward
    rest = backward - slowed_exchange / coe
    assert slowed_exchange + rest == pytest.approx(
        backward + exchange - min(eta * exchange, backward)
    )


def test_one_bandwidth_has_the_least_mean_relative_error() -> None:
    """With a start-up of 1 ms the bandwidth is none; the errors said are those of the file."""
    made = parameters(law("allreduce", 4, 1e-3, 1e-9), ranks_per_node=4)
    result = exported(made, nbytes=(MIB, 64 * MIB))
    key = "allreduce_size_4_consec_1"
    bandwidth = contents(result)["allreduce_bandwidth"][key]
    sizes = [MIB << k for k in range(7)]
    truth = [1e-3 + 1e-9 * m for m in sizes]

    def errors(value: float) -> list[float]:
        return [abs(1.5 * m / MIB / value / 1e3 / t - 1) for m, t in zip(sizes, truth, strict=True)]

    collapse = next(c for c in result.collapses if c.into == key)
    assert collapse.nbytes == (MIB, 64 * MIB) and collapse.points == 7
    assert collapse.mean_error == pytest.approx(np.mean(errors(bandwidth)))
    assert collapse.worst_error == pytest.approx(max(errors(bandwidth)))
    best = min(sum(errors(bandwidth * f)) for f in np.geomspace(0.2, 5, 2001))
    assert sum(errors(bandwidth)) <= best * (1 + 1e-9) and collapse.mean_error > 0.1


def test_nobody_says_sizes() -> None:
    """Those from 1 MiB on, as Galvatron's own profile; of less than that, all."""
    result = exported(WHOLE)
    assert {c.nbytes for c in result.collapses} == {(MIB, SIZES[-1])}
    small = [CollectivePoint(nbytes=m, seconds=near(1e-6 + 1e-9 * m), n=9) for m in (8, 4096)]
    made = parameters(collective(4, points=small, pieces=[]))
    assert {c.nbytes for c in exported(made).collapses} == {(8, 4096)}


def test_groups_at_once_share_the_links_between_nodes() -> None:
    """2 nodes of 4 ranks, a link each. Groups 2 apart: 2 of 4 ranks, so phi is 2; 4 apart: 4 pairs."""
    made = parameters(
        law("allreduce", 2, 0.0, ring(2, 100.0)),
        law("allreduce", 4, 0.0, ring(4, 100.0)),
        outside("allreduce", 8, 0.0, ring(8, 10.0), 2),
        outside("allreduce", 4, 0.0, ring(4, 10.0), 2),
        outside("allreduce", 2, 0.0, ring(2, 10.0), 2),
        outside("p2p", 2, 0.0, 1 / (8.0 * MIB * 1e3), 2),
        law("p2p", 2, 0.0, 1 / (90.0 * MIB * 1e3)),
        nodes=2,
        links_per_node=1,
    )
    result = exported(made)
    files = contents(result)
    assert files["allreduce_bandwidth"] == pytest.approx(
        {
            "allreduce_size_8_consec_1": 10.0,
            "allreduce_size_4_consec_1": 100.0,
            "allreduce_size_2_consec_1": 100.0,
            "allreduce_size_4_consec_0": 5.0,
            "allreduce_size_2_consec_0": 2.5,
        }
    )
    # the message that crosses nodes, by as many pipelines as there are at once
    assert files["p2p_bandwidth"] == pytest.approx(
        {"pp_size_8": 8.0, "pp_size_4": 4.0, "pp_size_2": 2.0}
    )
    by_key = {collapse.into: collapse for collapse in result.collapses}
    assert by_key["allreduce_size_2_consec_0"].basis == "extrapolated"
    assert by_key["allreduce_size_8_consec_1"].basis == "measured"


def test_measured_contention_is_used() -> None:
    """phi of filled(): 1, 1, 2 for 1, 2, 4 pairs in a node."""
    made = parameters(
        law("allreduce", 2, 0.0, ring(2, 100.0)),
        law("allreduce", 8, 0.0, ring(8, 100.0)),
        contention=[contention()],
        ranks_per_node=8,
    )
    found = contents(exported(made))["allreduce_bandwidth"]
    assert found["allreduce_size_2_consec_1"] == pytest.approx(50.0)


def test_files_without_a_measurement_are_not_written_and_said() -> None:
    result = exported(parameters(law("allreduce", 4, 1e-6, 1e-9)))
    assert sorted(contents(result)) == ["allreduce_bandwidth", "sp_time"]
    said = " ".join(result.notes)
    assert "p2p_bandwidth_1nodes_4gpus_per_node.json is not written: no p2p was measured" in said
    assert (
        "overlap_coefficient.json is not written" in said and "no all_to_all was measured" in said
    )
    assert not any("all2all" in key for key in contents(result)["sp_time"])
    # p2p in a node says nothing of one between nodes
    two = parameters(
        law("allreduce", 4, 1e-6, 1e-9),
        law("p2p", 2, 1e-6, 1e-9),
        law("all_to_all", 4, 1e-6, 1e-9),
        outside("allreduce", 8, 1e-6, 1e-8, 2),
        nodes=2,
    )
    alone = exported(two)
    assert sorted(contents(alone)) == ["allreduce_bandwidth", "sp_time"]
    assert sum("between nodes was measured" in note for note in alone.notes) == 2


def test_between_nodes_no_p2p_inside_one_is_needed() -> None:
    made = parameters(
        law("allreduce", 4, 1e-6, 1e-9),
        outside("allreduce", 8, 1e-6, 1e-8, 2),
        outside("p2p", 2, 0.0, 1 / (8.0 * MIB * 1e3), 2),
        nodes=2,
        links_per_node=4,
    )
    assert contents(exported(made))["p2p_bandwidth"] == pytest.approx(
        {"pp_size_8": 8.0, "pp_size_4": 8.0, "pp_size_2": 8.0}
    )


def racks(*levels: str) -> Parameters:
    """4 nodes of 2 ranks, 2 nodes to a rack; messages of 90 in a node, 8 in a rack, 2 MiB/ms beyond."""
    p2p = {"node": 90.0, "rack": 8.0, "system": 2.0}
    rates = {"node": (2, 90.0), "rack": (4, 8.0), "system": (8, 2.0)}
    fits = [law("p2p", 2, 0.0, 1 / (p2p[level] * MIB * 1e3), level=level) for level in levels]
    fits += [
        law("allreduce", p, 0.0, ring(p, rate), level=level, nodes=p // 2)
        for level, (p, rate) in rates.items()
        if level in levels
    ]
    return parameters(*fits, nodes=4, nodes_per_rack=2, ranks_per_node=2, links_per_node=2)


def test_a_pipeline_waits_for_the_message_between_racks() -> None:
    """Also with stages of so few ranks that most neighbours are in one rack."""
    result = exported(racks("node", "rack", "system"))
    assert contents(result)["p2p_bandwidth"] == pytest.approx(
        {"pp_size_8": 2.0, "pp_size_4": 2.0, "pp_size_2": 2.0}
    )
    one = exported(racks("node", "rack", "system"), nodes=2)
    assert contents(one)["p2p_bandwidth"] == pytest.approx({"pp_size_4": 8.0, "pp_size_2": 8.0})
    said = [line for line in result.holds_for if line.startswith("p2p")]
    assert len(said) == 1 and said[0].startswith("p2p of 1 MiB to 1 GiB between racks")
    assert [line for line in result.lost if line.startswith("times of p2p")] == [
        "times of p2p inside a node",
        "times of p2p between nodes of a rack",
    ]
    assert not any("stands in" in note for note in result.notes)


def test_a_level_that_stands_in_for_another_is_said() -> None:
    for levels, where, other in (
        (("node", "rack"), "between racks", "between nodes of a rack"),
        (("node", "system"), "between nodes of a rack", "between racks"),
    ):
        notes = [note for note in exported(racks(*levels)).notes if "stands in" in note]
        assert f"no allreduce {where} was measured: that {other} stands in" in notes
    one = exported(racks("node", "rack"), nodes=2)
    assert not any("stands in" in note for note in one.notes)
    with pytest.raises(MissingParameter, match="no allreduce between nodes was measured"):
        exported(racks("node"))


def test_holds_for_says_each_operations_sizes() -> None:
    short = [CollectivePoint(nbytes=m, seconds=near(1e-6 + 1e-9 * m), n=9) for m in (MIB, 8 * MIB)]
    made = parameters(
        law("allreduce", 2, 1e-6, 1e-9, points=short), law("p2p", 2, 1e-6, 1e-9), ranks_per_node=2
    )
    assert exported(made).holds_for == (
        "allreduce of 1 MiB to 8 MiB on 1 node of 2 ranks",
        "p2p of 1 MiB to 1 GiB inside a node",
        "sp_time: allreduce of 1 MiB to 8 MiB",
    )
    asked = exported(made, nbytes=(16 * MIB, 32 * MIB)).holds_for[0]
    assert asked.endswith("(extrapolated: measured 1 MiB to 8 MiB on 2 ranks)")


def test_lost_is_what_these_parameters_have() -> None:
    bare = parameters(law("allreduce", 4, 1e-6, 1e-9), **NO_MORE)
    assert exported(bare).lost == ("start-up times of allreduce: a bandwidth has none",)
    more = parameters(
        law("allreduce", 4, 1e-6, 1e-9),
        law("allreduce", 3, 1e-6, 1e-9),
        law("p2p", 2, 1e-6, 1e-9),
        law("broadcast", 4, 1e-6, 1e-9),
        law("reduce_scatter", 4, 1e-6, 1e-9),
        outside("p2p", 2, 1e-6, 1e-8, 2),
        contention=[contention()],
        **(NO_MORE | {"work": filled().work, "overlap": [overlap(ranks=4)]}),
    )
    assert exported(more).lost == (
        "start-up times of allreduce and p2p: a bandwidth has none",
        "times of broadcast, reduce_scatter",
        "times of allreduce on 3 ranks",
        "laws of layers that were not measured",
        "times of p2p between nodes",
    )


def test_the_times_are_of_one_library() -> None:
    fits = [law("allreduce", 4, 1e-6, 1e-9, library=library) for library in ("mpi", "torch_mpi")]
    assert exported(parameters(*fits)).library in ("mpi", "torch_mpi")
    assert exported(parameters(fits[0])).library == "mpi"


def test_extrapolated_times_are_counted() -> None:
    """Fewer whole MB were measured than Galvatron wants: the next ones, to twice as large."""
    points = [CollectivePoint(nbytes=m, seconds=near(1e-6 + 1e-9 * m), n=9) for m in (MIB, 5 * MIB)]
    result = exported(parameters(collective(2, points=points, pieces=[]), ranks_per_node=2))
    (note,) = [note for note in result.notes if "extrapolated" in note]
    assert "3 of 8 allreduce times" in note and "first 6 MB on 2 ranks" in note


def test_the_machine_is_a_power_of_two() -> None:
    fits = [law("allreduce", 4, 1e-6, 1e-9), outside("allreduce", 8, 1e-6, 1e-8, 2)]
    result = exported(parameters(*fits, nodes=7))
    assert "allreduce_bandwidth_4nodes_4gpus_per_node.json" in result.files
    assert any("has 7 nodes: written for 4" in note for note in result.notes)
    keys = contents(result)["allreduce_bandwidth"]
    assert len(keys) == 1 + 2 * (int(math.log2(16)) - 1)


@pytest.mark.parametrize(
    ("made", "asked", "text"),
    [
        (parameters(), {}, "allreduce"),
        (parameters(law("p2p", 2, 1e-6, 1e-9)), {}, "allreduce"),
        (WHOLE, {"nodes": 2}, "no allreduce between nodes"),
        (parameters(outside("allreduce", 8, 1e-6, 1e-8, 2)), {}, "inside a node"),
        (WHOLE, {"nodes": 3}, "--nodes 3 is no power of two"),
        (parameters(law("allreduce", 6, 1e-6, 1e-9), ranks_per_node=6), {}, "power of two"),
        (parameters(law("allreduce", 2, 1e-6, 1e-9), ranks_per_node=1), {}, "one rank"),
        (parameters(law("allreduce", 2, 1e-6, 1e-9), ranks_per_node=2**29), {}, "ranks are"),
    ],
)
def test_refusals(made: Parameters, asked: dict[str, Any], text: str) -> None:
    assert text in refusal(export, made, **asked)


@needs_data
@pytest.mark.parametrize(("nodes", "ranks"), [(1, 4), (1, 8), (2, 8)])
def test_the_keys_are_those_of_galvatrons_own_files(nodes: int, ranks: int) -> None:
    fits = [law(name, ranks, 1e-6, 1e-9) for name in ("allreduce", "all_to_all")]
    fits.append(law("p2p", 2, 1e-6, 1e-9))
    if nodes > 1:
        fits += [outside(name, 16, 1e-6, 1e-8, 2) for name in ("allreduce", "all_to_all")]
        fits.append(outside("p2p", 2, 1e-6, 1e-8, 2))
    made = parameters(*fits, nodes=nodes, ranks_per_node=ranks, overlap=[overlap()])
    result = exported(made)
    assert {name.split("_")[0] for name in result.files} == {"allreduce", "p2p", "sp", "overlap"}
    compared = 0
    for name, text in result.files.items():
        theirs = DATA / "galvatron" / name
        if theirs.is_file():
            assert set(json.loads(text)) == set(json.loads(theirs.read_text())), name
            compared += 1
    assert compared == (4 if (nodes, ranks) == (1, 8) else 3)


def bent(operation: str, *times: tuple[float, float], ranks: int = 2, **more: Any) -> CollectiveFit:
    """A law by its measured points alone, (MiB, seconds) of each."""
    points = [CollectivePoint(nbytes=int(m * MIB), seconds=near(t), n=9) for m, t in times]
    return collective(ranks, operation=operation, **({"points": points, "pieces": []} | more))


# what a small virtual machine has: out of the caches a byte takes three times as long
CLIFF = [(2.0**k, 2.5e-4 * 2**k * (1 if k < 4 else 2 if k == 4 else 3)) for k in range(-6, 7)]


@pytest.mark.parametrize("operation", ["allreduce", "all_to_all"])
@pytest.mark.parametrize(
    "times",
    [
        CLIFF,
        [(m, t) for m, t in CLIFF if m <= 16],
        [(m, t) for m, t in CLIFF if m >= 2],
        [(m, 1e-4 * m**1.4) for m, _ in CLIFF],
        [(m, 1e-4 * m**1.04) for m, _ in CLIFF],
        [(m, 2e-3 + 4e-4 * m) for m, _ in CLIFF],
        [(m, 3e-3) for m, _ in CLIFF],
        [(m, 1e-3 * (1 + m % 5)) for m, _ in CLIFF],
    ],
)
def test_galvatrons_own_line_is_never_below_zero(
    operation: str, times: list[tuple[float, float]]
) -> None:
    """Whatever size it asks for; the row of the table has the error that this line makes."""
    fits = [bent("allreduce", *CLIFF), bent("all_to_all", *times)]
    if operation == "allreduce":
        fits = [bent("allreduce", *times)]
    made = parameters(*fits, ranks_per_node=2)
    result, name = exported(made), "all2all" if operation == "all_to_all" else operation
    files = contents(result).get("sp_time", {})
    lines = popt_of(files, name)
    sizes = [int(key.split("_")[-2][:-2]) for key in files if key.startswith(name)]
    (low, high) = (min(m for m, _ in times), max(m for m, _ in times))
    assert all(low <= size <= high for size in sizes)  # none that was not measured
    rows = [c for c in result.collapses if c.into == f"{name}_size_2_*MB_time"]
    assert len(rows) == len(lines)
    if not lines:
        assert any(
            f"sp_time, {name} on 2 ranks: none, as the line" in note for note in result.notes
        )
    for slope, start in lines.values():
        least = min(sizes)
        assert slope >= -1e-9 and slope * least / 4 + start > 0
        if start < -1e-9:
            (note,) = [
                note for note in result.notes if note.startswith(f"sp_time, {name} on 2 ranks")
            ]
            assert "the line that Galvatron fits is below 0 under " in note
        whole = 2 if operation == "allreduce" else 1
        mine = [m for m in (2.0**k for k in range(7)) if low <= m <= high]
        reference = Reference(asking(made))
        truth = [reference.seconds(operation, int(m * MIB), 2).seconds for m in mine]
        errors = [
            abs(whole * (slope * m + start) / 1e3 / t - 1) for m, t in zip(mine, truth, strict=True)
        ]
        assert rows[0].mean_error == pytest.approx(np.mean(errors), rel=1e-6)
        assert rows[0].worst_error == pytest.approx(max(errors), rel=1e-6)


def test_a_line_that_bends_up_gives_up_its_largest_sizes() -> None:
    """With the times to 64 MB it would begin below 0: 6 MB would cost less than nothing."""
    whole = np.polyfit([m for m, _ in CLIFF if m >= 1], [t for m, t in CLIFF if m >= 1], 1)
    assert whole[1] < 0
    result = exported(parameters(bent("allreduce", *CLIFF), ranks_per_node=2))
    files = contents(result)["sp_time"]
    (note,) = [note for note in result.notes if "none over" in note]
    most = max(int(key.split("_")[-2][:-2]) for key in files)
    assert f"sp_time, allreduce on 2 ranks: none over {most} MB: with those to 64 MB" in note
    assert most < 64 and files["allreduce_size_2_4MB_time"] == pytest.approx(1.0)
    (slope, start) = popt_of(files, "allreduce")[2]
    assert slope * 6 + start == pytest.approx(
        1.5 / 2, rel=0.5
    )  # half an allreduce of 6 MB, and near


def test_a_line_that_is_near_keeps_every_measured_size() -> None:
    files = contents(exported(WHOLE))["sp_time"]
    assert {int(key.split("_")[-2][:-2]) for key in files} == {1 << k for k in range(11)}


def test_too_few_sizes_are_no_file() -> None:
    """Galvatron asserts eight; measured to 512 KiB there are none near."""
    small = [(m, t) for m, t in CLIFF if m <= 0.5]
    result = exported(parameters(bent("allreduce", *small), ranks_per_node=2))
    assert "sp_time" not in contents(result)
    assert any("8 that Galvatron wants" in note for note in result.notes)
    assert any(
        "sp_time_1nodes_2gpus_per_node.json is not written; Galvatron opens" in note
        for note in result.notes
    )
    slope = near(small[-1][1] / (small[-1][0] * MIB))
    wide = bent("allreduce", *small, intercept_s=near(0.0), slope_s_per_byte=slope)
    asked = exported(parameters(wide, ranks_per_node=2), nbytes=(MIB, 8 * MIB))
    assert len(contents(asked)["sp_time"]) == 8


def test_half_an_allreduce_is_said_beside_what_it_stands_for() -> None:
    """Here 0.5 (1.5 m/120 MiB/ms) against an allgather that takes as long as the whole allreduce."""
    (note,) = [note for note in exported(WHOLE).notes if "half an allreduce" in note]
    assert note.endswith("of which none was measured here")
    gather = law("allgather", 4, 0.0, ring(4, 120.0)), law("allgather", 2, 0.0, ring(2, 150.0))
    more = WHOLE.model_copy(update={"collectives": [*WHOLE.collectives, *gather]})
    (note,) = [note for note in exported(more).notes if "half an allreduce" in note]
    assert note.endswith("that is 0.5 to 0.5 times the allgather here")
