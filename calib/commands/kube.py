"""Write a Kubernetes MPIJob that runs another verb.

Example: calib kube -o job.yaml --nodes 2 --ranks-per-node 4 -- calibrate --name wolf
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from calib.foundation.errors import InputError
from calib.foundation.files import destination, write_whole
from calib.jobs import rank_words
from calib.options import MOST
from calib.terminal.printing import file_of, json_text, say

# the MPI Operator's v2beta1: hosts and their slots, as MPICH reads them
HOSTFILE = "/etc/mpi/hostfile"
# Workers reach the launcher by its address, which the pod is told: DNS may not know its name yet
LAUNCHER = f"mpiexec -f {HOSTFILE} -localhost $(POD_IP) -n {{n}}"
# a worker that is ready is known to DNS a moment later
WAIT = f"""\
until getent hosts $(cut -d: -f1 {HOSTFILE}) >/dev/null; do
  echo "waiting until DNS knows the workers" >&2
  sleep 1
done
exec "$@"
"""
RUNS = "/runs"
SSH_PORT = 22
GPUS = "nvidia.com/gpu"
LONGEST_LABEL = 63
# DNS-1035 labels, DNS-1123 subdomains, qualified names, quantities; Kubernetes is a little stricter
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(r"(?!.{254})[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
RESOURCE = re.compile(
    r"cpu|memory|ephemeral-storage|hugepages-\w+|[a-z0-9][-.a-z0-9]*/[\w.-]{1,63}", re.ASCII
)
QUANTITY = re.compile(r"[0-9]{1,15}(\.[0-9]{1,3})?(m|[kMGTPE]|[KMGTPE]i)?", re.ASCII)


def command(
    words: Annotated[
        list[str], typer.Argument(help="After --: the verb to run there, with its options.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The manifest.")] = Path(
        "job.yaml"
    ),
    nodes: Annotated[int, typer.Option(min=1, max=MOST, help="Nodes.")] = 1,
    ranks_per_node: Annotated[
        int, typer.Option(min=1, max=MOST, help="Ranks on each: its cores or GPUs.")
    ] = 1,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="GPUs of each node (nvidia.com/gpu).")
    ] = None,
    resource: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=QUANTITY",
            help="What else a node's pod asks for: cpu=62, memory=200Gi, rdma/hca=1; repeatable. "
            "CPUs are as many as ranks by default.",
        ),
    ] = None,
    minutes: Annotated[
        int | None, typer.Option("--time", min=1, max=MOST, help="Minutes; default no limit.")
    ] = None,
    image: Annotated[
        str, typer.Option(help="Image of containers/Containerfile, where the nodes pull it.")
    ] = "calib",
    claim: Annotated[
        str,
        typer.Option(
            help="PersistentVolumeClaim that all nodes mount (ReadWriteMany): the directory to run in."
        ),
    ] = "calib-runs",
    name: Annotated[
        str | None, typer.Option("--job-name", help="Name of the MPIJob; default calib-VERB.")
    ] = None,
) -> None:
    verb, *arguments = words
    line = rank_words(
        verb,
        arguments,
        LAUNCHER,
        nodes * ranks_per_node,
        command="kube",
        # the launcher's pod, where the verb runs, has no GPU to find
        device=None if gpus_per_node is None else "cuda",
    )
    wanted = resources(resource or (), ranks_per_node, gpus_per_node)
    manifest = mpi_job(
        checked_name(name or f"calib-{verb}", nodes),
        ["calib", *line],
        nodes=nodes,
        slots=ranks_per_node,
        resources=wanted,
        seconds=None if minutes is None else minutes * 60,
        image=_word("--image", image),
        claim=_matching("--claim", claim, SUBDOMAIN, "no name that Kubernetes takes"),
    )
    # JSON is YAML, and no text of a user has to be quoted by hand
    write_whole(destination(file_of(output, "-o")), json_text(manifest) + "\n")
    job = manifest["metadata"]["name"]
    say(
        f"written: {output}; start it: kubectl create -f {output}; "
        f"follow it: kubectl logs -f job/{job}-launcher"
    )


def checked_name(name: str, nodes: int) -> str:
    """A name for the MPIJob whose pods' names are labels of DNS. Raises InputError."""
    _matching("--job-name", name, LABEL, "no label of DNS: a letter, then a-z, 0-9 and -")
    if len(last := f"{name}-worker-{nodes - 1}") > LONGEST_LABEL:
        raise InputError(
            f"--job-name {name!r} is too long: the pod {last} would have over 63 letters"
        )
    return name


def resources(asked: Sequence[str], ranks: int, gpus: int | None) -> dict[str, dict[str, str]]:
    """Requests and limits of a worker, by the NAME=QUANTITY that are asked for.

    CPUs are requested and not limited, because a limit is a quota by which Linux stops all ranks for
    the rest of a tenth of a second. Raises InputError.
    """
    wanted = {"cpu": str(ranks)}
    for text in asked:
        name, _, quantity = text.partition("=")
        if not RESOURCE.fullmatch(name) or not QUANTITY.fullmatch(quantity):
            raise InputError(f"--resource {text!r} is no NAME=QUANTITY such as memory=200Gi")
        wanted[name] = quantity
    if gpus is not None:
        wanted[GPUS] = str(gpus)
    limits = {name: quantity for name, quantity in wanted.items() if name != "cpu"}
    return {"requests": wanted, **({"limits": limits} if limits else {})}


def mpi_job(
    name: str,
    line: Sequence[str],
    *,
    nodes: int,
    slots: int,
    resources: dict[str, dict[str, str]],
    seconds: int | None,
    image: str,
    claim: str,
) -> dict[str, Any]:
    """The MPIJob, as Kubeflow's MPI Operator reads it (kubeflow.org/v2beta1, since 0.6).

    One pod, the launcher, runs `line`; its mpiexec starts the ranks by ssh in `nodes` others, the
    workers, no two of them on one node. `line` is what its container is given: $(POD_IP) is put in by
    Kubernetes in LAUNCHER and in nothing else.
    """
    labels = {"app.kubernetes.io/name": "calib", "app.kubernetes.io/instance": name}
    of_workers = {**labels, "app.kubernetes.io/component": "worker"}
    launcher = {
        **_container("launcher", image),
        "command": ["/bin/sh", "-c", _literal(WAIT), "sh"],
        "args": [word if word == LAUNCHER else _literal(word) for word in line],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "resources": {"requests": {"cpu": "1"}},
    }
    worker = {
        **_container("worker", image),
        "command": ["/usr/sbin/sshd", "-De"],
        "resources": resources,
        "readinessProbe": {"tcpSocket": {"port": SSH_PORT}},
    }
    if any("/" in resource and resource != GPUS for resource in resources["requests"]):
        # network adapters register memory with the card, beyond the limit that a pod has
        worker["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": of_workers}}
    policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": 0}
    if seconds is not None:
        policy["activeDeadlineSeconds"] = seconds
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "slotsPerWorker": slots,
            "mpiImplementation": "MPICH",
            "sshAuthMountPath": "/root/.ssh",
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": policy,
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, labels, launcher, claim),
                "Worker": _replicas(
                    nodes,
                    of_workers,
                    worker,
                    claim,
                    {
                        "podAntiAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": [apart]
                        }
                    },
                ),
            },
        },
    }


def _container(name: str, image: str) -> dict[str, Any]:
    """What both containers have: the directory that all see, and shared memory for the ranks."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "workingDir": RUNS,
        "volumeMounts": [
            {"name": "runs", "mountPath": RUNS},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }


def _replicas(
    count: int,
    labels: dict[str, str],
    container: dict[str, Any],
    claim: str,
    affinity: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """So many pods with one container; a pod that ends is not started again."""
    spec: dict[str, Any] = {
        "containers": [container],
        "volumes": [
            {"name": "runs", "persistentVolumeClaim": {"claimName": claim}},
            # containers have 64 MiB of it by default, too little for MPI and NCCL
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    if affinity is not None:
        spec["affinity"] = affinity
    return {
        "replicas": count,
        "restartPolicy": "Never",
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }


def _literal(word: str) -> str:
    """A word in which Kubernetes finds no $(VARIABLE) to put in."""
    return word.replace("$", "$$")


def _word(option: str, text: str) -> str:
    if not text or not text.isprintable() or " " in text:
        raise InputError(f"{option} {text!r} is not one plain word")
    return text


def _matching(option: str, text: str, pattern: re.Pattern[str], otherwise: str) -> str:
    if pattern.fullmatch(text) is None:
        raise InputError(f"{option} {text!r} is {otherwise}")
    return text
