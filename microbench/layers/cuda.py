"""Time one layer on a CUDA device: events behind a spin kernel, eager or as a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from calib.microbench.cases import LayerCase
from calib.microbench.communicator import Control
from calib.microbench.communicators.devices import agree
from calib.microbench.layers.work import LayerWork, start_work
from calib.microbench.timing.clock import Clock
from calib.microbench.timing.cuda import (
    HeldStopwatch,
    arithmetic,
    cuda_problem,
    held_block,
    kernel_names,
)
from calib.microbench.timing.repeat import Repetitions, repeat
from calib.microbench.timing.stretches import Attempts, CallStretch

GRAPH_WARMUPS = 3  # before a capture, so that no kernel is chosen and nothing is loaded in it


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
