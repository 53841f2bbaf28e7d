"""One nccl-tests table with the header lines before it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from calib.microbench.importers.nccl.operations import INFORMATIVE, MEAN, Columns
from calib.microbench.importers.nccl.rows import RunRows, better_half, half_of, types_of
from calib.microbench.importers.said import NOT_SAID, SaidPlaces

UNITS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}  # in us, which the rows are read in
UNKNOWN_HOST = "unknown"  # lines of one process do not name it
UNKNOWN_UNIT = "?"  # versions of 2016 to 2018 print ms and do not say so
PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.\d)?", re.IGNORECASE)
PCI_DOMAIN = "0000:"  # the usual one
RATIOS = (0.45, 1.05)  # algbw * time / size: 1, or (n - 1) / n


class Where(NamedTuple):
    """A line of the list of devices; `device` is the GPU's PCI address, or its number."""

    rank: int
    group: int
    host: str
    gpu: str
    device: str = ""

    @property
    def place(self) -> str:
        """As in records/peers.py: HOST/DEVICE, or HOST."""
        return f"{self.host}/{self.device}" if self.device else self.host


@dataclass(frozen=True)
class Context:
    """What was said before a table; "" and 0 where nothing was. `unknown` is an unknown program.

    `forced` are the values of NCCL_ALGO and NCCL_PROTO.
    """

    operation: str = ""
    unknown: str = ""
    named: tuple[str, ...] = ()
    launched: SaidPlaces = NOT_SAID
    ranks: tuple[Where, ...] = ()
    per_process: int = 1
    iterations: int = 1
    graph: bool = False
    average: int = MEAN  # -a
    host_time: bool = False
    redop_column: bool | None = None  # None: there is no header
    old_errors: bool = False
    forced: tuple[str, str] = ("", "")
    unit: str = "us"


@dataclass
class AlikeRuns:
    """Runs of a program with equal settings; a run's number is its line, `line` that of the first.

    `ranks` are those of a group, 0 while unknown. `dropped` runs give no rows; `key` names what the runs
    were forced to (forced.py).
    """

    line: int
    rows: RunRows
    said: Context
    library: str = "nccl"
    ranks: int = 0
    nodes: int = 1
    active_ranks: int = 1
    groups: int = 1
    key: str = ""
    dropped: set[int] = field(default_factory=set)

    def evidence(self) -> Columns:
        """What the rows tell about operation and ranks."""
        columns = self.rows.columns()
        half = better_half(columns)
        _, nbytes = types_of(self.rows)
        ok = (columns["size"] > 0) & (columns["count"] > 0) & (nbytes > 0)
        ok &= np.isfinite(half.algbw) & np.isfinite(half.busbw)
        ok &= columns["count"] < 1 << 59
        items = np.where(ok, columns["count"] * nbytes, 1)
        blocks, rest = np.divmod(columns["size"], items)
        whole = Counter(blocks[ok & (rest == 0)].tolist()).most_common(1)
        agreed = whole[0][0] if whole and 2 * whole[0][1] > int(ok.sum()) else 0
        used = set(columns["code"][ok].tolist())
        keys = [key for key, code in self.rows.codes.items() if code in used]
        checked = ok.any() and not half.unchecked[ok].any()
        unchecked = bool(half_of(columns, "in").unchecked[ok].all())
        return Columns(
            frozenset(key[1] for key in keys),
            frozenset(key[2] for key in keys),
            agreed,
            unchecked if checked else None,
            half.algbw[ok],
            half.busbw[ok],
            half.half_algbw[ok],
            half.half_busbw[ok],
            self.said.redop_column,
            self.said.unit == UNKNOWN_UNIT,
        )

    def set_unit(self) -> bool:
        """Convert the times to seconds; False where neither a word nor a bandwidth tells their unit."""
        columns, scale = self.rows.columns(), UNITS.get(self.said.unit, 0.0)
        if not scale:
            half = better_half(columns)
            with np.errstate(all="ignore"):
                told = half.half_algbw < INFORMATIVE * half.algbw
                share = (half.algbw * half.seconds / columns["size"])[told & (half.seconds > 0)]
            found = {
                unit: float(np.mean((share * unit > RATIOS[0]) & (share * unit < RATIOS[1])))
                for unit in (UNITS["us"], UNITS["ms"])
                if len(share)
            }
            scale = next((unit for unit, part in found.items() if part > 0.5), 0.0)
        for name in ("out", "in"):
            columns[f"{name}_seconds"] = columns[f"{name}_seconds"] * scale
            columns[f"{name}_half_seconds"] = columns[f"{name}_half_seconds"] * scale
        return scale > 0


def once(ranks: Sequence[Where]) -> list[Where]:
    """The first line of every rank: two runs whose output is mixed list all twice."""
    return list({(where.group, where.rank): where for where in reversed(ranks)}.values())


def places_of(ranks: Sequence[Where]) -> tuple[str, ...]:
    """Where the ranks of the only group ran; () where lines are lost, or there are several groups."""
    listed = sorted(once(ranks))
    whole = [where.rank for where in listed] == list(range(len(listed)))
    alone = len({where.group for where in listed}) == 1
    named = all(where.host != UNKNOWN_HOST for where in listed)
    return tuple(where.place for where in listed) if whole and alone and named else ()


def gpus_of(ranks: Sequence[Where]) -> dict[str, list[str]]:
    """Host -> the names of its GPUs, in the order of the list."""
    found: dict[str, list[str]] = {}
    for where in reversed(once(ranks)):
        found.setdefault(where.host, []).append(where.gpu or "unknown")
    return found


def device_word(number: str, brackets: str) -> str:
    """What tells a GPU from others of its host: its PCI address, without the usual domain.

    Its number where the brackets hold less than an address: [0x1b], or [0x00] of every GPU.
    """
    return brackets.removeprefix(PCI_DOMAIN) if PCI.fullmatch(brackets) else number
