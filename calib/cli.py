"""The entry point. Whatever ends a verb becomes one line and an exit code.

It imports little, so that signals are heard from the start; the verbs stand in calib/app.py.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress

from calib.process.interrupts import INTERRUPTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

USER_ERROR = 2


def main() -> NoReturn:
    """Run the command line; exits with 0, or with 2 and one line on stderr."""
    try:
        INTERRUPTS.listen()
        from calib.process.streams import STREAMS

        with STREAMS.guarded():
            status = _status()
    except KeyboardInterrupt:
        INTERRUPTS.end()
    gc.freeze()  # the end looks for garbage in all that is left: a model of 30,000 layers
    sys.exit(status)


def _status() -> int:
    """The exit code; what is not 0 has its line."""
    try:
        return _run()
    except Exception as error:
        INTERRUPTS.over()
        return _failed(error)


def _run() -> int:
    from calib.process.streams import STREAMS
    from calib.process.surroundings import require_directory, watch_address_space

    require_directory()
    watch_address_space()
    from calib.driver.ranks import as_rank, driven

    INTERRUPTS.rank = as_rank()
    if driven():
        _begin_mpi()
    from calib.app import run

    status = run()
    if INTERRUPTS.over():
        raise KeyboardInterrupt
    if status == 0:
        STREAMS.require_written()
    return status


def _begin_mpi() -> None:
    """Connect a rank before it imports what else it needs.

    MPICH 5 reads beyond UCX's address of a process (up to 4 KiB) and sends that as well. Where other
    modules have used that memory before, the text is long, and Slurm's pmi2 loses requests of over
    1,024 characters: the ranks wait for ever.
    """
    with suppress(ImportError, RuntimeError):  # whoever needs it says so
        from mpi4py import MPI

        assert MPI.Is_initialized()  # by its import


def _failed(error: Exception) -> int:
    """Say why, in one line. A bug is raised; but where one rank dies alone, the others would wait."""
    import traceback

    from calib.driver.ranks import as_rank, fail_rank, words_of

    line = _line(error)
    if as_rank():
        if line is None:
            traceback.print_exc()
        fail_rank(line or " ".join(words_of(error).split()))
    if line is None:
        raise error
    return _say(line)


def _line(error: Exception) -> str | None:
    """What a person can do something about, in a line; None of a bug."""
    from calib.foundation.errors import CalibError

    if isinstance(error, CalibError):
        from calib.advice import advised

        return " ".join(advised(error).split())
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return f"not enough memory{': ' * bool(text)}{text}"
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror}"
    if isinstance(error, ImportError):
        return (
            f"cannot load {error.name or 'a library'}: {text}; `make setup` installs what is needed"
        )
    return None


def _say(line: str) -> int:
    from calib.foundation.text import plain

    print(f"calib: error: {plain(line)}", file=sys.stderr)
    return USER_ERROR
