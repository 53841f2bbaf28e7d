"""Run the benchmarks and print their ratios."""

from __future__ import annotations

import json
import sys

from benchmarks.agreement import agreement
from benchmarks.coverage import coverage as pieces_coverage
from benchmarks.cut_sweeps import cut_sweeps
from benchmarks.drift import drift
from benchmarks.fitting import fitting
from benchmarks.importing import importing
from benchmarks.launches import coverage as launches_coverage
from benchmarks.launches import main as left_out
from benchmarks.layouts import layouts
from benchmarks.measurement_loop import measurement_loop
from benchmarks.minis.__main__ import main as minis
from benchmarks.oracle import oracle
from benchmarks.pipelines import pipelines
from benchmarks.plain import plain_programs
from benchmarks.reports import reports
from benchmarks.searching import layerwise
from benchmarks.start_up import start_up
from benchmarks.training import training
from benchmarks.twin.bench import twin


def coverage() -> list[str]:
    """How often intervals hold: of the pieces of a collective, and across launches."""
    return [*pieces_coverage(), *launches_coverage()]


BENCHMARKS = {
    "start_up": start_up,
    "measurement_loop": measurement_loop,
    "agreement": agreement,
    "coverage": coverage,
    "cut_sweeps": cut_sweeps,
    "drift": drift,
    "fitting": fitting,
    "importing": importing,
    "layerwise": layerwise,
    "layouts": layouts,
    "oracle": oracle,
    "pipelines": pipelines,
    "plain_programs": plain_programs,
    "reports": reports,
    "training": training,
    "twin": twin,
}


def main(words: list[str]) -> int:
    """Print one block per benchmark (all, or those named) as it ends, or a document with --json.

    `minis RUN...` scores run directories (benchmarks/minis/__main__.py);
    `coverage RUN...` leaves their launches out (benchmarks/launches.py).
    """
    if words[:1] == ["coverage"] and words[1:2] not in ([], ["--json"]):
        return left_out(words[1:])
    if words[:1] == ["minis"]:
        return minis(words[1:])
    named = [word for word in words if word != "--json"] or list(BENCHMARKS)
    unknown = [word for word in named if word not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; known: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    results = {}
    for name in named:
        results[name] = BENCHMARKS[name]()
        if "--json" not in words:
            print("\n  ".join([name, *results[name]]), flush=True)
    if "--json" in words:
        print(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
