"""P3's plans: prices of slices, sweeps, timeline, profiles, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.published import DATA, needs_data
from tests.oracle.handmade import mlp
from tests.oracle.test_recomputed import marked

from calib.foundation.errors import FileError, InputError
from calib.oracle.costs.machine import Machine
from calib.search import search
from calib.search.exchange.network import SliceNetwork
from calib.search.exchange.search import SPACE
from calib.search.exchange.work import work_of
from calib.search.links import Links
from calib.search.nominal import NOMINAL, nominal, parameters_of
from calib.search.plan import SearchedPlan
from calib.search.request import Budget, Devices, SearchRequest

OF = NOMINAL["titan-xp"]
TITAN = Machine(nominal("titan-xp"))
MODEL = mlp([256, 2048, 2048, 1024, 64])


def planned(
    method: str = "priority",
    devices: Devices | None = None,
    budget: Budget | None = None,
    form: Any = "paper",
    **options: str,
) -> SearchedPlan:
    more = {"batch": 48 * 8, "form": form, "options": options}
    return search(MODEL, devices or Devices(8, 6), TITAN, "exchange", method, budget, **more)


def network(devices: Devices, architecture: Any = "allreduce", **more: float) -> SliceNetwork:
    return SliceNetwork(Links(TITAN, devices, "paper"), architecture, **more)


def test_slices_are_priced_by_ring_or_server() -> None:
    alpha, beta, m = OF.system_alpha_s, 1 / OF.system_bytes_per_s, 4 * 50_000
    ring = network(Devices(8, 6))
    assert ring.seconds(50_000) == pytest.approx(2 * 47 * (alpha + m / 48 * beta))
    assert ring.tensor_s(120_000, 50_000) == pytest.approx(
        2 * ring.seconds(50_000) + ring.seconds(20_000)
    )
    server = network(Devices(8, 6), "server")
    inside = 2 * 5 * (OF.node_alpha_s + m / 6 / OF.node_bytes_per_s)
    assert server.lanes == 8
    assert server.seconds(50_000) == pytest.approx(2 * 7 * (alpha + m * beta) + inside)
    one = network(Devices(1, 6), "server")
    assert one.lanes == 6
    wanted = 2 * 5 * (OF.node_alpha_s + m / OF.node_bytes_per_s)
    assert one.seconds(50_000) == pytest.approx(wanted)
    assert network(Devices(1, 1), "server").seconds(50_000) == 0


@pytest.mark.parametrize("architecture", ["allreduce", "server"])
def test_gradients_of_half_precision_are_half_the_bytes(architecture: Any) -> None:
    devices = Devices(8, 6)
    half = SliceNetwork(Links(TITAN, devices, "paper"), architecture, item_bytes=2)
    whole = network(devices, architecture)
    assert half.cost(100_000).seconds == whole.cost(50_000).seconds
    assert half.other(bandwidth=2.0).cost(100_000) == half.cost(100_000)


@pytest.mark.parametrize("architecture", ["allreduce", "server"])
def test_another_bandwidth_is_that_of_another_machine(architecture: str) -> None:
    """Independent: the data sheet with twice the bandwidth; alpha stays."""
    twice = {name: 2 * vars(OF)[name] for name in ("node_bytes_per_s", "system_bytes_per_s")}
    devices = Devices(8, 6)
    links = Links(Machine(parameters_of("fast", replace(OF, **twice))), devices, "paper")
    kind: Any = architecture
    wanted = SliceNetwork(links, kind).seconds(1 << 20)
    # an item's own bytes count as alpha: 4 of 4 million
    assert network(devices, kind, bandwidth=2.0).seconds(1 << 20) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("form", ["measured", "paper"])
def test_methods_are_ordered_and_bounded(form: Any) -> None:
    plans = {method: planned(method, form=form) for method in SPACE.methods}
    seconds = {method: plan.total.value for method, plan in plans.items()}
    assert seconds["priority"] <= seconds["order"] <= seconds["fifo"]
    for plan in plans.values():
        assert sum(p.value for p in plan.phases.values()) == pytest.approx(plan.total.value)
        assert plan.certificate.lower_bound_s is not None
        assert plan.certificate.lower_bound_s <= plan.total.value
        assert plan.total.low <= plan.total.value <= plan.total.high
        assert max(event.stop_s for event in plan.timeline) == pytest.approx(plan.total.value)
        assert {event.row for event in plan.timeline} == {"compute", "network"}
        fifo, apart, *_ = plan.baselines
        assert fifo.total is not None and apart.total is not None
        assert fifo.total.value == pytest.approx(seconds["fifo"])
        assert apart.total.value >= fifo.total.value
    layers = plans["priority"].layers
    assert [of.name for of in layers][:2] == ["fc1.weight", "fc1.bias"]
    assert len(layers) == 8


def test_gradients_wait_for_what_runs_again() -> None:
    """A region of fc2, relu2 and fc3 runs fc2 and relu2 again when the backward comes to fc3."""
    both = [MODEL, marked(MODEL, "fc2", "relu2", "fc3")]
    devices = Devices(2, 2)
    without, with_ = (work_of(SearchRequest(of, devices, TITAN, 48, "priority")) for of in both)
    at, names = with_.layers.index("fc3"), ("fc2", "relu2")
    again = sum(with_.forward_s[with_.layers.index(name)] for name in names)
    assert with_.forward_s == without.forward_s and again > 0
    for place, (more, less) in enumerate(zip(with_.backward_s, without.backward_s, strict=True)):
        assert more - less == pytest.approx(again if place == at else 0.0, rel=1e-6, abs=1e-15)
    assert with_.backward.seconds - without.backward.seconds == pytest.approx(again, rel=1e-6)


def test_sweeps_are_simulated_again() -> None:
    """Each row of a table is the plan of that slice size, or of that bandwidth."""
    plan = planned(sizes="20000,100000,1000000", bandwidths="0.25,1")
    rows = plan.tables["slice sizes"]
    assert [row["slice items"] for row in rows] == [20_000, 100_000, 1_000_000]
    for row in rows:
        alone = planned(slice=str(row["slice items"]))
        assert alone.total.value == pytest.approx(1e-3 * float(row["iteration ms"]))
        counts = [of.degrees.get("slices", 1) for of in alone.layers]
        assert sum(counts) == row["slices"]
    assert plan.total.value == pytest.approx(1e-3 * min(float(r["iteration ms"]) for r in rows))
    slow, same = plan.tables["bandwidths"]
    assert float(same["p3 ms"]) == pytest.approx(1e3 * plan.total.value)
    for row in (slow, same):
        assert row["speedup"] == pytest.approx(float(row["fifo ms"]) / float(row["p3 ms"]))
    assert float(slow["fifo ms"]) > float(same["fifo ms"])


def test_servers_are_rows_of_the_timeline() -> None:
    plan = planned(architecture="server", slice="50000")
    rows = {event.row for event in plan.timeline}
    assert rows == {"compute", *(f"server {n}" for n in range(1, 9))}
    assert plan.details["architecture"] == "8 servers"
    whole = planned("fifo", architecture="server")
    large = {of.name: of.choice for of in whole.layers if "split" in of.choice}
    assert large == {"fc2.weight": "split over 8 servers", "fc3.weight": "split over 8 servers"}


def test_a_baseline_by_server_splits_large_tensors() -> None:
    """One tensor of 8 million items: each of 8 servers takes an eighth of it, from the 7 others."""
    model, how = mlp([4000, 2000]), {"architecture": "server"}
    eight = Devices(8, 1)
    plan = search(model, eight, TITAN, "exchange", "fifo", batch=8, form="paper", options=how)
    alpha, beta = OF.system_alpha_s, 1 / OF.system_bytes_per_s
    weight, bias = 14 * (alpha + 4 * 1_000_000 * beta), 14 * (alpha + 4 * 2000 * beta)
    baselines = {of.name: of.total for of in plan.baselines if of.total}
    compute = sum(plan.phases[name].value for name in ("forward", "backward", "update"))
    found = baselines["whole tensors, no overlap"].value - compute
    # the bias has key 1, whose server also has its part of the weight
    assert found == pytest.approx(weight + bias, rel=1e-6)
    fused = baselines["one buffer, no overlap"].value - compute
    assert fused == pytest.approx(14 * (alpha + 4 * 8_002_000 / 8 * beta), rel=1e-6)


def test_a_calibrated_machine_says_what_can_be_hidden() -> None:
    """A data sheet has no such note: nothing of it was measured."""
    assert not any("hidden" in note for note in planned().notes)
    own = nominal("titan-xp")
    said = own.provenance.model_copy(update={"notes": []})
    machine = Machine(own.model_copy(update={"provenance": said}))
    plan = search(MODEL, Devices(8, 6), machine, "exchange", batch=48)
    assert sum("was not measured: simulated as nothing" in note for note in plan.notes) == 1


def test_one_device_waits_for_nothing() -> None:
    plan = planned(devices=Devices(1, 1))
    assert plan.phases["waiting for the network"].value == 0
    assert plan.certificate.gap == pytest.approx(0, abs=1e-9)


def test_a_budget_of_one_looks_at_the_papers_slice() -> None:
    plan = planned(budget=Budget(None, 1))
    assert plan.searched.evaluated == 1 and plan.searched.stopped == "budget"
    assert [row["slice items"] for row in plan.tables["slice sizes"]] == [50_000]


@needs_data
def test_pipedreams_profiles_are_read() -> None:
    """Sums of the file's own columns; VGG16 has 138,357,544 parameters."""
    path = DATA / "pipedream/vgg16.graph.txt"
    model = SPACE.model_of(str(path))
    options = {"bandwidths": "0.1,1"}
    work = work_of(SearchRequest(model, Devices(8, 1), TITAN, 512, "priority", options=options))
    assert sum(tensor.items for tensor in work.tensors) == 138_357_544
    assert work.kinds[1] == "conv2d" and work.layers[1] == "node2"
    plan = search(model, Devices(8, 1), TITAN, "exchange", batch=512, options=options)
    assert plan.model == "vgg16" and plan.phases["update"].value == 0
    for column in ("forward", "backward"):
        words = path.read_text().split(f"{column}_compute_time=")[1:]
        seconds = sum(float(word.split(",")[0]) for word in words) / 1e3
        assert plan.phases[column].value == pytest.approx(seconds)
    assert [float(row["speedup"]) >= 1 for row in plan.tables["bandwidths"]] == [True, True]


LAYER = (
    "{} -- Linear(1) -- forward_compute_time=1, backward_compute_time=1, activation_size=1, "
    "parameter_size=4"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no layers"),
        ("hello", "line 1: neither a layer nor an edge"),
        ("\ta -- b", "which is no layer"),
        (f"{LAYER.format('a')}\n{LAYER.format('b')}\n\ta -- b\n\tb -- a", "circle: [ab]$"),
    ],
)
def test_wrong_profiles_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "wrong.graph.txt"
    path.write_text(text)
    with pytest.raises(FileError, match=words):
        SPACE.model_of(str(path))
    with pytest.raises(FileError, match="does not exist"):
        SPACE.model_of(str(tmp_path / "none.graph.txt"))
    assert SPACE.model_of("vgg16") is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slice": "0"}, "slice=0 is not a whole number from 1 on"),
        ({"sizes": "100,many"}, "sizes=100,many are not whole numbers"),
        ({"sizes": "0"}, "sizes=0 are not whole numbers"),
        ({"bandwidths": "0"}, "bandwidths=0 are not numbers above 0"),
        ({"bandwidths": "1,fast"}, "bandwidths=1,fast are not"),
        ({"architecture": "ring"}, "architecture=ring is unknown; known: allreduce, server"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        planned(**options)


def test_batches_and_memory_are_checked() -> None:
    with pytest.raises(InputError, match="p = 5 does not divide"):
        planned(devices=Devices(1, 5))
    with pytest.raises(InputError, match="the smallest found takes"):
        planned(devices=Devices(8, 6, 1000))
