"""Record the iterations of any PyTorch loop as a run.jsonl, phase by phase, in a few lines.

    with calib_recorder("run.jsonl", model="mine", batch=256, module=net, optimizer=optimizer) as record:
        for x, y in data:
            with record():
                loss = criterion(net(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

Without `with record()` an iteration lasts from the end of one optimizer.step to the end of the next,
with loading of data. Phases: forward, from the module's call to the backward (so with the loss
function); backward, with what DistributedDataParallel waits for in it; update, optimizer.step. All else
(loading, zero_grad, clipping, printing) is only in the iteration's `whole`. `record.of("exchange")` is
a context for the loop's own communication. Where torch.distributed is initialised, every rank must
record: entering, leaving and every tenth iteration gather the times on rank 0, which writes.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from calib.foundation.errors import InputError
from calib.foundation.execution import execution_of
from calib.microbench.devices import device_of
from calib.training.importers.records import ImportedCase, absent_phases, strategy_of
from calib.training.recorder.file import COLUMNS, RecordedRanks, RunFile, header_of
from calib.training.run.lines import RUN_PHASES, RunEnd

BLOCK = 10  # iterations between writes, which are untimed
REST = ""  # in none of the phases
PhaseMark = tuple[str, Any]  # the phase that begins, and the clock's reading


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
    execution: str | None = None,
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
    execution
        As `calib train --execution` has it: bfloat16, bfloat16-mixed (of a loop in autocast, which
        its module does not tell), +channels_last, ...; by default the type of the module's weights.

    Returns
    -------
    Recorder
        A context manager. Entered, it is called for a context of one iteration each; without that, an
        iteration lasts from one `optimizer.step` to the next.

    Raises
    ------
    InputError
        A case that cannot be, an execution that calib does not know.
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
        "execution": execution_of(execution).name if execution else item,
        "warmup": warmup,
        "iterations": iterations,
    }
    return Recorder(
        Path(path), ImportedCase(model, name, ranks, batch), module, optimizer, where, about
    )


def _name_of(optimizer: torch.optim.Optimizer | None) -> str:
    """An optimizer's name in `calib train`."""
    if optimizer is None:
        return "unknown"
    name = type(optimizer).__name__.lower()
    return "momentum" if name == "sgd" and optimizer.defaults.get("momentum") else name


def _whole(least: int, **numbers: Any) -> None:
    """Raise InputError for a number that is given and is no whole number from `least` on."""
    for name, value in numbers.items():
        if value is not None and (type(value) is not int or value < least):
            raise InputError(f"{name} = {value!r} is not a whole number from {least}")


def _device(given: torch.device | str | None, module: nn.Module | None) -> torch.device:
    """The given device, else the module's. Raises InputError."""
    if given is None:
        first = next(module.parameters(), None) if module is not None else None
        return first.device if first is not None else torch.device("cpu")
    try:
        found = torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"{given!r} is not a PyTorch device") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {str(found)!r}, but PyTorch has no GPU here")
    return found


class Recorder:
    """Records iterations while it is entered; made by `calib_recorder`. Call it for one iteration."""

    def __init__(
        self,
        path: Path,
        case: ImportedCase,
        module: nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        device: torch.device,
        circumstances: dict[str, Any],
    ) -> None:
        self._path, self._case, self._about = path, case, circumstances
        self._module, self._optimizer, self._device = module, optimizer, device
        self._clock = device_of(device)
        self._marks: list[PhaseMark] = []
        self._open = self._by_hand = self._inside = False
        self._done: list[tuple[list[PhaseMark], Tensor | float | None]] = []
        self._loss: Tensor | float | None = None
        self._known = set(absent_phases(case))
        self._hooked = {"forward", "backward"} if module is not None else set()
        self._hooked |= {"update"} if optimizer is not None else set()
        self._seen: set[str] = set()  # those of them whose hooks have run
        self._handles: list[Any] = []
        self._lasted: list[float] = []
        self._most_marks = 0
        self._writing_s = 0.0

    def __enter__(self) -> Recorder:
        ranks = RecordedRanks(self._device)
        header = header_of(self._case, ranks, self._device, **self._about)
        self._file = RunFile(self._path, header, ranks)
        if self._module is not None:
            self._handles.append(self._module.register_forward_pre_hook(self._before_forward))
            self._handles.append(self._module.register_forward_hook(self._after_forward))
        if self._optimizer is not None:
            self._handles.append(self._optimizer.register_step_pre_hook(self._before_step))
            self._handles.append(self._optimizer.register_step_post_hook(self._after_step))
            self._begin()
        self._entered = perf_counter()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._open = False
        if error is not None:  # other ranks may never come: keep what was gathered
            if not self._file.ranks.joined:
                self._file.add(self._rows())
            self._file.stop()
            return
        lasted = perf_counter() - self._entered
        rows = self._rows()
        share = self._most_marks * self._seconds_of_a_mark() / median(self._lasted or [math.inf])
        end = RunEnd(
            peak_rss_bytes=[], wall_seconds=0.0, clock_share=share, switches=self._most_marks
        )
        note = f"writing took {self._writing_s / max(lasted, 1e-9):.2%} of the loop, between iterations"
        self._file.finish(rows, end, [note])
        for line in self._doubts():
            warnings.warn(f"{self._path}: {line}", stacklevel=2)

    def _doubts(self) -> list[str]:
        """Why there is less in the file than asked for, one line per reason."""
        if not self._file.written:
            return [
                "nothing was recorded: no optimizer.step was seen, and nothing ran in "
                "`with record():`"
            ]
        missing = self._hooked - self._seen
        found = []
        if "forward" in missing:
            found.append(
                "module was never called in training, so that forward and backward are not known; "
                "for torch.compile give the compiled one"
            )
        elif "backward" in missing:
            found.append(
                "no backward through what module returns was seen, so that it is not known; "
                "record.loss(loss) before loss.backward() shows where it begins"
            )
        if "update" in missing:
            found.append("optimizer.step was never called, so that update is not known")
        return found

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Recorder]:
        """One iteration: only what runs inside the context."""
        if self._inside:
            raise InputError("record() is in another record()")
        if not self._by_hand:
            self._by_hand, self._done = True, []
        self._begin()
        self._inside = True
        try:
            yield self
            self._end()
        finally:  # a failed iteration does not count
            self._open = self._inside = False

    def loss(self, value: Tensor | float) -> None:
        """The loss of this iteration; called before the backward, which then begins exactly there."""
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise InputError(f"a loss is one number, not {tuple(value.shape)}")
            self._hook(value)
            value = value.detach()
        self._loss = value

    @contextlib.contextmanager
    def of(self, phase: str) -> Iterator[None]:
        """A context for work of `phase`. Raises InputError for one that is not in RUN_PHASES."""
        if phase not in RUN_PHASES:
            raise InputError(f"unknown phase {phase!r}; known: {', '.join(RUN_PHASES)}")
        self._known.add(phase)
        before = self._marks[-1][0] if self._marks else REST
        self._mark(phase)
        try:
            yield
        finally:
            self._mark(before)

    def _begin(self) -> None:
        self._open, self._loss = True, None
        self._marks = [(REST, self._clock.now())]

    def _mark(self, phase: str) -> None:
        if self._open:
            self._marks.append((phase, self._clock.now()))

    def _saw(self, phase: str) -> None:
        """A hook ran where the phase begins."""
        if self._open:
            self._seen.add(phase)
            self._mark(phase)

    def _end(self) -> None:
        self._mark(REST)
        self._open = False
        self._done.append((self._marks, self._loss))
        if len(self._done) == BLOCK:
            start = perf_counter()
            self._file.add(self._rows())
            self._writing_s += perf_counter() - start

    def _rows(self) -> Tensor:
        """The iterations that are not written yet, as RunFile takes them."""
        rows = [self._row(marks, loss) for marks, loss in self._done]
        self._done = []
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, COLUMNS)

    def _row(self, marks: list[PhaseMark], loss: Tensor | float | None) -> list[float]:
        seconds = dict.fromkeys(RUN_PHASES, math.nan) | dict.fromkeys(self._known, 0.0)
        if "update" in self._seen:  # where gradients are accumulated, most iterations have none
            seconds["update"] = 0.0
        # a phase whose hooks never ran is unknown, which is not 0
        seconds |= {phase: 0.0 for phase, _ in marks if phase != REST}
        whole = 0.0
        for (phase, start), (_, stop) in pairwise(marks):
            lasts = self._clock.seconds(start, stop)
            whole += lasts
            if phase != REST:
                seconds[phase] += lasts
        self._lasted.append(whole)
        self._most_marks = max(self._most_marks, len(marks))
        value = math.nan if loss is None else float(loss)
        return [whole, value, *(seconds[phase] for phase in RUN_PHASES)]

    def _seconds_of_a_mark(self, n: int = 1000) -> float:
        start = perf_counter()
        self._begin()
        for _ in range(n):
            self._mark(REST)
        self._open = False
        return (perf_counter() - start) / n

    # hooks

    def _before_forward(self, module: nn.Module, inputs: Any) -> None:
        if module.training and torch.is_grad_enabled():
            self._saw("forward")
        else:  # an evaluation is no phase of training
            self._mark(REST)

    def _after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        found = [x for x in _tensors(output) if x.requires_grad] if self._open else []
        for tensor in found:
            self._hook(tensor)
        if not found:
            self._mark(REST)

    def _hook(self, tensor: Any) -> None:
        if tensor.requires_grad:
            tensor.register_hook(self._begin_backward)

    def _begin_backward(self, gradient: Tensor) -> None:
        if self._open and self._marks[-1][0] != "backward":
            self._saw("backward")
            _when_backward_ends(lambda: _when_backward_ends(self._end_backward))

    def _end_backward(self) -> None:
        self._mark(REST)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._saw("update")

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._mark(REST)
        if self._open and not self._by_hand:
            self._end()
            self._begin()


def _when_backward_ends(function: Callable[[], None]) -> None:
    """Call `function` at the end of the running backward, after callbacks queued so far (DDP's).

    A function that queues itself again from there runs after all that others queued meanwhile.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(function)


def _tensors(output: Any) -> list[Tensor]:
    """The tensors in what a module returned."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return [tensor for item in output for tensor in _tensors(item)]
    return []
