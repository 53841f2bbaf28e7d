"""Record the iterations of any PyTorch loop as a run.jsonl, phase by phase, in a few lines.

    with calib_recorder("run.jsonl", model="mine", batch=256, module=net, optimizer=optimizer) as record:
        for x, y in data:
            with record():
                loss = criterion(net(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

Without `with record()` an iteration is from the end of one optimizer.step to the end of the next, with
loading of data. Phases: forward, from the module's call to the backward (so with the loss function);
backward, with what DistributedDataParallel waits for in it; update, optimizer.step. What is in none of
them (loading, zero_grad, clipping, printing) is in the iteration's `whole` alone.
`record.of("exchange")` is a context for communication of the loop's own. On every rank of
torch.distributed, once it is initialised: entering, leaving and every tenth iteration gather the times
on rank 0, which writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from calib.foundation.errors import InputError
from calib.training.importers.records import ImportedCase, strategy_of
from calib.training.recorder.file import RecordedRanks
from calib.training.recorder.loop import Recorder


def _name_of(optimizer: torch.optim.Optimizer | None) -> str:
    """As `calib train` calls it."""
    if optimizer is None:
        return "unknown"
    name = type(optimizer).__name__.lower()
    return "momentum" if name == "sgd" and optimizer.defaults.get("momentum") else name


def _whole(least: int, **numbers: Any) -> None:
    """Raise InputError for what is given and is no whole number from `least`."""
    for name, value in numbers.items():
        if value is not None and (type(value) is not int or value < least):
            raise InputError(f"{name} = {value!r} is not a whole number from {least}")


def _device(given: torch.device | str | None, module: nn.Module | None) -> torch.device:
    """The one that is given, else the module's. Raises InputError."""
    if given is None:
        first = next(module.parameters(), None) if module is not None else None
        return first.device if first is not None else torch.device("cpu")
    try:
        found = torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"{given!r} is no device of PyTorch") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {str(found)!r}, but PyTorch has no GPU here")
    return found


def calib_recorder(
    path: Path | str,
    *,
    model: str,
    batch: int,
    strategy: str | None = None,
    p: int | None = None,
    module: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    device: torch.device | str | None = None,
    warmup: int = 1,
    iterations: int | None = None,
    inner: int = 1,
    segments: int = 1,
    dtype: str | None = None,
) -> Recorder:
    """Record the iterations of any PyTorch loop into a run.jsonl.

    Parameters
    ----------
    path
        A new file.
    model
        Its name in the run.
    batch
        Global mini-batch.
    strategy
        A strategy of calib, or ddp, ...; by default data on several ranks, else serial.
    p
        Ranks; by default those of torch.distributed.
    module, optimizer
        Where given, the phases of an iteration are recorded too.
    device
        By default that of the module's first parameter.
    warmup
        Iterations that are kept apart at the start.
    iterations
        How many are planned after them.
    inner, segments
        p2 of a hybrid; micro-batches of a pipeline.
    dtype
        float32, bfloat16 or float64; by default that of the module.

    Returns
    -------
    Recorder
        A context manager. Entered, it is called for a context of one iteration each; without that, an
        iteration lasts from one `optimizer.step` to the next.

    Raises
    ------
    InputError
        A case that cannot be.
    FileError
        On entering: the file exists, or cannot be written.

    Examples
    --------
    >>> with calib_recorder("run.jsonl", model="mine", batch=256, module=net) as record:
    ...     for inputs, targets in loader:
    ...         with record():
    ...             train_step(inputs, targets)
    """
    if not isinstance(model, str):
        raise InputError(f"model is a name, not a {type(model).__name__}; the module is module=")
    _whole(1, batch=batch, p=p, inner=inner, segments=segments)
    _whole(0, warmup=warmup, iterations=iterations)
    where = _device(device, module)
    first = next(module.parameters(), None) if module is not None else None
    ranks = p if p is not None else RecordedRanks(where).size
    name = strategy_of(strategy) if strategy is not None else ("data" if ranks > 1 else "serial")
    item = str(first.dtype).removeprefix("torch.") if first is not None else "unknown"
    about = {
        "inner": inner,
        "segments": segments,
        "optimizer": _name_of(optimizer),
        "dtype": dtype or item,
        "warmup": warmup,
        "iterations": iterations,
    }
    return Recorder(
        Path(path), ImportedCase(model, name, ranks, batch), module, optimizer, where, about
    )
