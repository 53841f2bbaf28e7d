"""Messages of one item: what travels, what a call leaves in its tensors, the seconds of filling."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from calib.microbench.communicators import torch_short
from calib.microbench.communicators.torch_short import COMMON, FILLED, ShortProcessGroup

SIZE, RANK = 3, 1
Call = tuple[str, tuple[Any, ...]]


class Group:
    """A process group that keeps what it is called with: of a tensor its items, else the value."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> SimpleNamespace:
            self.calls.append(
                (name, tuple(items(x) for x in arguments if not isinstance(x, SimpleNamespace)))
            )
            return SimpleNamespace(wait=lambda: True, is_completed=lambda: True)

        return call


def items(told: Any) -> Any:
    """How many items each tensor of an argument has; anything else as it is."""
    if isinstance(told, torch.Tensor):
        return told.numel()
    return [items(of) for of in told] if isinstance(told, list) else told


@pytest.fixture
def under() -> Group:
    return Group()


@pytest.fixture
def group(under: Group) -> Any:
    FILLED.take()
    return ShortProcessGroup(under, RANK, SIZE, "g")


@pytest.fixture(params=[False, True], ids=["blocking", "async"])
def opts(request: pytest.FixtureRequest) -> SimpleNamespace:
    return SimpleNamespace(asyncOp=request.param, rootRank=RANK)


def numbers(items: int, first: float = 1.0) -> torch.Tensor:
    return torch.arange(first, first + items)


@pytest.mark.parametrize("name", ["allreduce", "reduce", "broadcast"])
def test_what_is_summed_or_sent_stays(
    name: str, group: Any, under: Group, opts: SimpleNamespace
) -> None:
    tensor = numbers(1000)
    work = getattr(group, name)([tensor], opts)
    assert work.wait() and torch.equal(tensor, numbers(1000))
    assert under.calls == [(name, ([1],))]
    assert FILLED.take() == 0.0


def test_gathered_parts_are_ones_own(group: Any, under: Group, opts: SimpleNamespace) -> None:
    mine, whole = numbers(4), torch.zeros(12)
    group.all_gather_single(whole, mine, opts).wait()
    assert torch.equal(whole, torch.cat([mine] * SIZE))
    places = [torch.zeros(2, 2), torch.zeros(4), torch.zeros(3, 4)[:, 1], torch.zeros(5)]
    group.allgather([places], [mine], opts).wait()
    assert torch.equal(places[0], mine.view(2, 2)) and torch.equal(places[1], mine)
    for other in places[2:]:  # not as many items
        assert torch.equal(other, torch.full_like(other, COMMON))
    assert under.calls == [("_allgather_base", (SIZE, 1))] * 2


def test_parts_that_do_not_lie_side_by_side(group: Any, opts: SimpleNamespace) -> None:
    """A column of a matrix is filled as well."""
    mine, column = numbers(4), torch.zeros(4, 2)[:, 0]
    group.allgather([[column, torch.zeros(4)]], [mine], opts).wait()
    assert torch.equal(column, mine)


def test_a_scattered_sum_is_ones_own_term(group: Any, under: Group, opts: SimpleNamespace) -> None:
    whole, mine = numbers(12), torch.zeros(4)
    group.reduce_scatter_single(mine, whole, opts).wait()
    assert torch.equal(mine, numbers(4, 1.0 + 4 * RANK)) and torch.equal(whole, numbers(12))
    assert under.calls == [("_reduce_scatter_base", (1, SIZE))]


def test_messages(group: Any, under: Group) -> None:
    sent, received = numbers(7), torch.zeros(2, 3)
    works = [group.recv([received], 0, 5), group.send([sent], 2, 6)]
    assert torch.equal(received, torch.zeros(2, 3)), "nothing lands before it is waited for"
    assert all(work.wait() for work in works)
    assert torch.equal(sent, numbers(7)) and torch.equal(received, torch.full((2, 3), COMMON))
    assert under.calls == [("recv", ([1], 0, 5)), ("send", ([1], 2, 6))]


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
