"""Where a pipeline that is trained without --boundaries is cut: as predictions cut it, if they can."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calib.fitting.parameters.file import Parameters
from calib.foundation.division import Division
from calib.foundation.errors import FileError, MissingParameter
from calib.foundation.run_files import PARAMETERS_FILE, TRAINING
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.stages import stage_names, with_boundaries
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import divided
from calib.rundir import LATEST_PARAMETERS


@dataclass(frozen=True)
class Balance:
    """By what stages are balanced: the times of a `machine`, else operations. `why`: in words."""

    machine: Machine | None
    why: str

    @classmethod
    def by(cls, output: Path | None, device: str) -> Balance:
        """By the parameter file of the run directory that `output` is in, else by runs/latest."""
        path = parameters_around(output) or LATEST_PARAMETERS
        if not path.exists():
            return cls(None, f"there is no {path}")
        try:
            parameters = Parameters.read(path)
        except FileError as error:
            return cls(None, str(error))
        if parameters.device_kind != device:
            return cls(None, f"{path} is of {parameters.device_kind}, and {device} trains")
        return cls(Machine(parameters), f"of {path}, as predictions are")

    def cut(self, model: ModelSpec, division: Division) -> tuple[Division, str]:
        """A possible division with its stages, and a line that says why there; "" for others.

        `model` has the execution that is trained.
        """
        if not division.traits.stages or division.p == 1 or division.boundaries:
            return division, ""
        why = self.why
        if self.machine is not None:
            try:
                found = divided(model, division, self.machine)
                return found, _line(model, found, f"the times {why}")
            except MissingParameter as error:
                why = str(error)
        found = with_boundaries(model, division)
        return found, _line(model, found, f"operations, not times: {why}")


def _line(model: ModelSpec, division: Division, by: str) -> str:
    stages = stage_names(model, division.boundaries)
    return f"{model.name} {division.strategy} p={division.p}: {stages}, balanced by {by}"


def parameters_around(output: Path | None) -> Path | None:
    """The parameter file of the run directory that a run's file or directory is in."""
    if output is None:
        return None
    at = output if output.parent.name else output.absolute()
    run = at.parent.parent if at.parent.name == TRAINING else at
    path = run / PARAMETERS_FILE
    return path if path.exists() else None
