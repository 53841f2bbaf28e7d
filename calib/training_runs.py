"""The trainings that `calib train` was asked for: one strategy or several, and where each is written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from calib.options import default_ranks, say
from calib.rundir import PARAMETERS_FILE, TRAINING
from calib.training_options import Layout, Settings, model_layers, refuse
from foundation.errors import InputError
from training.own_model import own_name

if TYPE_CHECKING:
    from oracle.division import Division
    from oracle.model import ModelSpec

RUN_FILE = Path("run.jsonl")
RUNS_DIRECTORY = Path("runs/training")


@dataclass(frozen=True)
class Asked:
    """What the options ask for; `batch` is the global one."""

    model: str
    strategy: str
    p: int
    batch: int
    layout: Layout
    settings: Settings
    output: Path | None
    launcher: str
    cluster: str = ""

    @property
    def several(self) -> bool:
        """Whether more than one strategy was named."""
        return self.strategy.strip() == "all" or "," in self.strategy

    def runs(self) -> tuple[list[tuple[Division, Path]], list[str]]:
        """Every division and its file, and why others cannot be, which is said, too.

        Raises InputError with the reason where none can.
        """
        divisions, reasons = self._divisions()
        for reason in reasons if divisions else ():
            say(f"not run: {reason}")
        if not divisions:
            raise InputError(reasons[0])
        return [(division, self._path(division)) for division in divisions], reasons

    def _divisions(self) -> tuple[list[Division], list[str]]:
        chosen = self.layout.chosen(self.strategy, self.p)
        if self.strategy.strip() == "all":
            # on one rank every strategy is serial
            chosen = [v for v in chosen if (v.strategy == "serial") == (self.p == 1)]
        node, found, reasons = ranks_per_node(self.launcher), [], []
        for variant in chosen:
            try:
                spec = self._layers(variant.strategy)
                division = self.layout.division(variant, self.p, self.batch, spec, node)
                refuse(division, self.settings)
            except InputError as error:
                named = str(error).startswith(variant.strategy) or not self.several
                reasons.append(str(error) if named else f"{variant.name}: {error}")
            else:
                found.append(division)
        return found, reasons

    def _layers(self, strategy: str) -> ModelSpec | None:
        """The layers that a strategy divides."""
        if not needs_layers(strategy, self.p):
            return None
        return model_layers(self.model, self.settings.own, strategy)

    def _path(self, division: Division) -> Path:
        where = self.output or (RUNS_DIRECTORY if self.several else RUN_FILE)
        if not self.several and not os.path.isdir(where):
            return where
        inside = where / TRAINING if (where / PARAMETERS_FILE).exists() else where
        return inside / f"{own_name(self.model)}-{slug(division)}-p{division.p}.jsonl"


def needs_layers(strategy: str, p: int) -> bool:
    """Whether a model must be known layer by layer to be divided so."""
    return p > 1 and strategy not in ("serial", "data")


def ranks_per_node(launcher: str) -> int:
    """Ranks of a launch on one node: under Slurm those of the allocation, else one per core."""
    tasks, nodes = (os.environ.get(f"SLURM_{name}", "") for name in ("NTASKS", "NNODES"))
    if launcher == "slurm" and tasks.isdecimal() and nodes.isdecimal() and int(nodes):
        return max(1, int(tasks) // int(nodes))
    return default_ranks()


def slug(division: Division) -> str:
    """The strategy in the name of a file: data, data-overlapped, data+filter."""
    marks = {"overlapped": division.overlap, "sharded": division.sharded_optimizer}
    return "-".join([division.strategy, *(word for word, marked in marks.items() if marked)])
