"""Measuring: plan, ranks that time its cases, and how the cases ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from calib import __version__
from calib.driver.defaults import default_ranks, require_device
from calib.driver.launches import Launches
from calib.driver.lock import only_driver
from calib.driver.probe import probe
from calib.driver.ranks import driven, emit, join_ranks, require_variables
from calib.foundation.errors import FileError, InputError, MeasurementError
from calib.foundation.files import ensure_directory, sha256_of
from calib.foundation.run_files import CLUSTER_FILE, MANIFEST_FILE, PLAN_FILE, SAMPLES_FILE
from calib.microbench.cases import Plan, read_plan
from calib.microbench.probe import probe as probe_hosts
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.manifest import Manifest
from calib.microbench.records.parts import cases_done, consolidate, remove_unfinished
from calib.microbench.records.samples import read_run_table
from calib.microbench.session import run_session
from calib.microbench.timing.watchdog import HANG_SECONDS, watching
from calib.microbench.turns import is_on_gpu
from calib.planning.built import require_built
from calib.planning.plan import plan_for_run
from calib.planning.request import Request
from calib.training.models.specs import spec


def planned(run: Path, request: Request | None, launcher: str = "local") -> Plan:
    """The plan of a run directory; without a request, the one that it was begun with.

    The machine is probed first, as it decides what can be measured. Raises FileError where there is no
    plan to go on with, InputError where there is another one, MachineError where it is of GPUs and there
    are none.
    """
    if request is None:
        if not (run / PLAN_FILE).exists():
            raise FileError(f"{run} holds no {PLAN_FILE} to go on with; leave out --resume")
        plan = read_plan(run)
        ranks, device = max(plan.sizes), "cuda" if any(map(is_on_gpu, plan.cases)) else "cpu"
    else:
        device = request.device
        ranks = request.ranks or default_ranks(launcher, device)
    require_device(device, launcher)
    path = ensure_directory(run) / CLUSTER_FILE
    if not path.exists():
        probe(path, launcher, ranks)
    return plan if request is None else plan_for_run(run, request, Cluster.read(path))


def measure(
    run: Path,
    plan: Plan,
    launcher: str = "local",
    hang_s: float = HANG_SECONDS,
    launches: range | None = None,
) -> int:
    """Start the ranks for every launch of the plan that is not done.

    Whatever ends it, the rows of the finished cases are in samples.parquet.

    Parameters
    ----------
    run
        Run directory with its cluster.json.
    plan
        The cases.
    launcher
        local, slurm, or a template with {n}.
    hang_s
        Ranks without progress for so many seconds end themselves.
    launches
        The numbers of the launches that are made of each size; by default all of the plan.

    Returns
    -------
    int
        Rows kept.

    Raises
    ------
    InputError
        The code of a user's model that is timed in place has changed or is gone.
    MeasurementError
        No case gave a row.
    """
    require_built_in_place(run, plan)
    with alone(run) as lock:
        Launches(run, plan, launcher, hang_s, lock, launches).go()
    manifest = Manifest.read(run)
    if not (run / SAMPLES_FILE).exists():
        reasons = [case.stopped_by for case in manifest.cases]
        raise MeasurementError(f"no case of {run} gave a row: {reasons[0] if reasons else 'none'}")
    manifest.samples_sha256 = sha256_of(run / SAMPLES_FILE)
    manifest.write(run)
    return int(read_run_table(run).num_rows)


def require_built_in_place(run: Path, plan: Plan) -> None:
    """Raise InputError unless users' code builds the models that the plan times in place."""
    own = [case.model for case in plan.cases if case.kind == "in_place" and case.own is not None]
    require_built(spec(name, run) for name in dict.fromkeys(own))


@contextmanager
def alone(run: Path) -> Iterator[int]:
    """Hold a run directory; all that was measured ends up in samples.parquet."""
    with only_driver(run) as lock:
        consolidate(run)
        try:
            yield lock
        finally:
            consolidate(run)
            remove_unfinished(run)


def measure_as_rank(
    run: Path, launch: int | None, request: Callable[[int], Request] | None, again: str = ""
) -> None:
    """SPMD: one launch, by default the first that is not done; of it a case once more, if `again`.

    Rank 0 has the plan; without a driver it makes one from `request`.
    """
    communicator = join_ranks()
    with ExitStack() as stack:
        stack.enter_context(watching(communicator.rank, emit))
        cluster = probe_hosts(communicator)
        text = ""
        if communicator.rank == 0:
            if not driven():
                stack.enter_context(alone(ensure_directory(run)))
            plan, cluster = plan_of_rank(run, communicator.size, request, cluster)
            if not driven():
                require_built_in_place(run, plan)
            text = plan.model_dump_json()
            launch = next_launch(run, plan, communicator.size) if launch is None else launch
        text, racks, launch = communicator.broadcast_object([text, cluster.racks, launch])
        plan = Plan.model_validate_json(text)
        require_variables(plan.variables)
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
            # late: PyTorch, where only such cases need it
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
            driven=driven(),
            again=again,
        )


def next_launch(run: Path, plan: Plan, size: int) -> int:
    """The first launch of `size` ranks that has cases left; the last, where all are done."""
    done = cases_done(run)
    launches = plan.launches_of(size)
    unfinished = (
        n for n in range(launches) if any((c.id, n) not in done for c in plan.cases_in(size, n))
    )
    return next(unfinished, launches - 1)


def plan_of_rank(
    run: Path, size: int, request: Callable[[int], Request] | None, cluster: Cluster
) -> tuple[Plan, Cluster]:
    """The plan and the cluster of the run directory, on rank 0; written where they are new."""
    if (run / CLUSTER_FILE).exists():
        known = Cluster.read(run / CLUSTER_FILE)
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
