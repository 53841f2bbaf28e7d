"""Bytes of live tensors.

On a CPU a dispatch mode sees every tensor that an operation returns and counts its storage until it is
freed; temporaries inside an operation are not seen (peak RSS has them).
On a GPU the counts are the caching allocator's (devices/cuda.py), with the libraries' workspace.
"""

from __future__ import annotations

import resource
import sys
import weakref
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Storages = dict[int, torch.UntypedStorage]


def storages(tensors: Iterable[Any]) -> Storages:
    """The distinct storages of the tensors among `tensors`, by identity: views count once."""
    found = [item.untyped_storage() for item in tensors if isinstance(item, torch.Tensor)]
    return {storage._cdata: storage for storage in found}


def bytes_of(tensors: Iterable[Any]) -> int:
    """Bytes of the distinct storages of tensors."""
    return sum(storage.nbytes() for storage in storages(tensors).values())


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The tensors of an optimizer's state: none before its first step."""
    return [
        tensor
        for tensor in tree_leaves(list(optimizer.state.values()))
        if isinstance(tensor, torch.Tensor)
    ]


def peak_rss_bytes() -> int:
    """The largest resident set of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS has bytes, Linux KiB


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts bytes of tensors on the CPU while it is entered: `live` now, `peak` at most.

    It begins with `existing` tensors. Other older ones are left out, also when an operation changes them
    in place. It counts in one thread: a backward on the CPU runs on its caller's. What torch.compile
    compiled runs as written meanwhile: PyTorch would otherwise never again run it compiled.
    """

    def __init__(self, existing: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._counted: dict[int, int] = {}
        self._foreign: set[int] = set()
        self._watched: dict[int, Any] = {}  # storage -> what runs when it is freed
        self._as_written = ExitStack()
        for storage in storages(existing).values():
            self._count(storage)

    def _count(self, storage: torch.UntypedStorage) -> None:
        identity, nbytes = storage._cdata, storage.nbytes()
        if identity in self._foreign:
            return
        self._watch(storage)
        self.live += nbytes - self._counted.get(identity, 0)  # an output may have been resized
        self._counted[identity] = nbytes
        self.peak = max(self.peak, self.live)

    def _watch(self, storage: torch.UntypedStorage) -> None:
        identity = storage._cdata
        if identity not in self._watched:
            # the Python object of a storage lives as long as the storage itself
            self._watched[identity] = weakref.finalize(storage, self._freed, identity)

    def _freed(self, identity: int) -> None:
        del self._watched[identity]
        self._foreign.discard(identity)
        self.live -= self._counted.pop(identity, 0)

    def __enter__(self) -> Self:
        """Begin to count."""
        if "torch._dynamo" in sys.modules:
            self._as_written.enter_context(torch.compiler.set_stance("force_eager"))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop counting: `live` and `peak` stay as they are."""
        self._as_written.close()
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for finalizer in list(self._watched.values()):  # other threads go on freeing
            finalizer.detach()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation; count what it returns."""
        for storage in storages(tree_leaves((args, kwargs))).values():
            if storage._cdata not in self._counted:
                self._foreign.add(storage._cdata)
                self._watch(storage)
        result = func(*args, **(kwargs or {}))
        for storage in storages(tree_leaves(result)).values():
            self._count(storage)
        return result
