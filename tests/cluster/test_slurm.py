"""calib on a Slurm cluster of four nodes, from `calib sbatch` on: its scripts, run by sbatch itself."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
from tests.calib.inside import calib
from tests.cluster.conftest import minutes
from tests.cluster.namespaces import ENVIRONMENT, CannotBuild, NamespaceCluster
from tests.cluster.slurm import OVER, SlurmCluster
from tests.helpers.rows import rows_in
from tests.helpers.words import words_of

import calib as calib_package
from calib.fitting.parameters.file import Parameters
from calib.foundation.run_files import CLUSTER_FILE, LOG_FILE, PARAMETERS_FILE, REPORT_JSON
from calib.microbench.cases import CollectiveCase, Plan
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.parts import cases_done, part_paths

pytestmark = pytest.mark.cluster

MEGABITS = 300
# ranks alone, as the machine may be busy; a test is over much sooner
PATIENCE_S = 300.0
OPEN_MPI = Path("/usr/lib/x86_64-linux-gnu/libmpi.so.40")
PMIX = Path("/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so")  # what Debian's mpi_pmix opens
OF_OPEN_MPI = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_btl_tcp_if_include": "eth0",
}
# what a PBS user writes: a nodefile for mpiexec. Hydra would find srun by itself, in Slurm's allocation
PBS = """\
#!/bin/bash
#PBS -l nodes=2:ppn=1,walltime=00:05:00
cd "$PBS_O_WORKDIR"
export PBS_NODEFILE=${{PBS_NODEFILE:-$(generate_pbs_nodefile)}}
trap 'rm -f "$PBS_NODEFILE"' EXIT
{python} -m calib measure -o run --resume --launcher \\
  "mpiexec -rmk user -launcher rsh -launcher-exec {start} -iface eth0 -f $PBS_NODEFILE -n {{n}}"
"""
KEPT = "finished cases are kept; `calib measure -o run --resume` goes on"


@pytest.fixture(scope="module")
def slurm(cluster: NamespaceCluster) -> Iterator[SlurmCluster]:
    """Four idle nodes; skips, with the reason, where they cannot be."""
    cluster.set_rate(MEGABITS)
    try:
        with SlurmCluster(cluster) as built:
            yield built
    except CannotBuild as reason:
        pytest.skip(f"no Slurm cluster: {reason}")


def write_plan(run: Path, budget_s: float, launches: int = 2) -> None:
    """Twelve cases of two ranks in each launch, for `calib measure --resume`."""
    run.mkdir()
    cases = tuple(
        CollectiveCase.model_validate(
            {"ranks": 2, "group_size": 2, "operation": name, "nbytes": nbytes, "tier": 1}
        )
        for name in ("allreduce", "allgather", "broadcast")
        for nbytes in (8, 4096, 65536, 1 << 20)
    )
    plan = Plan(cases=cases, launches=launches, budget_seconds=budget_s, seed=3)
    (run / "plan.json").write_text(plan.model_dump_json())


def scripted(folder: Path, *words: str) -> Path:
    """A batch script, by `calib sbatch`."""
    done = calib(folder, "sbatch", *words)
    assert done.returncode == 0, done.stderr
    return folder / "job.sh"


def submit(
    slurm: SlurmCluster, script: Path, command: str = "sbatch --parsable", **variables: str
) -> str:
    """Submit a script from its folder as a user would; returns the job."""
    line = [*words_of(command), script.name]
    here = str(Path(calib_package.__file__).parents[1])  # jobs run the calib that is tested
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1", "PYTHONPATH": here, **variables}
    return slurm.command(*line, folder=script.parent, variables=environment).strip()


def log_of(folder: Path, verb: str, job: str) -> str:
    """What the job has written so far."""
    path = folder / f"calib-{verb}-{job}.log"
    return path.read_text() if path.exists() else ""


def nodes_of(slurm: SlurmCluster, job: str) -> list[str]:
    """The nodes that a job that was submitted has, or had."""
    slurm.wait(job, PATIENCE_S, ["RUNNING", *OVER])
    nodes = slurm.command("squeue", "-h", "-t", "all", "-j", job, "-o", "%N").strip()
    return slurm.command("scontrol", "show", "hostnames", nodes).split()


def wait_for_cases(run: Path, count: int) -> None:
    """Wait until so many cases have ended."""
    until = monotonic() + PATIENCE_S
    while (done := len(part_paths(run))) < count:
        assert monotonic() < until, f"{done} of {count} cases"
        sleep(0.1)


def rows_of(run: Path) -> set[tuple[str, int, int, float]]:
    """What every repetition took."""
    return {(row.case_id, row.launch, row.repetition, row.seconds) for row in rows_in(run)}


@minutes
def test_a_calibration_to_the_report(slurm: SlurmCluster, tmp_path: Path) -> None:
    # a precision that is always reached: two launches are made, the fewest that there are
    options = words_of("--quick --models lenet5 --budget 12s --precision 99% --iterations 6")
    verb = ["calibrate", *options, "--name", "wolf", "-o", "runs/wolf"]
    script = scripted(tmp_path, "--nodes", "2", "--time", "10", "--", *verb)
    job = submit(slurm, script)
    assert slurm.wait(job, PATIENCE_S) == "COMPLETED", log_of(tmp_path, "calibrate", job)
    run = tmp_path / "runs/wolf"
    assert (run / REPORT_JSON).exists()
    hosts = [host.name for host in Cluster.read(run / CLUSTER_FILE).hosts]
    assert hosts == nodes_of(slurm, job)
    found = Parameters.read(run / PARAMETERS_FILE).collectives
    assert {(x.ranks, x.nodes, x.level) for x in found} == {(2, 2, "system")}


@minutes
def test_a_time_limit_loses_nothing(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_plan(run, budget_s=240, launches=4)  # 60 s and more, as cases end early
    words = ["--nodes", "2", "--time", "1", "--", "measure", "-o", "run", "--resume"]
    script = scripted(tmp_path, *words)
    whole = script.read_text()
    # a minute is the shortest limit that Slurm has, and looked at twice a minute
    script.write_text(whole.replace("set -euo", "sleep 40; set -euo"))
    job = submit(slurm, script)
    # FAILED: between two launches calib hears from srun first that the job is over
    assert slurm.wait(job, PATIENCE_S) in ("TIMEOUT", "FAILED")
    said = log_of(tmp_path, "measure", job).splitlines()[-1]
    assert said.startswith("calib: error: ") and said.endswith(KEPT)
    kept = rows_of(run)
    assert kept and len(cases_done(run)) < 48
    script.write_text(whole.replace("--time=1\n", "--time=10\n"))
    job = submit(slurm, script)
    assert slurm.wait(job, PATIENCE_S) == "COMPLETED", log_of(tmp_path, "measure", job)
    assert kept < rows_of(run) and len(cases_done(run)) == 48


def test_a_requeue_goes_on(slurm: SlurmCluster, tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_plan(run, budget_s=16)
    words = ["--nodes", "2", "--time", "10", "--requeue", "1", "--"]
    script = scripted(tmp_path, *words, "measure", "-o", "run", "--resume")
    job = submit(slurm, script)
    wait_for_cases(run, 3)
    # what --signal makes Slurm do a minute or two before the limit
    slurm.command("scancel", "--batch", "--signal=USR1", job)
    slurm.wait(job, PATIENCE_S, ["PENDING"])
    kept = rows_of(run)
    assert slurm.wait(job, PATIENCE_S) == "COMPLETED", log_of(tmp_path, "measure", job)
    said = log_of(tmp_path, "measure", job)
    assert said.count(f"calib: error: interrupted; {KEPT}") == 1
    assert "Restarts=1" in slurm.command("scontrol", "show", "job", job)
    assert kept < rows_of(run) and len(cases_done(run)) == 24
    # of MPI's start, by pmi2: one that it does not read may be waited for for ever
    assert "invalid client request" not in (run / LOG_FILE).read_text()


def test_each_task_of_an_array_has_nodes_of_its_own(slurm: SlurmCluster, tmp_path: Path) -> None:
    words = ["--nodes", "2", "--array", "1-2", "--", "probe", "-o", "cluster-{task}.json"]
    job = submit(slurm, scripted(tmp_path, *words))
    for task in ("1", "2"):
        assert slurm.wait(f"{job}_{task}", PATIENCE_S) == "COMPLETED"
    found = [Cluster.read(tmp_path / f"cluster-{task}.json") for task in (1, 2)]
    hosts = [host.name for each in found for host in each.hosts]
    assert sorted(hosts) == ["h0", "h1", "h2", "h3"]
    assert found[0].fingerprint == found[1].fingerprint


@minutes
def test_a_node_that_dies(slurm: SlurmCluster, tmp_path: Path) -> None:
    """One line and exit code 2, long before Slurm gives the node up; the rest is measured elsewhere."""
    run = tmp_path / "run"
    write_plan(run, budget_s=24)
    verb = ["measure", "-o", "run", "--resume", "--hang-seconds", "5"]
    script = scripted(tmp_path, "--nodes", "2", "--", *verb)
    job = submit(slurm, script)
    last = nodes_of(slurm, job)[-1]
    wait_for_cases(run, 2)
    slurm.kill_node(last)
    try:  # completing: Slurm waits for what the dead node ran
        slurm.wait(job, PATIENCE_S, ["COMPLETING", *OVER])
    finally:
        slurm.start_node(last)
    assert slurm.wait(job, PATIENCE_S) == "FAILED", log_of(tmp_path, "measure", job)
    assert "ExitCode=2:0" in slurm.command("scontrol", "show", "job", job)
    said = log_of(tmp_path, "measure", job)
    assert said.splitlines()[-1].startswith("calib: error: ")
    assert said.splitlines()[-1].endswith(KEPT)
    kept = rows_of(run)
    assert kept
    job = submit(slurm, script)
    assert slurm.wait(job, PATIENCE_S) == "COMPLETED", log_of(tmp_path, "measure", job)
    assert kept < rows_of(run) and len(cases_done(run)) == 24


def test_open_mpi_is_started_by_pmix(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Debian's, whose ABI mpi4py's wheel has too (docs of mpi4py: MPI4PY_LIBMPI)."""
    for path, package in ((OPEN_MPI, "libopenmpi3"), (PMIX, "libpmix-dev")):
        if not path.exists():
            pytest.skip(f"no {path} on this machine (Debian: {package})")
    run = tmp_path / "run"
    write_plan(run, budget_s=6, launches=1)
    words = ["--nodes", "2", "--pmi", "pmix", "--", "measure", "-o", "run", "--resume"]
    job = submit(slurm, scripted(tmp_path, *words), MPI4PY_LIBMPI=str(OPEN_MPI), **OF_OPEN_MPI)
    assert slurm.wait(job, PATIENCE_S) == "COMPLETED", log_of(tmp_path, "measure", job)
    assert len(cases_done(run)) == 12
    hosts = Cluster.read(run / CLUSTER_FILE).hosts
    assert len(hosts) == 2 and all("Open MPI v4" in host.versions["mpi"] for host in hosts)


def test_a_pbs_script(slurm: SlurmCluster, cluster: NamespaceCluster, tmp_path: Path) -> None:
    """Debian has no PBS, but Torque's commands for Slurm: qsub, and the nodefile."""
    for program in ("qsub", "generate_pbs_nodefile"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on this machine (Debian: slurm-wlm-torque)")
    run = tmp_path / "run"
    write_plan(run, budget_s=6, launches=1)
    script = tmp_path / "job.pbs"
    script.write_text(PBS.format(python=sys.executable, start=cluster.script))
    job = submit(slurm, script, "qsub")
    assert slurm.wait(job, PATIENCE_S) == "COMPLETED", (run / "ranks.log").read_text()
    assert len(cases_done(run)) == 12
    hosts = [host.name for host in Cluster.read(run / CLUSTER_FILE).hosts]
    assert len(hosts) == 2 and hosts == nodes_of(slurm, job)
