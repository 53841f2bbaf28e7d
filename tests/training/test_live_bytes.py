"""The oracle's count of live bytes against the bytes that training counts, under every strategy."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tests.helpers.words import words_of
from tests.training.launching import needs_mpiexec, said
from torch._subclasses.fake_tensor import FakeTensorMode

from calib.training.footprint import live_tensors
from calib.training.models.specs import spec

SCRIPT = Path(__file__).with_name("live_ranks.py")
# numbers (a loss, what it is divided by) that the count leaves out
NUMBERS = 1024
# of a plan: whoever has the largest part of one layer need not have that of all
OF_PLANS = 0.02

# DDP at the end: some of its buckets outlive it in a process
DIVIDED = tuple(
    words_of(
        "vgg16-mini,spatial,,4 vgg16-mini,pipeline,1f1b,8 vgg16-mini,data,sharded,2 "
        "vgg16-mini,fully_sharded,,2 resnet50-mini,fully_sharded,,4 inception-v3-mini,fully_sharded,,4 "
        "cosmoflow-mini,fully_sharded,,2 vgg16-mini,tensor,,4 "
        "resnet50-mini,filter,,4 resnet50-mini,pipeline,,8 cosmoflow-mini,channel,,2 "
        "inception-v3-mini,spatial,,2 vgg16-mini,data,,2 vgg16-mini,data,ddp,2"
    )
)
PLANNED = tuple(
    f"{name},layerwise,{way},4"
    for name, ways in {
        "vgg16-mini": ("sample", "channel", "height", "mixed"),
        "inception-v3-mini": ("channel", "mixed"),
    }.items()
    for way in ways
)


def ran(ranks: int, *jobs: str) -> dict[str, tuple[int, int]]:
    """(measured, counted) bytes by job."""
    lines = [line.split() for line in said(ranks, SCRIPT, *jobs).splitlines()]
    assert [job for job, _, _ in lines] == list(jobs)
    return {job: (int(measured), int(counted)) for job, measured, counted in lines}


def off(jobs: dict[str, tuple[int, int]]) -> dict[str, int]:
    return {
        job: counted - measured
        for job, (measured, counted) in jobs.items()
        if abs(counted - measured) > NUMBERS
    }


@pytest.fixture(scope="module")
def two_ranks() -> dict[str, tuple[int, int]]:
    """All jobs of two ranks in one launch."""
    return ran(2, *PLANNED, *DIVIDED)


@needs_mpiexec
def test_two_ranks(two_ranks: dict[str, tuple[int, int]]) -> None:
    assert not off({job: two_ranks[job] for job in DIVIDED})


@needs_mpiexec
def test_one_rank() -> None:
    """Residuals, inceptions with an auxiliary head, dropout, three dimensions, two losses."""
    names = ("alexnet-mini", "inception-v3-mini", "cosmoflow-mini")
    assert not off(ran(1, *(f"{name},serial,,3" for name in names)))


@needs_mpiexec
def test_executions() -> None:
    """Half precision throughout, and autocast; a CPU pools no bfloat16 in three dimensions."""
    names = ("vgg16-mini", "resnet50-mini", "inception-v3-mini")
    jobs = [f"{name},serial,{way},3" for name in names for way in ("bfloat16", "bfloat16-mixed")]
    assert not off(ran(1, *jobs, "cosmoflow-mini,serial,bfloat16-mixed,3"))


@needs_mpiexec
def test_accumulation() -> None:
    """Gradients are live in all micro-batches but the first; the samples of all are, too."""
    jobs = "vgg16-mini,serial,2,8 vgg16-mini,serial,4,8 cosmoflow-mini,serial,3,6"
    assert not off(ran(1, *words_of(jobs)))


@needs_mpiexec
def test_executions_of_two_ranks() -> None:
    """MPI adds gradients of half precision up in a copy in float32."""
    strategies = {
        "bfloat16": ("data", "spatial", "channel", "pipeline"),
        "bfloat16-mixed": (
            *("data", "fully_sharded", "spatial", "filter", "channel", "tensor", "pipeline"),
        ),
        "2": ("data",),
    }
    jobs = [f"vgg16-mini,{name},{way},8" for way, of in strategies.items() for name in of]
    assert not off(ran(2, *jobs))


@needs_mpiexec
def test_plans_of_searches(two_ranks: dict[str, tuple[int, int]]) -> None:
    """Every layer cut alike, and each in a way of its own; ranks read parts of the whole batch."""
    for job in PLANNED:
        measured, counted = two_ranks[job]
        given = 4 * 4 * math.prod(spec(job.split(",")[0]).input_shape)
        low, high = (1 - OF_PLANS) * measured - given, (1 + OF_PLANS) * measured
        assert low <= counted <= high, (job, measured, counted, given)


def test_tensors_of_a_trace_have_no_bytes() -> None:
    with FakeTensorMode():
        traced = torch.empty(2**40)
    assert all(tensor is not traced for tensor in live_tensors(torch.device("cpu")))
