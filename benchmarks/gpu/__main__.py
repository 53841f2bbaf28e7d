"""Run the steps on a GPU, one after another, and write what they found."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from time import monotonic

from benchmarks.gpu.process import run_step
from benchmarks.gpu.results import JSON, MARKDOWN, Result, Results
from benchmarks.gpu.steps import STEPS, Setting
from calib.foundation.errors import CalibError, MachineError
from calib.foundation.files import ensure_directory
from calib.microbench.records.manifest import utc_now

FIRST, *OTHERS = STEPS
LEAST_S = 10.0  # no step is begun with less time left: loading PyTorch takes most of it


def options(words: list[str]) -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(STEPS), metavar="STEP", default=OTHERS)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=40.0, help="for all; default 40")
    parser.add_argument("--rehearse", action="store_true", help="small sizes, to try the code")
    parser.epilog = "Steps: " + ", ".join(STEPS)
    return parser.parse_args(words)


def run_all(names: list[str], setting: Setting, until: float) -> Results:
    """Look at the machine, then run the steps. Raises MachineError without a GPU, InputError."""
    results = Results.read(ensure_directory(setting.folder), setting.small)
    first, machine = run_step(STEPS[FIRST], setting, min(STEPS[FIRST].limit_s, until - monotonic()))
    if not machine:
        raise MachineError(first.ended)
    results.require(machine)
    results.machine = machine
    keep(results, first)
    for name in [name for name in OTHERS if name in names]:
        left_s = until - monotonic()
        if left_s < LEAST_S:
            if name not in results.steps:
                keep(results, Result(name, utc_now(), ended="not run: the time was over"))
            continue
        print(f"{name} ...", flush=True)
        result, _ = run_step(STEPS[name], setting, min(STEPS[name].limit_s, left_s))
        keep(results, result)
    return results


def keep(results: Results, result: Result) -> None:
    """Write what all steps so far have found, and say how this one ended."""
    results.steps[result.step] = result
    results.write()
    print(result.line, flush=True)
    for each in result.missing:
        print(f"  {each.what}: {each.why}", flush=True)


def main(words: list[str]) -> int:
    """0; 1 where a step failed or took too long; 2 where none can run."""
    given = options(words)
    setting = Setting(given.out.absolute(), given.rehearse)
    try:
        results = run_all(given.only, setting, monotonic() + 60.0 * given.minutes)
    except CalibError as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2
    print(f"{given.out / JSON}, {given.out / MARKDOWN}")
    return int(any(results.steps[name].spoiled for name in given.only))


if __name__ == "__main__":
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # as Ctrl-C: a step's process ends too
    sys.exit(main(sys.argv[1:]))
