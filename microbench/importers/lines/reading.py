"""What all importers need: lines without tags, errors, the precision of printed numbers.

Launchers and loggers put clocks, hosts and ranks before a line. Removed are a clock, a date and a clock,
a rank and a colon, and whatever the log itself has before a line that begins with words of one of the
tools, with any other numbers in it. No row begins with a letter, a bracket or a colon, so none can lose
a number here.
"""

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

from calib.foundation.arrays import Mask
from calib.foundation.errors import FileError
from calib.foundation.files import read_bytes

CLOCK = r"\d{1,2}:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
DATE = r"\d{4}[-/]\d\d[-/]\d\d"
RANK = r"\[?(?:rank|default) ?\d+\]?:|\d+:"  # torchrun; srun --label
KNOWN = rf"(?:\[?(?:{DATE}[T ])?{CLOCK}\]?:?|{RANK})(?=[ \t]|$)"
# how the tools begin a line of theirs, and nothing else that is usual in a log
OWN = (
    "# OSU ",
    "# Size ",
    "# Datatype: ",
    "# Benchmarking ",
    "# #processes",
    "#bytes",
    "#repetitions",
    "# nThread ",
    "# Using devices",
    "#  Rank ",
    "#   Rank ",
    "# Out of bounds",
    "# nccl-tests version",
    "# rccl-tests version",
    "# Collective test ",
)
MOST_SEEN = 64  # lines of each kind that are looked at
MOST_SHAPES = 16
LONGEST = 200
PIECE = re.compile(r"\d+|[ \t]+|.")
TELLING = re.compile(r"[^\W\d_]|[:\[\]<>()|/=@]")
Numbers = NDArray[np.float64]

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
# why a program printed no table, by words of launchers and libraries; only what is in the
# parentheses is quoted
FAILURES = (
    (re.compile(r"NCCL WARN ([ -~]{1,160})"), "NCCL says: {}"),
    (re.compile(r"error occurred in (MPI_\w+)"), "an error in {}"),
    (re.compile(r"(MPI_A(?:BORT|bort)) was (?:invoked|called)"), "{} was called"),
    (re.compile(r"(Segmentation fault|Bus error|[Oo]ut [Oo]f [Mm]emory|oom-kill)"), "{}"),
    (re.compile(r"(command not found|No such file or directory)"), "{}"),
    (re.compile(r"\b(srun|slurmstepd|mpirun|mpiexec|prterun): error"), "an error of {}"),
)


def pattern_of(text: str, head: str, tags: re.Pattern[str]) -> re.Pattern[str] | None:
    """What to remove from the beginning of every line of a text; None for nothing.

    Known shapes are looked for in `head`, its beginning, from which `tags` are already removed.
    """
    found = shapes(text, tags)
    if re.search(rf"^[ \t]*{KNOWN}", head, re.MULTILINE):
        found.append(KNOWN)
    return re.compile(rf"(?:[ \t]*(?:{'|'.join(found)}))+") if found else None


def shapes(text: str, tags: re.Pattern[str]) -> list[str]:
    """Regular expressions of what stands before the tools' own words, the longest first."""
    seen: dict[str, str] = {}
    for words in OWN:
        at = text.find(words)
        for _ in range(MOST_SEEN):
            if at < 0 or len(seen) >= MOST_SHAPES:
                break
            line = text[text.rfind("\n", 0, at) + 1 : at + 1]
            before = tags.sub(" ", line[: line.index("#")]).strip()
            if TELLING.search(before) and len(before) <= LONGEST:
                seen.setdefault(_shape(before), before)
            at = text.find(words, at + len(words))
    return sorted(seen, key=lambda shape: len(seen[shape]), reverse=True)


def _shape(before: str) -> str:
    """An expression of a prefix with other numbers in it, which ends where a word ends."""
    pieces = (
        r"\d+"
        if piece.isdecimal() and piece.isascii()
        else r"[ \t]+"
        if not piece.strip(" \t")
        else re.escape(piece)
        for piece in PIECE.findall(before)
    )
    return "".join(pieces) + (r"(?![\w.])" if before[-1].isalnum() else "")


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
        """The lines, without their ends and without what launchers put before output.

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
            raise NoLogError(f"{path} is not a log: it is not text")
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
    """Whether a file begins like no text; only its beginning is read, for it may be large."""
    try:
        if not path.is_file():
            return False  # nothing may be read of a pipe here
        with path.open("rb") as stream:
            head = stream.read(4096)
    except OSError:
        return False  # whoever reads it reports this
    if head.startswith(GZIP) or _encoding(head) != "utf-8":
        return False
    return 10 * (len(head) - len(head.translate(None, CONTROLS))) > len(head)


def _unpacked(name: str, data: bytes) -> bytes:
    """The content of a .gz, or of several in one file (cat a.gz b.gz)."""
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
    """What was not imported and why, by line; consecutive lines with one reason are one entry.

    Texts hold numbers and words that this program knows. A line of a log is never quoted: it may hold
    an environment.
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
    """Numbers; NaN where a tool prints that there is none. Raises ValueError for another word."""
    try:
        return np.array(list(map(float, tokens)), dtype=np.float64)
    except ValueError:
        values = [np.nan if token in NOT_NUMBERS else float(token) for token in tokens]
        return np.array(values, dtype=np.float64)


def plain(tokens: Iterable[str]) -> bool:
    """Whether all are as tools print numbers: Python also takes 1_0 and digits of other scripts."""
    joined = "".join(tokens)
    return joined.isascii() and "_" not in joined


def within(found: Numbers, low: Numbers, high: Numbers, half: Numbers) -> Mask:
    """Whether `found`, printed with +-half, can be a number of [low, high]."""
    slack = half * (1 + 1e-6) + 1e-9 * np.abs(found)  # the tool's own arithmetic is in doubles
    with np.errstate(all="ignore"):
        return (found >= low - slack) & (found <= high + slack)


def failure_in(log: Log) -> tuple[int, str]:
    """The first line that says why a program failed, and what it says; 0 and "" without one."""
    for number, line in enumerate(log.text[:HEAD].split("\n"), 1):
        for pattern, text in FAILURES:
            if match := pattern.search(line):
                return number, text.format(match[1].strip())
    return 0, ""
