"""One run of nccl-tests: its operation, ranks and nodes, as said or inferred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from calib.microbench.importers.nccl.blocks import blocks_of
from calib.microbench.importers.nccl.forced import key_of
from calib.microbench.importers.nccl.operations import (
    AVERAGES,
    DTYPES,
    KINDS,
    MEAN,
    OperationKind,
    as_printed,
    candidates,
    file_operation,
    ranks_from,
)
from calib.microbench.importers.nccl.tables import AlikeRuns, gpus_of, once
from calib.microbench.importers.said import (
    UNSAID,
    Flags,
    SaidPlaces,
    choose,
    choose_nodes,
    file_name,
    overruled,
    remark,
)
from calib.microbench.importers.table import Imported

UNIT_WANTED = "the unit of its times is not given, and its bandwidths are too small to tell"
RANKS_WANTED = {
    0: UNSAID["ranks"],
    1: "one rank alone: processes that do not know each other (built without MPI)?",
}


def place(table: AlikeRuns, flags: Flags, notes: list[str]) -> None:
    """Set ranks, nodes, groups and ranks of a node from the list of devices, where there is one."""
    if table.said.average != MEAN:
        remark(notes, f"the times are {AVERAGES[table.said.average]} (-a {table.said.average})")
    listed = once(table.said.ranks)
    if not listed:
        return
    if len(listed) < len(table.said.ranks):
        remark(notes, "ranks are listed twice: output of two runs at once, or built without MPI")
    groups = Counter(where.group for where in listed)
    group, size = min(groups.items())
    table.groups = len(groups)
    alone = len(groups) == 1
    # a list may have lost lines: the last rank says how many there are
    table.ranks = max(size, 1 + max(where.rank for where in listed)) if alone else size
    table.nodes = len({where.host for where in listed if where.group == group})
    table.active_ranks = max(Counter(where.host for where in listed).values())
    if table.ranks > size and table.nodes != -(-table.ranks // table.active_ranks):
        table.nodes = min(flags.nodes, table.ranks)  # which nodes the others were on is lost
        table.active_ranks = -(-table.ranks // max(1, table.nodes))
        return
    overruled(table.ranks, flags.ranks, notes, " ranks")
    overruled(table.nodes, flags.nodes, notes, " nodes")


def kind_of(
    table: AlikeRuns, flags: Flags, by_file_name: str, notes: list[str]
) -> OperationKind | str:
    """The operation of a table, or why it is not known.

    The program's own word stands. Else what its columns allow: one operation, or of several the one
    that a program's name in the log, the flag or the file's name says.
    """
    said, flag = table.said, flags.operation
    if said.operation:
        overruled(said.operation, flag, notes)
        kind = KINDS[said.operation]
        return as_printed(kind, table.evidence(), table.ranks) if kind.per_rank else kind
    evidence = table.evidence()
    ranks = table.ranks or said.launched.ranks * said.per_process or flags.ranks
    allowed = candidates(evidence, ranks) or candidates(evidence, 0)
    found = {kind.name: kind for kind in allowed}
    if "hypercube" not in (*said.named, flag, by_file_name):
        found.pop("hypercube", None)  # an old allgather prints the same, and is not as rare
    fits = f"its columns fit {', '.join(found)}" if found else "its columns fit no known operation"
    own = [word for word in dict.fromkeys(said.named) if word in found]
    if len(own) == 1:
        return found[own[0]]
    if flag and flag not in found:
        return f"it is not {flag}: {fits}"
    word, source = flag, ""
    if not word and len(found) == 1:
        (word,), source = found, "the columns"
    elif not word and by_file_name in found:
        word, source = by_file_name, "the file's name"
    if source:
        remark(notes, f"operation {word}: from {source}")
    return found[word] if word else f"{UNSAID['operation']} ({fits})"


def find_ranks(
    table: AlikeRuns, kind: OperationKind, name: str, flags: Flags, notes: list[str]
) -> None:
    """Set ranks and nodes where there was no list: from the columns, launch line, flags, file name."""
    if table.ranks:
        return
    inferred = ranks_from(table.evidence(), kind)
    if inferred:
        if flags.ranks and flags.ranks != inferred:
            remark(notes, f"the columns say {inferred} ranks; {flags.ranks} is not used")
        elif not flags.ranks:
            remark(notes, f"{inferred} ranks: from the columns")
    launched, named = table.said.launched, file_name(name)
    started = launched.ranks * table.said.per_process
    table.ranks = inferred or choose("ranks", started, flags.ranks, named.ranks, notes)
    if table.ranks:
        find_nodes(table, launched.nodes, flags, named, notes)


def find_nodes(
    table: AlikeRuns, own: int, flags: Flags, named: SaidPlaces, notes: list[str]
) -> None:
    """Set the nodes of known ranks where there was no list: from the file's words, flags, its name."""
    table.nodes = min(choose_nodes(own, flags.nodes, named.nodes, notes), table.ranks)
    table.active_ranks = -(-table.ranks // table.nodes)


def import_table(table: AlikeRuns, name: str, flags: Flags, result: Imported) -> str:
    """Put the blocks and the GPUs of a table into `result`; returns why that cannot be, or "".

    `name` is the file's.
    """
    if not table.set_unit():
        return UNIT_WANTED
    place(table, flags, result.notes)
    kind = kind_of(table, flags, file_operation(name), result.notes)
    if isinstance(kind, str):
        return kind
    find_ranks(table, kind, name, flags, result.notes)
    if table.ranks in RANKS_WANTED:
        return RANKS_WANTED[table.ranks]
    if not table.nodes:
        return UNSAID["nodes"]
    for host, names in gpus_of(table.said.ranks).items():
        if len(names) > len(result.gpus.get(host, [])):
            result.gpus[host] = names
    table.key = key_of(
        kind.name, table.said.forced, (flags.algorithm, flags.protocol), result.notes
    )
    result.blocks += blocks_of(table, kind, result.faults)
    return ""


def version_of(code: int) -> str:
    """NCCL_VERSION_CODE as words: 22807 -> 2.28.7; up to 2.8 it was 2804 -> 2.8.4 (nccl.h)."""
    if code < 10_000:
        return f"{code // 1000}.{code // 100 % 10}.{code % 100}"
    return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"


def likeness(tokens: Sequence[str]) -> tuple[Any, ...]:
    """What of a row (WIDTH tokens) tells operations apart that say the same of themselves.

    Runs that differ in it are not read as one table: only with it are their columns one evidence.
    """
    size, count, dtype, redop, root, _, algbw, busbw, wrong, *_, unchecked = tokens
    if algbw == "N/A":
        algbw, busbw = tokens[10:12]
    nbytes = DTYPES.get(dtype, ("", 0))[1]
    try:
        blocks = int(size) // max(int(count) * nbytes, 1)
        ratio = round(float(busbw) / float(algbw), 1)
    except (ValueError, ZeroDivisionError, OverflowError):
        blocks, ratio = 0, 0.0
    return blocks, ratio, redop, root.startswith("-"), wrong == "N/A", unchecked == "N/A"
