"""Read a Chrome trace a piece at a time: a large one costs time and no memory.

The format is the JSON object that torch.profiler's export_chrome_trace writes (kineto), or its array of
events alone; gzipped or not. A piece is decoded at once by msgspec, which makes nothing of the fields
that nobody reads. Where it ends is guessed, at a brace, comma and brace that may be the end of an
event: if it is not, the piece has an open bracket and is no JSON. What cannot be decoded so is read
value by value, by Python's own reader, which also takes NaN and says what is wrong.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from calib.foundation.errors import FileError

CHUNK = 1 << 20  # characters
LONGEST = 1 << 26  # characters of one event or other value: longer is no trace
GZIP = b"\x1f\x8b"
BLANK = re.compile(r"[ \t\r\n]*")  # all at once: a small gzip may hold gigabytes of it
BETWEEN = re.compile(r"\}[ \t\r\n]*,[ \t\r\n]*(?=\{)")  # two events, or what looks like that
TAIL = 1 << 14  # characters at the end of a piece in which its last event is looked for
# what kineto writes before its events, or of its first ones
KINETO = re.compile(
    rb'"(schemaVersion|deviceProperties|distributedInfo)"\s*:'
    rb'|"cat"\s*:\s*"(cpu_op|kernel|cuda_runtime|user_annotation|gpu_memcpy)"'
)
BEGINNING = 1 << 16  # bytes
ONE_BY_ONE = 256  # values, before a piece is tried again

Other = list[Any] | str | float | bool | None


class Arguments(msgspec.Struct, gc=False):
    """What of an event's args is read; each may be missing, or of any type."""

    external: Any = msgspec.field(default=None, name="External id")
    correlation: Any = None
    sequence: Any = msgspec.field(default=None, name="Sequence number")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")
    collective: Any = msgspec.field(default=None, name="Collective name")
    elements_in: Any = msgspec.field(default=None, name="In msg nelems")
    elements_out: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    group_size: Any = msgspec.field(default=None, name="Group size")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")


class Event(msgspec.Struct, gc=False):
    """One event of a trace."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    ts: Any = None
    dur: Any = 0
    pid: Any = None
    tid: Any = None
    args: Arguments | Other = None


_EVENTS = msgspec.json.Decoder(list[Event | Other])


class _JsonReader:
    """Reads JSON values one after the other from a stream of text."""

    def __init__(self, stream: IO[str], path: Path) -> None:
        self._stream, self._path = stream, path
        self._text, self._at = "", 0
        self._decode = json.JSONDecoder().raw_decode

    def wrong(self, what: str) -> FileError:
        return FileError(f"trace {self._path} {what}")

    def _more(self, least: int = CHUNK) -> bool:
        read = self._stream.read(least)
        self._text, self._at = self._text[self._at :] + read, 0
        return bool(read)

    def peek(self) -> str:
        """The next character after white space, without passing it; "" at the end."""
        while True:
            blank = BLANK.match(self._text, self._at)
            self._at = blank.end() if blank else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, wanted: str) -> None:
        """Pass the character `wanted`. Raises FileError for another."""
        found = self.peek()
        if found == "":
            raise self.wrong("is truncated")
        if found != wanted:
            raise self.wrong(f"is not JSON: {found!r} where {wanted!r} should be")
        self._at += 1

    def passed(self, wanted: str) -> bool:
        """Pass the character `wanted` if it is next."""
        found = self.peek() == wanted
        self._at += found
        return found

    def value(self) -> Any:
        """The next value. Raises FileError."""
        if self.peek() == "":
            raise self.wrong("is truncated")
        while True:
            try:
                value, stop = self._decode(self._text, self._at)
                # a number at the end of the buffer may go on
                if stop < len(self._text) or not self._more():
                    break
                continue
            except RecursionError as error:
                raise self.wrong("is not JSON: too deep") from error
            except ValueError as error:
                if len(self._text) - self._at > LONGEST:
                    raise self.wrong("is not a trace: a value without an end") from error
                if not self._more(max(CHUNK, len(self._text) - self._at)):
                    raise self.wrong(f"is truncated or not JSON ({error})") from error
        self._at = stop
        return value

    def piece(self) -> list[Event | Other]:
        """The next values of an array that are followed by another, many at once; none if that fails."""
        if len(self._text) - self._at < CHUNK // 2:
            self._more()
        low = max(self._at, len(self._text) - TAIL)
        ends = list(BETWEEN.finditer(self._text, low))
        for end in ends[:-3:-1]:
            try:
                found = _EVENTS.decode(f"[{self._text[self._at : end.start() + 1]}]")
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                continue
            self._at = end.end()
            return found
        return []

    def values(self) -> Iterator[Any]:
        """The values of an array, one by one."""
        self.take("[")
        if self.passed("]"):
            return
        while True:
            yield self.value()
            if self.passed("]"):
                return
            self.take(",")

    def pieces(self) -> Iterator[list[Event | Other]]:
        """The events of an array, and other values in it, in their order."""
        self.take("[")
        if self.passed("]"):
            return
        alone = 0  # values to be read one by one
        while True:
            if not alone:
                found = self.piece()
                if found:
                    yield found
                    continue
                alone = ONE_BY_ONE
            alone -= 1
            yield [_event(self.value())]
            if self.passed("]"):
                return
            self.take(",")


def _event(value: Any) -> Event | Other:
    if not isinstance(value, dict):
        return None
    args = value.get("args")
    if isinstance(args, dict):
        texts = {x: json.dumps(args[x]).encode() for x in ("Input Dims", "Input type") if x in args}
        value = value | {"args": args | {key: msgspec.Raw(text) for key, text in texts.items()}}
    else:  # of any type, and a number of any size
        value = value | {"args": None}
    return msgspec.convert(value, Event)


@contextmanager
def opened(path: Path, what: str) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked where it is gzipped. Raises FileError, also while they are read."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP
            raw.seek(0)
            binary: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            yield binary
    except FileNotFoundError as error:
        raise FileError(f"{what} {path} does not exist") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileError(f"{what} {path} is truncated or not gzip ({error})") from error
    except OSError as error:
        raise FileError(f"cannot read the {what} {path}: {error.strerror}") from error


def beginning(path: Path, nbytes: int) -> bytes:
    """The first bytes of a file, unpacked; none of one that cannot be read."""
    try:
        with opened(path, "trace") as stream:
            return stream.read(nbytes)
    except FileError:
        return b""


def is_kineto(path: Path) -> bool:
    """Whether a file that can be read begins as a trace of torch.profiler does."""
    return KINETO.search(beginning(path, BEGINNING)) is not None


def read_trace(path: Path, take: Callable[[list[Event | Other]], None]) -> dict[str, Any]:
    """Pass all events to `take`, some at a time; returns the other values (distributedInfo, ...).

    Raises FileError: missing, not gzip, truncated, not JSON, no trace.
    """

    def give(reader: _JsonReader) -> None:
        for piece in reader.pieces():
            take(piece)

    return _read(path, give, "traceEvents", "trace of torch.profiler")


def read_array(
    path: Path, each: Callable[[dict[str, Any]], None], key: str, what: str
) -> dict[str, Any]:
    """Pass every object of the array at `key` to `each`; returns the other values.

    Raises FileError as `read_trace`; `what` is what the file should be.
    """

    def give(reader: _JsonReader) -> None:
        for value in reader.values():
            if isinstance(value, dict):
                each(value)

    return _read(path, give, key, what)


Give = Callable[[_JsonReader], None]


def _read(path: Path, give: Give, wanted: str, what: str) -> dict[str, Any]:
    """The values of a file's object, with the array at `wanted`, or the whole file, given away."""
    with (
        opened(path, "trace") as binary,
        io.TextIOWrapper(binary, encoding="utf-8", errors="replace") as stream,
    ):
        return _values(_JsonReader(stream, path), give, wanted, what)


def _values(reader: _JsonReader, give: Give, wanted: str, what: str) -> dict[str, Any]:
    about: dict[str, Any] = {}
    found = False
    if reader.peek() == "[":
        give(reader)
        return about
    reader.take("{")
    while not reader.passed("}"):
        if about or found:
            reader.take(",")
        key = reader.value()
        reader.take(":")
        if key == wanted and reader.peek() == "[":
            give(reader)
            found = True
        else:
            about[str(key)] = reader.value()
    if not found:
        raise reader.wrong(f"has no {wanted}: it is no {what}")
    return about
