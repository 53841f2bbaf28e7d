"""Time one layer on a CUDA device: events behind a spin kernel, eager or as a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch

from calib.foundation.errors import MeasurementError
from calib.microbench.cases import LayerCase
from calib.microbench.communicator import Control
from calib.microbench.communicators.devices import agree
from calib.microbench.layers.work import Attempts, CallStretch, LayerWork, start_work
from calib.microbench.timing.clock import Clock
from calib.microbench.timing.cuda import (
    FIRST_SPIN_S,
    HeldStopwatch,
    Lap,
    arithmetic,
    cuda_problem,
    kernel_names,
    next_spin_s,
)
from calib.microbench.timing.repeat import RepeatedCalls, Repetitions, Timings, repeat
from calib.microbench.timing.watchdog import beat

MAX_TRIES = 8  # the spin doubles at least from one to the next
GRAPH_WARMUPS = 3  # before a capture, so that no kernel is chosen and nothing is loaded in it


class LapTimer(Protocol):
    """What the timed loop needs of a stopwatch."""

    def ready(self) -> None:
        """Evict the caches if wanted; return when the device is idle."""

    def lap(self, calls: Mapping[str, Callable[[], None]], spin_s: float) -> Lap:
        """Time calls behind a spin of so many seconds."""


def measure_on_cuda(
    communicator: Control,
    case: LayerCase,
    seed: int,
    budget_s: float,
    target: float,
    device_index: int,
    clock: Clock | None,
) -> Repetitions:
    """What measure_layer does, on this rank's device. `seconds` are the device's, `host` the host's.

    After the timing one more run is profiled for the kernels' names; where that fails there are
    none, and the times stay.
    """
    agree(communicator, cuda_problem())
    # modulo: a launcher may show each rank its own GPU alone
    device = torch.device("cuda", device_index % torch.cuda.device_count())
    with torch.cuda.device(device), arithmetic(case.dtype == "tf32"):
        work, first_s = start_work(communicator, case, seed, device, torch.cuda.synchronize)
        attempts = Attempts(case.label)
        stretches: list[CallStretch] = []
        make = graph_stretches if case.mode == "graph" else LayerWork.stretches
        attempts.run(lambda: stretches.extend(make(work, case.passes)))
        watches: list[HeldStopwatch] = []
        attempts.run(lambda: watches.append(HeldStopwatch(case.cold)))
        attempts.agree(communicator)
        block = held_block(communicator, case.label, stretches, watches[0])
        result = repeat(communicator, block, max(0.0, budget_s - first_s), target, clock=clock)
        result.first_s = first_s
        attempts.run(lambda: result.kernels.update(stretch_kernels(stretches)))
    return result


def held_block(
    communicator: Control, label: str, stretches: Sequence[CallStretch], watch: LapTimer
) -> RepeatedCalls:
    """The timed loop of stretches of calls on this rank's device; `label` is for errors.

    A repetition that the spin did not hold on some rank is made again by all of them, behind a
    longer spin. Raises MeasurementError where MAX_TRIES do not do.
    """
    spin_s = FIRST_SPIN_S

    def repetition(attempts: Attempts) -> list[Lap]:
        laps: list[Lap] = []

        def lap(stretch: CallStretch) -> None:
            laps.append(watch.lap(stretch.calls, spin_s))

        for stretch in stretches:
            attempts.run(stretch.prepare)
            attempts.run(watch.ready)
            communicator.barrier()
            attempts.run(partial(lap, stretch))
        return laps

    def block(n: int) -> Timings:
        nonlocal spin_s
        rows: dict[int, list[Lap]] = {}
        todo = list(range(n))
        for _ in range(MAX_TRIES):
            attempts = Attempts(label)
            rows.update({index: repetition(attempts) for index in todo})
            attempts.agree(communicator)
            laps = [lap for index in todo for lap in rows[index]]
            wanted = max(next_spin_s(spin_s, lap.queue_s, lap.held) for lap in laps)
            missed = [i for i in todo if not all(lap.held for lap in rows[i])]
            everyone = communicator.allgather_object([missed, wanted])
            beat()
            # one length for all: the ranks' calls are to run at the same time
            spin_s = max(wanted for _, wanted in everyone)
            todo = sorted({index for missed, _ in everyone for index in missed})
            if not todo:
                return _timings([rows[index] for index in range(n)])
        raise MeasurementError(
            f"{label}: the calls cannot be queued ahead of the device (one waits for it), so "
            "the device's own time is not known; try mode graph"
        )

    return block


def _timings(rows: Sequence[Sequence[Lap]]) -> Timings:
    """The laps of all repetitions by operation."""
    names = [name for lap in rows[0] for name in lap.seconds]

    def of(values: Callable[[Lap], dict[str, float]]) -> dict[str, list[float]]:
        merged = [{k: v for lap in laps for k, v in values(lap).items()} for laps in rows]
        return {name: [row[name] for row in merged] for name in names}

    return Timings(
        of(lambda lap: lap.seconds),
        [laps[0].start for laps in rows],
        of(lambda lap: lap.host_seconds),
    )


def graph_stretches(work: LayerWork, passes: str) -> list[CallStretch]:
    """What LayerWork.stretches gives, as replays of captured CUDA graphs.

    Forward and backward are captured apart, from one forward with static tensors, as
    torch.cuda.make_graphed_callables does. Backward is the gradient of every leaf.
    """
    parts = work.leaves()
    if passes == "whole":
        everything = [leaf for leaves in parts.values() for leaf in leaves]
        parts = {"backward": everything} if everything else {}
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    forward = torch.cuda.CUDAGraph()
    replays: dict[str, Callable[[], None]] = {}
    with torch.cuda.stream(stream):
        for _ in range(GRAPH_WARMUPS):
            work.drop()
            work.forward()
            for leaves in parts.values():
                work.gradients(leaves, keep=True)
        work.drop()
        # autograd runs a backward on the stream of its forward: all captures are on this one
        with torch.cuda.graph(forward, stream=stream):
            work.forward()
        for name, leaves in parts.items():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=forward.pool(), stream=stream):
                gradients = work.gradients(leaves, keep=True)
            replays[name] = partial(_replay, graph, gradients)
    torch.cuda.synchronize()
    if passes == "whole":
        return [CallStretch(_nothing, {"forward": forward.replay, **replays})]
    return [CallStretch(forward.replay, {name: replay}) for name, replay in replays.items()]


def _replay(graph: torch.cuda.CUDAGraph, _written: object) -> None:
    """Replay; the caller keeps the tensors that the graph writes, whose memory stays theirs so."""
    graph.replay()


def _nothing() -> None:
    """A replay needs no preparation: it writes where it wrote before."""


def stretch_kernels(stretches: Sequence[CallStretch]) -> dict[str, list[str]]:
    """Operation -> names of the kernels that it ran, in one more run."""
    names: dict[str, list[str]] = {}
    for stretch in stretches:
        stretch.prepare()
        for name, call in stretch.calls.items():
            names[name] = kernel_names(call)
    return names
