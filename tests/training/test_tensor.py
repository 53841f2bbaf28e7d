"""Tensor parallelism on ranks that are threads: gradients of serial training, messages of the oracle."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.helpers.attention import KINDS, TOKENS, WIDTH, block
from tests.helpers.ranks import results, run_ranks
from tests.helpers.tensor_ranks import Noted, on_ranks, taking_turns, thread_teams
from tests.helpers.token_models import Gated, Gpt, OneRegion, Pooled
from tests.oracle.operator_models import Language, Transformer
from tests.training.serial_runs import compare, data, model_entry, ranks_of, serial
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.own import Loss
from calib.oracle.layout.traffic import messages
from calib.oracle.trace.tracing import trace
from calib.planning.layers import in_place_case
from calib.planning.points import Point
from calib.training.checks.gradients import gradient_difference
from calib.training.in_place import iterations as in_place
from calib.training.in_place.iterations import measure_in_place, phases_of
from calib.training.models import ModelEntry
from calib.training.split.regions import OwnMasks
from calib.training.step import TrainingStep
from calib.training.worker import WorkerOptions

BATCH = 4
# of gradients that are zero but for rounding (biases of keys) against a billionth of the largest
EXACT = 1e-7


def tensor(p: int, sequence: bool = False) -> Division:
    return Division("tensor", p, BATCH, sequence_parallel=sequence)


def difference(about: ModelEntry, p: int, sequence: bool = False) -> float:
    division = tensor(p, sequence)
    options = WorkerOptions()
    return max(
        on_ranks(division, lambda teams: gradient_difference(about, division, 3, teams, options))
    )


@pytest.mark.parametrize(
    ("name", "p"), [(name, p) for name in KINDS for p in (2, 4) if (name, p) != ("Grouped", 4)]
)
def test_gradients_are_those_of_serial_training(name: str, p: int) -> None:
    """Of every weight, value by value, in float64; and a loss of the same value."""
    assert difference(model_entry(block(name), (TOKENS, WIDTH), 5), p) < EXACT


VIT = ModelEntry("vit", Transformer, (3, 8, 8), "cross_entropy", 5, BATCH)
GPT = ModelEntry("gpt", Language, (6,), "cross_entropy", 20, BATCH, places=(6,), rows=20)
APART = model_entry(block("Apart"), (TOKENS, WIDTH), 5)
GPT2 = model_entry(block("Gpt2"), (TOKENS, WIDTH), 5)
# tokens divide by 4, or by nothing, as the 5 of VIT
POOLED = ModelEntry("pooled", Pooled, (3, 8, 8), "cross_entropy", 5, BATCH)
BLOCKS = ModelEntry("blocks", Gpt, (8,), "cross_entropy", 20, BATCH, places=(8,), rows=20)
ODD = replace(BLOCKS, input_shape=(7,), places=(7,))


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("about", [VIT, GPT], ids=["vit", "gpt"])
def test_a_vision_transformer_and_a_language_model(about: ModelEntry, p: int) -> None:
    assert difference(about, p) < EXACT


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("about", [POOLED, VIT, BLOCKS, ODD], ids=["vit", "class", "gpt", "odd"])
def test_with_tokens_cut_between_regions(about: ModelEntry, p: int) -> None:
    assert difference(about, p, sequence=True) < EXACT


@pytest.mark.parametrize("name", ["Parallel", "Cross", "Pytorchs", "WrittenOut"])
def test_tokens_cut_wherever_a_layer_is_written(name: str) -> None:
    assert difference(model_entry(block(name), (TOKENS, WIDTH), 5), 2, sequence=True) < EXACT


class CastNorms(nn.Module):
    """The residual of tokens that norms read in float32, as in Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.up, self.down, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 20)

    def normed(self, x: Tensor) -> Tensor:
        y = x.to(torch.float32)
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        x = x + self.down(self.up(self.normed(x)).relu())
        made: Tensor = self.head(self.normed(x))
        return made


def test_a_residual_beside_a_cast() -> None:
    """In torch's default type the cast is the tensor itself, and its layer what the residual reads."""
    shape: dict[str, Any] = {"places": (8,), "classes_last": True, "rows": 20}
    about = ModelEntry("casts", CastNorms, (8,), "cross_entropy", 20, BATCH, **shape)
    assert difference(about, 2, sequence=True) < EXACT


def test_what_is_whole_and_multiplies_parts() -> None:
    """Its gradient is not left to be a part of the sum."""
    assert difference(model_entry(Gated, (6, WIDTH), 3), 2, sequence=True) < EXACT


def sent_by_ranks(
    about: ModelEntry, division: Division, execution: str = "float32"
) -> list[list[tuple[str, int]]]:
    """By every rank of two, in an iteration."""

    def program(teams: Any) -> list[tuple[str, int]]:
        sent: list[tuple[str, int]] = []
        teams.group = Noted(teams.group, lambda name, whole, _: sent.append((name, whole.nbytes)))
        step = TrainingStep(about, division, 3, teams, WorkerOptions(execution=execution))
        step.clock.begin("forward")
        step.worker.compute(step.inputs, step.targets)
        assert (step.worker.exchange is None) != division.sequence_parallel
        step.exchange_gradients()
        return sent

    return on_ranks(division, program)


@pytest.mark.parametrize("name", ["Parallel", "Cross", "Pytorchs"])
def test_ranks_send_what_the_oracle_says(name: str) -> None:
    """Message by message, in order: once for all that reads a tensor."""
    about = model_entry(block(name), (TOKENS, WIDTH), 5)
    spec = trace(block(name)(), (TOKENS, WIDTH), name, "mse")
    wanted = [(message.operation, message.nbytes) for message in messages(spec, tensor(2))]
    assert sent_by_ranks(about, tensor(2)) == [wanted] * 2


@pytest.mark.parametrize(
    ("about", "loss"),
    [
        (BLOCKS, "cross_entropy"),
        (POOLED, "cross_entropy"),
        (VIT, "cross_entropy"),
        (model_entry(block("Cross"), (TOKENS, WIDTH), 5), "mse"),
    ],
    ids=["gpt", "vit", "class", "cross"],
)
@pytest.mark.parametrize("execution", ["float32", "bfloat16-mixed"])
def test_ranks_send_tokens_as_the_oracle_says(
    about: ModelEntry, loss: Loss, execution: str
) -> None:
    """Of every size and operation as many; the gradients of tokens last."""
    division = tensor(2, sequence=True)
    spec = trace(about.build(), about.input_shape, about.name, loss).run_as(execution)
    wanted = [(message.operation, message.nbytes) for message in messages(spec, division)]
    for sent in sent_by_ranks(about, division, execution):
        assert Counter(sent) == Counter(wanted) and sent[-1] == wanted[-1]


def test_three_steps_are_those_of_serial_training() -> None:
    """Weights of plain linear layers, and every layer's outputs."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 8)
        )

    about = model_entry(build, (5,), 8)
    batch = data(about, BATCH)
    settings: dict[str, Any] = {"steps": 3, "frozen": False, "of_input": False}
    ranks = ranks_of(about, tensor(3), batch, **settings)
    compare(ranks, serial(about, batch, **settings))
    assert [rank.region["2"] for rank in ranks] == [((0, 4),), ((4, 8),), ((8, 12),)]
    assert {held.name: held.gradient for held in ranks[0].held} == {
        **dict.fromkeys(("0.weight", "0.bias", "1.weight", "1.bias", "4.bias"), "same"),
        **dict.fromkeys(("2.weight", "2.bias", "4.weight"), "own"),
    }


def test_three_steps_on_parts_of_the_tokens() -> None:
    """Every layer's outputs and their gradients, cut as the worker says, and weights after updates."""
    about = model_entry(OneRegion, (6, WIDTH), 3)
    x, y = (
        torch.arange(BATCH * 6 * (WIDTH + 3.0), dtype=torch.float64).sin().split(BATCH * 6 * WIDTH)
    )
    batch = x.view(BATCH, 6, WIDTH), y.view(BATCH, 6, 3)
    settings: dict[str, Any] = {"steps": 3, "frozen": False, "of_input": False}
    ranks = ranks_of(about, tensor(2, sequence=True), batch, **settings)
    compare(ranks, serial(about, batch, **settings))
    assert [rank.region["norm"] for rank in ranks] == [((0, 3),), ((3, 6),)]
    assert {held.name: held.gradient for held in ranks[0].held} == {
        **dict.fromkeys(("up.weight", "up.bias", "down.weight"), "own"),
        **dict.fromkeys(("down.bias", "norm.weight", "norm.bias"), "partial"),
        **dict.fromkeys(("head.weight", "head.bias"), "same"),
    }


def test_autocast_sums_in_its_own_type() -> None:
    """As the oracle's bytes have it."""
    about, types = model_entry(block("Chunked"), (TOKENS, WIDTH), 5), set[torch.dtype]()

    def program(teams: Any) -> None:
        teams.group = Noted(teams.group, lambda name, whole, _: types.add(whole.dtype))
        step = TrainingStep(about, tensor(2), 3, teams, WorkerOptions(execution="bfloat16-mixed"))
        step.clock.begin("forward")
        step.worker.compute(step.inputs, step.targets)

    on_ranks(tensor(2), program)
    assert types == {torch.bfloat16}


def test_masks_differ_inside_a_region_and_agree_outside() -> None:
    """Half of what a rank makes is dropped, not the same half on both; the generators stay alike."""
    call = partial(nn.functional.dropout, p=0.5)
    torch.manual_seed(1)
    made, after = [], []
    for rank in range(2):
        torch.manual_seed(1)
        made.append(OwnMasks(call, rank)(torch.ones(1000)))
        after.append(torch.rand(3))
    assert torch.equal(*after) and not torch.equal(*made)
    for mask in made:
        assert 400 < int((mask > 0).sum()) < 600
    both = int(((made[0] > 0) & (made[1] > 0)).sum())
    assert 180 < both < 320  # a quarter, as of independent draws


def test_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phases that a calibration measures: copies, meetings, and the packing of some gradients."""
    spec = trace(BLOCKS.build(), BLOCKS.input_shape, BLOCKS.name, "cross_entropy")
    monkeypatch.setattr(in_place, "entry", lambda *_: BLOCKS)
    phases = {"forward", "backward", "update", "layerwise"}
    for sequence in (False, True):
        case = in_place_case(Point(spec, tensor(2, sequence), launch=2), "momentum")
        phases |= {"copies", "pack", "unpack"} if sequence else set()
        assert set(phases_of(case)) == phases
    with taking_turns(2):
        first, _ = results(
            run_ranks(2, lambda c: measure_in_place(c, case, 1, 0.0, 0.5, thread_teams))
        )
    assert phases | {"layer_forward:norms.0", "layer_backward:attentions.0.out"} <= set(first.ranks)
    assert all(second >= 0 for rows in first.ranks.values() for row in rows for second in row)


def test_what_is_refused() -> None:
    about = model_entry(block("Chunked"), (TOKENS, WIDTH), 5)

    def program(teams: Any) -> None:
        TrainingStep(about, tensor(3), 3, teams)

    with pytest.raises(InputError, match="so p is at most 4 and divides 4"):
        on_ranks(tensor(3), program)
