"""The calls of single ranks, joined to collectives: rows of a run.

A rank's time holds its wait for the others, and of the ranks' clocks nothing is known. The rank that
came last waited for nobody: so the least of the ranks' times is the collective's own, and what the
others took longer is skew. NCCL counts the calls of each function of a communicator, which tells what
belongs together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from calib.foundation.arrays import Floats, Integers, Mask
from calib.foundation.words import counted, several
from calib.microbench.importers.machine import UNKNOWN
from calib.microbench.importers.nccl.forced import key_of
from calib.microbench.importers.rank_calls import MOST_RANKS, CallKind, Communicator, Process, parts
from calib.microbench.importers.said import (
    UNSAID,
    Flags,
    choose_nodes,
    file_name,
    overruled,
    remark,
)
from calib.microbench.importers.table import Block, Imported, TableVariant

T = TypeVar("T")
OF_RUN_NOTE = (
    "these are times of a run, not of a benchmark: they hold what the job did beside them, and are "
    "so marked"
)


@dataclass
class JoinedRuns:
    """What became of the calls: how many of each file are in a row, and what to say of the rest."""

    used: list[int]
    notes: list[str] = field(default_factory=list)
    wants: str = ""


@dataclass(frozen=True)
class _Calls:
    """The calls of all files, sorted by communicator, function, number and rank."""

    communicators: list[Communicator]
    processes: list[Process]
    kinds: list[CallKind]
    file: Integers
    communicator: Integers
    process: Integers
    kind: Integers
    rank: Integers
    line: Integers
    number: Integers
    nbytes: Integers
    seconds: Floats
    resolution: Floats

    def of(self, rows: Any) -> _Calls:
        """Some of them."""
        arrays = {
            name: value[rows] for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        return _Calls(self.communicators, self.processes, self.kinds, **arrays)


@dataclass(frozen=True)
class _Collectives:
    """One item for each collective: its first call, how many ranks timed it, and their times."""

    first: Integers
    ranks: Integers
    least: Floats
    most: Floats
    alike: Mask


class _Layout(NamedTuple):
    ranks: int
    nodes: int
    active_ranks: int  # the most of one node


def join(found: Sequence[Imported], flags: Flags, named: str = "") -> JoinedRuns:
    """Make blocks of the calls of all files, in the first of them; none keeps its calls.

    Of each communicator, function and size those collectives stay that the most ranks timed. Jobs are
    told apart by their processes: each is a launch.

    Parameters
    ----------
    found
        Files of one import, in order; those without calls are not touched.
    flags
        `ranks` and `nodes` are for traces, which do not say them.
    named
        Name of the first file, which may say how many nodes there are.
    """
    result = JoinedRuns([0] * len(found))
    if not any(each.calls for each in found):
        return result
    calls = _together(found)
    for each in found:
        each.calls.clear()
    calls = _once(calls, result.notes)
    communicators = _completed(calls, flags, named, result)
    known = np.array([of.ranks > 1 for of in communicators])[calls.communicator]
    calls = calls.of(known)
    if not len(calls.rank):
        return result
    whole = _collectives(calls)
    kept = _kept(calls, whole, communicators, result.notes)
    hosts = _hosts(calls)
    of_run = [each for each in found if each.of_run]
    for each in of_run:
        each.gpus |= {host: [UNKNOWN] * count for host, count in _devices(hosts).items()}
    layouts = _layouts(communicators, hosts)
    of_run[0].blocks += _blocks(calls, whole, kept, layouts, flags, result.notes)
    rows = np.flatnonzero(np.repeat(kept, np.diff(np.append(whole.first, len(calls.rank)))))
    for file, count in zip(*np.unique(calls.file[rows], return_counts=True), strict=True):
        result.used[int(file)] = int(count)
    remark(result.notes, OF_RUN_NOTE)
    return result


def _together(found: Sequence[Imported]) -> _Calls:
    """The calls of all files, those of one collective side by side."""
    communicators: dict[Communicator, int] = {}
    processes: dict[Process, int] = {}
    kinds: dict[CallKind, int] = {}
    columns: dict[str, list[Any]] = defaultdict(list)
    for file, part in ((file, part) for file, each in enumerate(found) for part in each.calls):
        numbers = {
            "communicator": _numbered(part.communicators, communicators),
            "process": _numbered(part.processes, processes),
            "kind": _numbered(part.kinds, kinds),
        }
        for name, of_all in numbers.items():
            columns[name].append(of_all[np.array(getattr(part, name))])
        for name in ("rank", "line", "number", "nbytes", "seconds"):
            columns[name].append(np.array(getattr(part, name)))
        columns["file"].append(np.full(len(part), file))
        columns["resolution"].append(np.full(len(part), part.resolution_s))
    arrays = {name: np.concatenate(of) for name, of in columns.items()}
    every = _Calls(list(communicators), list(processes), list(kinds), **arrays)
    order = np.lexsort((every.rank, every.number, _functions(every), every.communicator))
    return every.of(order)


def _numbered(here: Iterable[T], there: dict[T, int]) -> Integers:
    """The numbers that those of a file have among those of all files."""
    return np.array([there.setdefault(of, len(there)) for of in here])


def _functions(calls: _Calls) -> Integers:
    """A number for the function of each call, which counts its calls by itself."""
    names = sorted({kind.operation for kind in calls.kinds})
    numbers: Integers = np.array([names.index(kind.operation) for kind in calls.kinds])
    return numbers[calls.kind]


def _new(*columns: Integers) -> Mask:
    """Where one of the columns of neighbours changes."""
    changed = np.ones(len(columns[0]), dtype=bool)
    changed[1:] = np.any([of[1:] != of[:-1] for of in columns], axis=0)
    return changed


def _once(calls: _Calls, notes: list[str]) -> _Calls:
    """One call for each rank and number: none where a rank says it twice."""
    new = _new(calls.communicator, _functions(calls), calls.number, calls.rank)
    if new.all():
        return calls
    group = np.cumsum(new) - 1
    single = np.bincount(group)[group] == 1
    notes.append(
        f"{counted(int((~single).sum()), 'call')} left out: two of one rank have the same number"
    )
    return calls.of(single)


def _completed(calls: _Calls, flags: Flags, name: str, result: JoinedRuns) -> list[Communicator]:
    """The communicators with the ranks and nodes that a trace does not say; 0 ranks where unknown."""
    last = np.full(len(calls.communicators), -1)
    np.maximum.at(last, calls.communicator, calls.rank)
    found = []
    for of, highest in zip(calls.communicators, last.tolist(), strict=True):
        ranks, nodes = of.ranks, of.nodes
        if not ranks:
            ranks = max(min(flags.ranks, MOST_RANKS), highest + 1)
            overruled(ranks, flags.ranks, result.notes, " ranks or more")
            if ranks == 1:
                result.wants = "ranks"
                remark(result.notes, f"{UNSAID['ranks']}, and the files are of one rank alone")
            elif not flags.ranks:
                remark(result.notes, "ranks of a communicator: one more than the highest in a file")
        if ranks > 1 and not nodes:
            nodes = min(choose_nodes(0, flags.nodes, file_name(name).nodes, result.notes), ranks)
        found.append(Communicator(of.id, ranks if ranks > 1 else 0, nodes))
    return found


def _collectives(calls: _Calls) -> _Collectives:
    """The collectives of sorted calls."""
    first = np.flatnonzero(_new(calls.communicator, _functions(calls), calls.number))
    same = [
        np.minimum.reduceat(of, first) == np.maximum.reduceat(of, first)
        for of in (calls.nbytes, calls.kind)
    ]
    return _Collectives(
        first=first,
        ranks=np.diff(np.append(first, len(calls.rank))),
        least=np.minimum.reduceat(calls.seconds, first),
        most=np.maximum.reduceat(calls.seconds, first),
        alike=np.logical_and(*same),
    )


def _kept(
    calls: _Calls, whole: _Collectives, communicators: list[Communicator], notes: list[str]
) -> Mask:
    """Which collectives are rows: of each communicator, function and size those of the most ranks."""
    if unlike := int((~whole.alike).sum()):
        notes.append(f"{counted(unlike, 'collective')} left out: its ranks differ in size or type")
    columns = [of[whole.first] for of in (calls.communicator, calls.kind, calls.nbytes)]
    _, case = np.unique(np.stack(columns), axis=1, return_inverse=True)
    most = np.zeros(int(case.max()) + 1, dtype=np.int64)
    np.maximum.at(most, case.ravel(), whole.ranks * whole.alike)
    fewer = whole.alike & (whole.ranks < most[case.ravel()])
    if fewer.any():
        notes.append(
            f"{counted(int(fewer.sum()), 'collective')} left out: others of the same size were timed "
            "by more ranks"
        )
    kept: Mask = whole.alike & ~fewer
    of = np.array([each.ranks for each in communicators])[columns[0]]
    lacking = kept & (whole.ranks < of)
    if lacking.any():
        share = np.array([whole.ranks[lacking], of[lacking]])
        worst = int(np.argmin(share[0] / share[1]))
        notes.append(
            f"{int(lacking.sum())} of {counted(int(kept.sum()), 'collective')} lack ranks (down to "
            f"{share[0, worst]} of {share[1, worst]}): their times may hold a wait for these"
        )
    return kept


def _hosts(calls: _Calls) -> list[dict[str, int]]:
    """Of each communicator: host -> how many of its ranks were on it."""
    found: list[dict[str, int]] = [defaultdict(int) for _ in calls.communicators]
    triples = np.stack([calls.communicator, calls.rank, calls.process])
    for of, _, process in np.unique(triples, axis=1).T.tolist():
        if host := calls.processes[process].host:
            found[of][host] += 1
    return found


def _devices(hosts: Sequence[dict[str, int]]) -> dict[str, int]:
    """The GPUs of each host: the most ranks that a communicator had there."""
    found: dict[str, int] = {}
    for of in hosts:
        for host, ranks in of.items():
            found[host] = max(ranks, found.get(host, 0))
    return found


def _jobs(calls: _Calls, count: int) -> Integers:
    """The job of each communicator: those that a process has in common are of one."""
    lead = list(range(count))

    def leader(of: int) -> int:
        while lead[of] != of:
            lead[of] = lead[lead[of]]
            of = lead[of]
        return of

    before: dict[int, int] = {}
    for of, process in np.unique(np.stack([calls.communicator, calls.process]), axis=1).T.tolist():
        lead[leader(of)] = leader(before.setdefault(process, of))
    return np.array([leader(of) for of in range(count)])


def _layouts(
    communicators: Sequence[Communicator], hosts: Sequence[dict[str, int]]
) -> list[_Layout]:
    """The layout of each communicator."""
    found = []
    for of, on in zip(communicators, hosts, strict=True):
        even = -(-of.ranks // max(of.nodes, 1))
        found.append(_Layout(of.ranks, of.nodes, max([even, *on.values()])))
    return found


def _blocks(
    calls: _Calls,
    whole: _Collectives,
    kept: Mask,
    layouts: Sequence[_Layout],
    flags: Flags,
    notes: list[str],
) -> list[Block]:
    """One block for each operation and layout, and for those that lack ranks."""
    jobs = _jobs(calls, len(layouts))
    found: dict[tuple[str, _Layout, bool], list[int]] = defaultdict(list)
    alike: dict[_Layout, set[int]] = defaultdict(set)
    own = calls.communicator[whole.first].tolist()
    kinds, ranks = calls.kind[whole.first].tolist(), whole.ranks.tolist()
    for row in np.flatnonzero(kept).tolist():
        layout = layouts[own[row]]
        operation = calls.kinds[kinds[row]].operation
        found[operation, layout, ranks[row] < layout.ranks].append(row)
        alike[layout].add(own[row])
    many = [f"{len(of)} of {layout.ranks} ranks" for layout, of in alike.items() if len(of) > 1]
    if many:
        notes.append(
            f"communicators alike ({several(many)}) may have worked at once: each is taken as alone"
        )
    blocks = []
    for (operation, layout, lacking), collectives in found.items():
        rows = np.array(collectives)
        first = whole.first[rows]
        numbers, variant = np.unique(calls.kind[first], return_inverse=True)
        skew = whole.most[rows] - whole.least[rows]
        blocks.append(
            Block(
                operation,
                flags.library or "nccl",
                "cuda",
                layout.ranks,
                layout.nodes,
                layout.active_ranks,
                1,
                [TableVariant(calls.kinds[i].dtype, calls.kinds[i].mode) for i in numbers],
                jobs[calls.communicator[first]],
                variant.ravel(),
                calls.nbytes[first] * parts(operation, layout.ranks),
                whole.least[rows],
                np.where(whole.ranks[rows] > 1, skew, np.nan),
                np.ones(len(rows), dtype=np.int64),
                line=int(calls.line[first].min()),
                key=key_of(operation, ("", ""), (flags.algorithm, flags.protocol), notes),
                of_run=True,
                lacks_ranks=lacking,
                files=len(np.unique(calls.file)),
                resolution_s=float(calls.resolution[first].max()),
            )
        )
    return blocks
