"""Where the time of a step went, rank by rank: parts that add up to the whole.

Each instant is of the first of these that holds: the device computes; it communicates, and the last
rank has come (wire) or not yet (waiting); it copies; the main thread loads data, or has not yet called
the model (input); the rest, in which nothing of this runs (host). On a CPU loading is of input before
it is of computation, because the two are of one thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib.training.traces.events import OTHER
from calib.training.traces.intervals import NONE, Starts, both, lengths_within, minus, union
from calib.training.traces.joined import JoinedRanks
from calib.training.traces.rank import INPUT, PHASES, US, RankTrace

FORWARD = re.compile(r"forward", re.IGNORECASE)
BETWEEN = "between"
PARTS = ("computation", "wire", "waiting", "copies", "input", "host")


@dataclass(frozen=True)
class Split:
    """Seconds of each part in each step of a rank: arrays [steps]; they add up to `whole`.

    So do those of `phases` with wire, waiting and input: BETWEEN is what is in no phase. `talking` is
    all communication, `hidden` what of it ran beside computation.
    """

    whole: NDArray[np.float64]
    parts: dict[str, NDArray[np.float64]]
    phases: dict[str, NDArray[np.float64]]
    talking: NDArray[np.float64]
    hidden: NDArray[np.float64]

    @property
    def own(self) -> NDArray[np.float64]:
        """What the rank does by itself, without loading: [steps]."""
        return self.parts["computation"] + self.parts["copies"] + self.parts["host"]


def split_of(trace: RankTrace, waiting: Starts) -> Split:
    """The parts of a rank's steps; `waiting` as in JoinedRanks."""
    windows = trace.windows
    loading = trace.host_phases[INPUT]
    computing = trace.computing if trace.gpu is not None else minus(trace.computing, loading)
    exposed = minus(trace.talking, computing)
    waited = both(exposed, union(waiting))
    taken = union(computing, exposed)
    copies = minus(trace.copying, taken)
    taken = union(taken, copies)
    before = minus(union(loading, _before_forward(trace)), taken)
    sets = {
        "computation": computing,
        "wire": minus(exposed, waited),
        "waiting": waited,
        "copies": copies,
        "input": before,
    }
    parts = {name: lengths_within(of, windows) * US for name, of in sets.items()}
    whole = (windows[:, 1] - windows[:, 0]) * US
    parts["host"] = whole - sum(parts.values(), np.zeros(len(windows)))
    beside = union(exposed, before)
    phases = {
        name: lengths_within(minus(trace.phases[name], beside), windows) * US for name in PHASES
    }
    others = [*phases.values(), parts["wire"], parts["waiting"], parts["input"]]
    phases[BETWEEN] = whole - sum(others, np.zeros(len(windows)))
    talking = lengths_within(trace.talking, windows) * US
    hidden = lengths_within(both(trace.talking, computing), windows) * US
    return Split(whole, parts, phases, talking, hidden)


def _before_forward(trace: RankTrace) -> Starts:
    """From the beginning of each step on the host to its call of the model, without zero_grad.

    The call is an annotation with `forward` in its name, as DistributedDataParallel's, or the first
    operator that autograd records.
    """
    events = trace.events
    called = [n for n, name in enumerate(events.names.texts) if FORWARD.search(str(name))]
    marked = np.isin(events.host.of("name"), called) & events.of_kind(OTHER)
    starts = np.concatenate(
        (events.host.of("start")[marked] - trace.base_us, trace.host_phases["forward"][:, 0])
    )
    if not len(starts):
        return NONE
    starts.sort()
    begins = starts[np.minimum(np.searchsorted(starts, trace.host_windows[:, 0]), len(starts) - 1)]
    inside = (begins >= trace.host_windows[:, 0]) & (begins <= trace.host_windows[:, 1])
    found = np.stack((trace.host_windows[:, 0], begins), axis=1)[inside]
    return minus(found, trace.host_phases["update"])


def splits_of(ranks: JoinedRanks) -> list[Split]:
    """Those of all ranks."""
    return [split_of(x, waits) for x, waits in zip(ranks.traces, ranks.waiting, strict=True)]
