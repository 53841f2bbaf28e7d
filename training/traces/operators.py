"""What each operator of a rank took in each step, by phase, name and shapes.

An operator is PyTorch's outermost one (`aten::conv2d`, not the `aten::cudnn_convolution` in it). On a
GPU its time is that of the kernels that it launched, each counted by itself; on a CPU its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib.foundation.text import plain
from calib.training.traces.events import OPERATOR
from calib.training.traces.intervals import index_at
from calib.training.traces.rank import INPUT, PHASES, US, RankTrace
from calib.training.traces.shapes import item_type, parsed

ELSEWHERE = "elsewhere"
UNKNOWN = "(kernels of no operator)"
LABELS = (*PHASES, INPUT, ELSEWHERE)


@dataclass(frozen=True)
class TracedOperator:
    """One operator at its shapes in one phase; `seconds` [steps] of all its calls, `calls` [steps].

    `shapes` are those of its arguments, as the trace has them, empty without record_shapes; `dtype` is
    the item type of the first tensor, or "".
    """

    phase: str
    name: str
    shapes: tuple[Any, ...]
    dtype: str
    seconds: NDArray[np.float64]
    calls: NDArray[np.float64]


def operators_of(trace: RankTrace) -> list[TracedOperator]:
    """The operators of a rank's steps, the longest first."""
    host = trace.events.host
    outer = _outermost(trace)
    times, names, shapes = host.times()[outer], host.of("name")[outer], host.of("shapes")[outer]
    times = times - trace.base_us
    step = index_at(trace.host_windows, times[:, 0])
    label = np.full(len(times), len(LABELS) - 1)
    for number, name in enumerate((*PHASES, INPUT)):
        label[index_at(trace.host_phases[name], times[:, 0]) >= 0] = number
    if trace.gpu is None:
        owner, seconds = np.arange(len(times)), (times[:, 1] - times[:, 0]) * US
    else:
        owner, seconds, unknown = _kernels(trace, outer)
        names = np.append(names, trace.events.names.number(UNKNOWN))
        shapes, step, label = np.append(shapes, -1), np.append(step, -1), np.append(label, 0)
        step_, label_ = step[owner], label[owner]
        lost = owner == len(names) - 1
        step_[lost], label_[lost] = unknown[lost], len(LABELS) - 1
        step, label, names, shapes = step_, label_, names[owner], shapes[owner]
    inside = step >= 0
    keys = np.stack((label, names, shapes), axis=1)[inside]
    which, row = np.unique(keys, axis=0, return_inverse=True)
    row, n = row.reshape(-1), len(trace.steps)
    flat = row * n + step[inside]
    total, calls = np.zeros(len(which) * n), np.zeros(len(which) * n)
    np.add.at(total, flat, seconds[inside])
    # an operator of several kernels is one call
    once = np.unique(np.stack((flat, owner[inside]), axis=1), axis=0)[:, 0]
    np.add.at(calls, once, 1.0)
    found = []
    rows = zip(which.tolist(), total.reshape(-1, n), calls.reshape(-1, n), strict=True)
    for (phase, name, shape), of, times_ in rows:
        dims, types = trace.events.shapes.texts[shape] if shape >= 0 else (b"", b"")
        dtype = next((of_one for word in parsed(types) if (of_one := item_type(word))), "")
        known = tuple(parsed(dims))
        called = plain(trace.events.names.texts[name])
        found.append(TracedOperator(LABELS[phase], called, known, dtype, of, times_))
    return sorted(found, key=lambda one: -float(one.seconds.sum()))


def _outermost(trace: RankTrace) -> NDArray[np.intp]:
    """Which events of the host are operators that lie in no other operator of their thread."""
    host = trace.events.host
    of = np.flatnonzero(trace.events.of_kind(OPERATOR))
    threads, starts, stops = host.of("thread")[of], host.of("start")[of], host.of("stop")[of]
    found = []
    for thread in np.unique(threads):
        mine = np.flatnonzero(threads == thread)
        mine = mine[np.lexsort((-stops[mine], starts[mine]))]
        reached = np.maximum.accumulate(stops[mine])
        first = np.concatenate(([True], starts[mine][1:] >= reached[:-1]))
        found.append(of[mine[first]])
    return np.concatenate(found) if found else np.empty(0, dtype=np.intp)


def _kernels(
    trace: RankTrace, outer: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.intp]]:
    """The operator of each kernel, else the number of operators; its seconds; its step by its time."""
    events = trace.events
    times = events.kernels.times()
    launched, threads = events.launched_at(events.kernels.of("correlation"))
    owner = np.full(len(times), len(outer))
    host, of_thread = events.host.times()[outer], events.host.of("thread")[outer]
    for thread in np.unique(of_thread):
        mine = np.flatnonzero(of_thread == thread)
        at = index_at(host[mine], np.nan_to_num(launched, nan=-np.inf))
        right = (at >= 0) & (threads == thread)
        owner[right] = mine[at[right]]
    step = index_at(trace.windows, times[:, 0] - trace.base_us)
    return owner, (times[:, 1] - times[:, 0]) * US, step
