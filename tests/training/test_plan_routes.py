"""What a rank sends, receives and keeps: what the boxes of the partitions say, seen from one rank."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.training.plan_models import BATCH, configurations, spec_of

from calib.oracle.layout.partitions import Configuration, items, needed, owned
from calib.training.allowed import why_not_trained
from calib.training.plans.division import LAYERWISE, LayerwiseDivision, sharers, summers
from calib.training.plans.routes import InputRoute, input_route, route

SPEC = spec_of()
PLACE = {layer.name: i for i, layer in enumerate(SPEC.layers)}
EDGES = [
    (PLACE[name], i, which)
    for i, layer in enumerate(SPEC.layers)
    for which, name in enumerate(layer.inputs)
    if name in PLACE
]


def routes_of(edge: tuple[int, int, int], p: int, seed: int) -> list[InputRoute]:
    """Of all ranks, between two random configurations."""
    producer, consumer, which = edge
    draw = random.Random(seed)
    before, behind = (draw.choice(configurations(SPEC, i, p)) for i in (producer, consumer))
    return [
        route(
            (SPEC.layers[producer].shape, before),
            (SPEC.layers[consumer].shape, behind),
            which,
            BATCH,
            rank,
        )
        for rank in range(p)
    ]


@given(st.sampled_from(EDGES), st.integers(1, 4), st.integers(0, 1000))
def test_what_is_sent_is_received_and_all_of_the_need_comes(
    edge: tuple[int, int, int], p: int, seed: int
) -> None:
    found = routes_of(edge, p, seed)
    sent = Counter((rank, to, box) for rank, of in enumerate(found) for to, box in of.sends)
    received = Counter(
        (source, rank, box) for rank, of in enumerate(found) for source, box in of.receives
    )
    assert sent == received
    for of in found:
        have = (items(of.local) if of.local else 0) + sum(items(box) for _, box in of.receives)
        assert have == (items(of.need) if of.need else 0)
        if of.is_direct:
            assert not of.receives and of.local == of.need


def test_the_same_configuration_is_direct() -> None:
    """Behind a convolution, its ReLU: nothing is sent and nothing copied, however it is cut."""
    conv, relu = PLACE["point"], PLACE["add"]
    for of in (Configuration(2), Configuration(channel=2), Configuration(spatial=(2, 2))):
        for rank in range(of.parts):
            found = route(
                (SPEC.layers[conv].shape, of), (SPEC.layers[relu].shape, of), 0, BATCH, rank
            )
            assert found.is_direct and not found.talks


def test_a_halo_is_one_row_each_way() -> None:
    """Of a 3 x 3 convolution behind one, in two parts of 12 of 24 rows; a row of zeros above."""
    of = Configuration(spatial=(2,))
    norm, strided = SPEC.layers[PLACE["relu"]].shape, SPEC.layers[PLACE["strided"]].shape
    upper = route((norm, of), (strided, of), 0, BATCH, 0)
    lower = route((norm, of), (strided, of), 0, BATCH, 1)
    assert upper.whole is not None and upper.whole[2] == (-1, 12) and not upper.receives
    row = ((0, BATCH), (0, 12), (11, 12), (0, 24))
    assert upper.sends == ((1, row),) and lower.receives == ((0, row),)
    assert lower.whole is not None and lower.whole[2] == (11, 24)


def test_the_models_input_is_read_from_memory() -> None:
    stem = SPEC.layers[0].shape
    found = input_route((stem, Configuration(2, spatial=(2,))), 0, BATCH, 3)
    assert not found.talks and found.need == ((6, 12), (0, 3), (11, 24), (0, 24))
    assert input_route((stem, Configuration()), 0, BATCH, 1).whole is None


@pytest.mark.parametrize("p", [2, 3, 4])
def test_sharers_have_the_same_channels(p: int) -> None:
    """Every part is in one group; all of a group compute the same channels from the same inputs."""
    for i, layer in enumerate(SPEC.layers[:-1]):
        for of in configurations(SPEC, i, p):
            groups = sharers(of)
            assert sorted(part for ranks in groups for part in ranks) == list(range(of.parts))
            for ranks in groups:
                assert len({(of.place(part).channel, of.place(part).input) for part in ranks}) == 1
            for ranks in summers(of):
                boxes = [owned(layer.shape, of, BATCH, part) for part in ranks]
                reads = [needed(layer.shape, of, BATCH, part) for part in ranks]
                assert len(set(boxes)) == len(ranks) == of.input == len(set(reads))


def test_a_division_of_more_parts_than_devices() -> None:
    plan = tuple(Configuration(4) for _ in SPEC.layers)
    division = LayerwiseDivision(LAYERWISE, 2, BATCH, configurations=plan)
    assert division.faults == ["a layer in 4 parts needs more than p = 2"]
    assert why_not_trained(division, SPEC)[0].startswith(
        "stem cannot be cut by sample=4: 4 parts are more than"
    )
    assert division.sample_degrees == 4 and division.layout == f"{len(SPEC.layers)} x sample=4"
