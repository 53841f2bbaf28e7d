"""SIGINT and SIGTERM: whenever they come, they end a verb as KeyboardInterrupt.

Python raises it wherever the main thread is. In the middle of an import it is lost or becomes another
error: libraries catch whatever an import raises, and C code drops exceptions. So during an import a
signal is only noted, and a timer raises it as soon as the import is over.

This module imports next to nothing: until it is there, Ctrl-C ends in a traceback.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import NoReturn

    Handler = Callable[[int, FrameType | None], None] | int | None

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LOOK_AGAIN_S = 0.02
# a terminal and a launcher may both send the same Ctrl-C
SAME_S = 1.0
# an import that hangs (a module of the user's) is not waited for
PATIENCE_S = 20.0
STATUS, RANK_STATUS = 2, 130
IMPORTS = "<frozen importlib._bootstrap>"


class Interrupts:
    """Handlers of signals, and when one came that was not raised yet.

    A `rank` has nothing to tidy up or to say: whoever ended the ranks knows why.
    """

    def __init__(self) -> None:
        self.rank = False
        self._since: float | None = None

    def listen(self) -> None:
        """From here on both signals raise KeyboardInterrupt, except during an import.

        An ignored signal stays ignored: nohup and shells ignore them for background jobs.
        """
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._came)
        dropped = sys.unraisablehook

        def again(lost: sys.UnraisableHookArgs) -> None:
            """Python drops what is raised in __del__ and in callbacks."""
            if not issubclass(lost.exc_type, KeyboardInterrupt):
                dropped(lost)
            elif self._since is None:
                self._note()

        sys.unraisablehook = again

    def over(self) -> bool:
        """From here on a signal ends the process at once; returns whether one was noted before."""
        for number in SIGNALS:
            if signal.getsignal(number) == self._came:
                signal.signal(number, signal.SIG_DFL)
        noted = self._since is not None
        self._forget()
        return noted

    def hold_back(self, said: str) -> dict[signal.Signals, Handler]:
        """From here on SIGTERM and the first Ctrl-C only print a message; the second raises.

        Returns the handlers that were there, for `put_back`.
        """
        seen: list[int] = []

        def later(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGINT and number in seen:
                self._came(number, frame)
            elif number not in seen:
                seen.append(number)
                _write(said)

        before: dict[signal.Signals, Handler] = {n: signal.signal(n, later) for n in SIGNALS}
        if self._since is not None:  # it came as something was being imported
            self._forget()
            _write(said)
        return before

    def put_back(self, before: dict[signal.Signals, Handler]) -> None:
        """End what `hold_back` has begun."""
        for number, handler in before.items():
            signal.signal(number, handler)

    def ignore(self, *numbers: signal.Signals) -> None:
        """From here on these are ignored."""
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    def end(self) -> NoReturn:
        """Say so and end at once, as after a kill; nothing that is kept is lost.

        Without Python's own clean-up, which may report a KeyboardInterrupt that was never caught.
        """
        if not self.rank:
            _write("calib: error: interrupted")
        os._exit(RANK_STATUS if self.rank else STATUS)

    def _came(self, number: int, frame: FrameType | None) -> None:
        if not importing(frame):
            self._raise()
        if self._since is None:
            self._note()
        elif monotonic() - self._since > SAME_S:
            self.end()

    def _note(self) -> None:
        self._since = monotonic()
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, LOOK_AGAIN_S, LOOK_AGAIN_S)

    def _look(self, number: int, frame: FrameType | None) -> None:
        if self._since is None:
            return
        if not importing(frame):
            self._raise()
        if self.rank or monotonic() - self._since > PATIENCE_S:
            self.end()

    def _forget(self) -> None:
        self._since = None
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _raise(self) -> NoReturn:
        self._forget()
        raise KeyboardInterrupt


INTERRUPTS = Interrupts()


def importing(frame: FrameType | None) -> bool:
    """Whether a frame runs as part of an import."""
    while frame is not None and frame.f_code.co_filename != IMPORTS:
        frame = frame.f_back
    return frame is not None


def _write(line: str) -> None:
    """Not by sys.stderr, which the signal may have interrupted."""
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())
