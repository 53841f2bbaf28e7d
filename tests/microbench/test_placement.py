"""Where ranks run, on hosts and cores that are made up: threads pretend to be ranks on them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import microbench.placement
from microbench.placement import RANK_VARIABLES, Placement, distinct_cores, launched, place
from tests.helpers.ranks import results, run_ranks


def placed(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str], cores: list[list[int]], threads: int = 1
) -> tuple[Placement, dict[int, list[int]]]:
    """place() for ranks on `hosts` that may run on `cores`; and what each pinned itself to."""
    here = threading.local()
    pinned: dict[int, list[int]] = {}
    module = microbench.placement
    monkeypatch.setattr(module.socket, "gethostname", lambda: hosts[here.rank])
    monkeypatch.setattr(module, "usable_cores", lambda: cores[here.rank])
    monkeypatch.setattr(module, "distinct_cores", lambda usable: usable)
    monkeypatch.setattr(
        module.os, "sched_setaffinity", lambda _, chosen: pinned.update({here.rank: list(chosen)}),
        raising=False,
    )  # fmt: skip

    def program(comm: Any) -> Placement:
        here.rank = comm.rank
        return place(comm, threads)

    first, *others = results(run_ranks(len(hosts), program))
    assert all(other == first for other in others), "every rank knows the same"
    return first, pinned


def test_one_rank_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, pinned = placed(monkeypatch, ["a", "a", "a"], [[0, 2, 4, 6]] * 3)
    assert placement.cores == [[0], [2], [4]]
    assert pinned == {0: [0], 1: [2], 2: [4]}
    assert not placement.oversubscribed
    assert placement.ranks_per_node == 3 and placement.level == "node"


def test_more_ranks_than_cores_is_oversubscribed(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, _ = placed(monkeypatch, ["a"] * 3, [[0, 1]] * 3)
    assert placement.oversubscribed
    assert placement.cores == [[0], [1], [0]]


def test_two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks alternate between hosts; each host has the same two core numbers."""
    placement, pinned = placed(monkeypatch, ["a", "b", "a", "b"], [[0, 1]] * 4)
    assert not placement.oversubscribed
    assert pinned == {0: [0], 1: [0], 2: [1], 3: [1]}
    assert placement.ranks_per_node == 2
    assert placement.level == "system"
    assert placement.pair_level(0, 2) == "node" and placement.pair_level(0, 1) == "system"


def test_one_crowded_host_marks_all(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, _ = placed(monkeypatch, ["a", "b", "b"], [[0, 1], [0], [0]])
    assert placement.oversubscribed and placement.ranks_per_node == 2


def test_ranks_that_a_launcher_bound_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, pinned = placed(monkeypatch, ["a", "a"], [[3], [5]])
    assert pinned == {} and placement.cores == [[3], [5]] and not placement.oversubscribed
    bound_twice, _ = placed(monkeypatch, ["a"] * 4, [[3], [5], [3], [5]])
    assert bound_twice.oversubscribed


def test_threads_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    placement, pinned = placed(monkeypatch, ["a", "a"], [[0, 1, 2, 3]] * 2, threads=2)
    assert pinned == {0: [0, 1], 1: [2, 3]} and not placement.oversubscribed
    crowded, _ = placed(monkeypatch, ["a", "a"], [[0, 1, 2]] * 2, threads=2)
    assert crowded.oversubscribed


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_launcher")
def test_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not launched()
    monkeypatch.setenv("SLURM_PROCID", "0")  # also in the shell of an sbatch script
    assert not launched()
    for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "0")
            assert launched(), name


def test_one_thread_of_each_physical_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two-way hyper-threading: 0 and 4 are one core, as are 1 and 5; nothing is known of 9."""
    for core, siblings in {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5"}.items():
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    monkeypatch.setattr(microbench.placement, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert distinct_cores([0, 1, 4, 5]) == [0, 1]
    assert distinct_cores([4, 5]) == [4, 5]
    assert distinct_cores([0, 4, 9, 10]) == [0, 9, 10]
