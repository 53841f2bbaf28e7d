"""PipeDream's reference partitions (../shared/data/pipedream), and brute force on small graphs."""

from __future__ import annotations

import json
import math
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.pipelines import arguments
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.published import DATA, needs_data

from calib.foundation.errors import FileError, InputError
from calib.search.pipelines.antichains import States, states_of
from calib.search.pipelines.partition import (
    Partition,
    PartitionLevel,
    Split,
    bandwidth_levels,
    solve,
)
from calib.search.pipelines.profile import Node, PipelineProfile, parsed, read

FOLDER = DATA / "pipedream"
TIES = 10  # entries where the reference's stages are other ones, as fast
REFERENCE = (
    json.loads((FOLDER / "reference_partitions.json").read_text()) if FOLDER.is_dir() else []
)


def states(name: str) -> States:
    return states_of(read(FOLDER / f"{name}.graph.txt"))


def solved(of: States, *args: Any) -> tuple[Partition, list[PartitionLevel]]:
    machines, bandwidths, ratio, straight = args
    levels = bandwidth_levels(of, machines, bandwidths, ratio)
    found = solve(of.compute_s, of.before, levels, straight)
    assert found is not None
    return found, levels


def slowest(
    of: States,
    levels: list[PartitionLevel],
    splits: list[list[Split]],
    ratio: float | None,
    bandwidths: list[float],
) -> float:
    """The slowest stage of given stages, written out from formulas.md; splits outermost first."""
    depth = len(levels)

    def piece(level: int, start: int, end: int) -> float:
        if level < 0:
            return float(of.compute_s[end - 1] - (of.compute_s[start - 1] if start else 0))
        inside = [s for s in splits[depth - 1 - level] if start <= s.start and s.end <= end]
        times = []
        for s in inside:
            w = of.parameter_bytes[s.end - 1] - (of.parameter_bytes[s.start - 1] if s.start else 0)
            m, b = s.replicas, bandwidths[level]
            exchange = 4 * (m - 1) * w / (m * b)
            if s.start == start and level:  # the first one is priced as a stage by itself
                exchange /= levels[level - 1].machines
            times.append((piece(level - 1, s.start, s.end) + exchange) / m)
            if ratio and s.start > start:
                last = len(of.compute_s) - 1
                for k in (s.start - 1, *([s.end - 1] if s.end - 1 < last else [])):
                    times.append(2 * of.output_bytes[k] / (b * m * ratio))
        return max(times)

    return piece(depth - 1, 0, len(of.compute_s))


@needs_data
@pytest.mark.parametrize(
    "entry", REFERENCE, ids=lambda e: f"{e['profile'].split('/')[-2]} {' '.join(e['args'])}"
)
def test_reference(entry: dict[str, Any]) -> None:
    """The time per stage, the single stage and what is computed, to 1e-9; its stages are optimal too."""
    of = states(entry["profile"].split("/")[-2])
    args = arguments(entry["args"])
    found, levels = solved(of, *args)
    assert found.per_stage_s == pytest.approx(entry["per_stage_s"], abs=1e-9)
    assert found.single_stage_s == pytest.approx(entry["single_stage_s"], abs=1e-9)
    theirs = [
        [Split(s["start"], s["end"], s["replicas"], s["compute_s"]) for s in level["splits"]]
        for level in entry["levels"]
    ]
    for split in (s for level in theirs for s in level):
        before = of.compute_s[split.start - 1] if split.start else 0.0
        assert of.compute_s[split.end - 1] - before == pytest.approx(split.compute_s, abs=1e-9)
    ours = [list(level) for level in found.levels]
    for splits in (theirs, ours):
        assert slowest(of, levels, splits, args[2], args[1]) == pytest.approx(
            entry["per_stage_s"], abs=1e-9
        )


@needs_data
def test_most_stages_are_the_same() -> None:
    """Where pipelines are equally fast the reference takes one by the addresses of its objects."""
    others = 0
    for entry in REFERENCE:
        found, _ = solved(states(entry["profile"].split("/")[-2]), *arguments(entry["args"]))
        theirs = [
            [(s["start"], s["end"], s["replicas"]) for s in level["splits"]]
            for level in entry["levels"]
        ]
        others += [[tuple(s[:3]) for s in level] for level in found.levels] != theirs
    assert others <= TIES


@needs_data
@pytest.mark.parametrize("machines", [[4], [8, 2]])
def test_inception(machines: list[int]) -> None:
    """A graph of branches: states in order, everything in the last one, stages that fill it."""
    of = states("inception_v3")
    profile = read(FOLDER / "inception_v3.graph.txt")
    assert profile.nodes[0].name and any(n.what.startswith("Input") for n in profile.nodes)
    assert of.members[-1].bit_count() == of.nodes
    assert not np.triu(of.before).any()
    assert not of.complete and len(of.compute_s) == of.nodes
    assert of.compute_s[-1] == pytest.approx(
        sum(n.forward_s + n.backward_s for n in profile.without_inputs.nodes)
    )
    found, levels = solved(of, machines, [1e9] * len(machines), None, False)
    splits = [list(level) for level in found.levels]
    assert slowest(of, levels, splits, None, [1e9] * len(machines)) == pytest.approx(
        found.per_stage_s, abs=1e-12
    )
    for level in splits:
        assert level[0].start == 0 and level[-1].end == len(of.compute_s)
        assert all(a.end == b.start for a, b in pairwise(level))


def chain(nodes: list[tuple[float, float, float]]) -> PipelineProfile:
    made = tuple(Node(f"n{i}", "x", t / 2, t / 2, a, w) for i, (t, a, w) in enumerate(nodes))
    return PipelineProfile("chain", made, tuple((i, i + 1) for i in range(len(nodes) - 1)))


def brute(
    nodes: list[tuple[float, float, float]],
    machines: int,
    bandwidth: float,
    ratio: float | None,
    straight: bool,
) -> float:
    """All cuts and all replicas."""
    best, n = math.inf, len(nodes)
    for cuts in product((False, True), repeat=n - 1):
        borders = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), n]
        stages = len(borders) - 1
        for replicas in product(range(1, 2 if straight else machines + 1), repeat=stages):
            if sum(replicas) != machines:
                continue
            times = []
            for s, m in enumerate(replicas):
                part = nodes[borders[s] : borders[s + 1]]
                w = sum(x[2] for x in part)
                times.append((sum(x[0] for x in part) + 4 * (m - 1) * w / (m * bandwidth)) / m)
                if ratio and s:
                    times.append(2 * nodes[borders[s] - 1][1] / (bandwidth * m * ratio))
                if ratio and s and s + 1 < stages:
                    times.append(2 * nodes[borders[s + 1] - 1][1] / (bandwidth * m * ratio))
            best = min(best, max(times))
    return best


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6
    ),
    st.integers(1, 4),
    st.sampled_from([None, 1.0, 2.0]),
    st.booleans(),
)
def test_brute_force(
    nodes: list[tuple[int, int, int]], machines: int, ratio: float | None, straight: bool
) -> None:
    """Every pipeline of a small chain."""
    of = states_of(chain([(float(t), float(a), float(w)) for t, a, w in nodes]))
    found = solve(of.compute_s, of.before, bandwidth_levels(of, [machines], [2.0], ratio), straight)
    # as the authors' program has it: a stage that has none before it pays no messages
    best = brute(
        [(float(t), float(a), float(w)) for t, a, w in nodes], machines, 2.0, ratio, straight
    )
    assert (found.per_stage_s if found else math.inf) == pytest.approx(best)


def test_diamond_states() -> None:
    """a -> b, c -> d: the states by hand. Each branch alone is read from a, so a is in them."""
    nodes = tuple(
        Node(n, "x", float(1 << i), 0.0, float(1 << i), 0.0) for i, n in enumerate("abcd")
    )
    of = states_of(PipelineProfile("diamond", nodes, ((0, 1), (0, 2), (1, 3), (2, 3))))
    assert sorted(of.members) == [0b1, 0b11, 0b101, 0b111, 0b1111]
    outputs = dict(zip(of.members, of.output_bytes, strict=True))
    assert outputs == {0b1: 1.0, 0b11: 3.0, 0b101: 5.0, 0b111: 7.0, 0b1111: 8.0}


NODE = (
    "node1 -- Conv -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=[4.0; "
    "8.0], parameter_size=3.000"
)


def test_reading() -> None:
    (node,) = parsed([NODE, ""], "x").nodes
    assert node == Node("node1", "Conv", 1e-3, 2e-3, 12.0, 3.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no layers"),
        ("hello", "line 1: neither"),
        (f"{NODE}\n{NODE}", "line 2: node1 is there"),
        (NODE.replace("1.0", "nan"), "forward_compute_time=nan"),
        (NODE.replace("3.000", "-3"), "parameter_size=-3"),
        (NODE.replace("parameter_size", "size"), "a layer has"),
        (f"{NODE}\n\tnode1 -- node2", "line 2: an edge of 'node2'"),
        (f"{NODE}\n\tnode1 -- node1", "a circle"),
    ],
)
def test_bad_files(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.graph.txt"
    path.write_text(text)
    with pytest.raises(FileError, match=said) as error:
        read(path)
    assert "\n" not in str(error.value)


def test_bad_levels() -> None:
    of = states_of(chain([(1.0, 1.0, 1.0)]))
    for machines, bandwidths in (([4], [1.0, 2.0]), ([0], [1.0]), ([4], [0.0]), ([], [])):
        with pytest.raises(InputError):
            bandwidth_levels(of, machines, bandwidths)
