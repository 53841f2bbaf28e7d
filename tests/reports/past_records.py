"""A history made by hand: nights of points whose accuracies are chosen, with steps and new versions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import product
from random import Random

from tests.reports.pasts import past_night, past_point
from tests.reports.records import peak, point

from calib.foundation.records import Estimate
from calib.reports.drift.records import Drift, Step, VersionChange
from calib.reports.findings import Findings
from calib.reports.history.records import Past
from calib.reports.night import Check
from calib.reports.scoring.accuracy import Accuracy, Missing
from calib.reports.scoring.layer_pairs import LayerPair
from calib.reports.scoring.summary import summary

FIRST = datetime(2025, 11, 3, 2, 0)
STRATEGIES = ("serial", "data", "spatial", "filter", "data+filter")
MODELS = ("vgg16_mini", "resnet50_mini", "cosmoflow_mini")


def past(
    nights: int,
    models: Sequence[str] = MODELS,
    strategies: Sequence[str] = STRATEGIES,
    ps: Sequence[int] = (2, 4, 8, 16),
    skipped: Sequence[int] = (),
    empty: Sequence[int] = (),
) -> Past:
    """A point of every model, strategy and p a night; from the middle on, 10% slower than before.

    `skipped` days have no night, `empty` nights no point; torch is new in the middle.
    """
    random = Random(1)
    days = [day for day in range(nights) if day not in skipped]
    found, points = [], []
    for n, day in enumerate(days):
        started = (FIRST + timedelta(days=day)).isoformat() + "Z"
        versions = {"torch": "2.9.0" if day < nights // 2 else "2.9.1", "kernel": "6.1"}
        cases = [] if day in empty else list(product(models, strategies, ps))
        found.append(
            past_night(
                n,
                started,
                run=f"night-{started[:10]}",
                cluster_name="laptop",
                planned=len(models) * len(strategies) * len(ps),
                versions=versions,
            )
        )
        for k, (model, strategy, p) in enumerate(cases):
            expected = 0.01 * (1 + k % 7) * p
            slower = 1.1 if day >= nights // 2 else 1.0
            took = expected * slower * (1.02 + 0.01 * (k % 5)) * random.gauss(1, 0.01)
            points.append(
                past_point(
                    n,
                    strategy,
                    expected,
                    took,
                    run_id=f"{n:08x}{k:08x}",
                    work=f"work {k}",
                    model=model,
                    layout="2 groups" if strategy == "data+filter" else "",
                    p=p,
                    measured_low_s=0.99 * took,
                    measured_high_s=1.01 * took,
                    oversubscribed=k % 29 == 28,
                    memory_predicted_bytes=(100 + p) * 1e6,
                    memory_measured_bytes=round((104 + p) * 1e6 * random.gauss(1, 0.01)),
                )
            )
    return Past(found, points)


def drift_of(past: Past) -> Drift:
    """One open step in the middle, an accepted one before it and one that was undone."""
    middle = next(n for n, of in enumerate(past.nights) if of.versions["torch"] == "2.9.1")
    quarter = max(1, middle // 2)
    later = quarter + 2  # more than a night apart: another group
    steps = [
        Step(
            "kernels, conv layers, p=2",
            "kernels",
            quarter,
            quarter + 2,
            0.06,
            0.04,
            0.08,
            0.01,
            accepted="new compiler",
        ),
        Step("pack, p=1", "memory", later, later + 1, 0.05, 0.04, 0.06, 0.01, undone=True),
        Step(
            "allreduce, torch_mpi, node, p=2", "network", middle, middle + 2, 0.1, 0.09, 0.11, 0.01
        ),
        Step("data, vgg16_mini", "oracle", middle, middle + 2, 0.1, 0.08, 0.12, 0.01),
    ]
    versions = {middle: [VersionChange("torch", "2.9.0", "2.9.1")]}
    words = [
        "kernels: conv layers take 6% longer.",
        "memory: pack takes 5% longer.",
        f"network: allreduce takes 10% longer since {past.nights[middle].started[:10]}.",
    ]
    return Drift(steps, words, versions, {}, {}, words[2:])


def accuracies_of(past: Past, night: int) -> list[Accuracy]:
    """The records of a night's points, with phases, memory and the same run_id."""
    found = []
    for x in past.points:
        if x.night == night:
            of = point(
                x.predicted_s,
                x.measured_s,
                model=x.model,
                strategy=x.strategy,
                p=x.p,
                batch_per_rank=8,
                oversubscribed=x.oversubscribed,
                started=past.nights[night].started,
            )
            predicted, measured = x.memory_predicted_bytes, x.memory_measured_bytes
            assert predicted is not None and measured is not None
            memory = peak(predicted, measured, 0.2)
            found.append(of.model_copy(update={"run_id": x.run_id, "memory": memory}))
    return found


def checks() -> list[Check]:
    """Three sizes of an allreduce that take 10% more, convolutions as expected, packing 2% less."""
    found = []
    for kind, what, ratio in (
        ("network", "allreduce, torch_mpi, node, p=2", 1.1),
        ("kernels", "conv layers, p=2", 1.0),
        ("memory", "pack, p=1", 0.98),
    ):
        for k, case in enumerate(("64 KiB", "1 MiB", "16 MiB")):
            expected = 1e-4 * 10**k
            measured = expected * ratio * (1 + 0.01 * (k - 1))
            found.append(
                Check(
                    kind=kind,
                    what=what,
                    case=case,
                    expected=_estimate(expected),
                    measured=_estimate(measured),
                )
            )
    return found


def _estimate(value: float) -> Estimate:
    return Estimate(value=value, low=0.97 * value, high=1.03 * value)


def layer_pairs(models: Sequence[str] = MODELS) -> list[LayerPair]:
    """Ten layers a model; the k-th takes k ms and is predicted 2% more, the last twice as much."""
    return [
        LayerPair(
            model=model,
            batch=8,
            ranks=1,
            name=f"features.{k}",
            kind="conv" if k % 2 else "linear",
            key=f"conv {k}",
            predicted_forward_s=k * 1e-3 * (2 if k == 10 else 1.01),
            predicted_backward_s=2e-3 * k,
            added_forward_s=0.01e-3 * k,
            added_backward_s=0.04e-3 * k,
            measured_forward_s=k * 1e-3,
            measured_backward_s=2e-3 * k,
        )
        for model in models
        for k in range(1, 11)
    ]


def findings(of: Past, drift: Drift | None = None) -> Findings:
    """What a report of the last night says."""
    accuracies = accuracies_of(of, len(of.nights) - 1)
    return Findings(
        runs=[of.nights[-1].run],
        accuracies=accuracies,
        summary=summary(accuracies),
        past=of,
        drift=drift,
        checks=checks(),
        missing=[Missing(what="vgg16_mini channel p=2", why="stopped early: 3 of 100 iterations")],
    )
