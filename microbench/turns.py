"""Whose turn it is: the cases of one start of the ranks, in order, and what they need."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection

from calib.microbench.budget import is_first
from calib.microbench.cases import Case, CollectiveCase, InPlaceCase, Plan


def ordered_cases(plan: Plan, ranks: int, launch: int) -> list[Case]:
    """The cases of one launch, tier by tier; in each, models in place come first.

    What is alike is shuffled by the plan's seed and the launch.
    """
    cases = plan.cases_in(ranks, launch)
    random.Random(f"{plan.seed}-{ranks}-{launch}").shuffle(cases)
    return sorted(cases, key=_turn)


def _turn(case: Case) -> tuple[int, bool]:
    return 0 if is_first(case) else case.tier, not isinstance(case, InPlaceCase)


def case_seed(plan: Plan, case: Case) -> int:
    """The seed of a case's input data."""
    return int.from_bytes(hashlib.sha256(f"{plan.seed}{case.id}".encode()).digest()[:4], "big")


def needs_torch(case: Case) -> bool:
    """Whether ranks load PyTorch for a case: all but collectives of MPI on buffers of the host."""
    return not (isinstance(case, CollectiveCase) and (case.library, case.device) == ("mpi", "cpu"))


def is_on_gpu(case: Case) -> bool:
    """Whether a case has its buffers or kernels on a GPU."""
    return getattr(case, "device", "cpu") == "cuda"


def starts_of(cases: Collection[Case]) -> int:
    """How often ranks are started for the cases of one launch."""
    own = sum(case.has_own_ranks for case in cases)
    return own + (own < len(cases))


def of_these_ranks(left: list[Case]) -> list[Case]:
    """Of what is left of a launch: one case that has ranks of its own, else all."""
    return [case for case in left if case.has_own_ranks][:1] or left


def has_optimizer(case: Case) -> bool:
    """Whether a case makes an optimizer of PyTorch's."""
    return isinstance(case, InPlaceCase) or getattr(case, "operation", "") == "update"
