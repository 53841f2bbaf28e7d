"""How often the interval of an operator's price holds the time of operators that no law was fitted to.

`python -m benchmarks.operators RUN` measures the operators below on this machine (five minutes) unless
the run directory RUN has them, and prints the coverage: a fifth of the kinds at a time is left out in all
sizes, the laws are fitted to the others, and these are priced as operators that were never measured; then
a fifth of the layers, of whose kinds others remain.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calib.driver.measure import measure
from calib.driver.probe import probe
from calib.fitting.fit import fit_runs
from calib.fitting.parameters.file import LayerTime
from calib.fitting.sections.work_laws import work_models
from calib.foundation.files import ensure_directory, write_json
from calib.foundation.layers import Direction, Shape
from calib.foundation.run_files import CLUSTER_FILE, PLAN_FILE, SAMPLES_FILE
from calib.foundation.statistics import median
from calib.microbench.cases import LayerCase, Plan, read_plan
from calib.microbench.records.samples import read_samples
from calib.oracle.costs.layers import LayerCosts
from calib.oracle.layout.workload import LayerPiece
from calib.oracle.trace.exported import PRIME, exported, layers_of
from calib.oracle.trace.layer_list import LayerList

BATCH = 8
BUDGET_S = 240.0
PARTS = 5
MOST_SHOWN = 6
# channels, height and width of images; length and width of sequences
IMAGES: tuple[Shape, ...] = ((16, 14, 14), (32, 28, 28), (64, 56, 56))
SEQUENCES: tuple[Shape, ...] = ((16, 64), (64, 128), (196, 384))

Make = Callable[[Shape], nn.Module | Callable[[Tensor], Tensor]]


def _of(function: Callable[[Tensor], Tensor]) -> Make:
    return lambda shape: function


def _scaled_dot_product(x: Tensor) -> Tensor:
    heads = x.unflatten(2, (4, -1)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads)


class _LookUp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.table(x.argmax(dim=2))
        return found


class _Shuffled(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(length).flip(0))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.order] + torch.index_select(x, 1, self.order)


OF_IMAGES: tuple[Make, ...] = (
    lambda s: nn.Conv2d(s[0], s[0], 3, padding=1),
    lambda s: nn.Conv2d(s[0], 2 * s[0], 1),
    lambda s: nn.Conv2d(s[0], s[0], 3, padding=2, dilation=2),
    lambda s: nn.Conv2d(s[0], s[0], 3, padding=1, groups=s[0]),
    lambda s: nn.ConvTranspose2d(s[0], s[0] // 2, 2, stride=2),
    lambda s: nn.BatchNorm2d(s[0]),
    lambda s: nn.GroupNorm(8, s[0]),
    lambda s: nn.InstanceNorm2d(s[0], affine=True),
    lambda s: nn.LocalResponseNorm(5),
    lambda s: nn.PReLU(s[0]),
    *map(
        _of,
        (
            F.relu,
            F.silu,
            F.gelu,
            F.hardswish,
            F.mish,
            F.elu,
            F.softplus,
            F.leaky_relu,
            F.hardsigmoid,
            F.relu6,
            torch.sigmoid,
            torch.tanh,
            lambda x: F.dropout(x, 0.2),
            lambda x: F.glu(x, 1),
            lambda x: F.max_pool2d(x, 2),
            lambda x: F.avg_pool2d(x, 2),
            lambda x: F.adaptive_max_pool2d(x, 4),
            lambda x: F.adaptive_avg_pool2d(x, 1),
            lambda x: F.interpolate(x, scale_factor=2),
            lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            lambda x: F.pixel_shuffle(x, 2),
            lambda x: F.pixel_unshuffle(x, 2),
            lambda x: F.pad(x, (1, 1, 1, 1)),
            lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
            lambda x: torch.roll(x, (3, 3), (2, 3)),
            lambda x: torch.flip(x, (3,)),
            lambda x: x.mean((2, 3)),
            lambda x: x.var((2, 3)),
            lambda x: x.amax((2, 3)),
            lambda x: torch.cat([x, x], -1),
            lambda x: torch.cat([x, x], 1),
            lambda x: x + x.mean((2, 3), keepdim=True),
            lambda x: x * torch.sigmoid(x),
            lambda x: x / (1.0 + x * x),
            lambda x: x - 0.5,
            lambda x: torch.where(x > 0, x, 0.1 * x),
            lambda x: x.masked_fill(x > 0, 0.0),
            lambda x: x.abs().pow(1.5),
            lambda x: x**2,
            torch.exp,
            torch.sin,
            torch.erf,
            lambda x: x.clamp(-1.0, 1.0),
            lambda x: torch.rsqrt(x * x + 1.0),
            lambda x: torch.maximum(x, -x),
            lambda x: x.permute(0, 2, 3, 1).contiguous(),
            lambda x: F.unfold(x, 3, padding=1),
            lambda x: torch.stack(x.chunk(2, 1), 2),
            lambda x: x[:, :, ::2, ::2].contiguous(),
            lambda x: x.mean(1, keepdim=True).expand_as(x) * 2.0,
        ),
    ),
)
OF_SEQUENCES: tuple[Make, ...] = (
    lambda s: nn.Linear(s[1], 2 * s[1]),
    lambda s: nn.LayerNorm(s[1]),
    lambda s: nn.RMSNorm(s[1]),
    lambda s: _LookUp(s[1]),
    lambda s: _Shuffled(s[0]),
    lambda s: lambda x: x.repeat_interleave(2, dim=1),
    *map(
        _of,
        (
            lambda x: torch.softmax(x, -1),
            lambda x: F.log_softmax(x, -1),
            lambda x: torch.logsumexp(x, -1),
            lambda x: torch.matmul(x, x.transpose(1, 2)),
            lambda x: torch.bmm(x, x.transpose(1, 2)),
            lambda x: torch.einsum("bij,bkj->bik", x, x),
            _scaled_dot_product,
            lambda x: x.topk(4, dim=1).values,
            lambda x: x.sort(dim=1).values,
            lambda x: x.cumsum(1),
            lambda x: x.gather(1, x.argsort(dim=1)),
            lambda x: torch.tril(x),
            lambda x: x.repeat(1, 2, 1),
            lambda x: sum(x.unbind(1)[:2]),
            lambda x: x[:, 0],
            lambda x: F.normalize(x, dim=-1),
            lambda x: torch.zeros_like(x).scatter_add(1, x.argsort(dim=1), x),
        ),
    ),
)


class _Called(nn.Module):
    """A module around a function."""

    def __init__(self, called: nn.Module | Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.called = called

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.called(x)
        return found


def cases() -> Iterator[LayerCase]:
    """Every layer that the functions above are traced into, once."""
    seen: set[str] = set()
    for makes, shapes in ((OF_IMAGES, IMAGES), (OF_SEQUENCES, SEQUENCES)):
        for make in makes:
            for shape in shapes:
                module = _Called(make(shape)).to("meta")
                program = exported(module, [torch.empty((PRIME, *shape), device="meta")])
                layers = LayerList(module, shape)
                layers_of(program, layers)
                for layer in layers.layers:
                    case = LayerCase(layer=layer.shape, batch=BATCH, ranks=1)
                    if not layer.shape.is_free and case.key not in seen:
                        seen.add(case.key)
                        yield case


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
    """A pass of an operator that the laws had not seen: whose law it was, and its time over the price."""

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
    for direction, of in (("forward", time.forward_s), ("backward", time.backward_s)):
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
