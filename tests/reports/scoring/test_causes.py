"""reports.causes: phases, cases and layers that are off, by hand."""

from __future__ import annotations

import pytest
from tests.reports.records import projection, run

from calib.foundation.division import Division
from calib.reports.scoring.accuracy import Accuracy
from calib.reports.scoring.causes import causes
from calib.reports.scoring.layer_pairs import LayerPair
from calib.reports.scoring.pairing import pair
from calib.training.run.lines import RUN_PHASES, Iteration, RunEnd
from calib.training.run.record import TrainingRun


def made(
    predicted: dict[str, float], measured: dict[str, float], strategy: str = "data", p: int = 2
) -> Accuracy:
    """A point of these seconds per phase."""
    total = sum(predicted.values())
    shares = {phase: seconds / total for phase, seconds in predicted.items()}
    taken = {phase: [measured.get(phase, 0.0)] * p for phase in RUN_PHASES}
    ran = TrainingRun(
        header=run([1.0] * 8, strategy=strategy, p=p).header,
        iterations=[Iteration(index=0, warmup=False, seconds=taken, loss=1.0)] * 8,
        end=RunEnd(peak_rss_bytes=[1] * p, wall_seconds=1.0),
    )
    return pair(projection(total, strategy=strategy, p=p, shares=shares), ran)


def layer(name: str, kind: str = "conv", **seconds: float) -> LayerPair:
    content = {
        "predicted_forward_s": 0.0,
        "predicted_backward_s": 0.0,
        "added_forward_s": 0.0,
        "added_backward_s": 0.0,
        "measured_forward_s": 0.0,
        "measured_backward_s": 0.0,
    }
    return LayerPair(
        model="vgg16_mini", batch=8, ranks=1, name=name, kind=kind, key=name, **(content | seconds)
    )


# iterations of 10 s and of 1 s; of the first, backward is 2 s too little, of the second update 0.1 s
# too much, and forward 0.5 s too much in one, 0.05 s too little in the other
LONG = made(
    {"forward": 4.5, "backward": 3.0, "update": 1.0},
    {"forward": 4.0, "backward": 5.0, "update": 1.0},
)
SHORT = made(
    {"forward": 0.35, "backward": 0.5, "update": 0.2},
    {"forward": 0.4, "backward": 0.5, "update": 0.1},
    strategy="filter",
    p=4,
)


def test_phases_by_hand() -> None:
    """Every point weighs alike: errors are relative to its own iteration."""
    backward, forward, update = causes([LONG, SHORT])
    assert [x.phase for x in (backward, forward, update)] == ["backward", "forward", "update"]
    assert backward.error == pytest.approx((0.2 + 0) / 2)
    assert backward.bias == pytest.approx(-0.1)
    assert forward.error == pytest.approx((0.05 + 0.05) / 2)
    assert forward.bias == pytest.approx(0.0, abs=1e-12)
    assert update.error == update.bias == pytest.approx(0.1 / 2)
    directions = [x.direction for x in (backward, forward, update)]
    assert directions == ["too little", "both ways", "too much"]
    assert [x.share for x in (backward, forward, update)] == pytest.approx([0.5, 0.25, 0.25])
    assert {x.points for x in (backward, forward, update)} == {2}


def test_in_which_points() -> None:
    of = {cause.phase: cause.cases for cause in causes([LONG, SHORT, SHORT])}
    (only,) = of["backward"]
    assert (only.what, only.runs) == ("vgg16_mini data p=2", 1)
    assert only.share == pytest.approx(1.0)
    first, second = of["forward"]
    assert (first.what, first.runs) == ("vgg16_mini filter p=4", 2)
    assert (first.share, second.share) == pytest.approx((2 / 3, 1 / 3))


def test_a_batch_is_named_where_it_tells_cases_apart() -> None:
    other = LONG.model_copy(update={"division": Division("data", 2, 9)})
    assert [x.what for x in causes([LONG, other])[0].cases] == [
        "vgg16_mini data p=2, 8 per rank",
        "vgg16_mini data p=2, 4.5 per rank",
    ]


def test_points_that_do_not_count_are_no_cause() -> None:
    left_out = LONG.model_copy(update={"oversubscribed": True})
    assert [x.phase for x in causes([SHORT, left_out])] == ["update", "forward"]
    assert causes([left_out]) == causes([]) == []


def test_three_causes_at_most_and_none_that_is_negligible() -> None:
    spread = made(
        {"forward": 1.1, "backward": 1.2, "pack": 1.3, "exchange": 1.4},
        {"forward": 1.0, "backward": 1.0, "pack": 1.0, "exchange": 1.0},
    )
    assert [x.phase for x in causes([spread])] == ["exchange", "pack", "backward"]
    right = made({"forward": 1.004, "backward": 1.0}, {"forward": 1.0, "backward": 1.0})
    assert causes([right]) == []


def test_layers_by_hand() -> None:
    """Backward is too little: kinds that are too little are named, most first, with the worst layer."""
    pairs = [
        layer("c1", predicted_backward_s=1.0, added_backward_s=0.5, measured_backward_s=2.0),
        layer("c2", predicted_backward_s=1.0, added_backward_s=0.0, measured_backward_s=2.0),
        layer("n1", "batch_norm", predicted_backward_s=2.0, measured_backward_s=2.5),
        layer("r1", "relu", predicted_backward_s=3.0, measured_backward_s=1.5),
    ]
    cause = causes([LONG, SHORT], pairs)[0]
    assert cause.phase == "backward"
    # conv -0.5 - 1.0, batch_norm -0.5, relu +1.5 (the other direction)
    conv, norm = cause.layers
    assert (conv.kind, conv.layers, conv.worst) == ("conv", 2, "c2")
    assert (conv.predicted_s, conv.measured_s) == pytest.approx((2.5, 4.0))
    assert (conv.share, norm.share) == pytest.approx((1.5 / 3.5, 0.5 / 3.5))
    assert norm.kind == "batch_norm"
    assert cause.alone_share == pytest.approx((1 + 1 + 2 + 3) / 8)
    assert cause.added_share == pytest.approx(0.5 / 8)
    assert "adds 6%" in cause.words and "88% of their time in place" in cause.words


def test_models_weigh_alike() -> None:
    """Half of a small model's time is a larger error than a tenth of a large one's."""
    small = layer("s", "relu", measured_backward_s=0.001, predicted_backward_s=0.0005)
    large = layer("l", measured_backward_s=1.0, predicted_backward_s=0.9)
    other = large.model_copy(update={"model": "other"})
    point = LONG.model_copy(update={"model": "other"})
    cause = causes([LONG, point], [small, other])[0]
    assert [x.kind for x in cause.layers] == ["relu", "conv"]
    assert [x.share for x in cause.layers] == pytest.approx([5 / 6, 1 / 6])


def test_layers_of_forward_are_forward_and_other_phases_have_none() -> None:
    pairs = [layer("c", measured_forward_s=2.0, predicted_forward_s=1.0, measured_backward_s=1.0)]
    of = {cause.phase: cause for cause in causes([LONG, SHORT], pairs)}
    assert of["forward"].layers[0].measured_s == 2.0
    assert of["backward"].layers[0].measured_s == 1.0
    assert of["update"].layers == [] and of["update"].alone_share is None


def test_layers_of_models_without_a_point_are_left_out() -> None:
    pairs = [layer("c", measured_backward_s=1.0).model_copy(update={"model": "other"})]
    assert causes([LONG], pairs)[0].layers == []


def test_words() -> None:
    words = causes([LONG, SHORT])[0].words
    assert words == (
        "backward: under-predicted by 10.0% of the iteration on average, 50% of the error of all "
        "phases; most in vgg16_mini data p=2 (100%)."
    )
    hostile = LONG.model_copy(update={"model": "\x1b[31mred\n"})
    assert "\x1b" not in causes([hostile])[0].words and "\n" not in causes([hostile])[0].words


def test_words_of_an_error_in_both_directions() -> None:
    words = causes([LONG, SHORT])[1].words
    assert words.startswith(
        "forward: off by 5.0% of the iteration, in both directions, 25% of the error of all phases; "
        "most in vgg16_mini "
    )


def test_of_very_many_equal_cases_none_is_named() -> None:
    """Each has less than a hundredth of the error."""
    many = [LONG.model_copy(update={"model": f"m{k}"}) for k in range(101)]
    assert causes(many)[0].cases == []
    assert causes(many)[0].words == (
        "backward: under-predicted by 20.0% of the iteration on average, 80% of the error of all phases."
    )
