"""Event files of TensorBoard, written by hand: the encoder that the reader is checked with."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from calib.training.importers.epochs.tensorboard import masked_crc32c


def varint(value: int) -> bytes:
    """Base 128, the lowest 7 bits first."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def field(number: int, content: int | float | bytes) -> bytes:
    """A field of protobuf: an int as a varint, a float as a double, bytes with their length."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    if isinstance(content, float):
        return varint(number << 3 | 1) + struct.pack("<d", content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def simple(tag: str, value: float) -> bytes:
    """A Summary.Value with simple_value, as PyTorch writes it."""
    return field(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)


def tensor(tag: str, value: float, packed: bool = True) -> bytes:
    """One with a tensor of one float, as TensorFlow 2 writes it."""
    number = struct.pack("<f", value)
    content = field(1, 1) + field(2, b"") + field(4 if packed else 5, number)
    return field(1, tag.encode()) + field(8, content) + field(9, field(1, b"scalars"))


def event(at: float, step: int, *values: bytes) -> bytes:
    """An Event with a Summary of these values."""
    return field(1, at) + field(2, step) + field(5, b"".join(field(1, value) for value in values))


def record(data: bytes) -> bytes:
    """A TFRecord."""
    length = struct.pack("<Q", len(data))
    checks = (struct.pack("<I", masked_crc32c(each)) for each in (length, data))
    return length + next(checks) + data + next(checks)


def write_events(path: Path, begin: float, events: Iterable[bytes]) -> Path:
    """A file that begins with its version, as TensorBoard's writers do."""
    first = field(1, begin) + field(3, b"brain.Event:2")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(record, (first, *events))))
    return path
