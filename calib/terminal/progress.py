"""Progress of long work: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from calib.foundation.words import clock_words

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PLAIN_EVERY_S = 10.0


class Bar:
    """What is being done, done/total and the time left. Writes to stderr. `total` may change."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self.total = title, total
        self._start = self._said = monotonic()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]} left"),
                TextColumn("{task.fields[label]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task(self._title, total=self.total, left="?", label="")
        else:
            print(f"{self._title}: {self.total} to do", file=sys.stderr, flush=True)
        return self

    def update(self, done: int, label: str, left_s: float | None = None) -> None:
        """`done` of the total are done, `label` is next, the rest takes `left_s` seconds.

        By default it takes as long for each as those that are done.
        """
        if left_s is None:
            left_s = (monotonic() - self._start) / done * (self.total - done)
        if self._progress is not None and self._task is not None:
            left = clock_words(left_s)
            self._progress.update(
                self._task, completed=done, total=self.total, label=label, left=left
            )
        elif monotonic() - self._said >= PLAIN_EVERY_S:
            self._said = monotonic()
            print(
                f"{self._title}: {done}/{self.total}, {clock_words(left_s)} left, {label}",
                file=sys.stderr,
                flush=True,
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
        if kind is None:
            elapsed = monotonic() - self._start
            print(f"{self._title}: done in {clock_words(elapsed)}", file=sys.stderr, flush=True)
