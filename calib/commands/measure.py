"""Time collectives, layers, updates and packing; goes on where an earlier call stopped.

Alone it starts the ranks itself; under a launcher it is one of them. Example: calib measure -o
runs/mine --models vgg16-mini --budget 60, or: mpiexec -n 4 calib measure -o runs/mine
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from calib.options import (
    BatchPerPe,
    Json,
    Launcher,
    Models,
    Ranks,
    default_ranks,
    model_list,
    number_list,
    print_json,
    say,
)
from calib.plan import FULL, QUICK, Effort, batch_of, make_plan
from calib.progress import Bar
from calib.ranks import Event, as_rank, emit, join_ranks, run_ranks
from calib.rundir import LOG_FILE, prepare
from foundation.errors import FileError, InputError
from microbench.cases import Plan


def command(
    output: Annotated[Path, typer.Option("--output", "-o", help="The run directory.")],
    models: Models = None,
    batch_per_pe: BatchPerPe = None,
    p: Annotated[
        str | None, typer.Option("-p", help="Ranks of the launches, as 1,2; default 1 and --ranks.")
    ] = None,
    ranks: Ranks = None,
    launcher: Launcher = "local",
    budget: Annotated[
        float | None, typer.Option(min=1.0, max=1e6, help="Seconds to measure for; default 240.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Shuffles cases and makes data.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A coarse grid and little time.")] = False,
    launch: Annotated[int | None, typer.Option(hidden=True)] = None,
    as_json: Json = False,
) -> None:
    effort = effort_of(quick, budget)
    if as_rank():
        measure_as_rank(output, models, batch_per_pe, effort, seed, launch or 0)
        return
    sizes = number_list(p, "-p") if p else sorted({1, ranks or default_ranks()})
    plan = planned(output, models, batch_per_pe, sizes, effort, seed)
    rows = measure(output, plan, launcher)
    if as_json:
        from microbench.manifest import Manifest

        print_json({"run": str(output), "rows": rows, **Manifest.read(output).model_dump()})
    else:
        summarize(output, rows)


def effort_of(quick: bool, budget: float | None) -> Effort:
    """The effort that the flags ask for."""
    from dataclasses import replace

    effort = QUICK if quick else FULL
    return effort if budget is None else replace(effort, budget_s=budget)


def planned(
    run: Path,
    models: str | None,
    batch_per_pe: int | None,
    sizes: list[int],
    effort: Effort,
    seed: int,
) -> Plan:
    """The plan of a run directory: the one it has, else a new one, written to plan.json.

    Raises InputError when the directory was begun with another plan.
    """
    from fitting.fit import PLAN_FILE, read_plan
    from training.models.specs import spec

    names = model_list(models)
    pairs = [(spec(name), batch_of(name, batch_per_pe)) for name in names]
    plan = make_plan(pairs, sizes, effort, seed)
    path = prepare(run) / PLAN_FILE
    if path.exists():
        if read_plan(run) != plan:
            raise InputError(
                f"{run} was begun with another plan (models, batch, ranks, budget or seed); "
                "give the same options to go on, or another -o"
            )
        return plan
    from foundation.files import write_whole

    write_whole(path, plan.model_dump_json(indent=1) + "\n")
    return plan


def measure(run: Path, plan: Plan, launcher: str) -> int:
    """Start the ranks for every launch that is not done; returns the number of rows kept.

    Whatever ends it, the rows of the finished cases are in samples.parquet.
    """
    from fitting.fit import CLUSTER_FILE
    from foundation.files import sha256_of
    from microbench.manifest import Manifest
    from microbench.samples import SAMPLES_FILE, cases_done, consolidate, read_run_table

    if not (run / CLUSTER_FILE).exists():
        from calib.commands.probe import probe_with

        probe_with(run / CLUSTER_FILE, launcher, max(plan.sizes), None)
    done = cases_done(run)
    launches = [(launch, size) for launch in range(plan.launches) for size in plan.sizes]
    total = sum(len(plan.cases_for(size)) for _, size in launches)
    kept = len(done)
    left_s = {pair: plan.budget_seconds * len(plan.cases_for(pair[1])) / total for pair in launches}
    try:
        with Bar("measure", total) as bar:
            for launch, size in launches:
                todo = [c for c in plan.cases_for(size) if (c.id, launch) not in done]
                later = sum(s for pair, s in left_s.items() if pair > (launch, size))
                if not todo:
                    continue

                def on_event(event: Event, kept: int = kept, later: float = later) -> None:
                    if event["event"] == "case":
                        label = f"launch {event['launch'] + 1}, {event['label']}"
                        bar.update(kept + event["done"], label, event["left_s"] + later)
                    elif event["event"] == "failed":
                        say(f"failed: {event['label']}: {event['reason']}")

                arguments = ["measure", "-o", str(run.absolute()), "--launch", str(launch)]
                going_on = f"finished cases are kept; the same command goes on in {run}"
                run_ranks(launcher, size, arguments, run / LOG_FILE, on_event, going_on)
                kept += len(todo)
    finally:
        consolidate(run)
    manifest = Manifest.read(run)
    if not (run / SAMPLES_FILE).exists():
        reasons = [case.stopped_by for case in manifest.cases]
        raise FileError(f"no case of {run} gave a row: {reasons[0] if reasons else 'none ran'}")
    manifest.samples_sha256 = sha256_of(run / SAMPLES_FILE)
    manifest.write(run)
    return int(read_run_table(run).num_rows)


def summarize(run: Path, rows: int) -> None:
    """How the cases ended, in two lines."""
    from microbench.manifest import Manifest

    manifest = Manifest.read(run)
    ends = [case.stopped_by for case in manifest.cases]
    say(
        f"{rows} rows of {len(ends)} cases in {run}: {ends.count('interval')} reached "
        f"+-{manifest.target_half_width:.1%} of the median, {ends.count('budget')} spent their "
        f"time, {sum(end.startswith('failed') for end in ends)} failed"
    )
    if any(launch.oversubscribed for launch in manifest.launches):
        say("more ranks than cores: these rows are marked and calibrate nothing")


def measure_as_rank(
    run: Path,
    models: str | None,
    batch_per_pe: int | None,
    effort: Effort,
    seed: int,
    launch: int,
) -> None:
    """SPMD: one launch. Rank 0 has the plan; without one it is made for this number of ranks."""
    from calib import __version__
    from fitting.fit import CLUSTER_FILE, PLAN_FILE, read_plan
    from microbench.cluster import Cluster
    from microbench.manifest import Manifest
    from microbench.probe import probe
    from microbench.samples import MANIFEST_FILE, consolidate
    from microbench.session import run_session
    from training.in_place import measure_in_place

    communicator = join_ranks()
    cluster = probe(communicator)
    plan_text = ""
    if communicator.rank == 0:
        if (run / PLAN_FILE).exists():
            plan = read_plan(run)
        else:
            plan = planned(run, models, batch_per_pe, [communicator.size], effort, seed)
        if (run / CLUSTER_FILE).exists():
            cluster = Cluster.read(run / CLUSTER_FILE)
        else:
            cluster.write(run / CLUSTER_FILE)
        plan_text = plan.model_dump_json()
    plan = Plan.model_validate_json(communicator.share(plan_text))
    manifest = Manifest(
        program_version=__version__, cluster_name=cluster.name,
        cluster_fingerprint=cluster.fingerprint, seed=plan.seed,
        target_half_width=plan.target_half_width,
    )  # fmt: skip
    if communicator.rank == 0 and (run / MANIFEST_FILE).exists():
        manifest = Manifest.read(run)
    run_session(
        communicator, plan, launch, run, manifest, {"in_place": measure_in_place}, emit,
        os.environ.get("CALIB_COMMAND", "direct"),
    )  # fmt: skip
    if communicator.rank == 0:
        consolidate(run)
