"""Iterations of training from the torch.profiler traces of its ranks, one file per rank."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from calib.foundation.errors import FileError
from calib.foundation.statistics import median
from calib.foundation.words import seconds_words
from calib.training.importers.records import ImportedCase, TimedIteration, absent_phases
from calib.training.traces.rank import PHASES, US, RankTrace

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


def iterations_of(
    traces: Sequence[RankTrace], case: ImportedCase, warmup: int
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
    if case.p > 1 and not any(len(trace.talking) for trace in traces):
        kind = None
        notes.append("no communication was recognised in the traces: its time is not known")
    late = any(trace.late for trace in traces)
    found = []
    for place, step in enumerate(steps):
        at = [trace.steps.index(step) for trace in traces]
        known = [x for x in PHASES if all(x in trace.phase_s for trace in traces)]
        phases = {x: [t.phase_s[x][i] for t, i in zip(traces, at, strict=True)] for x in known}
        phases |= {x: [0.0] * len(traces) for x in absent_phases(case)}
        if kind is not None:
            phases[kind] = [t.exposed_s[i] for t, i in zip(traces, at, strict=True)]
        whole = [t.whole_s[i] for t, i in zip(traces, at, strict=True)]
        found.append(TimedIteration(step, whole, phases, place < warmup or (late and place == 0)))
    notes.append(_communication(traces))
    return found, notes


def _communication(traces: Sequence[RankTrace]) -> str:
    busy = median([s for trace in traces for s in trace.talking_s])
    exposed = median([s for trace in traces for s in trace.exposed_s])
    return (
        f"communication: {seconds_words(busy)} of a step, of which {seconds_words(exposed)} are not "
        "hidden by computation (medians over steps and ranks)"
    )


def circumstances_of(traces: Sequence[RankTrace], p: int) -> dict[str, Any]:
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
        when = datetime.fromtimestamp(base * 1e-9 + traces[0].base_us * US, UTC)
        found["started"] = when.isoformat(timespec="seconds")
    return found
