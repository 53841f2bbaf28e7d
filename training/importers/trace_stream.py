"""Read a trace event by event: a large one costs time and no memory.

The format is the JSON object that torch.profiler's export_chrome_trace writes (kineto), or its array of
events alone; or another object with one long array, as an execution trace. Gzipped or not.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from calib.foundation.errors import FileError

CHUNK = 1 << 20  # characters
LONGEST = 1 << 26  # characters of one event or other value: longer is no trace
GZIP = b"\x1f\x8b"
BLANK = re.compile(r"[ \t\r\n]*")  # all at once: a small gzip may hold gigabytes of it


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

    def items(self) -> Iterator[Any]:
        """The values of an array."""
        self.take("[")
        if self.passed("]"):
            return
        while True:
            yield self.value()
            if self.passed("]"):
                return
            self.take(",")


def read_trace(
    path: Path,
    each: Callable[[dict[str, Any]], None],
    key: str = "traceEvents",
    what: str = "trace of torch.profiler",
) -> dict[str, Any]:
    """Pass every event, of the array at `key`, to `each`; returns the other values.

    Raises FileError: missing, not gzip, truncated, not JSON, no trace (`what` it should be).
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP
            raw.seek(0)
            binary: Any = gzip.GzipFile(fileobj=raw) if packed else raw
            with io.TextIOWrapper(binary, encoding="utf-8", errors="replace") as stream:
                return _read(_JsonReader(stream, path), each, key, what)
    except FileNotFoundError as error:
        raise FileError(f"trace {path} does not exist") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileError(f"trace {path} is truncated or not gzip ({error})") from error
    except OSError as error:
        raise FileError(f"cannot read the trace {path}: {error.strerror}") from error


def _read(
    reader: _JsonReader, each: Callable[[dict[str, Any]], None], wanted: str, what: str
) -> dict[str, Any]:
    about: dict[str, Any] = {}
    found = False
    if reader.peek() == "[":
        _give(reader, each)
        return about
    reader.take("{")
    while not reader.passed("}"):
        if about or found:
            reader.take(",")
        key = reader.value()
        reader.take(":")
        if key == wanted and reader.peek() == "[":
            _give(reader, each)
            found = True
        else:
            about[str(key)] = reader.value()
    if not found:
        raise reader.wrong(f"has no {wanted}: it is no {what}")
    return about


def _give(reader: _JsonReader, each: Callable[[dict[str, Any]], None]) -> None:
    for event in reader.items():
        if isinstance(event, dict):
            each(event)
