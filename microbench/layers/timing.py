"""Time one layer alone, at a rank's batch: whole passes, or the parts of the backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from calib.foundation.errors import InputError
from calib.microbench.calls import measure_calls
from calib.microbench.cases import LayerCase
from calib.microbench.control import Control
from calib.microbench.device import Device
from calib.microbench.devices.cpu import CPU
from calib.microbench.layers.work import RunnableLayer, check_case, start_work
from calib.microbench.timing.clock import Clock
from calib.microbench.timing.repeat import Repetitions
from calib.microbench.timing.stretches import Attempts, CallStretch

GRAPH_WARMUPS = 3  # before a capture, so that no kernel is chosen and nothing is loaded in it


def measure_layer(
    communicator: Control,
    case: LayerCase,
    seed: int,
    budget_s: float,
    target: float,
    clock: Clock | None = None,
    device: Device = CPU,
) -> Repetitions:
    """Repetitions of a layer's passes, in seconds; RunnableLayer.stretches says which.

    All ranks start each repetition together, so that they disturb one another as in training. On a CPU
    one timing holds one call: each backward needs a forward of its own, and gradients are dropped
    before each (`set_to_none`), as the training loop does. On a GPU it holds as many as its clock
    needs (calls.py). `cold` evicts the caches before each stretch; a backward behind its forward finds
    what that left. The very first call is part of the budget and kept as `first_s`, the maximum over
    ranks.

    On a GPU `ranks` are the device's seconds, `host` the host's, and one more run is profiled for the
    kernels' names (none where that fails).

    Raises InputError for a case that cannot be, MeasurementError on every rank where torch fails on
    any (no such kernel for the dtype, out of memory).
    """
    check_case(case)
    if case.device != device.kind:
        raise InputError(f"{case.label}: this rank measures on {device.kind}")
    with device.arithmetic(case.dtype):
        work, first_s = start_work(communicator, case, seed, device)
        attempts = Attempts(case.label)
        stretches: list[CallStretch] = []
        make = graph_stretches if case.mode == "graph" else RunnableLayer.stretches
        attempts.run(lambda: stretches.extend(make(work, case.passes)))
        attempts.agree(communicator)
        return measure_calls(
            communicator, device, case.label, stretches, first_s, budget_s, target, case.cold, clock
        )


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
