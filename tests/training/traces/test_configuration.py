"""What a run was: small real runs under torch.profiler, and strategies by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.traces.made_traces import NCCL, Lane, described, profiled
from torch import nn
from torch.utils.checkpoint import checkpoint

from calib.training.traces.configuration import RunConfiguration
from calib.training.traces.faults import Fault
from calib.training.traces.run import TracedRun, read_ranks, traced_run

STEPS = 3
Loss = Callable[[], torch.Tensor]


def traced(
    folder: Path, loss: Loss, *optimizers: torch.optim.Optimizer, micro: int = 1
) -> TracedRun:
    path = folder / "t.json"
    with profiled(path, STEPS, shapes=True) as profiler:
        for _ in range(STEPS + 2):
            for _ in range(micro):
                (loss() / micro).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            profiler.step()
    return traced_run(read_ranks([path]))


def network(width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def items(*modules: nn.Module) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())


def faults_of_what_it_is(run: TracedRun) -> list[Fault]:
    """Those that do not depend on how busy this machine is."""
    return [fault for fault in run.faults if fault.kind not in ("input", "slow rank")]


def mean_loss(found: torch.Tensor) -> torch.Tensor:
    return found.float().pow(2).mean()


def test_a_plain_step(tmp_path: Path) -> None:
    model = network()
    x = torch.randn(12, 16)
    run = traced(tmp_path, lambda: mean_loss(model(x)), torch.optim.SGD(model.parameters(), lr=0.1))
    found = run.configuration
    assert (found.ranks, found.traced, found.steps, found.device) == (1, 1, STEPS, "cpu")
    assert (found.strategy, found.strategy_reason) == ("serial", "one rank")
    assert (found.batch_per_rank, found.micro_batches) == (12, 1)
    assert (found.dtype, found.other_dtypes) == ("float32", {})
    assert (found.optimizer, found.checkpointing, found.buckets) == ("SGD", False, None)
    assert found.gradient_items == items(model) and found.exchanged_items is None
    assert faults_of_what_it_is(run) == []
    assert TracedRun.model_validate_json(run.model_dump_json()) == run
    # by hand: three layers, forward and backward, each once in a step
    calls = {(op.phase, op.name): 0.0 for op in run.operators}
    for op in run.operators:
        calls[op.phase, op.name] += op.calls
    assert calls["forward", "aten::linear"] == 3
    assert calls["backward", "aten::mm"] == 5  # of the first layer no gradient of the input


def test_gradients_are_accumulated(tmp_path: Path) -> None:
    model = network()
    x = torch.randn(4, 16)
    adam = torch.optim.AdamW(model.parameters())
    found = traced(tmp_path, lambda: mean_loss(model(x)), adam, micro=3).configuration
    assert (found.batch_per_rank, found.micro_batches, found.optimizer) == (4, 3, "AdamW")
    assert found.gradient_items == items(model)


@pytest.mark.parametrize(
    ("make", "x", "batch"),
    [
        (lambda: nn.Conv2d(3, 4, 3), (5, 3, 8, 8), 5),
        (lambda: nn.Conv1d(3, 4, 3), (6, 3, 8), 6),
        (lambda: nn.Linear(8, 4), (7, 3, 8), 7),
    ],
)
def test_the_batch_of_a_first_layer(
    tmp_path: Path, make: Callable[[], nn.Module], x: tuple[int, ...], batch: int
) -> None:
    layer = make()
    data = torch.randn(*x)
    sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
    run = traced(tmp_path, lambda: mean_loss(layer(data)), sgd)
    assert run.configuration.batch_per_rank == batch


def test_an_embedding_first(tmp_path: Path) -> None:
    """Its table has more rows than the batch."""
    table, layer = nn.Embedding(100, 16), nn.Linear(16, 100)
    words = torch.randint(100, (6, 9))
    both = [*table.parameters(), *layer.parameters()]
    sgd = torch.optim.SGD(both, lr=0.1)
    found = traced(tmp_path, lambda: mean_loss(layer(table(words))), sgd).configuration
    assert found.batch_per_rank == 6 and found.gradient_items == items(table, layer)


def test_a_product_with_a_bias_is_not_of_its_bias(tmp_path: Path) -> None:
    """What torch.compile calls: torch.addmm and torch.mm, without a linear around."""
    weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((16, 10), (10,)))
    x = torch.randn(6, 16)
    sgd = torch.optim.SGD([weight, bias], lr=0.1)
    run = traced(tmp_path, lambda: mean_loss(torch.addmm(bias, x, weight)), sgd)
    assert run.configuration.batch_per_rank == 6


def test_two_optimizers(tmp_path: Path) -> None:
    model = network()
    x = torch.randn(4, 16)
    first = torch.optim.SGD(model[:3].parameters(), lr=0.1)
    second = torch.optim.Adam(model[3:].parameters())
    run = traced(tmp_path, lambda: mean_loss(model(x)), first, second)
    assert run.configuration.optimizer == "Adam, SGD"


@pytest.mark.parametrize("convolution", [False, True])
def test_autocast(tmp_path: Path, convolution: bool) -> None:
    """Weights are float32, products bfloat16."""
    model = network() if not convolution else nn.Conv2d(3, 8, 3)
    x = torch.randn(4, 16) if not convolution else torch.randn(4, 3, 8, 8)

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return mean_loss(model(x))

    run = traced(tmp_path, loss, torch.optim.SGD(model.parameters(), lr=0.1))
    assert (run.configuration.dtype, run.configuration.other_dtypes) == ("bfloat16", {})
    assert run.configuration.gradient_items == items(model) and faults_of_what_it_is(run) == []


def test_one_layer_in_float64(tmp_path: Path) -> None:
    model = network()
    model[2].double()
    x = torch.randn(4, 16)

    def loss() -> torch.Tensor:
        hidden = model[1](model[0](x)).double()
        return mean_loss(model[4](model[3](model[2](hidden)).float()))

    run = traced(tmp_path, loss, torch.optim.SGD(model.parameters(), lr=0.1))
    assert run.configuration.dtype == "float32"
    assert run.configuration.other_dtypes == {"aten::addmm 32, 4x32, 32x32": "float64"}
    (fault,) = faults_of_what_it_is(run)
    assert fault.kind == "other item type"
    assert fault.says == (
        "most products are in float32, but aten::addmm 32, 4x32, 32x32 in float64"
    )


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(tmp_path: Path, reentrant: bool) -> None:
    """A region that runs again is no micro-batch, and no second gradient."""
    model = network()
    x = torch.randn(4, 16)

    def loss() -> torch.Tensor:
        hidden = checkpoint(model[1:4], model[0](x), use_reentrant=reentrant)
        return mean_loss(model[4](hidden))

    found = traced(tmp_path, loss, torch.optim.SGD(model.parameters(), lr=0.1)).configuration
    assert found.checkpointing
    assert found.micro_batches == 1
    # a reentrant one accumulates gradients of activations, too
    assert found.gradient_items == (None if reentrant else items(model))
    assert found.batch_per_rank == 4


def test_a_trace_without_shapes(tmp_path: Path) -> None:
    model = network()
    x = torch.randn(4, 16)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path / "t.json"
    with profiled(path, STEPS) as profiler:
        for _ in range(STEPS + 2):
            mean_loss(model(x)).backward()
            sgd.step()
            sgd.zero_grad()
            profiler.step()
    run = traced_run(read_ranks([path]))
    found = run.configuration
    assert (found.batch_per_rank, found.dtype, found.gradient_items) == (None, "", None)
    assert (found.micro_batches, found.optimizer) == (1, "SGD")
    assert any("have no shapes (record_shapes=True)" in note for note in run.notes)


# strategies, by the collectives of a rank and the phase that calls them


def strategy(folder: Path, *called: tuple[str, str, int], **about: Any) -> RunConfiguration:
    """`called`: phase, operation and items of each collective of a step."""
    lane = Lane()
    phases = {"forward": 10.0, "backward": 200.0, "update": 400.0, "": 700.0}
    for number in range(2):
        at = 1000.0 * number
        lane.add("user_annotation", f"ProfilerStep#{number}", at, at + 1000)
        lane.add("cpu_op", "aten::linear", at + 10, at + 110, **{"Sequence number": 1})
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        lane.add("cpu_op", node, at + 200, at + 300)
        lane.add("user_annotation", "Optimizer.step#SGD.step", at + 400, at + 600)
        for n, (phase, operation, count) in enumerate(called):
            launch, key = at + phases[phase] + 5 * n, 100 * number + n
            lane.add("cuda_runtime", "cudaLaunchKernel", launch, launch + 1, correlation=key)
            said = described(operation, count, "Float", [0, 1])
            lane.add("kernel", NCCL, launch + 9, launch + 12, 20, correlation=key, **said)
    path = folder / "t.json"
    lane.read(path, **({"distributedInfo": {"rank": 0, "world_size": 2}} | about))
    return traced_run(read_ranks([path])).configuration


@pytest.mark.parametrize(
    ("called", "found", "why"),
    [
        ([], "", "no collective is in the traces"),
        ([("backward", "allreduce", 90), ("", "allreduce", 10)], "data", "2 allreduce in a step"),
        (
            [("forward", "_allgather_base", 90), ("backward", "_reduce_scatter_base", 90)],
            "fully_sharded",
            "1 allgather, 1 reduce_scatter in a step",
        ),
        (
            [("backward", "reduce_scatter", 90), ("update", "all_gather", 90)],
            "data",
            "1 reduce_scatter, 1 allgather in a step: with a sharded optimizer",
        ),
        (
            [("forward", "allreduce", 50), ("backward", "allreduce", 90)],
            "",
            "2 allreduce in a step, of activations too: filter, channel or tensor parallelism",
        ),
        (  # batch norm's statistics are no activations
            [("forward", "allreduce", 5), ("backward", "allreduce", 90)],
            "data",
            "2 allreduce in a step",
        ),
        (
            [("forward", "all_to_all", 50), ("backward", "allreduce", 90)],
            "",
            "1 all_to_all, 1 allreduce in a step: expert, sequence or embedding parallelism",
        ),
        (
            [("forward", "send", 5), ("forward", "send", 5), ("backward", "recv", 5)],
            "pipeline",
            "2 send, 1 receive in a step",
        ),
        ([("forward", "broadcast", 5)], "", "1 broadcast in a step"),
    ],
)
def test_strategies(
    tmp_path: Path, called: list[tuple[str, str, int]], found: str, why: str
) -> None:
    run = strategy(tmp_path, *called)
    assert (run.strategy, run.strategy_reason) == (found, why)
    assert run.micro_batches == (2 if found == "pipeline" else 1)


def test_a_backward_that_an_update_interrupts_is_one_micro_batch(tmp_path: Path) -> None:
    """As of optimizers that update each parameter as soon as it has its gradient."""
    lane = Lane()
    lane.add("user_annotation", "ProfilerStep#0", 0, 1000)
    lane.add("cpu_op", "aten::linear", 10, 110, **{"Sequence number": 1})
    for at in (200.0, 400.0, 600.0):
        lane.add("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at, at + 100)
        lane.add("user_annotation", "Optimizer.step#SGD.step", at + 120, at + 150)
    lane.read(tmp_path / "t.json")
    assert traced_run(read_ranks([tmp_path / "t.json"])).configuration.micro_batches == 1


def test_buckets_and_what_is_exchanged(tmp_path: Path) -> None:
    run = strategy(tmp_path, ("backward", "allreduce", 300), ("backward", "allreduce", 100))
    assert run.buckets is not None
    assert (run.buckets.operation, run.buckets.count) == ("allreduce", 2)
    assert (run.buckets.nbytes, run.buckets.largest_nbytes) == (1600, 1200)
    assert (run.exchanged_items, run.group_sizes) == (400, [2])


def test_a_trace_that_does_not_say_how_many_ranks_is_told_by_its_collectives(
    tmp_path: Path,
) -> None:
    run = strategy(tmp_path, ("backward", "allreduce", 90), distributedInfo={})
    assert (run.ranks, run.strategy) == (1, "data")
    alone = {"rank": 0, "world_size": 1}
    assert strategy(tmp_path, ("", "allreduce", 9), distributedInfo=alone).strategy == "serial"


def test_texts_of_a_trace_drive_no_terminal(tmp_path: Path) -> None:
    said = {"rank": 0, "world_size": 2, "backend": "nc\x1b[31mcl\n"}
    devices = [{"name": "H100\x1b]0;x\x07\ud800"}]
    about = {"distributedInfo": said, "deviceProperties": devices, "host_name": "a\nb"}
    run = strategy(tmp_path, ("", "allreduce", 9), **about)
    assert run.backend.isprintable() and run.device.isprintable() and run.device.startswith("H100")
    assert run.hosts == ["a\N{REPLACEMENT CHARACTER}b"]
    for nothing in (["a"], {"a": 1}, 5, None):
        assert strategy(tmp_path, host_name=nothing).hosts == []
