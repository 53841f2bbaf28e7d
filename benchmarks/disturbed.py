"""Whole calibrations beside a disturber: quiet, while measuring, while training, and both.

    python -m benchmarks.disturbed FOLDER [--repetitions 3] [OPTION OF CALIBRATE...]

The disturber (tests/helpers/disturber.py) has one core for 40% of the time. FOLDER/CONDITION-N are run
directories; those that are there are not made again. Prints, for each condition, the mean of strategy
means, the worst point, the coverage of the intervals and their mean width, as trained and at the
machine's speed of the calibration, and writes them into FOLDER/disturbed.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.helpers.disturber import disturbed

from calib.foundation.files import write_json

DUTY, LONGEST_S = 0.4, 3600.0
STRATEGIES = "serial,data,spatial,pipeline,filter,channel"
# what of a calibration is disturbed: by how its steps announce themselves on stderr
STEPS = {
    "quiet": (),
    "measuring": ("measure",),
    "training": ("train",),
    "both": ("measure", "train"),
}
REPETITIONS = 3


def calibrated(run: Path, condition: str, seed: int, options: list[str]) -> dict[str, Any]:
    """The report of a calibration beside the disturber; made now unless it is there."""
    if not (run / "report.json").exists():
        line = [sys.executable, "-m", "calib", "calibrate", "-o", str(run)]
        process = subprocess.Popen(
            [*line, "--strategies", STRATEGIES, *options],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert process.stderr is not None
        with ExitStack() as stack:
            for text in process.stderr:
                print(text, end="", file=sys.stderr, flush=True)
                if text.startswith("["):  # "[3/7] measure: 150 s ..."
                    stack.close()
                    step = text.partition("] ")[2].partition(":")[0]
                    if step in STEPS[condition]:
                        stack.enter_context(disturbed(DUTY, LONGEST_S, seed))
        if process.wait():
            sys.exit(f"{run}: calibrate ended with {process.returncode}")
    found: dict[str, Any] = json.loads((run / "report.json").read_text())
    return found


def main(words: list[str]) -> int:
    """Run every condition so many times, and print one line of each run."""
    folder, words = Path(words[0]), words[1:]
    repetitions = REPETITIONS
    if words[:1] == ["--repetitions"]:
        repetitions, words = int(words[1]), words[2:]
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    for seed in range(1, repetitions + 1):
        for condition in STEPS:
            run = folder / f"{condition}-{seed}"
            report = calibrated(run, condition, seed, words)
            results.append({"run": run.name, "condition": condition, "summary": report["summary"]})
            write_json(folder / "disturbed.json", results)
            print(json.dumps(results[-1]), flush=True)
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit((__doc__ or "").strip())
    sys.exit(main(sys.argv[1:]))
