"""Pods of an MPIJob on hosts of namespaces, as Kubernetes and Kubeflow's MPI Operator make them.

A pod has namespaces of its own (network, host name, processes, mounts), a root file system over that of
an image, shared memory and the volumes that its manifest names. The operator's part is what its
controller does for MPICH (kubeflow/mpi-operator 0.6): a hostfile and a key for ssh, mounted where the
manifest says, and variables of the launcher. What is not here: scheduling, limits, DNS (/etc/hosts).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.cluster.namespaces import CannotBuild, NamespaceCluster

ROOT = Path(__file__).parents[2]
# the root file system of an image, such as `buildah mount` prints; else this machine is the image
IMAGE = Path(os.environ.get("CALIB_TEST_IMAGE", "/"))
NAMESPACE = "default"
READY_S = 20.0
START = """\
set -e
mount -t tmpfs tmpfs {pod}
mkdir {pod}/upper {pod}/work {pod}/root
mount -t overlay overlay -o lowerdir={image},upperdir={pod}/upper,workdir={pod}/work {pod}/root
cd {pod}/root
for at in {mounts}; do mkdir -p .$at; mount --rbind $at .$at; done
mount -t proc proc proc
mount --bind {files}/boot_id proc/sys/kernel/random/boot_id
mount -t tmpfs tmpfs dev/shm
mkdir -p .{ssh} etc/mpi .{runs} run/sshd etc/ssh/sshd_config.d etc/ssh/ssh_config.d
mount --bind {volume} .{runs}
cp {shared}/id_rsa {shared}/id_rsa.pub {shared}/authorized_keys .{ssh}
cp {shared}/hostfile etc/mpi
cp {shared}/hosts etc/hosts
cp {containers}/sshd.conf etc/ssh/sshd_config.d/calib.conf
cp {containers}/ssh.conf etc/ssh/ssh_config.d/calib.conf
hostname {name}
exec chroot . /bin/sh -c 'cd "$0" && exec "$@"' {runs} {line}
"""


def expanded(word: str, variables: Mapping[str, str]) -> str:
    """A word of a container's command as Kubernetes reads it: $(NAME) is a variable, $$ a dollar."""
    return re.sub(
        r"\$(?:\$|\((\w+)\))",
        lambda found: "$" if found[1] is None else variables.get(found[1], found[0]),
        word,
    )


class Pods:
    """The workers of an MPIJob, running; `launch` runs its launcher. Use as a context manager.

    Raises CannotBuild where this machine lacks what they need.
    """

    def __init__(
        self, cluster: NamespaceCluster, manifest: dict[str, Any], folder: Path, volume: Path
    ) -> None:
        missing = [name for name in ("sshd", "ssh", "ssh-keygen", "ss") if not shutil.which(name)]
        if missing:
            raise CannotBuild(f"no {', '.join(missing)} on this machine")
        self._cluster, self._folder, self._volume = cluster, folder, volume
        self.name = manifest["metadata"]["name"]
        self._spec = manifest["spec"]
        self._started = ExitStack()
        count = self._spec["mpiReplicaSpecs"]["Worker"]["replicas"]
        self.workers = [f"{self.name}-worker-{number}" for number in range(count)]

    def __enter__(self) -> Pods:
        with ExitStack() as until_ready:
            until_ready.push(self._started)
            self._prepare()
            for number, worker in enumerate(self.workers, start=1):
                self._start(
                    "Worker",
                    worker,
                    f"h{number}",
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                self._wait(f"h{number}")
            until_ready.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._started.__exit__(*error)

    def _prepare(self) -> None:
        """The operator's ConfigMap and Secret, and what DNS would know."""
        service = f"{self.name}-worker.{NAMESPACE}.svc"
        slots = self._spec["slotsPerWorker"]
        hosts = ["127.0.0.1 localhost"]
        for number, worker in enumerate(self.workers, start=1):
            hosts.append(f"{self._cluster.address(f'h{number}')} {worker}.{service} {worker}")
        (self._folder / "hosts").write_text("\n".join(hosts) + "\n")
        (self._folder / "hostfile").write_text(
            "".join(f"{worker}.{service}:{slots}\n" for worker in self.workers)
        )
        key = self._folder / "id_rsa"
        make = [
            "ssh-keygen",
            "-q",
            "-t",
            "ecdsa",
            "-b",
            "521",
            "-m",
            "PEM",
            "-N",
            "",
            "-f",
            str(key),
        ]
        subprocess.run(make, check=True)
        shutil.copy(f"{key}.pub", self._folder / "authorized_keys")

    def _start(self, role: str, name: str, host: str, **streams: Any) -> subprocess.Popen[str]:
        """A pod on a host; it ends with this process, or with the context."""
        template = self._spec["mpiReplicaSpecs"][role]["template"]["spec"]
        container = template["containers"][0]
        claims = {
            volume["name"] for volume in template["volumes"] if "persistentVolumeClaim" in volume
        }
        (runs,) = (
            mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in claims
        )
        address = self._cluster.address(host)
        fields = {"status.podIP": address}
        variables = {
            of["name"]: fields[of["valueFrom"]["fieldRef"]["fieldPath"]]
            for of in container.get("env", ())
        }
        words = [
            expanded(word, variables) for word in container["command"] + container.get("args", [])
        ]
        files = self._folder / name
        (files / "pod").mkdir(parents=True)
        (files / "boot_id").write_text(f"{len(name):08d}-0000-4000-8000-0000000000{host[1:]:>02}\n")
        script = START.format(
            pod=files / "pod",
            image=IMAGE,
            mounts=" ".join(mounts()),
            files=files,
            shared=self._folder,
            ssh=self._spec["sshAuthMountPath"],
            runs=runs,
            volume=self._volume,
            containers=ROOT / "containers",
            name=name,
            line=shlex.join(words),
        )
        # of the image, or of the set-up that runs the tests
        binaries = "/opt/calib/bin" if Path("/") != IMAGE else Path(sys.executable).parent
        environment = {
            "PATH": f"{binaries}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            **({} if Path("/") != IMAGE else of_set_up()),
            **variables,
        }
        if role == "Launcher":
            environment["HYDRA_HOST_FILE"] = "/etc/mpi/hostfile"
            environment["HYDRA_LAUNCH_EXTRA_ARGS"] = "-o ConnectionAttempts=10"
        alone = ["unshare", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child"]
        line = ["ip", "netns", "exec", self._cluster.prefix + host, *alone, "sh", "-c", script]
        pod = subprocess.Popen(
            line, env=environment, text=True, stdin=subprocess.DEVNULL, **streams
        )
        self._started.callback(pod.wait)
        self._started.callback(pod.kill)
        return pod

    def _wait(self, host: str) -> None:
        """Until the worker's readiness probe finds its port open."""
        template = self._spec["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
        port = template["containers"][0]["readinessProbe"]["tcpSocket"]["port"]
        ask = [
            "ip",
            "netns",
            "exec",
            self._cluster.prefix + host,
            "ss",
            "-Hltn",
            f"sport = :{port}",
        ]
        end = time.monotonic() + READY_S
        while not subprocess.run(ask, capture_output=True, check=False).stdout:
            if time.monotonic() > end:
                raise CannotBuild(f"no sshd listens in the pod on {host}")
            time.sleep(0.05)

    def launch(self, timeout_s: float) -> tuple[int, str]:
        """Exit code and output of the launcher."""
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        launcher = self._start("Launcher", f"{self.name}-launcher", "h0", **streams)
        said, _ = launcher.communicate(timeout=timeout_s)
        return launcher.returncode, said


def of_set_up() -> dict[str, str]:
    """What a process needs to import calib as this one does."""
    return {name: os.environ[name] for name in ("PYTHONPATH", "CALIB_CACHE") if name in os.environ}


def mounts() -> list[str]:
    """Other file systems of this machine that a pod sees: of an image, devices and the kernel's."""
    wanted = ["/dev", "/sys"]
    if Path("/") == IMAGE:
        points = {
            Path(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()
        }
        tops = {point.parts[1] for point in points if len(point.parts) > 1} - {"proc", "dev", "sys"}
        wanted += sorted(f"/{top}" for top in tops if Path("/", top) in points)
    return wanted
