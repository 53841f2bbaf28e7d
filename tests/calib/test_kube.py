"""The MPIJob: checked field by field; mistakes are told before it is submitted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.cluster.pods import expanded

from calib.commands.kube import LAUNCHER, mpi_job

INT32 = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
# What an MPIJob may say, of kubeflow.org/v2beta1 in the MPI Operator's release 0.6: the fields and
# their types as its API reference lists them, and what its admission checks demand beyond (replicas and
# a restart policy, one launcher). The pod templates are Kubernetes' own: POD_TEMPLATE.
MPI_JOB = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "kubeflow.org/v2beta1"},
        "kind": {"const": "MPIJob"},
        "metadata": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}},
        },
        "spec": {
            "type": "object",
            "required": ["mpiReplicaSpecs", "slotsPerWorker"],
            "additionalProperties": False,
            "properties": {
                "slotsPerWorker": INT32,
                "runLauncherAsWorker": {"type": "boolean"},
                "sshAuthMountPath": {"type": "string", "minLength": 1},
                "launcherCreationPolicy": {"enum": ["AtStartup", "WaitForWorkersReady"]},
                "mpiImplementation": {"enum": ["OpenMPI", "Intel", "MPICH"]},
                "runPolicy": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "cleanPodPolicy": {"enum": ["None", "Running", "All"]},
                        "ttlSecondsAfterFinished": INT32,
                        "activeDeadlineSeconds": {"type": "integer", "minimum": 1},
                        "backoffLimit": INT32,
                        "suspend": {"type": "boolean"},
                        "managedBy": {"type": "string"},
                        "schedulingPolicy": {"type": "object"},
                    },
                },
                "mpiReplicaSpecs": {
                    "type": "object",
                    "required": ["Launcher", "Worker"],
                    "additionalProperties": False,
                    "properties": {
                        name: {
                            "type": "object",
                            "required": ["replicas", "restartPolicy", "template"],
                            "additionalProperties": False,
                            "properties": {
                                "replicas": {**INT32, **bounds},
                                "restartPolicy": {"enum": ["Never", "OnFailure"]},
                                "template": {"type": "object"},
                            },
                        }
                        for name, bounds in (("Launcher", {"const": 1}), ("Worker", {"minimum": 1}))
                    },
                },
            },
        },
    },
}
IN_FULL = (
    "--nodes 2 --ranks-per-node 4 --gpus-per-node 4 --resource memory=64Gi --resource cpu=62 "
    "--resource rdma/hca=1 --time 30 --image registry.local:5000/calib:1 --claim scratch.all"
)


def written(folder: Path, *words: str) -> dict[str, Any]:
    """What `calib kube` writes, read again."""
    done = calib(folder, "kube", "-o", "job.yaml", *words)
    assert done.returncode == 0, done.stderr
    manifest: dict[str, Any] = json.loads((folder / "job.yaml").read_text())
    return manifest


def pods(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The templates of the launcher's pod and of the workers'."""
    replicas = manifest["spec"]["mpiReplicaSpecs"]
    return [replicas[role]["template"] for role in ("Launcher", "Worker")]


def container(manifest: dict[str, Any], role: str) -> dict[str, Any]:
    (found,) = manifest["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("options", ["", IN_FULL])
def test_it_is_an_mpi_job(tmp_path: Path, options: str) -> None:
    Draft202012Validator.check_schema(MPI_JOB)
    manifest = written(tmp_path, *options.split(), "--", "calibrate", "--quick")
    assert list(Draft202012Validator(MPI_JOB).iter_errors(manifest)) == []
    # the check can fail
    manifest["spec"]["mpiImplementation"] = "mpich"
    manifest["spec"]["runPolicy"]["backOffLimit"] = 0
    assert len(list(Draft202012Validator(MPI_JOB).iter_errors(manifest))) == 2


@pytest.mark.parametrize("options", ["", IN_FULL])
def test_its_pods_are_what_kubernetes_knows(tmp_path: Path, options: str) -> None:
    """By the models of Kubernetes' OpenAPI in kubeflow-trainer-api (PyPI, Apache-2.0).

    They drop what they do not know, so a template that comes back whole has no unknown field.
    """
    models = pytest.importorskip("kubeflow_trainer_api.models")
    template_of = models.IoK8sApiCoreV1PodTemplateSpec.from_dict
    for template in pods(written(tmp_path, *options.split(), "--", "probe")):
        assert template_of(template).to_dict() == template
        wrong = json.loads(json.dumps(template).replace("mountPath", "mountpath"))
        assert template_of(wrong).to_dict() != wrong


def test_the_pods_fit_together(tmp_path: Path) -> None:
    """Volumes are those that are mounted; workers are labelled as what keeps them apart asks."""
    manifest = written(tmp_path, *IN_FULL.split(), "--", "calibrate")
    for template in pods(manifest):
        (only,) = template["spec"]["containers"]
        mounted = {mount["name"]: mount["mountPath"] for mount in only["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        assert mounted.keys() == volumes.keys()
        assert volumes["runs"]["persistentVolumeClaim"] == {"claimName": "scratch.all"}
        assert mounted["runs"] == only["workingDir"]
        assert mounted["shared-memory"] == "/dev/shm"
        assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory"}
        assert only["image"] == "registry.local:5000/calib:1"
    launcher, worker = pods(manifest)
    (apart,) = worker["spec"]["affinity"]["podAntiAffinity"].popitem()[1]
    asked = apart["labelSelector"]["matchLabels"].items()
    assert asked <= worker["metadata"]["labels"].items()
    assert not asked <= launcher["metadata"]["labels"].items(), "it may be where a worker is"


def test_what_a_node_is_asked_for(tmp_path: Path) -> None:
    """CPUs have no limit, which would be a quota; devices must have one."""
    wanted = container(written(tmp_path, *IN_FULL.split(), "--", "probe"), "Worker")
    devices = {"memory": "64Gi", "rdma/hca": "1", "nvidia.com/gpu": "4"}
    assert wanted["resources"] == {"requests": {"cpu": "62", **devices}, "limits": devices}
    assert wanted["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    plain = container(written(tmp_path, "--ranks-per-node", "3", "--", "probe"), "Worker")
    assert plain["resources"] == {"requests": {"cpu": "3"}} and "securityContext" not in plain
    gpus = container(written(tmp_path, "--gpus-per-node", "2", "--", "probe"), "Worker")
    assert gpus["resources"]["limits"] == {"nvidia.com/gpu": "2"} and "securityContext" not in gpus


def test_the_launcher_runs_the_verb_on_all_ranks(tmp_path: Path) -> None:
    manifest = written(tmp_path, *IN_FULL.split(), "--", "calibrate", "--name", "a b")
    line = ["calib", "calibrate", "--name", "a b", "--launcher", LAUNCHER, "--ranks", "8"]
    assert container(manifest, "Launcher")["args"] == [*line, "--device", "cuda"]
    assert manifest["spec"]["slotsPerWorker"] == 4
    assert manifest["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 2
    assert manifest["spec"]["runPolicy"]["activeDeadlineSeconds"] == 1800
    # a device that is asked for stays, and training has no such option
    words = ["--gpus-per-node", "1", "--", "probe", "--device", "cpu"]
    assert container(written(tmp_path, *words), "Launcher")["args"][2:4] == ["--device", "cpu"]
    words = ["--gpus-per-node", "1", "--", "measure", "-o", "run", "--resume"]
    assert container(written(tmp_path, *words), "Launcher")["args"][-2:] == ["--launcher", LAUNCHER]
    words = ["--gpus-per-node", "1", "--", "train", "--model", "vgg16-mini", "-p", "1"]
    assert "cuda" not in container(written(tmp_path, *words), "Launcher")["args"]


@given(words=st.lists(st.text(st.sampled_from("$()PODI_ a'\"\\{}é")), max_size=4))
def test_words_come_through_kubernetes(words: list[str]) -> None:
    """By the rule of `expanded`: $(NAME) is put in, $$ is a dollar."""
    manifest = mpi_job(
        "x", [*words, LAUNCHER], nodes=1, slots=1, resources={"requests": {}}, seconds=None, image="i",
        claim="c",
    )  # fmt: skip
    launcher = container(manifest, "Launcher")
    *back, line = [expanded(word, {"POD_IP": "10.1.2.3"}) for word in launcher["args"]]
    assert back == words and " -localhost 10.1.2.3 " in line
    assert "$(cut " in expanded(launcher["command"][2], {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--job-name Wolf", "--job-name 'Wolf' is no label of DNS"),
        ("--job-name 9", "is no label of DNS"),
        (f"--nodes 11 --job-name {'a' * 54}", "is too long"),
        ("--claim a_b", "--claim 'a_b' is no name"),
        ("--resource memory", "--resource 'memory' is no NAME=QUANTITY"),
        ("--resource memory=lots", "is no NAME=QUANTITY"),
        ("--resource gpu=1", "is no NAME=QUANTITY"),
        ("--nodes 0", "--nodes"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(tmp_path: Path, options: str, said: str) -> None:
    assert said in refused(calib(tmp_path, "kube", *options.split(), "--", "probe"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fit", "x"], "is no verb that starts ranks; those are doctor, probe"),
        (["probe", "--launcher", "slurm"], "--launcher is not given after --"),
        (["measure", "--quik"], "No such option"),
        (["probe", "-o", "a\nb"], "line break"),
    ],
)
def test_mistakes_in_the_verb_are_told_now(tmp_path: Path, words: list[str], said: str) -> None:
    assert said in refused(calib(tmp_path, "kube", "--", *words))


def test_an_image_is_one_word(tmp_path: Path) -> None:
    assert "one plain word" in refused(calib(tmp_path, "kube", "--image", "a b", "--", "probe"))
    assert re.search("kubectl create -f job.yaml", calib(tmp_path, "kube", "--", "probe").stderr)
