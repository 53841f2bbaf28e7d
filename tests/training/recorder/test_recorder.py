"""The recorder on real loops: what it says adds up, and lies within what is measured around it."""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from tests.training.launching import TIMEOUT_S
from torch import Tensor, nn

import calib
from calib.foundation.errors import FileError, InputError
from calib.microbench.device import Device
from calib.microbench.devices import device_of
from calib.training.recorder.recorder import Recorder, calib_recorder
from calib.training.run.lines import RUN_PHASES, Iteration
from calib.training.run.record import TrainingRun

OTHERS = ("halo", "layerwise", "pack", "exchange", "unpack")


class Slow(nn.Module):
    """A module whose forward and backward last so many seconds at least."""

    def __init__(self, forward_s: float = 0.0, backward_s: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(self.forward_s)
        outputs: Any = self.layer(inputs)
        if outputs.requires_grad:
            outputs.register_hook(lambda gradient: time.sleep(self.backward_s))
        return outputs * 1.0


class SlowSGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        time.sleep(0.004)
        return super().step(closure)


def iterate(module: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
    loss = nn.functional.cross_entropy(module(torch.ones(3, 4)), torch.zeros(3, dtype=torch.long))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def pair(module: nn.Module | None = None) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = module or Slow()
    return module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def recorder(
    path: Path, module: nn.Module, optimizer: Any, batch: int = 3, **more: Any
) -> Recorder:
    about = {"module": module, "optimizer": optimizer, **more}
    return calib_recorder(path, model="mine", batch=batch, **about)


def phases_of(iteration: Iteration) -> float:
    return sum(times[0] for times in iteration.seconds.values())


def recorded(of: Recorder, path: Path, step: Callable[[int, Recorder], Any], n: int = 2) -> Any:
    """The run of n iterations of `step`."""
    with of as record:
        for index in range(n):
            with record():
                step(index, record)
    return TrainingRun.read(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def test_phases_and_rest_of_a_loop(path: Path) -> None:
    """Each phase lasts at least what sleeps in it; together they are within what is around them."""
    torch.manual_seed(0)
    module = Slow(forward_s=0.003, backward_s=0.005)
    optimizer = SlowSGD(module.parameters(), lr=0.1)
    outside = []
    with recorder(path, module, optimizer) as record:
        for _ in range(12):
            time.sleep(0.001)  # loading, outside of the iteration
            start = time.perf_counter()
            with record():
                time.sleep(0.002)  # of no phase
                record.loss(iterate(module, optimizer))
            outside.append(time.perf_counter() - start)
    run = TrainingRun.read(path)
    assert run.complete and len(run.iterations) == 12
    assert [i.warmup for i in run.iterations] == [True] + [False] * 11
    assert [i.first for i in run.iterations] == [True] + [False] * 11
    for iteration, most in zip(run.iterations, outside, strict=True):
        assert iteration.whole is not None and set(iteration.seconds) == set(RUN_PHASES)
        of = {name: times[0] for name, times in iteration.seconds.items()}
        assert (of["forward"], of["backward"], of["update"]) > (0.003, 0.005, 0.004)
        assert of["backward"] >= 0.005 and of["update"] >= 0.004
        assert [of[name] for name in OTHERS] == [0.0] * 5
        assert phases_of(iteration) + 0.002 <= iteration.whole[0] <= most
        assert iteration.total_seconds == iteration.whole[0]
        assert iteration.loss is not None and math.isfinite(iteration.loss)
    assert run.iterations[0].loss == pytest.approx(iterate(*pair()).item(), rel=1e-6)
    head, end = run.header, run.end
    assert (head.model, head.strategy, head.p, head.division.batch) == ("mine", "serial", 1, 3)
    assert (head.iterations, head.warmup, head.optimizer) == (11, 1, "slowsgd")
    assert (head.execution, head.seed, len(head.hosts), head.device) == ("float32", None, 1, "cpu")
    assert end is not None and end.wall_seconds == sum(i.total_seconds for i in run.timed)
    assert end.peak_rss_bytes[0] > 1 << 20 and end.clock_share is not None


def test_the_clock_of_the_phases_is_exact(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that is looked at, and so moves on, one unit a time: every piece is a unit."""
    ticks = iter(range(10**6))
    monkeypatch.setattr(Device, "now", lambda self: float(next(ticks)))
    module, optimizer = pair()

    def step(_: int, record: Recorder) -> None:
        loss = iterate(module, optimizer)
        with record.of("exchange"):
            module.eval()
            module(torch.ones(1, 4))  # no phase of training
            module.train()
        record.loss(loss)

    for found in recorded(recorder(path, module, optimizer), path, step, n=3).iterations:
        # rest, forward, backward, rest, update, rest, exchange, rest (evaluation), rest
        assert found.seconds == {
            x: [float(x in ("forward", "backward", "update", "exchange"))] for x in RUN_PHASES
        }
        assert found.whole == [9.0]


def test_without_steps_an_iteration_is_between_updates(path: Path) -> None:
    module, optimizer = pair()
    start = time.perf_counter()
    with recorder(path, module, optimizer, warmup=2, iterations=23) as record:
        for _ in range(25):
            time.sleep(0.001)  # loading is part of it
            record.loss(iterate(module, optimizer))
    outside = time.perf_counter() - start
    run = TrainingRun.read(path)
    assert run.complete and (len(run.iterations), len(run.timed)) == (25, 23)
    assert all(i.total_seconds - phases_of(i) >= 0.001 for i in run.iterations)
    assert sum(i.total_seconds for i in run.iterations) <= outside
    assert run.header.optimizer == "momentum"
    assert module._forward_hooks == {} and module._forward_pre_hooks == {}
    hooks: Any = optimizer
    assert not hooks._optimizer_step_pre_hooks and not hooks._optimizer_step_post_hooks


def test_the_backward_ends_after_what_others_do_at_its_end(path: Path) -> None:
    """DistributedDataParallel waits for its exchange in a callback that it queues meanwhile."""
    module = Slow()
    engine: Any = torch.autograd.Variable._execution_engine
    queued: list[bool] = []

    def at_the_end() -> None:
        time.sleep(0.005)
        queued.append(True)

    weight: Any = module.layer.weight
    weight.register_hook(lambda gradient: engine.queue_callback(at_the_end))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    of = recorder(path, module, optimizer)
    run = recorded(of, path, lambda *_: iterate(module, optimizer))
    assert len(queued) == 2
    assert all(i.seconds["backward"][0] >= 0.005 for i in run.iterations)


def test_what_several_ranks_may_do_is_not_known(path: Path) -> None:
    module, optimizer = pair()

    def step(index: int, record: Recorder) -> None:
        iterate(module, optimizer)
        record.loss(math.nan)
        if index:
            with record.of("exchange"):
                time.sleep(0.002)

    of = recorder(path, module, optimizer, p=4, strategy="ddp", batch=8)
    run = recorded(of, path, step)
    known = {"forward", "backward", "update", "halo", "layerwise"}
    assert set(run.iterations[1].seconds) == known | {"exchange"}
    assert run.iterations[1].seconds["exchange"][0] >= 0.002
    assert [i.loss for i in run.iterations] == [None, None]
    assert "times of 1 of 4 ranks" in run.header.notes


def test_an_error_leaves_the_iterations_before_it(path: Path) -> None:
    module, optimizer = pair()

    def step(index: int, _: Recorder) -> None:
        iterate(module, optimizer)
        assert 1 / (6 - index)

    with pytest.raises(ZeroDivisionError):
        recorded(recorder(path, module, optimizer), path, step, n=7)
    run = TrainingRun.read(path)
    assert len(run.iterations) == 6 and not run.complete and run.end is None


def _apart(program: Callable[..., None], directory: Path, rank: int) -> None:
    torch.set_num_threads(1)
    os.chdir(directory)
    program(rank)


def in_processes(program: Callable[..., None], directory: Path, n: int) -> list[int | None]:
    """Run program(rank) in `n` new processes; their exit codes.

    New ones, not forks: threads of torch and gloo, which a fork loses, made it wait for ever.
    """
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_apart, args=(program, directory, rank)) for rank in range(n)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=TIMEOUT_S)
        process.kill()
        process.join()
    return [process.exitcode for process in processes]


def killed(rank: int) -> None:
    module, optimizer = pair()
    with recorder(Path("run.jsonl"), module, optimizer):
        for index in range(100):
            if index == 25:
                os.kill(os.getpid(), signal.SIGKILL)
            iterate(module, optimizer)


def test_a_killed_loop_leaves_a_readable_prefix(tmp_path: Path, path: Path) -> None:
    assert in_processes(killed, tmp_path, 1) == [-signal.SIGKILL]
    run = TrainingRun.read(path)
    assert [i.index for i in run.iterations] == list(range(20))
    assert not run.complete


def one_of_two(rank: int) -> None:
    """Refused where the file exists, on both ranks; then records."""
    dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)
    with pytest.raises(FileError, match="cannot write" if rank else "exists"):
        calib_recorder("taken.jsonl", model="m", batch=6).__enter__()
    recorded_by_two(rank)  # gone with its module, which holds the group that gloo's threads serve
    gc.collect()
    dist.destroy_process_group()


def recorded_by_two(rank: int) -> None:
    torch.manual_seed(0)
    alone = nn.Linear(4, 2)
    module = nn.parallel.DistributedDataParallel(alone)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with recorder(Path("run.jsonl"), module, optimizer, batch=6) as record:
        for index in range(12 + rank):  # one goes on for longer, by itself
            net = module if index < 12 else alone
            with record():
                loss = net(torch.ones(3, 4)).sum()
                record.loss(torch.tensor(float(rank)))
                loss.backward()
                optimizer.step()


def test_ranks_of_torch_distributed(tmp_path: Path, path: Path) -> None:
    """Both stop where the file exists; else rank 0 writes the times of both."""
    (tmp_path / "taken.jsonl").write_text("mine")
    assert in_processes(one_of_two, tmp_path, 2) == [0, 0]
    assert (tmp_path / "taken.jsonl").read_text() == "mine"
    run = TrainingRun.read(path)
    head = run.header
    assert (head.strategy, head.p, head.batch_per_rank) == ("data", 2, 3)
    assert head.library == "torch_gloo"
    assert run.complete and [i.index for i in run.iterations] == list(range(12))
    for iteration in run.iterations:
        assert {len(times) for times in iteration.seconds.values()} == {2}
        assert set(iteration.seconds) == {"forward", "backward", "update", "halo", "layerwise"}
        assert iteration.loss == 0.5
    assert len(head.hosts) == 2 and run.end is not None and len(run.end.peak_rss_bytes) == 2


def test_events_of_a_gpu_are_read_when_they_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        made: ClassVar[list[Event]] = []

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.at_ms, self.waited = 2.5 * len(self.made), False
            self.made.append(self)

        def record(self, stream: int) -> None:
            assert stream == 0

        def synchronize(self) -> None:
            self.waited = True

        def elapsed_time(self, other: Event) -> float:
            assert Event.made[-1].waited
            return other.at_ms - self.at_ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: index)
    properties = SimpleNamespace(uuid="a", name="GPU", L2_cache_size=1 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    clock = device_of(torch.device("cuda", 0))
    first, last = clock.now(), clock.now()
    assert clock.seconds(first, last) == pytest.approx(0.0025)


def test_what_cannot_be_recorded(tmp_path: Path, path: Path) -> None:
    module, optimizer = pair()
    with pytest.raises(InputError, match="unknown strategy 'zigzag'"):
        recorder(path, module, optimizer, strategy="zigzag")
    with pytest.raises(InputError, match="p = 2 does not divide"):
        recorder(path, module, optimizer, strategy="ddp", p=2).__enter__()
    with pytest.raises(FileError, match="exists"):
        recorder(tmp_path, module, optimizer).__enter__()
    with pytest.raises(FileError, match=r"cannot write|cannot create|exists"):
        recorder(Path("/dev/null/run.jsonl"), module, optimizer).__enter__()
    assert not (path).exists()
    nothing = calib_recorder(path, model="m", batch=1)
    with pytest.warns(UserWarning, match="nothing was recorded"), nothing as record:
        with pytest.raises(InputError, match="unknown phase"), record.of("loading"):
            pass
        with pytest.raises(InputError, match="one number"):
            record.loss(torch.ones(3))
    assert json.loads((path).read_text().splitlines()[0])["iterations"] == 0
    assert not TrainingRun.read(path).complete


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"p": 0}, "p = 0 is not a whole number from 1"),
        ({"batch": 0}, "batch = 0"),
        ({"batch": 2.5}, "batch = 2.5"),
        ({"warmup": -1}, "warmup = -1 is not a whole number from 0"),
        ({"iterations": -1}, "iterations = -1"),
        ({"model": nn.Linear(1, 1)}, "model is a name, not a Linear"),
        ({"device": "abacus"}, "'abacus' is not a PyTorch device"),
    ],
)
def test_circumstances_that_cannot_be(path: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        calib_recorder(path, **({"model": "m", "batch": 3} | more))
    assert "\n" not in str(error.value)


def test_a_file_that_exists_stays(path: Path) -> None:
    """Also that of another recorder."""
    module, optimizer = pair()

    def step(*_: Any) -> None:
        with pytest.raises(FileError, match=r"run.jsonl exists"):
            recorder(path, *pair()).__enter__()
        iterate(module, optimizer)

    recorded(recorder(path, module, optimizer), path, step, n=3)
    before = path.read_bytes()
    with pytest.raises(FileError, match=r"run.jsonl exists"):
        recorder(path, module, optimizer).__enter__()
    assert path.read_bytes() == before and len(TrainingRun.read(path).iterations) == 3
    assert module._forward_hooks == {}


def test_phases_whose_hooks_never_ran_are_not_known(path: Path) -> None:
    """What is trained is another module than the one given, as one that torch.compile returned."""
    module, optimizer = pair()
    of = recorder(path, nn.Linear(4, 2), optimizer)
    with pytest.warns(UserWarning, match="never called.*torch.compile give the compiled one"):
        run = recorded(of, path, lambda *_: iterate(module, optimizer))
    for found in run.iterations:
        assert set(found.seconds) == {"update", *OTHERS}
        assert found.seconds["update"][0] > 0


def test_a_compiled_module_is_not_the_one_it_was_made_of(tmp_path: Path) -> None:
    module, optimizer = pair(nn.Linear(4, 2))
    compiled: Any = torch.compile(module, backend="eager")
    iterate(compiled, optimizer)  # compiled before the hooks are there
    for name, given in ("inner", module), ("compiled", compiled):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            of = recorder(tmp_path / name, given, optimizer)
            run = recorded(of, tmp_path / name, lambda *_: iterate(compiled, optimizer))
        never = any("never called" in str(warning.message) for warning in said)
        for found in run.iterations:
            assert ("forward" in found.seconds) is not never
            assert all(
                found.seconds[x][0] > 0 for x in {"forward", "backward"} & set(found.seconds)
            )
        assert name == "inner" or not never


def test_a_backward_that_no_hook_sees_is_not_known(path: Path) -> None:
    class Result:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    class Odd(Slow):
        def forward(self, inputs: Tensor) -> Any:
            return Result(super().forward(inputs))

    module, optimizer = pair(Odd())

    def step(*_: Any) -> None:
        module(torch.ones(3, 4)).tensor.sum().backward()

    with (
        pytest.warns(UserWarning, match="optimizer.step was never called"),
        pytest.warns(UserWarning, match="no backward through what module returns"),
    ):
        (found,) = recorded(recorder(path, module, optimizer), path, step, n=1).iterations
    assert set(found.seconds) == {"forward", *OTHERS}  # the optimizer did not step either


def test_accumulated_gradients_have_no_update(path: Path) -> None:
    """In most iterations, where that is 0 and known."""
    module, optimizer = pair()

    def step(index: int, _: Recorder) -> None:
        module(torch.ones(3, 4)).sum().backward()
        if index % 2:
            optimizer.step()

    run = recorded(recorder(path, module, optimizer), path, step, n=4)
    updates = [i.seconds["update"][0] for i in run.iterations]
    assert updates[::2] == [0.0, 0.0] and min(updates[1::2]) > 0


def test_an_iteration_in_another_is_refused_and_a_failed_one_is_over(path: Path) -> None:
    module, optimizer = pair()
    with recorder(path, module, optimizer) as record:
        for _ in range(2):
            with pytest.raises(InputError, match="in another record"), record(), record():
                pass
            with pytest.raises(ZeroDivisionError), record():
                raise ZeroDivisionError
            iterate(module, optimizer)  # in none
        for _ in range(3):
            with record():
                iterate(module, optimizer)
    assert [i.index for i in TrainingRun.read(path).iterations] == [0, 1, 2]


def test_calib_has_it_by_both_names() -> None:
    assert calib.calib_recorder is calib_recorder and calib.recorder is calib_recorder
    with pytest.raises(AttributeError, match="no attribute 'record'"):
        print(calib.record)
