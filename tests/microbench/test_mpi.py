"""Real ranks under mpiexec: right values, the slowest rank, a wrong sum, oversubscription."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tests.helpers.mpi import needs_cores, run, start

pytestmark = [pytest.mark.mpi, pytest.mark.waits]

# one launch for each number of ranks: starting them takes longer than what they do
CHECKS = {
    2: ["communicator", "collectives", "wrong", "placement"],
    3: ["communicator", "placement", "control", "host_looks"],
}


@cache
def found_on(ranks: int) -> dict[str, list[Any]]:
    return run(CHECKS[ranks], ranks, cores=2)


@pytest.mark.parametrize("ranks", [2, 3])
def test_communicator(ranks: int) -> None:
    """Sums over ranks of r + 1 are p (p + 1) / 2, times 1, 10 and 100."""
    triangle = ranks * (ranks + 1) // 2
    found = found_on(ranks)["communicator"]
    gathered = [{"größer": "x" * rank * 1000} for rank in range(ranks - 1)] + [None]
    for rank, about in enumerate(found):
        assert (about["library"], about["rank"], about["size"]) == ("mpi", rank, ranks)
        assert about["launched"] is True
        for dtype in ("float32", "float64", "int64"):
            assert about["sums"][dtype] == [triangle, 10 * triangle, 100 * triangle]
        assert about["large"] == [triangle, triangle]
        assert about["received"] == [(rank - 1) % ranks] * 3
        assert about["gathered"] == gathered
        assert about["shared"] == [0, "ü", None, 0.1], "rank 0's"
        assert about["nothing"] is None


def test_a_repetition_is_its_slowest_rank() -> None:
    first, second = found_on(2)["collectives"]
    assert first == second, "all ranks hold the same rows"
    assert set(first) == {"allreduce 8", "allreduce 1048576", "p2p 8", "p2p 1048576"}
    for name, result in first.items():
        timing = 2 if name.startswith("allreduce") else 1
        assert len(result["rows"]) == result["warmup"] + 8 == 11 or (
            len(result["rows"]) == result["warmup"] + 6 == 7  # slow beside its budget
        )
        assert all(len(row) == timing and min(row) > 0 for row in result["rows"])
        for seconds, row in zip(result["seconds"], result["rows"][result["warmup"] :], strict=True):
            assert all(seconds >= of_rank for of_rank in row) and seconds in row
        assert result["calls"] >= 1 and result["stopped_by"] in ("interval", "budget")


def test_a_wrong_allreduce_has_no_time_on_either_rank() -> None:
    for outcome in found_on(2)["wrong"]:
        assert outcome.startswith("MeasurementError: mpi allreduce 64 B on 2 ranks: wrong result")
        assert "on rank 1" in outcome


def test_three_ranks_on_two_cores_are_oversubscribed() -> None:
    needs_cores(2)
    found = found_on(3)["placement"]
    assert all(about == found[0] for about in found)
    assert found[0]["oversubscribed"] is True
    assert found[0]["ranks_per_node"] == 3 and found[0]["level"] == "node"


def test_two_ranks_on_two_cores_stay_on_both() -> None:
    """As a plain program's: a launcher that binds none gives each rank all cores."""
    needs_cores(2)
    found = found_on(2)["placement"]
    assert found[0]["oversubscribed"] is False
    first, second = found[0]["cores"]
    assert first == second and len(first) == 2
    assert found[0]["environment"] == {"ranks": 2, "threads": 1, "cores": 2}


def test_words_among_a_part_and_barriers_that_do_not_block() -> None:
    found = found_on(3)["control"]
    for rank, position in ((0, 1), (2, 0)):
        assert found[rank]["part"] == [position, 2, [2, 0], 2]
    assert found[1]["part"] is None
    assert [about["early"] for about in found] == [False] * 3


def test_abort_ends_ranks_that_wait() -> None:
    done = start(["abort"], 2)
    assert done.returncode != 0 and "result" not in done.stdout


def test_ranks_take_what_they_use_from_what_the_kernel_counts() -> None:
    """Of the core that two of three ranks are on, that of both; of the other core that of one."""
    found = found_on(3)["host_looks"]
    used_s = [of[1] for of in found]
    for rank, (ours_s, _, soon) in enumerate(found):
        expected = used_s[1] if rank == 1 else used_s[0] + used_s[2]
        # others on the core tell ranks apart in time; of the wrong ranks it is half or twice as much
        assert ours_s == pytest.approx(expected, rel=0.3)
        assert soon is None
