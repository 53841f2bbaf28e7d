"""A log of every kind."""

from __future__ import annotations

import json

from tests.microbench.importers.logs import table
from tests.microbench.importers.made.early import early
from tests.microbench.importers.made.imb import SUITE, block
from tests.microbench.importers.made.jobs import inspector_log
from tests.microbench.importers.made.nccl_json import document
from tests.microbench.importers.made.osu import log as osu_log
from tests.microbench.importers.made.plain import BANDWIDTHS
from tests.microbench.importers.made.rccl import log as rccl_log
from tests.microbench.importers.made.rccl_results import as_csv, as_json, entries

MADE = {
    "nccl": table() + table().replace("all_reduce", "reduce"),
    "json": json.dumps(document(), indent=1),
    "osu": osu_log("MPI Allgather Latency Test") + osu_log("MPI-CUDA Latency Test"),
    "imb": SUITE + block("Alltoall") + block("Sendrecv"),
    "rccl": rccl_log("both", True, True, True),
    "rccl half": rccl_log("in-place", False, True, False),
    "rccl csv": as_csv(entries("ReduceScatter", part=8)),
    "rccl json": as_json(entries()),
    "inspector": "".join(inspector_log(rank, (400 + rank, 312)) for rank in range(4)),
    "early": early() + early(names="", words="", moved=0.75, factor=1.0, parts=4),
    "plain": BANDWIDTHS,
    "clocks": "".join(f"00:55:22  {line}\n" for line in osu_log("MPI Latency Test").split("\n")),
}
