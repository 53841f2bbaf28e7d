"""Parallax's plans: Table 1's preferences, Table 2's partitions, doubling and halving, refusals."""

from __future__ import annotations

import csv
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.helpers import filled
from tests.helpers.published import DATA, needs_data
from tests.oracle.handmade import mlp, words

from calib.foundation.errors import InputError
from calib.oracle.costs.machine import Machine
from calib.search import search
from calib.search.nominal import nominal
from calib.search.plan import SearchedPlan
from calib.search.request import Devices
from calib.search.variables.models import PUBLISHED, uniform_a
from calib.search.variables.partitioning import best_of, fitted, sample, times_of
from calib.search.variables.search import SPACE

TABLES = DATA / "papers_tables"
TITAN = Machine(nominal("titan-xp"))


def planned(
    name: str, method: str = "hybrid", nodes: int = 8, each: int = 6, **options: str
) -> SearchedPlan:
    return search(
        SPACE.model_of(name),
        Devices(nodes, each),
        TITAN,
        "variables",
        method,
        batch=48 * 128,
        options=options,
    )


def read(name: str) -> list[dict[str, str]]:
    with (TABLES / name).open() as stream:
        return list(csv.DictReader(stream))


@needs_data
def test_sizes_are_those_of_the_table() -> None:
    for row in read("parallax_table1_ps_vs_ar.csv"):
        model = PUBLISHED[row["model"].lower()]
        assert model.items(sparse=False) / 1e6 == pytest.approx(
            float(row["dense_elems_M"]), abs=0.05
        )
        assert model.items(sparse=True) / 1e6 == pytest.approx(
            float(row["sparse_elems_M"]), abs=0.06
        )
        assert model.a == pytest.approx(float(row["alpha_model"]))


def preference(model: str, **options: str) -> tuple[str, float]:
    """(what is predicted to be faster, by what factor)."""
    ps, ar = (planned(model, m, **options).total.value for m in ("server", "allreduce"))
    return ("AR", ps / ar) if ar < ps else ("PS", ar / ps)


@needs_data
@pytest.mark.parametrize("row", range(4))
def test_table_1s_preferences_come_out_with_local_aggregation(row: int) -> None:
    of = read("parallax_table1_ps_vs_ar.csv")[row]
    published = "AR" if float(of["ar_throughput"]) > float(of["ps_throughput"]) else "PS"
    assert preference(of["model"].lower())[0] == published


@needs_data
def test_table_1_without_aggregation_needs_a_of_the_sparse_variables_to_be_the_models() -> None:
    """The paper's PS column is TensorFlow's, where each of 48 workers talks to the servers.

    Then dense NMT variables (376 MB by 42 clients of each server) weigh more than its allgatherv, unless
    a = 0.65 is read as that of the sparse variables alone: links do not say all of Table 1.
    """
    found = {
        of["model"]: preference(of["model"].lower(), aggregation="none")
        for of in read("parallax_table1_ps_vs_ar.csv")
    }
    assert {name: way for name, (way, _) in found.items()} == {
        "ResNet-50": "AR",
        "Inception-v3": "AR",
        "LM": "PS",
        "NMT": "AR",
    }
    assert found["NMT"][1] < 1.3
    assert 1.8 < found["LM"][1] < 2.0, "of the links alone; measured was 98.9 / 45.5 = 2.17"
    assert preference("nmt", aggregation="none", a="0.65")[0] == "PS"
    assert preference("lm", aggregation="none", a="0.02")[0] == "PS"


def test_hybrids_are_no_slower_than_either() -> None:
    for name in PUBLISHED:
        plan = planned(name)
        for of in plan.baselines:
            assert of.total is not None and of.total.value >= plan.total.value * (1 - 1e-9)
        assert plan.certificate.lower_bound_s is not None
        assert plan.certificate.lower_bound_s <= plan.total.value
        assert sum(p.value for p in plan.phases.values()) == pytest.approx(plan.total.value)
    assert {layer.choice for layer in planned("resnet-50").layers} == {"allreduce"}
    kinds = {layer.kind: layer.choice for layer in planned("lm").layers}
    assert kinds["dense"] == "allreduce" and kinds["sparse"].startswith("parameter server, ")


def throughputs(model: str) -> dict[int, float]:
    return {
        int(row["partitions_P"]): 1e5 / float(row["throughput_words_per_s"])
        for row in read("parallax_table2_partitions.csv")
        if row["model"] == model
    }


@needs_data
@pytest.mark.parametrize(("model", "published"), [("LM", 128), ("NMT", 64)])
def test_table_2s_best_is_in_the_neighbourhood(model: str, published: int) -> None:
    """The interval holds the best that was measured; what is taken instead is at most 5% slower.

    5% is what the paper says of its own choice (section 6.5). The law's best is within 2.1 times: 88 for
    LM, and 130 for NMT, whose times from 16 partitions on are 3% apart without an order.
    """
    times = throughputs(model)
    assert min(times, key=lambda number: times[number]) == published
    found = fitted(times)
    assert found.law is not None and found.interval is not None
    best = found.law.best_partitions_
    assert published / 2.1 <= best <= 2.1 * published
    assert found.interval[0] <= published <= found.interval[1]
    nearest = min(times, key=lambda number: abs(math.log(number / best)))
    assert times[nearest] <= 1.05 * times[published]
    plain = np.array([[1.0, 1 / number, number] for number in times])
    assert np.linalg.cond(plain) == pytest.approx(3.8e3, rel=0.02)
    text = ",".join(f"{number}:{seconds!r}" for number, seconds in times.items())
    plan = planned(model.lower(), times=text)
    parts = {of.degrees.get("partitions") for of in plan.layers if "parameter server" in of.choice}
    assert parts <= {round(best)}
    assert [row["partitions"] for row in plan.tables["partitions"]] == sorted(times)
    assert found.words() in plan.details["partitions"]


@settings(max_examples=80, deadline=None)
@given(
    st.floats(0, 1e3),
    st.floats(1e-3, 1e6),
    st.floats(1e-4, 1e2),
    st.integers(1, 64),
    st.integers(1, 4096),
)
def test_sampling_stops_where_the_time_rises(
    theta0: float, theta1: float, theta2: float, start: int, most: int
) -> None:
    """Of convex times the fastest number of the chain is seen, and one on either side, no more."""

    def time(number: int) -> float:
        asked.append(number)
        return theta0 + theta1 / number + theta2 * number

    asked: list[int] = []
    found = sample(time, start, most)
    first = min(start, most)
    chain = sorted(
        {first >> k for k in range(7) if first >> k}
        | {first << k for k in range(13) if first << k <= most}
    )
    assert len(asked) == len(set(asked)) and list(found) == asked and set(asked) <= set(chain)
    value = {n: theta0 + theta1 / n + theta2 * n for n in chain}
    assume(len(set(value.values())) == len(chain))
    best = chain.index(min(chain, key=lambda n: value[n]))
    origin = chain.index(first)
    low, high = min(best, origin), max(best, origin)
    wanted = chain[max(0, low - 1) : high + 2]
    assert sorted(found) == wanted


@settings(max_examples=8, deadline=None)
@given(st.floats(0.1, 10), st.floats(0.1, 1e3), st.floats(1e-3, 1))
def test_the_law_of_exact_samples_is_theirs(t0: float, t1: float, t2: float) -> None:
    def time(number: int) -> float:
        return t0 + t1 / number + t2 * number

    found = fitted(sample(time, 8, 1 << 20))
    truth = max(1.0, math.sqrt(t1 / t2))
    assert found.law is not None
    assert found.law.best_partitions_ == pytest.approx(truth, rel=1e-3)
    taken = best_of(found, time, 1 << 20)
    assert time(taken) <= min(found.times.values())
    assert abs(taken - truth) <= 0.5 + 1e-3 * truth or taken == found.fastest


def test_an_embedding_of_a_model_is_sparse() -> None:
    of = (words(50_000, 64), Devices(8, 1), TITAN, "variables")
    plan = search(*of, batch=8 * 512)
    first, *others = plan.layers
    assert (first.name, first.kind) == ("embedding.weight", "sparse")
    assert first.choice.startswith("parameter server, ") and first.degrees["partitions"] >= 2
    assert {of.kind for of in others} == {"dense"}
    rows = plan.tables["bytes in and out of a machine, one worker on each"]
    assert rows[0]["a"] == pytest.approx(uniform_a(50_000, 512 * 20))
    assert any("an upper bound" in note for note in plan.notes)
    given_a = search(*of, batch=8 * 512, options={"a": "0.01"})
    assert not any("an upper bound" in note for note in given_a.notes)
    assert given_a.total.value < plan.total.value


def on_measured(
    devices: Devices, a: str = "0.1", changes: dict[str, Any] | None = None, **options: str
) -> SearchedPlan:
    """The 50,000 x 64 of `words`, with a law that is best at 10 on 8 nodes, and one at a = 0.12."""
    of = {"rows": 50_000, "width": 64, "ranks": 8, "nodes": 8, **(changes or {})}
    laws = [filled.partitions(**of), filled.partitions(**of | {"share": 0.12, "best_low": None})]
    parameters = TITAN.parameters.model_copy(update={"partitions": laws})
    machine, model = Machine(parameters), words(50_000, 64)
    more: dict[str, Any] = {"batch": 4096, "options": {"a": a, **options}}
    return search(model, devices, machine, "variables", "server", **more)


def test_a_measured_variable_has_its_measured_partitions() -> None:
    """Said with its interval and what it was measured for; nothing is sampled then."""
    name = "partitions of embedding.weight"
    plan = on_measured(Devices(8, 1), "0.105")
    assert plan.layers[0].degrees == {"partitions": 10} and "partitions" not in plan.tables
    words = "10; best 10 [9 to 11], measured for 50000x64@0.1 (p=8, 8 nodes, mpi)"
    assert plan.details[name] == words
    near = on_measured(Devices(8, 1), "0.113").details[name]
    assert near == words.replace("9 to", "any number to").replace("0.1 ", "0.12 ")
    endless = on_measured(Devices(8, 1), changes={"best_partitions": None, "best_high": None})
    assert endless.details[name].startswith("10; best any number [9 to any number], measured")


@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (Devices(4, 1), {}),
        (Devices(4, 2), {}),
        (Devices(8, 1), {"a": "0.05"}),
        (Devices(8, 1), {"changes": {"rows": 49_999}}),
        (Devices(8, 1), {"changes": {"nodes": 1}}),
        (Devices(8, 1), {"partitions": "3"}),
        (Devices(8, 1), {"times": "1:1,2:0.5,4:0.7,8:0.9"}),
    ],
)
def test_what_was_measured_otherwise_is_not_used(devices: Devices, options: Any) -> None:
    plan = on_measured(devices, **options)
    assert plan.layers[0].degrees["partitions"] != 10
    assert not any(name.startswith("partitions of") for name in plan.details)


def test_one_device_exchanges_nothing() -> None:
    plan = search(mlp([8, 8, 4]), Devices(1, 1), TITAN, "variables", batch=4)
    assert plan.total.value == 0 and plan.certificate.gap == 0


def test_memory_is_a_constraint() -> None:
    """LM's replicas would take 9.9 GB of each device: a smaller one leaves them to servers."""

    def within(limit: int, method: str = "") -> SearchedPlan:
        how: dict[str, Any] = {"batch": 48, "options": {"a": "0.3"}}
        return search(PUBLISHED["nmt"], Devices(8, 6, limit), TITAN, "variables", method, **how)

    small, room = 300 << 20, 1000 << 20
    wide = within(0)
    assert wide.bytes_per_device > small
    with pytest.raises(InputError, match="the smallest found takes"):
        within(small)
    plan = within(room)
    assert plan.bytes_per_device <= room < wide.bytes_per_device
    assert plan.total.value > wide.total.value
    assert plan.details["memory limit"] and "memory limit" not in wide.details
    assert any(
        "the memory limit of 1000 MiB per device excludes faster plans" in x for x in plan.notes
    )
    with pytest.raises(InputError, match="allreduce does not fit"):
        within(room, "allreduce")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"a": "0"}, "a=0 is not a number above 0"),
        ({"a": "1.5"}, "a=1.5 is no fraction"),
        ({"partitions": "0"}, "partitions=0 is not a whole number from 1 on"),
        ({"partitions": "900000"}, "more than the 793470 rows"),
        ({"aggregation": "some"}, "aggregation=some is unknown; known: local, none"),
        ({"times": "8:0.2"}, "3 numbers of partitions at least"),
        ({"times": "8:0.2,16:x,32:1"}, "'x' are no seconds"),
        ({"times": "0:0.2,16:1,32:1"}, "'0' is no number of partitions"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        planned("lm", **options)


@pytest.mark.parametrize("option", [{"times": "8:1,16:2,32:3"}, {"partitions": "2"}])
def test_dense_variables_are_not_cut(option: dict[str, str]) -> None:
    with pytest.raises(InputError, match="resnet-50 has no sparse variables"):
        planned("resnet-50", **option)


def test_names_and_samples() -> None:
    assert SPACE.model_of("bert") is None and set(SPACE.models) == set(PUBLISHED)
    assert times_of("8:0.5, 16:0.25,32:1") == {8: 0.5, 16: 0.25, 32: 1.0}
    three = fitted({1: 2.0, 2: 1.5, 4: 1.75})
    assert three.interval is None and "nothing checks" in three.words()
    two = fitted({1: 2.0, 2: 1.5})
    assert two.law is None and two.words() == "2, the fastest of 2 samples"
