"""What happened on this host's cores and network between two readings of the kernel's counters.

A rank reads between what it times (a reading takes a fraction of a millisecond); ranks then tell one
another what each found, and the worst counts: all of a collective wait for the slowest. On other systems
than Linux, and where a counter is missing, what it would say is None.

Example
-------
>>> before = read_host(usable_cores(), read_network())
>>> ...  # what is timed
>>> after = read_host(usable_cores(), read_network())
>>> ours_s = after.process_s - before.process_s  # and that of other ranks on these cores
>>> activity(before, after, ours_s).others
0.02
"""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from calib.microbench.machine.network import ROOT, NetworkReading, growth

# /proc/stat counts in USER_HZ, 100 a second on every Linux: in a shorter window the rounding of a core's
# three counters alone may be 6% of it, and a kernel that only looks at each tick who runs errs as much.
# Of 0.5 s the standard deviation is 1.5% of a core (HZ 250, processes that run 4 ms of every 9)
LEAST_WINDOW_S = 0.5
USER_HZ = 100
# kernels before 5.18 sleep 10 ms to find the clock of a core
CLOCKS_S = 0.001
A_CLOCK = re.compile(r"(processor|cpu MHz)\s*:\s*([\d.]+)")


@dataclass(frozen=True)
class CoreTime:
    """Seconds so far of one hardware thread."""

    used_s: float
    """By processes: user, nice and system; not by interrupts, which messages of the ranks cause, too."""
    stolen_s: float
    """By other machines of the hypervisor, while something here could run."""


@dataclass(frozen=True)
class HostReading:
    """Counters at one moment; differences of two tell what happened between them."""

    clock_s: float
    process_s: float
    """CPU seconds of this process, all its threads."""
    physical_cores: tuple[tuple[int, ...], ...]
    """The hardware threads of each of the cores asked for."""
    cores: dict[int, CoreTime]
    """Hardware thread -> its time."""
    switches: int
    """Of this process from its core against its will."""
    faults: int
    """Pages of this process that were read from a disk."""
    running: int | None
    """Threads on this host that run or could run now, this one included."""
    mhz: float | None
    """Of the slowest of the cores now; of a virtual machine often what it was started with."""
    network: NetworkReading


@dataclass(frozen=True)
class HostActivity:
    """What happened between two readings; shares are of the ranks' physical cores.

    None is what the system does not tell, or what the window was too short for.
    """

    window_s: float
    others: float | None
    """Used by processes that are not the ranks; above 1 where both hardware threads of a core were."""
    stolen: float | None
    switches: float
    """Per s, as all that follow but `running` and `mhz`."""
    faults: float
    running: int | None
    mhz: float | None
    network: float | None
    """Bytes received and sent, whosever they were."""
    resent: float | None
    congested: float | None


def read_host(
    cores: Sequence[int], network: NetworkReading | None = None, root: Path = ROOT
) -> HostReading:
    """The counters of now.

    Parameters
    ----------
    cores
        Those that a rank may run on. Other hardware threads of the same physical cores count as well.
    network
        What was read of it just now (`read_network`): one rank of a host is enough.
    root
        What holds proc and sys.
    """
    physical = _physical(tuple(cores), root)
    wanted = {thread for threads in physical for thread in threads}
    # not the line of interrupts, which has thousands of numbers on a large machine
    counted = ("cpu", "procs_running")
    lines = [line.split() for line in _lines(root / "proc/stat") if line.startswith(counted)]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return HostReading(
        clock_s=time.monotonic(),
        process_s=time.process_time(),
        physical_cores=physical,
        cores=_times(lines, wanted),
        switches=usage.ru_nivcsw,
        faults=usage.ru_majflt,
        running=next((int(words[1]) for words in lines if words[0] == "procs_running"), None),
        mhz=min(_clocks(sorted(cores), root), default=None),
        network=network or NetworkReading(),
    )


def activity(before: HostReading, after: HostReading, ours_s: float) -> HostActivity:
    """What happened between two readings of the same cores.

    Parameters
    ----------
    ours_s
        CPU seconds that all ranks which may run on these cores used meanwhile (`process_s`): one rank
        where each is bound to its own, all of a host where none is.
    """
    window_s = after.clock_s - before.clock_s
    used = core_shares(before, after)
    known = bool(used) and window_s >= LEAST_WINDOW_S
    others = sum(share for share, _ in used.values()) - ours_s / window_s if known else 0.0
    stolen = sum(share for _, share in used.values())
    per_s = max(window_s, 1e-9)
    network, then = after.network, before.network
    carried = [growth(then.received, network.received), growth(then.sent, network.sent)]
    return HostActivity(
        window_s=window_s,
        others=max(0.0, others) / len(after.physical_cores) if known else None,
        stolen=stolen / len(used) if known else None,
        switches=(after.switches - before.switches) / per_s,
        faults=(after.faults - before.faults) / per_s,
        running=after.running,
        mhz=after.mhz,
        network=_rate(carried, per_s),
        resent=_rate([growth(then.resent, network.resent)], per_s),
        congested=_rate([growth(then.congested, network.congested)], per_s),
    )


def core_shares(before: HostReading, after: HostReading) -> dict[int, tuple[float, float]]:
    """Hardware thread -> the shares of its time that processes used, and that were stolen."""
    window_s = max(after.clock_s - before.clock_s, 1e-9)
    return {
        thread: (
            max(0.0, after.cores[thread].used_s - then.used_s) / window_s,
            max(0.0, after.cores[thread].stolen_s - then.stolen_s) / window_s,
        )
        for thread, then in before.cores.items()
        if thread in after.cores
    }


def busiest_core(before: HostReading, after: HostReading) -> float | None:
    """The share of its time that processes used of the busiest physical core; None as for `others`.

    One of many cores may be taken while `others` of all is small; the rank on it keeps all waiting.
    """
    used = core_shares(before, after)
    if not used or after.clock_s - before.clock_s < LEAST_WINDOW_S:
        return None
    return max(
        sum(used[thread][0] for thread in threads if thread in used)
        for threads in after.physical_cores
    )


def worst(found: Iterable[HostActivity]) -> HostActivity:
    """Of what several ranks found, or one rank in several windows, the worst of each.

    Raises ValueError where there is nothing.
    """
    every = list(found)
    if not every:
        raise ValueError("there is no activity to take the worst of")
    values: dict[str, list[Any]] = {
        name: [value for each in every if (value := getattr(each, name)) is not None]
        for name in HostActivity.__dataclass_fields__
    }
    worst_of: dict[str, Any] = {name: max(of, default=None) for name, of in values.items()}
    return HostActivity(**{**worst_of, "mhz": min(values["mhz"], default=None)})


@cache
def _physical(cores: tuple[int, ...], root: Path) -> tuple[tuple[int, ...], ...]:
    """The hardware threads of each physical core among these."""
    return tuple(sorted({hardware_threads(core, root) for core in cores}))


@cache
def hardware_threads(core: int, root: Path = ROOT) -> tuple[int, ...]:
    """All hardware threads of the physical core that this one is of; itself where unknown."""
    place = f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
    try:
        return tuple(listed_numbers((root / place).read_text())) or (core,)
    except (OSError, ValueError):
        return (core,)


def listed_numbers(text: str) -> Iterator[int]:
    """The numbers of a list such as 0,64 or 0-1. Raises ValueError where it is none."""
    for word in filter(None, text.strip().split(",")):
        first, _, last = word.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _times(lines: Iterable[Sequence[str]], wanted: set[int]) -> dict[int, CoreTime]:
    """Of lines of /proc/stat: cpuN user nice system idle iowait irq softirq steal guest guest_nice.

    User has what guests used in it (man 5 proc).
    """
    found = {}
    for name, *ticks in lines:
        number = name.removeprefix("cpu")
        if number != name and number.isdecimal() and int(number) in wanted:
            user, nice, system, *rest = map(int, ticks)
            stolen = rest[4] if len(rest) > 4 else 0
            found[int(number)] = CoreTime((user + nice + system) / USER_HZ, stolen / USER_HZ)
    return found


def _clocks(cores: Sequence[int], root: Path) -> Iterator[float]:
    """MHz of the first cores, of as many as can be asked in a millisecond."""
    start = time.monotonic()
    scaled = False
    for core in cores:
        file = root / f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"
        try:
            yield int(file.read_text()) / 1e3
        except (OSError, ValueError):
            break
        scaled = True
        if time.monotonic() - start > CLOCKS_S:
            return
    if scaled:
        return
    core = -1
    for line in _lines(root / "proc/cpuinfo"):
        word = A_CLOCK.match(line)
        if word and word[1] == "processor":
            core = int(word[2])
            if time.monotonic() - start > CLOCKS_S:
                return
        elif word and core in cores:
            yield float(word[2])


def _lines(path: Path) -> Iterator[str]:
    """Those of a file that are not empty; none where it cannot be read."""
    try:
        with path.open() as file:
            yield from (line for line in file if line.strip())
    except OSError:
        return


def _rate(grown: Sequence[dict[str, int]], seconds: float) -> float | None:
    """All that grew, per s; None where nothing counts."""
    return sum(sum(each.values()) for each in grown) / seconds if any(grown) else None
