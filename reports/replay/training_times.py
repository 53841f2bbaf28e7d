"""A table of whole trainings: nodes, GPUs, batch, and seconds for all epochs."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import dataclass
from pathlib import Path

from calib.foundation.errors import FileError
from calib.foundation.files import read_text
from calib.reports.replay.published_tables import count_of, seconds_of

COLUMNS = ("nodes", "gpus", "batch_per_gpu")
EPOCHS = re.compile(r"seconds_for_(\d{1,6})_epochs?")


@dataclass(frozen=True)
class Trained:
    """A whole training: `seconds` for `epochs`; None where the table states none."""

    nodes: int
    gpus: int
    batch_per_gpu: int
    epochs: int
    seconds: float | None

    def iterations(self, samples: int) -> int:
        """Of all epochs."""
        return self.epochs * self.epoch_iterations(samples)

    def epoch_iterations(self, samples: int) -> int:
        """Of one epoch; its last batch may be short."""
        return math.ceil(samples / (self.gpus * self.batch_per_gpu))


def is_training_table(path: Path) -> bool:
    """Whether a CSV has the columns of whole trainings."""
    head = read_text(path, "table").split("\n", 1)[0]
    return {"nodes", "gpus"} <= {name.strip() for name in head.split(",")}


def read_trainings(path: Path) -> list[Trained]:
    """The rows, with the epochs of the column's name. Raises FileError with the line."""
    reader = csv.DictReader(io.StringIO(read_text(path, "table")))
    names = [name.strip() for name in reader.fieldnames or []]
    reader.fieldnames = names
    timed = [name for name in names if EPOCHS.fullmatch(name)]
    missing = [name for name in COLUMNS if name not in names]
    if missing or len(timed) != 1:
        lacks = ", ".join([*missing, *([] if len(timed) == 1 else ["one of seconds_for_N_epochs"])])
        raise FileError(f"table {path}: no column {lacks}")
    matched = EPOCHS.fullmatch(timed[0])
    assert matched is not None
    epochs = int(matched[1])
    found = []
    try:
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            nodes, gpus, batch = (count_of(row[name] or "", where) for name in COLUMNS)
            if gpus % nodes or not epochs:
                raise FileError(f"{where}: {gpus} GPUs on {nodes} nodes, {epochs} epochs")
            text = (row[timed[0]] or "").strip()
            seconds = seconds_of(text, where) if text else None
            if seconds == 0:
                raise FileError(f"{where}: {text[:40]} seconds")
            found.append(Trained(nodes, gpus, batch, epochs, seconds))
    except csv.Error as error:
        raise FileError(f"table {path} is not CSV: {error}") from error
    if not found:
        raise FileError(f"table {path} has no row")
    return found
