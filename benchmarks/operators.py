"""How often the interval of an operator's price holds the time of one that no law was fitted to.

`python -m benchmarks.operators RUN` measures operators of some 85 kinds on this machine (five minutes),
unless the run directory RUN has them, and prints the coverage: a fifth of the kinds at a time is left
out in all sizes, and priced by laws of the others; then a fifth of the layers, of whose kinds others
remain.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.many_operators import cases
from calib.driver.measure import measure
from calib.driver.probe import probe
from calib.fitting.fit import fit_runs
from calib.fitting.parameters.file import LayerTime
from calib.fitting.sections.work_laws import work_models
from calib.foundation.files import ensure_directory, write_json
from calib.foundation.layers import Direction
from calib.foundation.records import Estimate
from calib.foundation.run_files import CLUSTER_FILE, PLAN_FILE, SAMPLES_FILE
from calib.foundation.statistics import median
from calib.microbench.cases import LayerCase, Plan, read_plan
from calib.microbench.records.samples import read_samples
from calib.oracle.costs.layers import LayerCosts
from calib.oracle.layout.workload import LayerPiece

BUDGET_S = 240.0
PARTS = 5
MOST_SHOWN = 6


def measured(run: Path) -> None:
    """Measure the cases in a run directory, unless they are there."""
    if (run / SAMPLES_FILE).exists():
        return
    ensure_directory(run)
    probe(run / CLUSTER_FILE, "local", 1)
    plan = Plan(cases=tuple(cases()), launches=2, budget_seconds=BUDGET_S)
    write_json(run / PLAN_FILE, plan.model_dump())
    measure(run, plan)


@dataclass(frozen=True)
class Priced:
    """A pass that the laws had not seen: whose law priced it, and its time over the price."""

    key: str
    kind: str
    law: str
    direction: Direction
    ratio: float
    low: float
    high: float
    measured_s: float

    @property
    def is_held(self) -> bool:
        """Whether the interval holds the measured time."""
        return self.low <= self.measured_s <= self.high

    @property
    def width(self) -> float:
        """The upper end over the price."""
        return self.high * self.ratio / self.measured_s


def left_out(run: Path, of_kinds: bool) -> Iterator[Priced]:
    """Every measured pass, priced by laws that did not see it.

    Of whole kinds that were left out, or of layers, of whose kind others remain.
    """
    parameters = fit_runs([run])
    cases = {case.id: case for case in read_plan(run).cases if isinstance(case, LayerCase)}
    layers = {case.key: case for case in cases.values()}
    samples = read_samples(run)
    names = sorted({time.kind if of_kinds else time.key for time in parameters.layers})
    random.Random(0).shuffle(names)
    for part in range(PARTS):
        held = set(names[part::PARTS])
        mine = [time for time in parameters.layers if {time.kind, time.key} & held]
        others = [time for time in parameters.layers if not {time.kind, time.key} & held]
        laws = work_models(others, cases, samples)
        costs = LayerCosts(parameters.model_copy(update={"layers": others, "work": laws}), 1)
        for time in mine:
            yield from _priced(time, layers[time.key], costs)


def _priced(time: LayerTime, case: LayerCase, costs: LayerCosts) -> Iterator[Priced]:
    piece = LayerPiece(case.layer, case.needs_input_grad)
    passes: list[tuple[Direction, Estimate]] = [
        ("forward", time.forward_s),
        ("backward", time.backward_s),
    ]
    for direction, of in passes:
        if of.value > 0:
            cost = costs.price(piece, case.batch, direction)
            law = cost.errors[0][0].split()[0]
            ratio = of.value / cost.seconds
            yield Priced(time.key, time.kind, law, direction, ratio, cost.low, cost.high, of.value)


def operators(run: Path) -> Iterator[str]:
    """Coverage and width by law and direction."""
    measured(run)
    for of_kinds in (True, False):
        found = list(left_out(run, of_kinds))
        what = "kinds of layers" if of_kinds else "layers, of whose kind others remain"
        number = len({of.kind if of_kinds else of.key for of in found})
        yield f"{number} {what}, a {PARTS}th left out at a time"
        for direction in ("forward", "backward"):
            mine = [of for of in found if of.direction == direction]
            for law in ("", *(sorted({of.law for of in mine}) if of_kinds else ())):
                yield _row(direction, law, [of for of in mine if law in ("", of.law)])
            worst = sorted(mine, key=lambda of: -abs(math.log(of.ratio)))[:MOST_SHOWN]
            yield "  worst: " + ", ".join(f"{of.kind} x{of.ratio:.3g}" for of in worst)


def _row(direction: str, law: str, of: Sequence[Priced]) -> str:
    held = sum(one.is_held for one in of) / len(of)
    off = median([abs(math.log(one.ratio)) for one in of])
    kinds = len({one.kind for one in of})
    return (
        f"{direction:8s} {law or 'together':10s} {len(of):3d} passes of {kinds:2d} kinds: "
        f"{100 * held:5.1f}% held, off by x{math.exp(off):.2f} (median), "
        f"interval up to x{median([one.width for one in of]):.1f} (median)"
    )


if __name__ == "__main__":
    for row in operators(Path(sys.argv[1])):
        print(row, flush=True)
