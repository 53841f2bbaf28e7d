"""Environments: what differs between two, and which one a prediction holds for."""

from __future__ import annotations

import pytest

from calib.foundation.environment import Environment, checked, environment_on, one_of_each
from calib.foundation.errors import InputError

PLAIN = Environment(ranks=2, threads=1, cores=2, allocator="glibc (thresholds adapt)")


def like(**more: object) -> Environment:
    return PLAIN.model_copy(update=more)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (PLAIN, ""),
        (like(ranks=1), ""),
        (Environment(), ""),  # nothing is known
        (like(threads=2), "threads: 1 and 2"),
        (like(cores=1, allocator="x"), "cores: 2 and 1; allocator: glibc (thresholds adapt) and x"),
        (like(variables={"UCX_TLS": "shm"}), "UCX_TLS: not set and shm"),
        # what these do is in threads and allocator
        (like(variables={"OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "1"}), ""),
        (like(on_purpose=["A"]), ""),
    ],
)
def test_what_differs(other: Environment, words: str) -> None:
    assert PLAIN.differs_in(other) == words
    assert bool(other.differs_in(PLAIN)) == bool(words)


def test_words() -> None:
    words = like(variables={"UCX_TLS": "shm", "OMP_NUM_THREADS": "1"}).words
    assert words == "2 x 1 threads on 2 cores, malloc of glibc (thresholds adapt), UCX_TLS=shm"
    assert Environment().words == "not known"


def test_an_environment_for_any_number_of_ranks() -> None:
    """Those that were measured; between them the same cores, shared out again."""
    on_eight = [like(ranks=n, threads=8 // n, cores=8) for n in (1, 8)]
    assert environment_on(1, on_eight) == on_eight[0] and environment_on(8, on_eight) == on_eight[1]
    found = environment_on(3, on_eight)
    assert (found.ranks, found.threads, found.cores) == (3, 2, 8)
    assert environment_on(3, []) == Environment()
    # a launcher binds ranks; somebody said how many threads: as it was measured
    bound = [like(ranks=1, threads=8, cores=8), like(ranks=8, threads=1, cores=1)]
    assert environment_on(7, bound) == bound[1]
    said = [like(ranks=8, threads=4, variables={"OMP_NUM_THREADS": "4"})]
    assert environment_on(2, said) == said[0]


def test_launches_in_two_environments_are_refused() -> None:
    one = like(ranks=1, threads=2)
    assert one_of_each([PLAIN, one, PLAIN, Environment()]) == [one, PLAIN]
    with pytest.raises(InputError, match=r"launches of 2 ranks .* threads: 1 and 4; take one"):
        one_of_each([PLAIN, like(threads=4)])


@pytest.mark.parametrize("name", ["", "A B", "1A", "A=", "CALIB_RANKS", "Ä"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match="is no name of a variable"):
        checked({name: "1"})
    with pytest.raises(ValueError, match="is not one line"):
        checked({"A": "1\n2"})
