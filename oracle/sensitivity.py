"""How much each measured case adds to the interval of a prediction.

A prediction's half-width W is the root of the sum over sources of E_s^2, where E_s is the sum of the
errors e_i of the source's members. A measured time that is looked up n times has e_i = n times the
half-width of its estimate: the derivative of the iteration time by it, times its width. W is homogeneous
of degree 1 in the e_i, so by Euler's theorem it is the sum of e_i dW/de_i = e_i E_s / W, and
e_i E_s / W^2 is the share of W^2 that is due to the time.

References
----------
JCGM 100:2008 (GUM), 5.1 and 5.2: combined standard uncertainty, of correlated inputs too. Tasche,
"Risk contributions and performance measurement" (1999): why shares of a homogeneous measure are these.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from calib.foundation.collectives import sent_bytes
from calib.foundation.division import Division
from calib.microbench.cases import Case, CollectiveCase, InPlaceCase, LayerCase, TensorsCase
from calib.oracle import origins
from calib.oracle.cost import Cost
from calib.oracle.costs.machine import Machine
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import iteration
from calib.oracle.sources import CONTENTION, FROM, OVERLAP, class_of, group_of, grouped


@dataclass(frozen=True)
class Sensitivity:
    """What one predicted iteration owes its interval to.

    `half_width` is (high - low) / 2 over the value. `cases` has the share of the interval's variance
    that is due to each measured case; `fixed` that of the laws by source class, which measuring these
    cases again does not narrow. All shares sum to 1. `least` is the half-width that is left
    where all cases are known exactly.
    """

    seconds: float
    half_width: float
    cases: Mapping[str, float]
    fixed: Mapping[str, float]
    least: float

    @property
    def measured(self) -> float:
        """Share of the variance that more measuring of the cases narrows."""
        return math.fsum(self.cases.values())

    @property
    def mostly_fixed(self) -> str:
        """The largest of the sources that measuring does not narrow; "" where there is none."""
        return max(self.fixed, key=self.fixed.__getitem__, default="")


def told_apart(machine: Machine) -> Machine:
    """The machine with an error source for every measured time, as `sensitivity` needs it."""
    return Machine(machine.parameters, told_apart=True)


def sensitivity(
    model: ModelSpec,
    division: Division,
    machine: Machine,
    feeds: Mapping[str, Sequence[str]],
    optimizer: str = "momentum",
) -> Sensitivity:
    """The shares of measured cases in the interval of one iteration.

    Parameters
    ----------
    model
        In the execution that is predicted.
    division
        A possible one.
    machine
        With its times `told_apart`.
    feeds
        Origin -> ids of the cases that measure it (`feeding`). Several cases of one time share alike.
    optimizer
        sgd, momentum or adam.

    Raises
    ------
    MissingParameter
        The parameters lack something this prediction needs.
    """
    cost = iteration(model, division, machine, optimizer)
    cases: dict[str, float] = defaultdict(float)
    fixed: dict[str, float] = defaultdict(float)
    for source, share in shares(cost).items():
        of = feeds.get(_fed(source), ())
        for case in of:
            cases[case] += share / len(of)
        if not of:
            fixed[class_of(group_of(source))] += share
    laws = [error for error in cost.errors if not feeds.get(_fed(error[0]))]
    widths = [_half_width(cost._replace(errors=grouped(of))) for of in (cost.errors, laws)]
    return Sensitivity(cost.seconds, widths[0], dict(cases), dict(fixed), widths[1])


def _fed(source: str) -> str:
    """The measured time behind an error, or a source that cases of its own measure."""
    group, _, origin = source.partition(FROM)
    return origin or group


def _half_width(cost: Cost) -> float:
    return (cost.high - cost.low) / (2.0 * cost.seconds) if cost.seconds > 0 else 0.0


def shares(cost: Cost) -> dict[str, float]:
    """The share of every error in the variance of the interval, by Euler's theorem; they sum to 1.

    Of both sides together, as `by_class` has it. Empty where there is no error.
    """
    groups = {source: (down, up) for source, down, up in grouped(cost.errors)}
    whole = math.fsum(down * down + up * up for down, up in groups.values())
    found: dict[str, float] = defaultdict(float)
    if not whole > 0:
        return found
    for source, down, up in cost.errors:
        below, above = groups[group_of(source)]
        found[source] += (down * below + up * above) / whole
    return found


def feeding(cases: Iterable[Case], ranks_per_node: int) -> dict[str, list[str]]:
    """Origin -> ids of the cases that measure it.

    Parameters
    ----------
    cases
        Of a plan, and of these those that were measured.
    ranks_per_node
        Of the machine: more ranks in a launch are on several nodes.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for case in {case.id: case for case in cases}.values():
        for origin in _origins(case, min(case.ranks, ranks_per_node)):
            found[origin].append(case.id)
    return found


def _origins(case: Case, active_ranks: int) -> set[str]:
    """The measured times that come from a case, as predictions name them."""
    if isinstance(case, CollectiveCase):
        return _of_collective(case)
    if isinstance(case, LayerCase):
        whole = case.passes == "whole" and not case.cold
        return {origins.layer(case.key, active_ranks, False)} if whole else set()
    if isinstance(case, TensorsCase):
        passes = {"update": (_update(case.optimizer),), "pack": ("pack", "unpack")}
        key = f"{case.key}/{case.parts}" if case.parts > 1 else case.key
        names = passes.get(case.operation, (case.operation,))
        return {origins.tensor_pass(name, key, active_ranks, False) for name in names}
    if isinstance(case, InPlaceCase):
        return _of_iterations(case, active_ranks)
    return set()


def _of_collective(case: CollectiveCase) -> set[str]:
    if case.groups > 1:
        return {CONTENTION}
    if case.cold or case.start != "barrier":
        return set()
    named = case.detail and case.detail != str(case.group_size)
    name = f"{case.operation} {case.detail}" if named else case.operation
    name += " graph" * (case.mode == "graph")
    nbytes = sent_bytes(case.operation, case.nbytes, case.group_size)
    return {origins.collective(name, nbytes, case.group_size, case.library)}


def _of_iterations(case: InPlaceCase, active_ranks: int) -> set[str]:
    if case.is_overlap:
        return {OVERLAP}
    found = {origins.layer(key, active_ranks, True) for key in case.layer_keys}
    for phase in ("update", "pack", "unpack"):
        key, _, _ = case.passed(phase)
        operation = _update(case.optimizer) if phase == "update" else phase
        found.add(origins.tensor_pass(operation, key, active_ranks, True))
    return found


def _update(optimizer: str) -> str:
    """What an optimizer's pass is called in rows (microbench/rows.py)."""
    return "update" if optimizer == "momentum" else f"update_{optimizer}"
