"""Tasks of predicted iterations of whole models; tests/calib/export/test_chakra.py simulates them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.calib.machines import NET, full_machine
from tests.helpers.token_models import TOKENS, Gpt
from tests.oracle.handmade import law
from tests.oracle.networks import overlap
from tests.oracle.simulated import cuttable
from tests.oracle.test_recomputed import marked
from tests.oracle.test_rested_links import bucket, hosts

from calib.fitting.parameters.file import Parameters
from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.costs.machine import Machine
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.tasks.iteration import tasks_of
from calib.oracle.tasks.program import Task
from calib.oracle.trace.tracing import trace
from calib.training.models.specs import spec

MODELS = {
    "vgg16-mini": spec("vgg16-mini"),
    "resnet50-mini": spec("resnet50-mini"),
    "gpt": trace(Gpt(), (TOKENS,), "gpt", "cross_entropy"),
}
ETAS = [overlap(2, 0.4), overlap(4, 0.9)]


def checked(model: ModelSpec, division: Division, parameters: Parameters) -> list[list[Task]]:
    """The programs of all ranks, which end when predicted and whose tasks follow what they wait for."""
    machine = Machine(parameters)
    predicted = project(model, division, machine).total
    found = tasks_of(model, division, machine)
    assert predicted is not None
    programs = [list(found.program(rank)) for rank in range(division.p)]
    last = max(task.end_s for program in programs for task in program)
    assert last == found.seconds == pytest.approx(predicted.value, rel=1e-9)
    for program in programs:
        for at, task in enumerate(program):
            assert all(of < at for of in task.after)
            begins = max((program[of].end_s for of in task.after), default=0.0)
            assert task.begin_s == begins <= task.end_s
        computed = sorted((of.begin_s, of.end_s) for of in program if of.kind == "compute")
        assert all(one[1] <= other[0] + 1e-15 for one, other in pairwise(computed))
    return programs


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("node", [1, 4])
def test_every_strategy_of_whole_models(name: str, node: int) -> None:
    parameters = full_machine(overlap=ETAS, ranks_per_node=node)
    divisions = [
        Division("serial", 1, 8, accumulation=2),
        Division("data", 4, 16, overlap=True),
        Division("data", 2, 16, sharded_optimizer=True, accumulation=4),
        Division("fully_sharded", 4, 16),
        Division("filter", 2, 8),
        Division("channel", 2, 8),
        Division("data+filter", 4, 8, inner=2),
        Division("pipeline", 4, 8, segments=4),
        Division("pipeline", 3, 16, segments=8, schedule="1f1b"),
    ]
    if name != "resnet50-mini":
        divisions.append(Division("tensor", 2, 8))
    for division in divisions:
        checked(MODELS[name], division, parameters)


@pytest.mark.parametrize("per_layer", [3e-6, -5e-7])
@pytest.mark.parametrize(
    "division",
    [
        Division("serial", 1, 8, accumulation=2),
        Division("data", 2, 8),
        Division("filter", 2, 8),
        Division("fully_sharded", 2, 8),
        Division("pipeline", 2, 8, segments=4),
    ],
    ids=lambda of: of.strategy,
)
def test_what_an_iteration_adds_is_in_its_layers(division: Division, per_layer: float) -> None:
    """Laws in place, of more and of less than isolated layers, messages and passes take."""
    phases = ("forward", "backward", "layerwise", "exchange", "pack", "unpack")
    laws = [law(phase, active, per_layer, 1e-11) for phase in phases for active in (1, 2)]
    plain, found = (checked(NET, division, full_machine(composition=of))[0] for of in ([], laws))
    seconds = [
        [task.end_s - task.begin_s for task in of if task.name.startswith(("forward", "backward"))]
        for of in (plain, found)
    ]
    assert len(seconds[0]) == len(seconds[1])
    for without, having in zip(*seconds, strict=True):
        assert (having > without) is (per_layer > 0) and having > 0


@pytest.mark.parametrize("strategy", ["data", "filter", "channel", "fully_sharded"])
def test_what_a_rested_link_saves_is_in_its_message(strategy: str) -> None:
    division = Division(strategy, 2, 8)
    without, having = (
        [task for task in checked(NET, division, hosts(of))[0] if task.kind == "collective"]
        for of in (None, bucket(100, 0.5))
    )
    took = [[task.end_s - task.begin_s for task in of] for of in (without, having)]
    assert all(saved <= whole + 1e-15 for whole, saved in zip(*took, strict=True))
    assert sum(took[1]) < sum(took[0])


@settings(max_examples=30, deadline=None)
@given(
    st.sets(st.integers(0, len(NET.layers) - 1), min_size=2, max_size=2).map(sorted),
    st.sampled_from(
        [
            Division("serial", 1, 8),
            Division("data", 2, 8, accumulation=2),
            Division("filter", 2, 8),
            Division("channel", 2, 8),
            Division("pipeline", 2, 8, segments=4),
        ]
    ),
)
def test_checkpointed_layers_run_again(region: list[int], division: Division) -> None:
    first, last = region
    model = marked(NET, *(layer.name for layer in NET.layers[first : last + 1]))
    checked(model, division, full_machine())


@pytest.mark.parametrize(
    ("model", "division", "said"),
    [
        (
            cuttable().model,
            Division("spatial", 2, 8),
            "a trace cannot hold spatial: it sends halos",
        ),
        (
            cuttable().model,
            Division("data+spatial", 4, 8, inner=2),
            r"a trace cannot hold data\+spatial",
        ),
        (
            MODELS["gpt"],
            Division("tensor", 2, 8, sequence_parallel=True),
            "a trace cannot hold tensor: it sends parts of the tokens",
        ),
        (NET, Division("filter", 7, 8), "p is at most 3"),
        (NET, Division("pipeline", 2, 4_000_000, segments=4_000_000), "more than 4000000"),
    ],
)
def test_what_has_no_tasks_is_refused(model: ModelSpec, division: Division, said: str) -> None:
    with pytest.raises(InputError, match=said):
        tasks_of(model, division, Machine(full_machine()))
