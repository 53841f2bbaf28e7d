"""Time collectives, layers, updates and packing; goes on where an earlier call stopped.

Alone it starts the ranks itself; under a launcher it is one of them. Examples: calib measure -o
runs/mine --models vgg16-mini --budget 10m, or: calib measure -o runs/mine --plan plan.toml
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib import __version__
from calib.driver.ranks import as_rank, default_ranks, driven, emit, join_ranks
from calib.foundation.errors import FileError, InputError, MeasurementError
from calib.microbench.timing.watchdog import HANG_SECONDS, watching
from calib.options import BatchPerPe, Json, Launcher, Models, Ranks, model_list, number_list
from calib.rundir import prepare
from calib.terminal.printing import print_json, say

if TYPE_CHECKING:
    from calib.microbench.cases import Plan
    from calib.microbench.records.cluster import Cluster
    from calib.microbench.records.manifest import CaseEnd
    from calib.planning.request import Request

MOST_NAMED = 8


def command(
    output: Annotated[Path, typer.Option("--output", "-o", help="The run directory.")],
    plan: Annotated[
        Path | None, typer.Option(help="A plan.toml of `calib plan`, instead of --models etc.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the plan of the run directory.")
    ] = False,
    models: Models = None,
    batch_per_pe: BatchPerPe = None,
    p: Annotated[
        str | None, typer.Option("-p", help="PEs to measure for, as 1,2; default 1 and --ranks.")
    ] = None,
    ranks: Ranks = None,
    launcher: Launcher = "local",
    budget: Annotated[
        str | None, typer.Option(help="Time to measure for, as 90s or 10m; default 4m.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Shuffles cases and makes data; default 0.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A coarse grid and little time.")] = False,
    hang_seconds: Annotated[
        float,
        typer.Option(min=1.0, max=3600.0, help="Give ranks up that make no progress for so long."),
    ] = HANG_SECONDS,
    launch: Annotated[int | None, typer.Option(hidden=True)] = None,
    as_json: Json = False,
) -> None:
    flags = {
        "--models": models,
        "--batch-per-pe": batch_per_pe,
        "-p": p,
        "--seed": seed,
        "--quick": quick or None,
    }
    overrides = {"--budget": budget, "--ranks": ranks}
    if resume:
        refuse("--resume", {"--plan": plan, **flags, **overrides}, "the plan of the run directory")
    elif plan is not None:
        refuse("--plan", flags, f"{plan}")

    def request(started: int | None = None) -> Request:
        """What is asked for; `started` ranks by a person's own launcher are the default of p."""
        return requested(
            plan, models, batch_per_pe, p, ranks, budget, seed, quick, started, launcher
        )

    if as_rank():
        measure_as_rank(output, launch, None if resume or driven() else request)
        return
    rows = measure(
        output, planned(output, None if resume else request(), launcher), launcher, hang_seconds
    )
    if as_json:
        from calib.microbench.records.manifest import Manifest

        print_json({"run": str(output), "rows": rows, **Manifest.read(output).model_dump()})
    else:
        summarize(output, rows)


def refuse(option: str, others: dict[str, Any], source: str) -> None:
    """Raise InputError for options that cannot be beside `option`, which takes all from `source`."""
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise InputError(f"{option} goes by {source}; leave out {', '.join(given)}")


def requested(
    plan: Path | None,
    models: str | None,
    batch_per_pe: int | None,
    p: str | None,
    ranks: int | None,
    budget: str | None,
    seed: int | None,
    quick: bool,
    started: int | None,
    launcher: str,
) -> Request:
    """What is asked for: plan.toml, but for time and ranks, or the other options."""
    from calib.planning.request import FULL, QUICK, Request, request_of, seconds_of

    budget_s = None if budget is None else seconds_of(budget, "--budget")
    if plan is not None:
        changes = {"budget_s": budget_s, "ranks": ranks}
        given = {name: value for name, value in changes.items() if value is not None}
        return Request.read(plan).model_copy(update=given)
    sizes = number_list(p, "-p") if p else sorted({1, ranks or default_ranks(launcher)})
    if started is not None and not p:
        sizes = [started]
    return request_of(
        QUICK if quick else FULL,
        models=tuple(model_list(models)),
        p=tuple(sizes),
        ranks=ranks or started,
        batch_per_pe=batch_per_pe,
        budget_s=budget_s,
        seed=seed,
    )


def planned(run: Path, request: Request | None, launcher: str) -> Plan:
    """The plan of a run directory; without a request, the one that it was begun with.

    The machine is probed first: what can be measured depends on it. Raises FileError where there is
    no plan to go on with, InputError where there is another one.
    """
    from calib.fitting.fit import CLUSTER_FILE, PLAN_FILE, read_plan
    from calib.microbench.records.cluster import Cluster
    from calib.planning.plan import plan_for_run

    if request is None:
        if not (run / PLAN_FILE).exists():
            raise FileError(f"{run} holds no {PLAN_FILE} to go on with; leave out --resume")
        plan = read_plan(run)
    path = prepare(run) / CLUSTER_FILE
    if not path.exists():
        from calib.commands.probe import probe_with

        ranks = max(plan.sizes) if request is None else request.ranks or default_ranks(launcher)
        probe_with(path, launcher, ranks, None)
    return plan if request is None else plan_for_run(run, request, Cluster.read(path))


def measure(run: Path, plan: Plan, launcher: str, hang_s: float = HANG_SECONDS) -> int:
    """Start the ranks for every launch that is not done; returns the number of rows kept.

    Whatever ends it, the rows of the finished cases are in samples.parquet. Raises MeasurementError
    when no case gave a row.
    """
    from calib.driver.launches import Launches
    from calib.foundation.files import sha256_of
    from calib.microbench.records.manifest import Manifest
    from calib.microbench.records.samples import SAMPLES_FILE, read_run_table

    with alone(run) as lock:
        Launches(run, plan, launcher, hang_s, lock).go()
    manifest = Manifest.read(run)
    if not (run / SAMPLES_FILE).exists():
        reasons = [case.stopped_by for case in manifest.cases]
        raise MeasurementError(f"no case of {run} gave a row: {reasons[0] if reasons else 'none'}")
    manifest.samples_sha256 = sha256_of(run / SAMPLES_FILE)
    manifest.write(run)
    return int(read_run_table(run).num_rows)


@contextmanager
def alone(run: Path) -> Iterator[int]:
    """Hold a run directory; what was measured before and meanwhile ends in samples.parquet."""
    from calib.driver.lock import only_driver
    from calib.microbench.records.parts import consolidate, remove_unfinished

    with only_driver(run) as lock:
        consolidate(run)
        try:
            yield lock
        finally:
            consolidate(run)
            remove_unfinished(run)


def summarize(run: Path, rows: int) -> None:
    """How the cases ended: a line of counts, and one of the cases that failed or were left out."""
    from calib.microbench.records.manifest import Manifest

    manifest = Manifest.read(run)
    ends = [case.stopped_by for case in manifest.cases]
    failed = [case for case in manifest.cases if case.stopped_by.startswith("failed")]
    skipped = [case for case in manifest.cases if case.stopped_by.startswith("skipped")]
    say(
        f"{rows} rows of {len(ends)} cases in {run}: {ends.count('interval')} reached "
        f"+-{manifest.target_half_width:.1%} of the median, {ends.count('budget')} spent their "
        f"time, {len(failed)} failed, {len(skipped)} were left out"
    )
    if failed:
        say(f"failed (--resume tries again; why: {run}/manifest.json): {case_names(failed)}")
    if skipped:
        for reason, number in Counter(case.stopped_by for case in skipped).items():
            say(f"left out: {number}, {reason.removeprefix('skipped: ')}")
    if any(launch.oversubscribed for launch in manifest.launches):
        say("more ranks than cores: these rows are marked and calibrate nothing")


def case_names(ends: list[CaseEnd]) -> str:
    """The label of each case once, with the numbers of its launches."""
    launches: dict[str, list[int]] = {}
    for end in ends:
        launches.setdefault(end.label, []).append(end.launch + 1)
    names = [
        f"{label} (launch {', '.join(map(str, sorted(numbers)))})"
        for label, numbers in launches.items()
    ]
    more = [f"and {len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return "; ".join([*names[:MOST_NAMED], *more])


def measure_as_rank(
    run: Path, launch: int | None, request: Callable[[int], Request] | None
) -> None:
    """SPMD: one launch, by default the first that is not done.

    Rank 0 has the plan; that of a person's own launcher makes it by `request`.
    """
    from calib.microbench.cases import Plan
    from calib.microbench.probe import probe
    from calib.microbench.records.manifest import Manifest
    from calib.microbench.records.samples import MANIFEST_FILE
    from calib.microbench.session import run_session

    communicator = join_ranks()
    with ExitStack() as stack:
        stack.enter_context(watching(communicator.rank, emit))
        cluster = probe(communicator)
        text = ""
        if communicator.rank == 0:
            if not driven():
                stack.enter_context(alone(prepare(run)))
            plan, cluster = plan_of_rank(run, communicator.size, request, cluster)
            text = plan.model_dump_json()
            launch = next_launch(run, plan, communicator.size) if launch is None else launch
        text, racks, launch = communicator.share([text, cluster.racks, launch])
        plan = Plan.model_validate_json(text)
        manifest = Manifest(
            program_version=__version__,
            cluster_name=cluster.name,
            cluster_fingerprint=cluster.fingerprint,
            seed=plan.seed,
            target_half_width=plan.target_half_width,
        )
        if communicator.rank == 0 and (run / MANIFEST_FILE).exists():
            manifest = Manifest.read(run)
        runners = {}
        if any(case.kind == "in_place" for case in plan.cases_for(communicator.size)):
            from calib.training.in_place.iterations import measure_in_place

            runners["in_place"] = measure_in_place
        run_session(
            communicator,
            plan,
            launch,
            run,
            manifest,
            runners,
            emit,
            os.environ.get("CALIB_COMMAND", "direct"),
            racks,
        )


def next_launch(run: Path, plan: Plan, size: int) -> int:
    """The first launch of `size` ranks that has cases left; the last, where all are done."""
    from calib.microbench.records.parts import cases_done

    done = cases_done(run)
    cases = plan.cases_for(size)
    unfinished = (n for n in range(plan.launches) if any((c.id, n) not in done for c in cases))
    return next(unfinished, plan.launches - 1)


def plan_of_rank(
    run: Path, size: int, request: Callable[[int], Request] | None, cluster: Cluster
) -> tuple[Plan, Cluster]:
    """The plan and the cluster of the run directory, on rank 0; written where they are new."""
    from calib.fitting.fit import CLUSTER_FILE, read_plan
    from calib.planning.plan import plan_for_run

    if (run / CLUSTER_FILE).exists():
        known = type(cluster).read(run / CLUSTER_FILE)
        if others := known.strangers(cluster.hosts):
            raise InputError(
                f"{run} was begun on another machine or with other versions than {others[0]} has "
                "now; choose another -o"
            )
        cluster = known
    else:
        cluster.write(run / CLUSTER_FILE)
    plan = read_plan(run) if request is None else plan_for_run(run, request(size), cluster)
    if not plan.cases_for(size):
        raise InputError(
            f"the plan of {run} has no cases for {size} ranks, but for "
            f"{', '.join(map(str, plan.sizes))}"
        )
    return plan, cluster
