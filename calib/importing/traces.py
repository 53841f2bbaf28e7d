"""Collectives of a traced run as rows of a run directory: each at its own time, without the waits."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from calib.foundation.errors import FileError
from calib.foundation.words import counted
from calib.microbench.importers.nccl.operations import KINDS
from calib.microbench.importers.said import Flags
from calib.microbench.importers.table import Block, Imported, TableVariant
from calib.microbench.records.manifest import ImportedFile
from calib.training.traces.joined import Joined, JoinedRanks, joined
from calib.training.traces.rank import RankTrace
from calib.training.traces.run import read_ranks

TOOL = "torch.profiler"
# what a backend is called here, and where its buffers are
LIBRARIES = {
    "gloo": ("torch_gloo", "cpu"),
    "calib_mpi": ("torch_mpi", "cpu"),
    "mpi": ("mpi", "cpu"),
}
KERNELS = "nccl", "cuda"
Layout = tuple[str, int, int, bool]  # operation, ranks of a group, nodes, whether ranks are missing


def read_traces(paths: Sequence[Path], flags: Flags) -> list[tuple[ImportedFile, Imported]]:
    """The collectives of a run whose ranks' traces are in `paths`; the rows are in the first.

    Raises FileError for traces of several runs, and where no collective says its size and its ranks.
    """
    traces = read_ranks(paths)
    ranks = joined(traces)
    notes = [*dict.fromkeys(note for trace in traces for note in trace.notes), *ranks.notes]
    blocks, left = _blocks(ranks, flags)
    if left:
        notes.append(
            f"{counted(left, 'collective')} without size or ranks, or of no kind, left out"
        )
    if not blocks:
        raise FileError(f"{paths[0]} gives no row: no collective says its size and its ranks")
    found = []
    for number, trace in enumerate(traces):
        about = Imported(TOOL, blocks=[] if number else blocks, notes=notes, of_run=True)
        if trace.gpu is not None:
            host = str(trace.about.get("host_name") or trace.path.stem)
            about.gpus = {host: [trace.gpu]}
        record = ImportedFile(
            name=trace.path.name,
            sha256=hashlib.sha256(trace.path.read_bytes()).hexdigest(),
            tool=TOOL,
            library_version=_nccl_version(trace),
            of_run=True,
            rows=sum(trace.rank in one.ranks for one in ranks.collectives),
            notes=[] if number else notes,
        )
        found.append((record, about))
    return found


def _nccl_version(trace: RankTrace) -> str:
    said = trace.about.get("distributedInfo")
    version = said.get("nccl_version") if isinstance(said, dict) else None
    return version if isinstance(version, str) and len(version) < 20 else ""


def _blocks(ranks: JoinedRanks, flags: Flags) -> tuple[list[Block], int]:
    """Blocks of the collectives that say what they are, and how many do not."""
    alike: defaultdict[Layout, list[Joined]] = defaultdict(list)
    left = 0
    for one in ranks.collectives:
        size = one.one.size or flags.ranks
        if one.one.operation not in KINDS or not one.one.nbytes or size < 2 or one.own_s <= 0:
            left += 1
            continue
        lacks = one.last is None or len(one.ranks) < size
        alike[one.one.operation, size, _nodes(ranks, one, flags), lacks].append(one)
    library, device = _library(ranks.traces[0])
    blocks = []
    for (operation, size, nodes, lacks), rows in alike.items():
        names = sorted({row.one.dtype for row in rows})
        n = len(rows)
        blocks.append(
            Block(
                operation,
                flags.library or library,
                device,
                size,
                nodes,
                -(-size // nodes),
                1,
                [TableVariant(name or "uint8") for name in names],
                np.zeros(n, dtype=np.int64),
                np.array([names.index(row.one.dtype) for row in rows]),
                np.array([row.one.nbytes for row in rows], dtype=np.int64),
                np.array([row.own_s for row in rows]),
                np.array([np.nan if lacks else max(row.waited_s) for row in rows]),
                np.ones(n, dtype=np.int64),
                of_run=True,
                lacks_ranks=lacks,
                files=len(ranks.traces),
            )
        )
    return blocks, left


def _nodes(ranks: JoinedRanks, of: Joined, flags: Flags) -> int:
    """Hosts that a group spans, where the traces of its ranks name them; else as said, or one."""
    hosts = {trace.rank: trace.about.get("host_name") for trace in ranks.traces}
    named = {hosts.get(rank) for rank in of.one.members or of.ranks}
    return max(flags.nodes, 1) if None in named else max(len(named), 1)


def _library(trace: RankTrace) -> tuple[str, str]:
    if trace.events.nccl:
        return KERNELS
    said = trace.about.get("distributedInfo")
    backend = said.get("backend") if isinstance(said, dict) else None
    return LIBRARIES.get(str(backend), ("torch_gloo", "cpu"))
