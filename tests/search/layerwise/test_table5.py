"""Table 5 of "Exploring Hidden Dimensions" (VGG16, 4 P100 of a node) against what nominal P100s give."""

from __future__ import annotations

import csv

import pytest
from tests.helpers.layerwise import priced
from tests.helpers.published import DATA, needs_data

from calib.oracle.costs.machine import Machine
from calib.oracle.layout.partitions import Configuration
from calib.search import search
from calib.search.nominal import nominal
from calib.search.request import Devices, SearchRequest
from calib.training.models.specs import spec

TABLE = DATA / "papers_tables/optcnn_table5_vgg16_4gpu_strategy.csv"
NAMES = {"n": "sample", "h": "height", "w": "width", "c": "channel"}
BATCH, NODE = 128, Devices(1, 4)
# features of a row, block 5 without pooling
BLOCKS = ((0, 5), (5, 10), (10, 17), (17, 24), (24, 30))


def published() -> list[dict[str, int]]:
    """Degrees over 1 by row; nothing of the row that is ambiguous."""
    with TABLE.open() as file:
        return [
            {name: int(row[short]) for short, name in NAMES.items() if row[short] not in ("", "1")}
            for row in csv.DictReader(file)
        ]


@needs_data
def test_what_comes_out() -> None:
    """Data for the first four blocks, channels for the first dense layer, as published; block 5 not."""
    rows = published()
    plan = search(spec("vgg16"), NODE, nominal("p100"), "layerwise", batch=BATCH, form="paper")
    found = {layer.name: layer.degrees for layer in plan.layers}
    for row, (first, stop) in zip(rows[:4], BLOCKS[:4], strict=True):
        assert all(found[f"features.{k}"] == row for k in range(first, stop))
    assert found["classifier.0"] == rows[5] == {"channel": 4}
    assert rows[4] == {"height": 2, "width": 2} != found["features.24"]


@pytest.mark.parametrize("sync", ["server", "allreduce"])
def test_why_block_5_is_not_cut_in_space(sync: str) -> None:
    """2 x 2 shares weights among as many devices as data does, computes as much, and moves halos."""
    model = spec("vgg16")
    request = SearchRequest(
        model,
        NODE,
        Machine(nominal("p100")),
        BATCH,
        "elimination",
        form="paper",
        options={"sync": sync},
    )
    data = {layer.name: Configuration(sample=4) for layer in model.layers}
    cut = {f"features.{k}": Configuration(spatial=(2, 2)) for k in range(*BLOCKS[4])}
    here, there = priced(request, data), priced(request, data | cut)
    assert there.phases["synchronize"].seconds == here.phases["synchronize"].seconds
    assert there.phases["redistribute"].seconds > here.phases["redistribute"].seconds == 0
    # of the laws of work, the compute is the same but for the rows read twice
    compute = [of.phases["compute"].seconds for of in (here, there)]
    assert compute[1] == pytest.approx(compute[0], rel=1e-3)
