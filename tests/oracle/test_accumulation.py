"""Accumulated micro-batches: N forwards and backwards, N-1 additions, one exchange and one update."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.handmade import (
    EXACT,
    estimate,
    law,
    machine,
    mlp,
    operations,
    tensor_loop,
    tensor_loops,
)
from tests.oracle.simulated import Network, networks

from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.memory import Overlap
from calib.foundation.division import STRATEGIES, Division, taking
from calib.oracle.costs.machine import Machine
from calib.oracle.costs.tensors import ADDED_ALONE, ADDED_AS_MOMENTUM
from calib.oracle.layout.traffic import messages
from calib.oracle.memory.live_bytes import live_bytes
from calib.oracle.predict import project
from calib.oracle.projection import Form, Projection
from calib.training.models.specs import spec

NET = mlp([12, 8, 6])
PHASES = ("forward", "backward", "pack", "exchange", "unpack", "update")
OPERATIONS = ("allreduce", "reduce_scatter", "allgather", "p2p", "halo")
SOME = settings(max_examples=25, deadline=None)


def calibrated(*loops: str, **changes: object) -> Parameters:
    content = {
        "collectives": operations(*OPERATIONS, ranks=(2, 3, 4)),
        "tensor_loops": tensor_loops("update", "pack", "unpack", *loops),
        "composition": [law(name, n, 1e-7, 1e-12) for n in (1, 2) for name in PHASES],
    }
    return machine(**(content | changes))


KNOWN = Machine(calibrated("accumulate"))
UNKNOWN = Machine(calibrated())


def terms(found: Projection) -> dict[str, float]:
    return {term.what: term.time.value for term in found.terms}


def added(model_bytes: int, tensors: int) -> float:
    """One pass by the law of `tensor_loop`."""
    loop = tensor_loop("accumulate", 1)
    return loop.call_s + tensors * loop.s_per_tensor + model_bytes * loop.s_per_byte


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("form", get_args(Form))
def test_one_micro_batch_is_none(strategy: str, form: Form) -> None:
    """To the last bit, with a law of adding up or without."""
    division = Division(strategy, 1 if strategy == "serial" else 2, 8)
    found, other = (project(NET, division, of, form, explain=True) for of in (KNOWN, UNKNOWN))
    assert found == other and "adding up gradients" not in terms(found)


@SOME
@given(
    net=networks(),
    p=st.sampled_from([1, 2, 3, 4]),
    each=st.integers(1, 5),
    turns=st.integers(2, 6),
    sharded=st.booleans(),
)
def test_terms_add_up(net: Network, p: int, each: int, turns: int, sharded: bool) -> None:
    """All compute is N times that of a micro-batch; everything after it is there once."""
    strategy = "serial" if p == 1 else "data"
    one = Division(strategy, p, p * each, sharded_optimizer=sharded and p > 1)
    many = replace(one, batch=p * each * turns, accumulation=turns)
    assert many.local_batch == one.local_batch == each
    whole, part = (project(net.model, of, KNOWN, explain=True) for of in (many, one))
    assert whole.total is not None and part.total is not None
    count = len(net.model.parameter_shapes)
    adding = (turns - 1) * added(4 * net.parameters, count)
    assert terms(whole)["adding up gradients"] == pytest.approx(adding, rel=EXACT)
    for name in whole.phases:
        expected = part.phases[name].value
        if name == "forward":
            expected *= turns
        if name == "backward":
            expected = turns * expected + adding
        assert whole.phases[name].value == pytest.approx(expected, rel=1e-9, abs=0), name
    assert whole.total.value == pytest.approx(
        sum(time.value for time in whole.phases.values()), rel=1e-9
    )
    assert messages(net.model, many) == messages(net.model, one)
    # the naive sum is of a micro-batch
    assert whole.bytes_by_part == part.bytes_by_part
    assert ADDED_ALONE in whole.notes


@SOME
@given(net=networks(), p=st.sampled_from([1, 2, 4]), turns=st.integers(2, 4))
def test_the_paper_has_the_same_sums(net: Network, p: int, turns: int) -> None:
    one = Division("serial" if p == 1 else "data", p, 12 * p * turns)
    whole, part = (
        project(net.model, of, KNOWN, "paper") for of in (replace(one, accumulation=turns), one)
    )
    assert whole.phases == part.phases and whole.total == part.total


def test_formulas_are_told() -> None:
    found = project(NET, Division("serial", 1, 12, accumulation=3), KNOWN, explain=True)
    told = {term.what: (term.formula, term.values) for term in found.terms}
    formula, values = told["layers that are whole"]
    assert formula.startswith("N x sum of ") and values == {"N": 3, "B'": 4}
    assert told["adding up gradients"][0] == "(N-1) accumulate(|w| delta)"
    assert told["weight update"][1] == {"|w| delta": 4 * NET.parameter_items}


def test_adding_up_without_its_law() -> None:
    """At most the update of SGD with momentum, at least 3/5 of its bytes."""
    division = Division("serial", 1, 12, accumulation=3)
    found = project(NET, division, UNKNOWN, explain=True)
    (term,) = [of for of in found.terms if of.what == "adding up gradients"]
    update = added(4 * NET.parameter_items, len(NET.parameter_shapes))
    assert term.time.value == pytest.approx(2 * update, rel=EXACT)
    assert term.time.basis == "extrapolated" and term.time.low < term.time.value
    assert ADDED_AS_MOMENTUM in found.notes


@pytest.mark.parametrize("eta", [0.2, 1.0])
@pytest.mark.parametrize("turns", [2, 8])
def test_overlap_hides_behind_the_last_backward(eta: float, turns: int) -> None:
    """min(eta AR, BW of a micro-batch), and the slowdown of an iteration with one."""
    slowdown = estimate(0.05)
    rule = Overlap(
        library="mpi",
        device="cpu",
        ranks=2,
        eta=estimate(eta, 0.0),
        slowdown=slowdown,
        error=0.1,
        held_out_error=None,
        error_factor=1.1,
        models=["hand"],
        n=9,
    )
    known = Machine(calibrated("accumulate", overlap=[rule]))
    whole = Division("data", 2, 8 * turns, overlap=True, accumulation=turns)
    one = Division("data", 2, 8)
    found, single = (project(NET, of, known, explain=True) for of in (whole, one))
    exchange, backward = (single.phases[name].value for name in ("exchange", "backward"))
    hidden = terms(found)["hidden behind the backward"]
    assert hidden == pytest.approx(-min(eta * exchange, backward), rel=EXACT)
    assert single.total is not None
    slower = terms(found)["slowdown by the overlapped exchange"]
    assert slower == pytest.approx(0.05 * single.total.value, rel=EXACT)


def test_what_does_not_divide_cannot_run() -> None:
    found = project(NET, Division("data", 2, 12, accumulation=4), KNOWN)
    assert not found.feasible and found.limits == [
        "4 micro-batches do not divide the 6 samples of a rank"
    ]
    assert taking("accumulation") == ["serial", "data"]
    found = project(NET, Division("filter", 2, 12, accumulation=4), KNOWN)
    assert "filter parallelism has no accumulation of gradients" in found.limits


@pytest.mark.parametrize("name", ["vgg16-mini", "resnet50-mini"])
def test_gradients_are_live_in_later_micro_batches(name: str) -> None:
    """More than one micro-batch alone, by at most gradients and the other samples; less than at once."""
    model = spec(name)
    one, turns = Division("serial", 1, 4), 4
    many = replace(one, batch=4 * turns, accumulation=turns)
    given = (
        4 * (turns - 1) * 4 * (model.input_shape[0] * model.input_shape[1] * model.input_shape[2])
    )
    targets = 8 * 4 * (turns - 1)
    single, found = (live_bytes(model, of, "momentum") for of in (one, many))
    weights = 4 * model.parameter_items
    assert single + given + targets <= found <= single + given + targets + weights
    assert found < live_bytes(model, replace(many, accumulation=1), "momentum") + weights
