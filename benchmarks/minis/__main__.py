"""How well calib predicts networks that it has never seen, serial and data-parallel.

`--calibrate RUN` calibrates on the ten minis (networks.py) in the run directory RUN, each measured by
its own plan. Run directories are scored: several of one machine together say what its noise is.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import get_args

from benchmarks.minis.networks import MINI, NETWORKS
from calib.calibrate import calibrate
from calib.foundation.errors import CalibError
from calib.foundation.files import ensure_directory
from calib.foundation.layers import Direction
from calib.foundation.run_files import MODELS
from calib.foundation.words import percent, with_interval
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.workload import workload
from calib.oracle.predict import project
from calib.oracle.projection import PhaseTime, Projection
from calib.planning.request import FULL, QUICK, seconds_of
from calib.predicting.file import spec_of
from calib.reports.scoring.accuracy import Accuracy
from calib.reports.scoring.causes import causes
from calib.reports.scoring.summary import noise_ceiling, summary
from calib.reports.sentences import summary_lines
from calib.reports.words import case_words
from calib.scoring.findings import Report, report_of
from calib.scoring.run import ScoredRun

BUDGET = "20m"  # some 800 layers
CONFIDENCE, MOST_SHOWN = 0.90, 6


def options(words: Sequence[str]) -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(prog="benchmarks.minis", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--calibrate", action="store_true", help="in RUN, then score it")
    parser.add_argument("--quick", action="store_true", help="as calib calibrate --quick")
    parser.add_argument("--budget", default=BUDGET, help=f"of the measurements; default {BUDGET}")
    parser.add_argument("--only", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    return parser.parse_args(words)


def traced_into(run: Path, names: Sequence[str]) -> list[str]:
    """Trace minis into a run directory; the files. Raises InputError without their libraries."""
    from calib.training.checks.own import traced  # late: it imports PyTorch

    folder, files = ensure_directory(run / MODELS), []
    for name in names:
        _, sample, loss = NETWORKS[name]
        words = f"benchmarks.minis.networks:{name}"
        path = folder / f"{name}-mini.json"
        traced(words, sample(MINI), path.stem, loss).write(path)
        files.append(str(path))
    return files


def half_width(time: PhaseTime) -> float:
    """Of the 90% interval, relative to the value."""
    low, high = time.interval(CONFIDENCE)
    return (high - low) / 2 / time.value


def explained(run: ScoredRun, of: Accuracy) -> Projection:
    """The prediction of a point with its terms."""
    model = spec_of(of.model, run.path).run_as(of.execution)
    known = Machine(run.parameters)
    return project(model, of.division, known, optimizer=of.optimizer, explain=True)


def widest_kind(run: ScoredRun, of: Accuracy, direction: Direction) -> str:
    """The kind of layer with most of the width of a forward or backward."""
    model, machine = spec_of(of.model, run.path).run_as(of.execution), Machine(run.parameters)
    active = min(of.p, run.parameters.ranks_per_node)
    costs = machine.costs(active, of.optimizer, model.execution).layers
    each = costs.each(workload(model, of.division), of.division.local_batch, direction)
    widths: defaultdict[str, float] = defaultdict(float)
    for layer, cost in zip(model.layers, each, strict=True):
        widths[layer.shape.name] += cost.high - cost.low
    kind = max(widths, key=widths.__getitem__)
    return f" ({percent(widths[kind] / sum(widths.values()))} of it {kind})"


def lines(report: Report) -> list[str]:
    """The summary, the mean width, the points with the widest intervals and why, causes of error.

    Data parallelism on one rank is serial training again: it says what the noise is, and no more.
    """
    found = [(run, of) for run in report.found for of in run.accuracies]
    points = [(run, of) for run, of in found if of.counts and (of.p > 1 or of.strategy == "serial")]
    of_all = summary([of for _, of in points])
    ceiling = noise_ceiling(of for _, of in found)
    said = summary_lines(of_all.model_copy(update={"noise_ceiling": ceiling}))
    if points:
        mean = fmean(half_width(of.total.predicted) for _, of in points)
        said += [f"Mean width of the 90% intervals: +-{percent(mean)}.", "Widest:"]
    points.sort(key=lambda point: -half_width(point[1].total.predicted))
    for run, of in points[:MOST_SHOWN]:
        time, projection = of.total.predicted, explained(run, of)
        case = case_words(of.model, of.strategy, of.layout, of.p)
        low, high = time.interval(CONFIDENCE)
        most = max(projection.terms, key=lambda term: term.time.high - term.time.low)
        ways = [way for way in get_args(Direction) if way == most.phase]
        kind = "".join(widest_kind(run, of, way) for way in ways)
        said += [
            f"  {case}: +-{percent(half_width(time))}, {with_interval(time.value, low, high, 1e3)} ms, "
            f"measured {of.total.measured.value * 1e3:.3g}; most from {most.phase}, {most.what}: "
            f"{with_interval(*most.time.numbers, 1e3)} ms{kind}"
        ]
    of_causes = causes([of for _, of in points], report.layers)
    return [*said, *(x.words for x in of_causes), *(x.line for x in report.findings.missing)]


def main(words: Sequence[str]) -> int:
    """Calibrate, if asked to, and print the scores."""
    asked = options(words)
    try:
        if asked.calibrate:
            effort = QUICK if asked.quick else replace(FULL, budget_s=seconds_of(asked.budget))
            for run in asked.runs:
                calibrate(run, effort, traced_into(run, asked.only), quiet=True)
        print("\n".join(lines(report_of(asked.runs, record=False))))
    except CalibError as error:
        print(f"minis: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
