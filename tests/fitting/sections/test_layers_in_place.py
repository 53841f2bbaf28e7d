"""Layers timed in a model: shares of its phases that add up, by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.helpers.divided import model_case
from tests.helpers.rows import as_samples, constant, rows_of
from tests.reports.records import estimate

from calib.fitting.parameters.file import LayerTime
from calib.fitting.sections.compute import ZERO
from calib.fitting.sections.layers_in_place import LEAST_SHARE, with_in_place
from calib.foundation.layers import LayerShape
from calib.microbench.cases import InPlaceCase
from calib.microbench.records.samples import Sample


def key(items: int) -> str:
    """The key of a ReLU of so many items, on 8 samples."""
    return LayerShape(kind="relu", input_shapes=((items,),), output_shape=(items,)).key(8)


A, B, C, D = (key(items) for items in (1, 2, 3, 4))


def alone(of: str, forward: float, backward: float, ranks: int = 2) -> LayerTime:
    return LayerTime(
        key=of,
        kind="relu",
        batch=8,
        active_ranks=ranks,
        forward_s=estimate(forward),
        backward_s=estimate(backward) if backward else ZERO,
        n=9,
    )


ALONE = [alone(A, 1e-3, 2e-3), alone(B, 3e-3, 4e-3), alone(C, 5e-3, 0.0)]


def case(layers: Mapping[str, str], model: str = "m", **more: Any) -> InPlaceCase:
    """A model of layers: name -> key."""
    return model_case(model, layer_names=tuple(layers), layer_keys=tuple(layers.values()), **more)


def hooked(
    of: InPlaceCase, direction: str, phase: float, layers: Mapping[str, float]
) -> list[Sample]:
    """A phase, and its layers by hooks."""
    rows = constant(of, direction, phase)
    for name, seconds in layers.items():
        rows += constant(of, f"layer_{direction}", seconds, key=f"{of.model}:{name}")
    return rows


def fitted(
    rows: Sequence[Sample], *cases: InPlaceCase, times: Sequence[LayerTime] = ALONE
) -> dict[str, LayerTime]:
    found = with_in_place(times, as_samples(rows), {of.id: of for of in cases})
    assert [time.key for time in found] == sorted(time.key for time in found)
    by_key = {time.key: time for time in found}
    for time in times:  # what was measured alone stays
        mine = by_key[time.key]
        assert (mine.forward_s, mine.backward_s, mine.n) == (
            time.forward_s,
            time.backward_s,
            time.n,
        )
    return by_key


def forward(time: LayerTime) -> float:
    assert time.in_place_forward_s is not None
    return time.in_place_forward_s.value


def test_what_hooks_leave_is_shared_out_alike() -> None:
    """A phase of 20 ms, of which hooks say 6 + 8: each of two layers has half of the other 6."""
    of = case({"x": A, "y": B})
    found = fitted(hooked(of, "forward", 20e-3, {"x": 6e-3, "y": 8e-3}), of)
    assert (forward(found[A]), forward(found[B])) == pytest.approx((9e-3, 11e-3))
    assert found[A].in_place_backward_s is None and found[C].in_place_forward_s is None


def test_what_hooks_cost_is_taken_from_all_alike() -> None:
    """They say 6 + 8 of a phase of 12; but a layer keeps about a quarter of its time."""
    of = case({"x": A, "y": B})
    found = fitted(hooked(of, "forward", 12e-3, {"x": 6e-3, "y": 8e-3}), of)
    assert (forward(found[A]), forward(found[B])) == pytest.approx((5e-3, 7e-3))
    found = fitted(hooked(of, "forward", 12e-3, {"x": 0.4e-3, "y": 15.6e-3}), of)
    assert forward(found[A]) == pytest.approx(LEAST_SHARE * 0.4e-3, rel=0.2)
    assert forward(found[A]) + forward(found[B]) == pytest.approx(12e-3), "as the phase"


def test_hooks_that_give_a_layer_the_time_of_others_are_not_believed() -> None:
    """Of a phase of 9 ms they say 0.1 + 8.9; alone y takes 1, and then has a half of the rest, or 3."""
    of = case({"x": A, "y": B})
    rows = hooked(of, "forward", 9e-3, {"x": 0.1e-3, "y": 8.9e-3})
    found = fitted(rows, of, times=[alone(A, 2e-3, 1.0), alone(B, 1e-3, 1.0)])
    assert (forward(found[A]), forward(found[B])) == pytest.approx((5e-3, 4e-3))
    found = fitted(rows, of, times=[alone(A, 2e-3, 1.0), alone(B, 3e-3, 1.0)])
    assert (forward(found[A]), forward(found[B])) == pytest.approx((0.1e-3, 8.9e-3))


def test_a_layer_without_a_module_stands_with_its_time_alone() -> None:
    """y was not hooked: its 3 ms alone, and a part of what is left (20 - 6 - 3 = 11)."""
    of = case({"x": A, "y": B})
    found = fitted(hooked(of, "forward", 20e-3, {"x": 6e-3}), of)
    assert (forward(found[A]), forward(found[B])) == pytest.approx((11.5e-3, 8.5e-3))


def test_a_layer_without_a_backward_has_no_part() -> None:
    """z has none: what is left is shared by x and y, which add up to the phase."""
    of = case({"x": A, "y": B, "z": C})
    found = fitted(hooked(of, "backward", 20e-3, {"x": 6e-3, "y": 8e-3}), of)
    backwards = [found[name].in_place_backward_s for name in (A, B)]
    assert [time.value for time in backwards if time] == pytest.approx([9e-3, 11e-3])
    assert found[C].in_place_backward_s is None
    assert all(found[name].in_place_forward_s is None for name in (A, B, C))


def test_equal_layers_share_a_mean() -> None:
    """x and y have one key; so has the layer of another model."""
    of, other = case({"x": A, "y": A, "z": B}), case({"only": A}, "other")
    rows = hooked(of, "forward", 15e-3, {"x": 3e-3, "y": 4e-3, "z": 5e-3})  # 1 ms more for each
    found = fitted(rows, of)
    assert (forward(found[A]), forward(found[B])) == pytest.approx((4.5e-3, 6e-3))
    assert 2 * forward(found[A]) + forward(found[B]) == pytest.approx(15e-3), "as the phase"
    rows += hooked(other, "forward", 9e-3, {"only": 7e-3})
    found = fitted(rows, of, other)
    assert forward(found[A]) == pytest.approx((4e-3 + 5e-3 + 9e-3) / 3)


def test_micro_batches_of_stages() -> None:
    """Two stages on two ranks, of 4 micro-batches: 40 ms and 12 ms, a quarter of it each pass."""
    of = case({"x": A, "y": B, "z": C}, strategy="pipeline", segments=4, layer_ranks=(0, 0, 1))
    rows = rows_of(of, "forward", [[40e-3, 12e-3]] * 8)
    for name, seconds in (("x", 2e-3), ("y", 6e-3), ("z", 1e-3)):  # one rank has timed it
        rows += rows_of(of, "layer_forward", [[seconds]] * 8, key=f"m:{name}")
    found = fitted(rows, of)
    assert [forward(found[name]) for name in (A, B, C)] == pytest.approx([3e-3, 7e-3, 3e-3])


def test_what_a_stage_runs_again_is_of_its_rank() -> None:
    """The first stage's backwards of 10 ms have 7 ms of a forward, those of the second have none."""
    again = {"again_keys": (B,), "again_ranks": (0,)}
    ranks = (0, 0, 1)
    of = case({"x": A, "y": B, "z": C}, strategy="pipeline", segments=4, layer_ranks=ranks, **again)
    rows = rows_of(of, "forward", [[40e-3, 12e-3]] * 8)
    rows += rows_of(of, "backward", [[40e-3, 12e-3]] * 8)
    for name, seconds in (("x", 2e-3), ("y", 6e-3), ("z", 1e-3)):
        rows += rows_of(of, "layer_forward", [[seconds]] * 8, key=f"m:{name}")
    for name in ("x", "y", "z"):
        rows += rows_of(of, "layer_backward", [[1e-3]] * 8, key=f"m:{name}")
    found = fitted(rows, of)
    assert [found[name].in_place_backward_s.value for name in (A, B, C)] == pytest.approx(
        [1.5e-3, 1.5e-3, 3e-3]
    )


def test_layers_that_nothing_else_has_timed() -> None:
    """Their time in place stands for that alone."""
    of = case({"x": A, "new": D})
    rows = hooked(of, "forward", 10e-3, {"x": 4e-3, "new": 6e-3})
    rows += hooked(of, "backward", 22e-3, {"x": 8e-3, "new": 12e-3})
    new = fitted(rows, of)[D]
    assert (new.kind, new.batch, new.active_ranks) == ("relu", 8, 2)
    # repetitions, and not how many layers of a model are like it: one is no thin measurement
    assert new.n == sum(row.operation == "layer_forward" and row.key == "m:new" for row in rows) > 1
    assert new.forward_s == new.in_place_forward_s and new.backward_s == new.in_place_backward_s
    assert (new.forward_s.value, new.backward_s.value) == pytest.approx((6e-3, 13e-3))
    only_forward = fitted(hooked(of, "forward", 10e-3, {"x": 4e-3, "new": 6e-3}), of)[D]
    assert only_forward.backward_s == ZERO and only_forward.in_place_backward_s is None
    strange = of.model_copy(update={"layer_keys": (A, "no key")})
    assert set(fitted(hooked(strange, "forward", 1.0, {"x": 1.0, "new": 1.0}), strange)) == {
        A,
        B,
        C,
    }


def test_intervals_are_as_wide_as_the_phase() -> None:
    """Repetitions of 9 to 11 s beside hooks that never differ: the median's interval of the phase."""
    of = case({"x": A, "y": B})
    times = [9.0, 9.5, 10.0, 10.0, 10.0, 10.0, 10.5, 11.0]
    rows = rows_of(of, "forward", [[t, t] for t in times])
    for name, seconds in (("x", 2.0), ("y", 6.0)):
        rows += constant(of, "layer_forward", seconds, key=f"m:{name}")
    found = fitted(rows, of, times=[alone(A, 2.0, 1.0), alone(B, 6.0, 1.0)])
    for name, value in ((A, 3.0), (B, 7.0)):
        time = found[name].in_place_forward_s
        assert time is not None and time.value == pytest.approx(value)
        # of 8 values the first and the last hold the median at 95%
        assert (time.low, time.high) == pytest.approx((0.9 * value, 1.1 * value))


def test_of_the_rank_that_is_slowest() -> None:
    of = case({"x": A})
    rows = rows_of(of, "forward", [[10.0, 12.0]] * 8)
    rows += rows_of(of, "layer_forward", [[9.0, 8.0]] * 8, key="m:x")
    assert forward(fitted(rows, of)[A]) == pytest.approx(12.0)


@pytest.mark.parametrize(
    "change", [{"layer_names": ()}, {"optimizer": "adam"}, {"ranks": 1}], ids=str
)
def test_what_says_nothing(change: dict[str, Any]) -> None:
    """A file of before has no names; training's optimizer is momentum; one rank is not two."""
    of = case({"x": A}).model_copy(update=change)
    found = fitted(hooked(of, "forward", 10e-3, {"x": 4e-3}), of)
    if "ranks" in change:
        one = with_in_place(
            ALONE, as_samples(hooked(of, "forward", 10e-3, {"x": 4e-3})), {of.id: of}
        )
        assert (one[0].key, one[0].active_ranks) == (A, 1)
        one = [time for time in one if time.active_ranks == 2]
        found = {time.key: time for time in one}
    assert all(time.in_place_forward_s is None for time in found.values())
    bare = case({"x": A})
    assert fitted(constant(bare, "forward", 1.0), bare) == {t.key: t for t in ALONE}
    only_hooks = [row for row in hooked(bare, "forward", 1.0, {"x": 1.0}) if ":" in row.key]
    assert fitted(only_hooks, bare) == {t.key: t for t in ALONE}


def test_the_order_of_rows_does_not_matter() -> None:
    of, other = case({"x": A, "y": B}), case({"only": A}, "other")
    rows = hooked(of, "forward", 20e-3, {"x": 6e-3, "y": 8e-3})
    rows += hooked(other, "forward", 9e-3, {"only": 7e-3})
    assert fitted(rows[::-1], other, of) == fitted(rows, of, other)
