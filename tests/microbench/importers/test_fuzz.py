"""Mutated logs: never an exception of another kind, never a number that is not in the file.

The published logs where they are, and made ones everywhere. A row's time must be a number of the
mutated file in microseconds, or one of its sizes over one of its bandwidths; its bytes a number of the
file, times the ranks.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foundation.errors import CalibError
from microbench.importers import read_log
from microbench.importers.reading import Log
from microbench.importers.said import Flags
from microbench.importers.table import Imported
from tests.helpers.published import DATA
from tests.microbench.importers.logs import table
from tests.microbench.importers.test_imb import SUITE, block
from tests.microbench.importers.test_nccl_tests_json import document
from tests.microbench.importers.test_osu import log as osu_log

MADE = {
    "nccl": table() + table().replace("all_reduce", "reduce"),
    "json": json.dumps(document(), indent=1),
    "osu": osu_log("MPI Allgather Latency Test") + osu_log("MPI-CUDA Latency Test"),
    "imb": SUITE + block("Alltoall") + block("Sendrecv"),
}
# without ../shared/data only the made logs are mutated
PUBLISHED = sorted(
    path for kind in ("nccl-tests", "osu", "imb") for path in (DATA / kind).glob("*")
)
NUMBER = re.compile(r"[0-9.eE+]+")
TAGS = ["[1,0]<stdout>:", "[0]", "0: ", "\r", "\n", " ", "\x00", "#", "-1", "e", "_", "٣", "nan",
        "1e999", "{", '"', ",", "NCCL INFO"]  # fmt: skip
RANKS = 4


@lru_cache
def text_of(name: str) -> str:
    if name in MADE:
        return MADE[name]
    return next(path for path in PUBLISHED if path.name == name).read_text()


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A log after one to six mutations of characters, lines, tags and cuts."""
    names = [*MADE] + [path.name for path in PUBLISHED if path.stat().st_size < 8000]
    text = text_of(draw(st.sampled_from(names)))
    for _ in range(draw(st.integers(1, 6))):
        lines = text.split("\n")
        at, line = draw(st.integers(0, max(0, len(text) - 1))), draw(st.integers(0, len(lines) - 1))
        other = draw(st.integers(0, len(lines) - 1))
        kind = draw(
            st.sampled_from(["delete", "double", "insert", "cut", "drop", "repeat", "swap"])
        )
        if kind == "delete":
            text = text[:at] + text[at + draw(st.integers(1, 3)) :]
        elif kind == "double":
            text = text[:at] + text[at : at + 2] + text[at:]
        elif kind == "insert":
            text = text[:at] + draw(st.sampled_from(TAGS) | st.text(max_size=3)) + text[at:]
        elif kind == "cut":
            text = text[:at] if draw(st.booleans()) else text[at:]
        elif kind == "drop":
            text = "\n".join(lines[:line] + lines[line + 1 :])
        elif kind == "repeat":
            text = "\n".join([*lines[:line], lines[line], *lines[line:]])
        else:
            lines[line], lines[other] = lines[other], lines[line]
            text = "\n".join(lines)
    return text


def numbers_of(text: str) -> np.ndarray:
    """All numbers of a text as Python reads its words."""
    found = set()
    for word in NUMBER.findall(text):
        for piece in (word, word.rstrip("+.eE"), word.lstrip("+eE")):
            try:
                found.add(float(piece))
            except ValueError:
                continue
    values = np.array(sorted(found), dtype=np.float64)
    return values[np.isfinite(values)]


def check(text: str, found: Imported) -> None:
    """Every number of every row is in the text."""
    numbers = numbers_of(text)
    with np.errstate(divide="ignore", invalid="ignore"):
        for rows in found.blocks:
            whole = np.isin(rows.nbytes, numbers) | np.isin(rows.nbytes / rows.ranks, numbers)
            assert whole.all()
            micros = rows.seconds * 1e6
            near = numbers[
                np.minimum(np.searchsorted(numbers, micros * (1 - 1e-12)), len(numbers) - 1)
            ]
            plain = np.abs(near - micros) <= 1e-9 * micros
            for index in np.flatnonzero(~plain):
                sizes = (
                    np.array([rows.nbytes[index], 2 * rows.nbytes[index], 2.0, 1.0]) * rows.groups
                )
                rates = (sizes[:, None] / rows.seconds[index]) / np.array([1.0, 1e6, 1e9])
                close = np.abs(numbers[:, None, None] - rates) <= 1e-9 * rates
                assert close.any()


def read(text: str) -> Imported | None:
    try:
        return read_log(Log.of("log.txt", text.encode(errors="replace")), Flags(ranks=RANKS))
    except CalibError:
        return None


@settings(max_examples=400,
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])  # fmt: skip
@given(mutated())
def test_mutated_logs(text: str) -> None:
    found = read(text)
    if found is not None:
        check(text, found)


@pytest.mark.parametrize("name", sorted(MADE))
def test_every_deleted_digit_is_found_or_was_not_needed(name: str) -> None:
    """One character less, in every place of the last third: rows that stay have their old numbers.

    A number of OSU or IMB that loses a digit before the point cannot be known to have been longer,
    where nothing stands beside it: those may stay.
    """
    text = text_of(name)
    whole = read(text)
    assert whole is not None
    known = {
        (int(n), float(t)) for b in whole.blocks for n, t in zip(b.nbytes, b.seconds, strict=True)
    }
    for at in range(2 * len(text) // 3, len(text), 3):
        found = read(text[:at] + text[at + 1 :])
        if found is None:
            continue
        check(text[:at] + text[at + 1 :], found)
        if name in ("nccl", "json"):
            for rows in found.blocks:
                for nbytes, seconds in zip(rows.nbytes, rows.seconds, strict=True):
                    # out of a time of 4 digits, the last may go
                    assert any(n == nbytes and abs(t / seconds - 1) < 0.01 for n, t in known)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x00" * 100, b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9, b"{", b"[]", b"{}",
        b'{"version":', b"# OSU MPI", b"\xff\xfe1",
    ],
)  # fmt: skip
def test_what_is_no_log_is_one_line(content: bytes) -> None:
    try:
        assert read_log(Log.of("x", content), Flags()).rows == 0
    except CalibError as error:
        assert "\n" not in str(error)
