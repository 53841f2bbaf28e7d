"""The named method "platform-calibration": segments of point-to-point calls as SimGrid takes them.

The recipe of github.com/Ezibenroc/platform-calibration (after SimGrid's own), in our words: rows in
consecutive blocks of 10, of which durations within [q10, q90] stay; ordinary least squares on each
[lower, upper) between given breakpoints. A ping-pong, untrimmed, is its send and its receive together.
One transfer is half of what a ping-pong takes beside its receive call. Above the detached threshold a
send waits for its receiver (rendezvous): send and receive cost nothing of their own there. Factors are
those that the published files hold: neither is cut at 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.foundation.arrays import Floats, Mask
from calib.foundation.errors import FileError, InputError
from calib.foundation.files import read_bytes, read_text
from calib.foundation.quantities import MAX_BYTES, MAX_SECONDS

NAME = "platform-calibration"
BLOCK_ROWS = 10
TRIM = 0.1
WTIME_CALLS = 10_000_000  # of MPI_Wtime, in one row
EAGER = "asynchronous"  # the last breakpoint below which a send does not wait, by its usual name
FEWEST_TO_TRIM = 3
TABLES = ("PingPong", "Isend", "Recv", "Wtime", "Iprobe", "Test")

Lines = tuple[Floats, Floats]  # intercepts [s] in seconds, slopes [s] in seconds per byte


class CallRows(NamedTuple):
    """Rows of one table: MPI operation, bytes and seconds, in the order they were made."""

    operation: NDArray[np.str_]
    nbytes: Floats
    seconds: Floats


DIGITS = 18  # of a limit in bytes


@dataclass(frozen=True)
class Segment:
    """One line: seconds = intercept_s + slope_s_per_byte * nbytes, from `lower_nbytes` on."""

    lower_nbytes: int
    intercept_s: float
    slope_s_per_byte: float


@dataclass(frozen=True)
class SegmentFactor:
    """What a bandwidth or latency is multiplied by, from `lower_nbytes` on."""

    lower_nbytes: int
    factor: float


@dataclass(frozen=True)
class PlatformCalibration:
    """The published properties: smpi/os, ois, or, bw-factor, lat-factor, wtime, iprobe, test."""

    send: tuple[Segment, ...]
    isend: tuple[Segment, ...]
    receive: tuple[Segment, ...]
    bandwidth_factor: tuple[SegmentFactor, ...]
    latency_factor: tuple[SegmentFactor, ...]
    wtime_s: float
    iprobe_s: float
    test_s: float
    detached_threshold_nbytes: int
    method: str = NAME


@dataclass(frozen=True)
class CallTables:
    """The tables of a calibration, by name (TABLES), and its (limit in bytes, name) breakpoints.

    `detached_threshold` in bytes and `trim` are as its settings have them, where there are any.
    """

    calls: Mapping[str, CallRows]
    breakpoints: tuple[tuple[int, str], ...]
    detached_threshold: int | None = None
    trim: float = TRIM


def read_tables(directory: Path) -> CallTables:
    """Read `*_PingPong.csv` and the others (op,bytes,start,duration) and `*breakpoints`.

    Of the settings (`*.xml` with `detached_threshold`), the threshold and the trimming, if they are
    there. Raises FileError for a file that is missing, ambiguous or not of that form.
    """
    calls = {name: _read_calls(_only(directory, f"*_{name}.csv")) for name in TABLES}
    path = _only(directory, "*breakpoints*")
    breakpoints = []
    for number, line in enumerate(read_text(path, "breakpoints").splitlines()[1:], 2):
        fields = [field.strip() for field in line.split(",")]
        if fields == [""]:
            continue
        if len(fields) != 2 or not fields[0].isdecimal() or len(fields[0]) > DIGITS:
            raise FileError(f"{path}:{number}: not a limit in bytes and a name: {line!r:.80}")
        breakpoints.append((int(fields[0]), fields[1]))
    return CallTables(calls, tuple(breakpoints), **_settings(directory))


def _settings(directory: Path) -> dict[str, Any]:
    """What the settings file of a calibration says; nothing without one."""
    for path in sorted(directory.glob("*.xml")):
        try:
            root = ElementTree.fromstring(read_bytes(path, "settings"))
            found = {tag: root.find(tag) for tag in ("detached_threshold", "outliers_threshold")}
            values = {tag: float(e.get("value", "")) for tag, e in found.items() if e is not None}
            if not all(0 <= value <= MAX_BYTES for value in values.values()):
                raise ValueError("a threshold that cannot be")
        except (ElementTree.ParseError, ValueError) as error:
            raise FileError(f"{path}: not a settings or result file ({error})") from None
        if "detached_threshold" in values:
            threshold = int(values["detached_threshold"])
            return {"detached_threshold": threshold, "trim": values.get("outliers_threshold", TRIM)}
    return {}


def _only(directory: Path, pattern: str) -> Path:
    found = sorted(directory.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise FileError(f"{directory}: one file {pattern} is needed, there is: {names}")
    return found[0]


def _read_calls(path: Path) -> CallRows:
    rows = []
    for number, line in enumerate(read_text(path, "calls").splitlines(), 1):
        if not line.strip():
            continue
        try:
            operation, nbytes, _, seconds = line.split(",")
            row = operation.strip(), float(nbytes), float(seconds)
        except ValueError:
            raise FileError(f"{path}:{number}: not op,bytes,start,duration: {line!r:.80}") from None
        if not (0 <= row[1] <= MAX_BYTES and 0 <= row[2] <= MAX_SECONDS):
            raise FileError(f"{path}:{number}: bytes or a duration that cannot be: {line!r:.80}")
        rows.append(row)
    if not rows:
        raise FileError(f"{path}: no rows")
    operations, nbytes_of, seconds_of = zip(*rows, strict=True)
    return CallRows(np.array(operations), np.array(nbytes_of), np.array(seconds_of))


def platform_calibration(
    source: Path | str | CallTables,
    expected_bandwidth: float,
    expected_latency: float,
    detached_threshold: int | None = None,
    isend_when_detached: bool = True,
) -> PlatformCalibration:
    """Fit segments as platform-calibration publishes them, from raw calls or their tables.

    Parameters
    ----------
    source
        A directory of raw calls, or its tables.
    expected_bandwidth, expected_latency
        What the factors multiply, in B/s and s.
    detached_threshold
        Segments that end above so many bytes are rendezvous sends; by default the threshold of the
        settings, else the breakpoint named Asynchronous.
    isend_when_detached
        False for older files of the same authors, which have no Isend there.

    Raises
    ------
    FileError, InputError
        What is wrong with the source, in one line.
    """
    if not (0 < expected_bandwidth < np.inf and 0 < expected_latency < np.inf):
        raise InputError("the expected bandwidth and latency must be positive")
    tables = source if isinstance(source, CallTables) else read_tables(Path(source))
    limits = [limit for limit, _ in tables.breakpoints]
    if not limits or sorted(set(limits)) != limits or limits[0] <= 0:
        raise InputError(f"breakpoints {limits} do not rise from above 0")
    given = tables.detached_threshold if detached_threshold is None else detached_threshold
    threshold = _eager_limit(tables) if given is None else given
    lower = [0, *limits]
    # a segment is eager when it ends by the threshold; the last one has no end
    eager = [limit <= threshold for limit in limits] + [False]
    everywhere = [True] * len(lower)
    send, pair = _pingpong(tables.calls["PingPong"])
    isend = everywhere if isend_when_detached else eager
    receive = _segments("Recv", _trimmed(tables.calls["Recv"], tables.trim), limits, eager)
    delays = [
        (
            (both.intercept_s - own.intercept_s) / 2,
            (both.slope_s_per_byte - own.slope_s_per_byte) / 2,
        )
        for both, own in zip(_segments("PingPong", pair, limits, everywhere), receive, strict=True)
    ]
    return PlatformCalibration(
        send=_segments("Send", _trimmed(send, tables.trim), limits, eager),
        isend=_segments("Isend", _trimmed(tables.calls["Isend"], tables.trim), limits, isend),
        receive=receive,
        bandwidth_factor=tuple(
            SegmentFactor(at, 1.0 / (slope * expected_bandwidth) if slope else np.inf)
            for at, (_, slope) in zip(lower, delays, strict=True)
        ),
        latency_factor=tuple(
            SegmentFactor(at, intercept / expected_latency)
            for at, (intercept, _) in zip(lower, delays, strict=True)
        ),
        wtime_s=float(tables.calls["Wtime"].seconds.mean()) / WTIME_CALLS,
        iprobe_s=trimmed_mean(tables.calls["Iprobe"].seconds, TRIM),
        test_s=trimmed_mean(tables.calls["Test"].seconds, TRIM),
        detached_threshold_nbytes=threshold,
    )


def _pingpong(call: CallRows) -> tuple[CallRows, CallRows]:
    """(sends, sends with their receives) of a ping-pong, whose rows take turns."""
    sent, received = call.operation == "MPI_Send", call.operation == "MPI_Recv"
    if not np.array_equal(call.nbytes[sent], call.nbytes[received]):
        raise InputError("PingPong: its sends and receives are not of the same sizes")
    operation, nbytes, seconds = call.operation[sent], call.nbytes[sent], call.seconds[sent]
    both = CallRows(operation, nbytes, seconds + call.seconds[received])
    return CallRows(operation, nbytes, seconds), both


def _trimmed(call: CallRows, trim: float) -> CallRows:
    kept = within_quantiles(call.seconds, np.arange(len(call.seconds)) // BLOCK_ROWS, trim)
    return CallRows(call.operation[kept], call.nbytes[kept], call.seconds[kept])


def _segments(
    name: str, call: CallRows, limits: Sequence[int], only: Sequence[bool]
) -> tuple[Segment, ...]:
    """The lines of a table; those of the segments that are not in `only` are 0."""
    intercepts, slopes = ordinary_lines(call.nbytes, call.seconds, limits, only, name)
    rows = zip([0, *limits], intercepts.tolist(), slopes.tolist(), strict=True)
    return tuple(Segment(*row) for row in rows)


def within_quantiles(seconds: Floats, block: ArrayLike, trim: float) -> Mask:
    """Which rows [n] lie within [q, 1 - q] of their block, q = `trim`.

    Quantiles are interpolated linearly (R's type 7). A block of one or two rows is left whole.
    """
    blocks = np.asarray(block)
    order = np.lexsort((seconds, blocks))
    _, starts, sizes = np.unique(blocks[order], return_index=True, return_counts=True)
    rising = seconds[order]

    def quantile(q: float) -> Floats:
        at = q * (sizes - 1)
        below = starts + np.floor(at).astype(np.int64)
        above = np.minimum(below + 1, starts + sizes - 1)
        result: Floats = rising[below] + (rising[above] - rising[below]) * (at - np.floor(at))
        return result

    low = np.where(sizes < FEWEST_TO_TRIM, -np.inf, quantile(trim))
    high = np.where(sizes < FEWEST_TO_TRIM, np.inf, quantile(1.0 - trim))
    kept = np.empty(len(seconds), dtype=bool)
    kept[order] = (rising >= np.repeat(low, sizes)) & (rising <= np.repeat(high, sizes))
    return kept


def trimmed_mean(seconds: Floats, trim: float) -> float:
    """Mean without the floor(trim n) smallest and as many largest."""
    cut = int(np.floor(trim * len(seconds)))
    return float(np.sort(seconds)[cut : len(seconds) - cut].mean())


def ordinary_lines(
    nbytes: Floats, seconds: Floats, limits: Sequence[float], only: Sequence[bool], name: str
) -> Lines:
    """Ordinary least squares on each [lower, upper) of the limits; s segments, one more than limits.

    Segments that are not in `only` [s] are 0. Raises InputError for one with fewer than two sizes.
    """
    index = np.searchsorted(limits, nbytes, side="right")
    intercepts, slopes = np.zeros(len(only)), np.zeros(len(only))
    for number in np.flatnonzero(only):
        x, t = nbytes[index == number], seconds[index == number]
        if not len(x) or x.min() == x.max():
            lower, upper = [0, *limits, np.inf][number : number + 2]
            raise InputError(
                f"{name}: fewer than two sizes in the segment [{lower}, {upper}) B; "
                "take its breakpoint away"
            )
        slopes[number] = np.sum((x - x.mean()) * (t - t.mean())) / np.sum((x - x.mean()) ** 2)
        intercepts[number] = t.mean() - slopes[number] * x.mean()
    return intercepts, slopes


def _eager_limit(tables: CallTables) -> int:
    for limit, name in tables.breakpoints:
        if name.lower() == EAGER:
            return limit
    raise InputError("no breakpoint is named Asynchronous: give the detached threshold in bytes")
