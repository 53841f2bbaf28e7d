"""Mutations of files: the one set that all fuzzers take theirs from. All randomness is the caller's."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

TAGS = [
    "[1,0]<stdout>:",
    "[0]",
    "0: ",
    "\r",
    "\n",
    " ",
    "\x00",
    "#",
    "-1",
    "e",
    "_",
    "٣",
    "nan",
    "1e999",
    "{",
    '"',
    ",",
    "NCCL INFO",
]
NUMBERS: list[Any] = [
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63),
    10**18,
    10**30,
    10**400,
    0.5,
    -0.0,
    1e-300,
    5e-324,
    1e18,
    1e30,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
]
VALUES: list[Any] = [
    *NUMBERS,
    None,
    True,
    False,
    "",
    " ",
    "x",
    "1",
    "nan",
    "\ud800",
    "\0",
    "\x1b[2J",
    "=1+1",
    "../..",
    "/dev/null",
    "a" * 70_000,
    [],
    {},
    [[]],
    {"a": 1},
    ["a", 1, None],
]
WORD = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
DEPTHS = (100, 900, 50_000)
ENCODINGS = ("utf-16", "utf-32", "utf-8-sig", "utf-16-le", "cp500")


def text(content: str, dice: Random, least: int = 1, most: int = 6) -> str:
    """A text after some mutations of characters, lines, tags and cuts."""
    for _ in range(dice.randint(least, most)):
        lines = content.split("\n")
        at, line = dice.randint(0, max(0, len(content) - 1)), dice.randint(0, len(lines) - 1)
        other = dice.randint(0, len(lines) - 1)
        kind = dice.choice(["delete", "double", "insert", "cut", "drop", "repeat", "swap"])
        if kind == "delete":
            content = content[:at] + content[at + dice.randint(1, 3) :]
        elif kind == "double":
            content = content[:at] + content[at : at + 2] + content[at:]
        elif kind == "insert":
            content = content[:at] + dice.choice(TAGS) + content[at:]
        elif kind == "cut":
            content = content[:at] if dice.random() < 0.5 else content[at:]
        elif kind == "drop":
            content = "\n".join(lines[:line] + lines[line + 1 :])
        elif kind == "repeat":
            content = "\n".join([*lines[:line], lines[line], *lines[line:]])
        else:
            lines[line], lines[other] = lines[other], lines[line]
            content = "\n".join(lines)
    return content


def numbers(content: str, dice: Random) -> str:
    """A text with one or two of its numbers replaced by ones that cannot be."""
    for _ in range(dice.randint(1, 2)):
        words = list(WORD.finditer(content))
        if words:
            word = dice.choice(words)
            content = content[: word.start()] + str(dice.choice(NUMBERS)) + content[word.end() :]
    return content


def data(content: bytes, dice: Random) -> bytes:
    """Bytes with flipped bits, cut, filled with zeros, doubled, or in another encoding."""
    at, length = dice.randint(0, max(0, len(content) - 1)), dice.choice([1, 4, 64, 4096])
    kind = dice.choice(["flip", "flip", "cut", "zero", "repeat", "insert", "encode", "empty"])
    changed = bytearray(content)
    if kind == "flip":
        for _ in range(dice.choice([1, 1, 4, 32]) if changed else 0):
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    elif kind == "cut":
        del changed[at:]
    elif kind == "zero":
        changed[at : at + length] = bytes(len(changed[at : at + length]))
    elif kind == "repeat":
        changed[at:at] = changed[at : at + length]
    elif kind == "insert":
        changed[at:at] = dice.randbytes(dice.randint(1, 8))
    elif kind == "encode":
        with contextlib.suppress(UnicodeError):
            return content.decode().encode(dice.choice(ENCODINGS))
    else:
        changed.clear()
    return bytes(changed)


def value(content: Any, dice: Random) -> Any:
    """A JSON value with one or two of its parts replaced, left out, or swapped with another."""
    for _ in range(dice.choice([1, 1, 1, 2])):
        places = _places(content)
        if not places:
            return dice.choice(VALUES)
        holder, key = dice.choice(places)
        old, kind = holder[key], dice.random()
        if kind < 0.1:
            del holder[key]
        elif kind < 0.2:
            other, name = dice.choice(places)
            with contextlib.suppress(KeyError, IndexError):
                holder[key] = json.loads(json.dumps(other[name]))
        elif kind < 0.25 and isinstance(holder, dict):
            holder[str(dice.choice(VALUES))[:99]] = holder.pop(key)
        elif kind < 0.3 and isinstance(holder, list):
            holder.insert(key, old)
        elif isinstance(old, int | float) and kind < 0.9:
            orders = [old * 10.0 ** dice.randint(-15, 15), old * dice.randint(2, 9)]
            holder[key] = dice.choice([*NUMBERS, -old, str(old), [old], *orders * 8])
        else:
            holder[key] = dice.choice(VALUES)
    return content


def _places(content: Any) -> list[tuple[Any, Any]]:
    """Every (dict or list, key) inside a JSON value, those of short branches as likely as of long."""
    found: list[tuple[Any, Any]] = []
    todo = [content]
    while todo:
        holder = todo.pop()
        pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
        if isinstance(holder, dict | list):
            for key, item in pairs:
                found.append((holder, key))
                if isinstance(item, dict | list):
                    todo.append(item)
    # of a thousand rows that are alike, few are enough
    return found if len(found) < 400 else found[:200] + found[:: len(found) // 200]


def document(content: str, dice: Random) -> str:
    """JSON with a part that cannot be, a key twice, or nested deeper than anybody looks."""
    try:
        found = json.loads(content)
    except ValueError:
        return text(content, dice)
    kind = dice.random()
    if kind < 0.8:
        with contextlib.suppress(ValueError):
            return json.dumps(value(found, dice), indent=dice.choice([None, 1]))
    if kind < 0.9:
        key = re.search(r'"(\w+)": *[^,{\[\n]+,', content)
        return content.replace(key[0], key[0] + key[0], 1) if key else content
    depth, one = dice.choice(DEPTHS), dice.choice(['{"a":', "["])
    deep = one * depth + "1" + {"[": "]"}.get(one, "}") * depth * dice.randint(0, 1)
    return WORD.sub(lambda _: deep, content, count=1) if dice.random() < 0.7 else deep


def lines_of_json(content: str, dice: Random) -> str:
    """JSON lines, one of them mutated as a document."""
    lines = content.split("\n")
    at = 0 if dice.random() < 0.5 else dice.randrange(len(lines))
    lines[at] = " ".join(document(lines[at], dice).split("\n"))
    return "\n".join(lines)


def toml(content: str, dice: Random) -> str:
    """TOML with another value behind a key, or a nest of brackets."""
    lines = [line for line in content.split("\n") if "=" in line]
    if not lines or dice.random() < 0.3:
        return text(content, dice)
    line = dice.choice(lines)
    key = line.partition("=")[0]
    depth, one = dice.choice(DEPTHS), dice.choice(["[", "{a=", "{a=["])
    new = str(dice.choice([*VALUES, one * depth, "[" * depth + "]" * depth, "1e400", "2026-01-01"]))
    word = new if dice.random() < 0.6 else json.dumps(new)
    return content.replace(line, f"{key}= {word.lower()}", 1)


def gzipped(content: bytes, dice: Random, inside: Callable[[str, Random], str]) -> bytes:
    """A gzip file that is damaged, or whose text is."""
    if dice.random() < 0.3:
        return data(content, dice)
    whole = inside(gzip.decompress(content).decode(), dice)
    return gzip.compress(whole.encode(errors="replace"), mtime=0)  # the same for the same dice


def database(content: bytes, dice: Random) -> bytes:
    """A SQLite file with a column, a table, its schema or its pages damaged."""
    if dice.random() < 0.15:
        return data(content, dice)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "of.db"
        path.write_bytes(content)
        connection = sqlite3.connect(path, isolation_level=None)
        with contextlib.closing(connection), contextlib.suppress(sqlite3.Error):
            connection.execute("PRAGMA foreign_keys = OFF")
            _damage(connection, dice)
        return path.read_bytes()


def _damage(connection: sqlite3.Connection, dice: Random) -> None:
    names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    tables = [name for (name,) in connection.execute(names)]
    table = dice.choice(sorted(tables))
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    column, kind = dice.choice(columns), dice.random()
    if kind < 0.05:
        connection.execute(f"DROP TABLE {table}")
    elif kind < 0.1:
        connection.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO other")
    elif kind < 0.15:
        connection.execute(f"DELETE FROM {table}")
    else:
        plain = [x for x in VALUES if not isinstance(x, list | dict) and x != "\ud800"]
        small = [x for x in plain if not isinstance(x, int) or abs(x) < 2**63]
        new = dice.choice([*small, b"\xff\xfe", "[" * 50_000, "2026-13-45", "-271821-04-20"])
        loose = dice.random() < 0.3
        if loose:  # a column that was NOT NULL, and of a type
            connection.execute("PRAGMA writable_schema = ON")
            change = "UPDATE sqlite_master SET sql = replace(replace(sql, 'NOT NULL', ''), ?, '')"
            connection.execute(change, (dice.choice(["DOUBLE", "INTEGER", "TEXT", "BOOLEAN"]),))
            connection.execute("PRAGMA writable_schema = RESET")
        count = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        where = (
            ""
            if not count or dice.random() < 0.3
            else " WHERE " + " AND ".join(f"{name} IS ?" for name in columns)
        )
        row = connection.execute(
            f"SELECT * FROM {table} LIMIT 1 OFFSET {dice.randrange(max(1, count))}"
        ).fetchone()
        connection.execute(
            f"UPDATE {table} SET {column} = ?{where}", (new, *(row if where else ()))
        )


def parquet(content: bytes, dice: Random) -> bytes:
    """A Parquet file with a column, its name, its type, its metadata or its bytes changed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if dice.random() < 0.3:
        return data(content, dice)
    table = pq.read_table(io.BytesIO(content))
    at, kind = dice.randrange(table.num_columns), dice.random()
    name, metadata = table.schema.names[at], table.schema.metadata or {}
    if kind < 0.1:
        table = table.drop_columns([name])
    elif kind < 0.2:
        key = dice.choice([*metadata, b"x"])
        new = dice.choice([b"", b"\xff", b"1e9", b"99", b"{}", b"[" * 50_000])
        table = table.replace_schema_metadata({**metadata, key: new})
    elif kind < 0.3:
        table = table.rename_columns(
            [*table.schema.names[:at], "xxxx", *table.schema.names[at + 1 :]]
        )
    elif kind < 0.4:
        rows = dice.choice([0, 1])
        table = table.slice(0, rows)
    else:
        values = table.column(at).to_pylist()
        new = dice.choice([*VALUES[:-3], [1e308], [float("nan")], [], [1.0] * 10_000])
        for row in range(len(values)) if dice.random() < 0.3 else [dice.randrange(len(values))]:
            values[row] = new
        with contextlib.suppress(pa.ArrowException, OverflowError, UnicodeError, TypeError):
            kept = table.schema.field(at).type if dice.random() < 0.7 else None
            table = table.set_column(at, name, pa.array(values, type=kept))
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    made = buffer.getvalue()
    if 0.2 <= kind < 0.3:  # a name that is no UTF-8, of equal length
        made = made.replace(b"xxxx", b"\xff\xfe\xfd\xfc")
    return made


def of_text(change: Callable[[str, Random], str]) -> Callable[[bytes, Random], bytes]:
    """A mutation of text as one of the file: of characters and numbers, too, or of its bytes."""

    def changed(content: bytes, dice: Random) -> bytes:
        kind = dice.random()
        if kind < 0.15:
            return data(content, dice)
        how = numbers if kind < 0.35 else text if kind < 0.45 else change
        return how(content.decode(), dice).encode(errors="surrogatepass")

    return changed


def in_place_of(path: Path, dice: Random) -> None:
    """Something else in the place of a file: a directory, a link to itself, nothing."""
    kind = dice.choice(["directory", "loop", "nowhere", "gone"])
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "nowhere":
        path.symlink_to("nowhere")


def copied(source: Path, to: Path) -> None:
    """A directory of seeds, as it is."""
    shutil.copytree(source, to, symlinks=True, dirs_exist_ok=True)
