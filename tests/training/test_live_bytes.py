"""The oracle's count of live bytes against the bytes that training counts, under every strategy."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import torch
from tests.helpers.words import words_of
from tests.training.launching import needs_mpiexec, said
from torch._subclasses.fake_tensor import FakeTensorMode

from calib.training.footprint import live_tensors
from calib.training.models.specs import spec

SCRIPT = Path(__file__).with_name("live_ranks.py")
# numbers (a loss, what it is divided by) that the count leaves out
NUMBERS = 1024
OF_CHECKPOINTS = 32  # of small models: a few numbers
OF_CASTS = 0.025
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


EXECUTIONS = tuple(
    f"vgg16-mini,{name},{way},8"
    for way, of in {
        "bfloat16": ("data", "spatial", "channel", "pipeline"),
        "bfloat16-mixed": (
            *("data", "fully_sharded", "spatial", "filter", "channel", "tensor", "pipeline"),
        ),
        "2": ("data",),
    }.items()
    for name in of
)
SERIAL = tuple(
    f"{name},serial,,3" for name in ("alexnet-mini", "inception-v3-mini", "cosmoflow-mini")
)
SERIAL_EXECUTIONS = (
    *(
        f"{name},serial,{way},3"
        for name in ("vgg16-mini", "resnet50-mini", "inception-v3-mini")
        for way in ("bfloat16", "bfloat16-mixed")
    ),
    "cosmoflow-mini,serial,bfloat16-mixed,3",
)
ACCUMULATED = tuple(
    words_of("vgg16-mini,serial,2,8 vgg16-mini,serial,4,8 cosmoflow-mini,serial,3,6")
)
# streams of residuals in float32 over borders, a tied table in two stages
MIXED = tuple(
    f"{job},bfloat16-mixed,8"
    for job in words_of("language,pipeline vision,pipeline blocks,pipeline")
)
CHECKPOINTED = {
    1: tuple(words_of("language,serial,,3 images,serial,2,8")),
    2: tuple(
        words_of(
            "mlp,data,,4 blocks,data,sharded,4 mlp,fully_sharded,,4 in-segments,fully_sharded,,4 "
            "vision,tensor,,4 language,tensor,tokens,4 in-segments,tensor,tokens,4 nested,tensor,,4 "
            "vision,tensor,tokens,4 language,sequence,,4 vision,sequence,,4 vision,pipeline,,8 "
            "language,pipeline,1f1b,8 of-two,pipeline,,8 "
            "in-segments,pipeline,1f1b,8 images,pipeline,,8 "
            "images,spatial,,4 cut-images,spatial,,4 images,filter,,4 cut-images,filter,,4 "
            "images,channel,,4 cut-images,channel,,4 vision,filter,,4 cut-images,spatial,bfloat16,4"
        )
    ),
}
# one launch for each number of ranks: to start them takes longer than most jobs
JOBS = {
    1: (*SERIAL, *SERIAL_EXECUTIONS, *ACCUMULATED, *CHECKPOINTED[1]),
    2: (*PLANNED, *EXECUTIONS, *MIXED, *CHECKPOINTED[2], *DIVIDED),
}


@cache
def found_on(ranks: int) -> dict[str, tuple[int, int]]:
    """(measured, counted) bytes of all jobs."""
    lines = [line.split() for line in said(ranks, SCRIPT, *JOBS[ranks]).splitlines()]
    assert [job for job, _, _ in lines] == list(JOBS[ranks])
    return {job: (int(measured), int(counted)) for job, measured, counted in lines}


def ran(ranks: int, jobs: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Those of these jobs."""
    return {job: found_on(ranks)[job] for job in jobs}


def off(jobs: dict[str, tuple[int, int]], most: int = NUMBERS) -> dict[str, int]:
    return {
        job: counted - measured
        for job, (measured, counted) in jobs.items()
        if abs(counted - measured) > most
    }


@needs_mpiexec
def test_two_ranks() -> None:
    assert not off(ran(2, DIVIDED))


@needs_mpiexec
def test_one_rank() -> None:
    """Residuals, inceptions with an auxiliary head, dropout, three dimensions, two losses."""
    assert not off(ran(1, SERIAL))


@needs_mpiexec
def test_executions() -> None:
    """Half precision throughout, and autocast; a CPU pools no bfloat16 in three dimensions."""
    assert not off(ran(1, SERIAL_EXECUTIONS))


@needs_mpiexec
def test_accumulation() -> None:
    """Gradients are live in all micro-batches but the first; the samples of all are, too."""
    assert not off(ran(1, ACCUMULATED))


@needs_mpiexec
def test_checkpointed() -> None:
    """A unit's gradients go, and regions run again, in one unit and over two, in parts and stages."""
    for ranks, jobs in CHECKPOINTED.items():
        assert not off(ran(ranks, jobs), OF_CHECKPOINTS)


@needs_mpiexec
def test_executions_of_two_ranks() -> None:
    """MPI adds gradients of half precision up in a copy in float32."""
    assert not off(ran(2, EXECUTIONS))


@needs_mpiexec
def test_transformers_under_autocast() -> None:
    """To some percent, and more rather than less."""
    for job, (measured, counted) in ran(2, MIXED).items():
        assert -NUMBERS < counted - measured < OF_CASTS * measured, (job, measured, counted)


@needs_mpiexec
def test_plans_of_searches() -> None:
    """Every layer cut alike, and each in a way of its own; ranks read parts of the whole batch."""
    for job, (measured, counted) in ran(2, PLANNED).items():
        given = 4 * 4 * math.prod(spec(job.split(",")[0]).input_shape)
        low, high = (1 - OF_PLANS) * measured - given, (1 + OF_PLANS) * measured
        assert low <= counted <= high, (job, measured, counted, given)


def test_tensors_of_a_trace_have_no_bytes() -> None:
    with FakeTensorMode():
        traced = torch.empty(2**40)
    assert all(tensor is not traced for tensor in live_tensors(torch.device("cpu")))
