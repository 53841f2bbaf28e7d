"""The ledger of tensors and the tape: small graphs whose bytes are counted by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.oracle.memory.liveness import (
    UNCOUNTED,
    Back,
    ByteLine,
    HeldTensor,
    Ledger,
    Tape,
    highest,
)

A, B, C = ByteLine(8.0), ByteLine(4.0, 2.0), ByteLine(0.0, 5.0)


def test_tensors_go_with_their_last_holder() -> None:
    ledger = Ledger()
    first, second = ledger.make(A), ledger.make(B)
    ledger.hold(first)
    ledger.drop(first)
    assert ledger.live == ByteLine(12.0, 2.0)
    ledger.drop(first)
    assert ledger.live == B
    ledger.drop(ledger.hold(UNCOUNTED))  # somebody else's
    ledger.drop(second)
    assert ledger.live == ByteLine(0.0)
    assert ledger.peaks == [A, ByteLine(12.0, 2.0)]


def test_a_chain_keeps_what_its_nodes_save() -> None:
    """x -> y = f(x), which saves x and has a weight of 3 bytes -> z = g(y), which saves z.

    Forward: y, then z beside it; y goes. Back: the gradient of z, of y beside it, then z and its
    gradient go; f makes dL/dx and the weight's gradient beside that of y.
    """
    ledger = Ledger()
    tape = Tape(ledger)
    x = tape.leaf(UNCOUNTED, A)
    y = tape.run([x], B, Back((A,), weights=(3.0,)), saves=[x.tensor])
    z = tape.run([y], C, Back((B,)), saves_output=True)
    ledger.drop(y.tensor)
    assert ledger.live == C
    ledger.drop(z.tensor)  # saved
    (dx,) = tape.backward([(z, ledger.make(C))])
    assert ledger.peaks == [
        B,
        B.plus(C),
        ByteLine(0.0, 10.0),
        ByteLine(4.0, 12.0),
        B.plus(A),
        ByteLine(12.0, 5.0),
    ]
    assert ledger.live == ByteLine(8.0, 3.0)
    ledger.drop(dx)
    assert ledger.live == ByteLine(0.0, 3.0), "the weight's gradient stays"


def test_gradients_of_two_readers_are_summed_into_a_third() -> None:
    """x is read by a view and by f: dL/dx of both and their sum are there at once."""
    ledger = Ledger()
    tape = Tape(ledger)
    x = tape.leaf(UNCOUNTED, A)
    same = tape.run([x], None, Back((None,)))
    y = tape.run([x], A, Back((A,)))
    total = tape.run([same, y], A, Back((None, None)))
    for value in (y, total):
        ledger.drop(value.tensor)
    tape.backward([(total, ledger.make(A))])
    assert max(ledger.peaks) == ByteLine(24.0)
    assert ledger.live == A


def test_what_needs_no_gradient_is_not_kept() -> None:
    ledger = Ledger()
    y = Tape(ledger).run(
        [HeldTensor(UNCOUNTED, A)], B, Back((A,)), saves_output=True, extra=[C], first=[A]
    )
    assert y.node is None
    assert ledger.live == B
    assert ledger.peaks == [A, A.plus(B), A.plus(B).plus(C)]


def test_gradients_that_are_there_are_added_to() -> None:
    ledger = Ledger()
    tape = Tape(ledger)
    y = tape.run([HeldTensor(UNCOUNTED, A)], B, Back((A,), weights=(7.0,)))
    assert tape.backward([(y, ledger.make(B))], again=True) == []
    ledger.drop(y.tensor)
    assert ledger.live == ByteLine(0.0)
    assert ledger.peaks[-1] == ByteLine(8.0, 11.0)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_highest_lines_are_the_maximum_everywhere(pairs: list[tuple[int, int]]) -> None:
    lines = [ByteLine(float(a), float(b)) for a, b in pairs]
    random.Random(1).shuffle(lines)
    found = highest(lines)
    for samples in (0, 0.5, 1, 2, 3, 7, 50):
        most = max(of.of(samples) for of in lines)
        assert max(of.of(samples) for of in found) == pytest.approx(most)
