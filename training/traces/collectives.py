"""The collectives of one rank: what each was, and from when to when it ran.

On a GPU a collective is a kernel of NCCL's. Traces of PyTorch from 2.4 on describe it there; else the
description is that of `record_param_comms` around its launch (2.1), the shapes of the backend's own
annotation (`nccl:all_reduce`), or the kernel's name. On a CPU it is the backend's annotation
(`gloo:all_reduce`), which lasts from when the rank begins it to its end, or torch.distributed's
operator.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from calib.foundation.collectives import SUMS
from calib.training.traces.events import BACKEND, COMMUNICATION, DESCRIBED, Described, Events
from calib.training.traces.intervals import index_at
from calib.training.traces.rank import RankTrace
from calib.training.traces.shapes import MOST, item_bytes, item_type, tensors

# by the letters of a name, the first that is in it: allreduce_coalesced_, _allgather_base_, AllReduce
OPERATIONS = (
    ("allreduce", "allreduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "allgather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("bcast", "broadcast"),
    ("sendrecv", "p2p"),
    ("barrier", "barrier"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("reduce", "reduce"),
    ("send", "send"),
    ("recv", "receive"),
)
# kernels that end together, because every rank needs something of every other
TOGETHER = ("allreduce", "reduce_scatter", "allgather", "all_to_all", "barrier")
# what the host says of them is each rank's part; of those of a root the others may say nothing
ROOTED = ("gather", "scatter")
PARTS = ("allgather", *ROOTED)
# calib's own annotation of MPI (microbench/communicators/torch_mpi.py): the whole buffer
SIZED = re.compile(r"mpi:\w+ (\d{1,15}) (\w+)$")
# src/device/generate.py of NCCL and RCCL
KERNEL_TYPES = {
    **{"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"},
    **{"f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"},
}


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of one rank; times in microseconds after the rank's `base_us`.

    `nbytes` are those of the whole buffer (foundation/collectives.py), None where the trace does not
    say. `members` are the ranks of its group and `size` their number, where known. `number` counts
    those of its group and step that are alike, so that it is the same at all ranks. `issued_us` is when
    the host called it.
    """

    operation: str
    nbytes: int | None
    elements: int | None
    dtype: str
    group: str
    members: tuple[int, ...]
    size: int | None
    step: int
    number: int
    issued_us: float
    start_us: float
    stop_us: float

    @property
    def key(self) -> tuple[Any, ...]:
        """What it has in common with the same collective at the other ranks."""
        group = self.members or self.group
        # of an all-to-all each rank may have another part
        elements = None if self.operation in ("all_to_all", *ROOTED) else self.elements
        dtype = "" if self.operation in ROOTED else self.dtype
        return self.step, group, self.operation, elements, dtype, self.number


def operation_of(name: str) -> str | None:
    """The operation of a collective's name; None for what is none, as `c10d::wait`."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((operation for word, operation in OPERATIONS if word in letters), None)


def collectives_of(trace: RankTrace) -> list[Collective]:
    """The collectives in the steps of a trace, in the order in which they began."""
    events = trace.events
    found = _of_kernels(events) if events.nccl else _of_host(events)
    starts = np.array([which.start for which, _, _ in found]) - trace.base_us
    issued = np.array([at for _, _, at in found]) - trace.base_us
    steps = index_at(trace.windows, starts)
    if events.nccl:  # where the host runs ahead, a kernel is of the step that called it
        called = index_at(trace.host_windows, np.nan_to_num(issued, nan=-np.inf))
        steps = np.where(called >= 0, called, steps)
    collectives: list[Collective] = []
    seen: defaultdict[tuple[Any, ...], int] = defaultdict(int)
    for at in np.argsort(np.where(np.isnan(issued), starts, issued), kind="stable").tolist():
        which, described, _ = found[at]
        if steps[at] < 0:
            continue
        known = _known(which, described, events)
        known = replace(
            known,
            step=trace.steps[int(steps[at])],
            issued_us=float(issued[at]),
            start_us=float(starts[at]),
            stop_us=which.stop - trace.base_us,
        )
        number = seen[known.key]
        seen[known.key] += 1
        collectives.append(replace(known, number=number))
    return sorted(collectives, key=lambda one: one.start_us)


Found = tuple[Described, list[Described], float]  # the one that is timed, descriptions, the call


def _of_kernels(events: Events) -> list[Found]:
    """NCCL's kernels, with what the host said of each when it called it."""
    keys = np.array([kernel.correlation for kernel in events.nccl], dtype=np.int64)
    launched, threads = events.launched_at(keys)
    calls = _Calls(events.described)
    return [
        (kernel, calls.around(float(when), int(thread)), float(when))
        for kernel, when, thread in zip(events.nccl, launched, threads, strict=True)
    ]


class _Calls:
    """The calls on the host, by thread and time."""

    def __init__(self, described: Sequence[Described]) -> None:
        self._of: defaultdict[int, list[Described]] = defaultdict(list)
        for call in sorted(described, key=lambda call: (call.start, -call.stop)):
            self._of[call.thread].append(call)
        self._starts = {x: [call.start for call in calls] for x, calls in self._of.items()}

    def around(self, when: float, thread: int) -> list[Described]:
        """Those in which a launch was, the innermost first; at most three are nested."""
        calls = self._of.get(thread, [])
        stop = bisect_right(self._starts.get(thread, []), when)
        return [call for call in reversed(calls[max(stop - 4, 0) : stop]) if call.stop >= when]


def _of_host(events: Events) -> list[Found]:
    """The annotations of backends; of a backend without them, torch.distributed's operators."""
    known = [x for x in events.described if x.kind != DESCRIBED and operation_of(x.name)]
    annotated = [x for x in known if x.kind == BACKEND]
    return [(call, [], call.start) for call in annotated or _innermost(known)]


def _innermost(calls: Sequence[Described]) -> list[Described]:
    """Those in which no other is: _c10d_functional::all_reduce calls c10d::allreduce_."""
    order = sorted(calls, key=lambda call: (call.thread, call.start, -call.stop))
    return [
        call
        for call, after in zip_longest(order, order[1:])
        if after is None or after.thread != call.thread or after.start >= call.stop
    ]


def _known(which: Described, around: Sequence[Described], events: Events) -> Collective:
    """What the trace says of a collective: its own arguments, then its calls', then their shapes."""
    every = [which, *around]
    given = next((x.arguments for x in every if x.arguments.collective is not None), None)
    name = str(given.collective) if given else ""
    operation = operation_of(name) or next(
        (found for x in [*around, which] if (found := operation_of(x.name))), ""
    )
    members, size, group = (), None, ""  # type: tuple[int, ...], int | None, str
    count: int | None = None
    dtype = ""
    if given:
        members = _members(given.group_ranks)
        size = _count(given.group_size) or (len(members) or None)
        group = str(given.group) if given.group is not None else ""
        dtype = item_type(given.dtype)
        ends = _count(given.elements_in), _count(given.elements_out)
        count = max((x for x in ends if x is not None), default=None)
    else:
        members = _only_group(events)
        size = len(members) or None
        sizes = (_of_shapes(call, operation, size, events) for call in every if call.shapes >= 0)
        count, dtype = next((found for found in sizes if found[0] is not None), (None, ""))
        sized = SIZED.match(which.name)
        if sized:
            count, dtype = int(sized[1]), item_type(sized[2])
    if not dtype and operation in SUMS:  # other things are moved as bytes
        dtype = _kernel_type(which.name)
    one = item_bytes(dtype)
    nbytes = count * one if count is not None and one is not None else None
    return Collective(
        operation, nbytes, count, dtype, group, members, size, -1, 0, which.start, which.start, 0.0
    )


def _of_shapes(
    call: Described, operation: str, size: int | None, events: Events
) -> tuple[int | None, str]:
    """Items of the whole buffer and their type, by the shapes of a call's arguments."""
    found = tensors(*events.shapes.texts[call.shapes])
    if not found:
        return None, ""
    dtype = next((dtype for _, dtype in found if dtype), "")
    if call.kind != COMMUNICATION:  # a backend's annotation has the input alone
        count, part = found[0][0], operation in PARTS
    else:  # output and input; of one that is a list of lists the trace has no shapes
        count = max(items for items, _ in found)
        given_parts = (*PARTS, "reduce_scatter") if call.name.startswith("c10d::") else PARTS
        part = len(found) == 1 and operation in given_parts
    if part:
        return (count * size if size else None), dtype
    return count, dtype


def _count(found: Any) -> int | None:
    return found if type(found) is int and 0 <= found < MOST else None


def _members(found: Any) -> tuple[int, ...]:
    """The ranks of a group, from `[0, 1]`; empty where some are missing (`[0, 1, ..., 7]`)."""
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            return ()
    right = isinstance(found, list) and all(_count(rank) is not None for rank in found)
    return tuple(found) if right else ()


def _only_group(events: Events) -> tuple[int, ...]:
    """The ranks of the job's group, where the trace names one alone, or several of the same."""
    said = events.about.get("distributedInfo")
    groups = said.get("pg_config") if isinstance(said, dict) else None
    known = [x for x in groups if isinstance(x, dict)] if isinstance(groups, list) else []
    every = {_members(group.get("ranks")) for group in known}
    return every.pop() if len(every) == 1 else ()


def _kernel_type(name: str) -> str:
    """The item type in `ncclDevKernel_AllReduce_Sum_f32_RING_LL` or `..._Sum_float(`; "" without one.

    NCCL's symmetric kernels (2.27) have `_sum_`.
    """
    for word in re.findall(r"[a-z0-9]+", name.partition("(")[0].lower().rpartition("_sum_")[2]):
        found = KERNEL_TYPES.get(word) or item_type(word)
        if found:
            return found
    return ""
