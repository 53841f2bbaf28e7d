"""One rank's steps, and what each instant of them was, from its torch.profiler trace.

A step is a `ProfilerStep#N`. Each instant of it is communication that no computation hides, or else
belongs to the update, the backward or the forward: by the annotation around it or, on a GPU, around its
kernel's launch. A gap between two pieces of a phase belongs to that phase. The rest (loading of data,
Python between the phases) is in no phase. Phases and rest add up to the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from calib.foundation.errors import FileError
from calib.foundation.text import plain
from calib.training.traces.events import (
    BACKEND,
    BACKWARD,
    COMMUNICATION,
    LOADING,
    MOST_NUMBER,
    OPERATOR,
    UPDATE,
    ZERO_GRAD,
    Events,
)
from calib.training.traces.intervals import NONE, Starts, index_at, lengths_within, minus, union

US = 1e-6
MOST_RANKS = 10_000_000
ROUNDED_US = 1.0  # how far steps may overlap, because times are rounded
PHASES = ("forward", "backward", "update")
INPUT = "input"  # loading of data by the main thread


@dataclass(frozen=True)
class RankTrace:
    """One rank's steps, in order, and sets of its times, in microseconds after `base_us`.

    `windows` are the steps, on a GPU those of its kernels. `phases` are disjoint sets of the phases and
    of INPUT: on a GPU of its kernels and copies, by their launch; `host_phases` on the host.
    `computing` and `copying` are what the device (or the CPU) does, `talking` is communication; they
    may overlap. A `late` trace does not show where its first step begins. `gpu` is the GPU's name, None
    without one.
    """

    events: Events
    rank: int | None
    ranks: int | None
    steps: list[int]
    base_us: float
    host_windows: Starts
    windows: Starts
    host_phases: dict[str, Starts]
    phases: dict[str, Starts]
    computing: Starts
    copying: Starts
    talking: Starts
    late: bool
    gpu: str | None
    notes: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The file."""
        return self.events.path

    @property
    def about(self) -> dict[str, Any]:
        """What the file says beside its events."""
        return self.events.about

    @cached_property
    def host(self) -> str | None:
        """The name of its host; None where the file does not say it."""
        name = self.about.get("host_name")
        return plain(name) if isinstance(name, str) else None

    @cached_property
    def base_ns(self) -> int:
        """When its clock began, ns after 1970; 0 where that is what its times count from."""
        base = self.about.get("baseTimeNanoseconds")
        return base if type(base) is int and 0 <= base < MOST_NUMBER else 0

    @cached_property
    def exposed(self) -> Starts:
        """Communication that no computation hides."""
        return minus(self.talking, self.computing)

    @cached_property
    def whole_s(self) -> list[float]:
        """Seconds of each step."""
        return [float(x) for x in (self.windows[:, 1] - self.windows[:, 0]) * US]

    @cached_property
    def talking_s(self) -> list[float]:
        """Seconds of all communication in each step."""
        return self.seconds(self.talking)

    @cached_property
    def exposed_s(self) -> list[float]:
        """Seconds of each step in communication that no computation hides."""
        return self.seconds(self.exposed)

    def seconds(self, of: Starts) -> list[float]:
        """Seconds of a set in each step."""
        return [float(x) for x in lengths_within(of, self.windows) * US]

    @cached_property
    def phase_s(self) -> dict[str, list[float]]:
        """Seconds of the phases that the trace shows, in each step, without exposed communication."""
        told = {name: self.seconds(minus(self.phases[name], self.exposed)) for name in PHASES}
        return {name: seconds for name, seconds in told.items() if any(seconds)}


def read_rank(path: Path) -> RankTrace:
    """The steps of a trace (.json or .json.gz). Raises FileError, also where it has no step."""
    events = Events.read(path)
    notes: list[str] = []
    found = _host_windows(events, notes)
    numbers = sorted(found)
    host = np.array([found[n][:2] for n in numbers])
    _check_steps(path, numbers, host)
    base = float(host[0, 0])  # a trace counts from long ago, which costs digits
    host = host - base
    windows = host
    phases = host_phases = _of_host(events, found[numbers[0]][2], host, base)
    nccl = np.array([(kernel.start, kernel.stop) for kernel in events.nccl]).reshape(-1, 2)
    on_gpu = len(events.kernels) + len(nccl) > 0
    late = False
    if on_gpu:
        late, windows = _gpu_windows(events, numbers, host, base, notes)
        phases = _of_gpu(events, host_phases, windows, base)
        computing = union(events.kernels.times() - base)
        talking = union(nccl - base)
    else:
        if len(events.launches):
            notes.append(
                "the trace has no kernels: its phases are those of the host (ProfilerActivity.CUDA)"
            )
        talking = _host_times(events, base, BACKEND, COMMUNICATION)
        computing = _host_times(events, base, OPERATOR)
    _check_steps(path, numbers, windows)
    rank, ranks = _place(events)
    return RankTrace(
        events,
        rank,
        ranks,
        numbers,
        base,
        host,
        windows,
        host_phases,
        phases,
        computing,
        union(events.copies.times() - base),
        talking,
        late,
        _gpu_name(events) if on_gpu else None,
        tuple(notes),
    )


def _host_times(events: Events, base: float, *kinds: int) -> Starts:
    return union(events.host.times()[events.of_kind(*kinds)] - base)


def _host_windows(events: Events, notes: list[str]) -> dict[int, tuple[float, float, int]]:
    """Start, stop and thread of each step on the host, by its number."""
    if events.steps:
        return events.steps
    update = events.of_kind(UPDATE)
    ends = np.sort(events.host.of("stop")[update]).tolist()
    names = {events.names.texts[n] for n in set(events.host.of("name")[update].tolist())}
    if len(ends) < 2 or len({str(name).partition(".step#")[2] for name in names}) > 1:
        raise FileError(
            f"trace {events.path} has no ProfilerStep#N: give torch.profiler.profile a schedule, "
            "call its step() after each iteration, and export in on_trace_ready"
        )
    notes.append("without ProfilerStep#N, a step is from one end of Optimizer.step to the next")
    # the first thread that trains
    recorded = events.of_kind(OPERATOR) & (events.host.of("sequence") >= 0)
    thread = int(events.host.of("thread")[np.argmax(recorded)])
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


def _of_host(events: Events, thread: int, windows: Starts, base: float) -> dict[str, Starts]:
    """Disjoint sets of host times by phase, with the gaps within a phase filled."""
    update = _host_times(events, base, UPDATE, ZERO_GRAD)
    backward = minus(_host_times(events, base, BACKWARD), update)
    loading = minus(_host_times(events, base, LOADING), union(update, backward))
    # operators that autograd records
    recorded = events.of_kind(OPERATOR) & (events.host.of("sequence") >= 0)
    recorded &= events.host.of("thread") == thread
    forward = union(events.host.times()[recorded] - base)
    forward = minus(forward, union(update, backward, loading))
    # what autograd records after the last backward of a step is no forward (loss.item())
    ends = np.array([_last(backward, window) for window in windows])
    step = index_at(windows, forward[:, 0])
    forward = forward[(step < 0) | (forward[:, 0] < ends[np.maximum(step, 0)])]
    return _filled(
        {"update": update, "backward": backward, INPUT: loading, "forward": forward}, windows
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
    events: Events, numbers: Sequence[int], host: Starts, base: float, notes: list[str]
) -> tuple[bool, Starts]:
    """The windows of the steps on the GPU, and whether the first one began before the trace did.

    Where the host waits for the GPU in each step, its windows contain the step's kernels. Else the host
    runs ahead, and a step lasts from the end of the previous step's kernels to the end of its own.
    """
    if any(n not in events.gpu_steps for n in numbers):
        notes.append("kernels are of the step in whose time they ran: the trace does not say more")
        return False, host
    ends = np.array([events.gpu_steps[n][1] for n in numbers]) - base
    if np.all(ends <= host[:, 1]):
        return False, host
    notes.append(
        "the host ran ahead of the GPU: a step is from the end of the last one's kernels to the end "
        "of its own; the first step, whose beginning is not known so, is a warm-up"
    )
    ends = np.maximum.accumulate(ends)
    first = min(events.gpu_steps[numbers[0]][0] - base, ends[0])
    return True, np.stack((np.concatenate(([first], ends[:-1])), ends), axis=1)


def _of_gpu(
    events: Events, host: dict[str, Starts], windows: Starts, base: float
) -> dict[str, Starts]:
    """GPU times by phase of the launch."""
    every = np.concatenate((events.kernels.times(), events.copies.times())) - base
    keys = np.concatenate((events.kernels.of("correlation"), events.copies.of("correlation")))
    launched = events.launched_at(keys)[0] - base
    of: dict[str, Starts] = {}
    taken = NONE
    for name in ("update", "backward", INPUT, "forward"):
        mine = index_at(host[name], np.nan_to_num(launched, nan=-np.inf)) >= 0
        of[name] = minus(union(every[mine]), taken)
        taken = union(taken, of[name])
    return _filled(of, windows)


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
    return plain(str(first.get("name", ""))) if isinstance(first, dict) else ""
