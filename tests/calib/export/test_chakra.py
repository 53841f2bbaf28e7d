"""Chakra traces of predicted iterations: their bytes, and that their simulation is the prediction."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from tests.calib.export import chakra_traces as traces
from tests.calib.inside import calib
from tests.calib.machines import NET, full_machine
from tests.calib.running import refused
from tests.helpers.token_models import TOKENS, Gpt
from tests.oracle.handmade import estimate, machine
from tests.oracle.networks import overlap
from tests.oracle.simulated import cuttable
from tests.oracle.simulated_pipeline import Times, makespan
from tests.oracle.test_pipeline import MODEL, cases

from calib.export.chakra import nodes_of, write_traces
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.memory import OverlappedIteration
from calib.foundation.division import Division
from calib.foundation.layer_keys import iteration_key
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.workload import model_weights, workload
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.tasks.iteration import tasks_of
from calib.oracle.tasks.program import Task
from calib.oracle.trace.tracing import trace

ROUNDED_US = 1  # of the end of an iteration
BLOCKS = ModelSpec(
    name="blocks",
    input_shape=NET.input_shape,
    classes=NET.classes,
    layers=tuple(
        layer.model_copy(
            update={
                "name": f"blocks.{number}.{layer.name}",
                "inputs": tuple(
                    of if of == "input" else f"blocks.{number - 1}.{of}" for of in layer.inputs
                ),
            }
        )
        for number, layer in enumerate(NET.layers)
    ),
)
SECONDS = ("call_s", "s_per_flop", "s_per_byte", "s_per_tensor")
SLOW = 1000.0  # times of hand-made machines are of microseconds, and a trace has no parts of them


def written(
    to: Path, model: ModelSpec, division: Division, parameters: Parameters
) -> tuple[list[list[traces.Node]], dict[str, list[int]], float]:
    """Nodes and groups as they are in the files, and the predicted seconds."""
    known = Machine(parameters)
    predicted = project(model, division, known)
    assert predicted.total is not None
    iteration = tasks_of(model, predicted.division, known)
    write_traces(to, iteration, predicted, parameters)
    return *traces.folder(to), predicted.total.value


def slower(parameters: Parameters) -> Parameters:
    """All that its laws take, SLOW times as long."""
    content = parameters.model_dump()
    for law in (*content["work"], *content["tensor_loops"]):
        law |= {key: SLOW * law[key] for key in SECONDS if key in law}
    for fit in content["collectives"]:
        for of in (
            fit["intercept_s"],
            fit["slope_s_per_byte"],
            *(x["seconds"] for x in fit["points"]),
        ):
            of |= {key: SLOW * of[key] for key in ("value", "low", "high")}
    return Parameters(**content)


DIVISIONS = [
    Division("serial", 1, 8),
    Division("serial", 1, 8, accumulation=4),
    Division("data", 2, 8),
    Division("data", 4, 16, accumulation=2),
    Division("data", 2, 8, sharded_optimizer=True),
    Division("data", 2, 8, overlap=True),
    Division("data", 4, 16, overlap=True, sharded_optimizer=True, accumulation=2),
    Division("fully_sharded", 4, 16),
    Division("filter", 2, 8),
    Division("channel", 3, 9),
    Division("data+filter", 4, 8, inner=2),
    Division("tensor", 2, 8),
    Division("pipeline", 1, 8, segments=4),
    Division("pipeline", 2, 8, segments=4),
    Division("pipeline", 4, 8, segments=8),
    Division("pipeline", 4, 8, segments=2, schedule="1f1b"),
    Division("pipeline", 3, 9, segments=9, schedule="1f1b"),
]


@pytest.mark.parametrize("model", [NET, BLOCKS], ids=["net", "blocks"])
@pytest.mark.parametrize("node", [1, 2, 4])
@pytest.mark.parametrize("division", DIVISIONS, ids=lambda of: f"{of.strategy} {of.p} {of.layout}")
def test_simulation_is_the_prediction(
    division: Division, node: int, model: ModelSpec, tmp_path: Path
) -> None:
    etas = [overlap(2, 0.4), overlap(4, 0.9)]
    parameters = slower(full_machine(overlap=etas, ranks_per_node=node))
    ranks, groups, seconds = written(tmp_path, model, division, parameters)
    assert len(ranks) == division.p
    found = traces.simulated(ranks, groups)
    assert found > 1000 and abs(found - 1e6 * seconds) <= ROUNDED_US
    assert max(map(traces.replayed, ranks)) == found


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cases())
def test_pipelines_take_what_their_events_take(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[Parameters, Division, Times]
) -> None:
    """Random stages, messages and schedules, against a simulation that knows neither terms nor tasks."""
    parameters, division, times = case
    ranks, groups, seconds = written(tmp_path_factory.mktemp("et"), MODEL, division, parameters)
    found = traces.simulated(ranks, groups)
    update = next(node.duration for node in ranks[0] if node.name == "weight update")
    expected = makespan(division.schedule, times, division.segments)
    assert found - update == pytest.approx(1e6 * expected, abs=2)
    assert abs(found - 1e6 * seconds) <= ROUNDED_US


def test_layers_take_what_the_oracle_says(tmp_path: Path) -> None:
    """Serial: without laws in place each node is its layer's own time, in the order of running."""
    parameters = slower(machine())
    ((nodes,), groups, _) = written(tmp_path, NET, Division("serial", 1, 8), parameters)
    assert groups == {}
    costs = Machine(parameters).costs(1)
    work = workload(NET, Division("serial", 1, 8))
    forward, backward = (costs.layers.each(work, 8, d) for d in ("forward", "backward"))
    names = [layer.name for layer in NET.layers]
    expected = [(f"forward of {name}", cost) for name, cost in zip(names, forward, strict=True)]
    expected += [(f"backward of {name}", cost) for name, cost in zip(names, backward, strict=True)][
        ::-1
    ]
    assert [node.name for node in nodes] == [*(name for name, _ in expected), "weight update"]
    for node, (_, cost) in zip(nodes, expected, strict=False):
        assert node.duration == pytest.approx(1e6 * cost.seconds, abs=1)
        assert node.type == traces.COMPUTE


def test_a_collective_as_the_simulators_read_it(tmp_path: Path) -> None:
    """comm_type, comm_size and pg_name; the field of each value is that which chakra's feeder reads."""
    division = Division("data+filter", 4, 8, inner=2)
    ranks, groups, _ = written(tmp_path, NET, division, full_machine())
    assert sorted(map(tuple, groups.values())) == [(0, 1), (0, 2), (1, 3), (2, 3)]
    for rank, nodes in enumerate(ranks):
        sent = [node for node in nodes if node.type == traces.COLLECTIVE]
        # of three layers: y forward, dL/dx of all but the first; and the gradients
        assert Counter(node.attributes["comm_type"] for node in sent) == {2: 3, 0: 3}
        for node in sent:
            of = node.attributes
            assert rank in groups[of["pg_name"]]
            assert [of[f"{name}, field"] for name in ("comm_type", "comm_size", "pg_name")] == [
                9,
                9,
                29,
            ]
            assert (of["is_cpu_op"], of["is_cpu_op, field"]) == (False, 27)
            assert (of["involved_dim"], of["involved_dim, field"]) == ([True] * 4, 28)
    # y of fc1: 4 samples of 8 float32 in all, of which each of 2 ranks gives half
    first = next(node for node in ranks[0] if node.name == "allgather of y of fc1")
    assert first.attributes["comm_size"] == 4 * 8 * 4 // 2
    # a shard: half of 12x8 + 8, 8x8 + 8, and 2 of 3 rows of 8 + 1
    gradients = next(node for node in ranks[0] if node.name.startswith("allreduce of gradients"))
    assert gradients.attributes["comm_size"] == 4 * (4 * 13 + 4 * 9 + 2 * 9)


def test_messages_of_a_pipeline_meet(tmp_path: Path) -> None:
    division = Division("pipeline", 3, 8, segments=4)
    ranks, groups, _ = written(tmp_path, NET, division, full_machine())
    assert groups == {}
    ends: dict[int, list[tuple[int, ...]]] = {traces.SEND: [], traces.RECEIVE: []}
    for rank, nodes in enumerate(ranks):
        for node in nodes:
            if node.type in ends:
                of = node.attributes
                assert rank == of["comm_src" if node.type == traces.SEND else "comm_dst"]
                names = ("comm_src", "comm_dst", "comm_tag", "comm_size")
                assert [of[f"{name}, field"] for name in names] == [7, 7, 7, 9]
                ends[node.type].append(tuple(of[name] for name in names))
    assert sorted(ends[traces.SEND]) == sorted(ends[traces.RECEIVE])
    assert len(set(ends[traces.SEND])) == 2 * 2 * 4  # borders, directions, micro-batches
    # outputs of the border layers are of 8 float32, for 2 samples
    assert {of[3] for of in ends[traces.SEND]} == {2 * 8 * 4}


def test_units_are_gathered_before_their_layers_and_scattered_behind(tmp_path: Path) -> None:
    """blocks.0 has two layers with weights, gathered in each direction; the root is gathered once."""
    names = {"fc1": "blocks.0.fc1", "fc2": "blocks.0.fc2", "relu2": "blocks.1.relu2"}
    layers = [
        layer.model_copy(
            update={
                "name": names.get(layer.name, layer.name),
                "inputs": tuple(names.get(of, of) for of in layer.inputs),
            }
        )
        for layer in NET.layers
    ]
    model = NET.model_copy(update={"layers": tuple(layers)})
    ranks, _, _ = written(tmp_path, model, Division("fully_sharded", 2, 8), full_machine())
    order = [node.name.replace("blocks.0.", "") for node in ranks[1]]
    assert order == [
        "allgather of weights of the root",
        "allgather of weights of blocks.0",
        *(
            f"forward of {name}"
            for name in ("fc1", "relu1", "fc2", "blocks.1.relu2", "fc3", "loss")
        ),
        *(f"backward of {name}" for name in ("loss", "fc3", "blocks.1.relu2")),
        "allgather of weights of blocks.0",
        *(f"backward of {name}" for name in ("fc2", "relu1", "fc1")),
        "pack the gradients of blocks.0",
        "reduce_scatter of gradients of blocks.0",
        "average the gradients of blocks.0",
        "pack the gradients of the root",
        "reduce_scatter of gradients of the root",
        "average the gradients of the root",
        "weight update",
    ]


@pytest.mark.parametrize("eta", [0.0, 0.25, 1.0])
def test_the_hidden_part_of_an_exchange_runs_beside_the_backward(
    eta: float, tmp_path: Path
) -> None:
    parameters = slower(full_machine(overlap=[overlap(2, eta, margin=0.0)]))
    division = Division("data", 2, 8, overlap=True)
    ranks, _, _ = written(tmp_path, NET, division, parameters)
    sent = [node for node in ranks[0] if node.type == traces.COLLECTIVE]
    backward_ends = max(n.start + n.duration for n in ranks[0] if n.name.startswith("backward"))
    beside = [node for node in sent if node.start < backward_ends]
    whole = sum(node.attributes["comm_size"] for node in sent)
    assert whole == 4 * (12 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3)
    if eta == 0:
        assert len(sent) == 1 and beside == []
    else:
        assert [node.start + node.duration for node in beside] == [
            pytest.approx(backward_ends, abs=1)
        ]
        total = sum(node.duration for node in sent)
        assert sum(node.duration for node in beside) == pytest.approx(eta * total, abs=1)
        assert sum(n.attributes["comm_size"] for n in beside) == pytest.approx(eta * whole, abs=4)
        assert len(sent) == 2 - (eta == 1)


# made by google.protobuf 7.36.2 with a module that protoc made of et_def.proto (mlcommons/chakra,
# 89c551d7): Node(id=1, name="allreduce of y", type=COMM_COLL_NODE, data_deps=[0], start 300, duration 4)
GOLDEN_NODE = (
    "0801120e616c6c726564756365206f66207918072a010030ac023804520e0a0969735f6370755f6f70d80100520d0a0963"
    "6f6d6d5f747970654800520e0a09636f6d6d5f73697a6548a80352170a0c696e766f6c7665645f64696de201060a040101"
    "0101520d0a0770675f6e616d65ea010131"
)


def test_bytes_are_those_of_googles_protobuf() -> None:
    before = Task("x", "compute", 0.0, 3e-4, ())
    of = Task("allreduce of y", "collective", 3e-4, 3.04e-4, (0,), "allreduce", 424, (0, 1))
    _, found = nodes_of([before, of], 4, {})
    assert found.hex() == GOLDEN_NODE


# the command


@pytest.fixture
def here(tmp_path: Path) -> Path:
    full_machine().write(tmp_path / "parameters.json")
    NET.write(tmp_path / "model.json")
    return tmp_path


COMMAND = ("predict", "--model", "model.json", "--parameters", "parameters.json", "--batch", "8")


def test_the_command_writes_a_folder(here: Path) -> None:
    done = calib(here, *COMMAND, "--strategy", "data", "-p", "2", "--chakra", "out", "--json")
    assert done.returncode == 0, done.stderr
    assert "--workload-configuration=out/iteration" in done.stderr
    (found,) = json.loads(done.stdout)
    names = sorted(path.name for path in (here / "out").iterdir())
    assert names == ["comm_groups.json", "iteration.0.et", "iteration.1.et"]
    about, nodes = traces.read(here / "out" / "iteration.1.et")
    assert about["version"] == "0.0.4" and about["model"] == "hand" and about["ranks"] == 2
    total = found["total"]
    assert (about["predicted_s"], about["low95_s"]) == (total["value"], total["low"])
    assert about["parameters"] == json.loads((here / "parameters.json").read_text())["signature"]
    assert math.isclose(traces.replayed(nodes), 1e6 * total["value"], abs_tol=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--strategy data -p 2,4 --chakra out", "one iteration, not 2"),
        ("--strategy data -p 2 --form paper --chakra out", "the measured form"),
        ("--strategy filter -p 7 --chakra out", "p is at most 3"),
        ("--strategy data -p 2 --chakra full", "new or empty folder"),
        ("--strategy data -p 2 --chakra model.json", "new or empty folder"),
    ],
)
def test_what_is_refused_in_one_line(options: str, said: str, here: Path) -> None:
    (here / "full").mkdir()
    (here / "full" / "iteration.5.et").touch()
    assert said in refused(calib(here, *COMMAND, *options.split()))
    assert not (here / "out").exists()


def test_what_a_trace_cannot_hold(here: Path) -> None:
    """Halos: spatial; and sequence parallelism of tensor."""
    cuttable().model.write(here / "model.json")
    done = calib(here, *COMMAND, *["--strategy", "spatial", "-p", "2", "--chakra", "out"])
    assert "a trace cannot hold spatial: it sends halos" in refused(done)
    assert not (here / "out").exists()


def test_overlap_as_it_was_measured(tmp_path: Path) -> None:
    """An iteration measured whole scales all nodes; a slowdown is in those of the backward."""
    parameters = slower(full_machine())
    division = Division("data", 2, 8, overlap=True)
    keys = [layer.shape.key(4, "float32", layer.needs_input_grad) for layer in NET.layers]
    weights = model_weights(NET).key
    known = OverlappedIteration(
        key=iteration_key(keys, weights, "momentum"), model="any", seconds=estimate(2.0)
    )
    half = overlap(2, 0.5)
    slowdown = overlap(2, 0.0).model_copy(update={"slowdown": estimate(0.1)})
    laws = {"whole": half.model_copy(update={"iterations": [known]}), "slower": slowdown}
    plain, _, seconds = written(tmp_path / "plain", NET, Division("data", 2, 8), parameters)
    for name, law in laws.items():
        of = parameters.model_copy(update={"overlap": [law]})
        ranks, groups, predicted = written(tmp_path / name, NET, division, of)
        found = traces.simulated(ranks, groups)
        assert abs(found - 1e6 * predicted) <= ROUNDED_US
        assert predicted == pytest.approx(2.0 if name == "whole" else 1.1 * seconds)
    back = [
        sum(n.duration for n in of[0] if n.name.startswith("backward")) for of in (plain, ranks)
    ]
    assert back[1] - back[0] == pytest.approx(0.1 * 1e6 * seconds, abs=len(NET.layers))


def test_a_tied_weight_is_summed_by_its_stages(tmp_path: Path) -> None:
    """Of a language model whose head is the table: stages 0 and 2 of 3."""
    model = trace(Gpt(), (TOKENS,), "gpt", "cross_entropy")
    parameters = slower(full_machine())
    ranks, groups, seconds = written(
        tmp_path, model, Division("pipeline", 3, 8, segments=4), parameters
    )
    assert groups == {"1": [0, 2]}
    sums = [[n for n in nodes if n.type == traces.COLLECTIVE] for nodes in ranks]
    assert [len(of) for of in sums] == [1, 0, 1]
    assert abs(traces.simulated(ranks, groups) - 1e6 * seconds) <= ROUNDED_US
