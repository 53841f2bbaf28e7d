"""The space of layer-wise plans: small networks against all plans, closed forms, memory, baselines."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.layerwise import priced
from tests.oracle.test_recomputed import marked
from tests.search.layerwise.networks import Network

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.cost import total
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.partitions import Configuration
from calib.oracle.memory.live_bytes import live_bytes
from calib.oracle.model.spec import ModelSpec
from calib.oracle.strategies import data
from calib.search import search
from calib.search.layerwise.configurations import ConfigurationChoices
from calib.search.layerwise.elimination import Sums, solve
from calib.search.layerwise.plan_of import price
from calib.search.layerwise.prices import sharers
from calib.search.layerwise.search import tables_of
from calib.search.layerwise.tables import Pricing
from calib.search.links import LinkGroup, Links
from calib.search.nominal import NOMINAL, nominal
from calib.search.plan import SearchedPlan
from calib.search.request import Budget, Devices, SearchRequest
from calib.training.models.specs import spec

P100 = nominal("p100")
MACHINE = Machine(P100)
BATCH = 4
FOUR = Devices(1, 4)


def small() -> ModelSpec:
    net = Network((3, 8, 8))
    return net.head(net.relu(net.conv(net.conv("input", 4), 8)), 8)


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """Convolutions, ReLUs, sums and concatenations over an image of 4 x 4."""
    net = Network((2, 4, 4))
    ends = [net.conv("input", 4)]
    for _ in range(draw(st.integers(1, 2))):
        kind, x = draw(st.sampled_from(["conv", "relu", "add", "concat"])), ends[-1]
        other = draw(st.sampled_from(ends))
        if kind == "conv":
            ends.append(net.conv(x, 4, draw(st.sampled_from([1, 3]))))
        elif kind == "relu":
            ends.append(net.relu(x))
        elif kind == "add" and net.shapes[x] == net.shapes[other]:
            ends.append(net.add("add", net.shapes[x], x, other))
        else:
            joined = (net.shapes[x][0] + net.shapes[other][0], 4, 4)
            ends.append(net.add("concat", joined, x, other))
    return net.head(ends[-1])


def planned(
    model: ModelSpec,
    devices: Devices = FOUR,
    method: str = "",
    budget: Budget | None = None,
    **more: Any,
) -> SearchedPlan:
    return search(model, devices, P100, "layerwise", method, budget, **{"batch": BATCH, **more})


def alike(model: ModelSpec, of: Configuration) -> dict[str, Configuration]:
    """The same for all layers."""
    return {layer.name: of for layer in model.layers}


DATA_4 = Configuration(sample=4)


def request(model: ModelSpec, devices: Devices = FOUR, **changes: Any) -> SearchRequest:
    given: dict[str, Any] = {"batch": BATCH, "method": "elimination", **changes}
    return SearchRequest(model, devices, MACHINE, **given)


@settings(max_examples=12, deadline=None)
@given(
    models(),
    st.sampled_from([Devices(1, 2), Devices(2, 1)]),
    st.sampled_from(["paper", "measured"]),
)
def test_no_plan_of_a_small_network_is_faster(
    model: ModelSpec, devices: Devices, form: Any
) -> None:
    """All plans, by numpy's broadcasting over one axis for each layer."""
    options = {"dimensions": "sample,channel,height"}
    asked = request(model, devices, batch=2, form=form, options=options)
    made = tables_of(asked, Pricing(asked))
    nodes, edges = made.costs
    n = len(nodes)
    everything = np.zeros([len(node) for node in nodes])
    for j, node in enumerate(nodes):
        everything += node.reshape([-1 if d == j else 1 for d in range(n)])
    for i, j, cost in edges:
        shape = [1] * n
        shape[i], shape[j] = cost.shape
        everything += cost.reshape(shape)
    found = solve(made.costs)
    assert found.total == pytest.approx(everything.min(), rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(
    models(),
    st.sampled_from([Devices(1, 4), Devices(2, 2), Devices(3, 2)]),
    st.sampled_from(["paper", "measured"]),
    st.integers(0, 2**32 - 1),
)
def test_a_plan_is_priced_as_in_the_tables(
    model: ModelSpec, devices: Devices, form: Any, seed: int
) -> None:
    asked = request(
        model, devices, form=form, options={"dimensions": "sample,channel,height,width,input"}
    )
    made = tables_of(asked, Pricing(asked))
    random = np.random.default_rng(seed)
    choices = [int(random.integers(len(node))) for node in made.costs.nodes]
    found = price(Pricing(asked), made.chosen(choices))
    assert found.total.seconds == pytest.approx(made.costs.of(choices), rel=1e-9)
    assert sum(found.layer_bytes) == pytest.approx(made.kept.of(choices), abs=9)
    assert made.kept.of(choices) <= found.nbytes
    assert found.total.low < found.total.seconds < found.total.high


@pytest.mark.parametrize("execution", ["float32", "bfloat16", "bfloat16-mixed"])
def test_data_parallelism_is_that_of_the_oracle(execution: str) -> None:
    """The `measured` form of data parallelism: layers at B/p, AR(p, W), packing, update."""
    model, p = small().run_as(execution), 4
    own = {"execution": execution}
    sections = ("work", "tensor_loops", "composition")
    machine = Machine(
        P100.model_copy(
            update={
                name: [of.model_copy(update=own) for of in getattr(P100, name)] for name in sections
            }
        )
    )
    found = priced(replace(request(model), machine=machine), alike(model, DATA_4))
    costs = machine.costs(p, "momentum", execution)
    terms = data.measured(model, Division("data", p, BATCH), costs)
    seconds = {
        "compute": ("forward", "backward"),
        "synchronize": ("pack", "exchange"),
        "update": ("update",),
        "redistribute": (),
    }
    for name, phases in seconds.items():
        wanted = total(term.cost for term in terms if term.phase in phases)
        assert found.phases[name].seconds == pytest.approx(wanted.seconds, rel=1e-9), name
    assert found.nbytes == live_bytes(model, Division("data", p, BATCH), "momentum")


def test_the_papers_server_by_hand() -> None:
    """Each of the 3 other copies' gradients in, weights out, at 1/beta of the node's link."""
    model = small()
    asked = request(model, form="paper")
    found = priced(asked, alike(model, DATA_4))
    nbytes = 4 * model.parameter_items
    wanted = 2 * 3 * nbytes / NOMINAL["p100"].node_bytes_per_s
    assert found.phases["synchronize"].seconds == pytest.approx(wanted, rel=1e-9)
    assert found.phases["redistribute"].seconds == 0
    ring = request(model, form="paper", options={"sync": "allreduce"})
    again = priced(ring, alike(model, DATA_4))
    assert again.phases["synchronize"].seconds == pytest.approx(wanted / 4, rel=1e-9)


def test_channels_of_the_dense_layer_by_hand() -> None:
    """Data to channels: a device has a quarter of the samples and needs all, there and back."""
    model = small()
    plan = alike(model, DATA_4) | {"linear4": Configuration(channel=4)}
    found = priced(request(model, form="paper"), plan)
    x, y = 4 * BATCH * 512 * 3 / 4, 4 * BATCH * 8 / 4 * 3 / 4
    wanted = 2 * (x + y) / NOMINAL["p100"].node_bytes_per_s
    assert found.phases["redistribute"].seconds == pytest.approx(wanted, rel=1e-9)
    assert found.layers[4]["synchronize"].seconds == 0
    moved = [layer["redistribute"].seconds for layer in found.layers]
    assert moved[4] > moved[5] > 0


def test_layers_exchange_each_by_itself_where_asked() -> None:
    model = small()
    plan = alike(model, DATA_4)
    found = priced(request(model, options={"exchange": "layers"}), plan)
    links = Links(MACHINE, Devices(1, 4), "measured")
    flat = priced(request(model), plan)
    weighted = [4 * x.shape.parameter_items for x in model.layers if x.shape.parameter_shapes]
    apart = sum(links.cost("allreduce", n, LinkGroup(1, 4)).seconds for n in weighted)
    together = links.cost("allreduce", sum(weighted), LinkGroup(1, 4)).seconds
    difference = found.phases["synchronize"].seconds - flat.phases["synchronize"].seconds
    assert difference == pytest.approx(apart - together, rel=1e-9) and difference > 0


@pytest.mark.parametrize(
    ("of", "per_node", "found"),
    [
        (Configuration(sample=4), 4, (4, 4, 1, 4, 1)),
        (Configuration(sample=8), 4, (8, 4, 1, 8, 2)),
        (Configuration(sample=2, channel=4), 4, (2, 1, 4, 5, 2)),
        (Configuration(channel=2, spatial=(2, 2)), 4, (4, 4, 2, 4, 1)),
        (Configuration(sample=3, channel=2), 4, (3, 2, 2, 5, 2)),
        (Configuration(channel=4), 4, (1, 1, 4, 1, 1)),
    ],
)
def test_who_shares_weights(of: Configuration, per_node: int, found: tuple[int, ...]) -> None:
    assert tuple(sharers(of, per_node)) == found


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("lenet5", 0),
        ("alexnet", 0),
        ("vgg16", 0),
        ("resnet50", 16),
        ("resnet152", 50),
        ("inception-v3", 36),
    ],
)
def test_two_nodes_are_left_of_the_papers_networks(name: str, edges: int) -> None:
    """Section 5.2: K = 2. Inception-v3 with its auxiliary head, which ends in the loss."""
    model = spec(name)
    index = {layer.name: i for i, layer in enumerate(model.layers)}
    costs = np.zeros((1, 1))
    pairs = [
        (index[x], j, costs)
        for j, layer in enumerate(model.layers)
        for x in layer.inputs
        if x != "input"
    ]
    found = solve(Sums([np.zeros(1)] * len(model.layers), pairs))
    assert (found.left, found.edges_eliminated) == (2, edges)


def test_a_plan_with_both_methods() -> None:
    model = small()
    two = Devices(1, 2)
    plan = planned(model, two)
    assert plan.certificate.kind == "optimal" and plan.searched.stopped == "complete"
    assert plan.searched.steps["nodes left (K)"] == 2
    again = planned(model, two, "enumeration", Budget(None))
    assert again.certificate.kind == "optimal"
    assert again.total.value == pytest.approx(plan.total.value, rel=1e-12)
    summed = sum(time.value for time in plan.phases.values())
    assert plan.total.value == pytest.approx(summed, rel=1e-12)
    by_layer = sum(sum(layer.seconds.values()) for layer in plan.layers)
    assert plan.total.value == pytest.approx(by_layer, rel=1e-12)
    assert plan.bytes_per_device >= sum(layer.bytes_per_device for layer in plan.layers)
    assert [b.name for b in plan.baselines] == ["data", "model", "one-weird-trick"]
    for baseline in plan.baselines:
        assert baseline.total is not None and baseline.total.value >= plan.total.value
    stopped = planned(model, FOUR, "enumeration", Budget(evaluations=1))
    assert stopped.certificate.kind == "bound" and stopped.searched.stopped == "budget"
    assert stopped.certificate.lower_bound_s is not None
    assert stopped.certificate.lower_bound_s <= stopped.total.value


def tiny() -> ModelSpec:
    net = Network((2, 4, 4))
    return net.head(net.relu(net.conv("input", 4)), 4)


@cache
def peaks_of_all() -> dict[tuple[int, ...], tuple[int, float]]:
    """Of all plans of tiny() on two devices: their peaks, and what they cost."""
    model = tiny()
    asked = request(model, Devices(1, 2), batch=2)
    pricing = Pricing(asked)
    made = tables_of(asked, pricing)
    found: dict[tuple[int, ...], tuple[int, float]] = {}
    for choices in itertools.product(*(range(len(of)) for of in made.configurations)):
        held = price(pricing, made.chosen(choices)).nbytes
        found[choices] = held, made.costs.of(choices)
        assert made.kept.of(choices) <= found[choices][0]
    return found


@pytest.mark.parametrize("method", ["elimination", "enumeration"])
def test_memory_is_a_constraint(method: str) -> None:
    """Against all plans, by their peaks: what is found fits, the bound is below the best that does."""
    model, two, every = tiny(), Devices(1, 2), peaks_of_all().values()
    free = planned(model, two, method, Budget(None), batch=2)
    least, most = min(held for held, _ in every), free.bytes_per_device
    assert least < most
    for limit in range(least, most + 1, max(1, (most - least) // 4)):
        best = min(cost for held, cost in every if held <= limit)
        try:
            plan = planned(model, Devices(1, 2, limit), method, Budget(None), batch=2)
        except InputError as error:  # a sum is searched, not the peak: the very last may be missed
            assert limit < 1.1 * least and "the smallest found takes" in str(error)
            continue
        assert plan.bytes_per_device <= limit and plan.certificate.lower_bound_s is not None
        assert plan.certificate.lower_bound_s <= best * (1 + 1e-9)
        assert best <= plan.total.value * (1 + 1e-9)
        if plan.total.value > free.total.value * (1 + 1e-9) and method == "elimination":
            assert plan.details["memory limit"] == "faster plans do not fit"
        for of in plan.baselines:
            assert of.feasible == (of.bytes_per_device <= limit)
            if of.feasible and of.total is not None:
                assert plan.total.value <= of.total.value * (1 + 1e-9)
    with pytest.raises(InputError, match="the smallest found takes"):
        planned(model, Devices(1, 2, 1000), method, batch=2)


def test_inception_fits_a_p100() -> None:
    """Jia et al. trained it so: 4 x 4 P100 of 16 GB, 32 samples each. No tensor counts twice.

    Data parallelism by the count that training's own bytes are held against (tests/training).
    """
    model = spec("inception-v3")
    devices = Devices(4, 4, P100.device_memory_bytes)
    # the least of more plans is no more
    options = {"degrees": "machine", "dimensions": "sample,channel"}
    plan = planned(model, devices, batch=512, form="paper", options=options)
    assert plan.certificate.kind == "optimal"
    held = {of.name: of.bytes_per_device for of in plan.baselines}
    assert held["data"] == live_bytes(model, Division("data", 16, 512), "momentum") < 4 << 30
    assert plan.bytes_per_device < 6 << 30


def test_a_batch_that_nothing_divides() -> None:
    plan = planned(small(), batch=7)
    assert all(layer.degrees.get("sample", 1) == 1 for layer in plan.layers)
    data_baseline = plan.baselines[0]
    assert not data_baseline.feasible and "4 devices do not divide" in data_baseline.why


def test_degrees() -> None:
    shape = small().layers[1].shape  # 8 channels, 8 x 8
    every = ConfigurationChoices(Devices(1, 6), 12).configurations(shape)
    assert Configuration(sample=3, channel=2) in every and Configuration() == every[0]
    assert all(of.parts <= 6 and 12 % of.sample == 0 and of.input == 1 for of in every)
    auto = {
        p: ConfigurationChoices.of(request(small(), Devices(p // 4, 4))).degrees
        for p in (4, 16, 32, 1024)
    }
    assert auto == {4: "any", 16: "any", 32: "powers", 1024: "machine"}
    powers = ConfigurationChoices(Devices(1, 6), 12, degrees="powers").configurations(shape)
    assert set(powers) < set(every) and all(of.parts in (1, 2, 4) for of in powers)
    machine = ConfigurationChoices(Devices(2, 4), 16, degrees="machine").configurations(shape)
    assert {of.parts for of in machine} == {1, 4, 8}
    only = ConfigurationChoices(Devices(1, 4), 16, ("sample", "input")).configurations(shape)
    assert {of.input for of in only} == {1, 2, 4} and {of.channel for of in only} == {1}


def test_checkpointed_regions_are_refused() -> None:
    model = marked(small(), *(layer.name for layer in small().layers[:2]))
    with pytest.raises(InputError, match="a plan per layer cuts and trains each by itself"):
        planned(model)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dimensions": "sample,time"}, "unknown dimension 'time'; known: sample"),
        ({"degrees": "prime"}, "known: auto, any, powers, machine"),
        ({"sync": "x"}, "known: allreduce"),
    ],
)
def test_wrong_options_are_one_line(options: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        planned(small(), options=options)
