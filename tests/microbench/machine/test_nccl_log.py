"""NCCL's debug log, in lines as libnccl 2.31.2 and 2.32.3 format them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from calib.microbench.machine.nccl_log import NcclLog, communicator_channels, log_file

HOST = socket.gethostname().partition(".")[0]
INIT = """\
node1:123:130 [0] NCCL INFO 16 coll channels, 4 collnet channels, 8 nvls channels, 32 p2p \
channels, 2 p2p channels per peer
node1:123:130 [0] NCCL INFO comm 0x55, 24 coll channels, 0 collnet channels, 8 nvls channels, 16 p2p \
channels, 4 p2p channels per peer
node1:123:130 [0] NCCL INFO 99 coll channels are not what this says
"""


def call(function: str, nbytes: int, algorithm: str, protocol: str, high: int, low: int = 0) -> str:
    how = f"Algo {algorithm} proto {protocol} channel{{Lo..Hi}}={{{low}..{high}}}"
    return f"node1:1:1 [0] NCCL INFO {function}: {nbytes} Bytes -> {how} cgaClusterSize 4\n"


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/l/%h.%p.%%"}, f"/l/{HOST}.{os.getpid()}.%"),
        ({"NCCL_DEBUG": "trace", "NCCL_DEBUG_FILE": "log"}, "log"),
        ({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "log"}, None),
        ({"NCCL_DEBUG_FILE": "log"}, None),
        ({"NCCL_DEBUG": "INFO"}, None),
    ],
    ids=["a file per rank", "one file", "too quiet", "no level", "no file"],
)
def test_where_the_log_is(environment: dict[str, str], name: str | None) -> None:
    assert log_file(environment) == (None if name is None else Path(name))


def test_what_calls_took(tmp_path: Path) -> None:
    """Of the operation alone, of its largest size, and of what is written from then on."""
    path = tmp_path / "log"
    path.write_text(INIT + call("AllReduce", 1 << 30, "NVLS", "SIMPLE", 15))
    log = NcclLog(path)
    assert log.channels("allreduce") == {}
    with path.open("a") as file:
        file.write(call("AllReduce", 4, "TREE", "LL", 0))
        file.write(call("AllReduce", 4096, "RING", "LL128", 5, low=2) * 3)
        file.write(call("AllReduce", 4096, "RING", "LL128", 7))
        file.write(call("AllReduce", 4096, "COLLNET_CHAIN", "SIMPLE", 1))
        file.write(call("AllGather", 1 << 20, "RING", "SIMPLE", 23))
    assert log.channels("allreduce") == {"ring/ll128": 8, "collnet_chain/simple": 2}
    assert log.channels("allgather") == {"ring/simple": 24}
    assert log.channels("reduce") == log.channels("halo") == {}


def test_no_log_says_nothing(tmp_path: Path) -> None:
    for path in (None, tmp_path / "none"):
        assert NcclLog(path).channels("allreduce") == communicator_channels(path) == {}


def test_a_log_that_begins_later_is_read_whole(tmp_path: Path) -> None:
    log = NcclLog(tmp_path / "log")
    (tmp_path / "log").write_text(call("ReduceScatter", 64, "PAT", "SIMPLE", 0))
    assert log.channels("reduce_scatter") == {"pat/simple": 1}


def test_channels_of_communicators(tmp_path: Path) -> None:
    """The most of any."""
    (tmp_path / "log").write_text(INIT)
    counts = {"coll": 24, "collnet": 4, "nvls": 8, "p2p": 32, "p2p per peer": 4}
    assert communicator_channels(tmp_path / "log") == counts
