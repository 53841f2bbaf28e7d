"""Models under torch.compile: one layer, run as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.helpers.tensor_ranks import on_ranks
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.oracle.trace.profiled import profile
from calib.training.footprint import peak_live_bytes
from calib.training.models import ModelEntry
from calib.training.step import TrainingStep
from calib.training.teams import Teams


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        made: Tensor = self.head(x)
        return made


def loss_of(build: object, counts: bool) -> list[float | None]:
    """Of three iterations, the bytes of one of which are counted."""
    about = ModelEntry("net", build, (6,), "cross_entropy", 3, 4)  # type: ignore[arg-type]

    def program(teams: Teams) -> list[float | None]:
        step = TrainingStep(about, Division("serial", 1, 4), 0, teams)
        found = [step.iterate()[1]]
        if counts:
            assert peak_live_bytes(step) > 0
        return [*found, step.iterate()[1]]

    return on_ranks(Division("serial", 1, 4), program)[0]


def test_it_is_profiled_as_without() -> None:
    """Nothing is compiled while its bytes and operations are counted."""
    plain, compiled = (
        profile(of, (6,), "net", "cross_entropy").layers[0].shape
        for of in (Net(), torch.compile(Net()))
    )
    assert compiled == plain


@pytest.mark.parametrize("counts", [False, True])
def test_it_runs_compiled_also_after_its_bytes_were_counted(counts: bool) -> None:
    calls: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        return lambda *given: (calls.append(1), graph(*given))[1]

    torch._dynamo.reset()
    found = loss_of(lambda: torch.compile(Net(), backend=backend), counts)
    assert found == pytest.approx(loss_of(Net, counts)) and len(calls) == 2
