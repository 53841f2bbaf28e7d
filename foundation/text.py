"""Text of others (names, paths, messages) as it may be shown."""

from __future__ import annotations


def plain(text: str) -> str:
    """`text` on one line without control characters, so that a name cannot drive a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def plain_lines(text: str) -> str:
    """The same, but for its line breaks."""
    return "\n".join(map(plain, text.split("\n")))
