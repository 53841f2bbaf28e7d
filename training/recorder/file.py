"""Recorded iterations, gathered from all ranks as tensors and written by rank 0."""

from __future__ import annotations

import math
import os
import platform
from collections import Counter
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist
from pydantic import BaseModel
from torch import Tensor

from calib.foundation.errors import FileError, InputError
from calib.foundation.files import ensure_directory, read_bytes, write_whole
from calib.microbench.machine.environment import environment_here
from calib.microbench.machine.placement import distinct_cores, usable_cores
from calib.microbench.memory import peak_rss_bytes
from calib.microbench.records.manifest import utc_now
from calib.training.importers.records import ImportedCase, division_of
from calib.training.run.lines import RUN_PHASES, Iteration, RunEnd, RunHeader

HOST_BYTES = 64  # the longest host name that is kept
# a rank's row of an iteration: its seconds, its loss, seconds of each phase; NaN is unknown
COLUMNS = 2 + len(RUN_PHASES)


class RecordedRanks:
    """The ranks of torch.distributed where it is initialised, else this process alone."""

    def __init__(self, device: torch.device) -> None:
        self.joined = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self.joined else 0
        self.size = dist.get_world_size() if self.joined else 1
        # NCCL takes tensors on the GPU, others tensors on the host
        on_gpu = self.joined and "nccl" in str(dist.get_backend())
        self._device = device if on_gpu else torch.device("cpu")
        self.backend = str(dist.get_backend()) if self.joined else ""

    def gather(self, mine: Tensor) -> list[Tensor]:
        """The tensors of all ranks, of one shape; collective."""
        if not self.joined:
            return [mine]
        mine = mine.to(self._device)
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(everyone, mine)
        return [tensor.cpu() for tensor in everyone]

    def numbers(self, mine: int) -> list[int]:
        """A whole number of every rank; collective."""
        return [int(x) for x in self.gather(torch.tensor([mine], dtype=torch.int64))]

    def words(self, mine: str) -> list[str]:
        """A short text of every rank; collective."""
        data = mine.encode(errors="replace")[:HOST_BYTES].ljust(HOST_BYTES, b"\0")
        found = self.gather(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return [bytes(x.tolist()).rstrip(b"\0").decode(errors="replace") for x in found]


def header_of(
    case: ImportedCase,
    ranks: RecordedRanks,
    device: torch.device,
    *,
    inner: int,
    segments: int,
    optimizer: str,
    execution: str,
    warmup: int,
    iterations: int | None,
) -> RunHeader:
    """The circumstances of a loop; collective. Raises InputError for a case that cannot be."""
    division = division_of(case, inner, segments)
    if ranks.joined and case.p != ranks.size:
        raise InputError(f"p = {case.p}, but torch.distributed has {ranks.size} ranks")
    hosts = ranks.words(platform.node())
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    gpus = ranks.words(gpu) if device.type == "cuda" else []
    notes = []
    if iterations is None:
        notes.append("how many iterations were planned is not known")
    if ranks.size < case.p:
        notes.append(f"times of 1 of {case.p} ranks")
        hosts = gpus = []
    return RunHeader(
        origin="recorded",
        model=case.model,
        division=division,
        optimizer=optimizer,
        execution=execution,
        seed=None,
        iterations=iterations or 0,
        warmup=warmup,
        library=f"torch_{ranks.backend}" if ranks.backend else "unknown",
        backend=ranks.backend,
        device=str(device.type),
        hosts=hosts,
        gpus=[name or None for name in gpus],
        environment=environment_here(
            max(Counter(hosts).values(), default=1),
            min(ranks.numbers(torch.get_num_threads())),
            min(ranks.numbers(len(distinct_cores(usable_cores())))),
        ),
        oversubscribed=max(Counter(hosts).values(), default=1) > (os.cpu_count() or 1),
        started=utc_now(),
        launch="calib_recorder",
        notes=notes,
        versions={"python": platform.python_version(), "torch": str(torch.__version__)},
    )


class RunFile:
    """The run.jsonl of a recorder: header, then iterations as they come, then the end.

    Collective except for `stop`; at any moment the file is a valid prefix of a run.
    """

    def __init__(self, path: Path, header: RunHeader, ranks: RecordedRanks) -> None:
        self.path, self.header, self.ranks = path, header, ranks
        self.written = 0
        self.wall_s = 0.0  # of the timed iterations
        self._stream: IO[str] | None = None
        problem: FileError | None = None
        if ranks.rank == 0:
            try:
                self._open()
            except FileError as error:
                problem = error
        # all ranks stop where rank 0 cannot write, or they would wait for it
        if ranks.numbers(int(problem is not None))[0]:
            raise problem or FileError(f"rank 0 cannot write {path}")

    def _open(self) -> None:
        ensure_directory(self.path.absolute().parent)
        try:
            self._stream = self.path.open("x")
        except FileExistsError as error:
            raise FileError(f"{self.path} exists; choose another or remove it") from error
        except OSError as error:
            raise FileError(f"cannot write {self.path}: {error.strerror}") from error
        self._line(self.header)
        self._stream.flush()

    def add(self, rows: Tensor) -> None:
        """Iterations [n, COLUMNS] of this rank, float64; n is the same on all ranks."""
        everyone = self.ranks.gather(rows)
        if self._stream is None:
            self.written += len(rows)
            return
        for table in zip(*(tensor.tolist() for tensor in everyone), strict=True):
            record = iteration_of(self.written, self.header.warmup, list(table))
            self.written += 1
            if not record.warmup:
                self.wall_s += table[0][0]
            self._line(record)
        self._stream.flush()

    def finish(self, rows: Tensor, end: RunEnd, notes: list[str]) -> None:
        """Write the last iterations (as far as all ranks have them) and the end.

        Without a timed iteration there is no end line: such a run is not complete.
        """
        n = min(self.ranks.numbers(len(rows)))
        if n:
            self.add(rows[:n])
        peaks = self.ranks.numbers(peak_rss_bytes())
        if self._stream is None:
            return
        self.stop()
        timed = max(self.written - self.header.warmup, 0)
        planned = self.header.iterations or timed
        header = self.header.model_copy(
            update={"iterations": planned, "notes": [*self.header.notes, *notes]}
        )
        end = end.model_copy(update={"peak_rss_bytes": peaks, "wall_seconds": self.wall_s})
        lines = read_bytes(self.path, "training run").decode().partition("\n")[2]
        last = f"{end.model_dump_json()}\n" if timed else ""
        write_whole(self.path, f"{header.model_dump_json()}\n{lines}{last}")

    def stop(self) -> None:
        """Close the file as it is."""
        if self._stream is not None:
            self._stream.close()

    def _line(self, record: BaseModel) -> None:
        assert self._stream is not None  # of rank 0
        self._stream.write(record.model_dump_json() + "\n")


def iteration_of(index: int, warmup: int, table: list[list[float]]) -> Iteration:
    """The record from each rank's row; a phase that one rank does not know is unknown."""
    losses = [row[1] for row in table if math.isfinite(row[1])]
    known = {
        name: [row[2 + place] for row in table]
        for place, name in enumerate(RUN_PHASES)
        if math.isfinite(sum(row[2 + place] for row in table))
    }
    return Iteration(
        index=index,
        warmup=index < warmup,
        first=index == 0,
        seconds=known,
        whole=[row[0] for row in table],
        loss=sum(x / len(losses) for x in losses) if losses else None,
    )
