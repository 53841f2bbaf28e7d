"""Answers are cached with the object they belong to, up to a number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmarks.oracle import machine
from tests.oracle.handmade import mlp

from calib.foundation.division import Division
from calib.oracle import once as once_module
from calib.oracle.costs.machine import Machine
from calib.oracle.model.spec import ModelSpec
from calib.oracle.once import once, once_per_geometry
from calib.oracle.predict import project
from calib.oracle.projection import Form
from calib.oracle.template import EVERY
from calib.training.models.specs import spec


class Sums:
    def __init__(self) -> None:
        self.cache: dict[Any, Any] = {}
        self.made: list[tuple[int, int]] = []

    @once
    def of(self, a: int, b: int = 0) -> int | None:
        self.made.append((a, b))
        return a + b or None


def test_an_answer_is_made_once_for_its_arguments() -> None:
    sums, others = Sums(), Sums()
    assert [sums.of(1, 2), sums.of(1, 2), sums.of(1, b=2), sums.of(1, b=2)] == [3] * 4
    assert others.of(1, 2) == 3
    assert sums.made == [(1, 2)] * 2 and others.made == [(1, 2)]
    assert sums.of(0) is sums.of(0) is None
    assert sums.made[2:] == [(0, 0)]


def test_an_error_is_not_kept() -> None:
    @once
    def refused(of: Sums, number: int) -> int:
        of.made.append((number, 0))
        raise ValueError

    sums = Sums()
    for _ in range(2):
        with pytest.raises(ValueError):
            refused(sums, 1)
    assert len(sums.made) == 2


def test_all_are_dropped_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once_module, "MOST", 3)
    sums = Sums()
    assert [sums.of(n) for n in (1, 2, 3, 4, 1)] == [1, 2, 3, 4, 1]
    assert len(sums.made) == 5 and len(sums.cache) == 2


def test_divisions_of_one_geometry_share_an_answer() -> None:
    """Filter on 2 ranks, alone or in groups; not on 4."""
    asked: list[Division] = []

    @once_per_geometry
    def parts(model: ModelSpec, division: Division) -> int:
        asked.append(division)
        return division.parts

    model = mlp([4, 4])
    one, group, more = (
        Division("filter", 2, 8),
        Division("data+filter", 4, 16, inner=2),
        Division("filter", 4, 8),
    )
    assert [parts(model, of) for of in (one, group, more)] == [2, 2, 4]
    assert asked == [one, more]
    assert parts(model.model_copy(), one) == 2 and len(asked) == 3, "a copy knows nothing"


@pytest.mark.parametrize("form", ["measured", "paper"])
def test_what_was_asked_before_changes_no_prediction(form: Form) -> None:
    """A machine with full caches predicts what a fresh one does."""
    parameters, text = machine(), spec("resnet50-mini").model_dump_json()
    known, shared = Machine(parameters), ModelSpec.model_validate_json(text)
    asked = [
        replace(template, segments=2).division(p, batch, 4)
        for p, batch in ((4, 16), (1, 16), (8, 32), (2, 16))
        for template in EVERY
    ]
    for division in (*asked, *reversed(asked)):
        project(shared, division, known, form, explain=True)
    for division in asked:
        fresh = ModelSpec.model_validate_json(text)
        again = project(shared, division, known, form, explain=True)
        assert again == project(fresh, division, parameters, form, explain=True)
