"""Tables of a publication as CSV: iteration times, one-GPU times, and the alpha and beta in use.

Columns are those of ../shared/data/paradl (its README is DATA.md). Every cell that is read is checked.
Rows of alpha and beta that state no beta, or several ranges of p at once, are passed over: they are
what was said elsewhere, and no use of a strategy.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from calib.foundation.errors import FileError, MissingParameter
from calib.foundation.files import read_text
from calib.foundation.quantities import MAX_ALPHA_S
from calib.foundation.records import Estimate
from calib.oracle.costs.link import Link

# letters of the publication -> names of the strategies here
STRATEGY_OF = {
    "d": "data",
    "s": "spatial",
    "p": "pipeline",
    "f": "filter",
    "c": "channel",
    "df": "data+filter",
    "ds": "data+spatial",
}
BATCH_MEANINGS = ("per GPU", "per node", "global (strong scaling)")
UNITS = ("s/iter", "s/epoch")
MOST_COUNT = 10_000_000  # ranks or samples, as the options of the commands
MOST_SECONDS = 1e9
_NEGATIVE = re.compile(r"(?:^|[\s/(.])-\s*\d")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class PublishedPoint:
    """One row: seconds per iteration (or epoch), projected by the authors and measured."""

    model: str
    strategy: str
    p: int
    b: int
    b_means: str
    unit: str
    projected: dict[str, float]  # comp, comm, total; those that the row states
    measured: dict[str, float]
    note: str

    def batch(self, ranks_per_node: int) -> int:
        """The global mini-batch B."""
        if self.b_means == "per GPU":
            return self.b * self.p
        return self.b * max(1, self.p // ranks_per_node) if self.b_means == "per node" else self.b


def read_points(
    path: Path, times: Sequence[str] = ("proj_total", "meas_total")
) -> list[PublishedPoint]:
    """The rows of an iteration-time table, which has these columns of times at least.

    Raises FileError with the line.
    """
    columns = ("model", "strategy", "p", "b", "b_means", "unit", *times)
    return [_point(path, number, row) for number, row in _rows(path, columns)]


def _point(path: Path, number: int, row: dict[str, str]) -> PublishedPoint:
    where = f"{path}, line {number}"
    if row["unit"] not in UNITS or row["b_means"] not in BATCH_MEANINGS:
        raise FileError(
            f"{where}: unit {row['unit']!r} with b {row['b_means']!r}; known: {', '.join(UNITS)} "
            f"with {', '.join(BATCH_MEANINGS)}"
        )

    def seconds(prefix: str) -> dict[str, float]:
        names = {part: row.get(f"{prefix}_{part}") or "" for part in ("comp", "comm", "total")}
        return {part: seconds_of(text, where) for part, text in names.items() if text.strip()}

    return PublishedPoint(
        model=row["model"],
        strategy=row["strategy"],
        p=count_of(row["p"], where),
        b=count_of(row["b"], where),
        b_means=row["b_means"],
        unit=row["unit"],
        projected=seconds("proj"),
        measured=seconds("meas"),
        note=row.get("note") or "",
    )


def read_single_gpu(path: Path) -> dict[str, float]:
    """Model -> seconds per sample on one GPU. Raises FileError with the line."""
    found = {}
    for number, row in _rows(path, ("model", "batch_per_gpu", "seconds_per_iteration")):
        where = f"{path}, line {number}"
        batch = count_of(row["batch_per_gpu"], where)
        seconds = seconds_of(row["seconds_per_iteration"], where)
        if row["model"] in found:
            raise FileError(f"{where}: a second time of {row['model']}")
        if seconds == 0:
            raise FileError(f"{where}: {row['model']} takes 0 s")
        found[row["model"]] = seconds / batch
    return found


@dataclass(frozen=True)
class LinkRow:
    """An alpha and a beta, what they were used for (`collective`), and for which p."""

    source: str
    library: str
    collective: str
    scope: str
    first: float
    last: float
    alpha_s: tuple[float, float] | None  # at the first p and at the last; None: "as above"
    beta_s_per_byte: float

    def alpha_at(self, p: int) -> float | None:
        """alpha, where it grows with p geometrically between the ends."""
        if self.alpha_s is None or not self.first < self.last < math.inf:
            return None if self.alpha_s is None else self.alpha_s[0]
        share = math.log(max(p, self.first) / self.first) / math.log(self.last / self.first)
        low, high = self.alpha_s
        return float(low * (high / low) ** min(share, 1.0))


def read_links(path: Path) -> list[LinkRow]:
    """The rows with a beta and a range of p. Raises FileError with the line."""
    found = []
    for number, row in _rows(
        path, ("source", "library", "collective", "p_range", "alpha_s", "beta_s_per_B")
    ):
        where = f"{path}, line {number}"
        beta = _NUMBER.findall(row["beta_s_per_B"])
        span = _range(row["p_range"], row.get("scope") or "")
        if not beta or span is None:
            continue
        if not 0 <= float(beta[0]) < 1 or _NEGATIVE.search(row["beta_s_per_B"]):
            raise FileError(f"{where}: beta of {row['beta_s_per_B']} s/B")
        found.append(
            LinkRow(
                row["source"],
                row["library"],
                row["collective"],
                row.get("scope") or "",
                *span,
                _alphas(row["alpha_s"], where),
                float(beta[0]),
            )
        )
    if not found:
        raise FileError(f"{path}: no row has a beta and a range of p")
    return found


def _alphas(text: str, where: str) -> tuple[float, float] | None:
    """ "9e-6", "3.03e-5..3.10e-5"; None of "as above"."""
    numbers = [float(n) for n in _NUMBER.findall(text)]
    if not numbers:
        return None
    ends = re.fullmatch(rf"\s*({_NUMBER.pattern})\.\.(-?{_NUMBER.pattern})\s*", text, re.IGNORECASE)
    used = (float(ends[1]), float(ends[2])) if ends else (numbers[0], numbers[0])
    if _NEGATIVE.search(text) or not all(0 < alpha <= MAX_ALPHA_S for alpha in used):
        raise FileError(f"{where}: alpha of {text[:40]} is not a time up to {MAX_ALPHA_S:g} s")
    return used


def _range(text: str, scope: str) -> tuple[float, float] | None:
    """ "p<=4", "4<p<=68", "p>136", "16-1024", ">=256", "2,4", "128", "P2=4"; "" of intra: any."""
    words = text.replace(" ", "")
    patterns = (
        (r"p<=(\d+)", lambda a: (1.0, a)),
        (r"(\d+)<p<=(\d+)", lambda a, b: (a + 1, b)),
        (r"p>(\d+)", lambda a: (a + 1, math.inf)),
        (r">=(\d+)", lambda a: (a, math.inf)),
        (r"(\d+)[-,](\d+)", lambda a, b: (a, b)),
        (r"(?:P2=)?(\d+)", lambda a: (a, a)),
    )
    for pattern, span in patterns:
        match = re.fullmatch(pattern, words)
        if match:
            return span(*map(float, match.groups()))
    return (1.0, math.inf) if not words and scope.startswith("intra") else None


def link_of(rows: Sequence[LinkRow], wanted: Sequence[tuple[str, str]], p: int) -> Link:
    """The first row of (start of the source, collective) in the order `wanted` that holds for p.

    A row that says "as above" has the alpha of its source's row for any operation at that p. Raises
    MissingParameter.
    """
    for source, collective in wanted:
        for row in rows:
            named = row.source.startswith(source) and row.collective == collective
            alpha = row.alpha_at(p)
            if named and alpha is None:
                above = [r for r in rows if r.source == row.source and r.collective == "any"]
                alpha = next((r.alpha_at(p) for r in above if r.first <= p <= r.last), None)
            if named and alpha is not None and row.first <= p <= row.last:
                level = f"{row.collective}, {row.scope} (published)"
                return exact_link(level, alpha, row.beta_s_per_byte)
    names = ", ".join(collective for _, collective in wanted)
    raise MissingParameter(f"the table has no alpha and beta of {names} at p = {p}")


def exact_link(level: str, alpha_s: float, beta_s_per_byte: float) -> Link:
    """A link whose alpha and beta are stated, without an interval."""
    alpha, beta = (Estimate.exactly(v) for v in (alpha_s, beta_s_per_byte))
    return Link(level=level, alpha_s=alpha, beta_s_per_byte=beta)


def _rows(path: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """(line, row) of a CSV that must have these columns."""
    reader = csv.DictReader(io.StringIO(read_text(path, "table")))
    try:
        missing = [name for name in columns if name not in (reader.fieldnames or [])]
        if missing:
            raise FileError(f"table {path}: no column {', '.join(missing)}")
        rows = [(reader.line_num, {k: v or "" for k, v in row.items() if k}) for row in reader]
    except csv.Error as error:
        raise FileError(f"table {path} is not CSV: {error}") from error
    if not rows:
        raise FileError(f"table {path} has no row")
    return rows


def seconds_of(text: str, where: str) -> float:
    """Seconds of a cell. Raises FileError."""
    try:
        value = float(text)
    except ValueError:
        raise FileError(f"{where}: {text[:40]!r} is not a number of seconds") from None
    if not 0 <= value <= MOST_SECONDS:
        raise FileError(f"{where}: {text[:40]} seconds")
    return value


def count_of(text: str, where: str) -> int:
    """A count of a cell. Raises FileError."""
    words = text.strip()
    digits = words.isascii() and words.isdecimal() and len(words) <= 8
    if not digits or not 1 <= int(words) <= MOST_COUNT:
        raise FileError(f"{where}: {text[:40]!r} is not a whole number from 1 to {MOST_COUNT}")
    return int(words)
