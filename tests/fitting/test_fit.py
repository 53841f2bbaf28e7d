"""fit(): a pure function of rows; marked rows feed nothing; runs are merged only where they may be."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.divided import model_case
from tests.helpers.rows import as_samples, constant, rows_of, table_of
from tests.helpers.runs import cluster, end, linear, write_content
from tests.microbench.importers import logs as made

from calib.fitting.fit import LAUNCHES_PER_RUN, fit, fit_runs
from calib.fitting.measured_run import MeasuredRun
from calib.fitting.parameters.file import Parameters
from calib.foundation.environment import Environment
from calib.foundation.errors import FileError, InputError
from calib.foundation.run_files import CLUSTER_FILE, PLAN_FILE, SAMPLES_FILE
from calib.microbench.cases import Case, CollectiveCase, LayerCase, Plan, TensorsCase
from calib.microbench.importers import read_file
from calib.microbench.importers.machine import cluster_of
from calib.microbench.importers.machine import write_run as write_run_of_logs
from calib.microbench.importers.said import Flags
from calib.microbench.records.cluster import Cluster, Device, Host, levels_of
from calib.microbench.records.manifest import ImportedFile, LaunchRecord, Manifest, RankPlace
from calib.microbench.records.parts import write_part
from calib.microbench.records.samples import Sample

ROOT = Path(__file__).resolve().parents[2]


LAYERS = [
    LayerCase(ranks=2, layer=linear(n, m), batch=8)
    for n, m in ((4, 8), (64, 3), (30, 30), (2, 90), (200, 200))
]
MESSAGES = [
    CollectiveCase(ranks=2, group_size=2, operation="allreduce", nbytes=8 * 16**k) for k in range(5)
]
TENSORS = [
    TensorsCase(ranks=2, operation="pack", key=f"k{n}", shapes=((n,),) * n) for n in (1, 5, 20, 60)
]
MODELS = [
    model_case(
        f"m{n}",
        layer_keys=tuple(c.key for c in LAYERS[: n + 2]),
        activation_bytes=10**n,
        tensors_key="k5",
        gradient_bytes=4096,
    )
    for n in range(3)
]
CASES: list[Case] = [*LAYERS, *MESSAGES, *TENSORS, *MODELS]


def rows(seed: int = 0, launches: Sequence[int] = (0, 1)) -> list[Sample]:
    """Lognormal repetitions of every case on two ranks; three are warm-up, a thousand times as long."""
    generator = np.random.default_rng(seed)
    found: list[Sample] = []
    for launch in launches:
        for index, case in enumerate(CASES):
            operations = {
                "layer": ["forward", "backward"],
                "collective": ["allreduce"],
                "tensors": ["pack", "unpack"],
                "in_place": ["forward", "backward", "exchange"],
            }[case.kind]
            for operation in operations:
                times = (
                    1e-5 * (index + 1) * np.exp(0.05 * generator.standard_normal((11, 2)))
                ).tolist()
                times[:3] = [[1e3 * t for t in row] for row in times[:3]]
                for row in rows_of(case, operation, times, launch=launch):
                    found.append(replace(row, warmup=row.repetition < 3))
    return found


def manifest(of: Cluster, seed: int = 7) -> Manifest:
    launches = [
        LaunchRecord(
            launch=n,
            ranks=2,
            command="c",
            started=f"2026-11-03T10:0{n}:00+00:00",
            finished=f"2026-11-03T10:0{n}:30+00:00",
            places=[RankPlace(host="h", cores=[c]) for c in (0, 1)],
            oversubscribed=False,
            timer={},
            load_average=None,
        )
        for n in range(2)
    ]
    return Manifest(
        program_version="0.1.0",
        cluster_name=of.name,
        cluster_fingerprint=of.fingerprint,
        seed=seed,
        target_half_width=0.025,
        launches=launches,
    )


def run(
    samples: list[Sample], of: Cluster | None = None, cases: Sequence[Case] = CASES
) -> MeasuredRun:
    of = of or cluster()
    plan = Plan(cases=tuple(cases), budget_seconds=1.0)
    return MeasuredRun(as_samples(samples), plan, of, manifest(of), sha256="ab" * 32)


def write_run(path: Path, samples: list[Sample], of: Cluster | None = None) -> Path:
    """A run directory of these rows."""
    return write_content(path, run(samples, of))


def fitted_bytes(*runs: MeasuredRun) -> str:
    return fit(list(runs)).model_dump_json()


def without_provenance(parameters: Parameters) -> dict[str, object]:
    return {k: v for k, v in parameters.model_dump().items() if k != "provenance"}


def test_everything_that_was_measured_is_fitted() -> None:
    found = fit([run(rows())])
    assert [f.operation for f in found.collectives] == ["allreduce"]
    assert {time.key for time in found.layers} == {case.key for case in LAYERS}
    assert {(m.kind, m.direction) for m in found.work} == {
        ("linear", "forward"),
        ("linear", "backward"),
    }
    assert [loop.operation for loop in found.tensor_loops] == ["pack", "unpack"]
    assert [law.phase for law in found.composition] == ["backward", "exchange", "forward"]
    assert (found.device, found.device_memory_bytes) == ("Some CPU", 2**33)
    assert found.ranks_per_node == 2
    about = found.provenance
    assert (about.cluster_name, about.cluster_fingerprint) == ("one", cluster().fingerprint)
    assert (about.seed, about.samples_sha256, about.notes) == (7, ["ab" * 32], [])
    assert about.measured_from == "2026-11-03T10:00:00+00:00"
    assert about.measured_until == "2026-11-03T10:01:30+00:00"


def test_the_same_rows_give_the_same_bytes() -> None:
    assert fitted_bytes(run(rows())) == fitted_bytes(run(rows()))
    assert fitted_bytes(run(rows())) != fitted_bytes(run(rows(seed=1)))


@pytest.mark.parametrize("seed", range(3))
def test_rows_in_another_order_give_the_same_bytes(seed: int) -> None:
    shuffled, cases = rows(), list(CASES)
    random.Random(seed).shuffle(shuffled)
    random.Random(seed).shuffle(cases)
    assert fitted_bytes(run(shuffled, cases=cases)) == fitted_bytes(run(rows()))


def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    """With another hash seed, so that no set or dict order can show."""
    directory = write_run(tmp_path / "run", rows())
    digests = []
    for seed in ("1", "2"):
        out = tmp_path / f"parameters-{seed}.json"
        code = (
            "import sys; from pathlib import Path; from calib.fitting.fit import fit_runs; "
            "fit_runs([Path(sys.argv[1])]).write(Path(sys.argv[2]))"
        )
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [sys.executable, "-c", code, str(directory), str(out)],
            check=True,
            env=environment,
            cwd=tmp_path,
            timeout=120,
        )
        digests.append(hashlib.sha256(out.read_bytes()).hexdigest())
    assert digests[0] == digests[1]
    fit_runs([directory]).write(tmp_path / "parameters-here.json")
    assert (
        hashlib.sha256((tmp_path / "parameters-here.json").read_bytes()).hexdigest() == digests[0]
    )


def test_a_file_that_is_read_again_gives_the_same_predictions(tmp_path: Path) -> None:
    found = fit([run(rows())])
    found.write(tmp_path / "parameters.json")
    assert Parameters.read(tmp_path / "parameters.json") == found


def test_warm_up_rows_feed_nothing() -> None:
    """rows() has warm-ups a thousand times as long: without them, all but nothing changes."""
    clean = [row for row in rows() if not row.warmup]
    assert fitted_bytes(run(clean)) == fitted_bytes(run(rows()))


def test_oversubscribed_rows_feed_nothing_and_are_noted() -> None:
    spoiled = [
        replace(
            row,
            oversubscribed=True,
            seconds=1e3 * row.seconds,
            launch=5,
            rank_seconds=[1e3 * s for s in row.rank_seconds],
        )
        for row in rows(seed=3)
    ]
    found = fit([run(rows() + spoiled)])
    assert without_provenance(found) == without_provenance(fit([run(rows())]))
    assert found.provenance.notes == [f"{len(spoiled)} rows of oversubscribed ranks were left out"]
    with pytest.raises(InputError, match=f"no rows to fit: {len(spoiled)} rows of oversubscribed"):
        fit([run(spoiled)])


def test_warm_up_alone_is_nothing_to_fit() -> None:
    warm = [row for row in rows() if row.warmup]
    with pytest.raises(InputError, match="no repetition after the warm-up"):
        fit([run(warm)])
    with pytest.raises(InputError, match="no rows to fit"):
        fit([run([])])
    with pytest.raises(InputError, match="at least one run"):
        fit_runs([])


def test_cases_that_failed_are_noted() -> None:
    measured = run(rows())
    failed = {"repetitions": 0, "half_width": None, "stopped_by": "failed: wrong result on rank 1"}
    measured.manifest.cases.append(end("x", label="p2p 8 B on 2 ranks", **failed))
    said = ["p2p 8 B on 2 ranks: failed: wrong result on rank 1"]
    assert fit([measured]).provenance.notes == said
    # one that was repeated is not
    measured.manifest.cases.extend([end(LAYERS[0].id, **failed), end(LAYERS[0].id)])
    assert fit([measured]).provenance.notes == said


def test_a_collective_of_one_size_is_noted() -> None:
    measured = run(constant(MESSAGES[0], "allreduce", 1.0))
    assert "a line needs two" in fit([measured]).provenance.notes[0]


def test_launches_of_two_runs_are_kept_apart() -> None:
    """Both runs have a launch 0: sixty repetitions of 1 s, and eight of 2 s.

    In one launch, the median would be 1 and its interval [1, 1].
    """
    case = LAYERS[0]
    one = run(constant(case, "forward", 1.0, repetitions=60))
    two = run(constant(case, "forward", 2.0, repetitions=8))
    (time,) = fit([one, two]).layers
    assert time.forward_s.value == pytest.approx(2.0**0.5)
    assert time.forward_s.low < 1.0 and time.forward_s.high > 2.0
    assert time.n == 68
    assert LAUNCHES_PER_RUN > 100


def test_runs_of_one_cluster_are_merged(tmp_path: Path) -> None:
    """Equal machines of other names; two runs of one launch each are one run of two launches."""
    first = write_run(tmp_path / "1", rows(0, [0]), cluster(name="one"))
    second = write_run(tmp_path / "2", rows(1, [0]), cluster(name="two"))
    merged = fit_runs([first, second])
    assert len(merged.provenance.samples_sha256) == len(set(merged.provenance.samples_sha256)) == 2
    together = rows(0, [0]) + [replace(row, launch=LAUNCHES_PER_RUN) for row in rows(1, [0])]
    assert without_provenance(merged) == without_provenance(fit([run(together)]))
    assert without_provenance(merged) != without_provenance(fit_runs([first]))


def test_runs_of_two_clusters_are_refused(tmp_path: Path) -> None:
    first = write_run(tmp_path / "1", rows())
    second = write_run(tmp_path / "2", rows(), cluster(kernel="Linux 6.2"))
    with pytest.raises(InputError, match="of 2 different clusters") as caught:
        fit_runs([first, second])
    for of in (cluster(), cluster(kernel="Linux 6.2")):
        assert of.fingerprint in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert "differ in kernel: " in str(caught.value) and "--cluster" not in str(caught.value)


def nodes(count: int, device: str = "Some GPU", members: int = 4) -> Cluster:
    """So many equal hosts, of names that no other has."""
    gpus = [Device(kind="cuda", name=device, count=1, memory_bytes=0)] * members
    hosts = [Host(name=f"{count}-{i}", kernel="unknown", devices=gpus) for i in range(count)]
    return Cluster(name="logs", hosts=hosts, levels=levels_of(hosts, members))


def test_jobs_on_other_hosts_of_one_machine_are_fitted_together(tmp_path: Path) -> None:
    """Two nodes and four: the file is of the larger, whichever run comes first, and says so."""
    small = write_run(tmp_path / "2", rows(0, [0]), nodes(2))
    large = write_run(tmp_path / "4", rows(1, [0]), nodes(4))
    for runs in ([small, large], [large, small]):
        found = fit_runs(runs)
        assert (found.nodes, found.ranks_per_node) == (4, 4)
        assert found.provenance.cluster_fingerprint == nodes(4).fingerprint
        assert found.provenance.notes[0] == (
            "runs on 2, 4 nodes are taken as of one machine: their hosts are equal"
        )


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (nodes(2, "Another GPU"), "devices: Some GPU and Another GPU"),
        (nodes(2, members=1), "ranks of a node: 4 and 1"),
        (nodes(2, "unknown"), "devices: Some GPU and unknown"),
    ],
)
def test_jobs_of_other_machines_are_not(tmp_path: Path, other: Cluster, words: str) -> None:
    large = write_run(tmp_path / "4", rows(1, [0]), nodes(4))
    with pytest.raises(InputError, match="of 2 different clusters") as caught:
        fit_runs([write_run(tmp_path / "2", rows(0, [0]), other), large])
    assert words in str(caught.value)


def test_hosts_that_no_log_names_are_not_recognised(tmp_path: Path) -> None:
    """Logs of two machines look alike then; of the same shape they are fitted as before."""
    one, two = (
        write_run(tmp_path / str(k), rows(k, [0]), nodes(2 + 2 * k, "unknown")) for k in (0, 1)
    )
    with pytest.raises(InputError, match="different clusters"):
        fit_runs([one, two])


def test_logs_of_one_machine_are_joined_by_its_cluster_file(tmp_path: Path) -> None:
    """As the refusal says: `calib import --cluster` of the run with all hosts."""
    runs, logs = {}, {}
    for each in (1, 4):
        factor = 2 * (2 * each - 1) / (2 * each)
        times = [(m, 50 + m / 1e4) for m in (1 << 20, 1 << 21, 1 << 22)]
        table = "".join(made.row(m, micros, factor) + "\n" for m, micros in times)
        logs[each] = tmp_path / f"{each}.txt"
        logs[each].write_text(made.start(ranks=2 * each, nodes=2) + made.HEADER + table)
        runs[each] = import_log(tmp_path / f"run{each}", logs[each])
    with pytest.raises(InputError, match="ranks of a node: 4 and 1") as caught:
        fit_runs([runs[1], runs[4]])
    file = runs[4] / CLUSTER_FILE
    assert str(file) in str(caught.value)
    joined = import_log(tmp_path / "joined", logs[1], Cluster.read(file))
    assert [fit.placed for fit in fit_runs([joined, runs[4]]).collectives] == [
        "p=2 on 2 nodes",
        "p=8 on 2 nodes",
    ]


def import_log(run: Path, path: Path, known: Cluster | None = None) -> Path:
    record, found = read_file(path, Flags())
    write_run_of_logs(run, [record], [found], known or cluster_of([found], "logs"), "test")
    return run


def test_an_interrupted_run_is_fitted_from_its_parts(tmp_path: Path) -> None:
    whole = write_run(tmp_path / "whole", rows())
    broken = write_run(tmp_path / "broken", rows())
    (broken / SAMPLES_FILE).unlink()
    parts: dict[tuple[str, int], list[Sample]] = {}
    for row in rows():
        parts.setdefault((row.case_id, row.launch), []).append(row)
    for (case_id, launch), content in parts.items():
        write_part(broken, end(case_id, launch=launch), table_of(content))
    assert without_provenance(fit_runs([broken])) == without_provenance(fit_runs([whole]))


@pytest.mark.parametrize("name", [PLAN_FILE, CLUSTER_FILE, "manifest.json", SAMPLES_FILE])
@pytest.mark.parametrize("damage", ["remove", "truncate", "empty list"])
def test_a_damaged_run_is_one_line(tmp_path: Path, name: str, damage: str) -> None:
    directory = write_run(tmp_path / "run", rows(0, [0]))
    path = directory / name
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(b"[]" if damage == "empty list" else path.read_bytes()[:40])
    with pytest.raises(FileError) as caught:
        fit_runs([directory])
    assert len(str(caught.value).splitlines()) == 1 and str(directory) in str(caught.value)


def test_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"does not exist$"):
        fit_runs([tmp_path / "missing"])
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="does not exist: it is a file"):
        fit_runs([tmp_path / "file"])
    with pytest.raises(FileError, match="is no run directory: it holds no samples"):
        fit_runs([tmp_path])
    with pytest.raises(FileError, match="does not exist"):
        fit_runs([tmp_path / ("x" * 300)])


def test_a_run_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", rows())
    with pytest.raises(InputError, match="the same samples are given twice"):
        fit_runs([directory, directory])


# a run directory that was edited by hand


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("manifest.json", {"seed": -5}, r"manifest\.json: seed: .*greater than or equal to 0"),
        (PLAN_FILE, {"launches": 0}, "launches: "),
    ],
)
def test_an_edited_number_names_the_field(
    tmp_path: Path, name: str, changes: dict[str, int], message: str
) -> None:
    directory = write_run(tmp_path / "run", rows(0, [0]))
    content = json.loads((directory / name).read_text())
    (directory / name).write_text(json.dumps({**content, **changes}))
    with pytest.raises(FileError, match=message):
        fit_runs([directory])


def test_an_edited_row_names_the_column(tmp_path: Path) -> None:
    spoilt = [replace(row, seconds=-1.0) if row.launch else row for row in rows()]
    with pytest.raises(FileError, match=r"column seconds is wrong in .* rows, first in row"):
        fit_runs([write_run(tmp_path / "run", spoilt)])


@pytest.mark.parametrize("kind", ["layer", "in_place", "sparse"])
def test_a_row_of_another_kind_than_the_plan_says_is_left_out(kind: str) -> None:
    """The plan knows no layer, model or sparse variable of these cases."""
    whole = rows()
    strange = [replace(row, kind=kind) for row in whole if row.kind == "collective"]
    used = sum(not row.warmup for row in strange)
    found = fit([run([*whole, *strange])])
    note = f"{used} rows of layers, models or sparse variables that the plan does not describe: left out"
    assert found.provenance.notes == [note]
    assert without_provenance(found) == without_provenance(fit([run(whole)]))
    with pytest.raises(InputError, match=f"no rows to fit: {note}"):
        fit([run(strange)])


@pytest.mark.parametrize("kind", ["layer", "in_place"])
def test_an_imported_run_has_no_layers(kind: str) -> None:
    measured = run([replace(row, kind=kind) for row in rows()])
    log = ImportedFile(name="log", sha256="", tool="t", rows=1)
    of = measured.manifest.model_copy(update={"imported": [log]})
    with pytest.raises(InputError, match=r"no rows to fit: .* that the plan does not describe"):
        fit([replace(measured, plan=None, manifest=of)])


def test_a_layer_without_a_forward_pass_gives_no_time() -> None:
    whole = rows()
    first = LAYERS[0].id
    left = [row for row in whole if (row.case_id, row.operation) != (first, "forward")]
    keys = {time.key for time in fit([run(left)]).layers}
    assert keys == {case.key for case in LAYERS[1:]}


def test_a_cluster_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", rows(0, [0]))
    path = directory / CLUSTER_FILE
    content = json.loads(path.read_text())
    content["hosts"][0]["devices"][0]["memory_bytes"] = 10**400
    path.write_text(json.dumps(content))
    with pytest.raises(FileError, match="memory_bytes: must be less") as caught:
        fit_runs([directory])
    assert len(str(caught.value).splitlines()) == 1
    content["hosts"][0]["devices"] = []
    path.write_text(json.dumps(content))
    found = fit_runs([directory])
    assert (found.device_kind, found.device, found.device_memory_bytes) == ("cpu", "unknown", 0)


def in_environments(first: Environment, second: Environment) -> MeasuredRun:
    measured = run(rows())
    for launch, environment in zip(measured.manifest.launches, (first, second), strict=True):
        launch.environment = environment
    return measured


def test_parameters_say_in_which_environment_they_were_measured() -> None:
    one, two = (Environment(ranks=n, threads=2 // n, cores=2, allocator="a") for n in (1, 2))
    assert fit([in_environments(two, one)]).provenance.environments == [one, two]
    assert fit([run(rows())]).provenance.environments == []
    other = two.model_copy(update={"variables": {"UCX_TLS": "shm"}})
    with pytest.raises(InputError, match=r"launches of 2 ranks .*: UCX_TLS: not set and shm; "):
        fit([in_environments(two, other)])
