"""Fits of collectives: errors per published log, against pycewise, of many rows, and coverage.

`python -m benchmarks.fitting coverage` prints the coverage over all seeds (minutes), `outliers` how many
planted outliers move other sizes, `pycewise` its slowest mode too; `make bench` prints the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.coverage import coverage
from benchmarks.sweeps import (
    DATA,
    NOISES,
    Sweep,
    every_log,
    made_law,
    made_sizes,
    noise,
    published,
    vtrain,
)
from calib.fitting.estimators.collectives.segmented_hockney import SegmentedHockney
from calib.fitting.regression import hockney_line
from calib.fitting.sections.collectives import collective_fits
from calib.foundation.arrays import Floats
from calib.foundation.run_files import SAMPLES_FILE
from calib.microbench.records.samples import Samples, make_table, read_samples, write_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from calib.fitting.parameters.collectives import CollectiveFit


ROWS = 100_000
SEEDS = 500
PLANTED = 20.0  # times too slow
MOVED = 0.05
DENSE_SIZES = 1000


@dataclass(frozen=True)
class Scores:
    """Mean relative errors of one sweep: of fits to all its sizes, and to every second one.

    `ends` is the line of alpha and beta. `left_out` and `interpolated` are of the sizes between every
    second one: by the law that predictions take, and straight in log-log between neighbours.
    """

    name: str
    operation: str
    sizes: int
    pieces: int
    line: float
    ends: float
    two: float
    chosen: float
    left_out: float
    interpolated: float


def scores(sweep: Sweep) -> Scores:
    """The scores of one sweep."""
    m, t = sweep.nbytes, sweep.seconds
    law, (intercept, slope) = law_of(m, t), hockney_line(m, t)
    others = fit_of(m[::2], t[::2])
    inside = slice(1, len(m) - 1 + len(m) % 2, 2)
    between = np.interp(np.log(m[inside]), np.log(m[::2]), np.log(t[::2]))
    return Scores(
        name=sweep.name,
        operation=sweep.operation,
        sizes=len(m),
        pieces=len(law.pieces_),
        line=error(intercept + slope * m, t),
        ends=fit_of(m, t).mean_relative_error,
        two=error(law_of(m, t, 2).predict(m), t),
        chosen=error(law.predict(m), t),
        left_out=error(np.array([others.seconds(size) for size in m[inside]]), t[inside]),
        interpolated=error(np.exp(between), t[inside]),
    )


def law_of(m: Floats, t: Floats, most: int = 6) -> SegmentedHockney:
    """The pieces through one time per size, as `calib fit` has them."""
    return SegmentedHockney(max_pieces=most, falls=True, n_bootstraps=2).fit(m, t)


def fit_of(m: Floats, t: Floats) -> CollectiveFit:
    """The direct law of one time per size, as `calib fit` has it."""
    (fit,), _ = collective_fits(Samples(rows_of("allreduce", m, t)), 0)
    return fit


def error(predicted: Floats, seconds: Floats) -> float:
    """Mean |predicted / t - 1|."""
    return float(np.mean(np.abs(predicted / seconds - 1.0)))


def moved(sweep: Sweep) -> Floats:
    """By how much [n] the size that moves most moves when another is PLANTED times too slow."""
    m, t = sweep.nbytes, sweep.seconds
    base = law_of(m, t).predict(m)
    result = np.empty(len(m))
    for index in range(len(m)):
        planted = t.copy()
        planted[index] *= PLANTED
        shift = np.abs(law_of(m, planted).predict(m) / base - 1.0)
        shift[index] = 0.0
        result[index] = shift.max()
    return result


def fitting() -> list[str]:
    """Everything but what takes minutes."""
    return [*logs(), *against_pycewise(), many_rows()]


def logs() -> list[str]:
    """One row per published sweep, and their means."""
    if not DATA.is_dir():
        return [f"published logs: {DATA} is not here"]
    found = [scores(sweep) for sweep in [*published(every_log()), vtrain(2), vtrain(4)]]
    head = (
        f"{'mean relative error, %':70s} sizes pieces  line  ends   two  chosen  left out  log-log"
    )
    rows = [
        f"{each.name:70s} {each.sizes:5d} {each.pieces:6d} {100 * each.line:5.1f} "
        f"{100 * each.ends:5.1f} {100 * each.two:5.1f} {100 * each.chosen:7.2f} "
        f"{100 * each.left_out:9.2f} {100 * each.interpolated:8.2f}"
        for each in found
    ]
    logs_only = [each for each in found if "excerpt" not in each.name]
    return [head, *rows, _mean("mean", found), _mean("mean without the excerpt", logs_only)]


def _mean(title: str, found: Sequence[Scores]) -> str:
    line, ends, two, chosen, left_out, interpolated = (
        100 * float(np.mean([getattr(each, name) for each in found]))
        for name in ("line", "ends", "two", "chosen", "left_out", "interpolated")
    )
    means = f"{line:5.1f} {ends:5.1f} {two:5.1f} {chosen:7.2f} {left_out:9.2f} {interpolated:8.2f}"
    return f"{title:83s} {means}"


def dense_sweep(n: int = DENSE_SIZES) -> tuple[Floats, Floats]:
    """(bytes, seconds) of a made sweep of about n sizes, one noisy time of each."""
    m = made_sizes(n)
    return m, made_law(m) * noise(np.random.default_rng(0), len(m), NOISES[0])


def against_pycewise(modes: Sequence[str] = ("BIC", "weighted")) -> list[str]:
    """Seconds, error and pieces beside pycewise (PyPI) on sweeps of about 1,000 sizes.

    BIC is its default, of absolute errors; weighted and log are its modes for relative ones.
    """
    if find_spec("pycewise") is None:
        return ["pycewise is not installed: nothing to compare with (pip install pycewise)"]
    pycewise = import_module("pycewise")
    sweeps = [("made", *dense_sweep())]
    if DATA.is_dir():
        sweeps.append(("vtrain 2", vtrain(2).nbytes, vtrain(2).seconds))
    rows = []
    for name, m, t in sweeps:
        ours, law = timed(SegmentedHockney(falls=True).fit, m, t)
        rows.append(
            f"{name}, {len(m)} sizes: ours {ours:.3f} s, {100 * error(law.predict(m), t):.2f}% in "
            f"{len(law.pieces_)} pieces"
        )
        for mode in modes:
            theirs, other = timed(pycewise.compute_regression, m.tolist(), t.tolist(), mode=mode)
            flat = other.flatify()
            found = np.array([float(flat.predict(size)) for size in m.tolist()])
            rows.append(
                f"  pycewise, {mode}: {theirs:.1f} s, {theirs / ours:.0f} times as long, "
                f"{100 * error(found, t):.2f}% in {len(flat.segments)} pieces"
            )
    return rows


def timed(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[float, Any]:
    """(seconds, result) of one call."""
    start = perf_counter()
    result = function(*arguments, **options)
    return perf_counter() - start, result


def many_rows(n: int = ROWS) -> str:
    """Reading n rows of a samples file and fitting their collectives."""
    sizes = made_sizes(47)
    operations = ("allreduce", "allgather", "reduce_scatter", "p2p")
    each = -(-n // (len(sizes) * len(operations)))
    with TemporaryDirectory() as folder:
        tables = [_made_table(of, sizes, each, number) for number, of in enumerate(operations)]
        write_table(Path(folder) / SAMPLES_FILE, pa.concat_tables(tables))
        reading, samples = timed(read_samples, Path(folder))
    fit, (fits, _) = timed(collective_fits, samples, 0)
    return (
        f"{len(samples):,} rows, {len(fits)} operations of {len(sizes)} sizes: read in {reading:.1f} s, "
        f"fitted in {fit:.1f} s (target: together under 5 s)"
    )


def _made_table(operation: str, sizes: Floats, each: int, number: int) -> pa.Table:
    """`each` rows of every size in four launches."""
    index = np.arange(each * len(sizes))
    factors = noise(np.random.default_rng(number), len(index), NOISES[1])
    seconds = np.repeat(made_law(sizes), each) * factors
    return rows_of(operation, sizes[index // each], seconds, index % 4, index % each // 4)


def rows_of(
    operation: str,
    nbytes: Floats,
    seconds: Floats,
    launch: NDArray[np.int64] | int = 0,
    repetition: NDArray[np.int64] | int = 0,
) -> pa.Table:
    """Rows [n] of an operation of MPI between two ranks of a node."""
    return make_table(
        len(nbytes),
        case_id=pa.array([f"{operation}{size:.0f}" for size in nbytes.tolist()]),
        kind="collective",
        operation=operation,
        key="",
        library="mpi",
        level="node",
        ranks=2,
        active_ranks=2,
        nbytes=nbytes.astype(int),
        launch=launch,
        repetition=repetition,
        calls=1,
        seconds=seconds,
        skew_seconds=0.0,
        rank_seconds=pa.array(np.stack([seconds, seconds], axis=1).tolist()),
        started_unix_s=0.0,
    )


def outliers() -> list[str]:
    """How many planted outliers move another size by over 5%, per published sweep."""
    rows, cases, bad = [], 0, 0
    for sweep in published(every_log()):
        shifts = moved(sweep)
        over = int((shifts > MOVED).sum())
        cases, bad = cases + len(shifts), bad + over
        if over:
            rows.append(
                f"{sweep.name:70s} {over} of {len(shifts)}, {100 * shifts.max():.0f}% at most"
            )
    return [
        f"one size {PLANTED:.0f} times too slow moves another by over {100 * MOVED:.0f}%:",
        *rows,
        f"together {bad} of {cases} ({100 * (1 - bad / cases):.1f}% do not)",
    ]


def slow(what: str, *rest: str) -> list[str]:
    """One of the tables that take minutes, by name."""
    if what == "coverage":
        return coverage(int(rest[0]) if rest else SEEDS)
    return outliers() if what == "outliers" else against_pycewise(("BIC", "weighted", "log"))


if __name__ == "__main__":
    print("\n".join(slow(*sys.argv[1:]) if sys.argv[1:] else fitting()))
