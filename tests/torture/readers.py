"""Who reads which file, and with what its file is mutated: one line for each reader of calib."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.helpers import mutations as by

Mutate = Callable[[bytes, Random], bytes]
JSON, JSONL, TEXT, TOML = map(by.of_text, (by.document, by.lines_of_json, by.text, by.toml))


class Reader(NamedTuple):
    """`files` (a pattern in the seeds) of which one is mutated; `lines` of which one is run.

    `needs`: what of the seeds it reads beside. `writes`: what a run that ends well may change.
    `exits`: its documented exit codes beside 0 and 2. `weight`: how often it is drawn.
    """

    files: str
    mutate: Mutate
    lines: tuple[str, ...]
    needs: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    exits: tuple[int, ...] = ()
    weight: int = 4


MODEL = "--model model.json --batch-per-rank 8"
SEARCH = "search --model {} --nominal p100 --cluster 1x4 --batch 64 --budget 1 --json --space"
IN_RUN = ("fit run -o out/p.json", "compare run again --json", "fit run again -o out/p.json")
OF_NIGHT = (
    "report night --no-history --json -o out/page.html",
    "report night --no-history -o out/page.html --csv out/r.csv --junit out/r.xml --markdown out/r.md",
)
LOGS = (
    "import {} -o out/run --operation allreduce --ranks 4 --nodes 1 --device-name X",
    "import {} -o out/run --ranks 4 --json",
)
TRACE = (
    "import-run {} -o out/run.jsonl --model m --strategy serial --batch 8 --json",
    "import-run {} -o out/run.jsonl --model m --strategy data --batch 8 -p 2",
)
EXPLAIN = ("explain {}", "explain {} --json", "explain {} --timeline out/timeline.json")
REPLAY = ("replay runs.csv --json", "replay runs.csv --authors", "replay runs.csv --authors --json")
TABLES = ("runs.csv", "abci_alpha_beta_used.csv", "abci_single_gpu.csv")

READERS = (
    Reader(
        "parameters.json",
        JSON,
        (
            "show {}",
            "show {} --json",
            "check {}",
            "check {} --json",
            "diff {} other.json",
            "diff other.json {} --json",
            "parameters validate {}",
            "parameters validate {} --json",
            "parameters merge {} other.json -o out/m.json --prefer last",
            f"predict --parameters {{}} {MODEL} --strategy all -p 1,2,4,8 --json",
            f"predict --parameters {{}} {MODEL} --strategy data -p 4 --explain",
            f"predict --parameters {{}} {MODEL} --strategy all -p 2,16 --form paper",
            "predict --parameters {} --model alexnet-mini --strategy all -p 4 --json",
            "sweep --parameters {} --models model.json -p 1:64 --batch-per-rank 8 -o out/s.csv",
            "export {} --to all -o out",
            "export {} --to all -o out --json",
            "search --parameters {} --model model.json --space layerwise --batch 8 --budget 1",
            "search --parameters {} --model model.json --space pipeline --batch 8 --budget 1 --json",
            "search --parameters {} --model model.json --space exchange --batch 8 --budget 1 --json",
        ),
        ("other.json", "model.json"),
        exits=(1,),
        weight=14,
    ),
    Reader(
        "model.json",
        JSON,
        (
            "model show {}",
            "model show {} --json",
            "predict --parameters parameters.json --model {} --batch-per-rank 8 --strategy all -p 1,4 "
            "--json",
            "predict --parameters parameters.json --model {} --batch 64 --strategy all -p 4 --form "
            "paper",
            *(f"{SEARCH} {space}" for space in ("layerwise", "sbp", "pipeline", "exchange")),
        ),
        ("parameters.json",),
        weight=8,
    ),
    Reader("graph.txt", TEXT, (f"{SEARCH} pipeline",)),
    Reader("alexnet.graph.txt", TEXT, (f"{SEARCH} pipeline",), weight=1),
    Reader("plan.toml", TOML, ("plan --plan {} --cluster run/cluster.json --json",), ("run",)),
    Reader(
        "run/cluster.json",
        JSON,
        (
            *IN_RUN,
            "plan --cluster {} --models alexnet-mini -p 1 --json",
            "export parameters.json --to simgrid --cluster {} -o out/x.xml",
        ),
        ("run", "again", "parameters.json"),
    ),
    Reader("run/plan.json", JSON, IN_RUN, ("run", "again")),
    Reader("run/manifest.json", JSON, IN_RUN, ("run", "again")),
    Reader("run/samples.parquet", by.parquet, IN_RUN, ("run", "again"), weight=8),
    Reader(
        "parts/samples.parts/*.parquet",
        by.parquet,
        ("fit parts -o out/p.json",),
        ("parts",),
        ("parts/*",),
        weight=8,
    ),
    Reader(
        "parts/manifest.json",
        JSON,
        ("fit parts -o out/p.json",),
        ("parts",),
        ("parts/*",),
        weight=1,
    ),
    Reader("night/predictions.json", JSON, OF_NIGHT, ("night",)),
    Reader("night/night.json", JSON, OF_NIGHT, ("night",)),
    Reader("night/parameters.json", JSON, OF_NIGHT, ("night",), weight=2),
    Reader("night/c*.json", JSON, OF_NIGHT, ("night",), weight=2),
    Reader("night/training/*.jsonl", JSONL, OF_NIGHT, ("night",), weight=8),
    Reader(
        "calib.db",
        by.database,
        (
            "history --history {} --json",
            "history --history {}",
            "history --history {} --csv -",
            "history --history {} --openmetrics -",
            "history --history {} --since 2026-11-03",
            "report night --history {} --json -o out/page.html",
        ),
        ("night",),
        ("calib.db",),
        weight=14,
    ),
    Reader("found.json", JSON, ("train --plan {} -p 2 -o out",), ("model.json",), weight=1),
    *(Reader(f"{name}.log", TEXT, LOGS, weight=1) for name in ("nccl", "osu", "imb", "published")),
    Reader("json.log", JSON, LOGS, weight=2),
    Reader("rows.csv", TEXT, ("import-run {} -o out --json", "import-run {} -o out")),
    Reader("rows.jsonl", JSONL, ("import-run {} -o out --json",), weight=2),
    Reader("trace.json", JSON, TRACE),
    Reader("trace.json.gz", partial(by.gzipped, inside=by.document), TRACE, weight=2),
    Reader("traced.json", JSON, EXPLAIN, exits=(1,)),
    *(Reader(name, TEXT, REPLAY, TABLES, weight=2) for name in TABLES),
    Reader("fig2.csv", TEXT, ("replay fig2.csv --json",), TABLES, weight=1),
    Reader("trainings.csv", TEXT, ("replay {} --logs nccl.log --json",), ("nccl.log",), weight=1),
)


class Input(NamedTuple):
    """One input, which its seed and number tell: a file of the seeds, mutated, and a command line."""

    reader: Reader
    file: str
    content: bytes | None  # None: something else is in its place
    dice: Random
    line: tuple[str, ...]


def drawn(seed: str, number: int, seeds: Path) -> Input:
    """The input of that number; the same for the same seed and seeds."""
    dice = Random(f"{seed} {number}")
    there = [reader for reader in READERS if any(seeds.glob(reader.files))]
    (reader,) = dice.choices(there, [reader.weight for reader in there])
    path = dice.choice(sorted(seeds.glob(reader.files)))
    file = str(path.relative_to(seeds))
    line = dice.choice(reader.lines).format(file)
    content = None if dice.random() < 0.01 else reader.mutate(path.read_bytes(), dice)
    return Input(reader, file, content, dice, tuple(line.split(" ")))


def laid_out(one: Input, seeds: Path, to: Path) -> None:
    """The mutated file and what is read beside it, in a new directory."""
    to.mkdir(parents=True)
    for name in {*one.reader.needs, one.file}:
        source, target = seeds / name, to / name
        if source.is_dir():
            by.copied(source, target)
        elif source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    if one.content is None:
        by.in_place_of(to / one.file, one.dice)
    else:
        (to / one.file).write_bytes(one.content)
