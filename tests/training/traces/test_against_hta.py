"""Where the time of real GPU traces went, by HolisticTraceAnalysis (Meta) and by us.

HTA divides the time from the first kernel to the last: computation, other work of the GPU, none; and
says which share of communication runs beside computation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.helpers.published import DATA, needs_data

from calib.training.traces.intervals import NONE, union
from calib.training.traces.rank import read_rank
from calib.training.traces.split import split_of

# kernels, us: from first to last, computation, other work, none; communication that is hidden, %. From
# HTA 0.5.0's get_temporal_breakdown and get_comm_comp_overlap with HTA_DISABLE_NS_ROUNDING=1, without
# a trace's last step, as is its default, and with it (include_last_profiler_step)
HTA = {
    ("ddp_2gpu_rank0", False): (435587.56, 76935.83, 22232.02, 336419.71, 14.76),
    ("ddp_2gpu_rank0", True): (660551.01, 115655.85, 41844.17, 503050.99, 15.61),
    ("sampled_128gpu_rank0", False): (600058, 106252, 172428, 321378, 11.81),
    ("sampled_128gpu_rank0", True): (1222847, 210320, 337336, 675191, 14.95),
    ("sampled_128gpu_rank1", False): (600674, 135548, 136455, 328671, 20.05),
    ("sampled_128gpu_rank1", True): (1231186, 271973, 308077, 651136, 19.93),
}
# times in nanoseconds are rounded to microseconds, inwards, unless HTA is told not to
ROUNDED = 0.01
TRACES = DATA / "traces"
pytestmark = needs_data


def ours(name: str, whole_us: float) -> tuple[float, ...]:
    """The same of the time from the first kernel on."""
    trace = read_rank(TRACES / f"{name}.json.gz")
    start = union(trace.computing, trace.talking, trace.copying)[0, 0]
    window = np.array([[start, start + whole_us]])
    split = split_of(replace(trace, windows=window, host_windows=window), NONE)
    parts = {part: float(seconds[0]) * 1e6 for part, seconds in split.parts.items()}
    other = parts["wire"] + parts["waiting"] + parts["copies"]
    hidden = 100 * float(split.hidden[0] / split.talking[0])
    return parts["computation"], other, parts["input"] + parts["host"], hidden


def of_hta(name: str, last: bool) -> tuple[float, ...]:
    """What HTA says, where it is installed."""
    hta: Any = pytest.importorskip("hta.trace_analysis")
    of = hta.TraceAnalysis(
        trace_files={0: str(TRACES / f"{name}.json.gz")},
        trace_dir="",
        include_last_profiler_step=last,
    )
    times = of.get_temporal_breakdown(visualize=False).iloc[0]
    hidden = of.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"]
    words = ("kernel", "compute", "non_compute", "idle")
    return *(float(times[f"{word}_time(us)"]) for word in words), float(hidden)


@pytest.mark.parametrize(("name", "last"), HTA)
def test_to_the_microsecond(name: str, last: bool) -> None:
    whole, *theirs, hidden = HTA[name, last]
    *times, share = ours(name, whole)
    assert times == pytest.approx(theirs, abs=1.0)
    assert share == pytest.approx(hidden, abs=0.01)


@pytest.mark.parametrize(("name", "last"), HTA)
def test_what_it_says(name: str, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    assert of_hta(name, last) == pytest.approx(HTA[name, last], abs=0.01)


@pytest.mark.parametrize(("name", "last"), HTA)
def test_as_it_rounds(name: str, last: bool) -> None:
    whole, *theirs, hidden = of_hta(name, last)
    *times, share = ours(name, whole)
    assert times == pytest.approx(theirs, abs=ROUNDED * whole)
    assert share == pytest.approx(hidden, abs=100 * ROUNDED)
