"""The OpenMetrics text, read by a parser made from the specification's grammar (ABNF)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as newer
from prometheus_client.parser import text_string_to_metric_families as older
from tests.reports.openmetrics import of, parsed
from tests.reports.trends import DRIFT, PAST, point

from calib.reports.drift.records import Drift
from calib.reports.history.records import Past, PastCheck
from calib.reports.writers.openmetrics import openmetrics

NOTHING = Drift(steps=[], words=[], versions={}, sensitivity={}, unjudged={})


CHECKS = [
    PastCheck(3, "network", 'all"reduce', "4 MiB", 1e-3, 1.25e-3),
    PastCheck(3, "network", 'all"reduce', "4 MiB", 2e-3, 1e-300),
    PastCheck(2, "kernels", "conv", "x", 1.0, 1.0),
]
WORK = '{"library":"mpi","optimizer":"sgd","execution":"float32","threads_per_rank":2}'
LAST = [
    point(
        3,
        "data",
        0.75,
        0.125,
        work=WORK,
        memory_predicted_bytes=2.5e9,
        memory_measured_bytes=2**31,
        phases={"forward": (0.5, 0.25), "pack": (0.0, 0.0)},
    ),
    point(3, "data", 0.5, 0.125, work=WORK),
    point(3, "data", 0.25, 0.125, work=WORK.replace("mpi", "gloo")),
    point(3, "filter", 0.5, work="[]", model='a\\b"c\nd', oversubscribed=True),
]
NEWEST = replace(PAST, points=[*PAST.points[:6], *LAST], checks=CHECKS)


def test_the_newest_night() -> None:
    found = parsed(openmetrics(NEWEST, DRIFT))
    where = {"cluster": "vm", "machine": "m"}
    assert of(found, "calib_night_start_timestamp_seconds", **where) == [1767484800.0]  # date -u
    assert of(found, "calib_planned_points") == [4] and of(found, "calib_scored_points") == [4]
    assert of(found, "calib_nights") == [4] and of(found, "calib_missing") == [0]
    assert of(found, "calib_strategy_accuracy_ratio", strategy="data") == [0.5]
    assert of(found, "calib_mean_of_strategy_means_ratio") == [0.5], "oversubscribed ones left out"
    assert of(found, "calib_worst_accuracy_ratio") == [0.25]
    mpi = {"library": "mpi", "threads_per_rank": "2", "p": "2", "batch_per_rank": "8"}
    assert of(found, "calib_accuracy_ratio", **mpi, repetition="1") == [0.75]
    assert of(found, "calib_accuracy_ratio", **mpi, repetition="2") == [0.5]
    assert of(found, "calib_accuracy_ratio", library="gloo", repetition="1") == [0.25]
    assert of(found, "calib_accuracy_ratio", model='a\\b"c\ufffdd', oversubscribed="true") == [0.5]
    assert of(found, "calib_predicted_iteration_seconds", **mpi, repetition="1") == [0.09375]
    assert of(found, "calib_measured_iteration_seconds", **mpi) == [0.125, 0.125]
    assert of(found, "calib_predicted_memory_bytes") == [2.5e9]
    assert of(found, "calib_measured_memory_bytes") == [2**31]
    assert of(found, "calib_predicted_phase_seconds", phase="forward") == [0.5]
    assert of(found, "calib_measured_phase_seconds", phase="forward") == [0.25]
    assert of(found, "calib_check_expected_seconds", what='all"reduce') == [1e-3, 2e-3]
    assert of(found, "calib_check_measured_seconds", case="4 MiB") == [1.25e-3, 1e-300]
    assert of(found, "calib_open_steps", **where) == [2]
    assert of(found, "calib_open_step_change_ratio", series="c", of="network") == [0.08]
    assert of(found, "calib_software", parameters="b", program_version="0.7.0") == [1]


def test_what_is_not_known_is_not_said() -> None:
    found = parsed(openmetrics(replace(PAST, nights=PAST.nights[:3], points=PAST.points[:6])))
    names = {name for name, _ in found}
    assert "calib_planned_points" in names
    assert not {x for x in names if "accuracy" in x or "mean" in x or "steps" in x or "check" in x}
    assert of(parsed(openmetrics(PAST, NOTHING)), "calib_open_steps") == [0]
    assert openmetrics(Past((), ())) == "# EOF\n"


@given(st.lists(st.text(max_size=5), min_size=3, max_size=3), st.floats(allow_infinity=False))
def test_hostile_names_and_any_number(names: list[str], seconds: float) -> None:
    points = [
        point(3, strategy, 0.5, model=model, measured_low_s=seconds, phases={"forward": (1.0, 1.0)})
        for strategy, model in ((names[0], names[1]), (names[1], names[0]), (names[0], names[1]))
    ]
    checks = [PastCheck(3, "memory", names[2], names[0], 1.0, seconds)]
    found = parsed(openmetrics(replace(PAST, points=points, checks=checks)))
    assert len(of(found, "calib_accuracy_ratio")) == 3
    read = of(found, "calib_check_measured_seconds")
    assert repr(read) == repr([seconds])


def test_the_parser_of_prometheus_takes_it() -> None:
    """Both of its formats; the older one is what node_exporter's textfile collector reads."""
    text = openmetrics(NEWEST, DRIFT)
    ours = parsed(text)
    for families in (newer(text), older(text)):
        samples = [sample for family in families for sample in family.samples]
        assert all(sample.timestamp is None for sample in samples)
        assert {(x.name, frozenset(x.labels.items())): x.value for x in samples} == ours
