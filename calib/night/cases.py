"""The few cases that a night measures again, out of those in the stored parameters."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import LayerTime, Parameters
from calib.foundation.collectives import sent_bytes
from calib.foundation.records import Estimate
from calib.microbench.cases import Case, CollectiveCase, LayerCase, TensorsCase
from calib.microbench.records.cluster import Cluster
from calib.night.points import NightPoint
from calib.oracle.costs.levels import GroupLayout, Levels
from calib.oracle.layout.shards import rank_shards
from calib.oracle.layout.traffic import messages
from calib.planning.plan import draft, specs_of
from calib.planning.request import Request

COSTLIEST_LAYERS = 6  # of each execution and p
LARGEST_LISTS = 2  # of each pass over tensors, execution and p
# largest size where the points send none
ENOUGH_BYTES = 16 * 2**20
PASSES = ("update", "pack")
One = TypeVar("One", LayerCase, TensorsCase)


@dataclass(frozen=True)
class Known:
    """The measured times of a parameter file, found by the cases of a check."""

    parameters: Parameters

    @cached_property
    def _layers(self) -> dict[tuple[str, int], LayerTime]:
        return {(time.key, time.active_ranks): time for time in self.parameters.layers}

    @cached_property
    def _lists(self) -> dict[tuple[str, str, int, str], Estimate]:
        return {
            (loop.operation, loop.execution, loop.active_ranks, key): seconds
            for loop in self.parameters.tensor_loops
            if loop.device == self.parameters.device_kind
            for key, seconds in loop.measured.items()
        }

    def active(self, case: Case) -> int:
        """How many ranks of a case work on one node at once."""
        return min(case.ranks, self.parameters.ranks_per_node)

    def fit_of(self, case: CollectiveCase, level: str = "") -> CollectiveFit | None:
        """The law with a point at a case's size, at `level` or where its ranks should lie."""
        layout = GroupLayout(case.group_size, case.stride, case.groups)
        machine = Levels.of(self.parameters)
        levels, shape = (level,) if level else machine.names(layout), machine.shape(layout)
        nbytes = sent_bytes(case.operation, case.nbytes, case.group_size)
        wanted = (name_of(case), case.library, case.device, case.group_size)
        for fit in self.parameters.collectives:
            if (
                (fit.operation, fit.library, fit.device, fit.ranks) == wanted
                and fit.level in levels
                and fit.made_on(*shape)
                and any(point.nbytes == nbytes for point in fit.points)
            ):
                return fit
        return None

    def layer_of(self, case: LayerCase) -> LayerTime | None:
        """The stored times of a layer, if the case is as training runs it."""
        usual = case.passes == "whole" and not case.cold
        return self._layers.get((case.key, self.active(case))) if usual else None

    def list_of(self, case: TensorsCase, operation: str) -> Estimate | None:
        """The stored seconds of a pass (a row's operation) over a list of tensors."""
        return self._lists.get((operation, case.execution, self.active(case), case.key))


def name_of(case: CollectiveCase) -> str:
    """The operation's name in a parameter file: with its layout, where that is part of it."""
    key = "x".join(map(str, case.grid)) or (f"inner={case.inner}" if case.inner else "")
    return f"{case.operation} {key}" if key and key != str(case.group_size) else case.operation


def row_name(case: TensorsCase) -> str:
    """The operation in its rows; momentum's update is plain `update`."""
    other = case.operation == "update" and case.optimizer != "momentum"
    return f"update_{case.optimizer}" if other else case.operation


def planned_cases(request: Request, cluster: Cluster) -> Sequence[Case]:
    """All that a calibration of the request would time, except what no prediction looks up."""
    plain = request.model_copy(
        update={"contention": False, "cold": False, "windows": False, "passes_apart": False}
    )
    return draft(plain, cluster, specs_of(plain)).plan.cases


def chosen(cases: Iterable[Case], points: Sequence[NightPoint], known: Known) -> list[Case]:
    """The cases of a night's check, all of the first tier, so that none is left out for time.

    For each operation of the points and each level a small, a middle and a large size on the most
    ranks; for each execution and p the costliest layers of the points, and their updates and packing.
    """
    every = list(cases)
    found: list[Case] = [
        *_collectives([c for c in every if isinstance(c, CollectiveCase)], points, known),
        *_layers([c for c in every if isinstance(c, LayerCase)], points, known),
        *_lists([c for c in every if isinstance(c, TensorsCase)], known),
    ]
    return [case.model_copy(update={"tier": 0}) for case in {c.id: c for c in found}.values()]


def _collectives(
    cases: Sequence[CollectiveCase], points: Sequence[NightPoint], known: Known
) -> list[CollectiveCase]:
    sent = [m for point in points for m in messages(point.model, point.division)]
    used = {message.operation for message in sent}
    groups: dict[tuple[str, str], list[CollectiveCase]] = defaultdict(list)
    for case in cases:
        fit = known.fit_of(case) if case.operation in used and _is_alone(case) else None
        if fit is not None:
            groups[fit.operation, fit.level].append(case)
    found = []
    for group in groups.values():
        ranks = max(case.group_size for case in group)
        near = [case for case in group if case.group_size == ranks]
        stride = min(case.stride for case in near)
        sizes = [m.nbytes for m in sent if m.operation == near[0].operation]
        found += few([case for case in near if case.stride == stride], max(sizes))
    return found


def _is_alone(case: CollectiveCase) -> bool:
    """One group, warm, from a barrier: as the stored points were measured."""
    return case.groups == 1 and not case.cold and case.start == "barrier"


def few(cases: Sequence[CollectiveCase], largest_sent: int) -> list[CollectiveCase]:
    """The smallest size, the largest that is sent, and the one nearest to their geometric mean."""
    by_size = {case.nbytes: case for case in cases}
    smallest = min(by_size)
    most = max(largest_sent, smallest) if largest_sent else ENOUGH_BYTES
    sizes = sorted(size for size in by_size if size <= most)
    middle = math.sqrt(sizes[0] * sizes[-1])
    between = min(sizes, key=lambda size: (round(abs(math.log(size / middle)), 9), size))
    return [by_size[size] for size in sorted({sizes[0], between, sizes[-1]})]


def _layers(
    cases: Sequence[LayerCase], points: Sequence[NightPoint], known: Known
) -> list[LayerCase]:
    run = {
        (shard.layer.key(shard.batch, execution, shard.needs_input_grad), point.division.p)
        for point in points
        for shard in rank_shards(point.model, point.division)
        for execution in {case.execution for case in cases}
    }
    alike: dict[tuple[int, str], list[tuple[float, LayerCase]]] = defaultdict(list)
    for case in cases:
        stored = known.layer_of(case) if (case.key, case.ranks) in run else None
        if stored is not None:
            seconds = stored.forward_s.value + stored.backward_s.value
            alike[case.ranks, case.execution].append((seconds, case))
    return [case for of in alike.values() for case in _most(of, COSTLIEST_LAYERS)]


def _lists(cases: Sequence[TensorsCase], known: Known) -> list[TensorsCase]:
    of_kind: dict[tuple[str, str, int], list[tuple[float, TensorsCase]]] = defaultdict(list)
    for case in cases:
        name = row_name(case)
        stored = known.list_of(case, name)
        if stored is not None and case.operation in PASSES and case.tier == 0:
            of_kind[name, case.execution, case.ranks].append((stored.value, case))
    return [case for of in of_kind.values() for case in _most(of, LARGEST_LISTS)]


def _most(of: Sequence[tuple[float, One]], count: int) -> list[One]:
    """Those that take longest; ties by id, so that every night has the same."""
    ordered = sorted(of, key=lambda pair: (-pair[0], pair[1].id))
    return [case for _, case in ordered[:count]]
