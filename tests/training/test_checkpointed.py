"""Models with checkpointed regions, trained: gradients and messages. Bytes: test_live_bytes.py."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.helpers.tensor_ranks import Noted, on_ranks, taking_turns
from tests.oracle.checkpointed_models import built, entry_of, traced
from tests.oracle.memory.test_checkpointed import Calls
from torch import Tensor

from calib.foundation.division import Division
from calib.oracle.layout.shards import saving_late, why_impossible
from calib.oracle.layout.traffic import messages
from calib.oracle.model.recomputed import run_again
from calib.training.checkpoints import Checkpointed, checkpoint_regions
from calib.training.checks.chance import WithoutChance
from calib.training.checks.gradients import gradient_difference
from calib.training.layer_program import layer_program
from calib.training.step import TrainingStep, in_type, loss_function, synthetic_batch
from calib.training.teams import Teams
from calib.training.worker import WorkerOptions

SEED, EACH = 7, 2
OF_RANKS = [
    Division("data", 2, 2 * EACH),
    Division("data", 2, 2 * EACH, sharded_optimizer=True),
    Division("fully_sharded", 2, 2 * EACH),
    Division("fully_sharded", 3, 3 * EACH),
]
OF_PARTS = [
    Division("tensor", 2, EACH),
    Division("tensor", 4, EACH),
    Division("tensor", 2, EACH, sequence_parallel=True),
    Division("sequence", 2, EACH),
    Division("tensor", 4, EACH, sequence_parallel=True),  # parts of tokens are filled up
]
OF_LAYERS = [
    Division("filter", 2, EACH),
    Division("filter", 3, EACH),  # unequal parts
    Division("channel", 2, EACH),
    Division("data+filter", 4, 2 * EACH, inner=2),
]
OF_IMAGES = [
    Division("spatial", 2, EACH, grid=(2,)),
    Division("spatial", 3, EACH, grid=(3,)),
    Division("spatial", 4, EACH, grid=(2, 2)),
    Division("data+spatial", 4, 2 * EACH, inner=2, grid=(2,)),
    Division("data+spatial", 2, 2 * EACH, inner=1),  # each part is a whole image
]


def named(of: Division) -> str:
    cells = "x".join(map(str, of.cells)) if of.grid else ""
    return f"{of.strategy}{' tokens' * of.sequence_parallel} {of.p} {cells}".strip()


def difference(name: str, division: Division, synchronized: bool = False) -> float:
    about, options = entry_of(name), WorkerOptions(synchronized_batch_norm=synchronized)

    def program(teams: Teams) -> float:
        return gradient_difference(about, division, SEED, teams, options)

    return max(on_ranks(division, program))


@pytest.mark.parametrize("name", ["blocks", "in-segments", "language", "images"])
@pytest.mark.parametrize("division", OF_RANKS, ids=named)
def test_gradients_are_the_serial_ones(name: str, division: Division) -> None:
    assert difference(name, division) < 1e-10


@pytest.mark.parametrize("name", ["vision", "language", "nested"])
@pytest.mark.parametrize("division", OF_PARTS, ids=named)
def test_gradients_of_parts_are_the_serial_ones(name: str, division: Division) -> None:
    if why_impossible(traced(name), division):
        assert (name, division.strategy) == ("nested", "sequence")  # it has no attention
        return
    assert difference(name, division) < 1e-10


@pytest.mark.parametrize("name", ["images", "cut-images", "vision"])
@pytest.mark.parametrize("division", OF_LAYERS, ids=named)
def test_gradients_of_layers_in_parts_are_the_serial_ones(name: str, division: Division) -> None:
    assert difference(name, division) < 1e-10


@pytest.mark.parametrize("name", ["images", "cut-images"])
@pytest.mark.parametrize("division", OF_IMAGES, ids=named)
def test_gradients_of_images_in_parts_are_the_serial_ones(name: str, division: Division) -> None:
    assert difference(name, division) < 1e-10


@pytest.mark.parametrize("division", [OF_LAYERS[-1], *OF_IMAGES[:1], *OF_IMAGES[-2:]], ids=named)
def test_synchronized_batch_norms_run_again(division: Division) -> None:
    assert difference("images", division, synchronized=True) < 1e-10


@pytest.mark.parametrize("name", ["mlp", "of-two", "in-segments", "language"])
@pytest.mark.parametrize("p", [2, 3])
def test_messages_are_those_of_the_oracle(name: str, p: int) -> None:
    """Regions within a unit and over several: what runs again may gather once more."""
    check_messages(name, Division("fully_sharded", p, p * EACH))


@pytest.mark.parametrize("name", ["mlp", "from-the-input", "in-segments", "vision", "language"])
@pytest.mark.parametrize("division", OF_PARTS[::2], ids=named)
def test_messages_of_parts_are_those_of_the_oracle(name: str, division: Division) -> None:
    """What runs again sends again: the sums of a block but the last, and all that is gathered."""
    check_messages(name, division)


@pytest.mark.parametrize("name", ["vision", "language"])
def test_messages_of_tokens_are_those_of_the_oracle(name: str) -> None:
    check_messages(name, Division("sequence", 2, EACH))


@pytest.mark.parametrize("name", ["images", "cut-images", "vision"])
@pytest.mark.parametrize("division", OF_LAYERS[::2], ids=named)
def test_messages_of_layers_in_parts_are_those_of_the_oracle(name: str, division: Division) -> None:
    """What runs again joins and sums again, but not what a region ends with."""
    check_messages(name, division)


@pytest.mark.parametrize("name", ["images", "cut-images"])
def test_messages_of_images_in_parts_are_those_of_the_oracle(name: str) -> None:
    """Halos, of convolutions and poolings at the end of a region, too, and where the split ends."""
    division = OF_IMAGES[0]
    check_messages(name, division)
    again = [of.operation for of in messages(traced(name), division) if "again" in of.why]
    ends = {"images": [], "cut-images": ["allgather"]}[name]
    assert sorted(again) == ends + ["halo"] * {"images": 3, "cut-images": 4}[name]


@pytest.mark.parametrize("name", ["images", "cut-images"])
@pytest.mark.parametrize(
    "division", [Division("serial", 1, EACH), *OF_LAYERS[::2], OF_IMAGES[0]], ids=named
)
def test_convolutions_run_again_where_the_oracle_says(name: str, division: Division) -> None:
    """One with a halo also where a region ends with it."""
    about, model = entry_of(name), traced(name)

    def program(teams: Teams) -> int:
        step = TrainingStep(about, division, SEED, teams)
        with Calls() as calls:
            step.iterate()
        return calls.of["convolution"]

    again = run_again(model, (), saving_late(model, division))
    convolutions = [layer.shape.kind == "conv" for layer in model.layers]
    expected = sum(convolutions) + sum(map(operator.and_, convolutions, again))
    late = name == "cut-images" and division.strategy == "spatial"
    assert expected == {"images": 6, "cut-images": 5}[name] + late
    assert on_ranks(division, program) == [expected] * division.p


def check_messages(name: str, division: Division) -> None:
    about = entry_of(name)

    def program(teams: Teams) -> list[tuple[str, int]]:
        sent: list[tuple[str, int]] = []

        def note(operation: str, whole: Tensor, buffers: list[Tensor]) -> None:
            sent.append((operation.replace("exchange", "halo"), whole.nbytes))

        world: Any = Noted(teams.world, note)
        group: Any = teams.group and Noted(teams.group, note)
        step = TrainingStep(about, division, SEED, replace(teams, world=world, group=group))
        sent.clear()
        step.iterate()
        return sent

    expected = sorted((m.operation, m.nbytes) for m in messages(traced(name), division))
    for sent in on_ranks(division, program):
        assert sorted(sent) == expected


@pytest.mark.parametrize("name", ["mlp", "language", "of-two"])
def test_a_program_with_its_regions(name: str) -> None:
    """It makes what the program without them does, and its layers are seen."""
    module = built(name).double()
    inputs, targets = synthetic_batch(entry_of(name), EACH, 1)
    inputs, loss = in_type(inputs, torch.float64), loss_function(entry_of(name))
    found: list[dict[str, Tensor]] = []
    for folds in (False, True):
        with taking_turns(1), WithoutChance():
            program = layer_program(module, entry_of(name), EACH)
            if folds:
                checkpoint_regions(program)
            names: set[str] = set()
            program.observer = lambda layer, _, names=names: names.add(layer)  # type: ignore[misc]
            module.zero_grad()
            loss(program(inputs), targets).backward()
        grads = {of: p.grad.clone() for of, p in module.named_parameters() if p.grad is not None}
        found.append(grads)
        assert names == {layer.name for layer in program.spec.layers[:-1]} | {
            of for layer in program.spec.layers for of in layer.outputs if "[" in of
        }
        regions = [of for of in program.graph.children() if isinstance(of, Checkpointed)]
        assert len(regions) == (len({of.recomputed for of in program.spec.layers} - {""}) * folds)
    assert found[0].keys() == found[1].keys() and len(found[0]) == len(list(module.parameters()))
    for of, gradient in found[0].items():
        assert torch.equal(gradient, found[1][of]), of
