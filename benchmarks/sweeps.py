"""Sweeps that fits are scored on: those of the published logs, and made ones whose law is known."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calib.foundation.arrays import Floats
from calib.foundation.errors import FileError
from calib.microbench.importers import read_file
from calib.microbench.importers.said import Flags
from calib.microbench.importers.table import Block

if TYPE_CHECKING:
    from numpy.typing import NDArray


DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
LEAST_SIZES = 5
# what logs that do not say it are taken to be; no score depends on it
UNSAID = Flags(ranks=2, nodes=2)


@dataclass(frozen=True)
class Sweep:
    """One operation over the sizes of one log: bytes [n] rising, median seconds [n]."""

    name: str
    operation: str
    ranks: int
    nodes: int
    nbytes: Floats
    seconds: Floats


def every_log() -> list[Path]:
    """Every file in the folders of NCCL and OSU logs of ../shared/data."""
    return [
        path
        for folder in ("nccl-tests", "osu")
        for path in sorted((DATA / folder).glob("*"))
        if path.is_file()
    ]


def published(paths: Iterable[Path]) -> list[Sweep]:
    """Every sweep of five sizes or more, out of place, in these logs."""
    return [sweep for path in paths for sweep in _sweeps(path)]


def _sweeps(path: Path) -> list[Sweep]:
    try:
        imported = read_file(path, Flags())[1]
        if not imported.rows:
            imported = read_file(path, UNSAID)[1]
    except FileError:
        return []
    times: dict[tuple[str, int, int], dict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for block in imported.blocks:
        mine = _out_of_place(block)
        label = block.operation + (f" x{block.groups}" if block.groups > 1 else "")
        by_size = times[label, block.ranks, block.nodes]
        for m, t in zip(block.nbytes[mine].tolist(), block.seconds[mine].tolist(), strict=True):
            by_size[m].append(t)
    return [
        Sweep(
            f"{path.stem} {label}",
            label,
            ranks,
            nodes,
            np.array(sorted(by_size), dtype=float),
            np.array([np.median(by_size[m]) for m in sorted(by_size)]),
        )
        for (label, ranks, nodes), by_size in times.items()
        if len(by_size) >= LEAST_SIZES
    ]


def _out_of_place(block: Block) -> NDArray[np.bool_]:
    """Which rows [n] are messages that hold something, out of place."""
    plain = np.array([variant.mode != "in_place" for variant in block.variants])
    result: NDArray[np.bool_] = plain[block.variant] & (block.nbytes > 0)
    return result


def vtrain(ranks: int) -> Sweep:
    """NCCL allreduce on 2 or 4 A100, 1,024 sizes from 1 MiB to 1 GiB; the log is in ns."""
    with (DATA / "vtrain" / f"a100_allreduce_{ranks}gpu.csv").open() as stream:
        rows = list(csv.reader(stream))[1:]
    return Sweep(
        f"vtrain {ranks}",
        "allreduce",
        ranks,
        1,
        np.array([float(row[0]) for row in rows]),
        np.array([1e-9 * float(row[3]) for row in rows]),
    )


# of the made sweeps: three pieces, with a jump at 16 KiB and another at 1 MiB
INTERCEPTS = np.array([5e-6, 20e-6, 1e-4])
SLOPES = np.array([2e-10, 1e-10, 8e-11])
BORDERS = np.array([2.0**14, 2.0**20])
FIRST, LAST = 3.0, 26.0  # powers of two
NOISES = ("repetitions 5% slower", "5% of repetitions up to 3 times as slow")


def made_sizes(n: int) -> Floats:
    """n sizes [n] in geometric steps from 8 B to 64 MiB."""
    result: Floats = np.unique(np.round(2.0 ** np.linspace(FIRST, LAST, n)))
    return result


def made_law(nbytes: Floats) -> Floats:
    """Noiseless seconds [n] of the made sweeps."""
    piece = np.searchsorted(BORDERS, nbytes, side="right")
    result: Floats = INTERCEPTS[piece] + SLOPES[piece] * nbytes
    return result


def noise(generator: np.random.Generator, n: int, kind: str) -> Floats:
    """Factors [n] of repetitions: 2% normal noise, times one of the two readings of 5% one-sided.

    NOISES[0]: every repetition is slower, by 5% on average (exponential). NOISES[1]: 5% of them are
    delayed, evenly up to 3 times.
    """
    both = 1.0 + 0.02 * generator.standard_normal(n)
    if kind == NOISES[0]:
        result: Floats = both * (1.0 + generator.exponential(0.05, n))
        return result
    late = generator.random(n) < 0.05
    result = both * np.where(late, 1.0 + 2.0 * generator.random(n), 1.0)
    return result


def median_noise(kind: str) -> float:
    """Median of `noise`, of 2,000,000 draws: the law of the typical time is the law times this."""
    return float(np.median(noise(np.random.default_rng(1), 2_000_000, kind)))
