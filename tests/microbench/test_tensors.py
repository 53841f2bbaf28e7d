"""Passes over lists of tensors: shards against NumPy, optimizers by hand, rows of every operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.ranks import results, run_ranks

from calib.foundation.errors import InputError, MeasurementError
from calib.foundation.execution import Execution
from calib.foundation.layers import split_sizes
from calib.microbench.cases import TensorsCase
from calib.microbench.devices import take_device
from calib.microbench.item_types import activation_type, weight_type
from calib.microbench.tensors import (
    PASSES,
    SHARDS,
    accumulate,
    concat_shards,
    flat_buffer,
    make_optimizer,
    measure_tensors,
    pack,
    split_shards,
    unpack,
    update,
)
from calib.microbench.timing.repeat import Repetitions
from calib.microbench.timing.stretches import CallStretch

SHAPES = ((3, 4), (), (5,), (2, 1, 3))


def case_of(operation: str, **more: Any) -> TensorsCase:
    return TensorsCase.model_validate(
        {"ranks": 2, "operation": operation, "key": "k", "shapes": SHAPES, **more}
    )


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


def test_an_update_drops_the_gradients() -> None:
    weight = torch.ones(3)
    weight.grad = torch.ones(3)
    update(make_optimizer([weight]))
    assert weight.grad is None
    assert weight.tolist() == pytest.approx([0.999] * 3)


@given(st.integers(0, 40), st.integers(1, 12))
def test_split_sizes_are_those_of_array_split(channels: int, parts: int) -> None:
    expected = [len(piece) for piece in np.array_split(np.arange(channels), parts)]
    assert split_sizes(channels, parts) == expected


def gathered_by_numpy(whole: np.ndarray, parts: int) -> np.ndarray:
    """What an allgather of the contiguous shards brings."""
    return np.concatenate([piece.ravel() for piece in np.array_split(whole, parts, axis=1)])


@given(
    batch=st.integers(1, 4),
    channels=st.integers(1, 9),
    rest=st.lists(st.integers(1, 4), max_size=3),
    parts=st.integers(1, 6),
    dtype=st.sampled_from([np.float32, np.float64, np.float16]),
)
def test_concat_and_split_are_those_of_numpy(
    batch: int, channels: int, rest: list[int], parts: int, dtype: Any
) -> None:
    """Also for uneven shards, more shards than channels, and one sample."""
    shape = (batch, channels, *rest)
    whole = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    gathered = gathered_by_numpy(whole, parts)
    joined = concat_shards(torch.from_numpy(gathered), shape, parts)
    assert joined.is_contiguous() and np.array_equal(joined.numpy(), whole)
    cut = split_shards(torch.from_numpy(whole), parts)
    assert cut.is_contiguous() and np.array_equal(cut.numpy(), gathered)
    assert joined.dtype == cut.dtype == torch.from_numpy(whole).dtype


@pytest.mark.parametrize("shape", [(2, 6, 3), (1, 6, 3), (2, 5, 3)])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_shards_are_copies(shape: tuple[int, ...], parts: int) -> None:
    """The buffer of an allgather is used again; what was joined from it must stay."""
    buffer = torch.randn(int(np.prod(shape)))
    joined = concat_shards(buffer, shape, parts)
    cut = split_shards(joined, parts)
    assert torch.equal(cut, buffer)
    kept = joined.clone()
    buffer.zero_()
    cut.zero_()
    assert torch.equal(joined, kept)


def test_split_of_a_tensor_that_is_not_contiguous() -> None:
    """A gradient may come channels_last."""
    whole = torch.arange(48.0).reshape(2, 4, 3, 2)
    strided = whole.to(memory_format=torch.channels_last)
    assert not strided.is_contiguous()
    for parts in (1, 2, 3):
        assert torch.equal(split_shards(strided, parts), split_shards(whole, parts))


def stepped(name: str, gradients: list[float]) -> float:
    """A weight of 1.0 after updates with these gradients."""
    weight = torch.ones(1, dtype=torch.float64)
    optimizer = make_optimizer([weight], name)
    for gradient in gradients:
        weight.grad = torch.full_like(weight, gradient)
        update(optimizer)
        assert weight.grad is None
    return weight.item()


def test_sgd_and_adam_by_hand() -> None:
    """w -= lr g; and Kingma and Ba 2015, algorithm 1: the learning rate is 0.001 in all."""
    gradients = [1.0, 3.0, -2.0]
    assert stepped("sgd", gradients) == pytest.approx(1.0 - 1e-3 * sum(gradients), rel=1e-12)
    weight, m, v = 1.0, 0.0, 0.0
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        weight -= 1e-3 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
    assert stepped("adam", gradients) == pytest.approx(weight, rel=1e-12)


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown optimizer 'lamb'; known: sgd, momentum, adam"):
        make_optimizer([torch.ones(1)], "lamb")


@pytest.mark.parametrize(("optimizer", "state"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_the_update_of_a_case_is_that_of_its_optimizer(optimizer: str, state: int) -> None:
    """New gradients before every repetition; state tensors of the weight's shape as documented."""
    made: list[torch.optim.Optimizer] = []

    def keep(*arguments: Any) -> torch.optim.Optimizer:
        made.append(make_optimizer(*arguments))
        return made[-1]

    weight = torch.randn(3, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calib.microbench.tensors.make_optimizer", keep)
        (work,) = PASSES["update"](case_of("update", optimizer=optimizer), [weight], 1)
    for _ in range(2):
        work.prepare()
        assert weight.grad is not None
        work.calls["update"]()
        assert weight.grad is None
    states = [t for t in made[0].state[weight].values() if isinstance(t, torch.Tensor)]
    assert sum(tensor.shape == weight.shape for tensor in states) == state


@pytest.mark.parametrize(
    ("operation", "more", "timed"),
    [
        ("pack", {}, {"pack", "unpack"}),
        ("pack", {"execution": "bfloat16"}, {"pack", "unpack"}),
        ("update", {"optimizer": "sgd"}, {"update"}),
        ("update", {"optimizer": "adam", "execution": "float64"}, {"update"}),
        ("accumulate", {}, {"accumulate"}),
        ("accumulate", {"execution": "bfloat16-mixed+channels_last"}, {"accumulate"}),
        ("concat", {"shapes": ((2, 6, 3),), "parts": 3}, {"concat"}),
        ("split", {"shapes": ((2, 5, 3),), "parts": 2, "execution": "float16"}, {"split"}),
    ],
)
def test_rows_of_every_operation(operation: str, more: dict[str, Any], timed: set[str]) -> None:
    case = case_of(operation, **more)
    found = results(run_ranks(2, lambda comm: measure_tensors(comm, case, 1, 0.0, 0.5)))
    for result in found:
        assert set(result.ranks) == timed
        assert {len(rows) for rows in result.ranks.values()} == {1 + 6}  # no budget: the fewest
        assert {len(row) for rows in result.ranks.values() for row in rows} == {2}
        assert all(seconds > 0 for rows in result.ranks.values() for row in rows for seconds in row)
        assert result.first_s == found[0].first_s and result.first_s > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16-mixed", "float16"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("operation", sorted(PASSES))
def test_what_a_pass_is_given(
    operation: str, dtype: str, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and gradients as training holds them, shards as activations are."""
    given: list[torch.Tensor] = []

    def keep(case: TensorsCase, tensors: list[torch.Tensor], ranks: int) -> list[CallStretch]:
        given.extend(tensors)
        return [CallStretch({operation: lambda: None})]

    monkeypatch.setitem(PASSES, operation, keep)
    execution = Execution(dtype, channels_last=last)
    shapes = ((2, 3, 4, 5),) if operation in SHARDS else ((2, 3, 4, 5), (2, 3, 4, 5, 6), (7, 8))
    case = case_of(operation, execution=execution.name, shapes=shapes)
    results(run_ranks(1, lambda comm: measure_tensors(comm, case, 1, 0.0, 0.5)))
    wanted = activation_type if operation in SHARDS else weight_type
    assert {tensor.dtype for tensor in given} == {wanted(execution)}
    strided = last and operation not in SHARDS
    assert [tensor.stride(1) == 1 for tensor in given[:2]] == [strided] * len(given[:2])
    assert given[-1].is_contiguous() or strided
    assert [tuple(tensor.shape) for tensor in given] == list(shapes)


def test_accumulate_adds_in_place_as_autograd_does() -> None:
    """The gradients of two backwards, and the tensors that hold them stay the same."""
    weight = torch.randn(4, 3, requires_grad=True)
    x, y = torch.randn(2, 4), torch.randn(2, 4)
    (x @ weight).sum().backward()
    assert weight.grad is not None
    held, mine = weight.grad, weight.grad.clone()
    (y @ weight).sum().backward()
    assert weight.grad is held  # so does autograd
    (new,) = torch.autograd.grad((y @ weight).sum(), weight)
    accumulate([mine], [new])
    assert torch.equal(mine, held)


class ThreadClock:
    """Ranks that are threads read one clock."""

    def to_common(self, seconds: float) -> float:
        return seconds


def test_starts_become_late_arrivals() -> None:
    case = case_of("pack")
    clock: Any = ThreadClock()
    for result in results(
        run_ranks(2, lambda comm: measure_tensors(comm, case, 1, 0.0, 0.5, clock=clock))
    ):
        assert len(result.late) == len(result.ranks["pack"])
        assert all(seconds >= 0 for seconds in result.late)


def test_a_long_loop_of_packing_meets_no_denormals() -> None:
    """Dividing by the ranks again and again would make the gradients tiny, and the loop slow."""
    gradients = [torch.randn(8)]
    stretches = PASSES["pack"](case_of("pack", shapes=((8,),)), gradients, 4)
    for _ in range(80):
        for stretch in stretches:
            for call in stretch.calls.values():
                call()
        tiny = (gradients[0] != 0) & (gradients[0].abs() < torch.finfo(torch.float32).tiny)
        assert not tiny.any()


@pytest.mark.parametrize(
    ("case", "error", "message"),
    [
        (case_of("concat"), InputError, "concat is of one tensor"),
        (case_of("split", shapes=((4,),)), InputError, "split is of one tensor"),
        (case_of("pack", shapes=((2**60,),)), MeasurementError, "torch says"),
    ],
)
def test_what_cannot_be_ends_on_every_rank(case: Any, error: Any, message: str) -> None:
    for outcome in run_ranks(2, lambda comm: measure_tensors(comm, case, 1, 0.0, 0.5)):
        assert isinstance(outcome, error) and message in str(outcome)


def test_a_case_is_measured_on_its_own_device() -> None:
    case = case_of("pack", device="cuda")
    for outcome in run_ranks(2, lambda comm: measure_tensors(comm, case, 1, 0.0, 0.5)):
        assert isinstance(outcome, InputError) and "this rank measures on cpu" in str(outcome)


def measured_on_cuda(comm: Any, case: TensorsCase) -> Repetitions:
    return measure_tensors(comm, case, 1, 0.5, 0.1, None, take_device("cuda", comm))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("operation", ["pack", "accumulate", "update", "concat", "split"])
def test_on_cuda(operation: str) -> None:
    shapes = ((64, 64, 56, 56),)
    case = case_of(operation, ranks=1, shapes=shapes, parts=4, device="cuda", optimizer="adam")
    (result,) = results(run_ranks(1, lambda comm: measured_on_cuda(comm, case)))
    assert set(result.host) == set(result.ranks)
    assert all(row[0] > 0 for rows in result.ranks.values() for row in rows)
