"""Checks of mpi_program.py that need torch: its own functions over calib_mpi, and DDP."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from calib.foundation.errors import InputError
from calib.microbench.communicators import make_communicator
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.communicators.torch import all_gather_single, reduce_scatter_single, short
from calib.microbench.communicators.torch_mpi import BACKEND
from calib.microbench.communicators.torch_short import BACKEND as SHORT
from calib.microbench.communicators.torch_short import COMMON, FILLED
from calib.microbench.device import CPU

mse_loss: Any = torch.nn.functional.mse_loss

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
)
MOVED_ONLY = (torch.bool, torch.complex64, torch.float8_e4m3fn)


def _initialize(comm: MpiCommunicator) -> None:
    store: Any = dist.HashStore()
    dist.init_process_group(BACKEND, store=store, rank=comm.rank, world_size=comm.size)


def _held(rank: int, items: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank holds: whole numbers from 1 to 3, whose sums and products fit every type."""
    generator = torch.Generator().manual_seed(100 * rank + items)
    return torch.randint(1, 4, (items,), generator=generator).to(dtype)


def torch_reductions(comm: MpiCommunicator) -> list[str]:
    """Reductions of every type, blocking and not; names of those that are wrong."""
    _initialize(comm)
    wrong = []
    for dtype in DTYPES:
        everyone = torch.stack([_held(rank, 6, dtype) for rank in range(comm.size)]).double()
        expected = {
            dist.ReduceOp.SUM: everyone.sum(0),
            dist.ReduceOp.MAX: everyone.amax(0),
            dist.ReduceOp.MIN: everyone.amin(0),
            dist.ReduceOp.PRODUCT: everyone.prod(0),
        }
        if dtype.is_floating_point:
            expected[dist.ReduceOp.AVG] = everyone.mean(0)
        for operation, values in expected.items():
            for asynchronous in (False, True):
                mine = _held(comm.rank, 6, dtype)
                column = torch.zeros(6, 2, dtype=dtype)[:, 0]  # its items are not side by side
                column.copy_(mine)
                for tensor in (mine, column):
                    work = dist.all_reduce(tensor, operation, async_op=asynchronous)
                    if asynchronous:
                        assert work is not None and work.wait() and work.is_completed()
                    if not torch.equal(tensor, values.to(dtype)):
                        wrong.append(f"{dtype} {operation} {asynchronous}: {tensor}, not {values}")
        mine = _held(comm.rank, 6, dtype)
        dist.reduce(mine, 1, dist.ReduceOp.SUM)
        if comm.rank == 1 and not torch.equal(mine, everyone.sum(0).to(dtype)):
            wrong.append(f"reduce {dtype}")
        whole, block = _held(comm.rank, 3 * comm.size, dtype), torch.zeros(3, dtype=dtype)
        reduce_scatter_single(block, whole)
        sums = torch.stack(
            [_held(rank, 3 * comm.size, dtype) for rank in range(comm.size)]
        ).double()
        if not torch.equal(block, sums.sum(0)[3 * comm.rank : 3 * comm.rank + 3].to(dtype)):
            wrong.append(f"reduce_scatter {dtype}")
    try:
        dist.all_reduce(torch.ones(2, dtype=torch.bool))
        wrong.append("bool was reduced")
    except InputError as error:
        assert str(error) == "calib_mpi cannot reduce torch.bool; convert it first"
    dist.destroy_process_group()
    return wrong


def torch_moves(comm: MpiCommunicator) -> list[str]:
    """Movements of every type, blocking and not; names of those that are wrong."""
    _initialize(comm)
    p, r, wrong = comm.size, comm.rank, []
    for dtype in (*DTYPES, *MOVED_ONLY):
        for asynchronous in (False, True):

            def expect(
                name: str,
                got: list[torch.Tensor],
                expected: list[torch.Tensor],
                work: Any,
                asynchronous: bool = asynchronous,
                dtype: torch.dtype = dtype,
            ) -> None:
                if asynchronous:
                    work.get_future().wait()
                    assert work.is_completed() and work.wait()
                for one, other in zip(got, expected, strict=True):
                    if not torch.equal(_bytes(one), _bytes(other)):
                        wrong.append(f"{name} {dtype} {asynchronous}: {one}, not {other}")

            everyone = [_held(rank, 4, dtype) for rank in range(p)]
            whole = torch.zeros(4 * p, dtype=dtype)
            work = all_gather_single(whole, everyone[r], async_op=asynchronous)
            expect("all_gather_single", [whole], [torch.cat(everyone)], work)
            apart = [torch.zeros(4, 2, dtype=dtype)[:, 0] for _ in range(p)]
            work = dist.all_gather(apart, everyone[r], async_op=asynchronous)
            expect("all_gather", apart, everyone, work)
            mine = everyone[r].clone()
            work = dist.broadcast(mine, p - 1, async_op=asynchronous)
            expect("broadcast", [mine], [everyone[p - 1]], work)
            # rank a sends a + b + 1 rows of two to rank b
            parts = [[_held(a * p + b, 2 * (a + b + 1), dtype) for b in range(p)] for a in range(p)]
            outgoing = torch.cat(parts[r]).view(-1, 2)
            expected = torch.cat([parts[a][r] for a in range(p)]).view(-1, 2)
            incoming = torch.zeros_like(expected)
            work = dist.all_to_all_single(
                incoming,
                outgoing,
                [a + r + 1 for a in range(p)],
                [r + b + 1 for b in range(p)],
                async_op=asynchronous,
            )
            expect("all_to_all_single", [incoming], [expected], work)
        received = [torch.zeros(4, dtype=dtype) for _ in range(2)]
        works = dist.batch_isend_irecv(
            [
                *(
                    dist.P2POp(dist.isend, _held(r + 50 * n, 4, dtype), (r + 1) % p)
                    for n in range(2)
                ),
                *(dist.P2POp(dist.irecv, received[n], (r - 1) % p) for n in range(2)),
            ]
        )
        for work in works:
            work.wait()
        for n in range(2):
            expected = _held((r - 1) % p + 50 * n, 4, dtype)
            if not torch.equal(_bytes(received[n]), _bytes(expected)):
                wrong.append(f"batch_isend_irecv {n} {dtype}: {received[n]}, not {expected}")
    wrong += _torch_groups(comm)
    dist.destroy_process_group()
    return wrong


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """For comparing types that torch.equal does not know."""
    return tensor.contiguous().view(torch.uint8)


def _torch_groups(comm: MpiCommunicator) -> list[str]:
    """torch's own new_group, send and recv with tags, and barrier."""
    wrong = []
    pair: Any = dist.new_group([0, 1])
    tensor = torch.tensor([float(comm.rank)])
    if comm.rank < 2:
        assert dist.get_backend(pair) == BACKEND
        dist.all_reduce(tensor, group=pair)
        if tensor.item() != 1.0:
            wrong.append("new_group")
    if comm.rank == 0:
        dist.send(torch.tensor([5]), 1, tag=5)
        dist.send(torch.tensor([6]), 1, tag=6)
    elif comm.rank == 1:
        five, six = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        later = dist.irecv(six, 0, tag=6)
        dist.recv(five, 0, tag=5)
        assert later is not None and later.wait()
        if (five.item(), six.item()) != (5, 6):
            wrong.append("tags")
    dist.barrier()
    return wrong


def torch_short(comm: MpiCommunicator, library: str) -> list[str]:
    """All that training calls, among all ranks and in groups; names of what is not as it should be.

    The tensors are of 1 MiB: sent whole, a ring of blocking sends would wait for ever.
    """
    made = short(library, comm)
    wrong = [] if dist.get_backend(made.process_group) == SHORT else ["backend"]
    part = made.group([0, 1] if comm.rank < 2 else [comm.rank])
    for team in (made, part):
        assert team is not None
        wrong += [f"{name} of {team.size}" for name in _short_calls(team)]
        if library == "torch_mpi" and team.size > 1 and not _sent_ahead(team):
            wrong.append(f"send and receive of {team.size}")
        team.barrier()
    for team in (part, made):
        assert team is not None
        team.close()
    return wrong


def _short_calls(team: Any) -> list[str]:
    p, r, group = team.size, team.rank, team.process_group
    items, wrong = 2**18, []
    own, common = torch.full((items,), r + 2.0), torch.full((items,), COMMON)

    def expect(name: str, found: torch.Tensor, expected: torch.Tensor, fills: bool) -> None:
        if not torch.equal(found, expected) or (FILLED.take() > 0.0) != fills:
            wrong.append(name)

    FILLED.take()
    for later in (False, True):
        for name, call in (
            ("allreduce", dist.all_reduce),
            ("broadcast", lambda x, **more: dist.broadcast(x, group_src=p - 1, **more)),
            ("reduce", lambda x, **more: dist.reduce(x, group_dst=0, **more)),
        ):
            mine = own.clone()
            work: Any = call(mine, group=group, async_op=later)
            assert not later or (work.wait() and work.is_completed())
            expect(name, mine, own, fills=False)
        whole = torch.zeros(p * items)
        work = all_gather_single(whole, own, group=group, async_op=later)
        assert not later or work.wait()
        expect("all_gather_single", whole, own.repeat(p), fills=True)
    counts = [items + rank for rank in range(p)]
    mine, whole = torch.full((counts[r],), r + 2.0), torch.zeros(sum(counts))
    team.allgatherv(mine, whole, counts)
    parts = [mine if rank == r else torch.full((n,), COMMON) for rank, n in enumerate(counts)]
    expect("allgatherv", whole, torch.cat(parts), fills=True)
    whole, mine = torch.arange(float(p * items)), torch.zeros(items)
    team.reduce_scatter(whole, mine)
    expect("reduce_scatter", mine, torch.arange(r * items, (r + 1.0) * items), fills=True)
    outgoing, incoming = torch.arange(float(p * items)), torch.zeros(p * items)
    team.all_to_all(outgoing, incoming)
    expect("all_to_all", incoming, outgoing, fills=True)
    if p > 1:
        behind, before = (r + 1) % p, (r - 1) % p
        landed = [torch.zeros(items), torch.zeros(items)]
        team.exchange([(own, behind), (own, before)], [(landed[0], before), (landed[1], behind)])
        expect("exchange", torch.cat(landed), torch.cat([common] * 2), fills=True)
    return wrong


def _sent_ahead(team: Any) -> bool:
    """Whether all ranks can send before anybody receives; gloo waits for who receives."""
    own, mine = torch.full((2**18,), team.rank + 2.0), torch.zeros(2**18)
    team.send(own, (team.rank + 1) % team.size)
    team.receive(mine, (team.rank - 1) % team.size)
    return torch.equal(mine, torch.full_like(mine, COMMON)) and FILLED.take() > 0.0


def wrong_size(comm: MpiCommunicator) -> str:
    """The error of a default group whose ranks are not MPI's."""
    store: Any = dist.HashStore()
    try:
        dist.init_process_group(BACKEND, store=store, rank=comm.rank, world_size=comm.size + 1)
    except InputError as error:
        return str(error)
    return "none"


class _Model(torch.nn.Module):
    """Two layers with a batch-independent normalisation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(20, 300)
        self.middle = torch.nn.LayerNorm(300)
        self.last = torch.nn.Linear(300, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, 20] -> [batch, 5]."""
        y: torch.Tensor = self.last(torch.relu(self.middle(self.first(x))))
        return y


def ddp(comm: MpiCommunicator, library: str) -> dict[str, Any]:
    """Largest relative difference of DDP's gradients from those of one process on all samples.

    In float64, over several buckets, for three iterations; weights differ before DDP shares rank 0's.
    """
    made: Any = make_communicator(library, comm, CPU)
    torch.manual_seed(comm.rank)
    wrapped = DistributedDataParallel(
        _Model().double(), process_group=made.process_group, bucket_cap_mb=0.01
    )
    wrapped_any: Any = wrapped
    torch.manual_seed(0)
    alone = _Model().double()
    generator = torch.Generator().manual_seed(1)
    worst = 0.0
    for _ in range(3):
        x = torch.randn(comm.size * 4, 20, generator=generator, dtype=torch.float64)
        target = torch.randn(comm.size * 4, 5, generator=generator, dtype=torch.float64)
        mine = slice(4 * comm.rank, 4 * comm.rank + 4)
        wrapped.zero_grad()
        mse_loss(wrapped(x[mine]), target[mine]).backward()
        alone.zero_grad()
        mse_loss(alone(x), target).backward()
        for found, expected in zip(wrapped.parameters(), alone.parameters(), strict=True):
            assert found.grad is not None and expected.grad is not None
            difference = (found.grad - expected.grad).abs().max() / expected.grad.abs().max()
            worst = max(worst, float(difference))
    logged = wrapped_any._get_ddp_logging_data()
    buckets = len(str(logged.get("rebuilt_bucket_sizes", "")).split(","))
    del wrapped, wrapped_any, logged  # torch's own groups are destroyed last
    made.close()
    return {"worst": worst, "buckets": buckets, "initialized": dist.is_initialized()}
