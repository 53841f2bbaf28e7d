"""Run every benchmark and print its ratios."""

from __future__ import annotations

import json
import sys

from benchmarks.agreement import agreement
from benchmarks.fitting import fitting
from benchmarks.importing import importing
from benchmarks.measurement_loop import measurement_loop
from benchmarks.oracle import oracle
from benchmarks.start_up import start_up
from benchmarks.training import training


def main() -> None:
    """Print one block per benchmark, or one JSON document with --json."""
    results = {
        "start_up": start_up(),
        "measurement_loop": measurement_loop(),
        "agreement": agreement(),
        "fitting": fitting(),
        "importing": importing(),
        "oracle": oracle(),
        "training": training(),
    }
    if "--json" in sys.argv[1:]:
        print(json.dumps(results, indent=1))
        return
    for name, rows in results.items():
        print(name)
        for row in rows:
            print("  " + row)


if __name__ == "__main__":
    main()
