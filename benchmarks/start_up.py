"""How long the command line takes to start, beside an empty Python."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from calib.fitting.parameters.signature import with_signature
from calib.foundation.files import write_json

REPEATS = 15
TARGETS_S = {"--help": 0.3, "predict": 0.6}


def seconds_of(command: list[str]) -> float:
    """Seconds of one run of a command, which must succeed."""
    start = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - start


def start_up() -> list[str]:
    """Medians of REPEATS interleaved runs: `python -c pass`, `calib --help`, `calib predict`."""
    with tempfile.TemporaryDirectory() as folder:
        parameters = Path(folder) / "parameters.json"
        write_json(parameters, with_signature(small_parameters()))
        calib = [sys.executable, "-m", "calib"]
        commands = {
            "empty": [sys.executable, "-c", "pass"],
            "--help": [*calib, "--help"],
            "predict": [
                *calib,
                "predict",
                "--model",
                "resnet50",
                "--strategy",
                "data",
                "-p",
                "64",
                "--batch-per-rank",
                "64",
                "--parameters",
                str(parameters),
                "--json",
            ],
        }
        subprocess.run(commands["predict"], check=True, stdout=subprocess.DEVNULL)  # traces once
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(REPEATS):
            for name, command in commands.items():
                times[name].append(seconds_of(command))
    empty = median(times["empty"])
    return [
        f"calib {name}: {median(times[name]):.3f} s (target {target} s), "
        f"{median(times[name]) / empty:.1f} x an empty Python"
        for name, target in TARGETS_S.items()
    ]


def small_parameters() -> dict[str, object]:
    """A parameter file with a law for everything and no measured layer: numbers of no machine."""
    estimate = {"value": 1e-6, "low": 1e-6, "high": 1e-6}
    work = [
        {
            "kind": kind,
            "direction": direction,
            "active_ranks": 1,
            "call_s": 1e-6,
            "s_per_flop": 1e-11,
            "s_per_byte": 1e-10,
            "error_factor": 2.0,
            "max_flops": 1e9,
            "max_bytes": 1e8,
            "n_layers": 4,
        }
        for kind in ("conv", "linear", "any")
        for direction in ("forward", "backward")
    ]
    loops: list[dict[str, Any]] = [
        {
            "operation": operation,
            "active_ranks": 1,
            "call_s": 1e-6,
            "s_per_tensor": 1e-6,
            "s_per_byte": 1e-10,
            "error_factor": 2.0,
            "max_bytes": 1e8,
            "measured": {},
        }
        for operation in ("update", "pack", "unpack")
    ]
    points = [{"nbytes": nbytes, "seconds": estimate, "n": 10} for nbytes in (8, 2**26)]
    allreduce = {
        "operation": "allreduce",
        "library": "mpi",
        "level": "node",
        "ranks": 2,
        "intercept_s": estimate,
        "slope_s_per_byte": estimate,
        "mean_relative_error": 0.1,
        "line_error_factor": 1.5,
        "interpolation_error_factor": 1.1,
        "points": points,
    }
    return {
        "format_version": 1,
        "provenance": {
            "program_version": "benchmark",
            "cluster_name": "none",
            "cluster_fingerprint": "none",
            "samples_sha256": ["none"],
            "measured_from": "never",
            "measured_until": "never",
            "seed": 0,
        },
        "device": "none",
        "device_memory_bytes": 0,
        "ranks_per_node": 1,
        "collectives": [allreduce],
        "work": work,
        "tensor_loops": loops,
    }
