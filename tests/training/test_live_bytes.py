"""The oracle's count of live bytes against the bytes that training counts, under every strategy."""

from __future__ import annotations

from pathlib import Path

from tests.training.launching import needs_mpiexec, run_script

SCRIPT = Path(__file__).with_name("live_ranks.py")
# numbers (a loss, what it is divided by) that the count leaves out
NUMBERS = 1024


def check(ranks: int, *jobs: str) -> None:
    ran = run_script(ranks, SCRIPT, *jobs)
    assert ran.returncode == 0, ran.stderr[-2000:]
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert [job for job, _, _ in lines] == list(jobs)
    off = {job: int(counted) - int(measured) for job, measured, counted in lines}
    assert all(abs(n) <= NUMBERS for n in off.values()), off


@needs_mpiexec
def test_two_ranks() -> None:
    """The one with DDP at the end: some of its buckets outlive it in a process."""
    check(
        2,
        "vgg16-mini,spatial,,4", "vgg16-mini,pipeline,1f1b,8", "vgg16-mini,data,sharded,2",
        "resnet50-mini,filter,,4", "resnet50-mini,pipeline,,8", "cosmoflow-mini,channel,,2",
        "inception-v3-mini,spatial,,2", "vgg16-mini,data,,2", "vgg16-mini,data,ddp,2",
    )  # fmt: skip


@needs_mpiexec
def test_one_rank() -> None:
    """Residuals, inceptions with an auxiliary head, dropout, three dimensions, two losses."""
    names = ("alexnet-mini", "inception-v3-mini", "cosmoflow-mini")
    check(1, *(f"{name},serial,,3" for name in names))
