"""What the ranks of a case left (equality_program.py) against the serial training of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.training.equality_cases import CASES
from tests.training.equality_program import Case
from tests.training.equality_reference import (
    Training,
    definition_of,
    float32_bound,
    reference,
    starting_weights,
)
from torch import Tensor

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Part:
    """What one rank left: tensors by name, and what part of the whole they are."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]

    def box(self, name: str, shape: torch.Size) -> Box:
        """Where a tensor of this rank stands in the whole one."""
        kind, _, of = name.partition("|")
        ranges: list[list[int]]
        if kind in ("weight", "after"):
            ranges = self.about["held"][of][0]
        else:
            ranges = [self.about["samples"], *self.about["region"].get(of, [])]
        rest = shape[len(ranges) :]
        return (*((a, b) for a, b in ranges), *((0, n) for n in rest))


@dataclass(frozen=True)
class Found:
    """How far one tensor is off: absolute, and by the largest value of the whole one."""

    name: str
    off: float
    share: float


def read_parts(directory: Path, p: int, said: str) -> list[Part]:
    """The files of all ranks; a failure with what the launch said where one is missing."""
    found = []
    for rank in range(p):
        path = directory / f"rank{rank}.json"
        assert path.exists(), f"rank {rank} left nothing of {directory.name}: {said[-3000:]}"
        about = json.loads(path.read_text())
        assert "refused" not in about, about["refused"]
        with np.load(path.with_suffix(".npz")) as content:
            tensors = {name: torch.from_numpy(content[name]).double() for name in content.files}
        found.append(Part(tensors, about))
    return found


def expected_of(case: Case) -> tuple[Training, Training | None]:
    """The reference, and of float32 the bounds."""
    of = definition_of(case)
    alike = [c for c in CASES if c.curve and definition_of(c) == of]
    exact = reference(of, bool(alike))
    if case.execution == "float64":
        return exact, None
    return exact, float32_bound(of, any(c.execution == "float32" for c in alike))


def cut(whole: Tensor, box: Box) -> Tensor:
    """The part of a tensor."""
    return whole[tuple(slice(a, b) for a, b in box)]


def compare(name: str, whole: Tensor, parts: list[Part], factor: float = 1.0) -> Found:
    """The worst part of a tensor, times `factor`; the parts must tile it, and be of its item type."""
    covered = torch.zeros(whole.shape, dtype=torch.int8)
    boxes: set[Box] = set()
    off = 0.0
    for part in parts:
        if name not in part.tensors:
            continue
        mine = part.tensors[name]
        box = part.box(name, whole.shape)
        expected = cut(whole, box)
        assert mine.shape == expected.shape, f"{name}: {tuple(mine.shape)} at {box}"
        if box not in boxes:
            boxes.add(box)
            cut(covered, box).add_(1)
        if mine.numel():
            here = float((factor * mine - expected).abs().max())
            off = here if not off >= here else off  # a NaN stays
    assert covered.min() == covered.max() == 1, f"{name}: {sorted(boxes)} do not tile {whole.shape}"
    size = float(whole.abs().max())
    return Found(name, off, off / size if size else (0.0 if off == 0 else np.inf))


def first_iteration(case: Case, parts: list[Part], exact: Training) -> list[Found]:
    """Every output, its gradient, and every weight gradient.

    Gradients in the backward are of the mean over a replica's samples: p1 times those of the batch.
    """
    found = []
    for name, whole in exact.tensors.items():
        kind = name.partition("|")[0]
        if kind in ("output", "weight"):
            found.append(compare(name, whole, parts))
        elif kind == "gradient":
            found.append(compare(name, whole, parts, 1.0 / case.division.replicas))
    kinds = ("output", "gradient", "weight")
    for part in parts:  # nothing that the serial run does not have
        assert {n for n in part.tensors if n.partition("|")[0] in kinds} <= set(exact.tensors)
    return found


def running_of(case: Case, parts: list[Part], exact: Training) -> list[Found]:
    """Running statistics of each rank against those of its samples and its cell."""
    found = []
    for part in parts:
        for name, mine in part.tensors.items():
            if not name.startswith("running"):
                continue
            replica, cell = part.about["replica"], 0
            for n, index in zip(case.division.grid, part.about["cell"], strict=False):
                cell = cell * n + index
            keys = (f"{name}|{r}|{c}" for r, c in ((replica, cell), (replica, 0), (0, 0)))
            key = next(key for key in keys if key in exact.tensors)
            whole = exact.tensors[key]
            off = float((mine - whole).abs().max())
            found.append(Found(key, off, off / float(whole.abs().max())))
    return found


def changes(case: Case, parts: list[Part], exact: Training) -> list[Found]:
    """How far the changes of the weights are off after the last of the STEPS."""
    start = starting_weights(case.model)
    moved = [
        Part(
            {
                n: t - cut(start[n.partition("|")[2]], p.box(n, start[n.partition("|")[2]].shape))
                for n, t in p.tensors.items()
                if n.startswith("after|")
            },
            p.about,
        )
        for p in parts
    ]
    return [
        compare(f"after|{name}", exact.tensors[f"after|{name}"] - whole, moved)
        for name, whole in start.items()
    ]


def losses_of(parts: list[Part]) -> list[float]:
    """Of every iteration, the mean of the ranks that have it."""
    rows = [part.about["losses"] for part in parts if part.about["losses"][0] is not None]
    assert rows
    return [float(np.mean(row)) for row in zip(*rows, strict=True)]
