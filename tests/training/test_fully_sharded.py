"""Fully sharded training: messages, memory and modules of any shape; ranks are threads.

That it computes what serial training does, under mpiexec too: test_equality.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.sharded import weights_of
from tests.helpers.tensor_ranks import Noted, on_ranks
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.layout.traffic import messages
from calib.oracle.trace.tracing import trace
from calib.training.checks.gradients import gradient_difference
from calib.training.models import ModelEntry
from calib.training.step import TrainingStep
from calib.training.strategies.fully_sharded import FullyShardedWorker
from calib.training.teams import Teams
from calib.training.worker import WorkerOptions

SEED, EACH = 7, 2


def division_of(p: int, strategy: str = "fully_sharded") -> Division:
    return Division(strategy, p, p * EACH)


class Blocks(nn.Module):
    """A root's layers around blocks, whose ReLUs work in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3)
        # without bias, whose gradient would be zero but for rounding
        block = nn.Conv2d(5, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5), nn.ReLU(inplace=True)
        self.blocks = nn.ModuleList([nn.Sequential(*block)])
        for _ in range(2):
            self.blocks.append(
                nn.Sequential(nn.Conv2d(5, 5, 1), nn.ReLU(inplace=True), nn.Conv2d(5, 5, 1))
            )
        self.last = nn.Linear(5 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        for block in self.blocks:
            y = block(y)
        found: Tensor = self.last(torch.flatten(y, 1))
        return found


class Attention(nn.Module):
    """Modules that no oracle knows: tied weights, some unused or frozen, attention, a tuple's output.

    blocks.0 runs again after blocks.1; `tied` reads the first layer's weights, in another unit.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2), "norm": nn.LayerNorm(8)})
            for _ in range(2)
        )
        self.scale = nn.Parameter(torch.full((8,), 0.5))
        self.tied = nn.ModuleList([nn.Linear(6, 8, bias=False)])
        self.tied[0].weight = self.first.weight
        self.unused = nn.ModuleList([nn.Linear(3, 3)])
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) + self.tied[0](x.flip(1))
        for number in (0, 1, 0):
            parts: Any = self.blocks[number]
            found, _ = parts["attention"](y, y, y)
            y = parts["norm"](y + self.scale * found)
        end: Tensor = self.last(self.frozen(y).mean(1))
        return end


BLOCKS = ModelEntry("blocks", Blocks, (3, 6, 6), "cross_entropy", 3, EACH)
ATTENTION = ModelEntry("attention", Attention, (4, 6), "cross_entropy", 3, EACH)
# of their flat weights 3 ranks have unequal parts
UNITS = {"": 5 * 3 * 9 + 5 + 80 * 3 + 3, "blocks.0": 5 * 5 * 9 + 10, "blocks.1": 60}


@pytest.mark.parametrize("p", [2, 3])
@pytest.mark.parametrize("execution", ["float32", "float32+channels_last", "bfloat16-mixed"])
def test_gradients_are_the_serial_ones(p: int, execution: str) -> None:
    """In float64, of the joint batch; batch norms have the statistics of a rank."""
    options = WorkerOptions(execution=execution)

    def program(teams: Teams, about: ModelEntry) -> float:
        return gradient_difference(about, division_of(p), SEED, teams, options)

    for about in (BLOCKS, ATTENTION) if execution == "float32" else (BLOCKS,):
        assert max(on_ranks(division_of(p), lambda teams, a=about: program(teams, a))) < 1e-10


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("about", [BLOCKS, ATTENTION], ids=lambda about: about.name)
def test_weights_are_those_of_data_parallelism(about: ModelEntry, optimizer: str) -> None:
    """After some steps, of every parameter that is trained, also of one that nothing uses."""
    options = WorkerOptions(optimizer, "float64")

    def program(teams: Teams, strategy: str) -> dict[str, Tensor]:
        step = TrainingStep(about, division_of(3, strategy), SEED, teams, options)
        for _ in range(3):
            step.iterate()
        return weights_of(step.worker)

    ranks = [
        on_ranks(division_of(3, strategy), lambda teams, s=strategy: program(teams, s))
        for strategy in ("data", "fully_sharded")
    ]
    for expected, found in zip(*ranks, strict=True):
        assert set(found) == set(expected)
        for name, weight in expected.items():
            torch.testing.assert_close(found[name], weight, rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize("p", [2, 3])
def test_messages_are_those_of_the_oracle(p: int) -> None:
    """Operations and bytes, in the phase layerwise: two allgathers and a reduce-scatter of each unit."""

    def program(teams: Teams) -> list[tuple[str, str, int]]:
        sent: list[tuple[str, str, int]] = []

        def note(operation: str, whole: Tensor, buffers: list[Tensor]) -> None:
            storages = {buffer.untyped_storage().data_ptr() for buffer in buffers}
            assert len(storages) == len(buffers), "MPI may not read where it writes"
            phase = step.clock.switch("forward")
            step.clock.switch(phase)
            sent.append((operation, phase, whole.nbytes))

        world: Any = Noted(teams.world, note)
        step = TrainingStep(BLOCKS, division_of(p), SEED, replace(teams, world=world))
        step.iterate()
        sent.clear()
        seconds, _ = step.iterate()
        assert all(seconds[name] > 0 for name in ("layerwise", "pack", "unpack", "update"))
        return sent

    model = trace(Blocks(), BLOCKS.input_shape, BLOCKS.name, BLOCKS.loss)
    expected = sorted((m.operation, m.nbytes) for m in messages(model, division_of(p)))
    filled = {name: 4 * p * -(-items // p) for name, items in UNITS.items()}
    filled["blocks.2"] = filled["blocks.1"]
    by_hand = [
        (operation, nbytes)
        for name, nbytes in filled.items()
        for operation in ["allgather"] * (2 if name else 1) + ["reduce_scatter"]
    ]
    assert expected == sorted(by_hand)
    for sent in on_ranks(division_of(p), program):
        assert sorted((operation, nbytes) for operation, _, nbytes in sent) == expected
        assert {phase for _, phase, _ in sent} == {"layerwise"}


def test_a_rank_has_shards_and_two_units() -> None:
    """Of Adam's state a third; units but the root's share one buffer; gradients go with their unit."""

    def program(teams: Teams) -> None:
        step = TrainingStep(BLOCKS, division_of(3), SEED, teams, WorkerOptions("adam"))
        step.iterate()
        worker = step.worker
        assert isinstance(worker, FullyShardedWorker) and set(worker.units) == {*UNITS, "blocks.2"}
        shards = sum(-(-items // 3) for items in UNITS.values()) + 20
        assert sum(s["exp_avg"].numel() for s in step.optimizer.state.values()) == shards
        whole = {
            p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in step.parameters
        }
        filled = [4 * 3 * -(-UNITS[name] // 3) for name in ("", "blocks.0")]
        assert sorted(whole.values()) == sorted(filled)
        assert all(parameter.grad is None for parameter in step.parameters)

    on_ranks(division_of(3), program)


def test_weights_used_outside_their_unit_are_found_out() -> None:
    """A wrong gradient is no time: nobody gathers weights that no module of their unit runs on."""

    class Stolen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            y = self.blocks[1](self.blocks[0](x))
            found: Tensor = F.linear(y, self.blocks[0].weight)  # type: ignore[arg-type]
            return found

    about = ModelEntry("stolen", Stolen, (4,), "cross_entropy", 4, EACH)

    def program(teams: Teams) -> None:
        with pytest.raises(Exception, match="gradients differ from the serial ones"):
            gradient_difference(about, division_of(2), SEED, teams, WorkerOptions())

    on_ranks(division_of(2), program)


def test_what_is_refused() -> None:
    """A graph has no messages; DistributedDataParallel is another strategy's, accumulation too."""
    refused = {
        "cuda_graph is of serial and data": (division_of(2), {"execution": "float32+cuda_graph"}),
        "is for data parallelism": (division_of(2), {"ddp": True}),
        "no accumulation": (replace(division_of(2), accumulation=2), {}),
        "no overlap": (replace(division_of(2), overlap=True), {}),
    }

    def program(teams: Teams) -> None:
        for why, (division, options) in refused.items():
            with pytest.raises(InputError, match=why):
                TrainingStep(BLOCKS, division, SEED, teams, WorkerOptions(**options))

    on_ranks(division_of(2), program)
