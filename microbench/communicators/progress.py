"""A progress thread for nonblocking operations; it completes their futures.

It starts with the first of them. While any is under way it tests them every 50 us, asleep in
between, so that it takes little of a core that computes.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import sleep
from typing import Any

POLL_S = 50e-6

_Item = tuple[Callable[[], bool], Any, Any]
_QUEUE: SimpleQueue[_Item | None] = SimpleQueue()  # None: stop
_STARTING = threading.Lock()
_threads: list[threading.Thread] = []


def complete(test: Callable[[], bool], future: Any, result: Any) -> None:
    """Call `test` until it is true, then set the future's result; its exception if it raises."""
    with _STARTING:
        if not _threads:
            _threads.append(threading.Thread(target=_work, name="calib_mpi", daemon=True))
            _threads[0].start()
            # a thread that Python's end cuts off inside torch's C++ would abort the process
            atexit.register(_stop)
    _QUEUE.put((test, future, result))


def _work() -> None:
    pending: list[_Item] = []
    while True:
        while not pending or not _QUEUE.empty():
            item = _QUEUE.get()
            if item is None:
                return
            pending.append(item)
        pending = [item for item in pending if not _completed(*item)]
        if pending:
            sleep(POLL_S)


def _stop() -> None:
    _QUEUE.put(None)
    _threads[0].join()


def _completed(test: Callable[[], bool], future: Any, result: Any) -> bool:
    try:
        if not test():
            return False
        future.set_result(result)
    except Exception as error:  # whoever waits shall hear of it
        future.set_exception(error)
    return True
