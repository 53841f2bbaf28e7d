"""The short calibration check: a few cases against the stored parameters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from calib.fitting.estimate import slowest_rank, together
from calib.fitting.launches import Launches
from calib.foundation.execution import unusual
from calib.foundation.files import no_link
from calib.foundation.records import Estimate
from calib.foundation.run_files import CLUSTER_FILE, MANIFEST_FILE, PLAN_FILE, SAMPLES_FILE
from calib.foundation.words import bytes_words
from calib.microbench.cases import (
    Case,
    CollectiveCase,
    LayerCase,
    Plan,
    TensorsCase,
    read_plan,
    write_plan,
)
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.looks import DISTURBANCES, Disturbance
from calib.microbench.records.manifest import CaseEnd, Manifest
from calib.microbench.records.parts import consolidate
from calib.microbench.records.samples import NO_SAMPLES, Samples, read_samples
from calib.night.cases import Known
from calib.reports.night import Check
from calib.reports.scoring.accuracy import CheckKind, Missing

LAUNCHES = 2
CheckResult = tuple[list[Check], list[Missing]]


def check_plan(
    cases: Sequence[Case], budget_s: float, seed: int, variables: Mapping[str, str]
) -> Plan:
    """The plan of the check: each case in two launches of the ranks, `budget_s` in all."""
    return Plan(
        cases=tuple(cases),
        launches=LAUNCHES,
        budget_seconds=budget_s,
        seed=seed,
        variables=dict(variables),
    )


def begin(run: Path, plan: Plan, cluster: Cluster) -> None:
    """Write the plan of the check into its directory, unless it is there already."""
    no_link(run)
    if not (run / PLAN_FILE).exists():
        cluster.write(run / CLUSTER_FILE)
        write_plan(run, plan)


def read_checks(run: Path, known: Known) -> CheckResult:
    """The checks that the rows of a check directory give, and the cases without one.

    Whatever ended the measurement, a case counts when each of its launches has rows. Where a launch ran
    in another environment than was calibrated, no case does.
    """
    consolidate(run)
    plan = read_plan(run)
    rows = read_samples(run) if (run / SAMPLES_FILE).exists() else NO_SAMPLES
    manifest = Manifest.read(run) if (run / MANIFEST_FILE).exists() else None
    for launch in manifest.launches if manifest else ():
        calibrated = known.parameters.environment_on(launch.environment.ranks)
        if other := calibrated.differs_in(launch.environment):
            why = f"ran in another environment than was calibrated: {other}"
            return [], [Missing(what="the check", why=why)]
    return checks_of(plan, rows, manifest.cases if manifest else (), known)


def checks_of(plan: Plan, rows: Samples, ends: Iterable[CaseEnd], known: Known) -> CheckResult:
    """Pair every case of the plan with its time in the parameters, in the plan's order."""
    of_case: dict[str, list[Samples]] = defaultdict(list)
    usable = rows.usable
    among = Launches.of(usable)
    for (case_id, _), samples in usable.groups("case_id", "operation").items():
        of_case[case_id].append(samples)
    ends = list(ends)
    reasons = _reasons(plan, rows, ends)
    disturbed = _disturbed(ends)
    checks: list[Check] = []
    unchecked: list[Missing] = []
    for case in {case.id: case for case in plan.cases}.values():
        found = [
            check
            for samples in of_case[case.id]
            if len(samples.distinct("launch")) == plan.launches
            and (check := _check(case, samples, known, among, disturbed[case.id])) is not None
        ]
        checks += found
        if not found:
            unchecked.append(Missing(what=case.label, why=reasons[case.id], kind=kind_of(case)))
    return checks, unchecked


def kind_of(case: Case) -> CheckKind | None:
    """What a case checks."""
    if isinstance(case, CollectiveCase):
        return "network"
    if isinstance(case, LayerCase):
        return "kernels"
    return "memory" if isinstance(case, TensorsCase) else None


def _reasons(plan: Plan, rows: Samples, ends: Iterable[CaseEnd]) -> Mapping[str, str]:
    """Why a case has no time; of no meaning where it has one."""
    ended = {end.case_id: end.stopped_by for end in ends if not end.repetitions}
    spoiled = rows.where(rows.spoiled).groups("case_id")
    launches = Counter(case_id for case_id, _ in rows.groups("case_id", "launch"))

    def reason(case: Case) -> str:
        if (case.id,) in spoiled:
            row = spoiled[case.id,].first
            return "more ranks than cores" if row.oversubscribed else f"marked: {row.marks}"
        if case.id in ended:
            return ended[case.id]
        done = launches[case.id]
        return (
            f"measured in {done} of {plan.launches} launches"
            if done < plan.launches
            else "took no time on the clock, or has no counterpart in the parameters"
        )

    return {case.id: reason(case) for case in plan.cases}


def _disturbed(ends: Sequence[CaseEnd]) -> Mapping[str, list[Disturbance]]:
    """What disturbed a case in any of its launches, in the order in which it is told."""
    found: dict[str, set[Disturbance]] = defaultdict(set)
    for end in ends:
        found[end.case_id].update(end.disturbed)
    told = {case: [word for word in DISTURBANCES if word in of] for case, of in found.items()}
    return defaultdict(list, told)


def _check(
    case: Case, samples: Samples, known: Known, among: Launches, disturbed: list[Disturbance]
) -> Check | None:
    """One operation of a case; None where one of the two has no time on its clock, and so no ratio."""
    first, kind = samples.first, kind_of(case)
    expected: Estimate | None = None
    what = about = ""
    if isinstance(case, CollectiveCase):
        if (fit := known.fit_of(case, first.level)) is not None:
            expected = next(point.seconds for point in fit.points if point.nbytes == first.nbytes)
            what = f"{fit.operation}, {fit.library}, {fit.level}, {fit.placed}"
            about = bytes_words(first.nbytes)
    elif isinstance(case, LayerCase):
        if (stored := known.layer_of(case)) is not None:
            times = {"forward": stored.forward_s, "backward": stored.backward_s}
            expected = times.get(first.operation)
        what = _said(f"{case.layer.name} layers", case.execution, first.active_ranks)
        about = f"{case.key}, {first.operation}"
    elif isinstance(case, TensorsCase):
        expected = known.list_of(case, first.operation)
        what = _said(first.operation.replace("_", " "), case.execution, first.active_ranks)
        # the key tells two lists of the same size apart
        about = f"{first.ntensors} tensors, {bytes_words(first.nbytes)}, {first.key[:8]}"
    measured = (together if kind == "network" else slowest_rank)(samples, among)
    if kind is None or expected is None or expected.value <= 0 or measured.value <= 0:
        return None
    return Check(
        kind=kind, what=what, case=about, expected=expected, measured=measured, disturbed=disturbed
    )


def _said(what: str, execution: str, active_ranks: int) -> str:
    """`conv layers, p=2`; `conv layers, bfloat16, p=2`, which is a series of its own."""
    return ", ".join(filter(None, (what, unusual(execution), f"p={active_ranks}")))
