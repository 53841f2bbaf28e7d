"""The header of a run: the job, the division as it was laid out, and where its ranks ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from calib.microbench.machine.probe import versions
from calib.microbench.records.manifest import utc_now
from calib.oracle.division import SPATIAL, Division
from calib.oracle.layout.shards import split_layers
from calib.oracle.layout.stages import stage_names
from calib.oracle.model.spec import ModelSpec
from calib.training.plans.division import LayerwiseDivision, any_shared
from calib.training.run.record import RunHeader
from calib.training.worker import Options

if TYPE_CHECKING:
    from calib.microbench.machine.placement import Placement
    from calib.training.runner import Job
    from calib.training.teams import Teams


def header_of(
    job: Job,
    teams: Teams,
    placement: Placement,
    order: Sequence[int],
    difference: float | None,
    notes: list[str],
) -> RunHeader:
    """The header of `job` on these ranks; `order` is the rank that is PE 0, 1, ..."""
    division, options, stopping = job.division, job.options, job.stopping
    return RunHeader(
        model=job.about.name,
        p=division.p,
        batch=division.batch,
        batch_per_pe=samples_per_pe(division),
        **layout_of(division),
        **names_of(division, job.spec),
        plan=job.plan,
        exchange=exchange_word(division, options),
        synchronized_batch_norm=options.synchronized_batch_norm,
        optimizer=options.optimizer,
        dtype=options.dtype,
        seed=job.seed,
        iterations=stopping.iterations,
        precision=stopping.precision,
        warmup=job.warmup,
        library=teams.world.library,
        backend=job.backend,
        device=teams.world.device,
        hosts=placement.hosts,
        cores=placement.cores,
        gpus=placement.gpus if teams.world.device == "cuda" else [],
        order=list(order),
        threads_per_rank=1,
        oversubscribed=placement.oversubscribed or shares_gpus(teams, placement),
        cluster_fingerprint=job.fingerprint,
        started=utc_now(),
        versions=versions(),
        launch=job.command,
        gradient_difference=difference,
        allocator=placement.allocator,
        notes=notes,
    )


def shares_gpus(teams: Teams, placement: Placement) -> bool:
    """Whether ranks of this run share a GPU: as good as more ranks than cores."""
    return teams.world.device == "cuda" and placement.ranks_share_gpus


def samples_per_pe(division: Division) -> int | float:
    """B / p; whole where it is."""
    each, rest = divmod(division.batch, division.p)
    return division.batch / division.p if rest else each


def layout_of(division: Division) -> dict[str, Any]:
    """The fields of a header that a division has beside p and the batch."""
    names = (
        "strategy",
        "inner",
        "segments",
        "schedule",
        "boundaries",
        "grid",
        "split_until",
        "overlap",
        "sharded_optimizer",
        "gradients",
    )
    found = {name: getattr(division, name) for name in names}
    if isinstance(division, LayerwiseDivision):
        found["plan_layout"] = division.layout
    return found | ({} if division.strategy == "pipeline" else {"segments": 1})


def names_of(division: Division, spec: ModelSpec | None) -> dict[str, str]:
    """The stages, and the last layer of a split, by the model's names; none without its layers."""
    if spec is None:
        return {}
    if division.strategy == "pipeline" and division.p > 1:
        return {"stages": stage_names(spec, division.boundaries)}
    if division.strategy in SPATIAL and division.parts > 1:
        return {"split_ends_after": split_layers(spec, division)[-1].name}
    return {}


def exchange_word(division: Division, options: Options) -> str:
    """How weight gradients are exchanged: see RunHeader.exchange."""
    strategy = division.strategy
    if isinstance(division, LayerwiseDivision):
        return "flat" if any_shared(division.configurations) else "none"
    if strategy == "data" and division.p > 1:
        if division.sharded_optimizer:
            return "sharded"
        return "ddp" if division.overlap or options.ddp else "flat"
    if division.replicas > 1:
        return "segmented" if strategy == "data+filter" else division.gradients
    return "flat" if strategy in SPATIAL and division.parts > 1 else "none"
