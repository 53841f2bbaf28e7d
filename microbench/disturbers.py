"""Watch this host for a while, without measuring: what disturbs it, and who.

The same counters, references and thresholds as between the cases of a measurement; here names of
processes, cores and interfaces are kept beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic, sleep, time

from calib.foundation.statistics import median
from calib.foundation.words import bytes_words, number, percent, several
from calib.microbench.disturbance import disturbances
from calib.microbench.machine.boards import activity_of
from calib.microbench.machine.host import (
    HostReading,
    activity,
    busiest_core,
    core_shares,
    read_host,
)
from calib.microbench.machine.network import growth, read_network
from calib.microbench.machine.placement import usable_cores
from calib.microbench.machine.processes import Processes
from calib.microbench.machine.telemetry import THROTTLED
from calib.microbench.probe import read_gpus
from calib.microbench.records.cluster import Device
from calib.microbench.records.looks import DISTURBANCES, Disturbance, Look
from calib.microbench.records.watched import (
    CoreUse,
    Disturbed,
    GpuUse,
    InterfaceUse,
    ProcessUse,
    Watched,
)
from calib.microbench.reference import Reference

LOOK_S = 1.0  # a look, in which the kernel's counts are known to 1 or 2%
MOST_LOOKS = 600
GOES = 5  # of each reference in a look: its median
RARE = 0.05  # of the looks: so many may be disturbed on a quiet machine
LEAST_SHARE = 0.01  # of a process that is named

ADVICE: dict[Disturbance, str] = {
    "cores": "stop them, or keep them off these cores",
    "stolen": "the host is overbooked: take an instance with cores of its own, or another hour",
    "slow": "something shares caches, memory or power with these cores, or clocks change: "
    "measure when it is over, and calibrate again if it stays",
    "network": "find whose traffic it is, or measure when it is over",
    "gpu": "wait until they are gone, or leave that GPU out with CUDA_VISIBLE_DEVICES",
}
Told = Callable[[int, float, Look], None]  # looks done, seconds left, the last look


def looks_in(seconds: float) -> int:
    """How many looks are taken in so many seconds."""
    return max(1, min(round(seconds / LOOK_S), MOST_LOOKS))


def watch(seconds: float, told: Told | None = None) -> Watched:
    """What disturbs this host in the next `seconds`; an interrupt ends it with what was seen.

    Parameters
    ----------
    told
        Called after each look.

    Raises
    ------
    KeyboardInterrupt
        Before the first look was over.
    """
    looks = looks_in(seconds)
    watching = Watching()
    start = monotonic()
    try:
        for done in range(1, looks + 1):
            sleep(max(0.0, start + seconds * done / looks - monotonic()))
            look = watching.look()
            if told is not None:
                told(done, max(0.0, start + seconds - monotonic()), look)
    except KeyboardInterrupt:
        if not watching.looks:
            raise
    return watching.watched()


class Watching:
    """Looks at this host, one after another."""

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self._gpus: list[Device] = read_gpus()[0]
        self._cores = usable_cores()
        self._reference = Reference()
        self._processes = Processes()
        self._first = self._last = self._read()

    def look(self) -> Look:
        """The host since the last look, or since this was made."""
        now = self._read()
        ours_s = now.process_s - self._last.process_s
        found = activity(self._last, now, ours_s)
        busiest = busiest_core(self._last, now)
        self._last = now
        self._processes.look()
        gpus = [activity_of(gpu.uuid).get("processes", 0) for gpu in self._gpus]
        look = Look(
            unix_s=time(),
            window_s=found.window_s,
            arithmetic_s=median([self._reference.arithmetic_s() for _ in range(GOES)]),
            memory_s=median([self._reference.memory_s() for _ in range(GOES)]),
            # a rank may be on any of them; on which core this process was nobody counts
            others=None if busiest is None else max(0.0, busiest - ours_s / found.window_s),
            stolen=found.stolen,
            switches=found.switches,
            faults=found.faults,
            running=found.running,
            mhz=found.mhz,
            foreign=found.network,  # this process sends nothing
            resent=found.resent,
            congested=found.congested,
            gpu_processes=max(gpus, default=None),
        )
        disturbed = disturbances([*self.looks, look])
        self.looks.append(look.model_copy(update={"disturbed": disturbed}))
        return self.looks[-1]

    def watched(self) -> Watched:
        """All that was seen so far."""
        first, last = self._first, self._last
        seconds = last.clock_s - first.clock_s
        self._processes.look(last=True)
        before, after = first.network, last.network
        received = _per_s(before.received, after.received, seconds)
        sent = _per_s(before.sent, after.sent, seconds)
        cores = [
            CoreUse(core=core, used=used, stolen=stolen)
            for core, (used, stolen) in sorted(core_shares(first, last).items())
        ]
        processes = [
            ProcessUse(pid=process.pid, name=process.name, share=process.used_s / seconds)
            for process in self._processes.used()
        ]
        watched = Watched(
            seconds=seconds,
            quiet=True,
            disturbed=[],
            cores=cores,
            processes=processes,
            unseen=self._unseen(cores, processes, seconds),
            interfaces=[
                InterfaceUse(name=name, received=received[name], sent=sent[name])
                for name in received
                if name in sent
            ],
            resent=_per_s(before.resent, after.resent, seconds),
            congested=_per_s(before.congested, after.congested, seconds),
            stalled=_per_s(before.stalled, after.stalled, seconds),
            gpus=[_gpu(index, gpu) for index, gpu in enumerate(self._gpus)],
            looks=self.looks,
        )
        return judged(watched)

    def _read(self) -> HostReading:
        return read_host(self._cores, read_network(pause_frames=True))

    def _unseen(
        self, cores: Sequence[CoreUse], processes: Sequence[ProcessUse], seconds: float
    ) -> float | None:
        """What was used of the cores, without the processes that are listed and this one.

        Where these are not all cores of the host, processes elsewhere may hide some of it.
        """
        if not cores:
            return None
        ours = (self._last.process_s - self._first.process_s) / seconds
        listed = sum(process.share for process in processes)
        return max(0.0, sum(core.used for core in cores) - listed - ours)


def _per_s(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> dict[str, float]:
    return {name: count / seconds for name, count in growth(before, after).items()}


def _gpu(index: int, gpu: Device) -> GpuUse:
    state = activity_of(gpu.uuid)
    return GpuUse(
        name=gpu.name,
        index=state.get("index", index),
        processes=state.get("processes", 0),
        held_back=sorted(THROTTLED.intersection(state.get("event_reasons", ()))),
    )


def judged(watched: Watched) -> Watched:
    """With what disturbed in its looks, and whether it is quiet all the same."""
    found = [
        Disturbed(by=by, looks=often, found=FOUND[by](watched), advice=ADVICE[by])
        for by in DISTURBANCES
        if (often := sum(by in look.disturbed for look in watched.looks))
    ]
    quiet = all(each.looks <= RARE * len(watched.looks) for each in found)
    return watched.model_copy(update={"disturbed": found, "quiet": quiet})


# what is said of each disturbance


def known(looks: Sequence[Look], name: str) -> list[float]:
    """A number of all looks that have it."""
    return [value for look in looks if (value := getattr(look, name)) is not None]


def _share(watched: Watched, by: Disturbance, name: str, of: str) -> str:
    """The median and the most of a share in the looks that were disturbed; 0.0% where nobody counts."""
    shares = known([look for look in watched.looks if by in look.disturbed], name) or [0.0]
    return f"{percent(median(shares))} {of} (at most {percent(max(shares))})"


def _cores(watched: Watched) -> str:
    busy = [
        f"{process.name} (pid {process.pid})"
        for process in watched.processes
        if process.share >= LEAST_SHARE
    ]
    who = f": {several(busy)}" if busy else ""
    return f"other processes use {_share(watched, 'cores', 'others', 'of a core')}{who}"


def _stolen(watched: Watched) -> str:
    share = _share(watched, "stolen", "stolen", "of the time of the cores")
    return f"the hypervisor takes {share}"


def _slow(watched: Watched) -> str:
    words = []
    for name, work in (("arithmetic_s", "arithmetic"), ("memory_s", "a copy of memory")):
        times = known(watched.looks, name)
        if times:
            factor = number(max(times) / median(times))
            words.append(f"{work} takes up to {factor} times as long as usual")
    return ", ".join(words)


def _network(watched: Watched) -> str:
    words = [
        f"{each.name} carries {bytes_words(each.received + each.sent)}/s"
        for each in watched.interfaces
        if each.received + each.sent > 0
    ]
    for rates in (watched.resent, watched.congested):
        words += [f"{name} {number(rate)} per s" for name, rate in rates.items() if rate > 0]
    return f"others use the network: {several(words)}"


def _gpus(watched: Watched) -> str:
    here = [f"{gpu.processes} on GPU {gpu.index}" for gpu in watched.gpus if gpu.processes]
    most = f"at most {max(known(watched.looks, 'gpu_processes')):.0f} on one GPU"
    return f"other processes compute: {several(here) or most}"


FOUND: dict[Disturbance, Callable[[Watched], str]] = {
    "cores": _cores,
    "stolen": _stolen,
    "slow": _slow,
    "network": _network,
    "gpu": _gpus,
}
