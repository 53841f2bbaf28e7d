"""Ranks as threads whose buffers are torch tensors: what training's strategies get, without MPI."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Barrier, Lock
from typing import Any

import pytest
import torch
from tests.helpers.ranks import TIMEOUT_S, ThreadCommunicator, results, run_ranks
from torch import nn

import calib.microbench.memory
import calib.training.checks.gradients
import calib.training.footprint
import calib.training.step
import calib.training.worker
from calib.foundation.division import Division
from calib.training.layer_program import LayerProgram
from calib.training.models import ModelEntry
from calib.training.teams import Teams, teams_of


class TensorRanks(ThreadCommunicator):
    """A ThreadCommunicator of CPU tensors of any item type, as TorchCommunicator is."""

    library = "threads"
    process_group = None

    def buffer(self, items: int) -> Any:
        return torch.empty(items)

    def fill(self, buffer: Any, value: float) -> None:
        buffer.fill_(value)

    def allreduce(self, buffer: Any) -> None:
        # a fixed order of summation: the same on all ranks
        everyone = self._exchange(buffer.detach().clone())
        with torch.no_grad():
            buffer.copy_(sum(everyone[1:], everyone[0]))

    def allgather(self, mine: Any, gathered: Any) -> None:
        everyone = self._exchange(mine.detach().reshape(-1).clone())
        with torch.no_grad():
            gathered.view(-1).copy_(torch.cat(everyone))

    def allgatherv(self, mine: Any, gathered: Any, counts: Sequence[int]) -> None:
        assert mine.numel() == counts[self.rank] and gathered.numel() == sum(counts)
        self.allgather(mine, gathered)

    def reduce_scatter(self, whole: Any, mine: Any) -> None:
        everyone = self._exchange(whole.detach().clone())
        with torch.no_grad():
            mine.copy_(sum(everyone[1:], everyone[0]).view(self.size, -1)[self.rank])

    def all_to_all(self, outgoing: Any, incoming: Any) -> None:
        everyone = self._exchange(outgoing.detach().reshape(self.size, -1).clone())
        with torch.no_grad():
            incoming.view(self.size, -1).copy_(torch.stack([of[self.rank] for of in everyone]))

    def broadcast(self, buffer: Any, root: int) -> None:
        found = self._exchange(buffer.detach().clone())[root]
        with torch.no_grad():
            buffer.copy_(found)

    def reduce(self, buffer: Any, root: int) -> None:
        everyone = self._exchange(buffer.detach().clone())
        with torch.no_grad():
            if self.rank == root:
                buffer.copy_(sum(everyone[1:], everyone[0]))
            else:
                buffer.fill_(float("nan"))  # afterwards undefined

    def send(self, buffer: Any, to: int) -> None:
        assert buffer.is_contiguous()
        self._group.pipes[self.rank, to].put(buffer.detach().clone())

    def receive(self, buffer: Any, source: int) -> None:
        assert buffer.is_contiguous()
        with torch.no_grad():
            buffer.copy_(self._group.pipes[source, self.rank].get(timeout=60.0))


class Noted:
    """A communicator whose collectives and exchanges are handed to `note` before they are made.

    `note` takes the operation, without the v of allgatherv, the whole buffer (of an exchange: the
    longest that is sent, or None) and all buffers.
    """

    WHOLE = {"allreduce": 0, "allgather": 1, "allgatherv": 1} | dict.fromkeys(
        ("reduce_scatter", "all_to_all", "reduce", "broadcast"), 0
    )

    def __init__(self, of: Any, note: Callable[[str, Any, list[torch.Tensor]], None]) -> None:
        self._of, self._note = of, note
        self.rank, self.size = of.rank, of.size

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._of, name)
        if name not in self.WHOLE:
            return call

        def noted(*arguments: Any) -> None:
            buffers = [x for x in arguments if isinstance(x, torch.Tensor)]
            self._note(name.removesuffix("v"), buffers[self.WHOLE[name]], buffers)
            call(*arguments)

        return noted

    def exchange(self, outgoing: Any, incoming: Any) -> None:
        sent = [buffer for buffer, _ in outgoing]
        longest = max(sent, key=torch.Tensor.numel, default=None)
        self._note("exchange", longest, sent + [buffer for buffer, _ in incoming])
        self._of.exchange(outgoing, incoming)


def thread_teams(control: Any, division: Division, backend: str = "mpi") -> Teams:
    """calib.training.teams.make_teams on the ranks of `control`, whatever the backend."""
    world: Any = TensorRanks(control._group, control.rank)
    return teams_of(world, division)


class Unwatched:
    """A LiveBytes that counts nothing."""

    live = peak = 0

    def __init__(self, existing: Sequence[torch.Tensor] = ()) -> None:
        pass

    def __enter__(self) -> Unwatched:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@contextmanager
def taking_turns(ranks: int) -> Iterator[None]:
    """What ranks that are threads must not do at once; around every training of such ranks.

    They share torch's generator: ranks that drew their weights at once would draw others. torch.export
    changes PyTorch for all threads while it traces. And storages that one rank watches while another
    frees them crash Python: the bytes of several ranks are not counted (of processes they are).
    """
    made: dict[Any, nn.Module] = {}
    lock, build = Lock(), calib.training.step.built

    def built(about: ModelEntry, seed: int) -> nn.Module:
        with lock:
            if (about, seed) not in made:
                made[about, seed] = build(about, seed)
            return copy.deepcopy(made[about, seed])

    trace, meeting = calib.training.worker.layer_program, Barrier(ranks, timeout=TIMEOUT_S)

    def traced(module: nn.Module, about: ModelEntry, batch: int) -> LayerProgram:
        meeting.wait()
        try:
            with lock:
                return trace(module, about, batch)
        finally:
            meeting.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calib.training.step, "built", built)
        patch.setattr(calib.training.checks.gradients, "built", built)
        patch.setattr(calib.training.worker, "layer_program", traced)
        if ranks > 1:
            patch.setattr(calib.microbench.memory, "LiveBytes", Unwatched)
        yield


def on_ranks(division: Division, program: Callable[[Teams], Any]) -> list[Any]:
    """What `program` gives on each of the division's p ranks; their first error is raised."""
    with taking_turns(division.p):
        return results(
            run_ranks(division.p, lambda control: program(thread_teams(control, division)))
        )
