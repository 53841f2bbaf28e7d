"""What stands before the lines of a log: clocks, hosts and ranks that launchers and loggers put there.

Known shapes (a clock, a date and a clock, a rank and a colon), and those that a log shows itself:
whatever stands before a line that one of the tools begins with its own words, its numbers taken as any
numbers. No row begins with a letter, a bracket or a colon, so that none can lose a number here.
"""

from __future__ import annotations

import re

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


def pattern_of(text: str, head: str, tags: re.Pattern[str]) -> re.Pattern[str] | None:
    """What is to be taken off the beginning of every line of a text; None where there is nothing.

    `head` is its beginning, where known shapes are looked for; `tags` are taken out before.
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
