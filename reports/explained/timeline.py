"""One step as traced and as predicted, as events in rows; also for Perfetto (ui.perfetto.dev)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from calib.oracle.projection import Phase, Projection
from calib.search.plan import Event
from calib.training.traces.intervals import Starts, both
from calib.training.traces.joined import joined
from calib.training.traces.rank import INPUT, PHASES, US, RankTrace

COMMUNICATION = ("halo", "layerwise", "exchange")
MOST_RANKS = 8
ORDER: tuple[Phase, ...] = (
    "forward",
    "halo",
    "layerwise",
    "backward",
    "pack",
    "exchange",
    "update",
)


def usual_step(traces: Sequence[RankTrace]) -> int:
    """The step whose time, mean over the ranks, is nearest to the median of all that they share."""
    steps = sorted(set.intersection(*(set(trace.steps) for trace in traces)))
    places = [np.searchsorted(trace.steps, steps) for trace in traces]
    whole = np.mean([np.array(x.whole_s)[at] for x, at in zip(traces, places, strict=True)], axis=0)
    return steps[int(np.argmin(np.abs(whole - np.median(whole))))]


def traced_events(traces: Sequence[RankTrace]) -> list[Event]:
    """A row of phases and one of collectives for each of MOST_RANKS, in the usual step, from 0 on."""
    step = usual_step(traces)
    collectives = joined(traces).collectives
    found: list[Event] = []
    for number, trace in enumerate(traces[:MOST_RANKS]):
        window = trace.windows[trace.steps.index(step)]
        rank = trace.rank if trace.rank is not None else number
        for name in (*PHASES, INPUT):
            inside = both(trace.phases[name], window[None, :])
            found += _events(f"rank {rank}", name, name, inside, window)
        for of in collectives:
            if rank in of.ranks and of.one.step == step:
                one = of.each[of.ranks.index(rank)]
                times = np.array([[one.start_us, one.stop_us]])
                label = one.operation or "collective"
                found += _events(f"rank {rank} sends", "send", label, times, window)
    return found


def _events(row: str, kind: str, label: str, times: Starts, window: Starts) -> Iterator[Event]:
    for start, stop in (np.maximum(times - window[0], 0.0) * US).tolist():
        yield Event(row=row, start_s=start, stop_s=stop, kind=kind, label=label)


def predicted_events(predicted: Projection) -> list[Event]:
    """The predicted phases one after the other; hidden communication is beside the backward's end."""
    found: list[Event] = []
    hidden = -sum(term.time.value for term in predicted.terms if term.time.value < 0)
    now = 0.0
    for name in ORDER:
        seconds = predicted.phases[name].value if name in predicted.phases else 0.0
        if seconds <= 0:
            continue
        sends = name in COMMUNICATION
        row, kind = ("predicted sends", "send") if sends else ("predicted", str(name))
        found.append(Event(row=row, kind=kind, label=name, start_s=now, stop_s=now + seconds))
        now += seconds
        if name == "backward" and hidden > 0:
            begin = max(now - hidden, 0.0)
            beside = {"kind": "send", "label": "exchange, hidden", "start_s": begin, "stop_s": now}
            found.append(Event(row="predicted sends", **beside))
    return found


def chrome_trace(events: Sequence[Event]) -> dict[str, Any]:
    """The events as a Chrome trace: a thread for each row, times in us."""
    rows = {row: number for number, row in enumerate(dict.fromkeys(event.row for event in events))}
    names = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": row}}
        for row, tid in rows.items()
    ]
    bars = [
        {
            "ph": "X",
            "name": event.label,
            "cat": event.kind,
            "pid": 0,
            "tid": rows[event.row],
            "ts": event.start_s / US,
            "dur": (event.stop_s - event.start_s) / US,
        }
        for event in events
    ]
    return {"displayTimeUnit": "ms", "traceEvents": [*names, *bars]}
