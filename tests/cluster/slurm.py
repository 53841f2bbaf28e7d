"""A Slurm cluster inside one machine: slurmctld beside the switch, a slurmd on each namespace host.

Everything that the daemons read and write is in one folder of their own, with a key for munge of their
own; their ports are those of their hosts. So clusters of several test runs, and a Slurm that the machine
may belong to, do not meet.

Found by trying (Slurm 22.05, Linux 6.18): `ip netns exec` mounts a /sys of its own, without cgroups, and
slurmd refuses to start; nsenter and unshare leave it. slurmd and slurmctld take their names from the
host name, which each has by itself (a UTS namespace).
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from tests.cluster.namespaces import HOSTS, OWN_BOOT, PREFIX, CannotBuild, NamespaceCluster

CONTROLLER = "switch"
TEMPORARY = Path("/tmp")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "nsenter")
START_S = 60.0
LOOK_S = 0.1
# each host's own: in /tmp, which they share, those of PMIx for one step would be the same
OWN_TEMPORARY = "mount --bind {folder}/tmp-$host {folder}/tmp; "
# what a job's state begins with once nothing more will come of it
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE")

CONF = """\
ClusterName=calib
SlurmctldHost={controller}(10.0.0.254)
SlurmUser=root
AuthType=auth/munge
# a job waits so long (s) before it starts again
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout={dead_s}
SlurmctldTimeout=60
MessageTimeout=5
KillWait=10
MinJobAge=300
CompleteWait=0
OverTimeLimit=0
RebootProgram=/bin/true
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP OverSubscribe=NO
"""


class SlurmCluster:
    """slurmctld and one slurmd for each host of a NamespaceCluster. A context manager.

    Raises CannotBuild where a program is missing or a daemon does not start; stops and removes all at
    the end. Each host is a machine of its own to the ranks. Slurm gives a node up that
    is silent for `dead_s` seconds (by default its own default), and requeues the job.
    """

    def __init__(self, hosts: NamespaceCluster, dead_s: int = 300) -> None:
        self._hosts, self._dead_s = hosts, dead_s
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.folder = TEMPORARY / "not made yet"

    def __enter__(self) -> SlurmCluster:
        missing = [name for name in PROGRAMS if not _found(name)]
        if missing:
            raise CannotBuild(f"no {', '.join(missing)} on this machine (Debian: slurm-wlm, munge)")
        # not pytest's folders: a socket's path has 107 characters at most
        remove_abandoned()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-slurm-", dir=TEMPORARY))
        try:
            self._configure()
            self._start_munge()
            self._start(CONTROLLER, "slurmctld", "-D", "-i")
            for host in HOSTS:
                self.start_node(host)
            self._wait_until(self._all_idle, "not all nodes are idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _configure(self) -> None:
        nodes = "\n".join(
            f"NodeName={host} NodeAddr=10.0.0.{number} CPUs=2 State=UNKNOWN"
            for number, host in enumerate(HOSTS, start=1)
        )
        text = CONF.format(
            controller=CONTROLLER, folder=self.folder, nodes=nodes, dead_s=self._dead_s
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\nCgroupAutomount=no\n")
        (self.folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={self.folder}/tmp\n")
        for name in ("state", "tmp"):
            (self.folder / name).mkdir()
        for host in HOSTS:
            (self.folder / f"tmp-{host}").mkdir()
            (self.folder / f"boot-{host}").write_text(f"{uuid.uuid4()}\n")

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        files = {name: self.folder / f"munge.{name}" for name in ("socket", "pid", "seed", "log")}
        names = {"socket": "socket", "pid": "pid-file", "seed": "seed-file", "log": "log-file"}
        options = [f"--{names[name]}={path}" for name, path in files.items()]
        # --force: it is root's, and in a folder that nobody else can look into
        line = [_found("munged"), "--foreground", "--force", f"--key-file={key}", *options]
        self._daemons["munge"] = self._popen("munge", [*_inside(self._hosts.switch), *line])
        self._wait_until(files["socket"].exists, "munged does not listen")

    def start_node(self, host: str) -> None:
        """Start the slurmd of a host, also once more."""
        self._start(host, "slurmd", "-D")

    def _start(self, host: str, program: str, *options: str) -> None:
        namespace = self._hosts.switch if host == CONTROLLER else self._hosts.prefix + host
        own = "" if host == CONTROLLER else (OWN_BOOT + OWN_TEMPORARY).format(folder=self.folder)
        words = f"host={host}; {own}hostname $host; exec {_found(program)} {' '.join(options)}"
        line = [*_inside(namespace), "unshare", "--uts", "--mount", "sh", "-c", words]
        self._daemons[host] = self._popen(host, line)

    def _popen(self, name: str, line: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.out").open("ab") as out:
            return subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")},
                start_new_session=True,
            )

    def _all_idle(self) -> bool:
        states = self.command("sinfo", "-h", "-N", "-o", "%T", check=False).split()
        return len(states) == len(HOSTS) and set(states) == {"idle"}

    def _wait_until(self, done: Callable[[], bool], otherwise: str) -> None:
        until = monotonic() + START_S
        while not done():
            for name, daemon in self._daemons.items():
                if daemon.poll() is not None:
                    raise CannotBuild(f"{name} ended: {self.log_of(name)}")
            if monotonic() > until:
                raise CannotBuild(f"{otherwise} after {START_S:.0f} s; {self.log_of(HOSTS[0])}")
            sleep(LOOK_S)

    def log_of(self, name: str) -> str:
        """The last lines that a daemon has written, in one."""
        paths = (self.folder / f"{name}.out", self.folder / f"slurmd-{name}.log")
        text = "".join(path.read_text(errors="replace") for path in paths if path.exists())
        return " | ".join(text.splitlines()[-5:])

    def environment(self, **more: str) -> dict[str, str]:
        """What a program on the login node (the controller's) has in its environment."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), **more}

    def command(
        self,
        *words: str,
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> str:
        """What a command prints that is typed on the login node."""
        done = subprocess.run(
            [*_inside(self._hosts.switch), *words],
            cwd=folder,
            env=self.environment(**(variables or {})),
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def state(self, job: str) -> str:
        """The state of a job, as squeue spells it out: PENDING, RUNNING, COMPLETED, ..."""
        return self.command("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()

    def wait(self, job: str, timeout_s: float, until: Sequence[str] = OVER) -> str:
        """Wait until the job is in one of these states; returns which."""
        end = monotonic() + timeout_s
        while (state := self.state(job)) not in until:
            if monotonic() > end:
                raise AssertionError(f"job {job} is {state} after {timeout_s:.0f} s")
            sleep(LOOK_S)
        return state

    def kill_node(self, host: str) -> None:
        """A node loses its power: all of its processes end at once."""
        for process in self._processes(host):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._daemons.pop(host).wait()

    def _processes(self, host: str) -> list[int]:
        done = subprocess.run(
            ["ip", "netns", "pids", self._hosts.prefix + host],
            capture_output=True,
            text=True,
            check=False,
        )
        return [int(word) for word in done.stdout.split()]

    def __exit__(self, *_: object) -> None:
        for host in HOSTS:  # with what jobs have left there
            for process in self._processes(host):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        for daemon in self._daemons.values():
            with suppress(ProcessLookupError):
                daemon.kill()
            daemon.wait()
        self._daemons.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def _found(program: str) -> str | None:
    """A program on PATH, or in the folders of daemons, which are not on everybody's."""
    return shutil.which(program) or shutil.which(program, path="/usr/local/sbin:/usr/sbin:/sbin")


def _inside(namespace: str) -> list[str]:
    return ["nsenter", f"--net=/run/netns/{namespace}"]


def remove_abandoned() -> None:
    """Delete the folders of test processes that were killed; their namespaces had the daemons."""
    for folder in TEMPORARY.glob(f"{PREFIX}*-slurm-*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)
