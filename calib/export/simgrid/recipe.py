"""SimGrid's MPI options from raw point-to-point calls, by its authors' recipe.

github.com/Ezibenroc/platform-calibration; fitting/estimators/collectives/platform_calibration.py fits
the segments. formats.md has a bandwidth's factor cut at 1 from above and a latency's from below; the
files that the authors published (sirocco_output.xml) have latency factors under 1, so nothing is cut
here. SimGrid 3.32 no longer knows two of their option names of 2016: async-small-thres and
send-is-detached-thres have gained an h. smpi/bw-factor and lat-factor stay; later versions read them
as network/...-factor, which in 3.32 is one number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from calib.fitting.estimators.collectives.platform_calibration import (
    EAGER,
    Segment,
    SegmentFactor,
    platform_calibration,
    read_tables,
)
from calib.foundation.errors import InputError


def properties_of(calls: Path, bandwidth: float, latency: float) -> list[tuple[str, str, str]]:
    """(option, value, why) from a directory of raw calls, for a platform of this link.

    `bandwidth` in bytes/s and `latency` in seconds, of a whole route. Raises FileError or InputError.
    """
    tables = read_tables(calls)
    found = platform_calibration(tables, bandwidth, latency)
    eager = _eager_threshold(calls)
    if eager is None:
        named = [limit for limit, name in tables.breakpoints if name.lower() == EAGER]
        eager = named[0] if named else 0
    # SimGrid refuses one that is above the other threshold
    eager = min(eager, found.detached_threshold_nbytes)
    return [
        ("smpi/os", _segments("smpi/os", found.send), "what MPI_Send takes of the CPU"),
        ("smpi/ois", _segments("smpi/ois", found.isend), "what MPI_Isend takes"),
        ("smpi/or", _segments("smpi/or", found.receive), "what MPI_Recv takes"),
        (
            "smpi/bw-factor",
            _factors("smpi/bw-factor", found.bandwidth_factor),
            "of the links' bandwidth, by the bytes of a message",
        ),
        (
            "smpi/lat-factor",
            _factors("smpi/lat-factor", found.latency_factor),
            "of the links' latency",
        ),
        (
            "smpi/async-small-thresh",
            str(eager),
            "bytes under which a message leaves before its receive is posted",
        ),
        (
            "smpi/send-is-detached-thresh",
            str(found.detached_threshold_nbytes),
            "bytes from which MPI_Send waits for its receiver",
        ),
        ("smpi/wtime", _number("smpi/wtime", found.wtime_s), "what a call of MPI_Wtime takes"),
        ("smpi/iprobe", _number("smpi/iprobe", found.iprobe_s), "what a call of MPI_Iprobe takes"),
        ("smpi/test", _number("smpi/test", found.test_s), "what a call of MPI_Test takes"),
    ]


def _eager_threshold(calls: Path) -> int | None:
    """What the settings of the calibration say, if there are any."""
    for path in sorted(calls.glob("*.xml")):
        element = ElementTree.parse(path).getroot().find("eager_threshold")
        value = "" if element is None else element.get("value", "")
        if value.isdecimal():
            return int(value)
    return None


def _segments(option: str, segments: Iterable[Segment]) -> str:
    return ";".join(
        f"{s.lower_nbytes}:{_number(option, s.intercept_s)}:{_number(option, s.slope_s_per_byte)}"
        for s in segments
    )


def _factors(option: str, factors: Iterable[SegmentFactor]) -> str:
    return ";".join(f"{f.lower_nbytes}:{_number(option, f.factor)}" for f in factors)


def _number(option: str, value: float) -> str:
    """Refuses what SimGrid cannot use: a fitted line may fall, or cross zero."""
    if not (math.isfinite(value) and value >= 0):
        raise InputError(
            f"these calls give {option} the value {value:g}: a segment of them is no line that rises "
            "from above 0; other breakpoints are needed"
        )
    return repr(float(value))
