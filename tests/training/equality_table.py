"""python -m tests.training.equality_table DIRECTORY: how equal every case is, as a table of markdown.

DIRECTORY is where `mpiexec -n P python tests/training/equality_program.py DIRECTORY` left its files, for
each P. "first" is of outputs, their gradients and weight gradients, "updates" of what the weights have
moved by after 4 updates; both largest difference / largest value of a tensor, of the worst tensor.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tests.training.equality_cases import CASES
from tests.training.equality_compare import changes, expected_of, first_iteration, read_parts


def main(directory: Path) -> None:
    """One row for each case that has left something; float32 also as a share of its bound."""
    torch.set_num_threads(1)
    print("| model, strategy, p | item type | first | in | updates | largest share of its bound |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        if not (directory / case.name / f"rank{case.division.p - 1}.json").exists():
            continue
        parts = read_parts(directory / case.name, case.division.p, "")
        exact, bounds = expected_of(case)
        first, moved = first_iteration(case, parts, exact), changes(case, parts, exact)
        worst = max(first, key=lambda found: found.share)
        share = ""
        if bounds is not None:
            share = (
                f"{max(f.off / float(bounds.tensors[f.name]) for f in first + moved if f.off):.2f}"
            )
        name = case.name.removesuffix(f"-{case.dtype}")
        print(
            f"| {name} | {case.dtype} | {worst.share:.1e} | {worst.name.replace('|', ' ')} | "
            f"{max(f.share for f in moved):.1e} | {share} |",
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
