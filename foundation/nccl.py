"""What NCCL chooses for a call, by the names of its example tuner, and what it can be told to use.

A call is told by a selection, from NCCL 2.31 on (ncclCollConfig_t): tags that are matched with the
beginnings of names such as RING_LL128, in any case; "+" is and, "^" not. So ring_ll is LL and LL128, and
LL alone is that without ring_ll128. Read from NCCL 2.31.2 (src/config/algorithm_parser.cc); ncclAlgParse
of libnccl 2.31.2 and 2.32.3, called by itself, gives one algorithm for each selection here.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

NcclAlgorithm = Literal[
    "ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat"
]
NcclProtocol = Literal["ll", "ll128", "simple"]

# the rest is sends and receives, which NCCL chooses nothing for
CHOSEN = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")
CONFIG_VERSION = (2, 31)
NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")  # PyPI's names


class Tellable(NamedTuple):
    """The operations that have an algorithm, and the protocols that it can be told with."""

    operations: tuple[str, ...]
    protocols: tuple[NcclProtocol, ...] = ("simple",)


TELLABLE: dict[NcclAlgorithm, Tellable] = {
    "ring": Tellable(CHOSEN, ("ll", "ll128", "simple")),
    "tree": Tellable(("allreduce",), ("ll", "ll128", "simple")),
    "nvls": Tellable(("allreduce", "allgather", "reduce_scatter")),
    "nvls_tree": Tellable(("allreduce",)),
    "collnet_direct": Tellable(("allreduce", "allgather", "reduce_scatter")),
    "collnet_chain": Tellable(("allreduce",)),
    "pat": Tellable(("allgather", "reduce_scatter")),
}
_NAME = re.compile(r"(\w+)(?: algorithm=(\w+))?(?: protocol=(\w+))?")


def selection(algorithm: str, protocol: str) -> str:
    """What a call is told: ring_ll128, or ring_ with any protocol (nvls without _ is nvlstree too)."""
    name = f"{algorithm.replace('nvls_tree', 'nvlstree')}_{protocol}"
    return f"{name}+^{name}128" if protocol == "ll" else name


def told_key(algorithm: str, protocol: str) -> str:
    """The column `key` of a row: "algorithm=ring protocol=ll128"; "" where NCCL was told nothing."""
    parts = {"algorithm": algorithm, "protocol": protocol}
    return " ".join(f"{what}={name}" for what, name in parts.items() if name)


def told_of(name: str) -> tuple[str, str, str] | None:
    """(operation, algorithm, protocol) of a law "allreduce algorithm=ring"; None of another detail."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match[1], match[2] or "", match[3] or "")
