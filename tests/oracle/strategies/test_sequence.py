"""Sequence parallelism on hand-made machines: terms, bytes and limit in closed form."""

from __future__ import annotations

import pytest
from tests.helpers.sequence_models import TOKENS, Gpt
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
    tensor_loops,
)
from tests.oracle.operator_models import WIDTH

from calib.foundation.division import Division
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.traffic import Message
from calib.oracle.memory.live_bytes import live_bytes
from calib.oracle.predict import project
from calib.oracle.projection import Projection
from calib.oracle.trace.tracing import trace

# two blocks, a head with the table of the tokens, a loss of each token
NET, BATCH = trace(Gpt(), (TOKENS,), "gpt", "cross_entropy"), 8
FITS = operations("allreduce", "all_to_all")
DIVISION = Division("sequence", 2, BATCH)
PART = 4 * BATCH * TOKENS * WIDTH // 2
SWITCHES = 2 * 2 * 4  # there and back, of two blocks: queries, keys, values, and what they become
LOOPS = tensor_loops("update", "pack", "unpack", "concat", "split")


def answer(form: str = "measured", **more: object) -> Projection:
    of = machine(collectives=FITS, tensor_loops=LOOPS, **more)
    return project(NET, DIVISION, of, form, explain=True)  # type: ignore[arg-type]


def test_messages_and_update_by_hand() -> None:
    """Sixteen all-to-alls of a rank's part, and an allreduce and the update of all weights."""
    found, network = answer(), Machine(machine(collectives=FITS)).network
    switch = network.time(Message("all_to_all", PART, 2)).seconds
    assert found.phases["layerwise"].value == pytest.approx(SWITCHES * switch, rel=EXACT)
    nbytes, count = 4 * NET.parameter_items, len(NET.parameter_shapes)
    exchange = network.time(Message("allreduce", nbytes, 2)).seconds
    assert found.phases["exchange"].value == pytest.approx(exchange, rel=EXACT)
    update = LOOP_CALL_S + count * LOOP_TENSOR_S + nbytes * LOOP_BYTE_S
    assert found.phases["update"].value == pytest.approx(update, rel=EXACT)


def test_copies_by_hand() -> None:
    """A split and a concat of a part for each all-to-all, and of the input's slice a split."""
    of_parts = LOOP_CALL_S + 2 * LOOP_TENSOR_S + PART * LOOP_BYTE_S
    of_input = LOOP_CALL_S + 2 * LOOP_TENSOR_S + 4 * BATCH * TOKENS * LOOP_BYTE_S
    copies = {term.what: term.time.value for term in answer().terms if term.phase == "pack"}
    found = [of for what, of in copies.items() if "gradients" not in what]
    assert sorted(found) == pytest.approx(
        [SWITCHES * of_parts, SWITCHES * of_parts + of_input], rel=1e-9
    )


def test_ranks_meet_sixteen_times() -> None:
    more = answer(composition=[law("layerwise", 2, 1e-4)]).phases["layerwise"].value
    assert more - answer().phases["layerwise"].value == pytest.approx(SWITCHES * 1e-4, rel=1e-9)


def test_the_equation() -> None:
    """(B/p) sum_split + B sum_rest, (p-1) (alpha + m beta / p), AR(p, W), and WU of all weights."""
    found = answer("paper")
    # the same measured times are one step of an all-to-all, and two of an allreduce
    alpha_s, beta = 2 * ALPHA_S, 2 * BETA_S_PER_BYTE
    assert found.phases["layerwise"].value == pytest.approx(
        SWITCHES * (alpha_s + PART * beta / 2), rel=1e-9
    )
    exchange = 2 * (ALPHA_S + 4 * NET.parameter_items * BETA_S_PER_BYTE / 2)
    assert found.phases["exchange"].value == pytest.approx(exchange, rel=1e-9)
    alike = machine(collectives=FITS, tensor_loops=LOOPS)
    serial = project(NET, Division("serial", 1, BATCH), alike, "paper")
    assert found.phases["update"].value == pytest.approx(serial.phases["update"].value)
    forward = {term.what: term.values for term in found.terms if term.formula.endswith("FW")}
    assert forward["split layers"]["samples"] == BATCH / 2
    assert forward["whole layers"]["samples"] == BATCH


def test_bytes_of_parts() -> None:
    """Activations are half, but for positions and the mask; weights and gradients are whole."""
    alike = machine(collectives=FITS, tensor_loops=LOOPS)
    one = project(NET, Division("serial", 1, BATCH), alike).bytes_by_part
    two = answer().bytes_by_part
    assert 0.5 < two["activations"] / one["activations"] < 0.6
    for part in ("weights", "gradients", "optimizer"):
        assert two[part] == one[part]
    assert two["exchange"] == one["gradients"]
    counted = [live_bytes(NET, Division("sequence", p, 10**6), "sgd") for p in (1, 2, 4)]
    assert counted[0] / 2 < counted[1] < 0.6 * counted[0]
    assert counted[1] / 2 < counted[2] < 0.6 * counted[1]


def test_the_limit() -> None:
    found = project(NET, Division("sequence", 8, 8), machine(collectives=FITS))
    assert not found.feasible and found.limit is not None and found.limit.ranks == 4
    assert found.limit.why == "p divides 8 tokens (table) and 4 heads (blocks.0.attention.matmul)"
    assert found.limits == [
        f"sequence parallelism of gpt on p = 8: {found.limit.why}, so p is at most 4"
    ]
