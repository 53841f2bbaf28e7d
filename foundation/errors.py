"""The one exception tree. A message says in one line what was wrong and where; no command line."""

from __future__ import annotations

LONGEST = 2000  # characters of a message, which may quote a file


class CalibError(Exception):
    """Anything that a user can get wrong. The CLI prints its one line and exits with 2.

    `wants` is what would mend it: the name of an argument, or of a thing that another step makes. The
    front door words it as a command line (calib/advice.py).
    """

    def __init__(self, message: str, wants: str = "") -> None:
        line = " ".join(message.split())
        if len(line) > LONGEST:
            line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
        super().__init__(line)
        self.wants = wants


class InputError(CalibError):
    """A flag, a name or a number that cannot be."""


class FileError(CalibError):
    """A file that is missing, truncated, cannot be written, or holds what it must not."""


class MachineError(CalibError):
    """Something that this machine lacks: an MPI, a library, enough cores."""


class Unavailable(MachineError):
    """What one case asks for and this machine lacks: the case is left out, the others go on."""


class MeasurementError(CalibError):
    """A measurement that gave a wrong result or none; it has no time."""


class MissingParameter(CalibError):
    """The parameters lack what a prediction needs."""


class Interrupted(CalibError):
    """The user stopped the work; says what was kept and how to go on."""


class CalibWarning(UserWarning):
    """What a user must know though it is no error; the CLI prints it on stderr, in one line, once."""
