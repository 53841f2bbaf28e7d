"""nccl-tests (and rccl-tests), text of all versions; formats.md, src/common.cu and src/util.cu.

A line that is a regular row is only split. Everything else (tags inside, a row in pieces, a blank
redop) goes through the regular expressions of `_slow`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import takewhile
from typing import Any

from calib.microbench.importers.lines.batches import AT_ONCE
from calib.microbench.importers.lines.reading import HEAD, Log, is_json
from calib.microbench.importers.nccl.forced import note_assigned
from calib.microbench.importers.nccl.layout import BLANKS, CHOICE, RENAMED, ColumnLayout
from calib.microbench.importers.nccl.operations import DTYPES, MEAN, PROGRAMS, average_of
from calib.microbench.importers.nccl.rows import WIDTH, RunRows
from calib.microbench.importers.nccl.runs import import_table, likeness, version_of
from calib.microbench.importers.nccl.tables import (
    UNKNOWN_HOST,
    UNKNOWN_UNIT,
    AlikeRuns,
    Context,
    Where,
    device_word,
    places_of,
)
from calib.microbench.importers.said import NOT_SAID, Flags, launch_line, remark
from calib.microbench.importers.table import FailedRun, Imported

NAME = "nccl-tests"
DESCRIPTION = "nccl-tests and rccl-tests, text output"

TYPES = "|".join(sorted(DTYPES, key=len, reverse=True))
ROW = re.compile(rf"(?:^|\s)(\d{{1,18}})\s+(\d{{1,18}})\s+({TYPES})(?=\s|$)(.*)$")
ANY_ROW = re.compile(rf"\b\d+[ \t]+\d+[ \t]+(?:{TYPES})[ \t].*\d")
KNOWN_TYPES = frozenset(DTYPES)
REDOP = re.compile(r"(?:sum|prod|min|max|avg|mulsum|none|premulsum)$")
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$|N/A$|-?nan$|-?inf$")
ROOT = re.compile(r"-?\d+$")
STAMP = re.compile(r"\d{4}-\d\d-\d\d$|\d\d:\d\d:\d\d$")
RANK = re.compile(
    r"#?\s*Rank\s+(\d{1,7})\s+(?:Group\s+(\d{1,7})\s+)?(?:(?:Pid\s+\d+ )?on\s+(\S+)|uses) device"
    r"\s+(\d+)(?:\s+\[([^\]]*)\])?\s*(.*)"
)
VERSION = re.compile(r"(nccl|rccl)-tests version (\S+)(?:.*?\b[nr]ccl-library=(\d+))?")
RCCL = re.compile(r"\brccl-tests: Version (\S+)")  # up to 2025
LIBRARY = re.compile(r"\b[NR]CCL version\s*:?\s*(\d+\.\d+(?:\.\d+)*)")
HALVES = re.compile(r"out-of-place|in-place")
UNIT = re.compile(r"\(([num]?s)\)")
STARTING = re.compile(r"Collective test starting: (?:\S*/)?(\w+?)(?:_perf)?\s*$")
PROGRAM = re.compile(r"(?:^|[\s/])(\w+)_(?:perf|test)\b")
SETUP = re.compile(
    r"nThread (\d{1,7}) nGpus (\d{1,7}) minBytes.*?(?<!warmup)(?<!agg) iters: (\d{1,9})\b"
)
GRAPH = re.compile(r"\bgraph: (\d+)")
AGGREGATED = re.compile(r"\bagg iters: (\d{1,9})\b")
ASSIGNED = re.compile(r"\b(NCCL_ALGO|NCCL_PROTO)=")
FORCED = re.compile(r"\bNCCL_(ALGO|PROTO) set by environment to ([\w:;,^]+)")
FAILURE = re.compile(
    r"(?:Test )?\b(NCCL|RCCL|CUDA|HIP|MPI) failure (\S+:\d+)(?: '([^'\n]{0,200}))?"
    r"|Test (failure|timeout)(?: \(\d+s\))? (\S+:\d+)"
)
TOO_FEW = re.compile(
    r"number of (?:requested )?GPUs(?: \(|: )(\d+)\)? (?:is greater than|requested but only)\D*(\d+)"
)
WARNING = re.compile(r"NCCL WARN ([ -~]{1,160})")
BEGUN = re.compile(
    r"nThread \d+ nGpus \d|\b(?:[NR]CCL|CUDA|HIP) failure \S+:\d|Collective test starting"
    r"|\b[nr]ccl-tests(?: version|: Version) "
)
FAILED = re.compile(r"Out of bounds values\s*:\s*(\d+)\s+FAILED")
EMPTY = ["#"]
MOST_IDLE = 1000
PIECES = {8, 10, 16, 18}  # numbers of a row whose beginning is lost, by options
FEWEST = 10  # columns of a row
HEADER = re.compile(r"\balgbw\s+busbw\b")
GLUED = re.compile(r"(?<=\s)(\d+|N/A)([A-Za-z]\S*\s+\S+\s+(?:\d+|N/A))\s*$")  # 0NVLSTree LL 16
MOST_BETWEEN = 8  # lines of a log that may stand between the pieces of a row


def recognise(log: Log) -> bool:
    """Whether a log has a table of nccl-tests, or rows of one."""
    if is_json(log.text):
        return False  # -J
    if "algbw" in log.text and HEADER.search(log.text):
        return True
    head = log.text[:HEAD]
    return bool(ANY_ROW.search(head) or BEGUN.search(head))


def read(log: Log, flags: Flags) -> Imported:
    """All tables of a log."""
    return _TextReader(log, flags).read()


class _TextReader:
    """One pass over the lines, then one over the tables."""

    def __init__(self, log: Log, flags: Flags) -> None:
        self.log, self.flags = log, flags
        self.result = Imported(NAME)
        self.faults = self.result.faults
        self.said: dict[str, Any] = {}  # of the next run: the fields of Context
        self.ranks: list[Where] = []
        self.forced = {"ALGO": "", "PROTO": ""}  # as NCCL_DEBUG prints them
        self.assigned: set[str] = set()  # by a command in the log
        self.layout = ColumnLayout()
        self.halves: tuple[str, ...] = ()  # as the line above the header names them
        self.begun = 0  # the line of a run that has said its settings, and has no header yet
        self.warning: tuple[int, str] | None = None  # NCCL's own, the first of a run
        self.tables: dict[tuple[Any, ...], AlikeRuns] = {}
        # of the run whose table is open: its context and line, its table once rows tell which
        self.run: tuple[Context, int] | None = None
        self.table: AlikeRuns | None = None
        self.taken = self.ended = self.failed = False  # taken: a run has begun with what was said
        self.tokens: list[str] = []
        self.numbers: list[int] = []
        self.pending: tuple[int, list[str]] | None = None
        self.idle: set[str] = set()  # lines known to say nothing: headers are repeated

    def read(self) -> Imported:
        cut = self.log.cut_line
        for number, line in enumerate(self.log.lines(), 1):
            parts = line.split()
            if (
                len(parts) in self.layout.picks
                and parts[2] in DTYPES
                and self.pending is None
                and number != cut
            ):
                pick = self.layout.picks[len(parts)]
                if pick is not None:
                    parts += BLANKS
                self._row(number, parts if pick is None else list(pick(parts)))
            elif parts and parts != EMPTY:
                self._slow(number, line, parts, number == cut)
        self._close()
        self._unfinished()
        for table in self.tables.values():
            if table.rows.columns():
                self._import(table)
        said = [table.said.forced for table in self.tables.values()]
        flags = self.flags.algorithm, self.flags.protocol
        note_assigned(self.assigned, said, flags, self.result.notes)
        return self.result

    def _row(self, number: int, tokens: list[str]) -> None:
        if self.run is None or self.ended:
            self._open(number, [])
        self.tokens.extend(tokens)
        self.numbers.append(number)
        if len(self.numbers) >= AT_ONCE:
            self._spill()

    def _spill(self) -> None:
        """Give the rows that were read to the table of runs like this one."""
        if self.run is None or not self.numbers:
            return
        said, line = self.run
        if self.table is None:
            key = (said, self.layout.groups, *likeness(self.tokens[-WIDTH:]))
            if key not in self.tables:
                rows = RunRows(self.faults, said.old_errors)
                self.tables[key] = AlikeRuns(line, rows, said, self.flags.library or "nccl")
            self.table = self.tables[key]
        self.table.rows.extend(line, self.numbers, self.tokens)
        self.tokens, self.numbers = [], []

    def _open(self, number: int, header: list[str]) -> None:
        """A table begins: with its header, or with a row where that is lost."""
        self._close()
        names = [RENAMED.get(word, word) for word in header]
        self.layout = ColumnLayout.of(tuple(names), self.halves) if names else self.layout
        self.halves, self.begun = (), 0
        said = Context(
            ranks=tuple(self.ranks),
            **self.said,
            forced=(self.forced["ALGO"], self.forced["PROTO"]),
            host_time="cputime" in header,
            old_errors=not {"res", "delta", "error"}.isdisjoint(header),
            redop_column="redop" in names if names else None,
            unit=UNKNOWN_UNIT if header[:1] == ["bytes"] else "us",
        )
        self.run, self.table = (said, number), None
        self.taken, self.ended, self.failed = True, False, False

    def _slow(self, number: int, line: str, parts: list[str], cut: bool) -> None:
        if line in self.idle:
            return
        if "algbw" in parts and "busbw" in parts:
            self._drop_pending()
            words = (part.lstrip("#") or part for part in parts)
            self._open(number, [word for word in words if word != "#"])
        elif not KNOWN_TYPES.isdisjoint(parts) and (match := ROW.search(line)):
            self._drop_pending()
            self._irregular(number, match, cut)
        elif "-place" in line or "(GB/s)" in parts:
            self._beside_header(line, parts)
        elif parts[0][0] in "0123456789+-" and all(NUMBER.match(part) for part in parts):
            if self.pending is not None:
                self._continued(number, parts, cut)
            elif len(parts) in PIECES or (self.run and not self.ended and len(parts) > 2):
                self.faults.add(number, "not a row of nccl-tests: its beginning is lost")
        else:
            if self.pending is not None and number > self.pending[0] + MOST_BETWEEN:
                self._drop_pending()
            fewest = min([FEWEST, *self.layout.picks])
            if self.run and not self.ended and parts[0].isdigit() and len(parts) >= fewest:
                self.faults.add(
                    number, "not a row of this table: a column is not what it should be"
                )
            else:
                self._words(number, line)

    def _beside_header(self, line: str, parts: list[str]) -> None:
        """The line above a header, which names its halves, or the one below, which names its units."""
        if not set(parts) - {"#", "out-of-place", "in-place"}:
            self.halves = tuple(HALVES.findall(line))
        elif self.run and self.table is None and not self.numbers and (unit := UNIT.search(line)):
            self.run = (replace(self.run[0], unit=unit[1]), self.run[1])

    def _irregular(self, number: int, match: re.Match[str], cut: bool) -> None:
        """A row unlike its header: tagged, with a blank column, or in pieces."""
        text = GLUED.sub(r"\1 \2", match[4]) if self.layout.choice else match[4]
        head, rest = [match[1], match[2], match[3]], _without_stamps(text.split())
        if self.layout.choice and len(rest) > self.layout.groups + len(CHOICE):
            rest = _without_stamps(rest[: -len(CHOICE)])
        head.append(rest.pop(0) if rest and REDOP.match(rest[0]) else "")
        numbers = list(takewhile(NUMBER.match, rest))
        if len(numbers) < len(rest) and len(numbers) > 1 + self.layout.groups:
            self.faults.add(number, "not a row of this table: other output is in it")
        elif not self._complete(number, head, numbers):
            self.pending = (number, [*head, *numbers])
            if cut:
                self._drop_pending()

    def _complete(self, number: int, head: list[str], numbers: list[str]) -> bool:
        """Keep the row if all its numbers are there; without a header, guess how many that is."""
        layout = self.layout
        groups = layout.groups
        if not layout.picks:
            groups = {8: 4, 9: 4, 10: 5, 11: 5, 16: 8, 17: 8, 18: 9, 19: 9}.get(len(numbers), 4)
        root = len(numbers) - layout.halves * groups
        if root not in (0, 1) or (root and not ROOT.match(numbers[0])):
            return False
        first = layout.half(numbers[root:])
        second = ["N/A"] * 4 if layout.alone else layout.half(numbers[root + groups :])
        if layout.alone == "in-place":
            first, second = second, first
        self._row(number, [*head, numbers[0] if root else "", *first, *second])
        return True

    def _continued(self, number: int, parts: list[str], cut: bool) -> None:
        """The rest of a row whose beginning stands on a line before."""
        assert self.pending is not None
        first, tokens = self.pending
        self.pending = None
        if not self._complete(first, tokens[:4], tokens[4:] + parts):
            self.pending = (first, tokens + parts)
            if len(tokens) + len(parts) > 4 + self.layout.halves * self.layout.groups or cut:
                self._drop_pending()

    def _drop_pending(self) -> None:
        if self.pending is not None:
            self.faults.add(self.pending[0], "the row is not complete")
            self.pending = None

    def _words(self, number: int, line: str) -> None:
        """What a line says of the next run, or of the one that ends."""
        if "Rank" in line and (match := RANK.search(line)):
            where = Where(
                int(match[1]),
                int(match[2] or 0),
                match[3] or UNKNOWN_HOST,
                match[6].strip(),
                device_word(match[4], match[5] or ""),
            )
            self._next()
            self.ranks.append(where)
        elif "# OSU " in line or "#repetitions" in line:
            self._close()  # another tool
        elif "Collective test" in line:
            if match := STARTING.search(line):
                operation = PROGRAMS.get(match[1], "")
                self._next(operation=operation, unknown="" if operation else match[1])
        elif "-tests version" in line and (match := VERSION.search(line)):
            self._next()
            self.result.tool = f"{match[1]}-tests"
            self.result.tool_version = match[2]
            if match[3]:
                self.result.library_version = version_of(int(match[3]))
            self.begun = self.begun or number
        elif "rccl-tests: Version" in line and (match := RCCL.search(line)):
            self._next()
            self.result.tool, self.result.tool_version = "rccl-tests", match[1]
        elif "nThread" in line and (match := SETUP.search(line)):
            self.begun = self.begun or number
            graph, aggregated = GRAPH.search(line), AGGREGATED.search(line)
            self._next(
                per_process=int(match[1]) * int(match[2]),
                graph=bool(graph and int(graph[1])),
                iterations=int(match[3]) * (int(aggregated[1]) if aggregated else 1),
            )
        elif "Using devices" in line:
            self._next()
            self.ranks = []
        elif "Out of bounds" in line and FAILED.search(line):
            self.failed = True
        elif "Avg bus bandwidth" in line:
            self.ended, self.warning = True, None
        elif not self._trouble(number, line):
            self._asides(line)

    def _trouble(self, number: int, line: str) -> bool:
        """Whether a line says that a run fails, or why."""
        if ("failure" in line or "Test timeout" in line) and (match := FAILURE.search(line)):
            self._failure(number, match)
        elif "of GPUs" in line and (match := TOO_FEW.search(line)):
            self._fail(
                number, f"the run failed: {match[1]} GPUs were asked for, {match[2]} are there"
            )
        elif "NCCL WARN" in line and (match := WARNING.search(line)):
            self.warning = self.warning or (number, match[1].strip())
        else:
            return False
        return True

    def _asides(self, line: str) -> None:
        """Lines around the program: NCCL's own, the launch line, the program's name in it."""
        if "CCL version" in line and (match := LIBRARY.search(line)):
            self.result.library_version = self.result.library_version or match[1]
        if forced := "set by environment" in line and FORCED.search(line):
            self._force(forced[1], forced[2])
            return
        if "NCCL_" in line:
            self.assigned |= set(ASSIGNED.findall(line))
        if (launched := launch_line(line)) is not None:
            self._next(launched=launched)
        if "_perf" in line or "_test" in line:
            for match in PROGRAM.finditer(line):
                if match[1] in PROGRAMS:
                    self._next()
                    named = self.said.get("named", ())
                    self.said["named"] = (*named, PROGRAMS[match[1]])
                    if (average := average_of(line[match.end() :])) != MEAN:
                        self.said["average"] = average
        elif launched is None and len(self.idle) < MOST_IDLE and "CCL version" not in line:
            self.idle.add(line)

    def _force(self, which: str, value: str) -> None:
        """NCCL says what it was forced to: on every rank, on some only after the table's header."""
        if self.forced[which] == value:
            return
        begun = self.numbers or self.table is not None or self.pending is not None
        if self.taken and begun:
            remark(self.result.notes, f"NCCL_{which} is said in or behind a table: not used")
            return
        self.forced[which] = value
        if self.taken and self.run is not None:
            said, line = self.run
            both = (self.forced["ALGO"], self.forced["PROTO"])
            self.run = (replace(said, forced=both), line)

    def _next(self, **said: Any) -> None:
        """Something is said of the next run; what was said before a table ends with it."""
        if self.taken:
            self.ranks, self.taken = [], False
            self.forced = {"ALGO": "", "PROTO": ""}
            launched = self.said.get("launched", NOT_SAID)
            self.said = {"launched": launched}
        self.said.update(said)

    def _failure(self, number: int, match: re.Match[str]) -> None:
        """One line of a run that failed, with the library's own words."""
        if match[4]:
            text = f"the run failed, {match[4]} in {match[5]}"
        else:
            reason = f": {match[3].strip(' /')}" if match[3] else ""
            text = f"the run failed, {match[1]} failure in {match[2]}{reason}"
        self._fail(number, text)

    def _fail(self, number: int, text: str) -> None:
        """A run fails, as each of its ranks says; the first line counts."""
        if self.run is not None or not self.taken:
            self._warned()
            self.faults.add(number, text)
            self._gave_up(text)
        self._close(failed=True)
        self.taken, self.begun = True, 0

    def _gave_up(self, reason: str) -> None:
        """Keep where a run was to run that gives no time, or breaks off."""
        said = self.run[0] if self.run is not None else None
        ranks = said.ranks if said is not None else tuple(self.ranks)
        operation = said.operation if said is not None else self.said.get("operation", "")
        if places := places_of(ranks):
            self.result.failed.append(FailedRun(operation, places, reason))

    def _warned(self) -> None:
        """NCCL's own error line of a run that gave no rows."""
        if self.warning is not None:
            self.faults.add(self.warning[0], f"NCCL says: {self.warning[1]}")
        self.warning = None

    def _unfinished(self) -> None:
        """The log ends before the table of a run that said its settings."""
        if self.begun:
            self._warned()
            text = "the log ends before the table of this run"
            self.faults.add(self.begun, text)
            self._gave_up(text)

    def _close(self, failed: bool = False) -> None:
        """A run ends."""
        self._drop_pending()
        self._spill()
        if self.run is None:
            return
        said, line = self.run
        if self.table is None:
            if not failed:
                self._warned()
                what = f" of {said.operation}" if said.operation else ""
                self.faults.add(line, f"the run{what} has no rows")
                self._gave_up("the run has no rows")
            self.run = None
            return
        self.run = None
        self.warning = None
        if not self.ended and not failed:
            remark(self.result.notes, "a run ends without its last lines: the log may be cut")
        reason = ""
        if said.host_time:
            reason = "the times are the host's (-C), not the operation's"
        elif said.unknown:
            reason = f"the program {said.unknown} is unknown"
        elif self.failed and said.old_errors:
            reason = "the run has wrong results and does not say in which rows"
        if reason:
            self.table.dropped.add(line)
            self.faults.add(line, reason)

    def _import(self, table: AlikeRuns) -> None:
        """The blocks of a table, or the reason why there are none."""
        runs = set(table.rows.columns()["run"].tolist()) - table.dropped
        if not runs:
            return
        reason = import_table(table, self.log.name, self.flags, self.result)
        if reason:
            for run in sorted(runs):
                self.faults.add(run, reason)


def _without_stamps(words: list[str]) -> list[str]:
    """A row's words without the date and the time behind them (-S)."""
    while words and STAMP.match(words[-1]):
        words = words[:-1]
    return words
