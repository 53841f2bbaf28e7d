"""Messages of one item: what travels, what a call leaves in its tensors, the seconds of filling."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

from calib.microbench.communicators import torch_short
from calib.microbench.communicators.torch_short import COMMON, FILLED, ShortProcessGroup

SIZE, RANK = 3, 1
Call = tuple[str, tuple[Any, ...]]


# a request that is done at once
DONE = SimpleNamespace(Wait=lambda: None, Test=lambda: True)


class Comm:
    """Rank 1 of 3 that keeps what it is called with: of an array its items, else the value."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        of_itself = {"Get_rank": RANK, "Get_size": SIZE}
        if name in of_itself:
            return lambda: of_itself[name]

        def call(*arguments: Any) -> SimpleNamespace:
            told = (len(x) if isinstance(x, np.ndarray) else x for x in arguments)
            self.calls.append((name, tuple(told)))
            return DONE

        return call


@pytest.fixture
def comm() -> Comm:
    return Comm()


@pytest.fixture
def group(comm: Comm) -> Any:
    FILLED.take()
    made: Any = comm
    return ShortProcessGroup(made, "g")


@pytest.fixture(params=[False, True], ids=["blocking", "async"])
def opts(request: pytest.FixtureRequest) -> SimpleNamespace:
    return SimpleNamespace(asyncOp=request.param, rootRank=RANK)


def said(opts: SimpleNamespace, name: str) -> str:
    """MPI's name of a call."""
    return f"I{name.lower()}" if opts.asyncOp else name


def numbers(items: int, first: float = 1.0) -> torch.Tensor:
    return torch.arange(first, first + items)


@pytest.mark.parametrize(
    ("name", "mpi", "arguments"),
    [
        ("allreduce", "Allreduce", (MPI.IN_PLACE, 1, MPI.SUM)),
        ("reduce", "Reduce", (MPI.IN_PLACE, 1, MPI.SUM, RANK)),
        ("broadcast", "Bcast", (1, RANK)),
    ],
)
def test_what_is_summed_or_sent_stays(
    name: str, mpi: str, arguments: tuple[Any, ...], group: Any, comm: Comm, opts: SimpleNamespace
) -> None:
    tensor = numbers(1000)
    work = getattr(group, name)([tensor], opts)
    assert work.wait() and torch.equal(tensor, numbers(1000))
    assert comm.calls == [(said(opts, mpi), arguments)]
    assert FILLED.take() == 0.0


def test_a_reduce_to_another_rank(group: Any, comm: Comm, opts: SimpleNamespace) -> None:
    opts.rootRank = 2
    tensor = numbers(5)
    assert group.reduce([tensor], opts).wait() and torch.equal(tensor, numbers(5))
    assert comm.calls == [(said(opts, "Reduce"), (1, None, MPI.SUM, 2))]


def test_gathered_parts_are_ones_own(group: Any, comm: Comm, opts: SimpleNamespace) -> None:
    mine, whole = numbers(4), torch.zeros(12)
    group.all_gather_single(whole, mine, opts).wait()
    assert torch.equal(whole, torch.cat([mine] * SIZE))
    places = [torch.zeros(2, 2), torch.zeros(4), torch.zeros(3, 4)[:, 1], torch.zeros(5)]
    group.allgather([places], [mine], opts).wait()
    assert torch.equal(places[0], mine.view(2, 2)) and torch.equal(places[1], mine)
    for other in places[2:]:  # not as many items
        assert torch.equal(other, torch.full_like(other, COMMON))
    assert comm.calls == [(said(opts, "Allgather"), (1, SIZE))] * 2


def test_parts_that_do_not_lie_side_by_side(group: Any, opts: SimpleNamespace) -> None:
    """A column of a matrix is filled as well."""
    mine, column = numbers(4), torch.zeros(4, 2)[:, 0]
    group.allgather([[column, torch.zeros(4)]], [mine], opts).wait()
    assert torch.equal(column, mine)


def test_a_scattered_sum_is_ones_own_term(group: Any, comm: Comm, opts: SimpleNamespace) -> None:
    whole, mine = numbers(12), torch.zeros(4)
    group.reduce_scatter_single(mine, whole, opts).wait()
    assert torch.equal(mine, numbers(4, 1.0 + 4 * RANK)) and torch.equal(whole, numbers(12))
    assert comm.calls == [(said(opts, "Reduce_scatter_block"), (SIZE, 1, MPI.SUM))]


def test_messages(group: Any, comm: Comm) -> None:
    sent, received = numbers(7), torch.zeros(2, 3)
    works = [group.recv([received], 0, 5), group.send([sent], 2, 6)]
    assert torch.equal(received, torch.zeros(2, 3)), "nothing lands before it is waited for"
    assert all(work.wait() for work in works)
    assert torch.equal(sent, numbers(7)) and torch.equal(received, torch.full((2, 3), COMMON))
    assert comm.calls == [("Irecv", (1, 0, 5)), ("Isend", (1, 2, 6))]


def test_seconds_of_filling(
    group: Any, opts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that goes on by 1 s whenever it is read: 1 s for every call that fills."""
    now = iter(range(1000))
    monkeypatch.setattr(torch_short, "perf_counter", lambda: float(next(now)))
    works = [
        group.all_gather_single(torch.zeros(12), numbers(4), opts),
        group.allgather([[torch.zeros(4)] * SIZE], [numbers(4)], opts),
        group.allreduce([numbers(4)], opts),
        group.broadcast([numbers(4)], opts),
        group.reduce_scatter_single(torch.zeros(4), numbers(12), opts),
        group.recv([torch.zeros(4)], 0),
    ]
    for work in works:
        work.wait()
    assert FILLED.take() == 4.0
    assert FILLED.take() == 0.0, "they begin anew"
