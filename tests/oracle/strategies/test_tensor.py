"""Tensor parallelism on hand-made machines: terms, bytes and limit in closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.helpers.token_models import Gpt, OneRegion
from tests.oracle.handmade import (
    ALPHA_S,
    BETA_S_PER_BYTE,
    EXACT,
    LOOP_BYTE_S,
    LOOP_CALL_S,
    LOOP_TENSOR_S,
    law,
    machine,
    mlp,
    operations,
)
from tests.oracle.operator_models import traced

from calib.foundation.division import Division
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.traffic import Message
from calib.oracle.memory.live_bytes import live_bytes
from calib.oracle.predict import project
from calib.oracle.projection import Projection
from calib.oracle.trace.tracing import trace

# fc1 to fc2 and fc3 to fc4 are regions, fc5 is whole
NET, BATCH = mlp([8] * 6), 8
FITS = operations("allreduce")
DIVISION = Division("tensor", 2, BATCH)
SENT = 4 * BATCH * 8
# weights and biases, of which those of fc2 and fc4 are whole
ITEMS = 2 * (8 * 4 + 4) + 2 * (8 * 4 + 8) + (8 * 8 + 8)


def answer(**more: object) -> Projection:
    return project(NET, DIVISION, machine(collectives=FITS, **more), explain=True)


def test_sums_and_update_by_hand() -> None:
    """Two y, and dL/dx of the second region: the first reads the model's input."""
    found = answer()
    one = Machine(machine(collectives=FITS)).network.time(Message("allreduce", SENT, 2)).seconds
    assert found.phases["layerwise"].value == pytest.approx(3 * one, rel=EXACT)
    update = LOOP_CALL_S + 10 * LOOP_TENSOR_S + 4 * ITEMS * LOOP_BYTE_S
    assert found.phases["update"].value == pytest.approx(update, rel=EXACT)
    assert {"pack", "exchange", "halo"}.isdisjoint(
        name for name, time in found.phases.items() if time.value
    )
    whats = [term.what for term in found.terms]
    assert whats.count("layers that are split, at the part's shape") == 2
    assert "allreduce of y of fc2 and 1 more" in whats and "allreduce of dL/dx of fc3" in whats


def test_ranks_meet_three_times() -> None:
    more = answer(composition=[law("layerwise", 2, 1e-4)]).phases["layerwise"].value
    assert more - answer().phases["layerwise"].value == pytest.approx(3e-4, rel=1e-9)


def test_the_equation() -> None:
    """(B/p) sum_region + B sum_rest, 2 (p-1) (alpha + m beta / p), and WU of the weights held."""
    alike = machine(collectives=FITS)
    found = project(NET, DIVISION, alike, "paper", explain=True)
    assert found.phases["layerwise"].value == pytest.approx(
        3 * (2 * ALPHA_S + SENT * BETA_S_PER_BYTE), rel=1e-9
    )
    serial = project(NET, Division("serial", 1, BATCH), alike, "paper")
    share = ITEMS / NET.parameter_items
    assert found.phases["update"].value == pytest.approx(share * serial.phases["update"].value)
    forward = {term.what: term.values for term in found.terms if term.formula.endswith("FW")}
    assert forward["split layers"]["samples"] == BATCH / 2
    assert forward["whole layers"]["samples"] == BATCH


def test_bytes_by_hand() -> None:
    """Whole tensors have 8 items, parts 4: of fc1 8 + 4, relu1 4 + 4, fc2 4 + 8, relu2 8 + 8, ..."""
    items = 2 * (12 + 8 + 12 + 16) + 16 + 9
    assert answer().bytes_by_part == {
        "activations": 2 * 4 * BATCH * items,
        "weights": 4 * ITEMS,
        "gradients": 4 * ITEMS,
        "optimizer": 4 * ITEMS,
    }


def test_what_a_rank_holds_of_a_transformer() -> None:
    """Less than one rank has, more than half of it: norms, residuals and the ends are whole."""
    for name in ("vit", "language"):
        model = traced(name)
        one, two, four = (live_bytes(model, Division("tensor", p, BATCH), "sgd") for p in (1, 2, 4))
        assert one / 2 < two < one and one / 4 < four < two


TOKENS, EACH = 6, 16
ONE = trace(OneRegion(), (TOKENS, EACH), "one", "mse")
CUT = replace(DIVISION, sequence_parallel=True)
EVERY = operations("allreduce", "allgather", "reduce_scatter")
# the norm, and the bias of the layer that ends the region
PARTIAL = 4 * 3 * EACH


def test_messages_and_passes_of_tokens_by_hand() -> None:
    """y is scattered, and dL/dy gathered; x and what the head reads are gathered."""
    known = machine(collectives=EVERY)
    found = project(ONE, CUT, known, explain=True)
    network, sent = Machine(known).network, 4 * BATCH * TOKENS * EACH
    one = network.time(Message("allgather", sent, 2)).seconds
    assert found.phases["layerwise"].value == pytest.approx(4 * one, rel=EXACT)
    gradients = network.time(Message("allreduce", PARTIAL, 2)).seconds
    assert found.phases["exchange"].value == pytest.approx(gradients, rel=EXACT)
    terms = {term.what: term.values for term in found.terms}
    assert terms["pack the gradients"] == {"W": PARTIAL}
    # y and the ranks' own parts: of x, and of the gradient of what the head reads
    assert terms["split of what is sent, of 3 tensors"]["sum of items"] == 3 * TOKENS * EACH
    assert terms["concat of what has come, of 3 tensors"]["sum of items"] == 3 * TOKENS * EACH


def test_the_equation_of_tokens() -> None:
    """(p-1) (alpha + m beta / p) for each operation, AR(p, W_part) behind the backward."""
    found = project(ONE, CUT, machine(collectives=EVERY), "paper", explain=True)
    sent = 4 * BATCH * TOKENS * EACH
    # the fits of all three operations are one line, that of an allreduce
    assert found.phases["layerwise"].value == pytest.approx(
        4 * (2 * ALPHA_S + sent * BETA_S_PER_BYTE), rel=1e-9
    )
    assert found.phases["exchange"].value == pytest.approx(
        2 * ALPHA_S + PARTIAL * BETA_S_PER_BYTE, rel=1e-9
    )


def test_bytes_between_regions_are_a_pth() -> None:
    known = machine(collectives=EVERY)
    plain, cut = (project(ONE, of, known).bytes_by_part for of in (DIVISION, CUT))
    between = 3 * TOKENS * EACH + 2 * TOKENS * EACH  # of the sum and the norm
    assert plain["activations"] - cut["activations"] == 2 * 4 * BATCH * between // 2
    assert cut["exchange"] == PARTIAL and "exchange" not in plain
    assert cut["weights"] == plain["weights"]


def test_what_a_rank_holds_of_tokens() -> None:
    """Less than without, of a batch that outweighs the buffer of gradients."""
    model = trace(Gpt(), (8,), "gpt", "cross_entropy")
    for p in (2, 4):
        plain, cut = (
            live_bytes(model, Division("tensor", p, 256, sequence_parallel=of), "sgd")
            for of in (False, True)
        )
        assert cut < 0.95 * plain


def test_the_limit_of_tokens() -> None:
    found = project(ONE, replace(CUT, p=8, batch=16), machine(collectives=EVERY))
    assert not found.feasible and found.limit is not None
    assert found.limit.ranks == 4 and found.limit.why == (
        "up has the fewest heads or features, 8: p divides 8; add has the fewest tokens, 6, which p is "
        "at most"
    )


def test_the_limit() -> None:
    found = project(NET, Division("tensor", 16, 16), machine(collectives=FITS))
    assert not found.feasible and found.limit is not None
    assert found.limit.ranks == 8 and found.limit.why == (
        "fc1 has the fewest heads or features, 8: p divides 8"
    )
    assert found.limits == [
        "tensor parallelism of hand on p = 16: fc1 has 8 heads or features, so p is at most 8 "
        "and divides 8"
    ]
