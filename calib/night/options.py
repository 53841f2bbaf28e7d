"""Options of a night, how it is judged, and what is known once it has begun."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import FileError, InputError
from calib.microbench.records.cluster import Cluster
from calib.microbench.timing.watchdog import HANG_SECONDS
from calib.night.points import NightPoint
from calib.reports.night import Night
from calib.reports.scoring.pairing import why_not_scored
from calib.scoring.findings import LEAST_ACCURACY
from calib.training.run.record import TrainingRun


@dataclass(frozen=True)
class Settled:
    """How a night is measured; `hang_s`: how long ranks may make no progress."""

    iterations: int = 30
    check_budget_s: float = 60.0
    seed: int = 0
    hang_s: float = HANG_SECONDS


@dataclass(frozen=True)
class NightOptions:
    """What a night is asked for. `ranks` None: as many as in the calibration.

    None of iterations, check_budget_s, seed and hang_s is what the night was begun with, or the
    default.
    """

    calibration: Path
    plan: Path | None
    output: Path | None
    iterations: int | None
    check_budget_s: float | None
    ranks: int | None
    launcher: str
    seed: int | None
    hang_s: float | None
    name: str | None

    @property
    def settled(self) -> Settled:
        """With the defaults."""
        asked = {field.name: getattr(self, field.name) for field in fields(Settled)}
        return Settled(**{name: value for name, value in asked.items() if value is not None})

    def going_on(self, run: Path, night: Night) -> NightOptions:
        """The options that a night was begun with. Raises InputError where others are asked for.

        Only the time to wait for ranks may differ: it changes nothing that is measured.
        """
        begun = {field.name: getattr(night, field.name) for field in fields(Settled)}
        for name, value in begun.items():
            asked = getattr(self, name)
            if name != "hang_s" and asked is not None and asked != value:
                option = f"--{name.removesuffix('_s').replace('_', '-')}"
                raise InputError(
                    f"{run} was begun with {option} {value:g}, not {asked:g}; leave it out to go "
                    "on, or choose another -o"
                )
        return replace(
            self, **{name: value for name, value in begun.items() if getattr(self, name) is None}
        )


@dataclass(frozen=True)
class Judging:
    """How a night is judged, and where it is remembered.

    `history` is a file or a URL, by default calib.db beside the night; `since` and `baseline` say which
    steps and nights count, `least_accuracy` which mean of a strategy is enough.
    """

    history: str | None = None
    since: str = ""
    baseline: str = ""
    least_accuracy: float = LEAST_ACCURACY


@dataclass
class Begun:
    """A night that has begun: its directory and what is in it. `said` is for people."""

    run: Path
    night: Night
    points: list[NightPoint]
    parameters: Parameters
    cluster: Cluster
    calibrated_on: Cluster
    said: list[str]
    launcher: str = "local"

    def missing(self) -> list[NightPoint]:
        """The points without a complete run, or with one whose result is wrong."""
        return [point for point in self.points if not is_whole(point.path(self.run))]


def is_whole(path: Path) -> bool:
    """Whether a training run is complete and can be scored; one with wrong gradients is not."""
    try:
        return path.exists() and why_not_scored(TrainingRun.read(path)) is None
    except FileError:
        return False
