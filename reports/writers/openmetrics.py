"""The newest night of a history as OpenMetrics text, for Prometheus.

All are gauges without timestamps, so that the text is also valid in Prometheus' older format, which
the textfile collector of node_exporter reads (it refuses timestamps); when the night was, is a gauge
of its own. OpenMetrics 1.0: https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector

from calib.foundation.text import plain
from calib.reports.drift.records import Drift
from calib.reports.drift.trend import Trend, trend
from calib.reports.history.records import Past, PastPoint
from calib.reports.history.rows import moment

Labels = Mapping[str, str]
Item = TypeVar("Item")
PREFIX = "calib_"
UNITS = ("seconds", "ratio", "bytes")
# of PastPoint.work, what tells two points apart that are otherwise alike
WORK_LABELS = ("library", "optimizer", "execution", "threads_per_rank")
POINT_GAUGES: tuple[tuple[str, str, Callable[[PastPoint], float | None]], ...] = (
    (
        "accuracy_ratio",
        "1 - |predicted - measured| / measured of an iteration.",
        lambda point: point.accuracy,
    ),
    ("predicted_iteration_seconds", "Predicted time of an iteration.", lambda x: x.predicted_s),
    (
        "predicted_iteration_low_seconds",
        "Lower end of its 95% interval.",
        lambda point: point.predicted_low_s,
    ),
    (
        "predicted_iteration_high_seconds",
        "Upper end of its 95% interval.",
        lambda point: point.predicted_high_s,
    ),
    ("measured_iteration_seconds", "Median time of an iteration.", lambda point: point.measured_s),
    (
        "measured_iteration_low_seconds",
        "Lower end of the 95% interval of the median.",
        lambda point: point.measured_low_s,
    ),
    (
        "measured_iteration_high_seconds",
        "Upper end of the 95% interval of the median.",
        lambda point: point.measured_high_s,
    ),
    (
        "at_speed_iteration_seconds",
        "Median time of an iteration at the speed of the calibration.",
        lambda point: point.at_speed_s,
    ),
    (
        "predicted_memory_bytes",
        "Predicted peak memory of a rank.",
        lambda point: point.memory_predicted_bytes,
    ),
    (
        "measured_memory_bytes",
        "Peak memory on the rank that used the most.",
        lambda point: point.memory_measured_bytes,
    ),
)


class Gauge(Metric):
    """A metric family of gauges, whose samples may have different labels."""

    def __init__(self, name: str, text: str) -> None:
        unit = next((unit for unit in UNITS if name.endswith("_" + unit)), "")
        super().__init__(PREFIX + name, text, "gauge", unit)
        self._known: set[frozenset[tuple[str, str]]] = set()

    def add(self, value: float | None, labels: Labels) -> None:
        """One sample; none where there is no value, nor a second one with the same labels."""
        shown = {name: plain(text) for name, text in labels.items()}
        key = frozenset(shown.items())
        if value is not None and key not in self._known:
            self._known.add(key)
            self.add_sample(self.name, shown, value)


class NewestNight(Collector):
    """Gauges as prometheus_client collects them."""

    def __init__(self, gauges: Sequence[Gauge]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Gauge]:
        """Those with a sample."""
        yield from (gauge for gauge in self._gauges if gauge.samples)


def openmetrics(past: Past, drift: Drift | None = None) -> str:
    """The newest night of `past`; a text without a metric where there is no night."""
    made: bytes = generate_latest(NewestNight(gauges_of(past, drift)))
    return made.decode()


def gauges_of(past: Past, drift: Drift | None) -> list[Gauge]:
    """All that is known of the newest night; none where there is no night."""
    if not past.nights:
        return []
    newest = trend(past)[-1]
    night = newest.of
    where = {"cluster": night.cluster_name, "machine": night.machine}
    return [
        *_of_night(past, newest, where),
        *_of_points([point for point in past.points if point.night == newest.night], where),
        *_of_checks(past, newest.night, where),
        *_of_steps(drift, where),
    ]


def _of_night(past: Past, newest: Trend, where: Labels) -> list[Gauge]:
    night = newest.of
    single: list[tuple[str, str, float | None]] = [
        ("nights", "Nights in the history of this machine.", len(past.nights)),
        (
            "night_start_timestamp_seconds",
            "When the newest night began.",
            moment(night.started, "started"),
        ),
        ("planned_points", "Points that the newest night was to hold.", night.planned),
        ("scored_points", "Points of it that have an accuracy.", newest.scored),
        ("missing", "What of it was planned and is not there or not scored.", len(night.missing)),
        (
            "mean_of_strategy_means_ratio",
            "Mean of the strategies' mean accuracies.",
            newest.mean_of_strategy_means,
        ),
        (
            "worst_accuracy_ratio",
            "Accuracy of the worst point.",
            newest.worst.accuracy if newest.worst else None,
        ),
        ("coverage_ratio", "Share of medians inside the 95% interval.", newest.coverage),
        (
            "interval_half_width_ratio",
            "Mean half-width of the 95% intervals over the predicted time.",
            newest.half_width,
        ),
        (
            "interval_score",
            "Mean interval score of the 95% intervals, of logarithms; smaller is better.",
            newest.interval_score,
        ),
        ("disturbed_points", "Points of it that others disturbed.", newest.disturbed),
        (
            "mean_at_speed_ratio",
            "Mean of the strategies' mean accuracies at the speed of the calibration.",
            newest.mean_at_speed,
        ),
    ]
    gauges = [Gauge(name, text) for name, text, _ in single]
    for gauge, (_, _, value) in zip(gauges, single, strict=True):
        gauge.add(value, where)
    means = Gauge("strategy_accuracy_ratio", "Mean accuracy of a strategy's points.")
    for strategy, mean in newest.strategy_means.items():
        means.add(mean, {**where, "strategy": strategy})
    software = Gauge("software", "Always 1; what predicted and what ran, in its labels.")
    software.add(
        1,
        {
            **where,
            "program_version": night.program_version,
            "parameters": night.parameters_id,
            "fingerprint": night.cluster_fingerprint,
        },
    )
    return [*gauges, means, software]


def _of_points(points: Iterable[PastPoint], where: Labels) -> list[Gauge]:
    gauges = {name: Gauge(name, text) for name, text, _ in POINT_GAUGES}
    predicted = Gauge("predicted_phase_seconds", "Predicted time of a phase of an iteration.")
    measured = Gauge("measured_phase_seconds", "Median time of a phase of an iteration.")
    for point, labels in _told_apart((point, {**where, **_case(point)}) for point in points):
        for name, _, value in POINT_GAUGES:
            gauges[name].add(value(point), labels)
        for phase, (of_oracle, of_run) in point.phases.items():
            predicted.add(of_oracle, {**labels, "phase": phase})
            measured.add(of_run, {**labels, "phase": phase})
    return [*gauges.values(), predicted, measured]


def _case(point: PastPoint) -> dict[str, str]:
    """Labels of what ran, which stay the same from night to night."""
    batch = float(point.batch_per_rank)
    try:
        work = json.loads(point.work)
    except ValueError:
        work = {}
    more = {
        name: str(work[name]) for name in WORK_LABELS if isinstance(work, dict) and name in work
    }
    return {
        "model": point.model,
        "strategy": point.strategy,
        "layout": point.layout,
        "p": str(point.p),
        "batch_per_rank": str(int(batch) if batch.is_integer() else batch),
        **more,
        "oversubscribed": str(point.oversubscribed).lower(),
    }


def _of_checks(past: Past, night: int, where: Labels) -> list[Gauge]:
    expected = Gauge("check_expected_seconds", "Time of a checked case in the stored parameters.")
    measured = Gauge("check_measured_seconds", "Time of a checked case in the newest night.")
    of_night = (check for check in past.checks if check.night == night)
    cases = ((x, {**where, "kind": x.kind, "what": x.what, "case": x.case}) for x in of_night)
    for check, labels in _told_apart(cases):
        expected.add(check.expected_s, labels)
        measured.add(check.measured_s, labels)
    return [expected, measured]


def _of_steps(drift: Drift | None, where: Labels) -> list[Gauge]:
    if drift is None:
        return []
    count = Gauge("open_steps", "Steps that nobody has accepted and that are still there.")
    found = [step for step in drift.steps if step.is_open]
    count.add(len(found), where)
    change = Gauge("open_step_change_ratio", "Change of an open step: 0.05 is 5% more.")
    cases = ((step, {**where, "series": step.series, "of": step.of}) for step in found)
    for step, labels in _told_apart(cases):
        change.add(step.change, labels)
    return [count, change]


def _told_apart(
    items: Iterable[tuple[Item, dict[str, str]]],
) -> Iterator[tuple[Item, dict[str, str]]]:
    """The same with a label `repetition`, since no two samples may have the same labels."""
    seen: Counter[tuple[str, ...]] = Counter()
    for item, labels in items:
        key = tuple(map(plain, labels.values()))
        seen[key] += 1
        yield item, {**labels, "repetition": str(seen[key])}
