"""Log rows as tokens, converted to numbers in batches to save memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from calib.microbench.importers.lines.reading import Faults

AT_ONCE = 16_384


class Batches:
    """Rows of `width` tokens; every AT_ONCE of them become numbers, in `parts`."""

    def __init__(self, width: int, faults: Faults) -> None:
        self.width, self.faults = width, faults
        self.tokens: list[str] = []
        self.lines: list[int] = []
        self.runs: list[int] = []
        self.parts: list[dict[str, Any]] = []

    def extend(self, run: int, lines: list[int], tokens: list[str]) -> None:
        """Rows of one run, of `width` tokens each."""
        self.tokens.extend(tokens)
        self.lines.extend(lines)
        self.runs.extend([run] * len(lines))
        if len(self.lines) >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Turn the tokens into numbers; a row with another word is a fault."""
        self._keep(self.tokens, self.lines, self.runs)
        self.tokens, self.lines, self.runs = [], [], []

    def columns(self) -> dict[str, Any]:
        """All rows, column by column: "line", "run" and those of `numbers`; {} without rows."""
        self.flush()
        if len(self.parts) > 1:
            # one column at a time, so that a million rows are not held twice
            names = list(self.parts[0])
            self.parts = [
                {name: np.concatenate([part.pop(name) for part in self.parts]) for name in names}
            ]
        return self.parts[0] if self.parts else {}

    def _keep(self, flat: list[str], lines: list[int], runs: list[int]) -> None:
        """Keep all rows, or try both halves where one of them is not a row."""
        if not lines:
            return
        try:
            found = self.numbers(flat, lines)
        except (ValueError, OverflowError):
            if len(lines) == 1:
                self.faults.add(lines[0], "not a row of this table: a column is not a number")
                return
            half = len(lines) // 2
            self._keep(flat[: half * self.width], lines[:half], runs[:half])
            self._keep(flat[half * self.width :], lines[half:], runs[half:])
            return
        of = {"line": np.array(lines, dtype=np.int64), "run": np.array(runs, dtype=np.int64)}
        self.parts.append({**of, **found})

    def numbers(self, flat: list[str], lines: list[int]) -> dict[str, Any]:
        """Tokens of rows as columns. Raises ValueError or OverflowError where one is not a number."""
        raise NotImplementedError
