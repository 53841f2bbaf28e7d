"""Runs predicted from smaller ones: known laws are recovered, and the published table's bars."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from tests.helpers.published import DATA, needs_data

from calib.foundation.errors import InputError
from calib.oracle.model.spec import ModelSpec
from calib.reports.replay.forms import CandidateForm, PublishedRun, candidates, fit
from calib.reports.replay.predictions import Replay, replay
from calib.reports.replay.published_tables import (
    PublishedPoint,
    read_links,
    read_points,
    read_single_gpu,
)
from calib.reports.replay.shapes import FIVE, Shapes
from calib.reports.replay.validation import Width, calibrate, choose, folds, largest, width_of
from calib.training.models import model_names
from calib.training.models.specs import spec

SECONDS = {"resnet50": 0.003, "vgg16": 0.008, "alexnet": 0.001}
ALPHA, BETA = 3e-5, 8e-11
LINKS_CSV = (
    "source,library,collective,scope,p_range,alpha_s,beta_s_per_B\n"
    f"parallel_analysis.py,NCCL,any,all,p<=100000,{ALPHA},{BETA}\n"
)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Shapes:
    """Three models on links of one alpha and one beta."""
    path = tmp_path_factory.mktemp("links") / "links.csv"
    path.write_text(LINKS_CSV)
    return Shapes(spec, SECONDS, read_links(path))


def point(
    model: str, strategy: str, p: int, comp: float, comm: float, b: int = 64
) -> PublishedPoint:
    means = {"d": "per GPU", "f": "global (strong scaling)"}.get(strategy, "per node")
    measured = {"comp": comp, "comm": comm, "total": comp + comm} if comp else {}
    return PublishedPoint(model, strategy, p, b, means, "s/iter", {}, measured, "")


def weights(model: str) -> int:
    return 4 * spec(model).parameter_items


def late(model: str, p: int, g: float = 0.1, c: float = 2.5) -> PublishedPoint:
    """Data parallelism whose 2 W beta bytes are c times slower, and later by g per doubling of nodes."""
    sent = c * 2 * weights(model) * BETA * (1 + g * math.log2(p / 4))
    return point(model, "d", p, 1.1 * 64 * SECONDS[model], sent)


def runs_of(shapes: Shapes, points: list[PublishedPoint]) -> list[PublishedRun]:
    return [PublishedRun(p, shapes.of(p)) for p in points]


def test_a_shape_by_hand(shapes: Shapes) -> None:
    """Data: 64 t, 2 (p-1)/p W beta, 2 (p-1) alpha; inside a node there is nothing between nodes."""
    shape = shapes.of(point("vgg16", "d", 16, 1, 1))
    ring = 2 * 15 / 16 * weights("vgg16") * BETA
    assert (shape.group_s, shape.share) == (pytest.approx(64 * 0.008), 1.0)
    assert shape.volume_s(endless=False) == pytest.approx(ring)
    assert shape.volume_s(endless=True) == pytest.approx(ring * 16 / 15)
    assert (shape.steps, shape.startups_s) == (pytest.approx(30), pytest.approx(30 * ALPHA))
    assert (shape.nodes, shape.doublings, shape.scope) == (4, 2, "between nodes")
    alone = shapes.of(point("vgg16", "d", 4, 1, 1))
    assert (alone.scope, alone.between_s) == ("inside a node", 0.0)
    assert alone.volume_s(endless=True) == pytest.approx(2 * weights("vgg16") * BETA)


def test_a_hybrid_by_hand(shapes: Shapes) -> None:
    """data+filter: between nodes 2 (p1-1)/p1 W/p2 beta, and only that grows; 1/p2 scales."""
    shape = shapes.of(point("vgg16", "df", 32, 1, 1))
    assert shape.between_s == pytest.approx(2 * 7 / 8 * weights("vgg16") / 4 * BETA)
    assert (shape.share, shape.members, shape.group_s) == (0.25, 8, pytest.approx(64 * 0.008))
    grown = shape.volume_s(endless=True) - shape.inside_s
    assert grown == pytest.approx(2 * weights("vgg16") / 4 * BETA)
    assert shape.inside_s == pytest.approx(shapes.of(point("vgg16", "df", 64, 1, 1)).inside_s)


def test_a_known_law_is_recovered(shapes: Shapes) -> None:
    """c, g and the factor of compute, and p = 1024 from 16 to 64."""
    runs = runs_of(shapes, [late(m, p) for m in SECONDS for p in (16, 32, 64)])
    fitted = fit(CandidateForm("series", "endless ring", "log"), runs)
    assert fitted.growths == {"all runs": pytest.approx(0.1, rel=1e-3)}
    assert fitted.factors["vgg16", "d"] == pytest.approx(1.1)
    assert fitted.contention[("vgg16", "d"), "between nodes"] == pytest.approx(2.5, rel=1e-3)
    wanted = late("vgg16", 1024)
    (run,) = runs_of(shapes, [wanted])
    predicted = fitted.predict(run)
    assert predicted is not None
    assert (predicted.own, predicted.known_p) == (True, 64)
    assert predicted.seconds == pytest.approx(wanted.measured["total"], rel=1e-4)


def test_compute_that_does_not_scale_is_recovered(shapes: Shapes) -> None:
    """s = 0.7 of filter's: 64 t (1/p + 0.7 (1 - 1/p)), at p = 64 from 8 and 16."""

    def compute(p: int) -> float:
        return 64 * 0.008 * (1 / p + 0.7 * (1 - 1 / p))

    runs = runs_of(shapes, [point("vgg16", "f", p, compute(p), 1.0) for p in (8, 16)])
    fitted = fit(CandidateForm("series", "ring", "none"), runs)
    assert fitted.unscaled["vgg16", "f"] == pytest.approx(0.7)
    (run,) = runs_of(shapes, [point("vgg16", "f", 64, 1, 1)])
    predicted = fitted.predict(run)
    assert predicted is not None
    assert predicted.compute == pytest.approx(compute(64))


def test_validation_finds_the_form(shapes: Shapes) -> None:
    """One growth for all where there is one, none where there is none; levels pooled where equal."""
    forms = candidates(published_alpha=True)
    contention = {"resnet50": 1.0, "vgg16": 2.0, "alexnet": 4.0}

    def chosen(g: float, c: dict[str, float]) -> tuple[str, ...]:
        known = [late(m, p, g=g, c=c[m]) for m in SECONDS for p in (8, 16, 32, 64)]
        form, scored = choose(forms, runs_of(shapes, known))
        assert scored[0].error < 1e-3
        return form.levels, form.volume, form.growth, form.pool

    assert chosen(0.2, contention) == ("series", "endless ring", "log", "all")
    assert chosen(0.0, contention)[:3] == ("series", "endless ring", "none")
    assert chosen(0.2, dict.fromkeys(SECONDS, 2.0))[:3] == ("strategy", "endless ring", "log")


def test_a_model_without_runs_is_pooled(shapes: Shapes) -> None:
    """Equal contention of the other models is its contention."""
    known = [late(m, p) for m in ("vgg16", "alexnet") for p in (16, 32, 64)]
    wanted = late("resnet50", 128)
    done = replay(shapes, known, [wanted])
    (forecast,) = done.forecasts
    assert not forecast.predicted.own
    assert "pooled over the runs of strategy d" in forecast.predicted.notes
    assert forecast.accuracy == pytest.approx(1.0, abs=0.02)


def test_what_cannot_be_predicted_says_why(shapes: Shapes) -> None:
    """A strategy without runs, a model without layers; an unknown strategy with runs is empirical."""
    known = [late("vgg16", p) for p in (16, 32)]
    known += [point("megatron", "dh", p, 1.0, 0.1 * math.log2(p)) for p in (8, 16)]
    known += [point("vgg16", "f", p, 0.5, 0.5) for p in (8, 16)]
    wanted = [
        point("vgg16", "s", 4, 0, 0),
        point("vgg16", "f", 128, 0, 0),
        point("nonet", "d", 64, 0, 0),
        late("vgg16", 64),
        point("megatron", "dh", 32, 0, 0),
    ]
    done = replay(shapes, known, wanted)
    assert [(f.run.point.strategy, f.accuracy is None) for f in done.forecasts] == [
        ("d", False),
        ("dh", True),
    ]
    assert done.forecasts[1].predicted.notes == (
        "empirical: no equations of strategy dh, only of d, s, p, f, c, df, ds",
    )
    assert [why for _, why in done.left_out] == [
        "no run of strategy s to calibrate from",
        "filter parallelism of vgg16 on p = 128: features.0 has only 64 filters, so p is at most 64",
        "no run of nonet with d to calibrate from, and no time of nonet on one GPU",
    ]


def test_totals_alone_scale_the_form(shapes: Shapes) -> None:
    """Rows without parts: a factor on the whole form, here twice it."""

    def total(p: int) -> PublishedPoint:
        blank = point("vgg16", "d", p, 0, 0)
        seconds = 64 * 0.008 + 2 * (p - 1) * (ALPHA + weights("vgg16") * BETA / p)
        return PublishedPoint(*[*list(vars(blank).values())[:7], {"total": 2 * seconds}, ""])

    done = replay(shapes, [total(16), total(32)], [total(256)])
    (forecast,) = done.forecasts
    assert forecast.accuracy == pytest.approx(1.0)
    assert forecast.predicted.notes == ("from totals alone",)


def test_tables_without_neighbours(shapes: Shapes) -> None:
    """Without one-GPU times and links every series goes by itself, with a note."""
    bare = Shapes(spec, {}, [])
    done = replay(bare, [late("vgg16", p) for p in (16, 32, 64)], [late("vgg16", 128)])
    (forecast,) = done.forecasts
    assert forecast.accuracy is not None
    assert forecast.accuracy > 0.95
    assert forecast.predicted.notes == ("empirical: no time of vgg16 on one GPU",)
    assert forecast.low < forecast.predicted.seconds < forecast.high


def test_one_point_and_no_point(shapes: Shapes) -> None:
    one = [late("vgg16", 16)]
    done = replay(shapes, one, [late("vgg16", 32)])
    assert done.calibration.width == Width(None, None)
    assert done.forecasts[0].high == pytest.approx(2 * done.forecasts[0].predicted.seconds)
    with pytest.raises(InputError, match="a series of one p has no largest to leave out"):
        replay(shapes, one, None)
    with pytest.raises(InputError, match="no row with a measured total"):
        replay(shapes, [point("vgg16", "d", 16, 0, 0)], [late("vgg16", 32)])


def test_the_same_p_twice(shapes: Shapes) -> None:
    """Both rows are known, and both are left out where they are the largest."""
    twice = [late("vgg16", 16), late("vgg16", 16), late("vgg16", 32), late("vgg16", 32)]
    assert len(largest(runs_of(shapes, twice))) == 2
    assert len(replay(shapes, twice, None).forecasts) == 2


def test_folds_never_show_what_they_ask(shapes: Shapes) -> None:
    runs = runs_of(shapes, [late(m, p) for m in SECONDS for p in (8, 16, 32, 64)])
    letters = []
    for letter, known, wanted in folds(runs):
        letters.append(letter)
        assert not {id(r) for r in known} & {id(r) for r in wanted}
        for run in wanted:
            most = max(r.point.p for r in known if r.series == run.series)
            assert most * (2 if letter == "a" else 4) <= run.point.p
    assert letters == ["a", "b", "b", "b", "c"]


def test_widths_are_the_left_out_quantile(shapes: Shapes) -> None:
    """Nine errors of 1 to 9%: rank ceil(10 x 0.9) = 9; four doublings on, twice that."""
    runs = runs_of(shapes, [late("vgg16", p) for p in (16, 32)])
    fitted = fit(CandidateForm("series", "endless ring", "log"), runs)
    pairs = []
    for percent in range(1, 10):
        exact = late("vgg16", 64).measured["total"]
        off = point("vgg16", "d", 64, 0.01, exact * math.exp(percent / 100) - 0.01)
        (run,) = runs_of(shapes, [off])
        predicted = fitted.predict(run)
        assert predicted is not None
        pairs.append((run, predicted, "a"))
    width = width_of(pairs, [])
    assert width.per_doubling == pytest.approx(0.09, rel=1e-3)
    (far,) = runs_of(shapes, [late("vgg16", 512)])
    predicted = fitted.predict(far)
    assert predicted is not None
    assert width.of(far, predicted) == pytest.approx(0.18, rel=1e-3)


def test_intervals_cover_a_walk(shapes: Shapes) -> None:
    """Times that walk 4% per doubling of p: p = 256 from 16 to 64 is held in 80 to 100% of 90 draws."""
    generator = np.random.default_rng(5)
    forms = [
        CandidateForm("series", "endless ring", "none"),
        CandidateForm("series", "endless ring", "log"),
    ]
    inside = []
    for _ in range(30):
        points, truth = [], []
        for model in SECONDS:
            walk = np.exp(np.cumsum(generator.normal(0.0, 0.04, 5)))
            for p, factor in zip((16, 32, 64, 128, 256), walk, strict=True):
                exact = late(model, p, g=0.05)
                parts = exact.measured["comp"] * factor, exact.measured["comm"] * factor
                (points if p <= 64 else truth).append(point(model, "d", p, *parts))
        calibration = calibrate(forms, runs_of(shapes, points))
        for run in runs_of(shapes, [wanted for wanted in truth if wanted.p == 256]):
            predicted = calibration.predict(run)
            assert predicted is not None
            low, high = calibration.interval(run, predicted)
            inside.append(low <= (run.measured or 0.0) <= high)
    assert 0.8 <= np.mean(inside) <= 1.0


PARADL = DATA / "paradl"


def of_paper(name: str) -> ModelSpec:
    return spec(f"{name}-226" if f"{name}-226" in model_names() else name)


@cache
def published() -> Replay:
    """The largest p of every published series from the smaller ones."""
    with_tables = Shapes(
        of_paper,
        read_single_gpu(PARADL / "abci_single_gpu.csv"),
        read_links(PARADL / "abci_alpha_beta_used.csv"),
    )
    return replay(with_tables, read_points(PARADL / "abci_fig2_small_p.csv"), None)


@needs_data
def test_the_largest_p_of_every_published_series() -> None:
    """At least 0.85, each strategy above what the authors projected, and intervals that cover."""
    done = published()
    scores, mean = done.scores(), done.mean_of_five()
    assert mean is not None
    assert mean >= 0.85
    by_hand: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for forecast in done.forecasts:
        of, measured = forecast.run.point, forecast.run.point.measured["total"]
        off = abs(forecast.predicted.seconds - measured) / measured
        by_hand.setdefault(of.strategy, []).append(1 - off)
        theirs.setdefault(of.strategy, []).append(1 - abs(of.projected["total"] / measured - 1))
    means = {strategy: float(np.mean(values)) for strategy, values in by_hand.items()}
    assert scores == pytest.approx(means)
    assert mean == pytest.approx(np.mean([means[strategy] for strategy in FIVE]))
    assert all(means[strategy] > np.mean(theirs[strategy]) for strategy in FIVE)
    covered = done.covered()
    assert covered is not None
    assert 0.8 <= covered <= 1.0
    assert len(done.forecasts) == 18
    assert not done.left_out


@needs_data
def test_the_published_choice_has_no_more_than_a_growth_of_its_own() -> None:
    """A free alpha is never chosen: its left-out error is larger than without any growth."""
    scored = {s.form.name: s for s in published().calibration.scored}
    plain = scored["levels per series, ring, no growth"]
    for name in ("one for all", "one per strategy"):
        assert scored[f"levels per series, ring, a free alpha ({name})"].error > plain.error
    assert published().calibration.fitted.form.growth != "alpha"
