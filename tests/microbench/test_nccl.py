"""Library nccl with the made-up NCCL of tests/standin, which really moves data between MPI ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module, metadata
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.helpers.conformance import OPERATIONS, assert_conforms
from tests.helpers.mpi import run

from calib.foundation.nccl import TELLABLE, selection
from calib.microbench.collectives.operations import EXERCISES

STANDIN = Path(__file__).parents[1] / "standin"
CONFIGURED = ", *, stream=None, config=None)"
# nccl4py 0.6.0
SIGNATURES = {
    "get_unique_id": "(empty=False)",
    "get_version": "()",
    "group_start": "()",
    "group_end": "(*, simulate=False)",
    "group": "()",
    "UniqueId.from_bytes": "(b)",
    "Communicator.init": "(nranks, rank, unique_id, config=None)",
    "Communicator.destroy": "(self)",
    "Communicator.allreduce": "(self, sendbuf, recvbuf, op" + CONFIGURED,
    "Communicator.allgather": "(self, sendbuf, recvbuf" + CONFIGURED,
    "Communicator.reduce_scatter": "(self, sendbuf, recvbuf, op" + CONFIGURED,
    "Communicator.alltoall": "(self, sendbuf, recvbuf" + CONFIGURED,
    "Communicator.broadcast": "(self, sendbuf, recvbuf, root" + CONFIGURED,
    "Communicator.reduce": "(self, sendbuf, recvbuf, op, root=None" + CONFIGURED,
    "Communicator.send": "(self, sendbuf, peer, *, stream=None)",
    "Communicator.recv": "(self, recvbuf, peer, *, stream=None)",
}
CHECKS = ["nccl_conformance", "nccl_exercises", "nccl_told", "nccl_missing"]


@cache
def found_on(ranks: int) -> dict[str, list[Any]]:
    return run(CHECKS if ranks > 1 else CHECKS[:1], ranks)


@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.parametrize("ranks", [2, 3])
def test_nccl_conforms(ranks: int) -> None:
    for rank, found in enumerate(found_on(ranks)["nccl_conformance"]):
        assert_conforms(found, rank, ranks)


@pytest.mark.mpi
@pytest.mark.waits
def test_one_rank_is_a_communicator_too() -> None:
    ((found),) = found_on(1)["nccl_conformance"]
    rank, size, operations = found["all"]
    assert (rank, size) == (0, 1)
    assert operations == dict.fromkeys(OPERATIONS - {"send", "exchange"}, "")


@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.parametrize("ranks", [2, 3])
def test_everything_timed_is_right_and_on_the_current_stream(ranks: int) -> None:
    """Groups too: each had a stream of its own once, which the events of the device did not see."""
    expected = [name for name in EXERCISES if ranks == 2 or not name.startswith("p2p")]
    for found in found_on(ranks)["nccl_exercises"]:
        assert found == {"right": expected, "streams": ["4711"]}


@pytest.mark.mpi
@pytest.mark.waits
@pytest.mark.parametrize("ranks", [2, 3])
def test_nccl_does_what_it_is_told(ranks: int) -> None:
    """A call's algorithm, protocol and estimate; ranks meet by NCCL's own choice all the same."""
    for rank, found in enumerate(found_on(ranks)["nccl_told"]):
        works = rank < 2  # the third rank is in no group
        for name, algorithm, us in [
            ("allreduce ring/simple", "RING_SIMPLE", 16.1),
            ("allgather ring/simple", "RING_SIMPLE", 16.1),
            ("reduce_scatter ring/simple", "RING_SIMPLE", 16.1),
            ("ring/ll128", "RING_LL128", 16.1),
            ("ring/ll", "RING_LL", 16.1),
            ("tree", "TREE_SIMPLE", 8.2),
            ("own", "RING_SIMPLE", 16.1),
        ]:
            done, estimate_s, repetitions, channels = found[name]
            assert channels == {algorithm.replace("_", "/").lower(): 4}, "on all ranks"
            assert estimate_s == pytest.approx(us * 1e-6), "from us"
            assert repetitions > 0
            assert done == ([algorithm] if works else [])
        assert found["all_to_all"][1] is None
        assert found["meeting"] == ["RING_SIMPLE"]
        assert found["nvls"].startswith(
            "rank 0: " * (ranks == 3) + "NCCL does not take nvls_simple"
        )
        assert "NCCL 2.29.7 cannot be told an algorithm for a call; 2.31 and" in found["old"]


@pytest.mark.mpi
@pytest.mark.waits
def test_all_ranks_say_what_one_of_them_lacks() -> None:
    for no_library, no_nccl4py in found_on(2)["nccl_missing"]:
        assert no_library.startswith("nccl4py finds no NCCL library: install nvidia-nccl-cu13")
        assert no_nccl4py.startswith(
            "rank 0: nccl4py, which is part of the gpu extra, cannot be imported"
        )


def told(module: ModuleType) -> dict[str, str]:
    """The signatures of a module as SIGNATURES has them: without annotations."""
    found = {}
    for name in SIGNATURES:
        of: Any = module
        for part in name.split("."):
            of = getattr(of, part)
        plain = signature(of).replace(return_annotation=Parameter.empty)
        parameters = [p.replace(annotation=Parameter.empty) for p in plain.parameters.values()]
        found[name] = str(plain.replace(parameters=parameters))
    return found


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The made-up nccl.core; forgotten afterwards."""
    monkeypatch.syspath_prepend(str(STANDIN))
    yield import_module("nccl.core")
    for name in [name for name in sys.modules if name.partition(".")[0] == "nccl"]:
        del sys.modules[name]


def test_the_made_up_nccl_has_the_signatures_of_nccl4py(made_up: ModuleType) -> None:
    assert told(made_up) == SIGNATURES


def test_a_selection_names_one_algorithm_and_protocol(made_up: ModuleType) -> None:
    """By the names of libnccl, as its ncclAlgParse takes a selection; with any protocol all."""

    def named(algorithm: str, protocol: str) -> dict[str, tuple[str, ...]]:
        left = made_up.selected(selection(algorithm, protocol))
        return {name: made_up.NAMES[name] for name in left}

    for algorithm, (operations, protocols) in TELLABLE.items():
        for protocol in protocols:
            ((name, of),) = named(algorithm, protocol).items()
            assert name.endswith(f"_{protocol.upper()}") and set(of) == set(operations)
        words = {name.rpartition("_")[0] for name in named(algorithm, "")}
        assert words == {algorithm.upper().replace("NVLS_TREE", "NVLSTREE")}
    assert set(made_up.selected("ring_ll")) == {"RING_LL", "RING_LL128"}, "so LL needs more words"


def test_nccl4py_has_these_signatures() -> None:
    try:
        metadata.version("nccl4py")
    except metadata.PackageNotFoundError:
        pytest.skip("nccl4py is part of the gpu extra")
    core = import_module("nccl.core")
    assert told(core) == SIGNATURES
    fields = set(signature(core.NCCLCollConfig).parameters)
    assert {"alg_selection", "force_alg_selection"} <= fields
    assert core.get_version() and core.SUM == 0
    assert isinstance(core.get_unique_id(empty=True).as_bytes, bytes)
