"""Time one layer alone, at a rank's batch: whole passes, or the parts of the backward.

On a GPU by events behind a spin kernel, eager or as a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from calib.microbench.cases import LayerCase
from calib.microbench.communicator import Control
from calib.microbench.layers.work import RunnableLayer, check_case, start_work
from calib.microbench.timing.caches import evict
from calib.microbench.timing.clock import Clock
from calib.microbench.timing.cuda import HeldStopwatch, held_block, kernel_names, on_gpu
from calib.microbench.timing.repeat import Repetitions, repeat
from calib.microbench.timing.stretches import Attempts, CallStretch, host_block, nothing

GRAPH_WARMUPS = 3  # before a capture, so that no kernel is chosen and nothing is loaded in it


def measure_layer(
    communicator: Control,
    case: LayerCase,
    seed: int,
    budget_s: float,
    target: float,
    device_index: int = 0,
    clock: Clock | None = None,
) -> Repetitions:
    """Repetitions of a layer's passes, in seconds; RunnableLayer.stretches says which.

    All ranks start each repetition together, so that they disturb one another as in training. One
    timing holds one call: each backward needs a forward of its own, and gradients are dropped
    before each (`set_to_none`), as the training loop does. `cold` evicts the caches before each
    stretch; a backward behind its forward finds what that left. The very first call is part of the
    budget and kept as `first_s`, the maximum over ranks.

    `device_index` is the rank's CUDA device: there `ranks` are the device's seconds, `host` the host's,
    and one more run is profiled for the kernels' names (none where that fails).

    Raises InputError for a case that cannot be, MeasurementError on every rank where torch fails on
    any (no such kernel for the dtype, out of memory), MachineError where CUDA is missing.
    """
    check_case(case)
    if case.device == "cpu":
        work, first_s = start_work(communicator, case, seed, torch.device("cpu"), nothing)
        before = evict if case.cold else nothing
        block = host_block(communicator, case.label, work.stretches(case.passes), before)
        result = repeat(communicator, block, max(0.0, budget_s - first_s), target, clock=clock)
        result.first_s = first_s
        return result
    with on_gpu(communicator, device_index, case.dtype == "tf32") as device:
        work, first_s = start_work(communicator, case, seed, device, torch.cuda.synchronize)
        attempts = Attempts(case.label)
        stretches: list[CallStretch] = []
        make = graph_stretches if case.mode == "graph" else RunnableLayer.stretches
        attempts.run(lambda: stretches.extend(make(work, case.passes)))
        watches: list[HeldStopwatch] = []
        attempts.run(lambda: watches.append(HeldStopwatch(case.cold)))
        attempts.agree(communicator)
        block = held_block(communicator, case.label, stretches, watches[0])
        result = repeat(communicator, block, max(0.0, budget_s - first_s), target, clock=clock)
        result.first_s = first_s
        attempts.run(lambda: result.kernels.update(stretch_kernels(stretches)))
    return result


def graph_stretches(work: RunnableLayer, passes: str) -> list[CallStretch]:
    """What RunnableLayer.stretches gives, as replays of captured CUDA graphs.

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
        return [CallStretch({"forward": forward.replay, **replays})]
    return [CallStretch({name: replay}, forward.replay) for name, replay in replays.items()]


def _replay(graph: torch.cuda.CUDAGraph, _written: object) -> None:
    """Replay; the caller keeps the tensors that the graph writes, whose memory stays theirs so."""
    graph.replay()


def stretch_kernels(stretches: Sequence[CallStretch]) -> dict[str, list[str]]:
    """Operation -> names of the kernels that it ran, in one more run."""
    names: dict[str, list[str]] = {}
    for stretch in stretches:
        stretch.prepare()
        for name, call in stretch.calls.items():
            names[name] = kernel_names(call)
    return names
