"""Sequence parallelism on ranks that are threads: serial gradients, messages of the oracle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.attention import KINDS, TOKENS, WIDTH, block
from tests.helpers.sequence_models import TOKENS as EIGHT
from tests.helpers.sequence_models import Gpt, Vit
from tests.helpers.tensor_ranks import Noted, on_ranks
from tests.oracle.operator_models import ROWS
from tests.training.launching import needs_mpiexec, said
from tests.training.serial_runs import compare, data, model_entry, ranks_of, serial
from torch import nn

from calib.foundation.division import Division
from calib.oracle.layout.traffic import messages
from calib.oracle.trace.tracing import trace
from calib.training.checks.gradients import gradient_difference
from calib.training.models import ModelEntry
from calib.training.step import TrainingStep
from calib.training.worker import WorkerOptions

BATCH = 4
# of gradients that are zero but for rounding (biases of keys) against a billionth of the largest
EXACT = 1e-7
ATTENDING = [name for name in KINDS if name not in ("Mlp", "Gated")]


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
OF_TOKENS: dict[str, Any] = {"places": (EIGHT,), "classes_last": True, "rows": ROWS}
GPT = ModelEntry("gpt", Gpt, (EIGHT,), "cross_entropy", ROWS, BATCH, **OF_TOKENS)


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("about", [VIT, GPT], ids=["vit", "gpt"])
def test_a_vision_transformer_and_a_language_model(about: ModelEntry, p: int) -> None:
    """Whole layers behind a pooling; a table that the head has, too, and a loss of parts."""
    assert difference(about, p) < EXACT


RANKS = """
import torch
from tests.training.test_sequence import BATCH, GPT, VIT

from calib.foundation.division import Division
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.oracle.memory.live_bytes import live_bytes
from calib.training.checks.gradients import gradient_difference
from calib.training.footprint import peak_live_bytes
from calib.training.step import TrainingStep
from calib.training.teams import make_teams
from calib.training.worker import WorkerOptions

torch.set_num_threads(1)
control = MpiCommunicator()
division = Division("sequence", control.size, BATCH)
for about, execution in ((VIT, "float32"), (GPT, "float32"), (GPT, "bfloat16-mixed")):
    teams, options = make_teams(control, division, "mpi"), WorkerOptions(execution=execution)
    off = gradient_difference(about, division, 3, teams, options)
    step = TrainingStep(about, division, 3, teams, options)
    step.iterate()
    peaks = control.allgather_object(peak_live_bytes(step))
    spec = step.worker.module.spec.run_as(execution)
    counted = live_bytes(spec, division, "momentum")
    if control.rank == 0:
        print(off, max(peaks), counted, flush=True)
    step.close()
    teams.close()
    del step, teams
"""
NUMBERS = 1024  # bytes of single numbers, which the count leaves out


@pytest.mark.mpi
@pytest.mark.waits
@needs_mpiexec
@pytest.mark.parametrize("p", [2, 4])
def test_on_real_ranks(p: int, tmp_path: Path) -> None:
    """Serial gradients, and the bytes that the oracle counts."""
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    lines = said(p, script).splitlines()
    assert len(lines) == 3
    for off, measured, counted in map(str.split, lines):
        assert float(off) < EXACT
        assert abs(int(measured) - int(counted)) <= NUMBERS


@pytest.mark.parametrize("about", [VIT, GPT], ids=["vit", "gpt"])
def test_ranks_send_what_the_oracle_says(about: ModelEntry) -> None:
    """Of the same operation and bytes as often; the gradients at the end."""

    def program(teams: Any) -> list[tuple[str, int]]:
        sent: list[tuple[str, int]] = []
        note = lambda name, whole, _: sent.append((name, 4 * whole.numel()))  # noqa: E731
        teams.group, teams.world = Noted(teams.group, note), Noted(teams.world, note)
        step = TrainingStep(about, sequence(2), 3, teams)
        step.clock.begin("forward")
        step.worker.compute(step.inputs, step.targets)
        step.exchange_gradients()
        return sent

    ranks = on_ranks(sequence(2), program)
    spec = trace(about.build(), about.input_shape, about.name, "cross_entropy")
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
