"""A run directory as pandas tables: `calib.open_run("runs/latest")`, for notebooks.

docs/notebook.md has examples. A column of seconds ends in _s, one of bytes in _B. Only this module
(and calib/notebook_collectives.py) imports pandas; `calib/__init__.py` imports it when it is used.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from calib.export.csv_table import RENAMED as CSV_NAMES
from calib.export.csv_table import every_row, value_and_ends
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.halos import HALO
from calib.fitting.parameters.measured_passes import measured_passes
from calib.fitting.parameters.measured_sizes import measured_sizes
from calib.foundation.collectives import Operation, bus_factor
from calib.foundation.errors import CalibWarning, InputError
from calib.foundation.execution import USUAL
from calib.foundation.own import Loss
from calib.foundation.records import Estimate
from calib.foundation.run_files import (
    CLUSTER_FILE,
    HISTORY_FILE,
    PARAMETERS_FILE,
    PREDICTIONS_FILE,
    SAMPLES_FILE,
)
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.manifest import Manifest
from calib.microbench.records.parts import consolidate
from calib.microbench.records.samples import MOST, check_rows, read_run_table
from calib.options import numbers
from calib.oracle.costs.collective_laws import HIERARCHICAL
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.traffic import Message
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predicted import Predicted
from calib.oracle.projection import Form, Projection
from calib.predicting.choices import batches, templates
from calib.predicting.predictor import Predictor, parameters_of
from calib.predicting.rows import COLUMNS as PREDICTED_COLUMNS
from calib.predicting.rows import row_of
from calib.reports.drift.judge import drift
from calib.reports.drift.trend import trend
from calib.reports.history.address import address
from calib.reports.history.store import History
from calib.reports.writers import csv as accuracy_table
from calib.reports.writers import history as history_table
from calib.rundir import RUNS, existing
from calib.scoring.run import ScoredRun, scored
from calib.training.models.specs import spec
from calib.training.run.lines import TIMED_PHASES

# whole numbers from 1: one, several, or text as `calib predict -p` takes it: "4:64", "2:10:+4"
Numbers = ArrayLike
# columns of files, where the name has no unit or not as here
RENAMED = {
    "seconds": "time_s",
    "skew_seconds": "skew_s",
    "late_seconds": "late_s",
    "host_seconds": "host_s",
    "rank_seconds": "rank_times_s",
    "nbytes": "size_B",
    "bytes_per_rank": "naive_B",
    **{f"{name}_bytes_per_s": f"{name}_B_per_s" for name in ("algbw", "busbw", "measured_busbw")},
    **dict(zip(Estimate.columns("peak", "bytes"), Estimate.columns("peak", "B"), strict=True)),
}
TIMES = ("time_s", "low_s", "high_s")
BANDWIDTHS = ("algbw_B_per_s", "busbw_B_per_s")
WHOLE = ("ranks", "nodes", "stride", "active_ranks", "batch", "part", "n")  # of parameters()
QUANTITIES = ("total", "at_speed", *TIMED_PHASES, "memory")


def open_run(path: str | Path = RUNS / "latest") -> Run:
    """Open a run directory, finished or not.

    Parameters
    ----------
    path
        The directory. A link such as runs/latest is followed now, not later.

    Returns
    -------
    Run
        Its tables are read when they are asked for.

    Raises
    ------
    FileError
        There is no such directory.

    Examples
    --------
    >>> run = calib.open_run("runs/latest")
    >>> run.accuracy()[["model", "strategy", "p", "predicted_s", "measured_s", "accuracy"]]
    """
    return Run(existing(Path(path)).resolve())


@dataclass(frozen=True)
class Run:
    """A run directory: its files as tables, its records, and what its parameters predict.

    Parameters and scores are read once; after `calib fit` or `calib train`, open the run again.
    """

    path: Path

    @property
    def cluster(self) -> Cluster:
        """The machine (cluster.json)."""
        return Cluster.read(self.path / CLUSTER_FILE)

    @property
    def manifest(self) -> Manifest:
        """What ran where, and how each case ended (manifest.json)."""
        return Manifest.read(self.path)

    @cached_property
    def parameters_record(self) -> Parameters:
        """What `parameters` has as a table (parameters.json)."""
        return Parameters.read(self.path / PARAMETERS_FILE)

    @cached_property
    def scored(self) -> ScoredRun:
        """What `accuracy` has as a table, with what is missing, and notes."""
        return scored(self.path)

    @cached_property
    def _network(self) -> CollectiveCosts:
        return CollectiveCosts(self.parameters_record)

    def samples(self) -> pd.DataFrame:
        """Every repetition that was measured, warm-up ones too.

        Cases that an interrupted run has finished are merged into samples.parquet first.

        Returns
        -------
        DataFrame
            The columns of docs/schemas/samples.schema.json. `time_s` is per call, the maximum over
            ranks; `rank_times_s` has a list for each row, which stays in Arrow (`.list[0]` is the
            first rank's).

        Raises
        ------
        FileError
            No sample was measured here, or the file is damaged.
        """
        consolidate(self.path)
        table = read_run_table(self.path)
        check_rows(self.path / SAMPLES_FILE, table)
        lists = table.schema.field("rank_seconds").type
        in_arrow = {lists: pd.ArrowDtype(lists)}
        return table.to_pandas(types_mapper=in_arrow.get).rename(columns=RENAMED)

    def parameters(self) -> pd.DataFrame:
        """Every number of the fitted laws with its 95% interval: the rows of `calib export --to csv`.

        Returns
        -------
        DataFrame
            `value`, `low95` and `high95` are in `unit`; the law holds `from` a size `to` another, in
            `range_unit`. docs/exporting.md has the other columns. Numbers below 0, which the CSV
            leaves out, are here.
        """
        table = pd.DataFrame(every_row(self.parameters_record)).rename(columns=CSV_NAMES)
        known = table.dropna(subset=["value", "low95", "high95"], how="all")
        return known.astype(dict.fromkeys(WHOLE, "Int64")).reset_index(drop=True)

    def collective_sizes(self) -> pd.DataFrame:
        """Every measured size of every fitted collective: its time, the law's, and its bandwidths.

        Returns
        -------
        DataFrame
            `time_s` is the median of a call with its 95% interval (`low_s`, `high_s`), `law_s` what
            the law says, `outlier` whether no law explains the size. `algbw_B_per_s` and
            `busbw_B_per_s` are nccl-tests' (its GB/s is 1e9 B/s); NaN where it has no definition.
        """
        names = ("operation", "library", "device", "level", "p", "nodes", "size_B")
        rows = [
            (
                *(of.operation, of.library, of.device, of.level, of.ranks, of.nodes or None),
                *(of.nbytes, *value_and_ends(of.seconds), of.law_seconds, of.outlier, of.n),
                *(x and x.value for x in (of.algbw_bytes_per_s, of.busbw_bytes_per_s)),
            )
            for fit in self.parameters_record.collectives
            for of in measured_sizes(fit)
        ]
        table = frame(rows, (*names, *TIMES, "law_s", "outlier", "n", *BANDWIDTHS))
        return table.astype({"nodes": "Int64", **dict.fromkeys((*TIMES, *BANDWIDTHS), float)})

    def layers(self) -> pd.DataFrame:
        """Every pass of every measured layer, the slowest first, beside the device's peaks.

        Returns
        -------
        DataFrame
            `time_s` is the median of a call with its 95% interval (`low_s`, `high_s`); `flops` and
            `size_B` are the fewest that the pass needs, `intensity` their ratio (flop/B), `flops_per_s`
            and `bytes_per_s` what it achieves. `peak_share` is the least time by the device's peaks over
            the time, `bound` which peak that is; `kernels` are the names of a GPU's kernels and
            `workspace_B` what they had for themselves.
        """
        names = ("key", "kind", "batch", "execution", "active_ranks", "direction")
        work = ("flops", "size_B", "intensity", "flops_per_s", "bytes_per_s", "peak_share")
        rows = [
            (
                *(of.key, of.kind, of.batch, of.execution, of.active_ranks, of.direction),
                *(*value_and_ends(of.seconds), of.n, of.flops, of.nbytes, of.intensity),
                *(x and x.value for x in (of.flops_per_s, of.bytes_per_s)),
                *(of.peak_share, of.bound, of.kernels, of.workspace_bytes),
            )
            for of in measured_passes(self.parameters_record)
        ]
        table = frame(rows, (*names, *TIMES, "n", *work, "bound", "kernels", "workspace_B"))
        return table.astype(dict.fromkeys((*TIMES, *work, "workspace_B"), float))

    def predictions(self) -> pd.DataFrame:
        """What was predicted before the training (predictions.json), a row per point.

        Returns
        -------
        DataFrame
            As `predict` returns it.
        """
        found, edited = Predicted.read(self.path / PREDICTIONS_FILE)
        if edited:
            warnings.warn(f"{PREDICTIONS_FILE} was edited: {edited}", CalibWarning, stacklevel=2)
        return _projections(found.projections)

    def accuracy(self, of: str = "total") -> pd.DataFrame:
        """Predicted against measured, a row per point; the history stays as it is.

        Parameters
        ----------
        of
            "total" (an iteration), "at_speed" (the same at the speed of the calibration), "memory" (the
            peak of a rank), or a phase such as "forward".

        Returns
        -------
        DataFrame
            `predicted_s` and `measured_s` with the ends of their 95% intervals (`predicted_low_s`,
            ...; of memory in _B), `accuracy` = 1 - |predicted - measured| / measured, and `covered`:
            whether what was measured lies in the predicted interval. `counts` is False where ranks
            shared cores. A point without this quantity has no row; `scored.missing` has points
            without a score.
        """
        if of not in QUANTITIES:
            raise InputError(f"there is no accuracy of {of!r}; known: {', '.join(QUANTITIES)}")
        names = accuracy_table.COLUMNS
        table = frame(accuracy_table.rows_of(self.scored.accuracies), names)
        unit = "B" if of == "memory" else "s"
        times = [name for name in names if name.startswith(("predicted", "measured"))]
        chosen = table[table.of == of].drop(columns=["of", "unit"]).reset_index(drop=True)
        return chosen.astype(dict.fromkeys(times, float)).rename(
            columns={name: f"{name}_{unit}" for name in times}
        )

    def history(self, where: str | Path | None = None) -> pd.DataFrame:
        """How accuracy went on this run's machine, a row per night, the oldest first.

        Parameters
        ----------
        where
            A file or the URL of a database; default calib.db beside the run directory.

        Returns
        -------
        DataFrame
            The columns of `calib history --csv`; accuracies are from 0 to 1.

        Raises
        ------
        FileError
            There is no history.
        InputError
            It holds no night of this machine.
        """
        place = str(where or self.path.parent / HISTORY_FILE)
        with History.open(place, read_only=True) as store:
            past = store.past(self.cluster.machine)
        if not past.nights:
            raise InputError(
                f"the history {address(place).label} holds no night of this machine; "
                f"`calib report {self.path}` adds one"
            )
        nights = trend(past)
        rows = history_table.rows_of(nights, drift(past))
        return frame(rows, history_table.columns_of(nights))

    def predict(
        self,
        model: str | ModelSpec | Any,
        strategy: str | Sequence[str] = "all",
        p: Numbers = 1,
        *,
        batch_per_rank: Numbers | None = None,
        batch: Numbers | None = None,
        inner: Numbers | None = None,
        segments: Numbers | None = None,
        overlap: bool = False,
        sharded_optimizer: bool = False,
        sequence_parallel: bool = False,
        optimizer: str = "momentum",
        execution: str = USUAL,
        form: Form = "measured",
        samples: int | None = None,
        changes: Sequence[str] = (),
        input_shape: Sequence[int] = (),
        loss: Loss = "cross_entropy",
    ) -> pd.DataFrame:
        """Predict an iteration under every strategy, on every number of ranks and every batch.

        Parameters
        ----------
        model
            A registered name, a model.json, a ModelSpec, or a torch.nn.Module (with `input_shape`,
            one sample's without the batch, and `loss`).
        strategy
            "all", or one or several names.
        p
            Ranks: a number, a list, or words such as "4:64".
        batch_per_rank, batch
            Samples of a rank, or of all ranks; default the registered model's own.
        inner, segments
            Ranks of a group of a hybrid; micro-batches of a pipeline.
        overlap, sharded_optimizer, sequence_parallel, optimizer, execution, form, samples
            As in `calib predict`. With `samples`, `epoch_s` is predicted too.
        changes
            What if a parameter were another, as `--set` of `calib predict` takes it.

        Returns
        -------
        DataFrame
            The columns of `calib sweep`, and `label`: the strategy with its layout. What cannot run
            has a `reason`, and `feasible` is False. `naive_B` is memory without any reuse.

        Raises
        ------
        InputError
            An unknown model, strategy or number.
        MissingParameter
            No point can be predicted from these parameters.

        Examples
        --------
        >>> run.predict("resnet50", ["data", "filter"], p="4:64", batch_per_rank=32)
        """
        layers = _spec(model, input_shape, loss, self.path).run_as(execution)
        chosen = templates(
            strategy if isinstance(strategy, str) else ",".join(strategy),
            inner=given("inner", inner),
            segments=given("segments", segments),
            overlap=overlap,
            sharded_optimizer=sharded_optimizer,
            sequence_parallel=sequence_parallel,
        )
        scales = batches(layers, given("batch_per_rank", batch_per_rank), [], given("batch", batch))
        if form not in get_args(Form):
            raise InputError(f"unknown form {form!r}; known: measured, paper")
        machine = Machine(parameters_of(self.path / PARAMETERS_FILE, changes))
        predictor = Predictor(machine, form, optimizer, samples)
        found = list(predictor.points([(layers, scales)], given("p", p), chosen))
        predictor.require_some(layers.name, found)
        return _projections(found)

    def collective(
        self,
        operation: str,
        nbytes: ArrayLike,
        p: Numbers = 2,
        *,
        stride: Numbers = 1,
        groups: Numbers = 1,
    ) -> pd.DataFrame:
        """What a collective costs by the fitted laws, as predictions take it.

        Parameters
        ----------
        operation
            allreduce, allgather, ...: a name of `samples().operation`. A halo is exchanged by parts
            in a row.
        nbytes
            Bytes of the whole buffer, rounded to whole ones: a number, a list or an array. Of a halo,
            of the message to one neighbour.
        p
            Ranks of a group.
        stride, groups
            How far apart the ranks of a group are, and how many groups do it at once.

        Returns
        -------
        DataFrame
            A row for each layout and size: `time_s` with its 95% interval (`low_s`,
            `high_s`); `algbw_B_per_s` and `busbw_B_per_s` as nccl-tests defines them, busbw NaN where
            it does not; `basis` says whether it was measured, interpolated or extrapolated.

        Raises
        ------
        InputError
            An unknown operation, or a number that cannot be.
        MissingParameter
            Nothing in the parameters is anything like it.

        Examples
        --------
        >>> run.collective("allreduce", np.logspace(3, 8), p=[2, 4])
        """
        known = [name for name in get_args(Operation) if name != HIERARCHICAL]
        if operation not in known:
            raise InputError(f"unknown operation {operation!r}; known: {', '.join(known)}")
        layouts = product(given("p", p), given("stride", stride), given("groups", groups))
        rows = []
        for (ranks, apart, many), size in product(layouts, whole_bytes(nbytes)):
            grid = (ranks,) if operation == HALO else ()
            message = Message(cast("Operation", operation), size, ranks, apart, many, grid)
            cost = self._network.time(message)
            times = (cost.seconds, cost.low, cost.high)
            algbw = size / cost.seconds if cost.seconds > 0 else None
            factor = bus_factor(operation, ranks)
            busbw = None if algbw is None or factor is None else algbw * factor
            rows.append((operation, ranks, apart, many, size, *times, algbw, busbw, cost.basis))
        about = ("operation", "p", "stride", "groups", "size_B")
        return frame(rows, (*about, *TIMES, *BANDWIDTHS, "basis"))


def frame(rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> pd.DataFrame:
    """A table; a column without any value is of numbers that are not known."""
    table = pd.DataFrame(list(rows), columns=list(columns))
    unknown = [name for name in table if table[name].isna().all()]
    table = table.astype(dict.fromkeys(unknown, float)).rename(columns=RENAMED)
    if "started" in table:
        table["started"] = pd.to_datetime(
            table.started, utc=True, format="ISO8601", errors="coerce"
        )
    return table


def _projections(found: Sequence[Projection]) -> pd.DataFrame:
    table = frame(map(row_of, found), PREDICTED_COLUMNS)
    table.insert(2, "label", [projection.division.words for projection in found])
    return table


def _spec(model: Any, input_shape: Sequence[int], loss: Loss, run: Path) -> ModelSpec:
    """The layers of what `Run.predict` takes for a model."""
    if isinstance(model, str):
        return spec(model, run)
    if isinstance(model, ModelSpec):
        return model
    # late: PyTorch takes seconds, and only this needs it
    from torch import nn

    from calib.oracle.trace.tracing import trace

    if not isinstance(model, nn.Module):
        raise InputError(
            f"a model is a name, a ModelSpec or a torch.nn.Module, not {type(model).__name__}"
        )
    if not input_shape:
        raise InputError("a torch.nn.Module needs input_shape, one sample's: (3, 224, 224)")
    return trace(model, tuple(input_shape), type(model).__name__, loss)


def given(name: str, value: Numbers | None) -> list[int]:
    """The numbers in rising order, each once; none where none were given. Raises InputError."""
    if value is None:
        return []
    text = value if isinstance(value, str) else ",".join(map(str, np.ravel(value).tolist()))
    return numbers(text, name)


def whole_bytes(nbytes: ArrayLike) -> list[int]:
    """Whole bytes. Raises InputError."""
    try:
        sizes = np.ravel(nbytes).astype(float)
    except (TypeError, ValueError) as error:
        raise InputError(f"nbytes: {error}") from error
    if not ((sizes >= 0) & (sizes <= MOST["nbytes"])).all():  # nor NaN
        raise InputError(f"nbytes must be from 0 to {MOST['nbytes']}")
    return [round(size) for size in sizes.tolist()]
