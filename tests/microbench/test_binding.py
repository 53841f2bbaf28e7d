"""What is wrong with how ranks are bound, of made-up launches; and real launches of two ranks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import sleep

import pytest
from tests.helpers.nvml import Board, nvml

from calib.microbench import binding
from calib.microbench.binding import (
    BoundRank,
    bindings,
    bound_ranks,
    read_answers,
    shown,
    this_rank,
)
from calib.microbench.machine.launchers import RANK_VARIABLES
from calib.microbench.machine.placement import distinct_cores, usable_cores
from calib.microbench.records.cluster import Device

BOTH = [0, 1]


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*RANK_VARIABLES, "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)


def ranks(
    cores: Sequence[Sequence[int]],
    gpus: Sequence[int | None] = (),
    cards: Sequence[int] = (),
    machine: str = "m",
) -> list[BoundRank]:
    """Ranks on these cores of a machine with two NUMA nodes of four cores each."""
    return [
        BoundRank(
            rank=number,
            machine=machine,
            cores=list(each),
            nodes=sorted({core // 4 for core in each}),
            gpu_nodes=list(gpus),
            card_nodes=list(cards),
        )
        for number, each in enumerate(cores)
    ]


def judged(
    monkeypatch: pytest.MonkeyPatch, found: list[BoundRank], usable: int = 8
) -> list[tuple[str, str]]:
    monkeypatch.setattr(binding, "usable_cores", lambda: list(range(usable)))
    monkeypatch.setattr(binding, "distinct_cores", lambda cores: cores)
    monkeypatch.setattr(binding, "bound_ranks", lambda *of: found)
    findings = bindings(len(found), "local", "cuda")
    assert all(f.name == "binding" and f.advice for f in findings)
    return [(f.verdict, f.found) for f in findings]


EVERYWHERE = list(range(8))


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (ranks([EVERYWHERE] * 4), "ok", "each rank on 8 cores, the same for all"),
        (ranks([[0, 1], [2, 3], [4, 5], [6, 7]]), "ok", "each rank on 2 cores"),
        (ranks([[0], [0], [1], [2]]), "warn", "ranks 0, 1 share 1 core"),
        (ranks([[0, 1]] * 3 + [[4]]), "warn", "ranks 0, 1, 2 share 2 cores"),
        (
            ranks([[0], [4], [1], [5]]),
            "warn",
            "neighbouring ranks are on different NUMA nodes: 0, 1, 0, 1",
        ),
        (ranks([[4], [0]]), "ok", "each rank on 1 core"),  # from the other end
        (ranks([[0], [1], [4], [5]], gpus=[0, 0, 1, 1]), "ok", "each rank on 1 core"),
        (
            ranks([[0], [1], [4], [5]], gpus=[1, 1, 0, 0]),
            "warn",
            "far from their GPU: ranks 0, 1, 2, 3",
        ),
        (ranks([[0], [1], [4], [5]], gpus=[0, 1, 1, 1]), "warn", "far from their GPU: ranks 1"),
        (ranks([[0], [1], [4], [5]], gpus=[None] * 4), "ok", "each rank on 1 core"),
        (ranks([[0], [1]], gpus=[1]), "warn", "far from their GPU: ranks 0, 1"),  # they share it
        (ranks([EVERYWHERE] * 2, gpus=BOTH), "ok", "each rank on 8 cores, the same for all"),
        (ranks([[0], [1]], cards=[1]), "warn", "all ranks on NUMA node 0, network cards on 1"),
        (ranks([[0], [4]], cards=[1]), "ok", "each rank on 1 core"),
        (ranks([[0], [1]], cards=BOTH), "ok", "each rank on 1 core"),
    ],
)
def test_bindings(
    monkeypatch: pytest.MonkeyPatch, found: list[BoundRank], verdict: str, words: str
) -> None:
    assert judged(monkeypatch, found) == [(verdict, words)]


def test_each_kind_of_trouble_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines with the same two troubles."""
    local = ranks([[0], [0], [1]], gpus=[1])
    there = [replace(each, rank=each.rank + 3, machine="n") for each in local]
    assert judged(monkeypatch, [*there, *local]) == [
        ("warn", "ranks 0, 1 share 1 core"),
        ("warn", "far from their GPU: ranks 0, 1, 2"),
    ]


def test_more_ranks_than_cores_are_another_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(monkeypatch, ranks([[0, 1]] * 3), usable=2)[0][0] == "ok"


def test_what_cannot_be_known_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bindings(1, "local") == [], "one rank has no neighbours"
    monkeypatch.setattr(binding, "bound_ranks", lambda *of: ranks([[0]]))
    assert bindings(2, "local") == [], "a rank did not answer"
    monkeypatch.setenv("PMI_RANK", "0")
    assert bindings(2, "local") == [], "a rank starts no ranks"


def test_answers_among_what_launchers_print() -> None:
    good = json.dumps(asdict(BoundRank(1, "m", [0], [], [None], [])))
    text = f"""
[1] calib-binding {good}
calib-binding {{"rank": 0, "mach
calib-binding {{"rank": 0}}
calib-binding [1, 2]
calib-binding 7
srun: warning
"""
    assert read_answers(text) == [BoundRank(1, "m", [0], [], [None], [])]


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        (None, "abc"),
        ("2,0", "ca"),
        ("GPU-b, 0", "ba"),
        ("1,7,0", "b"),  # CUDA stops at what it does not know
        ("", ""),
        ("-1", ""),
    ],
)
def test_gpus_that_cuda_shows(variable: str | None, names: str) -> None:
    gpus = [
        Device(kind="cuda", name=name, count=1, memory_bytes=1, uuid=f"GPU-{name}")
        for name in "abc"
    ]
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert "".join(gpu.name for gpu in shown(gpus, environment)) == names


def test_this_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "3")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml([Board("GPU-1"), Board("GPU-2")]))
    found = this_rank("cuda")
    assert found.rank == 3 and len(found.cores) == len(distinct_cores(usable_cores()))
    assert len(found.gpu_nodes) == 2 and this_rank("cpu").gpu_nodes == []


def test_launchers_that_start_nothing(tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexit 3\n")
    silent.chmod(0o755)
    assert bound_ranks(2, f"{silent} {{n}}") == []
    assert bound_ranks(2, "no-such-program {n}") == [] and bound_ranks(2, "unknown") == []


def test_a_launcher_that_waits_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a queue; the process that it started is ended, too."""
    number = tmp_path / "pid"
    waits = tmp_path / "waits"
    waits.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {number}\nwait\n")
    waits.chmod(0o755)
    monkeypatch.setattr(binding, "START_S", 1.0)
    assert bound_ranks(2, f"{waits} {{n}}") == []
    started = number.read_text().strip() if number.exists() else ""
    if not started:
        pytest.skip("this machine is too busy to start it in time")
    state = Path(f"/proc/{started}/stat")
    for _ in range(600):
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX":
            return
        sleep(0.1)
    pytest.fail("it still runs")


@pytest.mark.mpi
def test_ranks_that_mpiexec_starts() -> None:
    found = sorted(bound_ranks(2, "local"), key=lambda each: each.rank)
    assert [each.rank for each in found] == [0, 1]
    assert {each.machine for each in found} == {this_rank("cpu").machine}


@pytest.mark.mpi
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_ranks_that_are_squeezed_onto_a_core(tmp_path: Path) -> None:
    """A launcher that binds both ranks to one core of several, as a wrong mapping does."""
    usable = usable_cores()
    if len(distinct_cores(usable)) < 2:
        pytest.skip("one core: nothing to choose from")
    squeeze = tmp_path / "squeeze.py"
    squeeze.write_text(
        "import os, subprocess, sys\n"
        f"os.sched_setaffinity(0, [{usable[0]}])\n"
        "for rank in range(int(sys.argv[1])):\n"
        "    subprocess.run(sys.argv[2:], env={**os.environ, 'PMI_RANK': str(rank)})\n"
    )
    (found,) = bindings(2, f"{sys.executable} {squeeze} {{n}}")
    assert (found.verdict, found.found) == ("warn", "ranks 0, 1 share 1 core")
