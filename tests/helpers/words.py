"""Command lines and names as they are typed, where a list of them would be a line for each."""

from __future__ import annotations


def words_of(text: str) -> list[str]:
    """The words of a text."""
    return text.split()
