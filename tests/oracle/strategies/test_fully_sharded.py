"""Fully sharded data parallelism on hand-made machines: terms and bytes in closed form."""

from __future__ import annotations

import pytest
from tests.oracle.handmade import (
    ALPHA_S,
    BETA_S_PER_BYTE,
    EXACT,
    LOOP_BYTE_S,
    LOOP_CALL_S,
    LOOP_TENSOR_S,
    law,
    machine,
    operations,
)
from tests.oracle.layout.test_units import chain

from calib.foundation.collectives import Operation
from calib.foundation.division import Division
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.traffic import Message
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.projection import Projection

# units of 24 items (the root), 12, 12 and 24, on 2 ranks without filling up: 96, 48, 48 and 96 B
NET = chain("first", "blocks.0.a", "blocks.1.a", "blocks.2.a", "blocks.2.b", "last")
SIZES = (96, 48, 48, 96)
FITS = operations("allreduce", "reduce_scatter", "allgather")
DIVISION = Division("fully_sharded", 2, 8)


def answer(division: Division = DIVISION, **more: object) -> Projection:
    return project(NET, division, machine(collectives=FITS, **more), explain=True)


def alone(operation: Operation, nbytes: int) -> float:
    """One call, between measured sizes."""
    return Machine(machine(collectives=FITS)).network.time(Message(operation, nbytes, 2)).seconds


def term(found: Projection, start: str) -> float:
    (seconds,) = (of.time.value for of in found.terms if of.what.startswith(start))
    return seconds


def test_collectives_passes_and_update_by_hand() -> None:
    """7 allgathers, 4 reduce-scatters, each list packed once, and one update of four flat shards."""
    found = answer()
    data = project(NET, Division("data", 2, 8), machine(collectives=FITS))
    assert found.phases["forward"] == data.phases["forward"]
    assert found.phases["backward"] == data.phases["backward"]
    weights = sum(SIZES)
    pack = 4 * LOOP_CALL_S + 12 * LOOP_TENSOR_S + weights * LOOP_BYTE_S
    average = 4 * LOOP_CALL_S + 4 * LOOP_TENSOR_S + weights / 2 * LOOP_BYTE_S
    update = LOOP_CALL_S + 4 * LOOP_TENSOR_S + weights / 2 * LOOP_BYTE_S
    assert term(found, "pack") == pytest.approx(pack, rel=EXACT)
    assert term(found, "average") == pytest.approx(average, rel=EXACT)
    assert found.phases["update"].value == pytest.approx(update, rel=EXACT)
    reduced = sum(alone("reduce_scatter", nbytes) for nbytes in SIZES)
    gathered = sum(alone("allgather", nbytes) for nbytes in (*SIZES, *SIZES[1:]))
    found_reduced = term(found, "reduce_scatter of gradients, 4 calls")
    assert found_reduced == pytest.approx(reduced, rel=EXACT)
    assert term(found, "allgather of weights, 7 calls") == pytest.approx(gathered, rel=EXACT)


def test_what_an_iteration_adds() -> None:
    """Every one of 11 calls is a meeting; packing and update are those of data parallelism."""
    laws = [law(name, 2, 0.0, 1e-9) for name in ("pack", "unpack", "exchange", "update")]
    plain, found = answer(), answer(composition=[*laws, law("layerwise", 2, 1e-4)])
    weights = sum(SIZES)
    for phase, seconds in (
        ("pack", 1e-9 * (weights + weights / 2)),
        ("layerwise", 11 * 1e-4),
        ("update", 1e-9 * weights / 2),
        ("exchange", 0.0),
    ):
        more = found.phases[phase].value - plain.phases[phase].value
        assert more == pytest.approx(seconds, rel=1e-9)


def test_the_equation() -> None:
    """(p-1) (alpha + W_u beta / p) for every call, and half of the update."""
    found = project(NET, DIVISION, machine(collectives=FITS), "paper")
    data = project(NET, Division("data", 2, 8), machine(collectives=FITS), "paper")
    calls, nbytes = 7 + 4, 3 * sum(SIZES) - SIZES[0]
    # of allgather and reduce-scatter the slope is (p-1)/p beta, and this machine's is an allreduce's
    seconds = calls * 2 * ALPHA_S + nbytes * BETA_S_PER_BYTE
    assert found.phases["layerwise"].value == pytest.approx(seconds, rel=1e-9)
    assert found.phases["update"].value == pytest.approx(data.phases["update"].value / 2)
    assert found.phases["forward"] == data.phases["forward"]


def test_naive_bytes() -> None:
    """Half of weights, gradients and momentum; two units whole; what is sent and received."""
    found = answer()
    data = project(NET, Division("data", 2, 8), machine(collectives=FITS))
    half, whole = sum(SIZES) // 2, 96 + 96
    assert found.bytes_by_part == {
        "activations": data.bytes_by_part["activations"],
        "weights": half + whole,
        "gradients": half + whole,
        "optimizer": half,
        "exchange": 96 + 48,
    }
    assert found.limit.ranks == 8
    assert not answer(Division("fully_sharded", 16, 8)).feasible


def test_less_memory_than_data_parallelism_has() -> None:
    """Of a model whose units are small beside it."""
    names = [f"blocks.{n}.a" for n in range(20)]
    model: ModelSpec = chain(*names)
    for p in (2, 4, 8):
        mine, data = (
            project(model, Division(strategy, p, 8), machine(collectives=FITS)).bytes_by_part
            for strategy in ("fully_sharded", "data")
        )
        for part in ("weights", "gradients", "optimizer"):
            assert mine[part] < data[part]
