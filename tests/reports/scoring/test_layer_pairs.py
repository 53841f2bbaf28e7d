"""reports.layer_pairs: layers alone and in place, by hand; what is added, against the oracle's sum."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.helpers.divided import model_case
from tests.helpers.rows import as_samples, constant, rows_of
from tests.oracle.handmade import layer_time, linear, mlp
from tests.reports.records import parameters

from calib.fitting.parameters.file import Composition, Parameters
from calib.foundation.division import Division
from calib.microbench.cases import InPlaceCase
from calib.microbench.records.samples import Sample
from calib.oracle.model.spec import ModelSpec
from calib.planning.layers import in_place_case
from calib.planning.points import Point
from calib.reports.scoring.layer_pairs import LayerPair, layer_pairs

BATCH = 4
MODEL = mlp((8, 5, 3))  # fc1, relu1, fc2, loss
PER_LAYER, PER_BYTE = 3e-6, 2e-9


def law(phase: str, factor: float, active_ranks: int = 1) -> Composition:
    return Composition(
        phase=phase,
        active_ranks=active_ranks,
        s_per_layer=factor * PER_LAYER,
        s_per_byte=factor * PER_BYTE,
        error_factor=1.1,
        sum_error_factor=1.2,
        max_bytes=1e6,
        models=["hand"],
    )


def machine(left_out: Sequence[str] = ()) -> Parameters:
    """Layer k takes k ms forward and 2 k ms backward alone; with two ranks at work, 100 times that."""
    times = [
        layer_time(layer, BATCH, ranks, scale * k * 1e-3, scale * k * 2e-3)
        for k, layer in enumerate(MODEL.layers, 1)
        for ranks, scale in ((1, 1), (2, 100))
        if layer.name not in left_out
    ]
    laws = [law("forward", 1.0), law("backward", 2.0), law("forward", 50.0, active_ranks=2)]
    return parameters().model_copy(update={"layers": times, "composition": laws})


def case(optimizer: str = "momentum", model: str = "hand") -> InPlaceCase:
    return model_case(model, 1, BATCH, optimizer=optimizer)


def timed(of: InPlaceCase, name: str, forward: float, backward: float | None) -> list[Sample]:
    """Rows of a layer in place, and a longer warm-up that took a thousand times as long."""
    rows = []
    for operation, seconds in (("layer_forward", forward), ("layer_backward", backward)):
        if seconds is None:
            continue
        key = f"{of.model}:{name}"
        rows += constant(of, operation, seconds, key=key)
        rows += constant(of, operation, 1e3 * seconds, repetitions=20, key=key, warmup=True)
    return rows


def everything(of: InPlaceCase) -> list[Sample]:
    """Layer k takes 1.5 k ms and 2.5 k ms in place; the phases have rows, too."""
    rows = [
        row
        for k, layer in enumerate(MODEL.layers, 1)
        for row in timed(of, layer.name, 1.5e-3 * k, 2.5e-3 * k)
    ]
    return [*constant(of, "forward", 1.0), *rows]


def pairs(
    samples: Sequence[Sample], of: Parameters | None = None, model: ModelSpec = MODEL
) -> dict[str, LayerPair]:
    found = layer_pairs(of or machine(), as_samples(samples), lambda name: model)
    assert len({pair.name for pair in found}) == len(found)
    return {pair.name: pair for pair in found}


def test_by_hand() -> None:
    found = pairs(everything(case()))
    assert list(found) == ["fc1", "relu1", "fc2", "loss"]
    fc2 = found["fc2"]  # the third
    assert (fc2.model, fc2.batch, fc2.ranks, fc2.kind) == ("hand", BATCH, 1, "linear")
    assert (fc2.predicted_forward_s, fc2.predicted_backward_s) == pytest.approx((3e-3, 6e-3))
    assert (fc2.measured_forward_s, fc2.measured_backward_s) == pytest.approx((4.5e-3, 7.5e-3))
    # 4 samples of 3 items of 4 bytes
    assert fc2.added_forward_s == pytest.approx(PER_LAYER + 48 * PER_BYTE)
    assert fc2.added_backward_s == pytest.approx(2 * (PER_LAYER + 48 * PER_BYTE))


def test_the_parts_that_are_added_are_what_the_oracle_adds() -> None:
    """Over all layers: a layers + b bytes, of the case as the plan has it."""
    division = Division("serial", 1, BATCH)
    planned = in_place_case(Point(MODEL, division, launch=1), "momentum")
    found = pairs(everything(case())).values()
    total = len(planned.layer_keys) * PER_LAYER + planned.activation_bytes * PER_BYTE
    assert sum(pair.added_forward_s for pair in found) == pytest.approx(total)
    assert sum(pair.added_backward_s for pair in found) == pytest.approx(2 * total)


def test_the_median_over_repetitions() -> None:
    rows = rows_of(case(), "layer_forward", [[t] for t in (1.0, 9.0, 2.0)], key="hand:fc1")
    assert pairs(rows)["fc1"].measured_forward_s == 2.0


def test_what_is_left_out() -> None:
    samples = everything(case())
    assert list(pairs(samples, machine(left_out=["relu1"]))) == ["fc1", "fc2", "loss"]
    of_another = everything(case(model="no such model"))
    assert layer_pairs(machine(), as_samples(of_another)) == []  # not registered here
    assert layer_pairs(machine(), as_samples([])) == []
    without = [row for row in samples if row.key != "hand:fc1"]
    assert list(pairs(without)) == ["relu1", "fc2", "loss"]


def test_a_module_that_is_used_twice_is_timed_as_one() -> None:
    """Its hooks give the sum of both uses, which is no time of a layer."""
    layers = [linear("fc", "input", 8, 8, first=True), linear("fc#2", "fc", 8, 8)]
    twice = MODEL.model_copy(update={"layers": (*layers, *MODEL.layers)})
    samples = [*everything(case()), *timed(case(), "fc", 1.0, 1.0)]
    times = [layer_time(layer, BATCH, 1, 1.0, 1.0) for layer in layers]
    of = machine()
    of = of.model_copy(update={"layers": of.layers + times})
    assert list(pairs(samples, of, twice)) == ["fc1", "relu1", "fc2", "loss"]


def test_of_two_optimizers_one_is_enough() -> None:
    """A layer does not notice the optimizer; the first that was measured is taken."""
    other = [row for row in everything(case("adam")) if row.operation != "forward"]
    found = pairs([*everything(case()), *timed(case("adam"), "fc1", 7.0, 7.0), *other])
    assert found["fc1"].measured_forward_s == pytest.approx(1.5e-3)


def test_without_a_backward_or_a_law_there_is_nothing() -> None:
    bare = machine().model_copy(update={"composition": []})
    found = pairs(timed(case(), "fc1", 1.0, None), bare)["fc1"]
    assert (found.measured_backward_s, found.added_forward_s, found.added_backward_s) == (0, 0, 0)
