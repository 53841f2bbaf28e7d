"""JSON of nccl-tests."""

from __future__ import annotations

from typing import Any

from tests.microbench.importers.logs import TIMES

SECRET = "TOKEN=hunter2-very-secret"


def half(size: int, micros: float, factor: float, wrong: int | None = 0) -> dict[str, Any]:
    algbw = size / micros * 1e-3
    return {
        "time": round(micros, 6),
        "alg_bw": round(algbw, 6),
        "bus_bw": round(algbw * factor, 6),
        "nwrong": wrong,
    }


def document(
    ranks: int = 4, program: str = "/x/all_reduce_perf", per_process: int = 1
) -> dict[str, Any]:
    """What src/util.cu of 2.18 writes."""
    devices = [
        {
            "rank": rank,
            "group": 0,
            "pid": 7,
            "hostname": f"node{rank * 2 // ranks}",
            "device": 0,
            "device_hex": "0000:1b:00",
            "device_info": "NVIDIA H100",
        }
        for rank in range(0, ranks, per_process)
    ]
    factor = 2 * (ranks - 1) / ranks
    return {
        "version": 1,
        "start_time": "2026-11-21 14:31:00",
        "args": [program, "-b", "8", "-J", "x"],
        "env": ["PATH=/usr/bin", SECRET, '"config": {"iterations": 5}'],
        "nccl_version": 22807,
        "config": {
            "nthreads": 1,
            "ngpus": per_process,
            "iterations": 20,
            "aggregated_iterations": 1,
            "graph": 0,
            "parallel_init": "false",
            "devices": devices,
        },
        "results": [
            {
                "size": size,
                "count": size // 4,
                "type": "float",
                "redop": "sum",
                "root": "    -1",
                "out_of_place": half(size, time, factor),
                "in_place": half(size, time - 1, factor),
                "actual_iterations": 20,
                "experiment_name": "AllReduce",
            }
            for size, time in TIMES
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 12.3, "okay": "unchecked"},
        "errors": [],
        "end_time": "2026-11-21 14:32:00",
    }
