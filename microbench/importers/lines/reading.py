"""What every importer needs of a log: lines without tags, faults, and how exact a number is."""

from __future__ import annotations

import csv
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calib.foundation.errors import FileError
from calib.foundation.files import read_bytes
from calib.microbench.importers.lines.prefixes import pattern_of

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]

# [1,0]<stdout>: of Open MPI, with a clock if asked for, [job@1,0]<stdout>: of PRRTE, [0] of MPICH and
# Intel MPI, colours
TAG = re.compile(
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?"
    r"(?:\[[ \t]*[\w.@-]*[ \t]*,[ \t]*\d+\](?:<std(?:out|err|diag)>)?:?|\[[ \t]*\d+\]"
    r"|<std(?:out|err)>:?)"
    r"|\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[()][A-Z0-9])"
)
HEAD = 1 << 17  # characters of a log that are looked at, or split, at once
HALF_UNITS = 0.5 * 10.0 ** -np.arange(19.0)
NOT_NUMBERS = {"N/A", "n/a", "nan", "-nan", "NaN", "-"}
MOST_FAULTS = 1000  # texts that are kept of one file; the rest is counted
MOST_BYTES = 1 << 53  # sizes up to here are exact in a float64
GZIP = b"\x1f\x8b"
CONTROLS = bytes({*range(9), *range(14, 27), *range(28, 32)})
MOST_TEXT = 1 << 31  # bytes that a .gz may hold


class NoLogError(FileError):
    """A file that none of the importers knows."""


@dataclass(frozen=True)
class Log:
    """A file as text."""

    name: str
    text: str
    sha256: str

    @property
    def cut_line(self) -> int:
        """The line that the file ends inside, so that its last number may be cut short; 0: none."""
        return self.text.count("\n") + 1 if self.text and not self.text.endswith("\n") else 0

    def lines(self) -> Iterator[str]:
        """The lines, without their ends and without what launchers put before output (prefixes.py).

        A tag becomes a space: two numbers that it stood between never grow together.
        """
        prefix = pattern_of(self.text, TAG.sub(" ", self.text[:HEAD]), TAG)
        start = 0
        while start < len(self.text):
            end = self.text.find("\n", start + HEAD)
            end = len(self.text) if end < 0 else end
            for line in self.text[start:end].split("\n"):
                clean = TAG.sub(" ", line) if "[" in line or "<" in line or "\x1b" in line else line
                begun = prefix.match(clean) if prefix is not None else None
                yield clean if begun is None else clean[begun.end() :]
            start = end + 1

    @classmethod
    def read(cls, path: Path) -> Log:
        """Read a file. Raises FileError where that cannot be, NoLogError for one that is no text."""
        if _is_binary(path):
            raise NoLogError(f"{path} is no log: it is no text")
        return cls.of(path.name, read_bytes(path, "log"))

    @classmethod
    def of(cls, name: str, data: bytes) -> Log:
        """The same of bytes in memory; of a .gz the text and the hash are those of what is in it.

        Raises FileError where that is broken or too large.
        """
        data = _unpacked(name, data) if data.startswith(GZIP) else data
        text = data.decode(_encoding(data), errors="replace").removeprefix("\ufeff")
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        return cls(name, text, hashlib.sha256(data).hexdigest())


def _is_binary(path: Path) -> bool:
    """Whether a file begins with what no text has; it may be too large to be looked at as a whole."""
    try:
        if not path.is_file():
            return False  # nothing may be read of a pipe here
        with path.open("rb") as stream:
            head = stream.read(4096)
    except OSError:
        return False  # to be said by who reads it
    if head.startswith(GZIP) or _encoding(head) != "utf-8":
        return False
    return 10 * (len(head) - len(head.translate(None, CONTROLS))) > len(head)


def _unpacked(name: str, data: bytes) -> bytes:
    """What is in a .gz, which may be several one after the other (cat a.gz b.gz)."""
    parts, size = [], 0
    while data.startswith(GZIP):
        unpacker = zlib.decompressobj(wbits=31)
        try:
            parts.append(unpacker.decompress(data, MOST_TEXT - size + 1))
        except zlib.error as error:
            raise FileError(f"{name} is a broken .gz: {error}") from error
        size += len(parts[-1])
        if size > MOST_TEXT:
            raise FileError(f"{name} holds more than {MOST_TEXT >> 30} GiB: unpack and divide it")
        if not unpacker.eof:
            raise FileError(f"{name} is a broken .gz: it ends too early")
        data = unpacker.unused_data.lstrip(b"\0")
    return b"".join(parts)


def _encoding(data: bytes) -> str:
    """UTF-8, or the UTF-16 that PowerShell writes, with its mark or without."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    head = data[:200]
    even, odd = head[::2], head[1::2]
    if len(head) >= 4 and not len(data) % 2 and (not any(even) or not any(odd)) and any(head):
        return "utf-16-le" if any(even) else "utf-16-be"
    return "utf-8"


def is_json(text: str) -> bool:
    """Whether a text begins as a JSON object does, or a list of them (jq -s)."""
    return text[:HEAD].lstrip().removeprefix("[").lstrip()[:1] == "{"


def cells_of(line: str, delimiter: str = ",") -> list[str]:
    """The cells of a line of CSV, or of words if `delimiter` is a space; none where it cannot be one."""
    if delimiter == " ":
        return re.sub(r"\s+(?=[(\[])", "", line).split()
    try:
        row = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        return []
    return [cell.strip() for cell in row]


@dataclass
class Faults:
    """What of a file is not imported and why, with line numbers; neighbours of one text are one.

    The texts are made of numbers and of words that this program knows: a line of a log is never
    quoted, because an environment may stand in it.
    """

    entries: list[tuple[int, int, int, str]] = field(default_factory=list)  # first, last, lines
    dropped: int = 0

    def add(self, line: int, text: str) -> None:
        """Line `line` (from 1) is at fault."""
        if self.entries:
            first, last, count, before = self.entries[-1]
            if before == text and last < line <= last + 2:
                self.entries[-1] = (first, line, count + 1, text)
                return
        if len(self.entries) < MOST_FAULTS:
            self.entries.append((line, line, 1, text))
        else:
            self.dropped += 1

    def listed(self) -> list[tuple[int, str]]:
        """(line, text) by line, the count of the rest last."""
        found = [
            (first, text if count == 1 else f"{text} ({count} lines, to line {last})")
            for first, last, count, text in sorted(self.entries, key=lambda entry: entry[0])
        ]
        if self.dropped:
            found.append((0, f"and {self.dropped} more faults"))
        return found


def half_units(tokens: Sequence[str]) -> tuple[Numbers, Mask]:
    """Half a unit of the last digit that each number was printed with, and which have an exponent.

    17.98 -> 0.005, 12 -> 0.5, 1.6e+07 -> 500000. The tokens are ASCII.
    """
    text = np.frombuffer(("\n".join(tokens) + "\n").encode(), dtype=np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    points = np.flatnonzero(text == ord("."))
    owner = np.searchsorted(ends, points)
    places = np.zeros(len(ends), dtype=np.int64)
    places[owner] = ends[owner] - points - 1
    units = HALF_UNITS[np.minimum(places, len(HALF_UNITS) - 1)]
    exponent = np.zeros(len(ends), dtype=bool)
    exponent[np.searchsorted(ends, np.flatnonzero(text == ord("e")))] = True
    exponent[np.searchsorted(ends, np.flatnonzero(text == ord("E")))] = True
    for index in np.flatnonzero(exponent).tolist():
        units[index] = _half_unit(tokens[index])
    return units, exponent


def _half_unit(token: str) -> float:
    digits, _, exponent = token.lower().partition("e")
    places = len(digits) - 1 - digits.find(".") if "." in digits else 0
    power = int(exponent) if exponent.lstrip("+-").isdecimal() else 0
    return float(0.5 * 10.0 ** max(-300, min(300, power - places)))


def floats(tokens: Sequence[str]) -> Numbers:
    """Numbers; NaN where a tool says that there is none. Raises ValueError for another word."""
    try:
        return np.array(list(map(float, tokens)), dtype=np.float64)
    except ValueError:
        values = [np.nan if token in NOT_NUMBERS else float(token) for token in tokens]
        return np.array(values, dtype=np.float64)


def plain(tokens: Iterable[str]) -> bool:
    """Whether they are as tools print them: Python also takes 1_0 and digits of other scripts."""
    joined = "".join(tokens)
    return joined.isascii() and "_" not in joined


def within(found: Numbers, low: Numbers, high: Numbers, half: Numbers) -> Mask:
    """Whether `found`, printed with +-half, can be a number of [low, high]."""
    slack = half * (1 + 1e-6) + 1e-9 * np.abs(found)  # the tool's own arithmetic is in doubles
    with np.errstate(all="ignore"):
        return (found >= low - slack) & (found <= high + slack)
