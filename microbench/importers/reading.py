"""What every importer needs of a log: lines without tags, faults, and how exact a number is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foundation.files import read_bytes

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]

# [1,0]<stdout>: of Open MPI, [job@1,0]<stdout>: of PRRTE, [0] of MPICH and Intel MPI, colours
TAG = re.compile(
    r"\[[\w.@-]*,\d+\](?:<std(?:out|err|diag)>)?:?|\[\d+\]|<std(?:out|err)>:?|\x1b\[[0-9;]*[A-Za-z]"
)
LABEL = re.compile(r"^[ \t]*\d+:[ \t]", re.MULTILINE)  # "0: " of srun --label
HEAD = 1 << 17  # characters of a log that are looked at, or split, at once
HALF_UNITS = 0.5 * 10.0 ** -np.arange(19.0)
NOT_NUMBERS = {"N/A", "n/a", "nan", "-nan", "NaN", "-"}
MOST_FAULTS = 1000  # texts that are kept of one file; the rest is counted
MOST_BYTES = 1 << 53  # sizes up to here are exact in a float64


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
        """The lines, without their ends and without the tags that launchers put before output.

        A tag becomes a space: two numbers that it stood between never grow together.
        """
        labels = LABEL.search(self.text[:HEAD]) is not None
        start = 0
        while start < len(self.text):
            end = self.text.find("\n", start + HEAD)
            end = len(self.text) if end < 0 else end
            for line in self.text[start:end].split("\n"):
                clean = TAG.sub(" ", line) if "[" in line or "<" in line or "\x1b" in line else line
                yield LABEL.sub(" ", clean, count=1) if labels else clean
            start = end + 1

    @classmethod
    def read(cls, path: Path) -> Log:
        """Read a file. Raises FileError where that cannot be."""
        return cls.of(path.name, read_bytes(path, "log"))

    @classmethod
    def of(cls, name: str, data: bytes) -> Log:
        """The same of bytes in memory."""
        wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")  # PowerShell writes UTF-16
        text = data.decode("utf-16" if wide else "utf-8", errors="replace").removeprefix("\ufeff")
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        return cls(name, text, hashlib.sha256(data).hexdigest())


def is_json(text: str) -> bool:
    """Whether a text begins as a JSON object does, or a list of them (jq -s)."""
    return text[:HEAD].lstrip().removeprefix("[").lstrip()[:1] == "{"


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
