"""The limits of the paper, and how memory and communication change with the ranks.

ParaDL, sections 5.3.2 and 5.3.4, and formulas.md, "PE limits" and "Memory per PE".
"""

from __future__ import annotations

import functools
import math
from itertools import pairwise

import pytest
from tests.oracle.handmade import ALPHA_S, BETA_S_PER_BYTE, machine, operations

from calib.foundation.division import Division
from calib.oracle.costs.machine import Machine
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.projection import Form, Projection
from calib.training.models.specs import spec

GIB = 2**30
V100_BYTES = 16 * GIB  # of the paper's GPUs
# 512^3, one sample (GiB): 4 -> 16 channels and a ReLU on 510^3, a pooling to 255^3, and so on
COSMOFLOW_FIRST_LAYER = 2 * 4 * (4 * 512**3 + 16 * 510**3)


@functools.cache
def hand(room: int = V100_BYTES) -> Machine:
    """Laws for every layer and operation, all on one level, and no memory reuse (gamma = 1)."""
    fits = operations("allreduce", "allgather", "reduce_scatter", "p2p", "halo")
    parameters = machine(collectives=fits, device_memory_bytes=room, ranks_per_node=1024)
    laws = [law.model_copy(update={"active_ranks": 1}) for law in parameters.work]
    loops = [loop.model_copy(update={"active_ranks": 1}) for loop in parameters.tensor_loops]
    return Machine(parameters.model_copy(update={"work": laws, "tensor_loops": loops}))


@functools.cache
def model(name: str) -> ModelSpec:
    """Traced once."""
    return spec(name)


def predict(
    name: str,
    strategy: str,
    p: int,
    batch: int,
    inner: int = 1,
    segments: int = 1,
    form: Form = "measured",
) -> Projection:
    """On the hand-made machine."""
    division = Division(strategy, p, batch, inner=inner, segments=segments)
    return project(model(name), division, hand(), form=form)


@pytest.mark.parametrize("name", ["vgg16", "resnet50"])
def test_filter_parallelism_stops_at_64(name: str) -> None:
    """Section 5.3.4: "64 in the case of VGG16 and ResNet-50 with filter parallelism"."""
    within, beyond = predict(name, "filter", 64, 1), predict(name, "filter", 65, 1)
    assert within.total is not None and within.limit.ranks == 64
    assert "number of ranks" in {b.name for b in within.bottlenecks}
    assert beyond.total is None and not beyond.feasible and not beyond.phases
    assert "at most 64" in beyond.limits[0]
    hybrid = predict(name, "data+filter", 130, 2, inner=65)
    assert not hybrid.feasible and "at most 64" in hybrid.limits[0]
    assert predict(name, "data+filter", 128, 2, inner=64).total is not None


@pytest.mark.parametrize(("name", "first"), [("vgg16", "features.0"), ("resnet50", "conv1")])
def test_channel_parallelism_starts_at_the_second_layer(name: str, first: str) -> None:
    """An image has 3 channels: were the first layer split, 4 ranks would be too many."""
    found = predict(name, "channel", 64, 1)
    assert found.total is not None and found.limit.ranks == 64
    assert not found.limit.why.startswith(f"{first} ")
    assert "at most 64" in predict(name, "channel", 65, 1).limits[0]


@pytest.mark.parametrize("form", ["measured", "paper"])
@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        ("serial", [1]),
        ("data", [1, 2, 64, 1024]),
        ("filter", [1, 2, 3, 4]),
        ("channel", [1, 2, 8, 16]),
        ("pipeline", [1, 2, 5, 13, 27]),
    ],
)
def test_cosmoflow_512_fits_no_strategy_that_keeps_a_whole_sample(
    strategy: str, ranks: list[int], form: Form
) -> None:
    """Up to its limit each has a time but does not fit; the reason has both numbers."""
    for p in ranks:
        batch = p if strategy == "data" else 1
        found = predict("cosmoflow", strategy, p, batch, form=form)
        assert found.total is not None and found.total.value > 0
        assert not found.feasible
        assert found.bytes_per_rank >= COSMOFLOW_FIRST_LAYER > V100_BYTES
        (reason,) = found.limits
        assert "over the device's 16 GiB" in reason and "naive" in reason
        assert "memory stalls" in {b.name for b in found.bottlenecks}
    if strategy != "data":  # the last p was the most
        assert predict("cosmoflow", strategy, ranks[-1], 1).limit.ranks == ranks[-1]
        beyond = predict("cosmoflow", strategy, ranks[-1] + 1, 1)
        assert not beyond.feasible and beyond.total is None


def test_cosmoflow_512_fits_on_6_ranks_that_share_its_images() -> None:
    """88.2 GiB by 6 is 14.7 GiB; data+spatial has as much on a rank, whatever the groups."""
    for p in range(1, 6):
        assert not predict("cosmoflow", "spatial", p, 1).feasible
        assert not predict("cosmoflow", "data+spatial", 4 * p, 4, inner=p).feasible
    for p in (6, 8, 16, 64):
        alone = predict("cosmoflow", "spatial", p, 1)
        groups = predict("cosmoflow", "data+spatial", 4 * p, 4, inner=p)
        assert alone.feasible and groups.feasible
        assert alone.bytes_per_rank == groups.bytes_per_rank
    activations = sum(
        2 * 4 * (math.prod(x.shape.input_shapes[0]) + math.prod(x.shape.output_shape))
        for x in model("cosmoflow").layers
        if x.shape.kind != "flatten"
    )
    assert activations / GIB == pytest.approx(88.2, abs=0.05)
    found = predict("cosmoflow", "spatial", 6, 1).bytes_by_part["activations"]
    # the layers behind the split are whole, and small
    assert activations / 6 <= found <= activations / 6 * 1.001


def parts_at(strategy: str, p: int, batch: int = 64, inner: int = 1) -> dict[str, int]:
    """Naive bytes of VGG16."""
    return predict("vgg16", strategy, p, batch, inner).bytes_by_part


def test_memory_falls_as_the_formulas_say() -> None:
    """1/p of the activations (data), of the weights (filter), of both (hybrids)."""
    one = parts_at("serial", 1)
    assert one["activations"] > one["weights"] > 0
    for p in (2, 4, 8):
        data, both = parts_at("data", p), parts_at("data+filter", 4 * p, inner=p)
        shared, spatial = parts_at("filter", p), parts_at("data+spatial", 4 * p, inner=p)
        assert data["activations"] * p == one["activations"]
        assert both["activations"] * 4 == one["activations"] == shared["activations"]
        assert data["weights"] == spatial["weights"] == one["weights"]
        # 1000 classes and 4096 features are multiples of 8: every part is equal
        assert shared["weights"] * p == both["weights"] * p == one["weights"]
        assert shared["optimizer"] * p == one["optimizer"]
        # what is behind the split is whole: the classifier, and the last pooling of 7 rows on 8 ranks
        assert 1 <= spatial["activations"] * 4 * p / one["activations"] < 1.03
    stages = [parts_at("pipeline", p) for p in (1, 2, 4, 8)]
    assert all(a["activations"] >= b["activations"] for a, b in pairwise(stages))
    assert sum(stages[-1].values()) < sum(one.values())


@pytest.mark.parametrize("form", ["measured", "paper"])
def test_communication_rises_with_the_ranks(form: Form) -> None:
    """At a fixed B: the exchange of data, the joins of filter and channel, the halos do not shrink."""
    ranks = (2, 4, 8, 16)
    for strategy, phase in (
        ("data", "exchange"),
        ("spatial", "exchange"),
        ("filter", "layerwise"),
        ("channel", "layerwise"),
    ):
        times = [predict("vgg16", strategy, p, 16, form=form).phases[phase].value for p in ranks]
        assert times == sorted(times) and times[-1] > times[0] > 0, (strategy, times)


def test_exchange_of_the_paper_is_the_ring() -> None:
    """2 (p-1) (alpha + W beta / p), with VGG16's 138,357,544 weights (formulas.md)."""
    for p in (2, 16):
        found = predict("vgg16", "data", p, 16, form="paper").phases["exchange"].value
        by_hand = 2 * (p - 1) * (ALPHA_S + 4 * 138357544 * BETA_S_PER_BYTE / p)
        assert found == pytest.approx(by_hand, rel=1e-12)
