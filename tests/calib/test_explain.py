"""`calib explain`: traces in, tables or JSON out; of whatever is wrong with a file one line."""

from __future__ import annotations

import copy
import gzip
import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.helpers import mutations
from tests.training.traces.made_traces import Clock, Planted, document, planted_run

from calib.training.traces.run import TracedRun

REAL = Path(__file__).parents[3] / "shared" / "data" / "traces"
DEEP: Any = "x"
for _ in range(400):
    DEEP = [DEEP]


def written(folder: Path, name: str, content: Any) -> str:
    (folder / name).write_text(json.dumps(content))
    return name


@pytest.fixture
def both(tmp_path: Path) -> list[str]:
    """The traces of two ranks of a good run, in the directory of the test."""
    return [written(tmp_path, f"{rank}.json", document(rank)) for rank in range(2)]


def test_a_good_run(tmp_path: Path, both: list[str]) -> None:
    done = calib(tmp_path, "explain", *both)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "2 ranks on 1 host, NVIDIA H100, nccl; 3 steps",
        "data: 1 allreduce in a step",
        "batch 8 per rank, float32, SGD",
        "gradients: 2.5 KiB in 1 allreduce, the largest of 2.5 KiB",
    ]
    titles = ["Where the step went", "Ranks, the slowest first", "Collectives", "Operators"]
    for title in titles:
        assert any(line.startswith(title) for line in lines)
    assert re.search(r"^  allreduce +2.5 KiB +float32 +2 +1.00 ", done.stdout, re.MULTILINE)
    assert all(line.startswith("note: ") for line in done.stderr.splitlines())


def test_json_is_the_record(tmp_path: Path, both: list[str]) -> None:
    done = calib(tmp_path, "explain", *both, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)["run"]
    run = TracedRun.model_validate(said)
    assert run.model_dump(mode="json") == said
    assert run.files == both and run.configuration.gradient_items == 640
    # the order in which ranks are named does not matter
    again = json.loads(calib(tmp_path, "explain", *both[::-1], "--json").stdout)["run"]
    assert again == said


def test_a_gzipped_trace_and_an_array_of_events_are_traces(tmp_path: Path) -> None:
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(json.dumps(document()).encode(), mtime=0))
    assert calib(tmp_path, "explain", "t.json.gz").returncode == 0
    done = calib(tmp_path, "explain", written(tmp_path, "a.json", document()["traceEvents"]))
    assert done.returncode == 0 and done.stdout.startswith("1 rank, GPU; 3 steps\ndata: ")


def test_a_fault_is_exit_code_1(tmp_path: Path) -> None:
    calls = [Planted({0: 4100.0, 1: 2100.0}, 4600.0)]
    planted_run(tmp_path, [calls] * 4, [Clock()] * 2, lambda r: [(100, 2100 if r else 4100)])
    done = calib(tmp_path, "explain", "rank0.json", "rank1.json")
    assert done.returncode == 1
    # its kernels and the host's rest after them are its own work: 9.5 of 10 ms, and 7.5
    assert (
        "slow rank: rank 0 needs 26.7% longer for its own work than the other: 2 ms" in done.stdout
    )
    done = calib(tmp_path, "explain", "rank0.json", "rank1.json", "--json")
    assert done.returncode == 1
    (fault,) = json.loads(done.stdout)["run"]["faults"]
    assert (fault["kind"], fault["rank"]) == ("slow rank", 0)
    assert fault["seconds"] == pytest.approx(2e-3)


def words_of(folder: Path, *files: str) -> str:
    return refused(calib(folder, "explain", *files))


def test_files_that_are_wrong_are_one_line(tmp_path: Path, both: list[str]) -> None:
    text = json.dumps(document()).encode()
    (tmp_path / "cut.json").write_bytes(text[: len(text) // 2])
    assert "cut.json is truncated" in words_of(tmp_path, "cut.json")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(text, mtime=0)[:-200])
    assert "cut.json.gz is truncated or not gzip" in words_of(tmp_path, "cut.json.gz")
    (tmp_path / "t.csv").write_text("model,strategy,p,batch,seconds\nnet,data,2,8,1\n")
    assert words_of(tmp_path, "t.csv") == "t.csv is no trace of torch.profiler"
    (tmp_path / "t.jsonl").write_text('{"seconds": 1}\n')
    assert words_of(tmp_path, both[0], "t.jsonl") == "t.jsonl is no trace of torch.profiler"
    assert "does not exist" in words_of(tmp_path, "none.json")
    (tmp_path / "folder").mkdir()
    assert "Is a directory" in words_of(tmp_path, "folder")
    (tmp_path / "empty.json").write_text("")
    assert "empty.json" in words_of(tmp_path, "empty.json")
    assert words_of(tmp_path, both[0], f"./{both[0]}") == "the same file is given twice"
    copied = written(tmp_path, "copy.json", document(0))
    assert "two of the traces are of the same rank: " in words_of(tmp_path, both[0], copied)
    other = document(1)
    for event in other["traceEvents"]:
        if event["name"].startswith("ProfilerStep#"):
            event["name"] = event["name"].replace("#", "#9")
    later = written(tmp_path, "later.json", other)
    assert words_of(tmp_path, both[0], later) == "the traces of the ranks have no step in common"
    more = written(tmp_path, "more.json", document(1, 4))
    assert words_of(tmp_path, both[0], more) == "more.json is of 4 ranks, 0.json of 2"


@pytest.mark.parametrize("cat", ["user_annotation", "no_annotation"])
def test_a_trace_without_steps(tmp_path: Path, cat: str) -> None:
    content = document()
    content["traceEvents"] = [
        event | {"cat": cat if "Optimizer" in event["name"] else event["cat"]}
        for event in content["traceEvents"]
        if "ProfilerStep" not in event["name"]
    ]
    name = written(tmp_path, "t.json", content)
    if cat == "user_annotation":  # then a step is between two updates
        assert calib(tmp_path, "explain", name).stdout.startswith("2 ranks (1 traced)")
    else:
        assert "has no ProfilerStep#N: give torch.profiler.profile a" in words_of(tmp_path, name)
    content["traceEvents"] = []
    assert "has no ProfilerStep#N" in words_of(tmp_path, written(tmp_path, "t.json", content))


def test_clocks_that_jump(tmp_path: Path, both: list[str]) -> None:
    """Back by more than a step in one file: an error; between files of a host: a note."""
    content = document(1)
    for event in content["traceEvents"]:
        if event["ts"] >= 1000:
            event["ts"] -= 5000
    assert "step 1 begins before step 0 ends" in words_of(
        tmp_path, both[0], written(tmp_path, "back.json", content)
    )
    for event in content["traceEvents"]:
        event["ts"] += 5000 + 10_000 * (event["ts"] < 0)
    ahead = document(1) | {"baseTimeNanoseconds": 1_700_000_001_000_000_000}
    done = calib(tmp_path, "explain", both[0], written(tmp_path, "ahead.json", ahead))
    assert done.returncode == 0
    assert "note: the clocks of the ranks cannot be compared (100% of" in done.stderr


NASTY = [
    None,
    True,
    -1,
    1.5,
    10**30,
    10**400,
    float("nan"),
    1e300,
    "",
    "\ud800\x1b[31m\n",
    [],
    [[]],
    {"a": [1]},
    [-1, -2],
    [[10**20, 10**20]],
    DEEP,
]


def places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    pairs = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content if isinstance(content, list) else ())
    )
    return [path, *(place for key, part in pairs for place in places(part, (*path, key)))]


def held(done: Any) -> None:
    """A result, or one line."""
    if done.returncode == 2:
        refused(done)
    else:
        assert done.returncode in (0, 1), done.stderr
        assert done.stdout.isascii() or "\x1b" not in done.stdout
        assert all(line.startswith("note: ") for line in done.stderr.splitlines()), done.stderr


@pytest.mark.parametrize("part", range(8))
def test_whatever_stands_in_a_trace_is_no_traceback(
    tmp_path: Path, both: list[str], part: int
) -> None:
    """Each value of what a trace has is replaced, one at a time; rank 1 stays good."""
    good = document(0)
    # the first step has all kinds of events
    every = [p for p in places(good) if p and (p[0] != "traceEvents" or len(p) < 2 or p[1] < 17)]
    random = Random(part)
    for path in every[part::8]:
        for nasty in random.sample(NASTY, 3):
            content = copy.deepcopy(good)
            holder: Any = content
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = nasty
            written(tmp_path, "0.json", content)
            files = both if random.random() < 0.5 else both[:1]
            held(calib(tmp_path, "explain", *files, *random.choice(([], ["--json"]))))


@pytest.mark.parametrize("seed", range(4))
def test_a_file_that_is_damaged_is_no_traceback(tmp_path: Path, both: list[str], seed: int) -> None:
    random = Random(seed)
    content = json.dumps(document(0)).encode()
    change = mutations.of_text(mutations.document)
    for _ in range(40):
        (tmp_path / "0.json").write_bytes(change(content, random))
        held(calib(tmp_path, "explain", *both))


@pytest.mark.skipif(not REAL.exists(), reason="shared/data is not here")
@pytest.mark.parametrize("pattern", ["ddp_2gpu*", "sampled_128gpu*", "sampled_128gpu_rank1*"])
def test_tables_of_real_traces_fit(tmp_path: Path, pattern: str) -> None:
    files = sorted(map(str, REAL.glob(pattern)))
    assert files
    done = calib(tmp_path, "explain", *files)
    assert done.returncode in (0, 1)
    lines = done.stdout.splitlines()
    tables = lines[lines.index("") :]
    assert max(map(len, tables)) <= 100 and len(tables) > 30


@pytest.mark.skipif(not REAL.exists(), reason="shared/data is not here")
@pytest.mark.parametrize("name", ["alexnet_1gpu.json.gz", "cupti_ranges_1gpu.json.gz"])
def test_real_traces_without_steps(tmp_path: Path, name: str) -> None:
    assert "has no ProfilerStep#N" in words_of(tmp_path, str(REAL / name))
