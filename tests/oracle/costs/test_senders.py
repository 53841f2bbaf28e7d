"""Which library's operations are taken: at home, GPU rows of MPI, what is asked for by name."""

from __future__ import annotations

from typing import Any

import pytest
from tests.oracle.handmade import machine
from tests.oracle.networks import line, straight, structural

from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import InputError, MissingParameter
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.costs.senders import Sender, lenders, library_of
from calib.oracle.layout.traffic import Message

NCCL: dict[str, Any] = {"library": "nccl", "device": "cuda"}
OSU: dict[str, Any] = {"library": "mpi", "device": "cuda"}  # osu_allreduce -d cuda


def gpus(*fits: CollectiveFit, **changes: Any) -> Parameters:
    return machine(device_kind="cuda", collectives=list(fits), **changes)


def test_mpi_with_buffers_on_gpus_where_there_is_nothing_else() -> None:
    found = library_of(gpus(line("allreduce", **OSU)))
    note = "no nccl was measured: operations are those of mpi with buffers on GPUs"
    assert found == Sender("mpi", "cuda", (note,))
    cost = CollectiveCosts(gpus(line("allreduce", **OSU))).time(Message("allreduce", 65536, 2))
    assert cost.seconds == pytest.approx(1e-6 + 65536e-9) and cost.notes == (note,)
    assert cost.basis == "measured"


def test_a_library_at_home_comes_first() -> None:
    file = gpus(line("allreduce", **OSU), line("allreduce", **NCCL))
    assert library_of(file) == Sender("nccl", "cuda") and lenders(file, library_of(file)) == {}
    both = gpus(line("allreduce", **OSU), line("allreduce"))  # with buffers on the host
    assert library_of(both)[:2] == ("mpi", "cpu")


def test_what_is_asked_for_by_name_has_no_note() -> None:
    file = gpus(line("allreduce", **OSU), line("allreduce"), line("allreduce", **NCCL))
    assert library_of(file, "mpi") == Sender("mpi", "cpu")
    assert library_of(file, "mpi", "cuda") == Sender("mpi", "cuda")
    assert library_of(file, device="cpu") == Sender("mpi", "cpu")
    known = r"only those of mpi \(cpu\), mpi \(cuda\), nccl \(cuda\)"
    with pytest.raises(InputError, match=f"no operations of ucc, {known}"):
        library_of(file, "ucc")
    with pytest.raises(InputError, match=f"of nccl with buffers on cpu, {known}"):
        library_of(file, "nccl", "cpu")
    assert library_of(gpus(line("allreduce", library="ucc", device="cuda")), "ucc")[0] == "ucc"


def test_an_operation_that_no_gpu_library_has_is_borrowed_and_it_is_said() -> None:
    file = gpus(
        line("allreduce", alpha_s=2e-6, **NCCL),
        line("all_to_all", alpha_s=7e-6, **OSU),
        line("allreduce", alpha_s=9e-6, **OSU),
    )
    costs = CollectiveCosts(file)
    cost = costs.time(Message("all_to_all", 65536, 2))
    assert cost.seconds == pytest.approx(7e-6 + 65536e-9) and cost.basis == "measured"
    assert cost.notes == (
        "all_to_all was measured with mpi on buffers of GPUs alone: taken from it, not from nccl",
    )
    assert costs.sender_of("all_to_all")[:2] == ("mpi", "cuda")
    own = costs.time(Message("allreduce", 65536, 2))
    assert own.seconds == pytest.approx(2e-6 + 65536e-9) and own.notes == ()


def test_its_own_mirror_comes_before_another_library() -> None:
    file = gpus(line("reduce_scatter", alpha_s=2e-6, **NCCL), line("allgather", **OSU))
    cost = CollectiveCosts(file).time(Message("allgather", 65536, 2))
    assert cost.seconds == pytest.approx(2e-6 + 65536e-9)
    assert any("taken from reduce_scatter" in note for note in cost.notes)


def test_what_stands_in_for_another_operation_says_whose_it_is() -> None:
    file = gpus(line("allreduce", **NCCL), line("p2p", alpha_s=4e-6, **OSU))
    cost = CollectiveCosts(file).time(Message("halo", 65536, 2, grid=(2,)))
    assert cost.seconds == pytest.approx(4e-6 + 65536e-9)
    assert any("p2p was measured with mpi on buffers of GPUs alone" in x for x in cost.notes)
    link = CollectiveCosts(file).link(2, "p2p")
    assert link.alpha_s.value == pytest.approx(4e-6) and "p2p was measured" in link.notes[0]


def test_nothing_is_borrowed_by_a_library_that_was_asked_for() -> None:
    file = gpus(line("allreduce", **NCCL), line("all_to_all", **OSU))
    with pytest.raises(MissingParameter, match="no all to all"):
        CollectiveCosts(file, "nccl").time(Message("all_to_all", 65536, 2))


def test_a_borrowed_operation_has_its_structural_law() -> None:
    file = gpus(
        line("broadcast", **NCCL),
        straight(2, **OSU),
        straight(8, **OSU),
        structural=[structural((2, 8), **OSU)],
        ranks_per_node=8,
    )
    cost = CollectiveCosts(file).time(Message("allreduce", 1000, 4))
    # 2 (p - 1) messages of m / p
    assert cost.seconds == pytest.approx(6 * (1e-6 + 1e-9 * 1000 / 4), rel=2e-3)
