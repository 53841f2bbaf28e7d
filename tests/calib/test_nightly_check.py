"""The short check of a night: which cases, and what they are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median

import pytest
from tests.calib import nightly_runs
from tests.calib.nightly_runs import here, known_points, parameters_of, seconds_of
from tests.helpers import filled
from tests.helpers.rows import as_samples, rows_of

from calib.fitting.parameters.file import Parameters
from calib.foundation.environment import Environment
from calib.microbench.cases import Case, CollectiveCase, LayerCase, Plan, TensorsCase
from calib.microbench.records.looks import Disturbance
from calib.microbench.records.manifest import CaseEnd, LaunchRecord, Manifest
from calib.microbench.records.samples import Sample
from calib.night.cases import Known, chosen, few, planned_cases
from calib.night.check import begin, check_plan, checks_of, read_checks
from calib.planning.plan import specs_of
from calib.planning.request import Request
from calib.reports.night import Check
from calib.reports.scoring.accuracy import Missing

MODELS = ("cosmoflow-mini", "vgg16-mini")
ASKED = nightly_runs.request(MODELS, (1, 2))
CLUSTER = here(2)


@cache
def parameters() -> Parameters:
    return parameters_of(ASKED, CLUSTER)


def choose(content: Parameters | None = None, asked: Request = ASKED) -> list[Case]:
    known = Known(content or parameters())
    return chosen(planned_cases(asked, CLUSTER), known_points(asked, 2), known)


def allreduces(*sizes: int) -> list[CollectiveCase]:
    return [CollectiveCase(operation="allreduce", nbytes=n, ranks=2, group_size=2) for n in sizes]


@pytest.mark.parametrize(
    ("sizes", "largest_sent", "expected"),
    [
        ((8, 64, 512, 4096), 4096, [8, 64, 4096]),  # 181 B in the middle, by ratio 64 is nearer
        ((8, 64, 512, 4096, 2**25), 5000, [8, 64, 4096]),  # what is longer than sent is left
        ((8, 64, 512, 4096, 2**25), 0, [8, 64, 4096]),
        ((2**20, 2**21), 100, [2**20]),
        ((8, 16), 16, [8, 16]),
        ((8,), 8, [8]),
    ],
)
def test_few_sizes(sizes: Sequence[int], largest_sent: int, expected: list[int]) -> None:
    assert [case.nbytes for case in few(allreduces(*sizes), largest_sent)] == expected
    assert few(allreduces(*sizes)[::-1], largest_sent) == few(allreduces(*sizes), largest_sent)


def test_cases_of_a_calibration() -> None:
    cases = choose()
    assert {case.tier for case in cases} == {0}  # nothing is left out for time
    assert len({case.id for case in cases}) == len(cases)
    sent = [c for c in cases if isinstance(c, CollectiveCase)]
    largest = max(
        4 * sum(layer.shape.parameter_items for layer in spec.layers)
        for spec in specs_of(ASKED).values()
    )
    assert {c.operation for c in sent} == {"allreduce"} and len(sent) == 3
    assert min(c.nbytes for c in sent) == 8 and max(c.nbytes for c in sent) == largest
    for p in (1, 2):
        stored = [t for t in parameters().layers if t.active_ranks == p]
        # what fresh pages cost, and the peaks of the device: of no model
        lone = [t for t in stored if t.batch == 1 or t.key.startswith("linear()|512*512->512|")]
        stored = [t for t in stored if t not in lone]
        stored.sort(key=lambda t: -(t.forward_s.value + t.backward_s.value))
        found = [c.key for c in cases if isinstance(c, LayerCase) and c.ranks == p]
        assert len(lone) == 4 and found == [t.key for t in stored[:6]]
    lists = [c for c in cases if isinstance(c, TensorsCase)]
    assert sorted((c.operation, c.ranks) for c in lists) == [
        ("pack", 2),
        ("pack", 2),
        ("update", 1),
        ("update", 1),
        ("update", 2),
        ("update", 2),
    ]
    # of whole models: 32 tensors of vgg16-mini, 10 of cosmoflow-mini
    assert len({c.key for c in lists}) == 2


def test_executions_are_checked_apart() -> None:
    """The costliest of each, held against the times of its own execution."""
    asked = ASKED.model_copy(update={"executions": ("float32", "bfloat16-mixed"), "p": (1,)})
    content = parameters_of(asked, CLUSTER)
    updates = {x.execution: x.measured for x in content.tensor_loops if x.operation == "update"}
    assert set(updates) == {"float32", "bfloat16-mixed"}
    cases, known = choose(content, asked), Known(content)
    for execution in asked.executions:
        mine = [c for c in cases if getattr(c, "execution", "") == execution]
        assert len([c for c in mine if isinstance(c, LayerCase)]) == 6
        lists = [c for c in mine if isinstance(c, TensorsCase)]
        assert [c.operation for c in lists] == ["update"] * 2
        for case in lists:
            assert known.list_of(case, "update") is updates[execution][case.key]
        for layer in (c for c in mine if isinstance(c, LayerCase)):
            stored = known.layer_of(layer)
            assert stored is not None and stored.key.endswith(
                (execution, f"{execution}|no-input-grad")
            )


def test_what_was_not_measured_is_not_asked_for() -> None:
    whole = parameters()
    first = next(c for c in choose() if isinstance(c, LayerCase))
    less = whole.model_copy(
        update={
            "collectives": [],
            "layers": [t for t in whole.layers if t.key != first.key],
            "tensor_loops": [x for x in whole.tensor_loops if x.operation != "pack"],
        }
    )
    cases = choose(less)
    assert not [c for c in cases if isinstance(c, CollectiveCase)]
    layers = [c for c in cases if isinstance(c, LayerCase)]
    assert len(layers) == 12 and first.key not in {c.key for c in layers}
    assert {c.operation for c in cases if isinstance(c, TensorsCase)} == {"update"}


def test_a_law_of_another_library_or_level_is_not_asked_for() -> None:
    for change in (
        {"library": "mpi"},
        {"level": "system"},
        {"ranks": 4},
        {"operation": "broadcast"},
    ):
        fits = [fit.model_copy(update=change) for fit in parameters().collectives]
        cases = choose(parameters().model_copy(update={"collectives": fits}))
        assert not [c for c in cases if isinstance(c, CollectiveCase)], change


def rows(case: Case, operation: str, launch: int, *ranks: Sequence[float]) -> list[Sample]:
    """Rows of `seconds` of each rank, repetition by repetition, after a warm-up that took long."""
    timed = list(zip(*ranks, strict=True))
    warm = rows_of(case, operation, [[9.0] * len(ranks)], launch=launch, warmup=True)
    return warm + rows_of(
        case,
        operation,
        timed,
        launch=launch,
        warmup=False,
        active_ranks=case.ranks,
        **({"library": "torch_mpi"} if isinstance(case, CollectiveCase) else {}),
    )


def end(
    case: Case,
    launch: int,
    stopped_by: str,
    repetitions: int = 3,
    disturbed: Sequence[Disturbance] = (),
) -> CaseEnd:
    return CaseEnd(
        case_id=case.id,
        launch=launch,
        label=case.label,
        purpose="",
        repetitions=repetitions,
        half_width=None,
        stopped_by=stopped_by,
        elapsed_s=1.0,
        disturbed=list(disturbed),
    )


def check(
    cases: Sequence[Case], measured: Sequence[Sample], ends: Sequence[CaseEnd] = ()
) -> tuple[list[Check], list[Missing]]:
    plan: Plan = check_plan(cases, 60.0, 0, {})
    assert plan.launches == 2
    return checks_of(plan, as_samples(measured), ends, Known(parameters()))


def test_an_allreduce_is_as_slow_as_its_slowest_rank() -> None:
    case = next(c for c in choose() if isinstance(c, CollectiveCase) and c.nbytes > 2**20)
    one, two = [1.0, 3.0, 2.0], [2.0, 2.0, 5.0]  # max of each repetition: 2, 3, 5
    measured = rows(case, "allreduce", 0, one, two) + rows(case, "allreduce", 1, two, one)
    ((found,), missing) = check([case], measured)
    assert not missing
    assert (found.kind, found.what) == ("network", "allreduce, torch_mpi, node, p=2")
    assert found.measured.value == median([2.0, 3.0, 5.0])
    assert found.expected == filled.near(filled.seconds(case.nbytes))
    assert found.case.endswith("MiB") and float(found.case.split()[0]) == pytest.approx(
        case.nbytes / 2**20, abs=0.05
    )


def test_a_layer_is_of_the_slowest_rank_not_of_each_repetition_s() -> None:
    case = next(c for c in choose() if isinstance(c, LayerCase) and c.ranks == 2)
    stored = [
        c for c in planned_cases(ASKED, CLUSTER) if isinstance(c, LayerCase) and c.passes == "whole"
    ]
    slow, other = [1.0, 4.0, 2.0], [3.0, 1.0, 1.0]  # medians 2 and 1; of the maxima it were 3
    measured = [
        row
        for launch in (0, 1)
        for operation, factor in (("forward", 1.0), ("backward", 10.0))
        for row in rows(
            case, operation, launch, [factor * x for x in slow], [factor * x for x in other]
        )
    ]
    checks, missing = check([case], measured)
    assert not missing and len(checks) == 2
    for found, direction, factor, times in zip(
        checks, ("forward", "backward"), (1.0, 10.0), (1, 2), strict=True
    ):
        assert (found.kind, found.what) == ("kernels", f"{case.layer.kind} layers, p=2")
        assert found.case == f"{case.key}, {direction}"
        assert found.measured.value == factor * 2.0
        assert found.expected == filled.near(times * seconds_of(case, len(stored)))


def test_a_layer_in_bfloat16_is_of_a_series_of_its_own() -> None:
    usual = next(c for c in choose() if isinstance(c, LayerCase) and c.ranks == 2)
    case = usual.model_copy(update={"execution": "bfloat16"})
    of = parameters()
    times = [
        time.model_copy(update={"key": case.key}) for time in of.layers if time.key == usual.key
    ]
    both = Known(of.model_copy(update={"layers": [*of.layers, *times]}))
    measured = [
        row for launch in (0, 1) for row in rows(case, "forward", launch, [1.0, 2.0], [1.0, 2.0])
    ]
    ((found,), _) = checks_of(check_plan([case], 60.0, 0, {}), as_samples(measured), (), both)
    assert found.what == f"{case.layer.kind} layers, bfloat16, p=2"
    assert found.case == f"{case.key}, forward" and "|bfloat16" in found.case


def test_packing_is_two_checks_of_memory() -> None:
    case = next(c for c in choose() if isinstance(c, TensorsCase) and c.operation == "pack")
    measured = [
        row
        for launch in (0, 1)
        for operation in ("pack", "unpack")
        for row in rows(case, operation, launch, [0.1, 0.1], [0.2, 0.2])
    ]
    checks, missing = check([case], measured)
    assert not missing
    assert [(c.kind, c.what) for c in checks] == [
        ("memory", "pack, p=2"),
        ("memory", "unpack, p=2"),
    ]
    assert {c.measured.value for c in checks} == {0.2}
    assert all(c.expected == filled.near(seconds_of(case, 10)) for c in checks)
    assert f"{len(case.shapes)} tensors" in checks[0].case


def test_half_of_a_check_is_none() -> None:
    layer, message = (
        next(c for c in choose() if isinstance(c, kind) and c.ranks == 2)
        for kind in (LayerCase, CollectiveCase)
    )
    whole = [
        row for launch in (0, 1) for row in rows(layer, "forward", launch, [1.0] * 3, [1.0] * 3)
    ]
    half = rows(message, "allreduce", 0, [1.0] * 3, [1.0] * 3)
    checks, missing = check([layer, message], whole + half)
    assert [c.kind for c in checks] == ["kernels"]
    assert missing == [
        Missing(what=message.label, why="measured in 1 of 2 launches", kind="network")
    ]
    # why it was not measured is said where the ranks have said it
    _, missing = check(
        [message], half, [end(message, 0, "budget"), end(message, 1, "failed: rank 1 died", 0)]
    )
    assert missing == [Missing(what=message.label, why="failed: rank 1 died", kind="network")]


def test_more_ranks_than_cores_check_nothing() -> None:
    case = next(c for c in choose() if isinstance(c, CollectiveCase))
    measured = [
        replace(row, oversubscribed=True)
        for launch in (0, 1)
        for row in rows(case, "allreduce", launch, [1.0] * 3, [1.0] * 3)
    ]
    checks, missing = check([case], measured)
    assert not checks
    assert missing == [Missing(what=case.label, why="more ranks than cores", kind="network")]


def test_what_is_unchecked_says_of_which_kind_it_is() -> None:
    cases = choose()
    checks, missing = check(cases, [])
    kinds = {CollectiveCase: "network", LayerCase: "kernels", TensorsCase: "memory"}
    assert not checks and [each.kind for each in missing] == [kinds[type(c)] for c in cases]
    assert {each.kind for each in missing} == set(kinds.values())


def test_a_check_in_another_environment_compares_nothing(tmp_path: Path) -> None:
    """The manifest of the check says in which one its ranks ran."""
    here_then = Environment(ranks=2, threads=1, cores=2)
    source = parameters().provenance.model_copy(update={"environments": [here_then]})
    known = Known(parameters().model_copy(update={"provenance": source}))
    cases = [next(c for c in choose() if isinstance(c, CollectiveCase))]
    begin(tmp_path, check_plan(cases, 1.0, 0, {}), CLUSTER)
    manifest = Manifest(
        program_version="",
        cluster_name=CLUSTER.name,
        cluster_fingerprint=CLUSTER.fingerprint,
        seed=0,
        target_half_width=0.1,
        launches=[launch_in(here_then), launch_in(here_then.model_copy(update={"cores": 1}))],
    )
    manifest.write(tmp_path)
    why = "ran in another environment than was calibrated: cores: 2 and 1"
    assert read_checks(tmp_path, known) == ([], [Missing(what="the check", why=why)])
    manifest.launches.pop()
    manifest.write(tmp_path)
    _, (missing,) = read_checks(tmp_path, known)
    assert missing.why == "measured in 0 of 2 launches"


def launch_in(environment: Environment) -> LaunchRecord:
    return LaunchRecord(
        launch=0,
        ranks=2,
        command="",
        started="",
        places=[],
        oversubscribed=False,
        timer={},
        load_average=None,
        environment=environment,
    )


def test_what_disturbed_a_case_in_any_launch() -> None:
    case = next(case for case in choose() if isinstance(case, CollectiveCase))
    measured = [
        row
        for launch in (0, 1)
        for row in rows(case, case.operation, launch, [1e-3] * 3, [1e-3] * 3)
    ]
    ends = [end(case, 0, "interval", disturbed=["slow"]), end(case, 1, "time", disturbed=["cores"])]
    (one,), _ = check([case], measured, ends)
    assert one.disturbed == ["cores", "slow"] and one.disturbed_by_others
    (quiet,), _ = check([case], measured, [end(case, 0, "interval")])
    assert quiet.disturbed == [] and not quiet.disturbed_by_others
