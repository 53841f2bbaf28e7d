"""Imported iterations as TrainingRun records; what a file does not say stays unknown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from calib.foundation.division import STRATEGIES, Division, traits_of
from calib.foundation.errors import FileError, InputError
from calib.foundation.files import write_whole
from calib.foundation.quantities import possible
from calib.training.run.lines import PRINTED, RUN_PHASES, Iteration, RunEnd, RunHeader
from calib.training.run.record import TrainingRun

UNKNOWN = "unknown"
# other names of the oracle's strategies
SYNONYMS = {
    "ddp": "data",
    "dp": "data",
    "data-parallel": "data",
    "data parallel": "data",
    "dataparallel": "data",
    "distributeddataparallel": "data",
    "horovod": "data",
    "fsdp": "fully_sharded",
    "fsdp2": "fully_sharded",
    "zero-3": "fully_sharded",
    "fullyshardeddataparallel": "fully_sharded",
    "ulysses": "sequence",
    "deepspeed-ulysses": "sequence",
    "single": "serial",
    "none": "serial",
    "sequential": "serial",
    "pp": "pipeline",
    "gpipe": "pipeline",
    "pipeline-parallel": "pipeline",
    "data-filter": "data+filter",
    "filter+data": "data+filter",
    "data-spatial": "data+spatial",
    "spatial+data": "data+spatial",
}
# phases that a strategy never has (training/strategies/)
ABSENT = {
    "serial": ("halo", "layerwise", "pack", "exchange", "unpack"),
    "data": ("halo", "layerwise"),
    "fully_sharded": ("halo", "exchange"),
    "filter": ("halo",),
    "channel": ("halo",),
    "tensor": ("halo",),
    "sequence": ("halo",),
    "pipeline": ("halo", "pack", "exchange", "unpack"),
}


@dataclass(frozen=True)
class ImportedCase:
    """What was trained and how: `batch` is the global batch."""

    model: str
    strategy: str
    p: int
    batch: int


@dataclass(frozen=True)
class Circumstances:
    """What is known of a run beside its case, or UNKNOWN."""

    optimizer: str = UNKNOWN
    execution: str = UNKNOWN
    library: str = UNKNOWN
    backend: str = ""
    device: str = UNKNOWN
    inner: int = 1
    segments: int = 1
    started: str = UNKNOWN
    hosts: tuple[str, ...] = ()
    gpus: tuple[str | None, ...] = ()
    source: str = ""


@dataclass(slots=True)
class TimedIteration:
    """One iteration on the ranks with times: seconds of each, `whole` and of the known `phases`."""

    index: int
    whole: list[float]
    phases: dict[str, list[float]] = field(default_factory=dict)
    warmup: bool = False
    loss: float | None = None


def short(value: object) -> str:
    """A value as an error line repeats it: 40 characters at most."""
    text = repr(value[:41] if isinstance(value, str) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def strategy_of(word: str) -> str:
    """The oracle's name of a strategy. Raises InputError with the known ones."""
    lower = word.strip().lower().replace("_", "-")
    name = SYNONYMS.get(lower, lower)
    if name not in STRATEGIES:
        raise InputError(f"unknown strategy {short(word)}; known: {', '.join(STRATEGIES)}")
    return name


def absent_phases(case: ImportedCase) -> tuple[str, ...]:
    """The phases that a run of the case spends no time in."""
    return ABSENT["serial"] if case.p == 1 else ABSENT.get(case.strategy, ())


def division_of(case: ImportedCase, inner: int, segments: int) -> Division:
    """How a case is divided; p2 and micro-batches are ignored where its strategy has none.

    Raises InputError, one line, for a case that is impossible for any model.
    """
    if not case.model or not case.model.isprintable():
        raise InputError(f"{short(case.model)} is not a model name")
    traits = traits_of(case.strategy)
    if traits.hybrid and inner == 1:
        raise InputError(f"{case.strategy} needs p2, ranks that share their samples", wants="inner")
    found = Division(
        case.strategy,
        case.p,
        case.batch,
        inner if traits.hybrid else 1,
        segments if traits.stages else 1,
    )
    if found.faults:
        raise InputError(f"{case.model[:40]}: {found.faults[0]}")
    return found


def iteration_of(timed: TimedIteration) -> Iteration:
    """The record of an iteration.

    Where the named phases fill the iteration (to its printed digits), the others took no time; where
    they do not, the others are unknown.
    """
    ranks = range(len(timed.whole))
    sums = [sum(times[rank] for times in timed.phases.values()) for rank in ranks]
    seconds = {name: list(timed.phases[name]) for name in RUN_PHASES if name in timed.phases}
    whole: list[float] | None = list(timed.whole)
    if all(of >= total * (1 - PRINTED) for of, total in zip(sums, timed.whole, strict=True)):
        seconds = {name: seconds.get(name, [0.0] * len(timed.whole)) for name in RUN_PHASES}
        # added up in the order in which Iteration does
        added = [sum(seconds[name][rank] for name in RUN_PHASES) for rank in ranks]
        whole = None if added == whole else whole
    return Iteration(
        index=timed.index, warmup=timed.warmup, seconds=seconds, whole=whole, loss=timed.loss
    )


def run_of(
    case: ImportedCase,
    iterations: Sequence[TimedIteration],
    about: Circumstances,
    notes: Sequence[str] = (),
) -> TrainingRun:
    """An imported run, complete. Raises InputError where no iteration is timed."""
    name = f"{case.model} {case.strategy} p={case.p}"
    timed = [iteration for iteration in iterations if not iteration.warmup]
    unknown = [] if about.hosts else ["hosts, threads and whether ranks shared cores are not known"]
    with possible(name):
        records = [iteration_of(iteration) for iteration in iterations]
        if not timed:
            raise InputError(f"{name}: every iteration is a warm-up")
        header = RunHeader(
            origin="imported",
            model=case.model,
            division=division_of(case, about.inner, about.segments),
            optimizer=about.optimizer,
            execution=about.execution,
            seed=None,
            iterations=len(timed),
            warmup=len(records) - len(timed),
            library=about.library,
            backend=about.backend,
            device=about.device,
            hosts=list(about.hosts),
            gpus=list(about.gpus),
            oversubscribed=False,
            started=about.started,
            launch=about.source,
            notes=[*notes, *unknown],
        )
        end = RunEnd(peak_rss_bytes=[], wall_seconds=sum(x.whole[0] for x in timed))
        return TrainingRun(header=header, iterations=records, end=end)


def text_of(run: TrainingRun) -> str:
    """The lines of a run.jsonl."""
    records: list[BaseModel] = [run.header, *run.iterations, *([run.end] if run.end else [])]
    return "".join(json.dumps(record.model_dump()) + "\n" for record in records)


def paths_of(runs: Sequence[TrainingRun], output: Path, name: str = "") -> list[Path]:
    """Where to write each run: `output` itself if it ends in .jsonl, else files in that directory.

    Raises InputError for several runs in one file, FileError for a file that exists.
    """
    if output.suffix == ".jsonl":
        if len(runs) > 1:
            cases = ", ".join(f"{x.header.model} {x.header.strategy} p={x.header.p}" for x in runs)
            raise InputError(f"{len(runs)} runs ({cases}) do not fit one file; name a directory")
        paths = [output]
    else:
        paths = []
        for run in runs:
            head = run.header
            stem = f"{name or head.model}-{head.strategy}-p{head.p}-b{head.division.batch}"
            stem = "".join(c if c.isalnum() or c in "+-._" else "-" for c in stem).lstrip(".")[:150]
            free, number = stem, 2
            while output / f"{free}.jsonl" in paths:
                free, number = f"{stem}-{number}", number + 1
            paths.append(output / f"{free}.jsonl")
    for path in paths:
        if path.exists():
            raise FileError(f"{path} exists; choose another")
    return paths


def write_runs(runs: Sequence[TrainingRun], paths: Sequence[Path]) -> None:
    """Write each run whole. Raises FileError."""
    for run, path in zip(runs, paths, strict=True):
        write_whole(path, text_of(run))
