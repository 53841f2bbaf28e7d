"""Predictions of an execution: its own times, laws and bytes; none of another; MPI's sums."""

from __future__ import annotations

from typing import Any

import pytest
from tests.oracle.handmade import (
    CALL_S,
    EXACT,
    S_PER_BYTE,
    S_PER_FLOP,
    conv,
    estimate,
    law,
    layer_time,
    linear,
    machine,
    mlp,
    rank_of,
    tensor_loop,
    tensor_loops,
    work_model,
)
from tests.oracle.memory.reuse import PARTS, reuse

from calib.fitting.parameters.file import LayerTime, Parameters, TensorLoop, WorkModel
from calib.foundation.division import Division
from calib.foundation.errors import MissingParameter
from calib.foundation.execution import execution_of
from calib.foundation.layer_keys import execution_in
from calib.oracle.cost import NOTHING
from calib.oracle.costs.in_place import NOT_IN_PLACE, InPlaceLaws, ranks_at_work
from calib.oracle.costs.layers import LayerCosts
from calib.oracle.costs.machine import WIDENED, Machine
from calib.oracle.costs.tensors import TensorCosts
from calib.oracle.layout.traffic import gradient_messages
from calib.oracle.layout.workload import LayerPiece, model_weights
from calib.oracle.memory.peak import OTHER_STRATEGY_FACTOR, peak_bytes
from calib.oracle.model.layer import Layer
from calib.oracle.predict import project

LAYER = linear("fc", "input", 12, 8)
NET = mlp([12, 8, 6])
HALF, GRAPH = "bfloat16", "float32+cuda_graph"


def timed(execution: str, seconds: float, active: int = 2, layer: Layer = LAYER) -> LayerTime:
    key = layer.shape.key(4, execution, layer.needs_input_grad)
    return layer_time(layer, 4, active, seconds, seconds).model_copy(update={"key": key})


def of_work(execution: str, scale: float) -> list[WorkModel]:
    """Laws of every kind for 1 and 2 ranks at work, `scale` times as slow as float32's."""
    return [
        of.model_copy(
            update={
                "execution": execution,
                **{x: scale * getattr(of, x) for x in ("call_s", "s_per_flop", "s_per_byte")},
            }
        )
        for kind in ("linear", "conv", "any")
        for direction in ("forward", "backward")
        for of in [work_model(kind, direction, active) for active in (1, 2)]
    ]


def of_loops(execution: str) -> list[TensorLoop]:
    loops = tensor_loops("update", "pack", "unpack")
    return [loop.model_copy(update={"execution": execution}) for loop in loops]


def both(**changes: Any) -> Parameters:
    """float32, and half precision whose calls and operations take three times as long."""
    usual = machine()
    return machine(
        work=[*usual.work, *of_work(HALF, 3.0)],
        tensor_loops=[*usual.tensor_loops, *of_loops(HALF)],
        **changes,
    )


def test_execution_in_a_key() -> None:
    for execution in ("float32", "bfloat16-mixed+channels_last"):
        for layer in (LAYER, conv("c", "input", 3, 4, 8, needs_input_grad=False)):
            key = layer.shape.key(4, execution, layer.needs_input_grad)
            assert execution_in(key) == layer.shape.runs_as(execution)
    assert execution_in("of another tool") == ""


def test_each_execution_has_its_own_times() -> None:
    parameters = both(
        layers=[timed("float32", 1e-3), timed(HALF, 5e-4), timed(HALF, 9e-4, active=4)],
        ranks_per_node=4,
    )
    work = rank_of([LAYER])
    found = {
        name: LayerCosts(parameters, 2, name).total(work, "all", 4, "forward").seconds
        for name in ("float32", HALF)
    }
    assert found == {"float32": 1e-3, HALF: 5e-4}
    # those of 4 ranks at work are of half precision alone
    assert LayerCosts(parameters, 4, HALF).active_ranks == 4
    assert ranks_at_work(parameters, 4)[0] == 2
    assert ranks_at_work(parameters, 3, HALF)[0] == 4


def test_each_execution_has_its_own_laws() -> None:
    """Calls and operations take 3 times as long, and half of the bytes 3 times as long each."""
    known = Machine(both())
    whole, half = (
        project(NET.run_as(name), Division("serial", 1, 8), known) for name in ("float32", HALF)
    )
    assert (whole.execution, half.execution) == ("float32", HALF)
    assert half.bytes_per_rank * 2 == whole.bytes_per_rank
    seconds = {}
    for name in ("float32", HALF):
        piece = LayerPiece(LAYER.shape, True, execution_of(name).items)
        seconds[name] = known.costs(1, "momentum", name).layers.price(piece, 8, "forward").seconds
    flops, items = LAYER.shape.forward_flops(8), 8 * (12 + 8) + 12 * 8 + 8
    for name, scale, each in (("float32", 1.0, 4), (HALF, 3.0, 2)):
        by_hand = scale * (CALL_S + flops * S_PER_FLOP + each * items * S_PER_BYTE)
        assert seconds[name] == pytest.approx(by_hand, rel=EXACT)


def test_an_execution_that_was_not_measured_is_refused() -> None:
    parameters = both()
    assert parameters.executions == ("float32", HALF)
    with pytest.raises(MissingParameter, match=r"in float64, only in float32, bfloat16") as caught:
        project(NET.run_as("float64"), Division("serial", 1, 8), parameters)
    assert caught.value.wants == "execution float64"
    # a graph runs the kernels of float32, but memory format changes them
    project(NET.run_as(GRAPH), Division("serial", 1, 8), parameters)
    with pytest.raises(MissingParameter, match="channels_last"):
        project(NET.run_as("float32+channels_last"), Division("serial", 1, 8), parameters)
    lacking = machine(work=of_work(HALF, 1.0))
    with pytest.raises(MissingParameter, match="no update time in bfloat16"):
        project(NET.run_as(HALF), Division("serial", 1, 8), lacking)


def test_a_graph_has_its_own_composition_and_no_times_in_place() -> None:
    measured = timed("float32", 1e-3).model_copy(update={"in_place_forward_s": estimate(7e-3)})
    rule = law("forward", 2, s_per_layer=1e-4)
    parameters = machine(layers=[measured], composition=[rule])
    work = rank_of([LAYER])
    usual, graph = (LayerCosts(parameters, 2, name) for name in ("float32", GRAPH))
    assert usual.total(work, "all", 4, "forward").seconds == 7e-3
    assert usual.beside(work, work.counts["all"], 4, "forward") == (NOTHING, 0, 0.0)
    assert graph.total(work, "all", 4, "forward").seconds == 1e-3
    extra, layers, _ = graph.beside(work, work.counts["all"], 4, "forward")
    assert layers == 1 and extra.notes == (NOT_IN_PLACE,) and extra.seconds == 0
    own = rule.model_copy(update={"execution": GRAPH, "s_per_layer": 3e-4})
    parameters = machine(layers=[measured], composition=[rule, own])
    graph = LayerCosts(parameters, 2, GRAPH)
    assert graph.beside(work, work.counts["all"], 4, "forward")[0].seconds == 3e-4
    assert InPlaceLaws(parameters, 2).extra("forward", 0.0, 1, 0).seconds == 1e-4
    assert not InPlaceLaws(parameters, 2, HALF).any_measured


def test_passes_are_of_the_execution() -> None:
    """Weights of half precision are half the bytes of a law that may differ, too."""
    slow = tensor_loop("update", 2).model_copy(update={"execution": HALF, "s_per_byte": 1e-8})
    parameters = machine(
        tensor_loops=[tensor_loop("update", 2), slow], work=[*machine().work, *of_work(HALF, 1.0)]
    )
    loop = slow.call_s + 4 * slow.s_per_tensor
    weights = model_weights(NET.run_as(HALF))
    found = TensorCosts(parameters, 2, HALF).update(weights, "momentum")
    assert weights.nbytes == 2 * NET.parameter_items
    assert found.seconds == pytest.approx(loop + 2 * NET.parameter_items * 1e-8, rel=EXACT)
    # autocast updates float32 weights, by its own law
    assert model_weights(NET.run_as("bfloat16-mixed")).nbytes == 4 * NET.parameter_items


def test_mpi_adds_up_half_precision_as_float32() -> None:
    """On CPUs an exchange of half the bytes takes as long; NCCL sends what there is."""
    parameters = both()
    for device, factor in (("cpu", 1.0), ("cuda", 0.5)):
        of = parameters.model_copy(
            update={
                "device_kind": device,
                "tensor_loops": [
                    loop.model_copy(update={"device": device}) for loop in parameters.tensor_loops
                ],
            }
        )
        whole, half = (
            project(NET.run_as(name), Division("data", 2, 8), of, explain=True)
            for name in ("float32", HALF)
        )
        sent = {x.execution: term for x in (whole, half) for term in x.terms if "W" in term.values}
        assert [sent[x].values["W"] for x in sent] == [n * NET.parameter_items for n in (4, 2)]
        costs = Machine(of).costs(2, "momentum", HALF)
        (message,) = gradient_messages(NET.run_as(HALF), Division("data", 2, 8))
        alone = costs.network.time(message._replace(nbytes=round(factor * 4 * NET.parameter_items)))
        assert half.phases["exchange"].value == pytest.approx(alone.seconds, rel=EXACT)
        assert (WIDENED in half.notes) == (device == "cpu")
        assert WIDENED not in whole.notes


def test_memory_by_the_law_of_the_execution() -> None:
    usual = reuse()
    other = usual.model_copy(update={"execution": HALF, "gamma": estimate(0.25)})
    division, serial = Division("data", 2, 8), Division("serial", 1, 8)
    alone, also = machine(memory=[usual]), machine(memory=[usual, other])
    for of in (division, serial):
        before, _, notes = peak_bytes(alone, of, PARTS)
        assert peak_bytes(also, of, PARTS) == peak_bytes(alone, of, PARTS)
        wide, _, more = peak_bytes(alone, of, PARTS, None, HALF)
        assert before is not None and wide is not None
        assert wide.value == before.value
        assert wide.low == pytest.approx(before.low / OTHER_STRATEGY_FACTOR)
        assert wide.high == pytest.approx(before.high * OTHER_STRATEGY_FACTOR)
        (said,) = [note for note in more if note not in notes]
        assert "not measured in bfloat16: that of float32" in said
        own, _, own_notes = peak_bytes(also, of, PARTS, None, HALF)
        assert own is not None and own != wide and said not in own_notes
    # never by the law of a third
    assert peak_bytes(machine(memory=[other]), division, PARTS, None, "float32").device is None
