"""Run directories -> Parameters. A pure function: the same samples give the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from calib.fitting.launches import Launches, launch_factors
from calib.fitting.measured_run import MeasuredRun, read_run
from calib.fitting.outliers.logs import without_outliers
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.provenance import Provenance
from calib.fitting.sections.bursts import with_bursts
from calib.fitting.sections.collective_rows import unpacked_note
from calib.fitting.sections.collectives import collective_fits
from calib.fitting.sections.composition import compositions
from calib.fitting.sections.compute import layer_times
from calib.fitting.sections.contention import contentions
from calib.fitting.sections.layers_in_place import with_in_place
from calib.fitting.sections.loops import tensor_loops
from calib.fitting.sections.memory import memory_reuses
from calib.fitting.sections.network import network
from calib.fitting.sections.of_runs import benchmarks_before_runs
from calib.fitting.sections.overlap import overlaps
from calib.fitting.sections.partitions import partitions
from calib.fitting.sections.peaks import device_peaks
from calib.fitting.sections.shared_slopes import with_shared_slopes
from calib.fitting.sections.speed import at_one_speed
from calib.fitting.sections.structural import structural_fits
from calib.fitting.sections.work_laws import work_models
from calib.fitting.sections.work_rows import owners_of
from calib.fitting.undisturbed import undisturbed
from calib.foundation.environment import one_of_each
from calib.foundation.errors import InputError
from calib.foundation.quantities import possible
from calib.foundation.run_files import CLUSTER_FILE
from calib.microbench.cases import Case, InPlaceCase, LayerCase, SparseCase
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.manifest import CaseEnd
from calib.microbench.records.samples import OF_EACH_RANK, Samples

# launches of different runs are told apart by adding this much per run, or more
LAUNCHES_PER_RUN = 1000


def fit_runs(runs: Sequence[Path]) -> Parameters:
    """Fit the samples of one or several runs of the same cluster.

    A run on fewer hosts counts as of the same machine if these equal the largest run's. Warm-up rows
    and oversubscribed rows never feed a parameter. Raises InputError when the runs are of different
    clusters, ran on different kinds of device (cpu, cuda) or in different environments, or nothing is
    left to fit.
    """
    measured = [read_run(run) for run in runs]
    if not measured:
        raise InputError("fit needs at least one run directory")
    _refuse_strangers(runs, measured)
    if len({m.sha256 for m in measured}) < len(measured):
        raise InputError("the same samples are given twice; name each run once")
    with possible("the fit of these runs"):
        return fit(measured)


def whole(measured: Sequence[MeasuredRun]) -> Cluster:
    """The cluster of the run with the most nodes."""
    clusters = [run.cluster for run in measured]
    return max(clusters, key=lambda each: (each.nodes, len(each.hosts), each.ranks_per_node))


def _taken_as_one(measured: Sequence[MeasuredRun]) -> list[str]:
    """A note where runs on different numbers of nodes are taken as of one machine."""
    if len({run.cluster.fingerprint for run in measured}) < 2:
        return []
    nodes = sorted({run.cluster.nodes for run in measured})
    return [
        f"runs on {', '.join(map(str, nodes))} nodes are taken as of one machine: their hosts are equal"
    ]


def _refuse_strangers(runs: Sequence[Path], measured: Sequence[MeasuredRun]) -> None:
    """Raise InputError, with how to join them, where a run is not of the largest one's machine."""
    cluster = whole(measured)
    strangers = [i for i, run in enumerate(measured) if not cluster.has_all_of(run.cluster)]
    if not strangers:
        return
    mine = next(i for i, run in enumerate(measured) if run.cluster is cluster)
    other = strangers[0]
    count = 1 + len({measured[i].cluster.fingerprint for i in strangers})
    how = "fit each by itself"
    if measured[other].manifest.imported or measured[mine].manifest.imported:
        how += (
            "; if they are of one machine, import their logs together, or each with the cluster of "
            f"the run with all its hosts ({runs[mine] / CLUSTER_FILE})"
        )
    raise InputError(
        f"the runs are of {count} different clusters: {runs[mine]} ({cluster.fingerprint}) and "
        f"{runs[other]} ({measured[other].cluster.fingerprint}) differ in "
        f"{cluster.differs_in(measured[other].cluster)}; {how}"
    )


def fit(measured: Sequence[MeasuredRun]) -> Parameters:
    """Fit runs that are in memory. Raises InputError as `fit_runs` does."""
    rows = _together(measured)
    used = rows.usable
    notes = _taken_as_one(measured)
    if count := int(rows["oversubscribed"].sum()):
        notes.append(f"{count} rows of oversubscribed ranks were left out")
    if marked := int(rows.spoiled.sum()) - count:
        notes.append(
            f"{marked} rows were left out: measured under throttling, or on a GPU that others or "
            "several ranks used"
        )
    ends = [end for run in measured for end in run.manifest.cases]
    used, mended = undisturbed(used, ends)
    notes += mended
    used, unlike = without_outliers(used, whole(measured).racks)
    used, of_run = benchmarks_before_runs(used)
    notes += [*unlike, *of_run]
    notes += [
        f"measured with {name}, which is not like the others: what all ranks do together waits for it"
        for name in dict.fromkeys(name for run in measured for name in run.unlike)
    ]
    if not len(used):
        raise InputError(
            "no rows to fit: "
            + (notes[0] if notes else "the runs hold no repetition after the warm-up")
        )
    cases = {case.id: case for run in measured for case in run.cases}
    imported = [run.samples for run in measured if run.manifest.imported]
    logs = {case_id for samples in imported for case_id in samples.distinct("case_id")}
    used, strange = _planned(used, cases, logs)
    notes += strange
    if not len(used):
        raise InputError(f"no rows to fit: {notes[-1]}")
    cluster = whole(measured)
    device = _device(used, cluster)
    layer_cases = {i: case for i, case in cases.items() if isinstance(case, LayerCase)}
    in_place = {i: case for i, case in cases.items() if isinstance(case, InPlaceCase)}
    seed = measured[0].manifest.seed
    launches = [launch for run in measured for launch in run.manifest.launches]
    estimates = {end.case_id: end.estimate_s for end in ends if end.estimate_s is not None}
    channels = {end.case_id: end.channels for end in ends if end.channels}
    used, speed = at_one_speed(used, launches, ends, seed)
    among = Launches.of(used)
    direct, more = collective_fits(used, seed, estimates, channels, among)
    collectives = with_bursts(with_shared_slopes(direct), used, seed)
    contention, crowded = contentions(used, seed, cluster)
    memory, remembered = memory_reuses(ends, in_place, seed)
    overlap, hidden = overlaps(used, in_place, seed, among)
    sparse_cases = {i: case for i, case in cases.items() if isinstance(case, SparseCase)}
    sparse, uncut = partitions(used, sparse_cases, seed, among)
    links, exceeded = network(cluster, collectives)
    structural = structural_fits(collectives, links.links_per_node, links.shared_links)
    named = [words for law in structural for words in law.outlying_words]
    more = [*more, *exceeded, *unpacked_note(used), *named, *crowded, *remembered, *hidden, *uncut]
    alone = layer_times(used, layer_cases, _kernels(ends), _workspace(ends), among)
    loops = tensor_loops(used, seed, in_place, among)
    notes += more + _never_measured(ends)
    return Parameters(
        provenance=Provenance(
            program_version=measured[0].manifest.program_version,
            cluster_name=cluster.name,
            cluster_fingerprint=cluster.fingerprint,
            samples_sha256=[run.sha256 for run in measured],
            measured_from=min((launch.started for launch in launches), default="unknown"),
            measured_until=max((ln.finished or ln.started for ln in launches), default="unknown"),
            seed=seed,
            launches=_launches_made(measured),
            environments=one_of_each(launch.environment for launch in launches),
            notes=notes,
        ),
        **device,
        ranks_per_node=cluster.ranks_per_node,
        **links._asdict(),
        launch_factors=launch_factors(used, among),
        collectives=collectives,
        structural=structural,
        contention=contention,
        peaks=device_peaks(used, layer_cases, among),
        layers=with_in_place(alone, used, in_place, among),
        work=work_models(alone, layer_cases, used, seed, owners_of(in_place.values())),
        tensor_loops=loops,
        composition=compositions(used, in_place, alone, loops, collectives),
        memory=memory,
        overlap=overlap,
        partitions=sparse,
        speed=speed,
    )


def _kernels(ends: Sequence[CaseEnd]) -> dict[str, dict[str, list[str]]]:
    """Case -> operation -> names of kernels, in order; launches may have chosen different ones."""
    found: dict[str, dict[str, list[str]]] = {}
    for end in ends:
        of_case = found.setdefault(end.case_id, {})
        for operation, names in end.kernels.items():
            of_case[operation] = list(dict.fromkeys([*of_case.get(operation, []), *names]))
    return found


def _workspace(ends: Sequence[CaseEnd]) -> dict[str, dict[str, int]]:
    """Case -> operation -> the most bytes that its kernels had for themselves in any launch."""
    found: dict[str, dict[str, int]] = {}
    for end in ends:
        of_case = found.setdefault(end.case_id, {})
        for operation, nbytes in end.workspace.items():
            of_case[operation] = max(nbytes, of_case.get(operation, 0))
    return found


def _never_measured(ends: Sequence[CaseEnd]) -> list[str]:
    """Notes on cases without any repetition: each that failed, and one on those that were skipped."""
    good = {end.case_id for end in ends if end.repetitions}
    never = {end.case_id: end for end in ends if end.case_id not in good}.values()
    skipped = [end for end in never if end.stopped_by.startswith("skipped")]
    notes = [f"{end.label}: {end.stopped_by}" for end in never if end not in skipped]
    if skipped:
        were = "1 case was" if len(skipped) == 1 else f"{len(skipped)} cases were"
        first = skipped[0]
        notes.append(f"{were} not measured, as the first: {first.label}: {first.stopped_by}")
    return notes


def _device(rows: Samples, cluster: Cluster) -> dict[str, Any]:
    """device_kind, device and device_memory_bytes of the parameter file: what the rows ran on.

    Of collectives alone: where all buffers were. Ranks share the memory of a CPU; each has a GPU. Raises
    InputError where layers, passes and iterations ran on both.
    """
    work = rows.where(rows.mask("kind", OF_EACH_RANK.__contains__))
    kinds = (work if len(work) else rows).distinct("device")
    if len(work) and len(kinds) > 1:
        raise InputError(
            f"layers and iterations ran on {' and '.join(kinds)}: fit the runs of each kind of device "
            "apart"
        )
    kind = kinds[0]  # of collectives on both "cpu", which sorts first
    device = next((each for each in cluster.hosts[0].devices if each.kind == kind), None)
    sharers = cluster.ranks_per_node if kind == "cpu" else 1
    return {
        "device_kind": kind,
        "device": device.name if device else "unknown",
        "device_memory_bytes": device.memory_bytes // sharers if device else 0,
    }


def _planned(
    rows: Samples, cases: Mapping[str, Case], logs: Container[str]
) -> tuple[Samples, list[str]]:
    """The rows whose case is in the plan (or in a log), and notes on the others.

    A layer, a model or a sparse variable must be in the plan as such, which says what it consists of.
    """
    known = rows.where(rows.mask("case_id", lambda case: case in cases or case in logs))
    kept = known
    described = {"layer": LayerCase, "in_place": InPlaceCase, "sparse": SparseCase}
    for kind, of in described.items():
        planned = {case_id for case_id, case in cases.items() if isinstance(case, of)}
        others = ~kept.mask("kind", kind.__eq__)
        kept = kept.where(others | kept.mask("case_id", planned.__contains__))
    notes = []
    if count := len(rows) - len(known):
        notes.append(f"{count} rows of cases that are not in the plan were left out")
    if count := len(known) - len(kept):
        notes.append(
            f"{count} rows of layers, models or sparse variables that the plan does not describe: "
            "left out"
        )
    return kept, notes


def _launches_made(measured: Sequence[MeasuredRun]) -> int:
    """Of the number of ranks that has the fewest; of one launch, ranks may be started several times."""
    made = {
        (number, launch.launch, launch.ranks)
        for number, run in enumerate(measured)
        for launch in run.manifest.launches
    }
    return min(Counter(ranks for *_, ranks in made).values(), default=0)


def _together(measured: Sequence[MeasuredRun]) -> Samples:
    """The rows of all runs, the launches of one told apart from those of the runs before it."""
    if len(measured) == 1:
        return measured[0].samples
    tables, offset = [], 0
    for run in measured:
        launch = run.samples["launch"]
        tables.append(run.samples.with_column("launch", launch + offset).table)
        offset += max(LAUNCHES_PER_RUN, 1 + int(max(launch, default=0)))
    return Samples(pa.concat_tables(tables))
