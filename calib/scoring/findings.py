"""Run directories -> Findings: score, record, look for drift, write the report."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from calib.foundation.errors import CalibError, FileError, InputError
from calib.foundation.files import sha256_of, write_json, write_whole
from calib.foundation.garbage import rare_collections
from calib.foundation.run_files import CHECK, REPORT_JSON, SAMPLES_FILE
from calib.microbench.records.manifest import Manifest
from calib.microbench.records.samples import NO_SAMPLES, Samples, read_samples
from calib.oracle.layout.shards import rank_shards
from calib.reports.drift.judge import drift
from calib.reports.drift.records import Drift
from calib.reports.drift.verdict import verdict
from calib.reports.figures.machine_speed import Watched
from calib.reports.findings import Findings
from calib.reports.history.records import Past
from calib.reports.history.store import History
from calib.reports.page.report import ReportData, render
from calib.reports.scoring.accuracy import Missing
from calib.reports.scoring.causes import causes
from calib.reports.scoring.choice import choices
from calib.reports.scoring.layer_pairs import LayerPair, layer_pairs
from calib.reports.scoring.paper import paper_rows
from calib.reports.scoring.summary import summary
from calib.reports.writers.json import as_dict
from calib.rundir import history_beside
from calib.scoring.run import ScoredRun, scored
from calib.terminal.progress import Bar
from calib.training.models.specs import spec

LEAST_ACCURACY = 0.8
FEW_RUNS = 10


@dataclass(frozen=True)
class Report:
    """What run directories say, the directories (the newest one last), and its layers in place."""

    findings: Findings
    found: list[ScoredRun]
    layers: list[LayerPair]

    def write(self, page: Path) -> None:
        """The page, with fits and layers of the newest run's parameters, and report.json beside it."""
        newest = self.found[-1]
        data = ReportData(
            findings=self.findings,
            parameters=newest.parameters,
            cluster=newest.cluster,
            calibrated_on=newest.calibrated_on,
            samples=samples_of(newest, "collective"),
            layers=self.layers,
            layer_keys=layer_keys(newest),
            watched=[*launches_of(newest), *newest.watched],
        )
        write_whole(page, render(data))
        write_json(page.with_name(REPORT_JSON), as_dict(self.findings))


@rare_collections()
def report_of(
    runs: Sequence[Path],
    history: str | None = None,
    *,
    record: bool = True,
    since: str = "",
    baseline: str = "",
    least_accuracy: float = LEAST_ACCURACY,
    parameters_file: Path | None = None,
) -> Report:
    """Score run directories, the oldest first, and judge their machine's history.

    `history` is a URL or a file, by default calib.db beside the newest run; with `record` the runs are
    remembered there first. A history that cannot be written is said in the notes. Raises what
    `scored` does, and InputError for runs that are named twice.
    """
    found = _scored(runs, parameters_file)
    _refuse_twice(found)
    accuracies = [accuracy for each in found for accuracy in each.accuracies]
    missing = [missing for each in found for missing in missing_of(each, several=len(found) > 1)]
    notes = [note for each in found for note in each.notes]
    past, unkept = remembered(found, history, record)
    drift = _drift(past, since, baseline)
    short = summary(accuracies)
    newest = found[-1]
    # where the samples of the calibration are at hand
    layers = layer_pairs(
        newest.parameters, samples_of(newest, "in_place"), partial(spec, run=newest.path)
    )
    findings = Findings(
        runs=[each.entry.run for each in found],
        accuracies=accuracies,
        summary=short,
        missing=missing,
        checks=newest.entry.checks,
        causes=causes(accuracies, layers),
        choices=choices(accuracies),
        paper=paper_rows(short),
        past=past,
        drift=drift,
        verdict=verdict(
            short, [*lacking(newest), *unkept], drift, least_accuracy, newest.entry.checks
        ),
        notes=[*notes, *(one.line for one in unkept)],
    )
    return Report(findings, found, layers)


def _scored(runs: Sequence[Path], parameters_file: Path | None) -> list[ScoredRun]:
    """The runs by their start, with a progress bar for many: a year takes half a minute."""
    found = []
    with Bar("score", len(runs)) if len(runs) > FEW_RUNS else nullcontext() as bar:
        for done, run in enumerate(runs, start=1):
            found.append(scored(run, parameters_file))
            if bar is not None:
                bar.update(done, "")
    return sorted(found, key=lambda x: x.entry.started)


def missing_of(run: ScoredRun, several: bool) -> list[Missing]:
    """What the run lacks; with its name where there are several."""
    if not several:
        return run.entry.missing
    name = run.entry.run
    return [x.model_copy(update={"what": f"{name}: {x.what}"}) for x in run.entry.missing]


def lacking(run: ScoredRun) -> list[Missing]:
    """What leaves the verdict open: missing trainings, and kinds of checks without any result."""
    if run.night is None:
        return run.missing
    made = {check.kind for check in run.night.checks}
    absent: dict[str, Missing] = {}
    for case in run.night.unchecked:
        if case.kind not in made and (case.kind or not made):
            absent.setdefault(f"the check of {case.kind}" if case.kind else "the check", case)
    return run.missing + [
        Missing(what=check, why=f"{case.what}: {case.why}") for check, case in absent.items()
    ]


def _refuse_twice(found: Sequence[ScoredRun]) -> None:
    seen: dict[str, Path] = {}
    for each in found:
        if each.entry.id in seen:
            raise InputError(f"{each.path} and {seen[each.entry.id]} are the same run")
        seen[each.entry.id] = each.path


def remembered(
    found: Sequence[ScoredRun], history: str | None, record: bool
) -> tuple[Past | None, list[Missing]]:
    """The history of the newest run's machine, with these runs in it, and why they are not.

    A history that was named must work; the default one is read as it is where it cannot be written.
    """
    newest = found[-1]
    where = history or history_beside(newest.path)
    if not record and history is None and not Path(where).exists():
        return None, []
    try:
        with History.open(where, read_only=not record) as store:
            for each in found if record else ():
                store.record(each.entry)
            return store.past(newest.entry.machine), []
    except CalibError as error:
        if history is not None:
            raise
        unkept = [Missing(what="not remembered", why=str(error))]
    with suppress(CalibError), History.open(where, read_only=True) as store:
        return store.past(newest.entry.machine), unkept
    return None, unkept


def _drift(past: Past | None, since: str, baseline: str) -> Drift | None:
    if past is None:
        if since or baseline:
            raise InputError("--since and --baseline are of a history, and there is none")
        return None
    return drift(past, since=since, baseline=baseline)


def samples_of(run: ScoredRun, kind: str) -> Samples:
    """The samples that the parameters were fitted from, of this run or a night's calibration.

    Empty where they are not at hand, or were measured again since.
    """
    places = [run.path, *([Path(run.night.calibration)] if run.night else [])]
    for place in places:
        with suppress(FileError, OSError, UnicodeError):
            if sha256_of(place / SAMPLES_FILE) in run.parameters.provenance.samples_sha256:
                return read_samples(place, kind=kind)
    return NO_SAMPLES


def launches_of(run: ScoredRun) -> list[Watched]:
    """The looks at the machine while this run measured, or a night checked."""
    found = []
    for place in (run.path, run.path / CHECK):
        with suppress(FileError):
            found += [
                Watched(f"launch {launch.launch}", launch.ranks, launch.looks)
                for launch in Manifest.read(place).launches
                if launch.looks
            ]
    return found


def layer_keys(run: ScoredRun) -> frozenset[str]:
    """The keys of the layers, or of their parts, that the ranks of the trainings ran."""
    keys: set[str] = set()
    for head in run.headers:
        with suppress(CalibError):  # of a model or an execution that is not known here
            shards = rank_shards(spec(head.model, run.path), head.division)
            keys.update(x.layer.key(x.batch, head.execution, x.needs_input_grad) for x in shards)
    return frozenset(keys)
