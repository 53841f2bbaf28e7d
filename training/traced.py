"""Iterations of a training run under torch.profiler, after the timed ones, and a trace of each rank.

A trace also has the trainer's own clock: the seconds of each phase of each of its steps, under the key
CLOCK. So what is read of a trace can be held against it.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, schedule

from calib.foundation.files import ensure_directory, write_whole
from calib.microbench.control import Control
from calib.microbench.device import Device

CLOCK = "calib_phases"
WARM_UP = 2  # iterations under the profiler that it does not keep


def traced(
    iterate: Callable[[], dict[str, float]], n: int, device: Device
) -> tuple[bytes, list[dict[str, float]]]:
    """Run iterations under the profiler.

    Parameters
    ----------
    iterate
        One iteration; returns the seconds of its phases by the trainer's clock.
    n
        Iterations that are kept.

    Returns
    -------
    tuple[bytes, list[dict[str, float]]]
        The trace, gzipped, and what `iterate` returned for each of its steps.
    """
    activities = [ProfilerActivity.CPU]
    if device.kind == "cuda":
        activities.append(ProfilerActivity.CUDA)
    clock: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"

        def export(profiler: profile) -> None:
            profiler.export_chrome_trace(str(path))

        with profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=WARM_UP, active=n, repeat=1),
            on_trace_ready=export,
            record_shapes=True,
        ) as profiler:
            for index in range(WARM_UP + n):
                seconds = iterate()
                if index >= WARM_UP:
                    clock.append(seconds)
                if index == WARM_UP + n - 1:
                    profiler.add_metadata_json(CLOCK, json.dumps(clock))
                profiler.step()
        return gzip.compress(path.read_bytes(), mtime=0), clock


def write_traces(control: Control, mine: bytes, folder: Path) -> None:
    """Collective: rank 0 writes the traces of all ranks, `rankN.json.gz`. Raises FileError."""
    every: Sequence[str] = control.allgather_object(b64encode(mine).decode())  # JSON has no bytes
    if control.rank == 0:
        ensure_directory(folder)
        for rank, content in enumerate(every):
            write_whole(folder / f"rank{rank}.json.gz", b64decode(content))
