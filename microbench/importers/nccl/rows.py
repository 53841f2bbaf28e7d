"""Rows of nccl-tests from any format: checked for consistency, made into blocks.

A row has a size, a count, a type, and out of place and in place each a time, an algorithm and a bus
bandwidth and the number of wrong results. So every time and every bandwidth can be checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calib.foundation.arrays import Integers, Mask
from calib.microbench.importers.lines.batches import Batches
from calib.microbench.importers.lines.reading import Faults, Numbers, floats, half_units, plain
from calib.microbench.importers.nccl.operations import DTYPES

# size count type redop root, then time algbw busbw wrong out of place and in place
WIDTH = 13
NUMERIC = (0, 1, 5, 6, 7, 9, 10, 11)
OUT_OF_PLACE, IN_PLACE = 5, 9


@dataclass
class Half:
    """The columns of one half of a table, in seconds and bytes per second, with half units."""

    seconds: Numbers
    half_seconds: Numbers
    algbw: Numbers
    half_algbw: Numbers
    busbw: Numbers
    half_busbw: Numbers
    short: Mask  # the time was printed with an exponent: 2 digits
    wrong: Mask
    unchecked: Mask


class RunRows(Batches):
    """The rows of alike runs as they are read.

    `old_errors`: the column is the largest error, not the number of wrong items.
    """

    def __init__(self, faults: Faults, old_errors: bool = False) -> None:
        super().__init__(WIDTH, faults)
        self.old_errors = old_errors
        self.codes: dict[tuple[str, str, str], int] = {}

    def numbers(self, flat: list[str], lines: list[int]) -> dict[str, Any]:
        """The columns by name, in seconds and bytes per second."""
        columns = [flat[index::WIDTH] for index in range(WIDTH)]
        if not plain(flat) and not all(plain(columns[index]) for index in NUMERIC):
            raise ValueError
        return {
            "size": np.array(list(map(int, columns[0])), dtype=np.int64),
            "count": np.array(list(map(int, columns[1])), dtype=np.int64),
            "code": self._codes(columns[2], columns[3], columns[4]),
            **self._half("out", columns[OUT_OF_PLACE : OUT_OF_PLACE + 4]),
            **self._half("in", columns[IN_PLACE : IN_PLACE + 4]),
        }

    def _codes(self, *words: list[str]) -> Integers:
        """A number for each type, redop and root."""
        if all(column.count(column[0]) == len(column) for column in words):
            key = (words[0][0], words[1][0], words[2][0])
            code = self.codes.setdefault(key, len(self.codes))
            return np.full(len(words[0]), code, dtype=np.int64)
        keys = list(zip(*words, strict=True))
        codes = [self.codes.setdefault((a, b, c), len(self.codes)) for a, b, c in keys]
        return np.array(codes, dtype=np.int64)

    def _half(self, name: str, columns: list[list[str]]) -> dict[str, Any]:
        time, algbw, busbw, wrong = columns
        words = set(wrong)
        bad = {word for word in words if self._is_wrong(word)}
        unchecked = {word for word in words if word in ("N/A", "")}
        half_time, short = half_units(time)
        micros = floats(time)
        for index in np.flatnonzero(np.isnan(micros)).tolist():
            if "nan" in time[index].lower():  # measured, and none: not as N/A, not measured
                micros[index] = np.inf
        return {
            f"{name}_seconds": micros * 1e-6,
            f"{name}_half_seconds": half_time * 1e-6,
            f"{name}_algbw": floats(algbw) * 1e9,
            f"{name}_half_algbw": half_units(algbw)[0] * 1e9,
            f"{name}_busbw": floats(busbw) * 1e9,
            f"{name}_half_busbw": half_units(busbw)[0] * 1e9,
            f"{name}_short": short,
            f"{name}_wrong": _isin(wrong, bad, words),
            f"{name}_unchecked": _isin(wrong, unchecked, words),
        }

    def _is_wrong(self, word: str) -> bool:
        if word in ("N/A", ""):
            return False
        value = float(word)
        if self.old_errors:
            return not np.isfinite(value)
        return value != 0  # NaN too


def _isin(words: list[str], chosen: set[str], all_words: set[str]) -> Mask:
    """Which words are of the chosen ones."""
    if not chosen or chosen == all_words:
        return np.full(len(words), bool(chosen))
    return np.array([word in chosen for word in words], dtype=bool)


def half_of(columns: dict[str, Any], name: str) -> Half:
    """The half "out" or "in" of the columns."""
    return Half(**{field: columns[f"{name}_{field}"] for field in Half.__dataclass_fields__})


def better_half(columns: dict[str, Any]) -> Half:
    """The half out of place, or in place for rows that have no other."""
    first, second = half_of(columns, "out"), half_of(columns, "in")
    lacking = np.isnan(first.seconds)
    return Half(
        **{
            name: np.where(lacking, getattr(second, name), getattr(first, name))
            for name in Half.__dataclass_fields__
        }
    )


def types_of(rows: RunRows) -> tuple[list[str], Integers]:
    """The data type of each (type, redop, root) that occurs, and the bytes of an item of each row."""
    types = [DTYPES.get(dtype, ("", 0)) for dtype, _, _ in rows.codes]
    each = np.array([nbytes for _, nbytes in types], dtype=np.int64)
    return [name for name, _ in types], each[rows.columns()["code"]]
