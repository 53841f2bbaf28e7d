"""nccl-tests -J: the same numbers with all their digits, and nothing of the environment."""

from __future__ import annotations

import json

import pytest
from tests.microbench.importers.logs import TIMES, imported, one, times
from tests.microbench.importers.made.nccl_json import document


def test_a_whole_file() -> None:
    found = imported(json.dumps(document()))
    block = one(found)
    assert (block.operation, block.ranks, block.nodes, found.library_version) == (
        "allreduce",
        4,
        2,
        "2.28.7",
    )
    assert times(block) == pytest.approx(dict(TIMES), rel=1e-6)
    assert times(block, "in_place") == pytest.approx({s: t - 1 for s, t in TIMES}, rel=1e-6)
    assert set(block.calls) == {20} and found.faults.listed() == []
    assert found.gpus == {"node0": ["NVIDIA H100"] * 2, "node1": ["NVIDIA H100"] * 2}


def test_times_of_iterations_and_no_time_out_of_place() -> None:
    """What src/util.cu has had since 2.19: -I adds an object behind each half, and one may be null."""
    plain = document()
    expected = times(one(imported(json.dumps(plain))), "in_place")
    for row in plain["results"]:
        row["out_of_place"] = None
        row["in_place_per_iter"] = {"min_us": 1.0, "cv_pct": 0.5, "times_us": [1.0, 2.0]}
    found = imported(json.dumps(plain, indent=1))
    assert times(one(found), "in_place") == expected and times(one(found)) == {}
    assert found.faults.listed() == []


def test_one_entry_of_devices_is_a_process() -> None:
    """The list has only the first GPU of each process: 2 entries of 2 GPUs are 4 ranks."""
    block = one(imported(json.dumps(document(per_process=2))))
    assert (block.ranks, block.nodes, block.active_ranks) == (4, 2, 2)


def test_several_runs_indented_and_sorted() -> None:
    expected = times(one(imported(json.dumps(document()))))
    two = json.dumps(document(), indent=1) + "\n" + json.dumps(document())
    assert len(imported(two).blocks) == 2
    glued = imported(json.dumps(document()) * 2).blocks  # on one line: two runs all the same
    assert glued[0].run[0] != glued[1].run[0]
    assert sum(map(len, imported(two).blocks)) == 4 * len(TIMES)
    assert times(one(imported(json.dumps(document(), sort_keys=True)))) == expected


@pytest.mark.parametrize("sort_keys", [False, True])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_of_runs(sort_keys: bool, indent: int | None) -> None:
    """What jq -s and a script that collects runs write."""
    text = json.dumps([document(), document(ranks=8)], sort_keys=sort_keys, indent=indent)
    found = imported(" \n" + text + "\n")
    assert [(b.ranks, times(b)) for b in found.blocks] == [
        (ranks, times(one(imported(json.dumps(document(ranks=ranks)))))) for ranks in (4, 8)
    ]
    assert found.faults.listed() == []


@pytest.mark.parametrize(("words", "mean"), [(["-a", "1"], True), (["-a", "3"], False)])
def test_which_time_is_printed(words: list[str], mean: bool) -> None:
    content = document()
    content["args"] += words
    assert one(imported(json.dumps(content))).mean_over_ranks == mean


def test_rows_that_are_no_rows() -> None:
    content = document()
    results = content["results"]
    results[0]["out_of_place"]["time"] = "nan"
    results[1]["out_of_place"]["nwrong"] = 3
    results[2]["in_place"] = None
    results[3]["out_of_place"]["alg_bw"] *= 1.01
    results[4]["out_of_place"] = {"cpu_time": 3.0}
    results[5]["in_place"]["time"] = "nan"
    found = imported(json.dumps(content))
    sizes = [size for size, _ in TIMES]
    assert sorted(times(one(found))) == [sizes[2], *sizes[5:]]
    assert [text for _, text in found.faults.listed()] == [
        "not a row: a field is missing or not a number",
        "the time out of place is not a positive number",
        "wrong results out of place",
        "out of place, time and algbw do not agree",
        "the time in place is not a positive number",
    ]


def test_rows_of_one_half() -> None:
    """rccl-tests -O 0 has nothing out of place: what it has is in place, and no fault."""
    content = document()
    for row in content["results"]:
        del row["out_of_place"]
    found = imported(json.dumps(content))
    assert found.faults.listed() == [] and not times(one(found))
    assert times(one(found), "in_place") == pytest.approx({s: t - 1 for s, t in TIMES}, rel=1e-6)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9, 0.99])
def test_a_file_that_is_cut(share: float) -> None:
    """The rows that are whole stay; none has a number that is cut."""
    text = json.dumps(document())
    expected = times(one(imported(text)))
    found = imported(text[: int(share * len(text))])
    kept = {size: time for block in found.blocks for size, time in times(block).items()}
    assert all(expected[size] == time for size, time in kept.items())
    # a row is whole once its second half is closed; the last one that began may be cut
    whole = text[: int(share * len(text))].count('"out_of_place"')
    assert whole - 1 <= len(kept) <= whole
    assert found.faults.listed() or len(kept) == len(expected)


def test_nothing_of_the_environment_is_kept() -> None:
    found = imported(json.dumps(document()))
    assert "hunter2" not in repr(found)
    broken = json.dumps(document()).replace('"results"', '"resalts"')
    assert "hunter2" not in repr(imported(broken))
