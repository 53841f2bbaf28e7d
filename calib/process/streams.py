"""stdout and stderr that may fail: closed, a full disk, a reader that left.

A line that nobody reads (`2>&1 | head -1`) must not end a measurement, nor a table that cannot be
printed keep a file from being written: the work goes on, and main says at the end what was not printed.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from calib.foundation.errors import FileError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDERR = 2


class Outlet(io.FileIO):
    """A file descriptor whose first failure is kept, not raised; later output is dropped."""

    lost: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        """All of it."""
        left = memoryview(data).cast("B")
        while left and self.lost is None:
            try:
                left = left[super().write(left) or 0 :]
                if left:  # a terminal that somebody has set to O_NONBLOCK
                    select.select([], [self], [])
            except OSError as error:
                self.lost = error
        return memoryview(data).nbytes


class Streams:
    """The streams of a verb. `may_close`: the reader of stdout may leave early (head)."""

    may_close = True

    def __init__(self) -> None:
        self._outlet: Outlet | None = None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """In the block nothing that is printed raises OSError."""
        hold_descriptors()
        before = sys.stdout, sys.stderr
        self._outlet, sys.stdout = guarded(sys.stdout, 1)
        _, sys.stderr = guarded(sys.stderr, STDERR)
        ours = sys.stdout, sys.stderr
        try:
            yield
        finally:
            for stream in ours:
                stream.flush()
            sys.stdout, sys.stderr = before

    @property
    def lost(self) -> OSError | None:
        """Why not all of stdout could be written, as far as is known."""
        return self._outlet.lost if self._outlet else None

    def require_written(self) -> None:
        """Raise FileError where stdout is incomplete and that matters."""
        sys.stdout.flush()
        lost = self.lost
        if lost is not None and not (self.may_close and isinstance(lost, BrokenPipeError)):
            raise FileError(f"not all of the result was printed: stdout: {lost.strerror}")


STREAMS = Streams()


def hold_descriptors() -> None:
    """Where descriptor 0, 1 or 2 is closed, keep opened files from getting its number.

    /dev/null is opened for reading only: writing to it fails, as to a closed descriptor.
    """
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def guarded(stream: TextIO | None, closed: int) -> tuple[Outlet | None, TextIO]:
    """(Outlet, the stream over it); a stream without a file descriptor (in a test) stays as it is.

    None is a stream that was closed from the start. Characters outside the encoding are escaped.
    """
    if stream is None:
        outlet = Outlet(closed, "w", closefd=False)
        return outlet, io.TextIOWrapper(io.BufferedWriter(outlet), "utf-8", "backslashreplace")
    try:
        outlet = Outlet(stream.fileno(), "w", closefd=False)
    except (OSError, ValueError):
        return None, stream
    assert isinstance(stream, io.TextIOWrapper)
    stream.flush()
    unbuffered = stream.write_through
    errors = "backslashreplace" if stream.errors == "strict" else stream.errors
    return outlet, io.TextIOWrapper(
        outlet if unbuffered else io.BufferedWriter(outlet),
        stream.encoding,
        errors,
        line_buffering=stream.line_buffering,
        write_through=unbuffered,
    )
