"""The rule of Open MPI, against its source as it reads there, and what a change of algorithm costs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.oracle.networks import straight

from calib.fitting.parameters.algorithms import ALGORITHMS, GroupShape, Links
from calib.fitting.parameters.rules import OPEN_MPI, RULES, rules_of
from calib.fitting.parameters.scaling import RuledSweep, rule_change

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("operation", "ranks", "nbytes", "algorithm"),
    [
        # of 4.1.4: "communicator_size < 128", "total_dsize < 262144": alg = 3
        ("allreduce", 64, 256 * KIB - 1, "recursive doubling"),
        ("allreduce", 127, 256 * KIB, "recursive halving and doubling"),
        ("allreduce", 128, 128 * KIB - 1, "reduce and broadcast"),
        ("allreduce", 128, 128 * KIB, "recursive doubling"),
        ("allreduce", 2, 4, "ring"),
        ("allreduce", 2, 8, "recursive doubling"),
        ("allreduce", 5000, 2 * KIB, "ring"),
        # of a rank's block: 64 ranks with 64 KiB
        ("allgather", 64, 64 * 64 * KIB - 1, "neighbour exchange"),
        ("allgather", 64, 64 * 64 * KIB, "ring"),
        ("allgather", 31, MIB, "recursive doubling"),
        ("all_to_all", 64, 64 * KIB - 1, "Bruck"),
        ("all_to_all", 64, 64 * 256 * KIB, "pairwise"),
        ("broadcast", 64, MIB, "4-nomial tree"),
        ("broadcast", 16, MIB, "scatter and recursive doubling"),
        ("reduce", 200, 3, "binomial tree"),
        ("reduce_scatter", 8, 256 * KIB, "ring"),
        ("gather", 600, 3, "binomial tree"),
        ("scatter", 600, 600 * 512, "linear"),
    ],
)
def test_the_rule_is_that_of_the_source(
    operation: str, ranks: int, nbytes: int, algorithm: str
) -> None:
    assert RULES[OPEN_MPI][operation](ranks, nbytes) == algorithm


@given(
    operation=st.sampled_from(sorted(RULES[OPEN_MPI])),
    ranks=st.integers(2, 10**6),
    nbytes=st.floats(1.0, 2.0**50),
)
def test_a_rule_names_an_algorithm_at_any_ranks_and_bytes(
    operation: str, ranks: int, nbytes: float
) -> None:
    assert RULES[OPEN_MPI][operation](ranks, nbytes) in ALGORITHMS[operation]


def test_nccl_goes_by_no_rule() -> None:
    assert rules_of("allreduce", "nccl") == {}
    assert set(rules_of("allreduce", "mpi")) == {OPEN_MPI}
    assert rules_of("sendrecv", "mpi") == {}


def test_a_change_costs_the_steps_of_both_algorithms() -> None:
    """On 32 nodes 64 KiB go by halves, on 64 as a whole; a step of x bytes takes a + b x."""
    rule, a, b, m = RULES[OPEN_MPI]["allreduce"], 1e-5, 1e-9, 64 * KIB
    of, shape = GroupShape(32, 32, 1), GroupShape(64, 64, 1)
    menu, links = ALGORITHMS["allreduce"], Links(1.0)
    halving, doubling = menu["recursive halving and doubling"], menu["recursive doubling"]

    # `straight` has the steps and the volume of a ring
    fit = straight(
        32,
        "system",
        halving.steps(of) * a / (2 * 31),
        halving.volume(of) * b / (2 * 31 / 32),
        nodes=32,
        ranks_per_node=1,
    )
    sweep = RuledSweep.by(rule, fit, of, "allreduce", links)
    change = rule_change(rule, sweep, shape, m)
    new, old = (each.steps(shape) * a + each.volume(shape) * b * m for each in (doubling, halving))
    assert change.logarithm == pytest.approx(math.log(new / old), abs=0.05)
    assert change.deviation > 0  # no doubling was measured
    assert rule_change(rule, sweep, shape, MIB) == (0.0, 0.0)
    assert rule_change(rule, sweep, GroupShape(2, 2, 1), m) == (0.0, 0.0)
