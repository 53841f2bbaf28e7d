"""Spatial and data+spatial training against plain serial autograd, on threads, to 1e-10 in float64."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.helpers.tensor_ranks import Noted, on_ranks
from tests.training.serial_runs import (
    F64,
    compare,
    data,
    is_near,
    model_entry,
    ranks_of,
    seeded,
    serial,
    train,
)
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.layout.shards import fitted
from calib.oracle.layout.spatial import part_ranges
from calib.oracle.layout.traffic import messages, split_ends
from calib.oracle.trace.tracing import trace
from calib.training.models import ModelEntry
from calib.training.models.cosmoflow import CosmoFlow
from calib.training.models.resnet import BottleneckBlock
from calib.training.teams import Teams

Grid = tuple[int, ...]


class Plain(nn.Module):
    """Padded, strided and valid convolutions; poolings that overlap; a 1x1; then whole layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 3, 3, padding=1)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(3, 2, 1)
        self.conv2 = nn.Conv2d(3, 4, 5, stride=2, padding=2)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.AvgPool2d(3, 1, 1)
        self.conv3 = nn.Conv2d(4, 4, 2)
        self.conv4 = nn.Conv2d(4, 2, 1, bias=False)
        self.fc1 = nn.Linear(2 * 6 * 5, 5)
        self.fc2 = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.relu1(self.conv1(x)))
        x = self.pool2(self.relu2(self.conv2(x)))
        x = self.conv4(self.conv3(x))
        return self.fc2(self.fc1(x.view(x.size(0), -1)))


class Residual(nn.Module):
    """A ResNet's stem and two of its blocks, one with an identity, narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.blocks = nn.Sequential(
            BottleneckBlock(4, 2, 1), BottleneckBlock(8, 2, 1), BottleneckBlock(8, 4, 2)
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.maxpool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Branches(nn.Module):
    """Inception's words: 1 x 3 and 3 x 1, concat; a functional pool and one module used twice.

    The input itself is read by a whole layer too, and so is a tensor in the middle.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(2, 3, (1, 3), padding=(0, 1))
        self.tall = nn.Conv2d(2, 3, (3, 1), padding=(1, 0))
        self.pool = nn.MaxPool2d(3, 1, 1)
        self.same = nn.Identity()
        self.pooled = nn.AdaptiveAvgPool2d(2)
        self.fc = nn.Linear((8 + 2) * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([self.wide(x), nn.functional.avg_pool2d(self.tall(x), 3, 1, 1), x], 1)
        y = self.same(self.pool(self.pool(y)))
        both = torch.cat([self.pooled(y), self.pooled(x)], 1)
        return self.fc(torch.flatten(both, 1))


def cosmoflow() -> nn.Module:
    module = CosmoFlow(size=16, hidden=(6,), divisor=16, padded=True)
    module.classifier[-1] = nn.Linear(6, 3)
    return module


PLAIN = model_entry(Plain, (2, 27, 23))
RESIDUAL = model_entry(Residual, (3, 32, 30))
BRANCHES = model_entry(Branches, (2, 7, 6))
COSMOFLOW = model_entry(cosmoflow, (4, 16, 16, 16))


def spatial(p: int, grid: Grid = (), batch: int = 2, until: str = "") -> Division:
    return Division("spatial", p, batch, grid=grid, split_until=until)


@pytest.mark.parametrize(
    ("about", "grid", "split"),
    [
        # of 27, 14, 7, 6 rows in 2, 3, 4 parts
        (PLAIN, (2,), 8),
        (PLAIN, (3,), 8),
        (PLAIN, (2, 2), 8),
        (PLAIN, (3, 2), 8),
        (PLAIN, (1, 2), 8),
        (PLAIN, (4,), 3),
        (RESIDUAL, (2,), 31),
        (RESIDUAL, (4,), 31),
        (RESIDUAL, (2, 2), 31),
        (BRANCHES, (2,), 6),
        (BRANCHES, (3, 2), 6),
        (COSMOFLOW, (2,), 8),
        (COSMOFLOW, (2, 2, 2), 6),
    ],
    ids=lambda of: of.build.__name__ if isinstance(of, ModelEntry) else str(of),
)
def test_equal_to_serial(about: ModelEntry, grid: Grid, split: int) -> None:
    """y, dL/dy and dL/dw of every layer, dL/dx of the input, and the weights after two steps."""
    batch = data(about, 2)
    ranks = ranks_of(about, spatial(math.prod(grid), grid), batch, steps=2)
    compare(ranks, serial(about, batch, 2))
    # halos have to be right in many layers, not in one
    assert len(ranks[0].region) - 1 >= split


@pytest.mark.parametrize("p", [2, 3, 4])
def test_regions_are_the_oracles_and_cover_the_image(p: int) -> None:
    """27 rows of the input, as part_range cuts them, and all of its channels and columns."""
    ranks = ranks_of(PLAIN, spatial(p, (p,)), data(PLAIN, 2))
    assert [r.region["input"] for r in ranks] == [
        ((0, 2), rows, (0, 23)) for rows in part_ranges(27, p)
    ]
    assert [r.outputs["conv1"].shape[2] for r in ranks] == [b - a for a, b in part_ranges(27, p)]


def test_the_split_ends_where_it_is_told() -> None:
    batch = data(PLAIN, 2)
    ranks = ranks_of(PLAIN, spatial(2, until="relu1"), batch)
    assert set(ranks[0].region) == {"input", "conv1", "relu1"}
    compare(ranks, serial(PLAIN, batch))


@pytest.mark.parametrize("gradients", ["leaders", "all"])
@pytest.mark.parametrize(("grid", "replicas"), [((2,), 2), ((3,), 2), ((2, 2), 2)])
def test_data_spatial(grid: Grid, replicas: int, gradients: Any) -> None:
    """Groups with samples of their own: the weights after three steps are the serial ones.

    3 slices of the 760 weights are padded.
    """
    inner = math.prod(grid)
    batch = data(PLAIN, 4)
    division = Division("data+spatial", replicas * inner, 4, inner, grid=grid, gradients=gradients)
    ranks = ranks_of(PLAIN, division, batch, steps=3)
    assert [r.samples for r in ranks] == [(0, 2)] * inner + [(2, 4)] * inner
    compare(ranks, serial(PLAIN, batch, 3), replicas)
    assert sum(w.numel() for w in ranks[0].weights[0].values()) == 760


@pytest.mark.parametrize(
    ("strategy", "p", "inner"), [("data+spatial", 2, 1), ("data+spatial", 2, 2), ("spatial", 1, 1)]
)
def test_what_is_left_of_the_hybrid(strategy: str, p: int, inner: int) -> None:
    """p2 = 1 is data parallelism, p1 = 1 is spatial, p = 1 serial."""
    batch = data(PLAIN, 4)
    ranks = ranks_of(PLAIN, Division(strategy, p, 4, inner), batch, steps=2)
    compare(ranks, serial(PLAIN, batch, 2), p // inner)


class Norm(nn.Module):
    """A convolution and its batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.pooled = nn.AdaptiveAvgPool2d(2)
        self.fc = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return self.fc(torch.flatten(self.pooled(x), 1))


NORM = model_entry(Norm, (2, 7, 4))


def normalized(y: Tensor, ranges: Sequence[tuple[int, int]], module: Norm) -> Tensor:
    """By the definition: every part by the mean and biased variance of its own values."""
    parts = []
    for a, b in ranges:
        part = y[:, :, a:b]
        mean = part.mean((0, 2, 3), keepdim=True)
        variance = (part - mean).square().mean((0, 2, 3), keepdim=True)
        scale = module.norm.weight.view(-1, 1, 1) / torch.sqrt(variance + module.norm.eps)
        parts.append((part - mean) * scale + module.norm.bias.view(-1, 1, 1))
    return torch.cat(parts, 2)


@pytest.mark.parametrize(
    ("synchronized", "ranges"), [(False, [(0, 3), (3, 5), (5, 7)]), (True, [(0, 7)])]
)
def test_batch_norm_of_a_part_is_by_its_own_values(
    synchronized: bool, ranges: list[tuple[int, int]]
) -> None:
    """ParaDL 4.5.2: 7 rows in 3 parts are normalised part by part; synchronised, all at once."""
    batch = data(NORM, 2)
    module: Any = seeded(Norm)
    y = normalized(module.conv(batch[0]), ranges, module)
    out = module.fc(torch.flatten(module.pooled(y), 1))
    nn.functional.mse_loss(out, batch[1]).backward()
    options = replace(F64, synchronized_batch_norm=synchronized)
    ranks = ranks_of(NORM, spatial(3), batch, frozen=False, options=options)
    for rank, (a, b) in zip(ranks, part_ranges(7, 3), strict=True):
        assert is_near(rank.outputs["norm"], y[:, :, a:b].detach())
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            found, scale = rank.weight_gradients[name], float(module.conv.weight.grad.abs().max())
            # the bias before a norm has no gradient but rounding
            assert float((found - parameter.grad).abs().max()) <= 1e-10 * scale, name


@pytest.mark.parametrize(
    ("division", "reason"),
    [
        (
            spatial(4),
            r"on 4 ranks: the first layer, conv, cannot be split: its height of 3 in 4 parts",
        ),
        (spatial(2, (2,), until="fc"), "a layer before the split's end, pooled"),
        (spatial(4, (3,)), "is not a layout of 4 ranks"),
    ],
)
def test_a_wrong_grid_is_refused_in_the_oracles_words(division: Division, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        about = model_entry(Norm, (2, 3, 1))
        ranks_of(about, division, data(about, 2))


def recorded(about: ModelEntry, division: Division) -> list[list[tuple[str, int, int]]]:
    """The calls of every rank in one step, in order: operation, bytes, ranks.

    Bytes as oracle/layout/traffic.py counts them. The input needs no gradient.
    """
    batch = data(about, division.batch)

    def program(teams: Teams) -> Any:
        log: list[tuple[str, int, int]] = []

        def noted(team: Any) -> Any:
            def note(operation: str, whole: Tensor | None, _: Any) -> None:
                name = "halo" if operation == "exchange" else operation
                log.append((name, 0 if whole is None else whole.nbytes, team.size))

            return team and Noted(team, note)

        made = map(noted, (teams.world, teams.group, teams.across, teams.leaders))
        train(about, division, Teams(teams.place, *made), batch, of_input=False)
        return log

    return on_ranks(division, program)


@pytest.mark.parametrize(
    ("about", "division"),
    [
        (PLAIN, spatial(3, (3,))),
        (RESIDUAL, spatial(4, (4,))),
        (COSMOFLOW, spatial(2)),
        (PLAIN, Division("data+spatial", 4, 4, 2)),
        (PLAIN, Division("data+spatial", 4, 4, 2, gradients="all")),
    ],
)
def test_what_is_sent_is_what_the_oracle_counts(about: ModelEntry, division: Division) -> None:
    """Operation, whole bytes and group of every message, the largest of the ranks where they differ.

    A rank without a neighbour's message makes no call. On one dimension there are no corners.
    """
    model = trace(about.build(), about.input_shape, about.name, about.loss)
    division = fitted(model, division)
    expected: Counter[tuple[str, int, int]] = Counter()
    for m in messages(model.run_as("float64"), division):
        if m.operation == "hierarchical_allreduce":
            expected.update(
                [
                    ("reduce", m.nbytes, m.inner),
                    ("broadcast", m.nbytes, m.inner),
                    ("allreduce", m.nbytes, m.group_size // m.inner),
                ]
            )
        else:
            expected[(m.operation, m.nbytes, m.group_size)] += 1
    logs = recorded(about, division)
    first = Counter(logs[0])  # it is a leader, and of the largest parts
    halos = [Counter(c for c in log if c[0] == "halo") for log in logs]
    found = {c: n for c, n in first.items() if c[0] != "halo"}
    assert found == {c: n for c, n in expected.items() if c[0] != "halo"}
    # of every halo the rank with the longest message; an inner rank takes part in all of them
    middle = max(halos, key=lambda of: sum(of.values()))
    assert sum(middle.values()) == sum(n for c, n in expected.items() if c[0] == "halo")
    assert max(nbytes for of in halos for _, nbytes, _ in of) == max(
        nbytes for operation, nbytes, _ in expected if operation == "halo"
    )
    assert len(split_ends(model, division)) == found_of(found, "allgather", division.parts)


def found_of(found: dict[tuple[str, int, int], int], operation: str, size: int) -> int:
    """Allgathers of y among so many, without that of the gradients."""
    gathers = [n for (name, _, of), n in found.items() if name == operation and of == size]
    return sum(gathers) - any(name == "reduce_scatter" for name, _, _ in found)
