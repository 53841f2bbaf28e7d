"""How fast the oracle answers: all strategies of ResNet-152 up to 4096 ranks, and a sweep of 100,000.

On a hand-made machine (a law for every kind of layer, of ReLU with 13 neighbours, which is what a
calibration on a CPU gave; collectives of 2, 4 and 8 ranks): the arithmetic is that of a calibrated one.
Targets (issue 5): 50 ms after loading for all strategies and powers of two; 60 s and 500 MB for
100,000 projections.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint
from calib.fitting.parameters.file import Parameters, TensorLoop, WorkModel
from calib.fitting.parameters.provenance import Provenance
from calib.foundation.errors import MeasurementError
from calib.foundation.records import Estimate
from calib.oracle.costs.machine import Machine
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.template import EVERY
from calib.training.models.specs import spec

POWERS = tuple(2**k for k in range(13))
TARGET_S, SWEEP, SWEEP_S, SWEEP_MB = 0.05, 100_000, 60.0, 500.0
ROUNDS = 7
MODELS = ("resnet152", "resnet50", "vgg16", "alexnet")
ALPHA_S, BETA_S_PER_BYTE = 5e-6, 1e-10
KINDS = ("conv", "linear", "batch_norm", "relu", "max_pool", "avg_pool", "add", "any")


def _around(value: float) -> Estimate:
    return Estimate(value=value, low=0.9 * value, high=1.1 * value)


def _fit(operation: str, level: str, ranks: int) -> CollectiveFit:
    """A ring's line through seven sizes."""
    steps = 2.0 * (ranks - 1)
    intercept, slope = steps * ALPHA_S, steps / ranks * BETA_S_PER_BYTE
    return CollectiveFit(
        operation=operation,
        library="mpi",
        level=level,
        ranks=ranks,
        intercept_s=_around(intercept),
        slope_s_per_byte=_around(slope),
        mean_relative_error=0.1,
        line_error_factor=1.5,
        interpolation_error_factor=1.2,
        points=[
            CollectivePoint(nbytes=m, seconds=_around(intercept + slope * m), n=9)
            for m in (2**k for k in range(4, 29, 4))
        ],
    )


def _law(kind: str, direction: str, active_ranks: int) -> WorkModel:
    number = 13 if kind == "relu" else 0
    neighbours = [(0.1 * i, 0.05 * i, 0.2 * i, 0.01 * (-1) ** i) for i in range(number)]
    return WorkModel(
        kind=kind,
        direction=direction,
        active_ranks=active_ranks,
        call_s=1e-5,
        s_per_flop=1e-11,
        s_per_byte=1e-10,
        neighbours=neighbours,
        error_factor=1.3,
        max_flops=1e13,
        max_bytes=1e10,
        n_layers=9,
    )


def machine() -> Parameters:
    """Nodes of four ranks."""
    levels = (("node", 2), ("node", 4), ("system", 8))
    operations = ("allreduce", "allgather", "reduce_scatter", "p2p", "halo")
    return Parameters(
        provenance=Provenance(
            program_version="0",
            cluster_name="bench",
            cluster_fingerprint="0" * 16,
            samples_sha256=["0" * 64],
            measured_from="",
            measured_until="",
            seed=0,
        ),
        device="bench",
        device_memory_bytes=16 * 2**30,
        ranks_per_node=4,
        collectives=[_fit(name, *at) for name, at in product(operations, levels)],
        work=[
            _law(kind, direction, active)
            for kind, direction, active in product(KINDS, ("forward", "backward"), (1, 2, 4))
        ],
        tensor_loops=[
            TensorLoop(
                operation=operation,
                active_ranks=active,
                call_s=1e-6,
                s_per_tensor=1e-6,
                s_per_byte=1e-10,
                error_factor=1.1,
                max_bytes=1e9,
            )
            for operation, active in product(
                ("update", "pack", "unpack", "concat", "split"), (1, 2, 4)
            )
        ],
    )


def once(model: ModelSpec, on: Machine) -> tuple[float, int]:
    """Seconds and number of the projections of all strategies at all powers of two."""
    start, count = time.perf_counter(), 0
    for p in POWERS:
        for template in EVERY:
            project(model, template.division(p, 64 * p, 4), on)
            count += 1
    return time.perf_counter() - start, count


def oracle() -> list[str]:
    """Cold (nothing known about the model), warm, and a sweep in a process of its own."""
    text = spec("resnet152").model_dump_json()

    def fresh() -> ModelSpec:
        return ModelSpec.model_validate_json(text)

    once(fresh(), Machine(machine()))  # imports
    cold, count = min(once(fresh(), Machine(machine())) for _ in range(ROUNDS))
    model, ready = fresh(), Machine(machine())
    once(model, ready)
    warm, _ = min(once(model, ready) for _ in range(ROUNDS))
    each = cold / count
    rows, seconds, megabytes = sweep()
    return [
        f"resnet152, {count} projections (all strategies, p = 1 to {POWERS[-1]}): {cold * 1e3:.0f} ms "
        f"(target {TARGET_S * 1e3:.0f} ms), {each * 1e3:.2f} ms each; asked again "
        f"{warm / cold:.2f} of it",
        f"calib sweep: {rows} projections in {seconds:.0f} s (target {SWEEP_S:.0f} s), "
        f"{seconds / rows / each:.2f} of one above each; {megabytes:.0f} MB "
        f"(target {SWEEP_MB:.0f} MB)",
    ]


def sweep() -> tuple[int, float, float]:
    """Rows, seconds and the most megabytes of a sweep of SWEEP projections or more."""
    with tempfile.TemporaryDirectory() as folder:
        parameters, table = Path(folder) / "parameters.json", Path(folder) / "sweep.csv"
        machine().write(parameters)
        batches = ",".join(map(str, range(1, 1 + -(-SWEEP // (len(MODELS) * 130)))))
        command = [
            sys.executable,
            "-m",
            "calib",
            "sweep",
            "--models",
            ",".join(MODELS),
            "--strategies",
            "all",
            "-p",
            f"1:{POWERS[-1]}",
            "--batch-per-rank",
            batches,
            "--parameters",
            str(parameters),
            "-o",
            str(table),
        ]
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        if status:
            raise MeasurementError(f"calib sweep ended with {os.waitstatus_to_exitcode(status)}")
        with table.open() as lines:
            rows = sum(1 for _ in lines) - 1
    return rows, seconds, usage.ru_maxrss / 1024
