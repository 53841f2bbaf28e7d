"""The points of a request (model, strategy, p), and the launch that measures each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from calib.foundation.division import Division, traits_of
from calib.foundation.errors import InputError
from calib.foundation.execution import USUAL, execution_of
from calib.foundation.nccl import NCCL_PACKAGES
from calib.microbench.records.cluster import Cluster
from calib.oracle.layout.shards import possible_division, why_impossible
from calib.oracle.model.spec import ModelSpec
from calib.oracle.template import DivisionTemplate
from calib.planning.request import Request
from calib.training.allowed import why_no_execution
from calib.training.models.specs import batch_of


@dataclass(frozen=True)
class PlannedLaunches:
    """The launches of a plan: the largest one, and how its ranks lie on nodes and racks."""

    ranks: int
    ranks_per_node: int
    nodes_per_rack: int
    nodes: int
    nccl: str = ""
    """Version of the package of NCCL; "" unknown."""
    gpu_memory_bytes: int = 0
    """Of the smallest GPU; 0 unknown."""

    def launch_for(self, p: int) -> int:
        """The launch that measures what a rank does on p ranks: the largest where p is larger."""
        return min(p, self.ranks)


@dataclass(frozen=True)
class Point:
    """A model under a strategy on p ranks. `label` names it for people."""

    model: ModelSpec
    division: Division
    launch: int

    @property
    def label(self) -> str:
        """Model, strategy and p in a few words."""
        division, how = self.division, ""
        if self.model.execution != USUAL:
            how = f" ({self.model.execution})"
        p = f"{division.replicas}x{division.inner}" if division.traits.hybrid else str(division.p)
        return f"{self.model.name} {division.slug} {p}{how}"


def planned_launches(request: Request, cluster: Cluster) -> PlannedLaunches:
    """How the largest launch is placed: `ranks`, else the largest p that the cluster has ranks for.

    More ranks than cores share the nodes' cores; such rows are marked.
    """
    levels = {level.name: level.members for level in cluster.levels}
    nodes = max([1, *(members for name, members in levels.items() if name != "node")])
    each = cluster.ranks_per_node
    if request.device == "cuda":  # a rank has a GPU of its own, where the hosts' are known
        each = min(each, min(host.gpus for host in cluster.hosts) or each)
    ranks = request.ranks or min(max(request.p), each * nodes)
    per_node = max(each, -(-ranks // nodes))
    installed = cluster.hosts[0].versions
    nccl = next((installed[name] for name in NCCL_PACKAGES if name in installed), "")
    gpus = [of.memory_bytes for host in cluster.hosts for of in host.devices if of.kind == "cuda"]
    memory = min(gpus, default=0)
    return PlannedLaunches(ranks, per_node, levels.get("rack", nodes), nodes, nccl, memory)


def with_tokens_cut(points: Sequence[Point]) -> list[Point]:
    """The points, and behind them those of tensor with sequence parallelism, where that can be."""
    more = [
        replace(point, division=replace(point.division, sequence_parallel=True))
        for point in points
        if "sequence_parallel" in point.division.traits.options
    ]
    return [*points, *(of for of in more if not why_impossible(of.model, of.division))]


def points_of(
    request: Request, machine: PlannedLaunches, specs: Mapping[str, ModelSpec]
) -> tuple[list[Point], list[str]]:
    """The points that can be, and a line for each that cannot, with the reason.

    One rank is serial, whatever the strategy. Raises InputError where no point is left.
    """
    points, left_out = [], []
    chosen = product(request.models, request.executions, request.p, request.strategies)
    for name, execution, p, strategy in chosen:
        own = 1 if request.batch is not None else batch_of(specs[name], request.batch_per_rank)
        batch = request.global_batch(p, own)
        if not traits_of(strategy).parallel and p > 1:
            continue
        template = DivisionTemplate(strategy if p > 1 else "serial", segments=request.segments)
        why = template.why_no_groups(p)
        if why:
            left_out.append(f"{strategy} {p}: {why}")
            continue
        model = specs[name].run_as(execution)
        try:
            found = template.division(p, batch, machine.ranks_per_node, model)
            division = possible_division(model, found)
        except InputError as error:
            named = model.name in str(error)
            left_out.append(str(error) if named else f"{name} {strategy} {p}: {error}")
            continue
        point = Point(model, division, machine.launch_for(p))
        how, sample = execution_of(execution), model.input_shape
        if reasons := why_no_execution(division, how, model, sample, request.device):
            left_out.append(f"{point.label}: {reasons[0]}")
        else:
            points.append(point)
    if not points:
        raise InputError(left_out[0] if left_out else "serial runs on 1 rank: add 1 to p")
    return list({(point.label, point.launch): point for point in points}.values()), list(
        dict.fromkeys(left_out)
    )
