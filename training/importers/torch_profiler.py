"""Steps and phases of training from torch.profiler traces, one file per rank.

A step is a `ProfilerStep#N`. Each instant of it is communication that no computation hides, or else
belongs to the update, the backward or the forward: by the annotation around it or, on a GPU, around its
kernel's launch. A gap between two pieces of a phase belongs to that phase. The rest (loading of data,
Python between the phases) is in no phase. Phases and rest add up to the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from calib.foundation.errors import FileError
from calib.foundation.statistics import median
from calib.foundation.words import seconds_words
from calib.training.importers.intervals import NONE, Starts, index_at, lengths_within, minus, union
from calib.training.importers.records import ImportedCase, TimedIteration, absent_phases
from calib.training.importers.trace_events import Events

US = 1e-6
MOST_RANKS = 10_000_000
ROUNDED_US = 1.0  # how far steps may overlap, because times are rounded
PHASES = ("forward", "backward", "update")
LOADING = "loading"
# the phase of a strategy's communication; other strategies have several, which traces do not tell apart
COMMUNICATION = {
    "serial": "exchange",
    "data": "exchange",
    "fully_sharded": "layerwise",
    "filter": "layerwise",
    "channel": "layerwise",
    "tensor": "layerwise",
    "pipeline": "layerwise",
}


@dataclass(frozen=True)
class Trace:
    """One rank's steps, in order, and seconds of each.

    `phases` are those of PHASES that the trace shows; `busy_s` is all communication, `exposed_s` what no
    computation hides. A `late` trace does not show where its first step begins. `gpu` is the GPU's name,
    None without one. `started_us` is in the trace's clock.
    """

    path: Path
    rank: int | None
    ranks: int | None
    steps: list[int]
    whole_s: list[float]
    phases: dict[str, list[float]]
    busy_s: list[float]
    exposed_s: list[float]
    late: bool
    gpu: str | None
    started_us: float
    about: dict[str, Any]
    notes: tuple[str, ...]


def read_profile(path: Path) -> Trace:
    """The steps of a trace (.json or .json.gz). Raises FileError, also where it has no step."""
    events = Events.read(path)
    notes: list[str] = []
    host = _host_windows(events, notes)
    numbers = sorted(host)
    windows = np.array([host[n][:2] for n in numbers])
    _check_steps(path, numbers, windows)
    thread = host[numbers[0]][2]
    base = float(windows[0, 0])  # a trace counts from long ago, which costs digits
    labelled = _of_host(events, thread, windows - base, base)
    on_gpu = len(events.kernels.starts) + len(events.nccl.starts) > 0
    late = False
    if on_gpu:
        late, windows = _gpu_windows(events, numbers, windows, notes)
        windows = windows - base
        labelled, computing, talking = _of_gpu(events, labelled, windows, base)
    else:
        windows = windows - base
        if events.launched:
            notes.append(
                "the trace has no kernels: its phases are those of the host (ProfilerActivity.CUDA)"
            )
        talking = union(events.communication.times() - base)
        computing = union(events.operators.times() - base)
    exposed = minus(talking, computing)
    measured = {name: lengths_within(minus(labelled[name], exposed), windows) for name in PHASES}
    told = {name: values for name, values in measured.items() if values.any()}
    _check_steps(path, numbers, windows)
    whole = windows[:, 1] - windows[:, 0]
    rank, ranks = _place(events)
    return Trace(
        path,
        rank,
        ranks,
        numbers,
        (whole * US).tolist(),
        {name: (values * US).tolist() for name, values in told.items()},
        (lengths_within(talking, windows) * US).tolist(),
        (lengths_within(exposed, windows) * US).tolist(),
        late,
        _gpu_name(events) if on_gpu else None,
        base,
        events.about,
        tuple(notes),
    )


def _host_windows(events: Events, notes: list[str]) -> dict[int, tuple[float, float, Any]]:
    """Start, stop and thread of each step on the host, by its number."""
    if events.steps:
        return events.steps
    ends = sorted(events.steps_of_optimizer.stops)
    if len(ends) < 2 or len(events.optimizers) > 1:
        raise FileError(
            f"trace {events.path} has no ProfilerStep#N: give torch.profiler.profile a schedule, "
            "call its step() after each iteration, and export in on_trace_ready"
        )
    notes.append("without ProfilerStep#N, a step is from one end of Optimizer.step to the next")
    # the first thread that trains
    thread = next(iter(events.recorded), None)
    return {n: (a, b, thread) for n, (a, b) in enumerate(pairwise(ends))}


def _check_steps(path: Path, numbers: Sequence[int], windows: Starts) -> None:
    """Raise FileError for steps that take no time, overlap, or are out of order."""
    empty = np.flatnonzero(windows[:, 1] <= windows[:, 0])
    if len(empty):
        raise FileError(f"trace {path}: step {numbers[empty[0]]} takes 0 s")
    early = np.flatnonzero(windows[1:, 0] < windows[:-1, 1] - ROUNDED_US)
    if len(early):
        a, b = numbers[early[0]], numbers[early[0] + 1]
        raise FileError(f"trace {path}: step {b} begins before step {a} ends")


def _of_host(events: Events, thread: Any, windows: Starts, base: float) -> dict[str, Starts]:
    """Disjoint sets of host times by phase, with the gaps within a phase filled."""
    update = union(events.update.times() - base)
    backward = minus(union(events.backward.times() - base), update)
    loading = minus(union(events.loading.times() - base), union(update, backward))
    recorded = events.recorded[thread].times() - base if thread in events.recorded else NONE
    forward = minus(union(recorded), union(update, backward, loading))
    # what autograd records after the last backward of a step is no forward (loss.item())
    ends = np.array([_last(backward, window) for window in windows])
    step = index_at(windows, forward[:, 0])
    forward = forward[(step < 0) | (forward[:, 0] < ends[np.maximum(step, 0)])]
    return _filled(
        {"update": update, "backward": backward, LOADING: loading, "forward": forward}, windows
    )


def _last(of: Starts, window: Starts) -> float:
    """Where the last interval in a window begins; the window's end where there is none."""
    index = int(np.searchsorted(of[:, 0], window[1])) - 1
    inside = index >= 0 and of[index, 0] >= window[0]
    return float(of[index, 0] if inside else window[1])


def _filled(sets: dict[str, Starts], windows: Starts) -> dict[str, Starts]:
    """Disjoint sets, each with the gaps between two of its own intervals in one window."""
    names = list(sets)
    every = np.concatenate([sets[name] for name in names])
    label = np.repeat(np.arange(len(names)), [len(sets[name]) for name in names])
    order = np.argsort(every[:, 0], kind="stable")
    every, label = every[order], label[order]
    step = index_at(windows, every[:, 0])
    same = (label[1:] == label[:-1]) & (step[1:] == step[:-1])
    gaps = np.stack((every[:-1, 1], every[1:, 0]), axis=1)
    return {
        name: union(sets[name], gaps[same & (label[1:] == number)])
        for number, name in enumerate(names)
    }


def _gpu_windows(
    events: Events, numbers: Sequence[int], host: Starts, notes: list[str]
) -> tuple[bool, Starts]:
    """The windows of the steps on the GPU, and whether the first one began before the trace did.

    Where the host waits for the GPU in each step, its windows contain the step's kernels. Else the host
    runs ahead, and a step lasts from the end of the previous step's kernels to the end of its own.
    """
    if any(n not in events.gpu_steps for n in numbers):
        notes.append("kernels are of the step in whose time they ran: the trace does not say more")
        return False, host
    ends = np.array([events.gpu_steps[n][1] for n in numbers])
    if np.all(ends <= host[:, 1]):
        return False, host
    notes.append(
        "the host ran ahead of the GPU: a step is from the end of the last one's kernels to the end "
        "of its own; the first step, whose beginning is not known so, is a warm-up"
    )
    ends = np.maximum.accumulate(ends)
    first = min(events.gpu_steps[numbers[0]][0], ends[0])
    return True, np.stack((np.concatenate(([first], ends[:-1])), ends), axis=1)


def _of_gpu(
    events: Events, host: dict[str, Starts], windows: Starts, base: float
) -> tuple[dict[str, Starts], Starts, Starts]:
    """GPU times by phase of the launch; times of computation; times of communication."""
    every = np.concatenate((events.kernels.times(), events.copies.times())) - base
    launched = np.concatenate((events.launch_times("kernel"), events.launch_times("copy"))) - base
    of: dict[str, Starts] = {}
    taken = NONE
    for name in ("update", "backward", LOADING, "forward"):
        mine = index_at(host[name], np.nan_to_num(launched, nan=-np.inf)) >= 0
        of[name] = minus(union(every[mine]), taken)
        taken = union(taken, of[name])
    computing = union(events.kernels.times() - base)
    return _filled(of, windows), computing, union(events.nccl.times() - base)


def _place(events: Events) -> tuple[int | None, int | None]:
    said = events.about.get("distributedInfo")
    said = said if isinstance(said, dict) else {}
    rank, ranks = said.get("rank"), said.get("world_size")
    if type(rank) is not int or type(ranks) is not int:
        return None, None
    if not 0 <= rank < ranks <= MOST_RANKS:
        which = f"rank {str(rank)[:40]} of {str(ranks)[:40]}"
        raise FileError(f"trace {events.path}: its distributedInfo has {which} ranks")
    return rank, ranks


def _gpu_name(events: Events) -> str:
    devices = events.about.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else {}
    return str(first.get("name", "")) if isinstance(first, dict) else ""


def ranks_of(traces: Sequence[Trace], p: int | None) -> tuple[int, list[Trace]]:
    """The number of ranks, and the traces in the order of their ranks. Raises FileError."""
    first = traces[0]
    for trace in traces:
        if trace.ranks != first.ranks:
            raise FileError(
                f"{trace.path} is of {trace.ranks} ranks, {first.path} of {first.ranks}"
            )
        if p is not None and trace.ranks not in (None, p):
            raise FileError(f"{trace.path} is of {trace.ranks} ranks, not of {p}")
        if len(traces) > 1 and trace.rank is None:
            raise FileError(
                f"{trace.path} does not say its rank (distributedInfo): import it by itself"
            )
    by_rank = {trace.rank: trace for trace in traces}
    if len(by_rank) < len(traces):
        raise FileError("two of the traces are of the same rank")
    return first.ranks or p or 1, sorted(traces, key=lambda trace: trace.rank or 0)


def iterations_of(
    traces: Sequence[Trace], case: ImportedCase, warmup: int
) -> tuple[list[TimedIteration], list[str]]:
    """The steps that all ranks have, and notes on them. Raises FileError where there is none."""
    steps = sorted(set.intersection(*(set(trace.steps) for trace in traces)))
    if not steps:
        raise FileError("the traces of the ranks have no step in common")
    notes = list(dict.fromkeys(note for trace in traces for note in trace.notes))
    left = max(len(trace.steps) for trace in traces) - len(steps)
    if left:
        notes.append(f"{left} steps are not in the traces of all ranks and are left out")
    if len(traces) < case.p:
        notes.append(f"traces of {len(traces)} of {case.p} ranks")
    kind = COMMUNICATION.get(case.strategy)
    if kind is None:
        notes.append(
            f"a trace does not tell the kinds of communication of {case.strategy} apart: it is in the "
            "time of no phase"
        )
    if case.p > 1 and not any(s for trace in traces for s in trace.busy_s):
        kind = None
        notes.append("no communication was recognised in the traces: its time is not known")
    late = any(trace.late for trace in traces)
    found = []
    for place, step in enumerate(steps):
        at = [trace.steps.index(step) for trace in traces]
        known = [x for x in PHASES if all(x in trace.phases for trace in traces)]
        phases = {x: [t.phases[x][i] for t, i in zip(traces, at, strict=True)] for x in known}
        phases |= {x: [0.0] * len(traces) for x in absent_phases(case)}
        if kind is not None:
            phases[kind] = [t.exposed_s[i] for t, i in zip(traces, at, strict=True)]
        whole = [t.whole_s[i] for t, i in zip(traces, at, strict=True)]
        found.append(TimedIteration(step, whole, phases, place < warmup or (late and place == 0)))
    notes.append(_communication(traces))
    return found, notes


def _communication(traces: Sequence[Trace]) -> str:
    busy = median([s for trace in traces for s in trace.busy_s])
    exposed = median([s for trace in traces for s in trace.exposed_s])
    return (
        f"communication: {seconds_words(busy)} of a step, of which {seconds_words(exposed)} are not "
        "hidden by computation (medians over steps and ranks)"
    )


def circumstances_of(traces: Sequence[Trace], p: int) -> dict[str, Any]:
    """Fields of Circumstances that the traces tell; hosts and GPUs only with traces of all ranks."""
    found: dict[str, Any] = {"device": "cpu" if traces[0].gpu is None else "cuda"}
    info = traces[0].about.get("distributedInfo")
    backend = info.get("backend") if isinstance(info, dict) else None
    if isinstance(backend, str) and backend.isalnum():
        found |= {"backend": backend, "library": f"torch_{backend}"}
    hosts = [trace.about.get("host_name") for trace in traces]
    if len(traces) == p and all(isinstance(host, str) and host for host in hosts):
        found["hosts"] = tuple(hosts)
        found["gpus"] = tuple(t.gpu for t in traces) if any(t.gpu for t in traces) else ()
    base = traces[0].about.get("baseTimeNanoseconds")
    if isinstance(base, int) and 0 < base < 1 << 62:
        when = datetime.fromtimestamp(base * 1e-9 + traces[0].started_us * US, UTC)
        found["started"] = when.isoformat(timespec="seconds")
    return found
