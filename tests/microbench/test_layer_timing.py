"""Layers measured for real on the CPU in tiny budgets: which passes, whose gradients, what errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.helpers.ranks import ThreadCommunicator, results, run_ranks
from tests.microbench.layer_shapes import (
    EMBEDDING,
    LAYERS,
    LINEAR,
    RELU,
    convolution,
    layer,
    parts_of,
    pooling,
)
from tests.microbench.mixed_layers import assert_is_autocast

from calib.foundation.errors import InputError, MachineError, MeasurementError
from calib.foundation.layers import LayerShape
from calib.microbench.cases import LayerCase
from calib.microbench.device import CPU
from calib.microbench.devices import take_device
from calib.microbench.layers.build import BuiltLayer
from calib.microbench.layers.timing import measure_layer
from calib.microbench.layers.work import RunnableLayer, make_work, start_work
from calib.microbench.timing.repeat import FEWEST_REPETITIONS, Repetitions, Timings
from calib.microbench.timing.stretches import Attempts, CallStretch, TimedCalls, host_block

HERE = torch.device("cpu")


def test_every_kind_is_measured_below() -> None:
    kinds = LayerShape.model_fields["kind"].annotation.__args__
    assert {shape.kind for shape in LAYERS.values()} == {*kinds} - {
        "operator"
    }  # test_operator_layers


def measure(case: LayerCase, ranks: int = 1) -> list[Repetitions]:
    return results(run_ranks(ranks, lambda comm: measure_layer(comm, case, 1, 0.0, 0.5)))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("passes", ["whole", "parts"])
def test_every_kind_of_layer_is_timed(name: str, passes: Any) -> None:
    shape = LAYERS[name]
    case = LayerCase(ranks=2, layer=shape, batch=3, passes=passes)
    expected = {"forward", "backward"} if passes == "whole" else parts_of(shape)
    for result in measure(case, ranks=2):
        assert set(result.ranks) == expected
        for rows in result.ranks.values():
            assert len(rows) >= result.warmup + FEWEST_REPETITIONS
            assert all(len(row) == 2 and min(row) > 0 for row in rows)
        assert result.first_s is not None and 0 < result.first_s < math.inf
        assert result.host == {} and result.kernels == {} and result.workspace == {}


def test_workspace_is_what_is_live_neither_before_nor_after() -> None:
    """Of y = x 2 3 w 5, by hand: each pass has one product of its own beside all that stays."""
    x, w = (torch.rand(1000, requires_grad=True) for _ in range(2))
    work = RunnableLayer(BuiltLayer(lambda of: of * 2 * 3 * w * 5, [w]), [x])
    work.gradient = torch.rand(1000)
    assert work.workspace("whole", CPU) == {"forward": 4000, "backward": 4000}
    # dx alone: its product by 5, w, 3 and 2 in turn; dw: that by 5
    assert work.workspace("parts", CPU) == {"backward_data": 4000, "backward_weight": 4000}
    plain = RunnableLayer(BuiltLayer(lambda of: of + w, [w]), [x])
    plain.gradient = torch.rand(1000)
    assert plain.workspace("whole", CPU) == {"forward": 0, "backward": 0}


@pytest.mark.parametrize(
    ("shape", "needs_input_grad", "passes", "expected"),
    [
        (LINEAR, False, "whole", {"forward", "backward"}),
        (LINEAR, False, "parts", {"backward_weight"}),
        (RELU, True, "parts", {"backward_data"}),
        (RELU, False, "whole", {"forward"}),
        (EMBEDDING, True, "whole", {"forward", "backward"}),
    ],
)
def test_only_what_there_is_is_timed(
    shape: LayerShape, needs_input_grad: bool, passes: Any, expected: set[str]
) -> None:
    case = LayerCase(
        ranks=1, layer=shape, batch=2, needs_input_grad=needs_input_grad, passes=passes
    )
    (result,) = measure(case)
    assert set(result.ranks) == expected


@pytest.mark.parametrize("name", LAYERS)
def test_the_parts_are_the_gradients_of_the_whole(name: str) -> None:
    case = LayerCase(ranks=1, layer=LAYERS[name], batch=3)
    work, _ = start(case)
    torch.manual_seed(5)  # dropout's mask
    work.drop()
    work.forward()
    work.backward()
    leaves = work.leaves()
    whole = {part: [leaf.grad for leaf in group] for part, group in leaves.items()}
    assert set(whole) == parts_of(case.layer)
    for part, group in leaves.items():
        torch.manual_seed(5)
        work.drop()
        work.forward()
        gradients = work.gradients(group)
        assert len(gradients) == len(whole[part]) > 0
        for gradient, expected in zip(gradients, whole[part], strict=True):
            assert expected is not None
            torch.testing.assert_close(gradient, expected)
        assert all(leaf.grad is None for leaf in (*work.inputs, *work.layer.parameters))


def start(case: LayerCase) -> tuple[RunnableLayer, float]:
    (made,) = results(run_ranks(1, lambda comm: start_work(comm, case, 3, CPU)))
    found: tuple[RunnableLayer, float] = made
    return found


def test_gradients_of_a_linear_layer_by_hand() -> None:
    """y = x W' + b: dL/dx = g W, dL/dW = g' x, dL/db = sum of g."""
    work, _ = start(LayerCase(ranks=1, layer=LINEAR, batch=5))
    (x,), (weight, _) = work.inputs, work.layer.parameters
    gradient = work.gradient
    assert gradient is not None and gradient.shape == (5, 3) and gradient.std() > 0.1
    work.drop()
    work.forward()
    (data,) = work.gradients(work.leaves()["backward_data"], keep=True)
    torch.testing.assert_close(data, gradient @ weight)
    of_weight, of_bias = work.gradients(work.leaves()["backward_weight"])
    torch.testing.assert_close(of_weight, gradient.T @ x)
    torch.testing.assert_close(of_bias, gradient.sum(0))


class Recording(RunnableLayer):
    """Notes what is called, in order."""

    def __init__(self) -> None:
        x = torch.ones(2, requires_grad=True)
        weight = torch.ones(2, requires_grad=True)
        super().__init__(BuiltLayer(lambda x: x * weight, [weight]), [x])
        self.gradient = torch.ones(2)
        self.log: list[str] = []

    def drop(self) -> None:
        self.log.append("drop")
        super().drop()

    def forward(self) -> None:
        assert self.output is None and all(x.grad is None for x in self.inputs)
        self.log.append("forward")
        super().forward()

    def backward(self) -> None:
        self.log.append("backward")
        super().backward()

    def gradients(self, leaves: Any, keep: bool = False) -> tuple[torch.Tensor, ...]:
        self.log.append("data" if leaves[0] is self.inputs[0] else "weight")
        return super().gradients(leaves, keep)


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize(
    ("passes", "order"),
    [
        ("whole", ["drop", "|", "forward", "backward"]),
        ("parts", ["drop", "forward", "|", "data", "drop", "forward", "|", "weight"]),
    ],
)
def test_order_of_a_repetition(
    passes: Any, order: list[str], cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients and the old output go first; | is the barrier, behind the eviction of caches."""
    work = Recording()

    class Noting(ThreadCommunicator):
        def barrier(self) -> None:
            work.log.append("|")
            super().barrier()

        def allgather_object(self, value: Any) -> list[Any]:
            return [value]

    monkeypatch.setattr("calib.microbench.timing.stretches.evict", lambda: work.log.append("evict"))

    def program(comm: Any) -> Any:
        return host_block(TimedCalls(comm, "label", work.stretches(passes), cold=cold))(2)

    (timings,) = results(run_ranks(1, program, Noting))
    if cold:
        order = [word for step in order for word in (("evict", "|") if step == "|" else (step,))]
    assert work.log == 2 * order
    assert isinstance(timings, Timings) and len(timings.starts) == 2
    assert {len(rows) for rows in timings.seconds.values()} == {2}


@pytest.mark.parametrize("cold", [False, True])
def test_caches_are_evicted_before_each_repetition_of_a_cold_case(
    cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    evictions: list[None] = []
    monkeypatch.setattr("calib.microbench.timing.stretches.evict", lambda: evictions.append(None))
    (result,) = measure(LayerCase(ranks=1, layer=LINEAR, batch=2, cold=cold))
    assert set(result.ranks) == {"forward", "backward"} and result.seconds("forward")
    assert len(evictions) == (len(result.ranks["forward"]) if cold else 0)


class SameClock:
    """A clock that all ranks share already: threads of one process."""

    def to_common(self, reading: float) -> float:
        return reading


def test_late_arrivals_are_known_with_a_clock() -> None:
    case = LayerCase(ranks=2, layer=LINEAR, batch=2, passes="parts")
    clock: Any = SameClock()
    program = run_ranks(2, lambda comm: measure_layer(comm, case, 1, 0.0, 0.5, clock=clock))
    for result in results(program):
        assert len(result.late) == len(result.ranks["backward_data"])
        assert min(result.late) >= 0 and max(result.late) > 0


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("passes", ["whole", "parts"])
def test_other_item_types(dtype: str, passes: Any) -> None:
    case = LayerCase(ranks=1, layer=convolution(2), batch=2, execution=dtype, passes=passes)
    (result,) = measure(case)
    assert all(result.seconds(name) for name in result.ranks)
    work, _ = start(case)
    tensors = [*work.inputs, *work.layer.parameters, work.gradient]
    assert {x.dtype for x in tensors if x is not None} == {getattr(torch, dtype)}


@pytest.mark.parametrize("needs_input_grad", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_mixed_layers_are_those_of_autocast(name: str, needs_input_grad: bool) -> None:
    shape = LAYERS[name]
    case = LayerCase(
        ranks=1, layer=shape, batch=2, execution="bfloat16-mixed", needs_input_grad=needs_input_grad
    )
    assert_is_autocast(start(case)[0], shape, needs_input_grad)
    (result,) = measure(case)
    assert all(result.seconds(operation) for operation in result.ranks)


def test_a_mixed_layer_casts_its_weights_at_every_call() -> None:
    """Autocast keeps what it cast until it is left: a layer would see old weights."""
    work, _ = start(LayerCase(ranks=1, layer=LINEAR, batch=2, execution="bfloat16-mixed"))
    work.forward()
    with torch.no_grad():
        for parameter in work.layer.parameters:
            parameter.zero_()
    before, _ = work.output, work.forward()
    assert before is not None and before.abs().max() > 0
    assert work.output is not None and work.output.abs().max() == 0


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16-mixed"])
def test_channels_last(rank: int, dtype: str) -> None:
    """Strides: the channels are next to one another, in input, weight, output and its gradient."""
    execution = f"{dtype}+channels_last"
    case = LayerCase(ranks=1, layer=convolution(rank), batch=2, execution=execution)
    (result,) = measure(case)
    assert set(result.ranks) == {"forward", "backward"}
    work, _ = start(case)
    work.forward()
    ours = [work.inputs[0], work.layer.parameters[0]]
    # a processor without bfloat16 has no kernel of this format: the output is as PyTorch's own makes it
    if dtype == "float32" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        ours += [work.output, work.gradient]
    for tensor in ours:
        assert tensor is not None and tensor.stride(1) == 1 and tensor.stride(-1) > 1
    plain, _ = start(case.model_copy(update={"execution": dtype}))
    torch.testing.assert_close(plain.inputs, work.inputs)  # the same numbers


def test_everything_random_follows_the_seed() -> None:
    case = LayerCase(ranks=1, layer=LINEAR, batch=2)
    one, two = start(case)[0], start(case)[0]
    assert one.gradient is not None and two.gradient is not None
    assert torch.equal(one.gradient, two.gradient) and torch.equal(one.inputs[0], two.inputs[0])
    other = make_work(case, 4, HERE)
    assert not torch.equal(other.inputs[0], one.inputs[0])


LAST = "float32+channels_last"
REFUSED: dict[str, tuple[Mapping[str, Any], str]] = {
    "tf32 on a CPU": ({"execution": "tf32"}, "tf32 is arithmetic of CUDA devices"),
    "a graph": ({"execution": "float32+cuda_graph"}, "a layer alone is no CUDA graph"),
    "no parts": ({"layer": RELU, "needs_input_grad": False, "passes": "parts"}, "no backward"),
    "channels_last of rows": ({"execution": LAST}, "2 or 3 spatial dimensions; .* have 0"),
    "channels_last of lines": (
        {"execution": LAST, "layer": convolution(1)},
        "2 or 3 spatial dimensions; .* have 1",
    ),
    "wrong output": ({"layer": layer("relu", ((4,),), (5,))}, r"output is \(2, 4\), not \(2, 5\)"),
    "wrong parameters": ({"layer": layer("linear", ((4,),), (3,), (3, 5))}, "do not fit"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_case_that_cannot_be_is_an_input_error(name: str) -> None:
    change, words = REFUSED[name]
    case = LayerCase.model_validate({"ranks": 2, "layer": LINEAR, "batch": 2, **change})
    for outcome in run_ranks(2, lambda comm: measure_layer(comm, case, 1, 0.0, 0.5)):
        assert isinstance(outcome, InputError)
        with pytest.raises(InputError, match=words):
            raise outcome


@pytest.mark.parametrize(
    ("shape", "dtype", "words"),
    [
        (pooling("avg_pool", 3), "float16", "not implemented for 'Half'"),
        (layer("batch_norm", ((3,),), (3,), (3,), (3,)), "float32", "more than 1 value"),
        (layer("softmax", ((),), ()), "float32", "Dimension out of range"),
        (layer("add", ((3,), (3,), (3,)), (3,)), "float32", "torch says"),
    ],
)
def test_what_torch_cannot_do_is_one_line(shape: LayerShape, dtype: str, words: str) -> None:
    case = LayerCase(ranks=1, layer=shape, batch=1, execution=dtype)
    (outcome,) = run_ranks(1, lambda comm: measure_layer(comm, case, 1, 0.0, 0.5))
    assert isinstance(outcome, MeasurementError)
    assert case.label in str(outcome) and words in str(outcome) and "\n" not in str(outcome)


def test_ranks_fail_together_where_one_of_them_fails() -> None:
    """In the loop, behind good repetitions: the others must not wait at a barrier for ever."""
    case = LayerCase(ranks=2, layer=LINEAR, batch=2)

    def program(comm: Any) -> None:
        calls = 0

        def forward() -> None:
            nonlocal calls
            calls += 1
            if comm.rank == 1 and calls == 2:
                raise RuntimeError("CUDA out of memory.\nTried to allocate much")

        host_block(TimedCalls(comm, case.label, [CallStretch({"forward": forward})]))(4)

    for outcome in run_ranks(2, program):
        assert isinstance(outcome, MeasurementError)
        assert str(outcome) == f"{case.label}: torch says: CUDA out of memory."


def test_an_attempt_after_a_failure_does_nothing() -> None:
    done: list[int] = []
    attempts = Attempts("label")
    attempts.run(lambda: done.append(1))
    attempts.run(lambda: int("x"))
    attempts.run(lambda: done.append(2))
    assert done == [1] and attempts.failure.startswith("label: torch says: invalid literal")
    with pytest.raises(ZeroDivisionError):  # a mistake of ours is no measurement that failed
        Attempts("label").run(lambda: 1 // 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_machine_without_cuda_says_so() -> None:
    for outcome in run_ranks(2, lambda comm: take_device("cuda", comm)):
        assert isinstance(outcome, MachineError) and "sees no CUDA device" in str(outcome)
