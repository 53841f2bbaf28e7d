"""A calibration whose every cpu is renamed to cuda says the same, but for names.

Ids of cases stay as they are, so that everything comes in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.helpers.made_runs import LAUNCHES, made_run, peaks

from calib.export import TARGETS, target_named
from calib.export.target import ExportRequest, Source
from calib.fitting.fit import fit
from calib.fitting.measured_run import MeasuredRun
from calib.fitting.merging.differences import differences
from calib.fitting.merging.merge import merge
from calib.fitting.parameters import algorithms
from calib.fitting.parameters.file import Parameters, Signed
from calib.fitting.review.review import review
from calib.foundation.division import STRATEGIES
from calib.foundation.errors import InputError, MissingParameter
from calib.microbench.cases import Case, CaseBase, CollectiveCase, InPlaceCase, Plan
from calib.microbench.records.cluster import Cluster, Device, Host, Level
from calib.microbench.records.samples import Samples
from calib.night.cases import Known, chosen, planned_cases
from calib.night.check import checks_of
from calib.night.points import of_calibration, points_of
from calib.oracle.costs.layers import UNPRICED
from calib.oracle.costs.machine import Machine
from calib.oracle.predict import project
from calib.oracle.template import DivisionTemplate
from calib.planning.plan import draft, specs_of
from calib.planning.request import FULL, Request, request_of
from calib.reports.tables.parameters import sections
from calib.training.models.specs import spec

MODEL, RANKS, MEMORY = "cosmoflow-mini", 4, 2**34
NAMES = {"torch_nccl": "torch_mpi", "nccl": "mpi", "cuda": "cpu"}
SOURCE = Source("parameters.json", "sha256:" + "ab" * 32)


@dataclass(frozen=True)
class Calibrated:
    """A calibration: what was asked for, what was measured and what was fitted."""

    request: Request
    run: MeasuredRun
    parameters: Parameters


Both = tuple[Calibrated, Calibrated]


def counted(case: InPlaceCase) -> dict[str, int]:
    """Peaks that are the count, so that a GPU has no workspace beside it."""
    return {"peak_live": case.live_bytes} if peaks(case) else {}


def renamed(case: Case, device: str, library: str) -> Case:
    """The same case on another kind of device."""
    change: dict[str, Any] = {"device": device}
    if isinstance(case, CollectiveCase | InPlaceCase):
        change["library"] = library
    return case.model_copy(update=change)


def on_gpus(run: MeasuredRun, cluster: Cluster) -> MeasuredRun:
    """The same run as of GPUs."""
    table = run.samples.table
    names = table["library"].to_pylist()
    libraries = ["torch_nccl" if name == "torch_mpi" else name for name in names]
    for name, values in {"device": ["cuda"] * len(table), "library": libraries}.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pa.array(values))
    cases = tuple(renamed(case, "cuda", "torch_nccl") for case in run.cases)
    assert run.plan is not None
    plan = run.plan.model_copy(update={"cases": cases})
    return replace(run, samples=Samples(table), plan=plan, cluster=cluster)


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    """The calibration of a CPU, and the same as of GPUs."""

    def cluster(*devices: Device) -> Cluster:
        level = Level(name="node", members=RANKS, link="shared memory")
        host = Host(name="one", kernel="Linux", devices=list(devices))
        return Cluster(name="c", hosts=[host], levels=[level])

    name = "a device"
    cpu = cluster(Device(kind="cpu", name=name, count=RANKS, memory_bytes=RANKS * MEMORY))
    gpu = cluster(*[Device(kind="cuda", name=name, count=1, memory_bytes=MEMORY)] * RANKS)
    content: dict[str, Any] = {"models": (MODEL,), "p": (1, RANKS), "strategies": tuple(STRATEGIES)}
    asked = request_of(FULL, **content).model_copy(update={"sparse": None})
    plan = draft(asked, cpu, specs_of(asked)).plan
    small = tuple(case for case in plan.cases if case.purpose != "what fresh pages cost")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.helpers.made_runs.peaks", counted)
        # what a library does of itself is its own: NCCL has rings and trees, MPI all that there is
        patch.setattr(algorithms, "_NCCL_CHOICES", algorithms._OTHER_CHOICES)
        run = made_run(plan.model_copy(update={"cases": small}), cpu)
        own_id = CaseBase.id.fget  # type: ignore[attr-defined]
        ids = property(lambda case: own_id(renamed(case, "cpu", "torch_mpi")))
        patch.setattr(CaseBase, "id", ids)
        other = on_gpus(run, gpu)
        yield (
            Calibrated(asked, run, fit([run])),
            Calibrated(request_of(FULL, device="cuda", **content), other, fit([other])),
        )


def alike(told: object, both: Both) -> Any:
    """Anything as JSON, with the names of the first calibration."""
    text = json.dumps(told, default=str)
    for name, other in NAMES.items():
        text = text.replace(name, other)
    one, two = (each.parameters.provenance.cluster_fingerprint for each in both)
    return json.loads(text.replace(two, one))


def test_fit(both: Both) -> None:
    """Every law of every section, of which each has some but that of sparse variables."""
    cpu, gpu = (each.parameters.model_dump() for each in both)
    assert (gpu["device_kind"], gpu["device_memory_bytes"]) == ("cuda", MEMORY)
    assert [name for name, value in gpu.items() if value == []] == ["partitions"]
    assert alike(gpu, both) == alike(cpu, both)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("p", [2, RANKS, 16])
def test_predictions(both: Both, strategy: str, p: int) -> None:
    """Times, intervals, memory, limits and notes, with what each rests on."""
    p = p if STRATEGIES[strategy].parallel else 1
    division = DivisionTemplate(strategy).division(p, 8 * p, RANKS, spec(MODEL))
    machines = (Machine(each.parameters) for each in both)
    cpu, gpu = (
        project(spec(MODEL), division, machine, samples=1000, explain=True).model_dump()
        for machine in machines
    )
    # in these runs all peaks are of live tensors
    assert (cpu.pop("live_peak_bytes"), gpu.pop("live_peak_bytes")) == (None, gpu["peak_bytes"])
    if UNPRICED in cpu["notes"]:  # pages are fresh on CPUs alone
        assert UNPRICED not in gpu["notes"]
        assert cpu["total"]["high"] > gpu["total"]["high"]
        return
    assert alike(gpu, both) == alike(cpu, both)


@pytest.mark.parametrize("name", TARGETS)
def test_exports(both: Both, name: str) -> None:
    """The same files, errors of collapse, losses and notes, or the same refusal."""

    def exported(parameters: Parameters) -> object:
        try:
            return asdict(target_named(name).export(ExportRequest(parameters, SOURCE)))
        except (MissingParameter, InputError) as error:
            return str(error)

    cpu, gpu = (exported(each.parameters) for each in both)
    assert alike(gpu, both) == alike(cpu, both)


def test_merged_compared_and_reviewed(both: Both) -> None:
    def told(parameters: Parameters) -> object:
        halves = (
            parameters.model_copy(update={"collectives": []}),
            parameters.model_copy(update={"layers": [], "work": []}),
        )
        files = [
            Signed(half, f"sha256:{number}" + "0" * 63, False, Path(f"{number}.json"))
            for number, half in enumerate(halves)
        ]
        merged = merge(files).parameters
        findings = review(merged, datetime(2026, 11, 25, tzinfo=UTC))
        apart = differences(parameters, merged)
        return [merged.model_dump(), list(map(asdict, findings)), asdict(apart)]

    cpu, gpu = (told(each.parameters) for each in both)
    assert alike(gpu, both) == alike(cpu, both)


def test_one_file_is_of_one_kind(both: Both) -> None:
    files = [
        Signed(each.parameters, f"sha256:{number}", False, Path(f"{number}.json"))
        for number, each in enumerate(both)
    ]
    with pytest.raises(InputError, match=r"0.json is of cpu and 1.json of cuda"):
        merge(files, across=True, prefer="first")
    with pytest.raises(InputError, match="ran on cpu and cuda: fit the runs of each kind"):
        fit([each.run for each in both])


def test_tables(both: Both) -> None:
    """As `calib show` and the pages have them; those of GPUs name no CPU."""
    cpu, gpu = ([asdict(table) for table in sections(each.parameters)] for each in both)
    words = json.dumps(gpu, default=str)
    assert "cpu" not in words.lower() and "torch_mpi" not in words
    assert alike(gpu, both) == alike(cpu, both)


def test_nights(both: Both) -> None:
    """Points, cases of the check, and how the calibration's own rows do in it."""

    def told(each: Calibrated) -> object:
        asked = of_calibration(each.request, RANKS)
        points, _ = points_of(asked, RANKS, "local", each.parameters)
        known = Known(each.parameters)
        cases = chosen(planned_cases(asked, each.run.cluster), points, known)
        plan = Plan(cases=tuple(cases), launches=LAUNCHES, budget_seconds=1.0)
        checks, unchecked = checks_of(plan, each.run.samples, [], known)
        assert {check.kind for check in checks} == {"network", "kernels", "memory"}
        assert not unchecked
        same = [np.isclose(check.expected.value, check.measured.value) for check in checks]
        assert all(same)
        about = [point.label for point in points], [case.id for case in cases]
        return [*about, [check.model_dump() for check in checks]]

    cpu, gpu = map(told, both)
    assert alike(gpu, both) == alike(cpu, both)
