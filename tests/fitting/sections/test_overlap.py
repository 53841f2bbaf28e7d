"""Iterations with the exchange overlapped and without."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from tests.helpers.divided import model_case
from tests.helpers.rows import as_samples, constant, rows_of
from tests.reports.records import estimate

from calib.fitting.parameters.memory import NO_SLOWDOWN, Overlap
from calib.fitting.sections.composition import compositions
from calib.fitting.sections.overlap import overlaps
from calib.foundation.layer_keys import iteration_key
from calib.microbench.cases import InPlaceCase
from calib.microbench.records.samples import Sample

# seconds of an iteration without overlap: backward, exchange, all else
WITHOUT = {"a": (2.0, 3.0, 1.4), "b": (4.0, 1.0, 2.6), "c": (3.0, 2.0, 1.3), "d": (9.0, 4.0, 6.5)}


def case(model: str, ranks: int = 2, **more: Any) -> InPlaceCase:
    about: dict[str, Any] = {"is_overlap": True, **more}
    return model_case(model, ranks, tensors_key="t", gradient_bytes=4, **about)


def rows(of: InPlaceCase, eta: float, slower: float = 1.0, launch: int = 0) -> list[Sample]:
    """Repetitions on a machine that is ever slower, in both kinds of iteration alike.

    The last rank does not wait in the exchange, the first one for a second.
    """
    backward, exchange, others = WITHOUT[of.model]
    whole = backward + exchange + others
    overlapped = slower * (whole - min(eta * exchange, backward))
    drift = (0.9, 0.95, 1.0, 1.0, 1.0, 1.1, 1.2)
    work = {"blocking": whole, "overlapped": overlapped}
    about: dict[str, Any] = {"library": of.library, "launch": launch}
    found = [
        row
        for name, seconds in work.items()
        for row in rows_of(of, name, [[seconds * d] * of.ranks for d in drift], **about)
    ]
    waiting = [[exchange + 1.0, *[exchange] * (of.ranks - 1)]] * len(drift)
    found += constant(of, "backward", backward, len(drift), **about)
    return found + rows_of(of, "exchange", waiting, **about)


def test_eta_of_models_with_one() -> None:
    cases = [case(model) for model in WITHOUT]
    samples = [row for of in cases for row in rows(of, 0.6)]
    (found,), notes = overlaps(as_samples(samples), {of.id: of for of in cases})
    whole = {of.model: (of.key, of.seconds.value) for of in found.iterations}
    assert whole == {
        of.model: (
            iteration_key(of.layer_keys, "t", of.optimizer),
            pytest.approx(sum(without := WITHOUT[of.model]) - min(0.6 * without[1], without[0])),
        )
        for of in cases
    }
    assert notes == []
    assert (found.eta.low, found.eta.value, found.eta.high) == pytest.approx((0.6,) * 3)
    assert found.slowdown == NO_SLOWDOWN
    assert (found.library, found.device, found.ranks) == ("torch_mpi", "cpu", 2)
    assert sorted(found.models) == ["a x 8", "b x 8", "c x 8", "d x 8"] and found.n == 28
    assert found.error == pytest.approx(0.0, abs=1e-9)
    assert found.held_out_error == pytest.approx(0.0, abs=1e-9)


def test_iterations_that_overlap_slows() -> None:
    """No share between 0 and 1 says so: the file does, in a number of its own."""
    (found,), _ = overlaps(
        as_samples(row for model in WITHOUT for row in rows(case(model), 0.0, 1.1))
    )
    assert (found.eta.value, found.eta.high) == pytest.approx((0.0, 0.0), abs=1e-9)
    slowdown = found.slowdown
    assert (slowdown.low, slowdown.value, slowdown.high) == pytest.approx((0.1,) * 3)


def test_launches_that_differ_are_in_the_interval() -> None:
    """Launch 0 hides 0.3 of the exchange, launch 1 0.5."""
    samples = [
        row
        for launch, eta in enumerate((0.3, 0.5))
        for model in WITHOUT
        for row in rows(case(model), eta, launch=launch)
    ]
    (found,), _ = overlaps(as_samples(samples))
    assert found.eta.low <= 0.3 and found.eta.high >= 0.5
    assert 0.3 < found.eta.value < 0.5


def test_ranks_and_libraries_are_apart() -> None:
    samples = [row for ranks in (2, 4) for row in rows(case("b", ranks), 0.5)]
    found, _ = overlaps(as_samples(samples + rows(case("b", library="torch_gloo"), 1.0)))
    etas = {(o.library, o.ranks): o.eta.value for o in found}
    expected = {("torch_mpi", 2): 0.5, ("torch_mpi", 4): 0.5, ("torch_gloo", 2): 1.0}
    assert etas == pytest.approx(expected)
    assert all(o.held_out_error is None for o in found), "one model: nothing to leave out"


def test_rows_that_lack_the_iterations_without() -> None:
    lacking = [row for row in rows(case("a"), 0.5) if row.operation != "blocking"]
    found, notes = overlaps(as_samples(lacking))
    assert found == [] and notes == ["overlap of a x 8 on 2 ranks: not measured without"]
    plain = constant(case("a", is_overlap=False), "backward", 1.0)
    assert overlaps(as_samples(plain)) == ([], [])


def test_a_case_of_overlap_is_no_sum_of_parts() -> None:
    """Its phases wait for other ranks: no law of what runs in place is of them."""
    of = case("a")
    assert compositions(as_samples(rows(of, 0.5)), {of.id: of}, [], [], []) == []


def test_eta_is_a_share() -> None:
    (found,), _ = overlaps(as_samples(rows(case("a"), 0.5)))
    content = found.model_dump() | {"eta": estimate(1.2).model_dump()}
    with pytest.raises(ValidationError, match="eta is a share"):
        Overlap.model_validate(content)
