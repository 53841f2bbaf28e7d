"""Data-parallel gradients under real mpiexec against plain torch on the joint batch.

The ranks run training's own step; the reference here uses nothing of training but the models.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training.launching import needs_mpiexec, run_script
from training.models import build, entry

pytestmark = [pytest.mark.mpi, needs_mpiexec]

SEED, RANKS, STEPS = 11, 2, 4
LEARNING_RATE, MOMENTUM = 1e-3, 0.9  # what training says that it uses
TOLERANCE = 1e-5
BATCH = {"vgg16-mini": 4, "resnet50-mini": 4, "cosmoflow-mini": 2}

SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np, torch
from torch import nn
import training.gradient_check as check
from foundation.errors import MeasurementError
from microbench.communicators.mpi import MpiCommunicator
from training.step import TrainingStep
from training.strategies.data import FlatAllreduce

model, directory = sys.argv[1], Path(sys.argv[2])
seed, steps, batch = map(int, sys.argv[3:6])
torch.set_num_threads(1)
communicator = MpiCommunicator()
rank = communicator.rank
step = TrainingStep(model, "data", batch, seed, communicator)
for part in step.module.modules():
    if isinstance(part, nn.Dropout):
        part.eval()
data = np.load(directory / f"data{rank}.npz")
step.inputs, step.targets = torch.from_numpy(data["x"]), torch.from_numpy(data["t"])

gradients = []
update = step.optimizer.step
def spy():
    if not gradients:
        gradients.extend(p.grad.clone().numpy() for p in step.parameters)
    return update()
step.optimizer.step = spy
for _ in range(steps):
    step.iterate()
np.savez(directory / f"gradients{rank}.npz", *gradients)
np.savez(directory / f"weights{rank}.npz", *[p.detach().numpy() for p in step.parameters])

class ForgetsToDivide(FlatAllreduce):
    def unpack(self, gradients):
        super().unpack(gradients)
        for gradient in gradients:
            gradient.mul_(self._communicator.size)

class ForgetsToExchange(FlatAllreduce):
    def exchange(self):
        self._flat.mul_(self._communicator.size)

class LosesOneTensor(FlatAllreduce):
    def unpack(self, gradients):
        super().unpack(gradients)
        gradients[len(gradients) // 2].zero_()

class SwapsEqualTensors(FlatAllreduce):
    def unpack(self, gradients):
        super().unpack(gradients)
        for first in range(len(gradients)):
            for second in range(first + 1, len(gradients)):
                a, b = gradients[first], gradients[second]
                if a.shape == b.shape:
                    kept = a.clone()
                    a.copy_(b)
                    b.copy_(kept)
                    return

class SpoilsTheLast(FlatAllreduce):
    def unpack(self, gradients):
        super().unpack(gradients)
        gradients[-1].fill_(float("nan"))

class SpoilsTheFirst(FlatAllreduce):
    def unpack(self, gradients):
        super().unpack(gradients)
        gradients[0].fill_(float("nan"))

verdicts = {}
right = check.make_exchange
for broken in (None, ForgetsToDivide, ForgetsToExchange, LosesOneTensor, SwapsEqualTensors,
               SpoilsTheFirst, SpoilsTheLast):
    check.make_exchange = right if broken is None else (
        lambda strategy, parameters, communicator: broken(parameters, communicator)
    )
    name = broken.__name__ if broken else "right"
    try:
        verdicts[name] = check.gradient_difference(
            step.module, model, "data", batch, seed, communicator
        )
    except MeasurementError as error:
        verdicts[name] = str(error)
(directory / f"verdicts{rank}.json").write_text(json.dumps(verdicts))
"""


@dataclass
class Launch:
    """What the ranks were given and what they left, rank by rank."""

    model: str
    data: list[tuple[Tensor, Tensor]]
    gradients: list[list[np.ndarray]]
    weights: list[list[np.ndarray]]
    verdicts: list[dict[str, Any]]


def arrays(path: Path) -> list[np.ndarray]:
    with np.load(path) as content:
        return [content[f"arr_{i}"] for i in range(len(content.files))]


@pytest.fixture(scope="module", params=sorted(BATCH))
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    model = request.param
    directory = tmp_path_factory.mktemp(model)
    info, batch = entry(model), BATCH[model]
    generator = torch.Generator().manual_seed(5)
    data = []
    for rank in range(RANKS):
        # ranks whose data differ in scale: their own gradients are far from the joint ones
        x = (rank + 1) * torch.randn((batch, *info.input_shape), generator=generator)
        if info.loss == "mse":
            t = torch.randn((batch, info.outputs), generator=generator)
        else:
            t = torch.randint(info.outputs, (batch,), generator=generator)
        data.append((x, t))
        np.savez(directory / f"data{rank}.npz", x=x.numpy(), t=t.numpy())
    script = directory / "ranks.py"
    script.write_text(SCRIPT)
    done = run_script(RANKS, script, model, str(directory), str(SEED), str(STEPS), str(batch))
    assert done.returncode == 0, done.stderr[-2000:]
    return Launch(
        model=model,
        data=data,
        gradients=[arrays(directory / f"gradients{r}.npz") for r in range(RANKS)],
        weights=[arrays(directory / f"weights{r}.npz") for r in range(RANKS)],
        verdicts=[json.loads((directory / f"verdicts{r}.json").read_text()) for r in range(RANKS)],
    )


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The reference as the ranks compute: kernels of several threads round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def reference_model(model: str) -> nn.Module:
    """Training mode without dropout."""
    module = build(model, SEED).train()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return module


def reference_loss(module: nn.Module, model: str, data: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Mean loss over the joint batch; with batch norm, statistics are those of each half."""
    loss = F.mse_loss if model == "cosmoflow-mini" else F.cross_entropy
    if model == "resnet50-mini":
        halves = [loss(module(x), t) for x, t in data]
        return torch.stack(halves).mean()
    x, t = (torch.cat(parts) for parts in zip(*data, strict=True))
    return loss(module(x), t)


def difference(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Largest |found - expected| / max |expected| over the tensors."""
    ratios = [np.abs(f - e).max() / np.abs(e).max() for f, e in zip(found, expected, strict=True)]
    return float(np.max(ratios))


def test_exchanged_gradients_are_those_of_the_joint_batch(launch: Launch) -> None:
    """To 1e-5 relative (issue 2)."""
    module = reference_model(launch.model)
    reference_loss(module, launch.model, launch.data).backward()
    serial = [p.grad.numpy() for p in module.parameters() if p.grad is not None]
    for rank in range(RANKS):
        assert difference(launch.gradients[rank], serial) <= TOLERANCE


def test_a_ranks_own_gradients_are_not_those_of_the_joint_batch(launch: Launch) -> None:
    """So that the test above can fail."""
    for rank in range(RANKS):
        module = reference_model(launch.model)
        reference_loss(module, launch.model, [launch.data[rank]]).backward()
        own = [p.grad.numpy() for p in module.parameters() if p.grad is not None]
        assert difference(launch.gradients[rank], own) > 1e-2


def test_all_ranks_keep_the_same_weights(launch: Launch) -> None:
    """Bit by bit after several updates, or the next iteration trains two models."""
    first, second = launch.weights
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    start = [p.detach().numpy() for p in build(launch.model, SEED).parameters()]
    assert not any(np.array_equal(a, b) for a, b in zip(first, start, strict=True))


def test_weights_after_several_steps_are_those_of_momentum_sgd(launch: Launch) -> None:
    """v = 0.9 v + g, w = w - 1e-3 v (Sutskever et al. 2013 as PyTorch has it), on the joint batch.

    Rounding grows from step to step, so the change of the weights is held to 1e-3 of itself.
    ResNet at these sizes is chaotic (weights off by 1e-7 change the next gradients by 2%): only its
    first gradients can be compared, and they are, above.
    """
    if launch.model == "resnet50-mini":
        pytest.skip("chaotic: rounding grows 1e5-fold in one step")
    module = reference_model(launch.model)
    parameters = list(module.parameters())
    start = [p.detach().clone() for p in parameters]
    velocity = [torch.zeros_like(p) for p in parameters]
    for _ in range(STEPS):
        loss = reference_loss(module, launch.model, launch.data)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, v, g in zip(parameters, velocity, gradients, strict=True):
                v.mul_(MOMENTUM).add_(g)
                p.sub_(LEARNING_RATE * v)
    expected = [(p.detach() - s).numpy() for p, s in zip(parameters, start, strict=True)]
    found = [w - s.numpy() for w, s in zip(launch.weights[0], start, strict=True)]
    flat_found, flat_expected = (
        np.concatenate([part.ravel() for part in parts]) for parts in (found, expected)
    )
    error = np.linalg.norm(flat_found - flat_expected) / np.linalg.norm(flat_expected)
    assert error < 1e-3


def test_gradient_difference_of_the_right_exchange(launch: Launch) -> None:
    """The same number on every rank, and at most 1e-5 (issue 2)."""
    found = [verdicts["right"] for verdicts in launch.verdicts]
    assert found[0] == found[1]
    assert 0 <= found[0] <= TOLERANCE


@pytest.mark.parametrize(
    "broken",
    [
        "ForgetsToDivide",
        "ForgetsToExchange",
        "LosesOneTensor",
        "SwapsEqualTensors",
        "SpoilsTheFirst",
        "SpoilsTheLast",
    ],
)
def test_a_broken_exchange_has_no_time(launch: Launch, broken: str) -> None:
    """MeasurementError on every rank, with the model and what to make of it."""
    for verdicts in launch.verdicts:
        message = verdicts[broken]
        assert isinstance(message, str), f"{broken} passed as {message}"
        assert launch.model in message and "nothing was timed" in message
