"""How fast the partitioner reproduces PipeDream's reference partitions, against its recorded times.

The reference (a Python program) was timed with its start on another machine: the ratio says how many
times less this takes from reading a profile to the stages, in seconds of the processor, best of ROUNDS.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from calib.search.pipelines.antichains import states_of
from calib.search.pipelines.partition import bandwidth_levels, solve
from calib.search.pipelines.profile import read

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data" / "pipedream"
ROUNDS, TARGET = 5, 20.0


def arguments(words: list[str]) -> tuple[list[int], list[float], float | None, bool]:
    """Machines, bandwidths, compression, straight: of the reference's command line."""
    given: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("-"):
            name = word
            given[name] = []
        else:
            given[name].append(word)
    ratio = given.get("--activation_compression_ratio")
    return (
        [int(word) for word in given["-n"]],
        [float(word) for word in given.get("-b", ["1e9"])],
        float(ratio[0]) if ratio else None,
        "--straight_pipeline" in given,
    )


def pipelines() -> list[str]:
    """The ratio of each entry's time, the worst of them last."""
    if not FOLDER.is_dir():
        return [f"{FOLDER} is not here: nothing to compare with"]
    lines, ratios = [], []
    for entry in json.loads((FOLDER / "reference_partitions.json").read_text()):
        name = entry["profile"].split("/")[-2]
        machines, bandwidths, ratio, straight = arguments(entry["args"])
        best = float("inf")
        for _ in range(ROUNDS):
            start = time.process_time()
            states = states_of(read(FOLDER / f"{name}.graph.txt"))
            levels = bandwidth_levels(states, machines, bandwidths, ratio)
            solve(states.compute_s, states.before, levels, straight)
            best = min(best, time.process_time() - start)
        ratios.append(entry["wall_s"] / best)
        lines.append(
            f"{name} {' '.join(entry['args'])}: {1e3 * best:.2f} ms, {ratios[-1]:.0f} times less"
        )
    return [
        *lines,
        f"worst {min(ratios):.0f} times less (target {TARGET:g}; another machine's times)",
    ]
