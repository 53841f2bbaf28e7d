"""Does the predicted order of SBP strategies hold? `python -m benchmarks.sbp_ranking [FOLDER]`.

As figure 4 of AutoDDL, section 3.3: collectives between four namespace hosts are calibrated, strategies
of a chain of matrix products are drawn, spread over the predicted time, and then run. Kendall's tau
between the predicted and the measured order, with what repeats allow: tau between two halves of the
rounds. FOLDER keeps the run; a calibration that is there (FOLDER/run) is taken as it is.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tests.cluster.namespaces import HOSTS, CannotBuild

from benchmarks.sbp_calibration import calibrate, cluster, fit_oversubscribed, start
from calib.foundation.errors import MeasurementError
from calib.foundation.statistics import median
from calib.oracle.costs.machine import Machine
from calib.search.links import LinkGroup, Links
from calib.search.request import Devices
from calib.training.sbp.operations import operations
from calib.training.sbp.placement import Degrees
from calib.training.sbp.worker import ChainJob, Rounds

Strategy = tuple[Degrees, ...]

MEGABITS = 400
ROWS, WIDTHS = 1024, (1024, 512, 2048, 512, 1024)
STRATEGIES, SEED, SECONDS = 24, 11, 95.0
RESAMPLES = 2000


def space(p: int, layers: int) -> list[Strategy]:
    """Every choice of p1 p2 p3 = p for every layer."""
    triples = [
        (a, b, p // a // b)
        for a in range(1, p + 1)
        for b in range(1, p + 1)
        if p % a == 0 and p // a % b == 0
    ]
    return list(itertools.product(triples, repeat=layers))


def predicted(links: Links, rows: int, widths: Sequence[int], strategy: Strategy) -> float:
    """Seconds of all collectives of an iteration, one after the other; every host has one rank."""
    return sum(
        links.cost(done.operation, done.nbytes, LinkGroup(done.group_size, 1)).seconds
        for done in operations(rows, widths, strategy, 4)
    )


def spread(times: Sequence[float], count: int, seed: int) -> list[int]:
    """Indices of `count` items: one of each equal part of the logarithm of the time, the rest anywhere.

    Drawn before anything is measured. Fastest first.
    """
    random = np.random.default_rng(seed)
    logs = np.log(np.array(times))
    bins = np.minimum(((logs - logs.min()) / (np.ptp(logs) or 1.0) * count).astype(int), count - 1)
    chosen = [int(random.choice(np.flatnonzero(bins == part))) for part in np.unique(bins)]
    others = np.setdiff1d(np.arange(len(times)), chosen)
    chosen += [int(i) for i in random.choice(others, count - len(chosen), replace=False)]
    return sorted(chosen, key=lambda i: times[i])


def tau(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau-b."""
    from scipy.stats import kendalltau

    return float(kendalltau(first, second).statistic)


def tau_interval(
    first: Sequence[float], rounds: Sequence[Sequence[float]], seed: int
) -> tuple[float, float]:
    """95% bootstrap interval of tau: strategies drawn again, and of each its rounds."""
    random = np.random.default_rng(seed)
    known, table = np.array(first), np.array(rounds)
    found = []
    for _ in range(RESAMPLES):
        items = random.integers(0, len(known), len(known))
        columns = random.integers(0, table.shape[1], table.shape[1])
        found.append(
            tau(list(known[items]), list(np.median(table[np.ix_(items, columns)], axis=1)))
        )
    low, high = np.nanquantile(found, (0.025, 0.975))
    return float(low), float(high)


def halves(rounds: Sequence[Sequence[float]]) -> float:
    """tau between the medians of the even and the odd rounds: what noise leaves of a perfect order."""
    return tau([median(each[::2]) for each in rounds], [median(each[1::2]) for each in rounds])


def swapped(first: Sequence[float], second: Sequence[float]) -> list[tuple[int, int]]:
    """Pairs whose order differs."""
    return [
        (i, j)
        for i, j in itertools.combinations(range(len(first)), 2)
        if (first[i] - first[j]) * (second[i] - second[j]) < 0
    ]


def name(strategy: Strategy) -> str:
    """p1.p2.p3 of every layer."""
    return " ".join(".".join(map(str, degrees)) for degrees in strategy)


def compare(
    what: str, guesses: Sequence[float], rounds: Sequence[Sequence[float]], names: Sequence[str]
) -> list[str]:
    """The table and figures of one quantity, as lines."""
    measured = [median(each) for each in rounds]
    order = {
        which: [sorted(values).index(v) + 1 for v in values]
        for which, values in (("p", list(guesses)), ("m", measured))
    }
    low, high = tau_interval(guesses, rounds, SEED)
    errors = [abs(g - m) / m for g, m in zip(guesses, measured, strict=True)]
    lines = [
        f"{what}: {len(names)} strategies, {len(rounds[0])} rounds",
        "| strategy | predicted ms | measured ms | quartiles | error | rank predicted | measured |",
        "|---|---|---|---|---|---|---|",
    ]
    for i, label in enumerate(names):
        one, three = np.quantile(rounds[i], (0.25, 0.75)) * 1e3
        lines.append(
            f"| {label} | {guesses[i] * 1e3:.1f} | {measured[i] * 1e3:.1f} | {one:.1f} to {three:.1f} "
            f"| {guesses[i] / measured[i] - 1:+.1%} | {order['p'][i]} | {order['m'][i]} |"
        )
    lines.append(
        f"Kendall's tau {tau(guesses, measured):.3f} [{low:.3f}, {high:.3f}]; between halves of the "
        f"rounds {halves(rounds):.3f}; relative error mean {np.mean(errors):.1%}, "
        f"worst {max(errors):.1%}"
    )
    for i, j in swapped(guesses, measured):
        lines.append(
            f"swapped: {names[i]} and {names[j]}: predicted {guesses[j] / guesses[i] - 1:+.1%}, "
            f"measured {measured[j] / measured[i] - 1:+.1%} apart"
        )
    return lines


def ranking(folder: Path, seconds: float = SECONDS) -> list[str]:
    """Calibrate, draw, measure, compare. Raises CannotBuild, MeasurementError."""
    with cluster(folder, MEGABITS) as built:
        run = folder / "run"
        parameters = fit_oversubscribed(run) if run.exists() else calibrate(built, run)
        links = Links(Machine(parameters), Devices(len(HOSTS), 1), "measured")
        every = space(len(HOSTS), len(WIDTHS) - 1)
        times = [predicted(links, ROWS, WIDTHS, strategy) for strategy in every]
        chosen = spread(times, STRATEGIES, SEED)
        job = ChainJob(
            rows=ROWS,
            widths=WIDTHS,
            strategies=tuple(every[i] for i in chosen),
            seconds=seconds,
            seed=SEED,
        )
        (folder / "job.json").write_text(job.model_dump_json())
        start(
            built,
            [
                "-m",
                "calib.training.sbp.worker",
                str(folder / "job.json"),
                str(folder / "rounds.json"),
            ],
        )
    return report(
        job,
        Rounds.model_validate_json((folder / "rounds.json").read_text()),
        [times[i] for i in chosen],
    )


def report(job: ChainJob, rounds: Rounds, guesses: Sequence[float]) -> list[str]:
    """All lines. Raises MeasurementError where other collectives were done than were predicted."""
    for strategy, did in zip(job.strategies, rounds.operations, strict=True):
        if did != operations(job.rows, job.widths, strategy, 4):
            raise MeasurementError(f"{name(strategy)} did other collectives than were predicted")
    names = [name(strategy) for strategy in job.strategies]
    flops = sum(
        (6 if number else 4) * job.rows * k * n
        for number, (k, n) in enumerate(itertools.pairwise(job.widths))
    ) / len(HOSTS)
    products = flops * rounds.product_s_per_flop
    return [
        f"{job.rows} x {job.widths}, float32, {len(HOSTS)} hosts, {MEGABITS} Mbit/s, seed {job.seed}",
        *compare("inside the collectives", guesses, rounds.collectives_s, names),
        *compare("communication with packing", guesses, rounds.communication_s, names),
        *compare("iteration", [g + products for g in guesses], rounds.iteration_s, names),
    ]


def main(words: list[str]) -> int:
    """Print the lines, or why there are none."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(words[0]) if words else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            print("\n".join(ranking(folder)))
        except CannotBuild as reason:
            print(f"skipped: no cluster of namespaces: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
