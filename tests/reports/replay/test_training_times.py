"""Whole trainings on more nodes from the one-node time: by hand, and ABCI's from its logs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.helpers.published import DATA, needs_data

from calib.foundation.errors import FileError, InputError
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.layout.traffic import Message
from calib.oracle.projection import PhaseTime
from calib.replay.logs import parameters_of
from calib.reports.replay.training_times import (
    IN_TRAINING,
    Trained,
    exchange_of,
    expected,
    is_training_table,
    read_trainings,
)
from calib.training.models.specs import spec

HEAD = "nodes,gpus,batch_per_gpu,seconds_for_10_epochs\n"


def exchange(p: int) -> PhaseTime:
    """A hundredth of a second per doubling of p from 8, 20% either way."""
    value = 0.01 * (1 + math.log2(p / 8))
    return PhaseTime(value=value, low=0.8 * value, high=1.2 * value, basis="interpolated")


def test_a_table_by_hand(tmp_path: Path) -> None:
    """8 GPUs a node, 32 samples each, 10 epochs of 1000 samples: 4 and 2 iterations an epoch."""
    path = tmp_path / "times.csv"
    path.write_text(HEAD + "2,16,32,\n1,8,32,20\n")
    assert is_training_table(path)
    (found,) = expected(read_trainings(path), exchange, 1000)
    # 40 iterations of 0.5 s, 0.01 s of it exchange; then 20 of 0.49 + 0.02 s
    assert found.seconds.value == pytest.approx(20 * (0.49 + 0.02))
    assert found.seconds.low == pytest.approx(20 * 0.5)
    assert found.seconds.high == pytest.approx(20 * (0.5 - 0.008 + 0.024 * IN_TRAINING))
    assert (found.accuracy, found.inside, found.trained.seconds) == (None, None, None)


def test_another_batch_scales_what_is_no_exchange() -> None:
    rows = [Trained(1, 8, 32, 10, 20.0), Trained(2, 16, 64, 10, 11.0)]
    (found,) = expected(rows, exchange, 1024)
    # 40 iterations an epoch x 10 become 10; each 2 x 0.49 + 0.02 s
    assert found.seconds.value == pytest.approx(10 * (2 * 0.49 + 0.02))
    assert found.accuracy == pytest.approx(1 - abs(10.0 / 11.0 - 1))
    assert found.inside is False


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


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([Trained(2, 16, 32, 10, 20.0)], "the fewest nodes are 2"),
        ([Trained(1, 8, 32, 10, None)], "no row has a time"),
        ([Trained(1, 8, 32, 10, 0.3)], "its exchange 10 ms by the logs"),
    ],
)
def test_times_that_nothing_follows_from(rows: list[Trained], message: str) -> None:
    with pytest.raises(InputError, match=message):
        expected(rows, exchange, 1000)


@needs_data
def test_abci_resnet50_from_its_logs() -> None:
    """2 to 32 nodes of 4 V100, none of whose times is used: at least 95%, and all in their interval."""
    costs = CollectiveCosts(parameters_of([DATA / "nccl-tests" / "abci_V_allreduce_*.txt"]))
    model = spec("resnet50")
    of = exchange_of(costs, model)
    rows = read_trainings(DATA / "training" / "abci_v100_resnet50_90_epochs.csv")
    found = expected(rows, of, 1_281_167)
    assert [row.trained.nodes for row in found] == [2, 4, 8, 16, 32]
    accurate = [row.accuracy for row in found if row.accuracy is not None]
    assert sum(accurate) / 5 >= 0.95
    assert all(row.inside for row in found)
    # by hand, from the one-node time: 90 x 417 iterations on 8 nodes, 90 x 3337 on one
    tensors = [math.prod(shape) for layer in model.layers for shape in layer.shape.parameter_shapes]
    assert len(tensors) == 161

    def sent(p: int) -> float:
        return sum(costs.time(Message("allreduce", 4 * n, p)).seconds for n in tensors)

    by_hand = 90 * 418 * (87196 / (90 * 3337) - sent(4) + sent(32))
    assert found[2].seconds.value == pytest.approx(by_hand)
    # without its measured times the answer is the same
    blank = [Trained(r.nodes, r.gpus, r.batch_per_gpu, r.epochs, None) for r in rows[1:]]
    again = expected([rows[0], *blank], of, 1_281_167)
    assert [row.seconds for row in again] == [row.seconds for row in found]
