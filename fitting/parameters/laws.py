"""The key of each law: pairs the laws of two files."""

from __future__ import annotations

from string import Formatter
from typing import NamedTuple

from calib.fitting.parameters.file import Parameters
from calib.foundation.records import Record

LawKey = tuple[str | int, ...]


class _About(NamedTuple):
    """The fields that no two laws of a section share, and how they (or what says them) read."""

    fields: tuple[str, ...]
    words: str


_COLLECTIVE = ("operation", "library", "device", "level")
_AT_WORK = "(ranks at work: {active_ranks})"
_RUN = "({execution}, ranks at work: {active_ranks})"
_ABOUT = {
    "collectives": _About(
        (*_COLLECTIVE, "ranks", "nodes", "ranks_per_node"),
        "{operation} ({library}, {device}, {level}, {placed})",
    ),
    "structural": _About(_COLLECTIVE, "{operation} ({library}, {device}, {level})"),
    "contention": _About(
        (*_COLLECTIVE, "ranks", "stride", "nodes", "baseline"),
        "{operation} ({library}, {device}, {level}, p={ranks}, stride {stride}, {nodes} node(s), "
        "against {baseline})",
    ),
    "peaks": _About(
        ("device", "dtype", "active_ranks"),
        "peaks ({device}, {dtype}, ranks at work: {active_ranks})",
    ),
    "layers": _About(("key", "active_ranks"), f"{{key}} {_AT_WORK}"),
    "work": _About(
        ("kind", "direction", "execution", "active_ranks"), f"{{kind}} {{direction}} {_RUN}"
    ),
    "tensor_loops": _About(
        ("operation", "device", "execution", "active_ranks"),
        "{operation} ({device}, {execution}, ranks at work: {active_ranks})",
    ),
    "composition": _About(
        ("phase", "execution", "active_ranks", "library"), f"{{phase}} {{library}} {_RUN}"
    ),
    "memory": _About(
        ("framework", "device", "family", "execution"),
        "{framework}, {device}, {family}, {execution}",
    ),
    "overlap": _About(("library", "device", "ranks"), "{library}, {device}, p={ranks}"),
    "partitions": _About(("rows", "width", "share", "ranks", "nodes", "library"), "{name}"),
}
SECTIONS = tuple(_ABOUT)  # in the order of the file


def laws_of(parameters: Parameters, section: str) -> list[Record]:
    """The records of a section."""
    found: list[Record] = getattr(parameters, section)
    return found


def key_of(section: str, law: Record) -> LawKey:
    """What the law is of, as values of its fields."""
    return tuple(getattr(law, name) for name in _ABOUT[section].fields)


def label_of(section: str, law: Record) -> str:
    """The same as words; the texts in it are those of the file."""
    words = _ABOUT[section].words
    names = [name for _, name, _, _ in Formatter().parse(words) if name]
    words = words.format(**{name: getattr(law, name) for name in names})
    return words.replace("  ", " ")  # where a law has no library


def count_of(parameters: Parameters) -> dict[str, int]:
    """How many laws each section has, of those that have any."""
    counts = {section: len(laws_of(parameters, section)) for section in SECTIONS}
    return {section: count for section, count in counts.items() if count}
