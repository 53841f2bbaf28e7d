"""A full training run: SPMD, every rank calls `train`; rank 0 writes run.jsonl as it goes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any

import torch

from foundation.errors import FileError, InputError, MeasurementError
from foundation.files import ensure_directory
from microbench.manifest import utc_now
from microbench.memory import peak_rss_bytes
from microbench.placement import place
from microbench.probe import versions
from training.gradient_check import MAX_RANKS, gradient_difference
from training.run import RUN_PHASES, Iteration, RunEnd, RunHeader
from training.step import TrainingStep

if TYPE_CHECKING:
    from microbench.communicators import World

BLOCK = 10  # iterations between two gatherings of the times, which are untimed


def train(
    communicator: World,
    model: str,
    strategy: str,
    batch_per_pe: int,
    path: Path,
    report: Callable[[dict[str, Any]], None],
    iterations: int = 100,
    warmup: int = 1,
    seed: int = 0,
    fingerprint: str = "",
    command: str = "",
) -> None:
    """Run `warmup` + `iterations` iterations and write them to `path`.

    Gradients are checked against the serial ones first (up to MAX_RANKS ranks). Raises
    MeasurementError for wrong gradients or a loss that is not finite; the iterations before stay.
    """
    if batch_per_pe < 1 or iterations < 1 or warmup < 0:
        raise InputError("batch per PE and iterations must be at least 1, warm-up at least 0")
    placement = place(communicator)
    torch.set_num_threads(1)
    step = TrainingStep(model, strategy, batch_per_pe, seed, communicator)
    difference, notes = None, []
    if communicator.size == 1:
        notes.append("gradients are the serial ones: one rank")
    elif communicator.size <= MAX_RANKS:
        difference = gradient_difference(
            step.module, model, strategy, batch_per_pe, seed, communicator
        )
    else:
        notes.append(f"gradients not compared with serial ones: more than {MAX_RANKS} ranks")
    header = RunHeader(
        model=model, strategy=strategy, p=communicator.size, batch_per_pe=batch_per_pe,
        batch=batch_per_pe * communicator.size, optimizer="momentum", dtype="float32", seed=seed,
        iterations=iterations, warmup=warmup, library=communicator.library,
        hosts=placement.hosts, threads_per_rank=1, oversubscribed=placement.oversubscribed,
        cluster_fingerprint=fingerprint, started=utc_now(), versions=versions(), launch=command,
        gradient_difference=difference, allocator=placement.allocator, notes=notes,
    )  # fmt: skip
    stream: IO[str] | None = None
    if communicator.rank == 0:
        ensure_directory(path.parent)
        try:
            stream = path.open("w")
        except OSError as error:
            raise FileError(f"cannot write {path}: {error.strerror}") from error
        _write(stream, header.model_dump())
    try:
        _iterate(communicator, step, stream, report, header)
    finally:
        if stream is not None:
            stream.close()


def _iterate(
    communicator: World,
    step: TrainingStep,
    stream: IO[str] | None,
    report: Callable[[dict[str, Any]], None],
    header: RunHeader,
) -> None:
    total = header.warmup + header.iterations
    wall = 0.0
    index = 0
    communicator.barrier()
    while index < total:
        # the warm-up is a block of its own, so that the wall time holds timed iterations only
        n = header.warmup if index < header.warmup else min(BLOCK, total - index)
        start = perf_counter()
        rows = [step.iterate() for _ in range(n)]
        if index >= header.warmup:
            wall += perf_counter() - start
        everyone = communicator.gather_objects([[row, loss] for row, loss in rows])
        for offset in range(n):
            seconds = {phase: [rank[offset][0][phase] for rank in everyone] for phase in RUN_PHASES}
            loss = sum(rank[offset][1] for rank in everyone) / communicator.size
            if not math.isfinite(loss):
                raise MeasurementError(
                    f"{header.model} under {header.strategy}: the loss is {loss} at iteration "
                    f"{index + offset}; training has diverged, the iterations before are kept"
                )
            if stream is not None:
                warm = index + offset < header.warmup
                record = Iteration(index=index + offset, warmup=warm, seconds=seconds, loss=loss)
                _write(stream, record.model_dump())
        index += n
        if communicator.rank == 0:
            report({"event": "case", "label": f"{header.model} {header.strategy} p={header.p}",
                    "done": index, "of": total, "loss": loss,
                    "left_s": wall / max(index - header.warmup, 1) * (total - index)})  # fmt: skip
    peaks = communicator.gather_objects(peak_rss_bytes())
    if stream is not None:
        _write(stream, RunEnd(peak_rss_bytes=peaks, wall_seconds=wall).model_dump())


def _write(stream: IO[str], record: dict[str, Any]) -> None:
    stream.write(json.dumps(record) + "\n")
    stream.flush()
