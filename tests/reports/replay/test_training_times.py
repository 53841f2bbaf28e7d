"""The table of whole trainings, and an iteration's exchange by the logs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.helpers.published import DATA, needs_data

from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import FileError
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.layout.traffic import Message
from calib.replay.logs import parameters_of
from calib.reports.replay.training_exchange import exchange_of, without_outlying
from calib.reports.replay.training_replay import replay_trainings
from calib.reports.replay.training_times import Trained, is_training_table, read_trainings
from calib.training.models.specs import spec

HEAD = "nodes,gpus,batch_per_gpu,seconds_for_10_epochs\n"
IMAGES = 1_281_167


def test_a_table(tmp_path: Path) -> None:
    """8 GPUs a node, 32 samples each, 10 epochs of 1000 samples: 2 and 4 iterations an epoch."""
    path = tmp_path / "times.csv"
    path.write_text(HEAD + "2,16,32,\n1,8,32,20\n")
    assert is_training_table(path)
    rows = read_trainings(path)
    assert rows == [Trained(2, 16, 32, 10, None), Trained(1, 8, 32, 10, 20.0)]
    assert [row.iterations(1000) for row in rows] == [20, 40]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD, "has no row"),
        ("nodes,gpus,batch_per_gpu,seconds\n1,8,32,20\n", "no column one of seconds_for_N_epochs"),
        (HEAD.replace("batch_per_gpu", "batch") + "1,8,32,20\n", "no column batch_per_gpu"),
        (HEAD + "1,8,32,-20\n", "line 2: -20 seconds"),
        (HEAD + "1,8,32,fast\n", "'fast' is not a number of seconds"),
        (HEAD + "1,8,32\n1,0,32,20\n", "line 3: '0' is not a whole number"),
        (HEAD + "3,8,32,20\n", "line 2: 8 GPUs on 3 nodes"),
    ],
)
def test_tables_that_are_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text)
    with pytest.raises(FileError, match=message):
        read_trainings(path)


@pytest.fixture(scope="module")
def abci() -> Parameters:
    return parameters_of([DATA / "nccl-tests" / "abci_V_allreduce_*.txt"])


@needs_data
def test_exchange_is_a_message_per_tensor(abci: Parameters) -> None:
    costs, model = CollectiveCosts(abci), spec("resnet50")
    tensors = [math.prod(shape) for layer in model.layers for shape in layer.shape.parameter_shapes]
    assert len(tensors) == 161
    exchange = exchange_of(costs, model)
    for p in (4, 32):
        by_hand = sum(costs.time(Message("allreduce", 4 * n, p)).seconds for n in tensors)
        assert exchange(p).value == pytest.approx(by_hand)
    assert exchange(1).value == 0


@needs_data
def test_abci_resnet50_from_its_logs(abci: Parameters) -> None:
    """2 to 32 nodes of 4 V100, none of whose times is used: at least 95%, and all in their interval."""
    rows = read_trainings(DATA / "training" / "abci_v100_resnet50_90_epochs.csv")
    parameters, notes = without_outlying(abci)
    exchange = exchange_of(CollectiveCosts(parameters), spec("resnet50"))
    found = replay_trainings(rows, exchange, IMAGES, notes=notes)
    assert [row.trained.nodes for row in found.rows] == [2, 4, 8, 16, 32]
    assert (found.accuracy or 0) >= 0.95
    assert all(found.inside) and len(found.inside) == 5
    # without its measured times the answer is the same
    blank = [Trained(r.nodes, r.gpus, r.batch_per_gpu, r.epochs, None) for r in rows[1:]]
    again = replay_trainings([rows[0], *blank], exchange, IMAGES)
    assert [row.seconds for row in again.rows] == [row.seconds for row in found.rows]
    # a second row narrows every interval, and does not make it worse
    two = replay_trainings(rows, exchange, IMAGES, [1, 4])
    one = {row.trained.nodes: row for row in found.rows}
    for row in two.rows:
        assert row.seconds.half_width < one[row.trained.nodes].seconds.half_width
    assert (two.accuracy or 0) >= 0.97 and all(two.inside)


@needs_data
def test_abci_without_a_log_of_one_node(tmp_path: Path) -> None:
    """One node is then a share of two; with time on 4 nodes known too, at least 96%."""
    logs = sorted((DATA / "nccl-tests").glob("abci_V_allreduce_*n*g.txt"))
    assert len(logs) == 5
    exchange = exchange_of(CollectiveCosts(parameters_of(logs)), spec("resnet50"))
    assert exchange(4).value == pytest.approx(exchange(8).value / 3)
    assert exchange(4).high <= exchange(8).value * 1.000001
    rows = read_trainings(DATA / "training" / "abci_v100_resnet50_90_epochs.csv")
    for nodes, least in (([1], 0.93), ([1, 4], 0.96)):
        found = replay_trainings(rows, exchange, IMAGES, nodes)
        assert (found.accuracy or 0) >= least and all(found.inside)
