"""All communication libraries: one conformance suite, torch's functions over MPI, DDP, errors."""

from __future__ import annotations

import json
import socket
from functools import cache
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from tests.helpers.conformance import assert_conforms, conformance
from tests.helpers.devices import NamedGpu
from tests.helpers.mpi import run, start
from tests.helpers.nccl_version import nccl_version
from tests.helpers.ranks import ThreadCommunicator, results, run_ranks

from calib.foundation.errors import InputError, MachineError
from calib.microbench.agreement import agree, gpu_index
from calib.microbench.communicators import make_communicator
from calib.microbench.communicators.mpi import CudaMpiCommunicator, MpiCommunicator
from calib.microbench.communicators.rendezvous import own_addresses
from calib.microbench.communicators.torch_groups import as_they_are
from calib.microbench.device import CPU
from calib.microbench.devices import take_device
from calib.microbench.machine.placement import machine_id

HERE = ("mpi", "torch_mpi", "torch_gloo")
CONFORMANCE = ",".join(["conformance", "cpu", *HERE])
SHORT = ("torch_short,torch_mpi", "torch_short,torch_gloo")
# one launch for each number of ranks: importing torch on all of them takes longer than what they do
CHECKS = {
    2: [CONFORMANCE, "torch_reductions", "torch_moves", *SHORT, "wrong_size"],
    3: [CONFORMANCE, "torch_reductions", "torch_moves", *SHORT, "ddp,torch_mpi", "ddp,torch_gloo"],
    4: [CONFORMANCE],
}


@cache
def found_on(ranks: int) -> dict[str, list[Any]]:
    return run(CHECKS[ranks], ranks)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_threads_conform(ranks: int) -> None:
    for rank, found in enumerate(results(run_ranks(ranks, conformance))):
        assert_conforms(found, rank, ranks)


@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_libraries_conform(ranks: int) -> None:
    for rank, found in enumerate(found_on(ranks)[CONFORMANCE]):
        assert list(found) == list(HERE)
        for library in HERE:
            assert_conforms(found[library], rank, ranks)


@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("check", ["torch_reductions", "torch_moves"])
def test_torch_over_mpi(check: str, ranks: int) -> None:
    assert found_on(ranks)[check] == [[]] * ranks


@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.parametrize("check", SHORT)
@pytest.mark.parametrize("ranks", [2, 3])
def test_messages_of_one_item(check: str, ranks: int) -> None:
    """Of all ranks, and of groups; alone in its group, the third rank of three calls as well."""
    assert found_on(ranks)[check] == [[]] * ranks


@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.parametrize("library", ["torch_mpi", "torch_gloo"])
def test_ddp_gives_the_gradients_of_the_joint_batch(library: str) -> None:
    for found in found_on(3)[f"ddp,{library}"]:
        assert found["worst"] < 1e-12
        assert found["buckets"] > 1, "so that one is on its way while the next is computed"
        assert found["initialized"] is False, "close leaves no default group behind"


@pytest.mark.mpi
@pytest.mark.waits
def test_calib_mpi_refuses_ranks_that_are_not_mpis() -> None:
    assert found_on(2)["wrong_size"] == [
        f"calib_mpi: rank {rank} of 3 is rank {rank} of 2 to MPI; give init_process_group MPI's numbers"
        for rank in range(2)
    ]


def test_unknown_library_and_wrong_device() -> None:
    world = MpiCommunicator()
    with pytest.raises(InputError, match="unknown library 'mvapich'; known: mpi, nccl, torch_gloo"):
        make_communicator("mvapich", world, CPU)
    for library, device, takes in [
        ("torch_gloo", NamedGpu(), "cpu"),
        ("torch_mpi", NamedGpu(), "cpu"),
        ("torch_nccl", CPU, "cuda"),
        ("nccl", CPU, "cuda"),
    ]:
        wrong = (
            f"{library} takes (no buffers of {device.kind}|buffers of {takes}, not '{device.kind}')"
        )
        with pytest.raises(InputError, match=wrong):
            make_communicator(library, world, device)
    with pytest.raises(InputError, match="unknown device 'tpu'; known: cpu, cuda"):
        take_device("tpu", world)


@pytest.mark.parametrize("library", HERE)
def test_ranks_must_be_mpis(library: str) -> None:
    (outcome,) = run_ranks(1, lambda control: make_communicator(library, control, CPU))
    assert isinstance(outcome, InputError)
    assert str(outcome) == f"{library} needs ranks that MPI started, not ThreadCommunicator"


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_what_is_missing_without_a_gpu_is_one_line() -> None:
    world = MpiCommunicator()
    with pytest.raises(MachineError) as caught:
        take_device("cuda", world)
    assert "\n" not in str(caught.value)
    for library in ("nccl", "mpi"):
        with pytest.raises(MachineError) as caught:
            make_communicator(library, world, NamedGpu())
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="rank 0 asks for a group of"):
        world.group([1])


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("allreduce", 1),
        ("allgather", 2),
        ("allgatherv", 3),
        ("reduce_scatter", 2),
        ("all_to_all", 2),
        ("broadcast", 2),
        ("reduce", 2),
        ("send", 2),
        ("receive", 2),
    ],
)
def test_mpi_gets_a_device_buffer_when_the_device_is_done(method: str, arguments: int) -> None:
    log = Mock()
    comm = object.__new__(CudaMpiCommunicator)
    comm.device, comm.comm, comm.rank, comm._in_place = log.device, log.mpi, 0, None
    getattr(comm, method)(*range(1, arguments + 1))
    waited, called = log.mock_calls
    assert waited == call.device.synchronize() and called[0].startswith("mpi.")


def test_ranks_agree_on_what_is_missing() -> None:
    def one_lacks_it(control: Any) -> None:
        agree(control, "nccl4py is not installed" if control.rank == 2 else "")

    def all_lack_it(control: Any) -> None:
        agree(control, "nccl4py is not installed")

    assert [str(e) for e in run_ranks(3, one_lacks_it)] == ["rank 2: nccl4py is not installed"] * 3
    assert [str(e) for e in run_ranks(2, all_lack_it)] == ["nccl4py is not installed"] * 2
    assert results(run_ranks(2, lambda control: agree(control, ""))) == [None, None]


class _TwoMachines(ThreadCommunicator):
    """Even ranks are on this machine, odd ones on another."""

    def allgather_object(self, value: Any) -> list[Any]:
        other = "elsewhere" if value == machine_id() and self.rank % 2 else value
        return super().allgather_object(other)


@pytest.mark.parametrize(
    ("visible", "expected"), [(4, [0, 0, 1, 1, 2, 2]), (2, [0, 0, 1, 1, 0, 0]), (1, [0] * 6)]
)
def test_ranks_of_a_machine_take_its_gpus_in_turn(visible: int, expected: list[int]) -> None:
    assert results(run_ranks(6, lambda c: gpu_index(c, visible), _TwoMachines)) == expected


def test_own_addresses_lead_outward() -> None:
    for address in own_addresses():
        assert not address.startswith("127.")
        with socket.socket() as probe:
            probe.bind((address, 0))  # only an address of this host can be bound


@pytest.mark.gpu
@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("library", ["nccl", "torch_nccl"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_gpu_libraries_conform(library: str, ranks: int) -> None:
    """One rank per GPU, or all on one where NCCL is told to allow it; mpi.py has the timeout."""
    if library == "nccl":
        pytest.importorskip("nccl.core", reason="nccl4py is part of the gpu extra")
    variables = {}
    if torch.cuda.device_count() < ranks:
        if nccl_version() < (2, 30):
            pytest.skip("NCCL before 2.30 refuses several ranks on one GPU")
        variables = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
    check, graphs = f"conformance,cuda,{library}", f"graphs,cuda,{library}"
    found = run([check, graphs], ranks, variables=variables)
    for rank, of in enumerate(found[check]):
        assert_conforms(of[library], rank, ranks)
    assert all(min(repetitions) > 0 for repetitions in found[graphs])


@pytest.mark.gpu
@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_mpi_on_device_buffers_conforms_or_says_what_is_missing() -> None:
    done = start(["conformance,cuda,mpi"], 2)
    if done.returncode:
        assert "does not take device buffers; load one that is built with CUDA" in done.stderr
        pytest.skip("this MPI is not built with CUDA")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    (found,) = json.loads(line.removeprefix("result "))
    for rank, of in enumerate(found):
        assert_conforms(of["mpi"], rank, 2)


@pytest.mark.parametrize(
    ("ranks", "takes", "told"),
    [
        ([0, 1, 2], {}, {}),
        ([3, 5], {"sort_ranks"}, {}),
        ([2, 0], {"sort_ranks"}, {"sort_ranks": False}),
    ],
)
def test_groups_keep_the_order_of_their_ranks(
    ranks: list[int], takes: Any, told: dict[str, bool]
) -> None:
    assert as_they_are(ranks, takes) == told


def test_what_an_older_torch_would_sort_is_refused() -> None:
    with pytest.raises(MachineError, match=r"rising order, and these are 2, 0: start the ranks"):
        as_they_are([2, 0], {"ranks", "backend"})
