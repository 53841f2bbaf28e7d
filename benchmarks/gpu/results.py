"""gpu.json and gpu.md: what all steps so far have found."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.steps import STEPS, Missing, Row
from calib.foundation.errors import InputError
from calib.foundation.files import read_json, write_json, write_whole
from calib.foundation.words import counted, seconds_words
from calib.reports.tables.table import Table
from calib.reports.writers.markdown import escaped, table_lines

FORMAT = 1
JSON, MARKDOWN = "gpu.json", "gpu.md"


@dataclass
class Result:
    """What a step found. `ended` is "done", or "not run", "failed" or "out of time" with a reason."""

    step: str
    started: str
    seconds: float = 0.0
    ended: str = "done"
    rows: list[Row] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    @property
    def spoiled(self) -> bool:
        """Whether something went wrong: what cannot run here is no failure."""
        return not self.ended.startswith(("done", "not run"))

    @property
    def line(self) -> str:
        """One line for a person."""
        after = f"{counted(len(self.rows), 'row')} in {seconds_words(self.seconds)}"
        return f"{self.step}: {self.ended}; {after}"

    def as_dict(self) -> dict[str, Any]:
        """For gpu.json."""
        rows = [row._asdict() for row in self.rows]
        return vars(self) | {"rows": rows, "missing": [each._asdict() for each in self.missing]}

    @classmethod
    def of(cls, content: dict[str, Any]) -> Result:
        """From gpu.json."""
        rows = [Row(**each) for each in content["rows"]]
        missing = [Missing(**each) for each in content["missing"]]
        return cls(**content | {"rows": rows, "missing": missing})

    @property
    def markdown(self) -> list[str]:
        """A heading, the rows as a table, and what is missing."""
        cells = [row.cells for row in self.rows]
        table = Table(STEPS[self.step].title, ["what", "value", "unit", "note"], cells, {"value"})
        remarks = [f"{each.what}: {each.why}" for each in self.missing]
        remarks += [self.ended] if self.ended != "done" else []
        lines = [f"## {escaped(table.title)}", "", *(table_lines(table) if cells else [])]
        listed = [f"- {escaped(remark)}" for remark in remarks]
        return [*lines, *([""] if cells and listed else []), *listed, ""]


@dataclass
class Results:
    """Of one machine; `rehearsed` with small sizes, which say nothing about it."""

    folder: Path
    rehearsed: bool
    machine: dict[str, str] = field(default_factory=dict)
    steps: dict[str, Result] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, rehearsed: bool) -> Results:
        """Those that are in the folder already. Raises FileError, InputError for the other kind."""
        path = folder / JSON
        if not path.exists():
            return cls(folder, rehearsed)
        content = read_json(path, "result")
        if content["rehearsed"] != rehearsed:
            kind = "a measurement" if rehearsed else "a rehearsal"
            raise InputError(f"{path} is of {kind}; choose another --out")
        steps = {name: Result.of(each) for name, each in content["steps"].items()}
        return cls(folder, rehearsed, content["machine"], steps)

    def require(self, machine: dict[str, str]) -> None:
        """Raise InputError where what is there is of another machine."""
        names = dict.fromkeys((*self.machine, *machine))
        other = [name for name in names if self.machine.get(name) != machine.get(name)]
        if self.machine and other:
            then, now = (each.get(other[0], "none") for each in (self.machine, machine))
            raise InputError(
                f"{self.folder / JSON} is of another machine ({other[0]}: {then}, now {now}); choose "
                "another --out"
            )

    def write(self) -> None:
        """Both files, each whole or not at all."""
        known = [self.steps[name] for name in STEPS if name in self.steps]
        content: dict[str, Any] = {
            "format_version": FORMAT,
            "rehearsed": self.rehearsed,
            "machine": self.machine,
            "steps": {each.step: each.as_dict() for each in known},
        }
        write_json(self.folder / JSON, content)
        write_whole(self.folder / MARKDOWN, self.markdown(known))

    def markdown(self, known: list[Result]) -> str:
        """Tables under the day of the first step, as docs/results/ has them."""
        kind = "A rehearsal, whose numbers are of a stand-in: " if self.rehearsed else ""
        day = min(each.started for each in known)[:10]
        lines = [f"# {kind}{escaped(self.machine.get('gpu', 'GPU'))}, {day}", ""]
        about = [f"{name} {value}" for name, value in self.machine.items() if name != "gpu"]
        lines += [f"{escaped(', '.join(about))}.", "", "Made by `python -m benchmarks.gpu`.", ""]
        return "\n".join([*lines, *(line for each in known for line in each.markdown)])
