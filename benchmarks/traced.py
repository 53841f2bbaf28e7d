"""What is planted in ordinary training scripts, and what `calib explain` says of their traces.

    python -m benchmarks.traced FOLDER [CONDITION...] [--runs 10]

Trains benchmarks/plain_programs/ddp_mistakes.py on 2 ranks over gloo under torch.profiler. Conditions:
good (nothing planted), slow (one rank has 20% more samples), loader (every fourth batch of one rank is
0.15 s late), bucket (buckets of 0.05 MiB), doubled (gradients are averaged again), dtype (one layer in
float64). Runs plant at one rank, then the other, with one model, then the other. Traces are kept in
FOLDER/CONDITION-N/; those that are there are not made again. Prints for each run what was named, and how
often that was what was planted, at its rank, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.plain import LIMIT_S, RANKS, TORCHRUN
from benchmarks.profiled import TRACED, WARM_UP
from calib.foundation.environment import THREADS_VARIABLE

PROGRAM = "ddp_mistakes"
BATCHES = {"mlp": 16, "cnn": 10}  # of a rank: steps of some 50 ms
# the kind of fault, whether it is one rank's, and the models in which it is felt: more samples take time
# in the cnn, whose weights are few; gradients in the mlp, which has 38 MiB of them
CONDITIONS = {
    "good": ("", False, ("mlp", "cnn")),
    "slow": ("slow rank", True, ("cnn",)),
    "loader": ("input", True, ("mlp", "cnn")),
    "bucket": ("small buckets", False, ("mlp",)),
    "doubled": ("doubled collective", False, ("mlp", "cnn")),
    "dtype": ("other item type", False, ("mlp", "cnn")),
}
Named = set[tuple[str, int | None]]


def traces(folder: Path, condition: str, number: int) -> list[Path]:
    """The traces of one run; made now unless they are there."""
    paths = [folder / f"rank{rank}.json.gz" for rank in range(RANKS)]
    if all(path.exists() for path in paths):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    models = CONDITIONS[condition][2]
    model = models[number // RANKS % len(models)]
    mistake = "none" if condition == "good" else condition
    words = [model, "--batch", str(BATCHES[model]), "--steps", str(WARM_UP + TRACED + 1)]
    words += ["--mistake", mistake, "--at", str(number % RANKS)]
    line = [sys.executable, *TORCHRUN, "-m", "benchmarks.profiled", str(folder), PROGRAM, *words]
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env={**os.environ, THREADS_VARIABLE: "1"},
    )
    if done.returncode:
        sys.exit(f"{folder}: {done.stdout}{done.stderr}")
    return paths


def named(paths: list[Path]) -> tuple[Named, list[str]]:
    """What `calib explain` names: kinds and ranks; and its sentences."""
    line = [sys.executable, "-m", "calib", "explain", "--json", *map(str, paths)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    faults = json.loads(done.stdout)["run"]["faults"]
    return {(x["kind"], x["rank"]) for x in faults}, [f"{x['kind']}: {x['says']}" for x in faults]


def main() -> None:
    """Make the runs and count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("conditions", nargs="*", default=list(CONDITIONS))
    parser.add_argument("--runs", type=int, default=10)
    asked = parser.parse_intermixed_args()
    unknown = set(asked.conditions) - set(CONDITIONS)
    if unknown:
        parser.error(f"no condition {unknown.pop()!r}; known: {', '.join(CONDITIONS)}")
    for condition in asked.conditions:
        kind, of_rank, _ = CONDITIONS[condition]
        right = 0
        for number in range(asked.runs):
            run = f"{condition}-{number}"
            found, says = named(traces(asked.folder / run, condition, number))
            wanted: Named = {(kind, number % RANKS if of_rank else None)} if kind else set()
            right += found == wanted
            print(f"  {run}: {'right' if found == wanted else 'WRONG'}; {says or 'nothing named'}")
        print(f"{condition}: right in {right} of {asked.runs}", flush=True)


if __name__ == "__main__":
    main()
