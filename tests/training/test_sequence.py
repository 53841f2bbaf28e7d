"""Sequence parallelism on ranks that are threads: serial gradients, messages of the oracle."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.helpers.attention import KINDS, TOKENS, WIDTH, block
from tests.helpers.ranks import results, run_ranks
from tests.helpers.sequence_models import TOKENS as EIGHT
from tests.helpers.sequence_models import Block, Causal, Gpt, Vit
from tests.helpers.tensor_ranks import Noted, on_ranks, taking_turns, thread_teams
from tests.oracle.operator_models import ROWS
from tests.training.serial_runs import compare, data, model_entry, ranks_of, serial
from torch import Tensor, nn

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.layout.sequence import sequence_parts
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
ATTENDING = [name for name in KINDS if name not in ("Mlp", "Gated", "WrittenOut")]


def sequence(p: int) -> Division:
    return Division("sequence", p, BATCH)


def difference(about: ModelEntry, p: int, execution: str = "float32") -> float:
    division, options = sequence(p), WorkerOptions(execution=execution)
    return max(
        on_ranks(division, lambda teams: gradient_difference(about, division, 3, teams, options))
    )


@pytest.mark.parametrize("name", ATTENDING)
def test_gradients_are_those_of_serial_training(name: str) -> None:
    """Of every weight, value by value, in float64; and a loss of the same value."""
    assert difference(model_entry(block(name), (TOKENS, WIDTH), 5), 2) < EXACT


VIT = ModelEntry("vit", Vit, (3, 16, 16), "cross_entropy", 5, BATCH)
# 17 tokens
CLASS = replace(VIT, build=lambda: Vit(has_class_token=True))
OF_TOKENS: dict[str, Any] = {"places": (EIGHT,), "classes_last": True, "rows": ROWS}
PLAIN = ModelEntry("gpt", Gpt, (EIGHT,), "cross_entropy", ROWS, BATCH, **OF_TOKENS)
GPT = replace(PLAIN, build=lambda: Gpt(dropout=0.1))


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("about", [VIT, CLASS, GPT], ids=["vit", "class", "gpt"])
def test_a_vision_transformer_and_a_language_model(about: ModelEntry, p: int) -> None:
    """Whole layers behind a pooling; a table that the head has, too, and a loss of parts."""
    assert difference(about, p) < EXACT


class Mixed(nn.Module):
    """A layer before, in and behind the parts; what is before them is added behind them, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block = nn.Linear(WIDTH, WIDTH), Block(Causal())
        self.positions = nn.Parameter(torch.randn(TOKENS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).cumsum(1)  # which passes no part on
        y = self.block(self.first(x + self.positions))
        made: Tensor = self.first(y.mean(1)) + x.mean(1)
        return made


def test_a_weight_of_whole_layers_and_of_parts() -> None:
    """All gradients are means over ranks, wherever they come from."""
    about = model_entry(Mixed, (TOKENS, WIDTH), WIDTH)
    found = sequence_parts(trace(Mixed(), (TOKENS, WIDTH), "mixed", "mse"))
    assert found is not None
    ends = {
        move.name: move.after is None for move in found.moves if not move.before or not move.after
    }
    assert ends["cumsum"] is False and sum(ends.values()) == 1
    assert difference(about, 2) < EXACT


@pytest.mark.parametrize("execution", ["float32", "bfloat16-mixed"])
@pytest.mark.parametrize("about", [VIT, CLASS, GPT], ids=["vit", "class", "gpt"])
def test_ranks_send_what_the_oracle_says(about: ModelEntry, execution: str) -> None:
    """Of the same operation and bytes as often; the gradients at the end."""

    def program(teams: Any) -> list[tuple[str, int]]:
        sent: list[tuple[str, int]] = []

        def note(name: str, whole: Tensor, _: Tensor) -> None:
            sent.append((name, whole.nbytes))

        teams.group, teams.world = Noted(teams.group, note), Noted(teams.world, note)
        step = TrainingStep(about, sequence(2), 3, teams, WorkerOptions(execution=execution))
        step.clock.begin("forward")
        step.worker.compute(step.inputs, step.targets)
        step.exchange_gradients()
        return sent

    ranks = on_ranks(sequence(2), program)
    spec = trace(about.build(), about.input_shape, about.name, "cross_entropy").run_as(execution)
    wanted = [(message.operation, message.nbytes) for message in messages(spec, sequence(2))]
    for sent in ranks:
        assert Counter(sent) == Counter(wanted) and sent[-1] == wanted[-1]


def test_three_steps_are_those_of_serial_training() -> None:
    """Weights, and every layer's outputs, of the tokens of each rank."""

    def build() -> nn.Module:
        net = Vit()
        for part in net.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        return net

    about = ModelEntry("net", build, (3, 16, 16), "mse", 5, BATCH)
    batch = data(about, BATCH)
    settings: dict[str, Any] = {"steps": 3, "frozen": False, "of_input": False}
    ranks, whole = ranks_of(about, sequence(2), batch, **settings), serial(about, batch, **settings)
    patches = torch.stack([rank.gradients["patch"] for rank in ranks]).mean(0)
    for rank in ranks:
        # of parts p times the gradient of the mean; behind them all ranks have the same
        of_parts = {name for name in rank.gradients if name in rank.region}
        assert {"block.first", "block.mlp.0"} <= of_parts and "head" in rank.gradients
        for name in of_parts:
            rank.gradients[name] /= 2
        assert not torch.equal(rank.gradients["patch"], patches)  # zero where others have parts
        rank.gradients["patch"] = patches
    compare(ranks, whole)
    assert [rank.region["block.first"] for rank in ranks] == [((0, 8),), ((8, 16),)]


def test_what_is_dropped_of_parts_is_of_the_rank() -> None:
    """Of every dropout, also that inside a fused product; generators of all ranks stay alike."""

    def program(teams: Any) -> int:
        step = TrainingStep(GPT, sequence(2), 3, teams)
        return sum(isinstance(of, OwnMasks) for of in step.worker.module.modules())

    # of scores, of the fused product, of two feed-forward parts
    assert on_ranks(sequence(2), program) == [4, 4]


def test_a_loss_that_has_its_classes_elsewhere_is_refused() -> None:
    """Of parts of the tokens it would be another loss."""
    about = replace(GPT, outputs=EIGHT, places=(ROWS,), classes_last=False)

    def program(teams: Any) -> None:
        TrainingStep(about, sequence(2), 3, teams)

    with pytest.raises(InputError, match="its outputs have classes where the loss has places"):
        on_ranks(sequence(2), program)


def test_what_is_refused() -> None:
    def program(teams: Any) -> None:
        TrainingStep(model_entry(block("Mlp"), (TOKENS, WIDTH), 5), sequence(2), 3, teams)

    with pytest.raises(InputError, match="no attention whose heads and tokens can be told apart"):
        on_ranks(sequence(2), program)


def test_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phases and layers that a calibration measures: copies, meetings and the packing of gradients."""
    spec = trace(GPT.build(), GPT.input_shape, GPT.name, "cross_entropy")
    case = in_place_case(Point(spec, sequence(2), launch=2), "momentum")
    monkeypatch.setattr(in_place, "entry", lambda *_: GPT)
    with taking_turns(2):
        first, _ = results(
            run_ranks(2, lambda c: measure_in_place(c, case, 1, 0.0, 0.5, thread_teams))
        )
    phases = {"forward", "backward", "update", "copies", "layerwise", "pack", "unpack"}
    assert set(phases_of(case)) == phases
    layers = {
        f"layer_{way}:blocks.0.{name}"
        for way in ("forward", "backward")
        for name in ("first", "attention.q", "attention.out", "mlp.0")
    }
    assert phases | layers <= set(first.ranks)
    assert all(second >= 0 for rows in first.ranks.values() for row in rows for second in row)
