"""The wire format of protobuf: the fields of a message, read and written.

A field is a varint of its number and wire type, then a varint (0), 8 bytes (1), a length and as many
bytes (2), or 4 bytes (5). Done by hand: the few messages that calib knows need no generated code, which
would tie it to a release of the protobuf package.

References
----------
https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import IO

VARINT, DOUBLE, BYTES = 0, 1, 2  # wire types
FIXED = {1: 8, 5: 4}  # bytes of those that have no length
WORD = (1 << 64) - 1


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, content) of a message: an int of a varint, else bytes. Raises ValueError."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == VARINT:
            content, at = _varint(data, at)
            yield key >> 3, content
            continue
        if kind == BYTES:
            length, at = _varint(data, at)
        elif kind in FIXED:
            length = FIXED[kind]
        else:
            raise ValueError("unknown wire type")
        if at + length > len(data):
            raise ValueError("cut off")
        yield key >> 3, data[at : at + length]
        at += length


def packed(data: bytes) -> Iterator[int]:
    """The varints of a packed repeated field. Raises ValueError."""
    at = 0
    while at < len(data):
        number, at = _varint(data, at)
        yield number


def signed(number: int) -> int:
    """A varint of 64 bits as the int32 or int64 that it stands for."""
    return number - (1 << 64) * (number >> 63)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found & WORD, at
    raise ValueError("a number without an end")


def delimited(stream: IO[bytes], most: int) -> Iterator[bytes]:
    """Each message of a stream in which the length goes before.

    Raises ValueError for a stream that is cut off, and for a message of more than `most` bytes.
    """
    while first := stream.read(1):
        head = first
        while head[-1] >= 0x80 and len(head) < 10 and (more := stream.read(1)):
            head += more
        length, _ = _varint(head, 0)
        if length > most:
            raise ValueError(f"a message of {length} bytes")
        data = stream.read(length)
        if len(data) < length:
            raise ValueError("cut off")
        yield data


def varint(number: int) -> bytes:
    """Base 128, the lowest 7 bits first; a number below 0 as 64 bits."""
    number &= WORD
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def field(number: int, content: int | float | str | bytes | Iterable[int]) -> bytes:
    """A field: an int as a varint, a float as a double, text and bytes with their length.

    Several ints are packed.
    """
    if isinstance(content, int):
        return varint(number << 3 | VARINT) + varint(content)
    if isinstance(content, float):
        return varint(number << 3 | DOUBLE) + struct.pack("<d", content)
    if isinstance(content, str):
        content = content.encode(errors="replace")
    elif not isinstance(content, bytes):
        content = b"".join(map(varint, content))
    return varint(number << 3 | BYTES) + varint(len(content)) + content


def with_length(message: bytes) -> bytes:
    """A message of a stream, its length before it."""
    return varint(len(message)) + message
