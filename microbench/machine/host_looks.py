"""What ranks together make of the counters of their hosts: each knows its cores, not who shares them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from calib.microbench.control import Control
from calib.microbench.machine.host import (
    LEAST_WINDOW_S,
    HostActivity,
    HostReading,
    activity,
    hardware_threads,
    read_host,
)
from calib.microbench.machine.network import ROOT, read_network
from calib.microbench.machine.placement import machine_id, usable_cores


class HostLooks:
    """The counters of this rank's cores, look by look. All ranks make one, and look, together.

    Parameters
    ----------
    control
        Connects the ranks.
    cores
        Those that this rank may run on; default what the system says.
    root
        What holds proc and sys.
    """

    def __init__(
        self, control: Control, cores: Sequence[int] | None = None, root: Path = ROOT
    ) -> None:
        self._control, self._root = control, root
        self._cores = list(usable_cores() if cores is None else cores)
        threads = sorted({x for core in self._cores for x in hardware_threads(core, root)})
        ranks = control.allgather_object([machine_id(), threads])
        here, mine = ranks[control.rank]
        self._sharers = [
            rank
            for rank, (machine, theirs) in enumerate(ranks)
            if machine == here and not set(mine).isdisjoint(theirs)
        ]
        self._first_here = all(machine != here for machine, _ in ranks[: control.rank])
        self._readings = deque([self._read()])

    def look(self) -> HostActivity:
        """What happened here since the last look; shares of the cores over LEAST_WINDOW_S at least.

        Shares are None until that time has passed; the network is that of the first rank on a host.
        Collective.
        """
        now = self._read()
        last = self._readings[-1]
        self._readings.append(now)
        while now.clock_s - self._readings[1].clock_s >= LEAST_WINDOW_S:
            self._readings.popleft()
        before = self._readings[0]
        window_s = now.clock_s - before.clock_s
        # ranks look together, but not to the microsecond: shares, not seconds
        mine = (now.process_s - before.process_s) / max(window_s, 1e-9)
        every = self._control.allgather_object(mine)
        ours = sum(every[rank] for rank in self._sharers)
        shares = activity(before, now, ours * window_s)
        return replace(activity(last, now, 0.0), others=shares.others, stolen=shares.stolen)

    def _read(self) -> HostReading:
        network = read_network(self._root) if self._first_here else None
        return read_host(self._cores, network, self._root)
