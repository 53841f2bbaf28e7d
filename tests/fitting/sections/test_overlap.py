"""Overlapped iterations beside the phases of the same model; partitions as a record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError
from tests.helpers.divided import model_case
from tests.helpers.rows import constant
from tests.reports.records import estimate

from calib.fitting.parameters.memory import Overlap
from calib.fitting.sections.overlap import overlaps, partitions
from calib.foundation.errors import InputError
from calib.microbench.cases import InPlaceCase
from calib.microbench.records.samples import Sample

# forward, backward, exchange, pack, unpack, update in seconds
PHASES = {
    "a": (1.0, 2.0, 3.0, 0.1, 0.1, 0.2),
    "b": (2.0, 4.0, 1.0, 0.2, 0.3, 0.1),
    "c": (1.0, 3.0, 2.0, 0.1, 0.1, 0.1),
    "d": (5.0, 9.0, 4.0, 0.5, 0.5, 0.5),
}
NAMES = ("forward", "backward", "exchange", "pack", "unpack", "update")


def case(model: str, ranks: int = 2) -> InPlaceCase:
    return model_case(model, ranks, tensors_key="t", gradient_bytes=4)


def without(model: str, ranks: int = 2) -> list[Sample]:
    """The phases, kept apart, and a layer in place, which is no phase."""
    of = case(model, ranks)
    rows = [
        row
        for name, seconds in zip(NAMES, PHASES[model], strict=True)
        for row in constant(of, name, seconds)
    ]
    return rows + constant(of, "layer_forward", 0.5)


def with_overlap(model: str, eta: float, ranks: int = 2, **fields: object) -> list[Sample]:
    forward, backward, exchange, *others = PHASES[model]
    seconds = forward + backward + exchange + sum(others) - min(eta * exchange, backward)
    rows = constant(case(model, ranks), "overlapped", seconds, **fields)
    return [replace(row, case_id=f"{model} with overlap, {ranks}") for row in rows]


def test_eta_of_models_with_one() -> None:
    samples = [row for model in PHASES for row in without(model) + with_overlap(model, 0.6)]
    (found,), notes = overlaps(samples)
    assert notes == []
    assert found.eta.value == pytest.approx(0.6)
    assert found.eta.low == pytest.approx(0.6) == found.eta.high
    assert (found.library, found.device, found.ranks) == ("torch", "cpu", 2)
    assert found.models == ["a x 8", "b x 8", "c x 8", "d x 8"] and found.n == 32
    assert found.error == pytest.approx(0.0, abs=1e-12)
    assert found.held_out_error == pytest.approx(0.0, abs=1e-12)


def test_launches_that_differ_are_in_the_interval() -> None:
    """Launch 0 hides 0.3 of the exchange, launch 1 0.5."""
    samples = [row for model in PHASES for row in without(model)]
    for launch, eta in enumerate((0.3, 0.5)):
        samples += [row for m in PHASES for row in with_overlap(m, eta, launch=launch)]
    (found,), _ = overlaps(samples)
    assert found.eta.low <= 0.3 and found.eta.high >= 0.5
    assert found.eta.value == pytest.approx(0.4)


def test_ranks_and_libraries_are_apart() -> None:
    samples = [
        row for ranks in (2, 4) for row in without("b", ranks) + with_overlap("b", 0.5, ranks)
    ]
    samples += [replace(r, library="nccl", case_id="nccl") for r in with_overlap("b", 1.0)]
    found, _ = overlaps(samples)
    etas = {(o.library, o.ranks): o.eta.value for o in found}
    assert etas == pytest.approx({("torch", 2): 0.5, ("torch", 4): 0.5, ("nccl", 2): 1.0})
    assert all(o.held_out_error is None for o in found), "one model: nothing to leave out"


def test_a_model_without_phases_is_noted() -> None:
    found, notes = overlaps(with_overlap("a", 0.5) + without("a", ranks=4))
    assert found == []
    assert notes == ["overlap of a x 8 on 2 ranks: its phases were not measured without"]
    assert overlaps(without("a")) == ([], [])


def test_eta_is_a_share() -> None:
    (found,), _ = overlaps(without("a") + with_overlap("a", 0.5))
    content = found.model_dump() | {"eta": estimate(1.2).model_dump()}
    with pytest.raises(ValidationError, match="eta is a share"):
        Overlap.model_validate(content)


def test_partitions_of_a_known_variable() -> None:
    times = {p: [1.0 + 8.0 / p + 0.02 * p] * 4 for p in (4, 8, 16, 32, 64)}
    found = partitions("embedding", times)
    assert [e.value for e in (found.constant_s, found.parallel_s, found.per_partition_s)] == (
        pytest.approx([1.0, 8.0, 0.02])
    )
    assert found.best_partitions == found.best_low == found.best_high == pytest.approx(20.0)
    assert (found.min_partitions, found.max_partitions, found.n) == (4, 64, 20)


def test_an_infinite_best_is_none() -> None:
    found = partitions("embedding", {p: [1.0 + 8.0 / p] for p in (4, 8, 16, 32)})
    assert found.best_high is None
    assert found.model_dump_json()
    with pytest.raises(InputError):
        partitions("embedding", {})
