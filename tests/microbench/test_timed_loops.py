"""What the timed loops do: the right sums, gradients packed in order, one call where one is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from foundation.errors import MeasurementError
from foundation.layers import LayerShape
from microbench.cases import CollectiveCase, LayerCase, TensorsCase
from microbench.collectives import allreduce_block, measure_collective, p2p_block
from microbench.layers.timing import layer_block
from microbench.tensors import flat_buffer, make_optimizer, measure_tensors, pack, unpack, update
from microbench.timer import Timer
from tests.helpers.ranks import ThreadCommunicator, results, run_ranks

TIMER = Timer(resolution_s=1e-9, overhead_s=1e-9)
SHAPES = ((3, 4), (), (5,), (2, 1, 3))


def collective(operation: str, ranks: int = 2, nbytes: int = 64, **more: Any) -> CollectiveCase:
    return CollectiveCase.model_validate(
        {"ranks": ranks, "operation": operation, "nbytes": nbytes, **more}
    )


class Counting(ThreadCommunicator):
    """Counts calls and keeps the buffers that it was given."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.calls: list[tuple[str, int]] = []
        self.values: list[float] = []

    def allreduce(self, buffer: np.ndarray) -> None:
        self.calls.append(("allreduce", buffer.nbytes))
        super().allreduce(buffer)
        self.values.append(float(np.abs(buffer).max()))

    def send(self, buffer: np.ndarray, to: int) -> None:
        self.calls.append((f"send to {to}", buffer.nbytes))
        super().send(buffer, to)

    def receive(self, buffer: np.ndarray, source: int) -> None:
        self.calls.append((f"receive from {source}", buffer.nbytes))
        super().receive(buffer, source)


@pytest.mark.parametrize("calls", [1, 5])
def test_an_allreduce_timing_holds_its_calls(calls: int) -> None:
    def program(comm: Counting) -> Any:
        buffer = np.empty(16, np.float32)
        times = allreduce_block(comm, collective("allreduce"), buffer, calls)(4)
        return times, comm.calls, comm.values

    for times, made, values in results(run_ranks(2, program, Counting)):
        assert list(times) == ["allreduce"] and len(times["allreduce"]) == 4
        assert made == [("allreduce", 64)] * 4 * calls
        assert max(values) <= 2.0, "sums of sums do not grow"


@pytest.mark.parametrize("calls", [1, 3])
def test_a_p2p_timing_is_half_a_round_trip_of_the_first_of_the_pair(calls: int) -> None:
    def program(comm: Counting) -> Any:
        case = collective("p2p", ranks=3, pair=(2, 0))
        return p2p_block(comm, case, np.empty(16, np.float32), calls)(2), comm.calls

    zero, one, two = results(run_ranks(3, program, Counting))
    assert two[1] == [("send to 0", 64), ("receive from 0", 64)] * 2 * calls
    assert zero[1] == [("receive from 2", 64), ("send to 2", 64)] * 2 * calls
    assert one[1] == []
    assert zero[0] == one[0] == {"p2p": [None, None]}
    assert all(seconds > 0 for seconds in two[0]["p2p"])


def test_times_are_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that gains 1 s with every message: a call of p2p is half a round trip, so 1 s too."""
    now = [0.0]

    class Ticking(ThreadCommunicator):
        def allreduce(self, buffer: np.ndarray) -> None:
            now[0] += 1.0

        def send(self, buffer: np.ndarray, to: int) -> None:
            now[0] += 1.0

        receive = send

    monkeypatch.setattr("microbench.collectives.perf_counter", lambda: now[0])
    buffer = np.empty(16, np.float32)
    for operation, make in (("allreduce", allreduce_block), ("p2p", p2p_block)):
        for calls in (1, 4):

            def program(comm: Any, make: Any = make, o: str = operation, c: int = calls) -> Any:
                return make(comm, collective(o), buffer, c)(3)

            (times,) = results(run_ranks(1, program, Ticking))
            assert times == {operation: [1.0] * 3}


@pytest.mark.parametrize("operation", ["allreduce", "p2p"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_repetitions_have_the_ranks_that_timed(operation: str, ranks: int) -> None:
    case = collective(operation, ranks)

    def program(comm: Any) -> Any:
        return measure_collective(comm, case, TIMER, budget_s=0.0, target=0.5)

    found = results(run_ranks(ranks, program))
    timing = ranks if operation == "allreduce" else 1
    for result in found:
        assert result.ranks == found[0].ranks and result.calls == found[0].calls
        assert result.warmup == 1 and len(result.ranks[operation]) == 1 + 6  # slow: no budget
        assert {len(row) for row in result.ranks[operation]} == {timing}
        assert result.seconds(operation) == [max(row) for row in result.ranks[operation][1:]]


class OffByOne(ThreadCommunicator):
    def allreduce(self, buffer: np.ndarray) -> None:
        super().allreduce(buffer)
        if self.rank == 1:
            buffer[-1] += 1  # one item is enough


class Deaf(ThreadCommunicator):
    def receive(self, buffer: np.ndarray, source: int) -> None:
        super().receive(np.empty_like(buffer), source)


@pytest.mark.parametrize(("operation", "make"), [("allreduce", OffByOne), ("p2p", Deaf)])
def test_a_wrong_result_has_no_time_on_any_rank(operation: str, make: Any) -> None:
    def program(comm: Any) -> Any:
        return measure_collective(comm, collective(operation, 3), TIMER, 0.0, 0.5)

    for outcome in run_ranks(3, program, make):
        assert isinstance(outcome, MeasurementError)
        assert "wrong result on rank 1" in str(outcome) and len(str(outcome).splitlines()) == 1


def gradients(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def test_pack_puts_one_behind_the_other() -> None:
    """Against numpy.concatenate."""
    grads = gradients()
    flat = flat_buffer(SHAPES, torch.float32)
    assert flat.shape == (12 + 1 + 5 + 6,)
    pack(grads, flat)
    expected = np.concatenate([gradient.numpy().ravel() for gradient in grads])
    assert np.array_equal(flat.numpy(), expected)


def test_pack_of_a_gradient_that_is_not_contiguous() -> None:
    transposed = torch.arange(6.0).reshape(2, 3).T
    flat = torch.empty(6)
    pack([transposed], flat)
    assert flat.tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_unpack_is_the_mean_over_ranks(ranks: int) -> None:
    per_rank = [gradients(rank) for rank in range(ranks)]
    total = sum(np.concatenate([g.numpy().ravel() for g in grads]) for grads in per_rank)
    target = gradients(99)
    unpack(torch.from_numpy(np.asarray(total)), target, ranks)
    for index, gradient in enumerate(target):
        mean = np.mean([grads[index].numpy() for grads in per_rank], axis=0)
        assert np.allclose(gradient.numpy(), mean, rtol=1e-6, atol=1e-7)


def test_the_optimizer_is_sgd_with_momentum() -> None:
    """v = 0.9 v + g; w -= 0.001 v (Sutskever et al. 2013 as PyTorch has it), by hand."""
    weight = torch.ones(3)
    optimizer = make_optimizer([weight])
    velocity, expected = np.zeros(3), np.ones(3)
    for step in range(4):
        weight.grad = torch.full((3,), 1.0 + step)
        optimizer.step()
        velocity = 0.9 * velocity + (1.0 + step)
        expected -= 1e-3 * velocity
        assert np.allclose(weight.numpy(), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="unknown optimizer"):
        make_optimizer([weight], "magic")


def test_an_update_drops_the_gradients() -> None:
    weight = torch.ones(3)
    weight.grad = torch.ones(3)
    update(make_optimizer([weight]))
    assert weight.grad is None
    assert weight.tolist() == pytest.approx([0.999] * 3)


@pytest.mark.parametrize(
    ("operation", "timed"), [("pack", {"pack", "unpack"}), ("update", {"update"})]
)
def test_operations_of_a_tensor_loop(operation: Any, timed: set[str]) -> None:
    case = TensorsCase(ranks=2, operation=operation, key="k", shapes=SHAPES)
    for result in results(run_ranks(2, lambda comm: measure_tensors(comm, case, 1, 0.0, 0.5))):
        assert set(result.ranks) == timed
        assert {len(row) for rows in result.ranks.values() for row in rows} == {2}


LINEAR = LayerShape(
    kind="linear", input_shapes=((4,),), output_shape=(3,), parameter_shapes=((3, 4), (3,))
)
RELU = LayerShape(kind="relu", input_shapes=((4,),), output_shape=(4,))


@pytest.mark.parametrize(
    ("layer", "needs_input_grad", "timed"),
    [
        (LINEAR, True, {"forward", "backward"}),
        (LINEAR, False, {"forward", "backward"}),
        (RELU, True, {"forward", "backward"}),
        (RELU, False, {"forward"}),
    ],
)
def test_backward_is_timed_where_there_is_one(
    layer: LayerShape, needs_input_grad: bool, timed: set[str]
) -> None:
    case = LayerCase(ranks=1, layer=layer, batch=2, needs_input_grad=needs_input_grad)
    (times,) = results(run_ranks(1, lambda comm: layer_block(comm, case, 0)(3)))
    assert set(times) == timed
    assert all(len(rows) == 3 and min(rows) > 0 for rows in times.values())
