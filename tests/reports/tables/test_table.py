"""calib.reports.tables.table: how wide a table is, what wraps, and which columns go."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from calib.reports.tables.table import Table, in_columns, table_text, width_of

COLUMNS = ["what", "time", "share of it", "advice"]
ADVICE = "one rank per core, pinned to it, and nothing else there"
ROWS = [
    ["allreduce", "12.35 [12.14, 12.51]", "12%", ADVICE],
    ["p2p", "4.00 [3.90, 4.10]", "1%", "-"],
]


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def shown(width: int, least: list[list[str]] | None = None) -> list[str]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", str(width))
        return table_text(Table("A title", COLUMNS, ROWS, least=least), io.StringIO()).splitlines()


def test_a_pipe_heeds_columns_and_is_100_wide_without(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, width in (("57", 57), ("", 100), ("wide", 100), ("0", 100), ("-3", 100), ("²", 100)):
        monkeypatch.setenv("COLUMNS", value)
        assert width_of(io.StringIO()) == width
    monkeypatch.delenv("COLUMNS")
    assert width_of(io.StringIO()) == 100
    monkeypatch.setenv("COLUMNS", "9" * 30)
    assert width_of(io.StringIO()) == 10_000
    monkeypatch.setenv("COLUMNS", "61")
    assert width_of(Terminal()) == 61


def test_where_there_is_room_nothing_wraps_and_nothing_goes() -> None:
    assert shown(200) == [
        "A title",
        "  what       time                  share of it  advice",
        "  " + "─" * 101,
        f"  allreduce  12.35 [12.14, 12.51]  12%          {ADVICE}",
        "  p2p        4.00 [3.90, 4.10]     1%           -",
    ]


def test_words_wrap_before_anything_goes() -> None:
    """The head and the advice; never the interval."""
    assert shown(66) == [
        "A title",
        "                                   share of",
        "  what       time                  it         advice",
        "  " + "─" * 64,
        "  allreduce  12.35 [12.14, 12.51]  12%        one rank per core,",
        "                                              pinned to it, and",
        "                                              nothing else there",
        "  p2p        4.00 [3.90, 4.10]     1%         -",
    ]


def test_then_columns_go_from_the_right() -> None:
    assert shown(50) == [
        "A title",
        "  what       time                  share of it",
        "  " + "─" * 44,
        "  allreduce  12.35 [12.14, 12.51]  12%",
        "  p2p        4.00 [3.90, 4.10]     1%",
        "  (50 columns leave out: advice; COLUMNS=103 or",
        "  JSON has them)",
    ]


def test_or_those_that_matter_least() -> None:
    text = " ".join(" ".join(shown(50, [["time"], ["advice"]])).split())
    assert "(50 columns leave out: time; COLUMNS=103" in text and "pinned" in text
    together = " ".join(" ".join(shown(50, [["time", "advice"]])).split())
    assert "(50 columns leave out: time, advice; COLUMNS" in together


def test_what_cannot_fit_is_wider_in_a_pipe_and_folds_in_a_terminal() -> None:
    lines = shown(10, [])
    assert any("12.35 [12.14, 12.51]" in line for line in lines)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", "40")
        text = table_text(Table("A title", COLUMNS, ROWS, least=[]), Terminal())
    bare = re.sub("\x1b\\[[0-9;]*m", "", text)
    assert max(map(len, bare.splitlines())) <= 40 and "…" not in bare


texts = st.text(st.sampled_from("ab1.% 語é-"), max_size=40)


@given(
    rows=st.lists(st.lists(texts, min_size=5, max_size=5), max_size=4), width=st.integers(1, 160)
)
@settings(max_examples=60, deadline=None)
def test_every_column_is_shown_or_named(rows: list[list[str]], width: int) -> None:
    """Whatever is in it; and no wider than asked for, but for two columns that stay."""
    columns = ["of", "in", "first one", "second", "third"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", str(width))
        text = table_text(Table("T", columns, rows), io.StringIO())
    head = text.partition("─")[0]
    out = " ".join(text.split()).partition("leave out: ")[2].partition(";")[0].split(", ")
    for name in columns:
        assert (name.split()[0] in head) != (name in out)
    if len(out) < 3:
        table = text.partition(" columns leave out")[0].splitlines()[1:]
        assert max(map(cell_len, table)) <= max(width, 40)


def test_numbers_stand_to_the_right() -> None:
    columns, rows = in_columns([{"of": "a", "p": "8"}, {"of": "b", "p": "16", "note": "new"}])
    assert rows == [["a", "8", ""], ["b", "16", "new"]]
    lines = table_text(Table("T", columns, rows, numbers=["p"]), io.StringIO()).splitlines()
    assert lines[1:2] + lines[3:] == ["  of   p  note", "  a    8", "  b   16  new"]


def test_columns_that_do_not_fit_stand_in_a_second_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the first ones again; words wrap as far as they can before that."""
    monkeypatch.setenv("COLUMNS", "46")
    of = Table("A title", COLUMNS, ROWS, split=1)
    lines = table_text(of, io.StringIO()).splitlines()
    assert [line.split() for line in lines if line.startswith("  what")] == [
        ["what", "time", "share", "of", "it"],
        ["what", "advice"],
    ]
    assert sum("allreduce" in line for line in lines) == 2 and max(map(len, lines)) <= 46
    monkeypatch.setenv("COLUMNS", "56")
    assert table_text(of, io.StringIO()).count("what") == 1


def test_a_name_drives_no_terminal() -> None:
    text = table_text(Table("\x1b[31m", ["\x1b[2J", "b"], [["a\x07", "\u202eb"]]), io.StringIO())
    assert all(c.isprintable() or c == "\n" for c in text)
