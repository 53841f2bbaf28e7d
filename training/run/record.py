"""The TrainingRun record (run.jsonl): per-iteration seconds per phase and rank, and circumstances.

Line 1 is the header, then one line per iteration, then (unless the run was killed) an end line.
A file that contradicts itself is refused (training/run/check.py).
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from calib.foundation.errors import FileError
from calib.foundation.files import check_version, first_error, read_bytes
from calib.training.run.check import contradiction
from calib.training.run.lines import ITERATION, RUN_FORMAT, Iteration, RunEnd, RunHeader


class TrainingRun(BaseModel):
    """A training run as read from run.jsonl."""

    model_config = ConfigDict(frozen=True)

    header: RunHeader
    iterations: list[Iteration]
    end: RunEnd | None

    @property
    def timed(self) -> list[Iteration]:
        """The iterations after the warm-up."""
        return [iteration for iteration in self.iterations if not iteration.warmup]

    @property
    def complete(self) -> bool:
        """Whether the run reached its end: all the iterations it planned, or its precision."""
        if self.end is None:
            return False
        return self.end.stopped == "precision" or len(self.timed) == self.header.iterations

    @classmethod
    def read(cls, path: Path) -> TrainingRun:
        """Read run.jsonl. A last line cut by a kill is dropped. Raises FileError."""
        lines = read_bytes(path, "training run").decode(errors="replace").split("\n")
        whole = lines[:-1]  # what follows the last newline is empty or was cut
        header: RunHeader | None = None
        iterations: list[Iteration] = []
        end: RunEnd | None = None
        for number, line in enumerate(whole, 1):
            try:
                if header and line.startswith(ITERATION):
                    iterations.append(Iteration.model_validate_json(line))
                    continue
                content = json.loads(line)
                record = content.get("record")
                if number == 1:
                    check_version(content, RUN_FORMAT, f"training run {path}")
                    header = RunHeader.model_validate(content)
                elif record == "iteration":
                    iterations.append(Iteration.model_validate(content))
                else:
                    end = RunEnd.model_validate(content)
            except ValidationError as error:
                broken = error.errors()[0]["type"] == "json_invalid"
                why = "not a JSON record" if broken else first_error(error)
                raise FileError(f"training run {path}, line {number}: {why}") from error
            except (ValueError, AttributeError, RecursionError) as error:
                raise FileError(f"training run {path}, line {number}: not a JSON record") from error
        if header is None:
            raise FileError(f"training run {path} is empty")
        wrong = contradiction(header, iterations, end)
        if wrong is not None:
            raise FileError(f"training run {path} contradicts itself: {wrong}")
        # not validated again: reports read thousands
        return cls.model_construct(header=header, iterations=iterations, end=end)
