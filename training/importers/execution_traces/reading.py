"""Read an execution trace, whichever of the two formats it has."""

from __future__ import annotations

import re
from pathlib import Path

from calib.training.importers.execution_traces.chakra import read_chakra, read_groups
from calib.training.importers.execution_traces.pytorch import read_pytorch
from calib.training.importers.execution_traces.record import ExecutionTrace
from calib.training.traces.stream import beginning, opened

GROUPS = "comm_groups.json"
HEAD = 64  # bytes that tell JSON from protobuf
OBSERVED = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*"schema"\s*:\s*"1\.[01]\.')
JSON = re.compile(rb"(\xef\xbb\xbf)?\s*\{\s*\"")


def is_execution_trace(path: Path) -> bool:
    """Whether a file that can be read begins as one of PyTorch's or, by its name, Chakra's does."""
    return path.suffix == ".et" or OBSERVED.match(beginning(path, HEAD)) is not None


def groups_beside(path: Path) -> Path | None:
    """ASTRA-sim's comm-group file beside a Chakra trace, by the name that calib gives it."""
    found = path.with_name(GROUPS)
    return found if path.suffix == ".et" and found.is_file() else None


def read_execution_trace(path: Path, groups: Path | None = None) -> ExecutionTrace:
    """The nodes of one rank's trace: Chakra's .et or PyTorch's .json, gzipped or not.

    Parameters
    ----------
    path
        The file. Nothing in it is evaluated; a node is read at a time, and a trace of more than
        MOST_NODES is refused.
    groups
        ASTRA-sim's comm-group file, which says the ranks of a Chakra trace's groups.

    Raises
    ------
    FileError
        Missing, truncated, of neither format or an unknown schema, or a node that makes no sense.

    Examples
    --------
    >>> trace = read_execution_trace(Path("iteration.0.et"))  # doctest: +SKIP
    >>> sum(node.duration_s for node in trace.nodes if node.kind == "compute")  # doctest: +SKIP
    """
    ranks = {} if groups is None else read_groups(groups)
    with opened(path, "execution trace") as stream:
        head = stream.read(HEAD)
        if not JSON.match(head):
            stream.seek(0)
            return read_chakra(stream, path, ranks)
    return read_pytorch(path)
