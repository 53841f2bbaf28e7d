"""A plain program under torch.profiler, which it knows nothing of.

    torchrun ... -m benchmarks.profiled FOLDER PROGRAM [WORD...]

runs benchmarks.plain_programs.PROGRAM with these words. A step ends where the program logs it; after the
first WARM_UP each rank writes a trace of the next TRACED to FOLDER/rankN.json.gz.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.plain_programs.models import Log

WARM_UP, TRACED = 6, 40


class Profiled(Log):
    """The log of a program; a step of the profiler ends with it."""

    profiler: profile

    def __call__(self, loss: float) -> None:
        """The end of a step."""
        super().__call__(loss)
        self.profiler.step()


def main(folder: str, program: str, *words: str) -> None:
    """Run it."""
    script = import_module(f"benchmarks.plain_programs.{program}")
    path = Path(folder) / f"rank{os.environ.get('RANK', '0')}.json.gz"
    with (
        profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=WARM_UP - 1, warmup=1, active=TRACED, repeat=1),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
            record_shapes=True,
        ) as Profiled.profiler,
        patch.object(script, "Log", Profiled),
        patch.object(sys, "argv", [program, *words]),
    ):
        script.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
