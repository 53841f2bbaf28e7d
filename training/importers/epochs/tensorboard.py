"""TensorBoard event files: scalars with their clock times.

A file is a series of TFRecords: 8 bytes of length, its masked CRC-32C, the data, and theirs. The data
are a protobuf message Event: wall_time 1 (double), step 2 (varint), summary 5; a Summary has values 1,
each with tag 1, simple_value 2 (float) and tensor 8. Read by hand, as the tensorboard package brings its
server, protobuf and gRPC along.

References
----------
tensorflow/core/lib/io/record_writer.h; tensorboard/compat/proto/{event,summary,tensor}.proto.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import IO, NamedTuple

from calib.foundation.errors import FileError
from calib.foundation.protobuf import fields, signed
from calib.training.importers.epochs.record import MOST_MARKS, EpochLog, Mark, log_of_marks

FORMAT = "TensorBoard events"
HEAD = struct.Struct("<QI")
CRC = struct.Struct("<I")
LARGEST_EVENT = 1 << 20  # bytes; a larger one is an image or a graph, and passed over
MOST_FILES = 1000
MOST_BYTES = 1 << 40
VALIDATION = re.compile(r"(?<![a-z])(val|valid|validation|eval|evaluation|test|testing)(?![a-z])")
INPUT = re.compile(r"(data|input|load(er|ing)?)[ _/.-]*(time|wait|stall|load(ing)?)s?(?![a-z])")
EPOCH = "epoch"  # of Lightning: its value is the epoch
TENSOR_FLOATS = {5: "<f", 6: "<d"}  # float_val and double_val of a TensorProto
DT_FLOAT, DT_DOUBLE = 1, 2


class Point(NamedTuple):
    """A scalar as it was written."""

    at_s: float
    step: int
    value: float


Series = dict[tuple[str, str], list[Point]]  # (folder, tag) -> in the order written


def crc32c_table() -> list[int]:
    """Of the Castagnoli polynomial, reflected."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


TABLE = crc32c_table()


def masked_crc32c(data: bytes) -> int:
    """The checksum of a TFRecord."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def is_events(head: bytes) -> bool:
    """Whether a file that begins so is a series of TFRecords."""
    if len(head) < HEAD.size:
        return False
    _, crc = HEAD.unpack_from(head)
    return bool(masked_crc32c(head[:8]) == crc)


def read_events(path: Path) -> EpochLog:
    """An event file, or those in a folder and below it: train/ and validation/ are often apart.

    Raises FileError for one that is damaged, or has no scalars of a training.
    """
    files = sorted(path.rglob("*tfevents*"))[: MOST_FILES + 1] if path.is_dir() else [path]
    if not files or len(files) > MOST_FILES:
        raise FileError(f"{path}: {'no' if not files else 'too many'} event files (*tfevents*)")
    series: Series = defaultdict(list)
    begin = min(_read(each, path, series) for each in files)
    return log_of_series(series, begin, path)


def _read(file: Path, root: Path, series: Series) -> float:
    """Add a file's scalars; when it begins."""
    folder = "" if file == root else file.parent.relative_to(root).as_posix().lower()
    begin, count = None, 0
    try:
        with file.open("rb") as stream:
            for data in records(stream, file):
                at, step, scalars = event(data, file)
                begin = at if begin is None else min(begin, at)
                count += len(scalars)
                if count > MOST_MARKS:
                    raise FileError(f"{file}: more than {MOST_MARKS} scalars")
                for tag, value in scalars:
                    series[folder, tag.lower()].append(Point(at, step, value))
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror}") from error
    if begin is None:
        raise FileError(f"{file}: an event file without events")
    return begin


def records(stream: IO[bytes], path: Path) -> Iterator[bytes]:
    """The data of each TFRecord; what was cut off at the end is left out. Raises FileError."""
    while len(head := stream.read(HEAD.size)) == HEAD.size:
        length, crc = HEAD.unpack(head)
        if masked_crc32c(head[:8]) != crc or length > MOST_BYTES:
            raise FileError(f"{path}: damaged: the checksum of a length is wrong")
        if length > LARGEST_EVENT:
            stream.seek(length + CRC.size, 1)
            continue
        data, crc_of_data = stream.read(length), stream.read(CRC.size)
        if len(crc_of_data) < CRC.size:
            return
        if masked_crc32c(data) != CRC.unpack(crc_of_data)[0]:
            raise FileError(f"{path}: damaged: the checksum of an event is wrong")
        yield data


def event(data: bytes, path: Path) -> tuple[float, int, list[tuple[str, float]]]:
    """(wall time, step, scalars) of an Event. Raises FileError."""
    at, step, scalars = 0.0, 0, []
    try:
        for number, value in fields(data):
            if number == 1 and isinstance(value, bytes):
                (at,) = struct.unpack("<d", value)
            elif number == 2 and isinstance(value, int):
                step = signed(value)
            elif number == 5 and isinstance(value, bytes):
                scalars += [
                    scalar
                    for of, each in fields(value)
                    if of == 1 and isinstance(each, bytes) and (scalar := _scalar(each))
                ]
    except (ValueError, struct.error) as error:
        raise FileError(f"{path}: an event is no protobuf message of TensorBoard") from error
    if not 0 <= at < 1e11:
        raise FileError(f"{path}: an event at {at:g} s")
    return at, step, scalars


def _scalar(data: bytes) -> tuple[str, float] | None:
    """(tag, number) of a Summary.Value; None of another."""
    tag, number = "", None
    for of, value in fields(data):
        if not isinstance(value, bytes):
            continue
        if of == 1:
            tag = value.decode(errors="replace")
        elif of == 2:
            (number,) = struct.unpack("<f", value)
        elif of == 8:
            number = _tensor(value)
    return None if number is None else (tag, number)


def _tensor(data: bytes) -> float | None:
    """The one number of a TensorProto of float or double."""
    kind = 0
    for of, value in fields(data):
        if of == 1 and isinstance(value, int):
            kind = value
        elif isinstance(value, bytes):
            of_content = {DT_FLOAT: "<f", DT_DOUBLE: "<d"}.get(kind) if of == 4 else None
            form = of_content or TENSOR_FLOATS.get(of)
            if form and len(value) == struct.calcsize(form):
                return float(struct.unpack(form, value)[0])
    return None


def log_of_series(series: Series, begin_s: float, path: Path) -> EpochLog:
    """An epoch ends with its validation; without any, where the scalar `epoch` grows.

    Tags with `epoch` in their name have one scalar an epoch. Raises FileError without a training.
    """
    validated: list[Point] = []
    by_epoch: list[Point] = []
    by_step: list[Point] = []
    inputs: list[Point] = []
    epochs: dict[int, int] = {}  # step -> epoch
    for (folder, tag), points in series.items():
        if VALIDATION.search(tag) or VALIDATION.search(folder):
            validated += points
        elif tag == EPOCH:
            known = [point for point in points if 0 <= point.value < MOST_MARKS]
            epochs |= {point.step: int(point.value) for point in known}
        elif INPUT.search(tag):
            inputs = max(inputs, points, key=len)
        elif EPOCH in tag:
            by_epoch = max(by_epoch, points, key=len)
        else:
            by_step = max(by_step, points, key=len)
    marks = _marks(by_step, validated, epochs)
    if marks and not _one_an_epoch(marks):
        return log_of_marks(FORMAT, marks, begin_s, [point.value for point in inputs])
    ends = sorted(point.at_s for point in by_epoch or by_step)
    if not ends:
        raise FileError(f"{path}: its events have no scalar of a training")
    first, *others = (b - a for a, b in pairwise([begin_s, *ends]))
    startup = max(0.0, first - median(others)) if len(others) > 1 else None
    return EpochLog(FORMAT, startup_s=startup, epochs_s=tuple(others or [first]))


def _marks(
    points: Sequence[Point], validated: Sequence[Point], epochs: dict[int, int]
) -> list[Mark]:
    trained = sorted(points)
    times = [point.at_s for point in trained]
    ends = {bisect_right(times, point.at_s): point for point in sorted(validated)}
    ends.pop(0, None)  # before training began
    cuts = sorted(ends)
    marks = []
    for index, point in enumerate(trained):
        epoch = bisect_right(cuts, index) if cuts else epochs.get(point.step, 0)
        marks.append(Mark(point.at_s, epoch, point.step))
        if (end := ends.get(index + 1)) is not None:
            marks.append(Mark(end.at_s, epoch, end.step, validation=True))
    return marks


def _one_an_epoch(marks: Sequence[Mark]) -> bool:
    """Whether training is logged once in every epoch, with its validation."""
    return len(marks) == 2 * len({mark.epoch for mark in marks}) and len(marks) > 2
