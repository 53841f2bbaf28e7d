"""Every number of a parameter file as a row, for the target csv (calib/export/csv/tidy.py).

A row has at least 0 in every cell with a number. Where the file may hold less than that, the row has
something of the same content: of a piece of a law, whose intercept may be below 0, the seconds at both
of its ends; of a residual q = measured / law - 1 the ratio 1 + q; of logs what they are the logs of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import Parameters, WorkModel
from calib.fitting.parameters.work import SIZE_SHARE
from calib.foundation.records import Estimate

Number = int | float
ONE, SECONDS, PER_BYTE, BYTES = "1", "s", "s/B", "B"


class CsvRow(NamedTuple):
    """A number with all that tells it apart; "" and None where that does not apply.

    `kind` is of a layer; `law` what describes the times (line, pieces, points, an algorithm, sum),
    `form` how (flat or hierarchical), `part` which piece, band, point or neighbour of it, from 0;
    `low95` and `high95` the 95% interval. `start` and `end` are the columns from and to: between
    which sizes (or at which one) the number holds, in `range_unit`. `error` is the mean relative
    error of the law that the number is of.
    """

    section: str
    operation: str = ""
    library: str = ""
    device: str = ""
    dtype: str = ""
    level: str = ""
    ranks: int | None = None
    nodes: int | None = None
    stride: int | None = None
    active_ranks: int | None = None
    batch: int | None = None
    name: str = ""
    kind: str = ""
    law: str = ""
    form: str = ""
    part: int | None = None
    quantity: str = ""
    unit: str = ONE
    value: Number | None = None
    low95: Number | None = None
    high95: Number | None = None
    start: Number | None = None
    end: Number | None = None
    range_unit: str = ""
    n: int | None = None
    error: float | None = None

    def of(self, quantity: str, found: Estimate | Number | None, unit: str = ONE) -> CsvRow:
        """The same law's number `found`; None is one that was not known."""
        if found is None or isinstance(found, (int, float)):
            return self._replace(quantity=quantity, unit=unit, value=found)
        if not found.has_interval:  # one time alone: its ends would read as certainty
            return self._replace(quantity=quantity, unit=unit, value=found.value)
        return self._replace(
            quantity=quantity, unit=unit, value=found.value, low95=found.low, high95=found.high
        )

    def between(self, start: Number, end: Number, unit: str = BYTES) -> CsvRow:
        """The same, for these sizes."""
        return self._replace(start=start, end=end, range_unit=unit)

    def at(self, place: Number, unit: str = BYTES) -> CsvRow:
        """The same, at one size."""
        return self.between(place, place, unit)


# of residuals (fitting/estimators/base.py)
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
UNITS = {
    "call_s": SECONDS,
    "s_per_flop": "s/flop",
    "s_per_tensor": "s/tensor",
    "s_per_layer": "s/layer",
}


Rows = Iterator[CsvRow]


def every_row(parameters: Parameters) -> Rows:
    """All of a file, section by section."""
    for section in (
        _file,
        _provenance,
        _collectives,
        _structural,
        _contention,
        _layers,
        _work,
        _loops,
        _composition,
        _memory,
        _overlap,
        _partitions,
    ):
        yield from section(parameters)


def _file(of: Parameters) -> Rows:
    row = CsvRow("cluster", name=of.device)
    yield row.of("device_memory", of.device_memory_bytes, BYTES)
    yield row.of("ranks_per_node", of.ranks_per_node)
    for name in ("nodes", "nodes_per_rack", "links_per_node"):
        yield row.of(name, getattr(of, name) or None)  # 0 is unknown


def _provenance(of: Parameters) -> Rows:
    made, row = of.provenance, CsvRow("provenance")
    yield row.of("format_version", of.format_version)
    text = row._replace(unit="")
    for quantity in (
        "program_version",
        "cluster_name",
        "cluster_fingerprint",
        "measured_from",
        "measured_until",
    ):
        yield text._replace(quantity=quantity, name=getattr(made, quantity))
    yield row.of("seed", made.seed)
    yield row.of("launches", made.launches or None)
    for digest in made.samples_sha256:
        yield text._replace(quantity="samples_sha256", name=digest)
    for part, source in enumerate(made.merged):
        one = row._replace(part=part, name=source.sha256)
        for section, laws in source.parts.items():
            yield one._replace(law=section).of("merged_laws", laws)


def _residuals(row: CsvRow, quantiles: Sequence[float]) -> Rows:
    """measured / law, at the quantiles that the fit keeps."""
    for share, q in zip(QUANTILES, quantiles, strict=False):
        yield row.at(share, "quantile").of("measured_over_law", 1 + q)
    for part, q in enumerate(quantiles[len(QUANTILES) :]):  # of nothing that calib fits
        yield row._replace(part=part).of("measured_over_law", 1 + q)


def _collectives(of: Parameters) -> Rows:
    for fit in of.collectives:
        low, high = fit.range_nbytes
        row = CsvRow(
            "collectives",
            fit.operation,
            fit.library,
            fit.device,
            level=fit.level,
            ranks=fit.ranks,
            nodes=fit.nodes or None,
            n=fit.n or None,
        ).between(low, high)
        line = row._replace(law="line", error=fit.mean_relative_error)
        yield line.of("alpha", fit.alpha_s, SECONDS)
        yield line.of("beta", fit.beta_s_per_byte, PER_BYTE)
        yield line.of("intercept", fit.intercept_s, SECONDS)
        yield line.of("slope", fit.slope_s_per_byte, PER_BYTE)
        yield line.of("error_factor", fit.line_error_factor)
        yield row._replace(law="points").of("error_factor", fit.interpolation_error_factor)
        yield from _pieces(row, fit)
        yield from _residuals(
            row._replace(law="pieces" if fit.pieces else "line"), fit.residual_quantiles
        )
        for part, point in enumerate(fit.points):
            one = row._replace(law="points", part=part, n=point.n).at(point.nbytes)
            yield one.of("seconds", point.seconds, SECONDS)
        for part, nbytes in enumerate(fit.outliers_nbytes):
            outlier = row._replace(law="points", part=part).at(nbytes)
            yield outlier.of("outlier_size", nbytes, BYTES)


def _pieces(row: CsvRow, fit: CollectiveFit) -> Rows:
    law = row._replace(law="pieces", error=fit.pieces_mean_relative_error)
    for part, piece in enumerate(fit.pieces):
        one = law._replace(part=part).between(piece.from_nbytes, piece.to_nbytes)
        yield one.of("slope", piece.slope_s_per_byte, PER_BYTE)
        yield one.of("intercept", piece.intercept_s, SECONDS)
        for nbytes in (piece.from_nbytes, piece.to_nbytes):
            yield one.at(nbytes).of("seconds", piece.at(nbytes), SECONDS)
    yield law.of("error_factor", fit.pieces_error_factor)
    yield law.of("left_out_error", fit.left_out_error)


def _structural(of: Parameters) -> Rows:
    for fit in of.structural:
        row = CsvRow(
            "structural",
            fit.operation,
            fit.library,
            fit.device,
            level=fit.level,
            n=fit.n,
            error=fit.mean_relative_error,
        ).between(*fit.range_nbytes)
        yield row.of("held_out_error", fit.held_out_error)
        yield row.of("error_factor", fit.error_factor)
        yield from _residuals(row, fit.residual_quantiles)
        for part, (ranks, nodes) in enumerate(zip(fit.ranks, fit.nodes, strict=True)):
            yield row._replace(ranks=ranks, nodes=nodes, part=part).of("measured_ranks", ranks)
        for part, band in enumerate(fit.bands):
            form = "hierarchical" if band.hierarchical else "flat"
            one = row._replace(law=band.algorithm, form=form, part=part).at(band.nbytes)
            yield one.of("base", band.base_s, SECONDS)
            yield one.of("base_per_byte", band.base_s_per_byte, PER_BYTE)
            yield one.of("alpha", band.alpha_s, SECONDS)
            yield one.of("beta", band.beta_s_per_byte, PER_BYTE)
            yield one.of("score", band.score)


def _contention(of: Parameters) -> Rows:
    for fit in of.contention:
        row = CsvRow(
            "contention",
            fit.operation,
            fit.library,
            fit.device,
            level=fit.level,
            ranks=fit.ranks,
            nodes=fit.nodes,
            stride=fit.stride,
            name=fit.baseline,
            law=fit.law,
            error=fit.mean_relative_error,
        ).between(fit.min_nbytes, fit.max_nbytes)
        yield row.of("capacity", fit.capacity)
        yield row.of("intercept", fit.intercept_s, SECONDS)
        yield row.of("slope", fit.slope_s_per_byte, PER_BYTE)
        yield row.of("score_gap", fit.score_gap)
        yield from _residuals(row, fit.residual_quantiles)
        for part, point in enumerate(fit.points):
            one = row._replace(part=part, n=point.n).at(point.groups, "groups")
            yield one.of("contention", point.contention)
            yield one.of("intercept", point.intercept_s, SECONDS)
            yield one.of("analytical", point.analytical)


def _layers(of: Parameters) -> Rows:
    for layer in of.layers:
        row = CsvRow(
            "layers",
            library="torch",
            active_ranks=layer.active_ranks,
            batch=layer.batch,
            name=layer.key,
            kind=layer.kind,
            law="points",
            n=layer.n,
        )
        yield row._replace(operation="forward").of("seconds", layer.forward_s, SECONDS)
        yield row._replace(operation="backward").of("seconds", layer.backward_s, SECONDS)
        in_place = {"forward": layer.in_place_forward_s, "backward": layer.in_place_backward_s}
        for operation, time in in_place.items():
            if time is not None:
                yield row._replace(operation=operation).of("seconds_in_place", time, SECONDS)


def _prices(
    row: CsvRow, record: object, names: Sequence[str], intervals: Mapping[str, tuple[float, float]]
) -> Rows:
    """Coefficients, each with its interval if it has one; then intervals of nothing that is known."""
    for name in dict.fromkeys((*names, *intervals)):
        low, high = intervals.get(name, (None, None))
        value = getattr(record, name) if name in names else None
        one = row.of(name, value, UNITS.get(name, PER_BYTE))
        yield one._replace(low95=low, high95=high)


def _work(of: Parameters) -> Rows:
    for law in of.work:
        row = CsvRow(
            "work",
            law.direction,
            library="torch",
            active_ranks=law.active_ranks,
            kind=law.kind,
            law=law.form,
            n=law.n or None,
            error=law.score,
        )
        names = (
            "call_s",
            "s_per_flop",
            "s_per_byte",
            "s_per_weight_byte",
            "s_per_patch_byte",
            "s_per_fresh_byte",
        )
        yield from _prices(row.between(law.min_bytes, law.max_bytes), law, names, law.intervals)
        for name in ("error_factor", "growth_per_decade", "n_layers", "runner_up_score"):
            yield row.of(name, getattr(law, name))
        yield row.between(law.min_flops, law.max_flops, "flop").of(
            "most_work", law.max_flops, "flop"
        )
        yield row.of("most_fresh_bytes", law.max_fresh_bytes, BYTES)
        yield from _residuals(row, law.residual_quantiles)
        yield from _neighbours(row, law)


def _neighbours(row: CsvRow, law: WorkModel) -> Rows:
    """The measured layers that correct the law near them (fitting/parameters/work.py, likeness)."""
    yield row.of("neighbour_reach", law.reach)
    for part, (intensity, patches, size, ratio) in enumerate(law.neighbours):
        one = row._replace(part=part)
        yield one.of("neighbour_intensity", _exp(intensity), "flop/B")
        yield one.of("neighbour_patches", _exp(patches), "B/B")
        yield one.of("neighbour_bytes", _exp(size / SIZE_SHARE), BYTES)
        yield one.of("neighbour_measured_over_law", _exp(ratio))


def _exp(log: float) -> float:
    """What `log` is the log of; infinite where that is no number any more."""
    try:
        return math.exp(log)
    except OverflowError:
        return math.inf


def _loops(of: Parameters) -> Rows:
    for loop in of.tensor_loops:
        row = CsvRow(
            "tensor_loops",
            loop.operation,
            "torch",
            loop.device,
            loop.dtype,
            active_ranks=loop.active_ranks,
            n=loop.n or None,
            error=loop.mean_relative_error,
        ).between(loop.min_bytes, loop.max_bytes)
        yield from _prices(row, loop, ("call_s", "s_per_tensor", "s_per_byte"), loop.intervals)
        yield row.of("error_factor", loop.error_factor)
        yield row.of("held_out_error", loop.held_out_error)
        yield from _residuals(row, loop.residual_quantiles)
        for key, seconds in loop.measured.items():
            alone = row._replace(name=key, law="points", start=None, end=None, range_unit="")
            yield alone._replace(n=None, error=None).of("seconds", seconds, SECONDS)


def _composition(of: Parameters) -> Rows:
    for term in of.composition:
        row = CsvRow(
            "composition",
            term.phase,
            "torch",
            active_ranks=term.active_ranks,
            form=term.form,
            n=term.n or None,
        ).between(0, term.max_bytes)
        yield from _prices(row, term, ("s_per_layer", "s_per_byte"), term.intervals)
        yield row.of("error_factor", term.error_factor)
        yield row.of("sum_error_factor", term.sum_error_factor)
        yield from _residuals(row, term.residual_quantiles)


def _memory(of: Parameters) -> Rows:
    for law in of.memory:
        row = CsvRow(
            "memory", law.family, law.framework, law.device, name=law.measure, n=law.n
        ).between(law.min_bytes, law.max_bytes)
        simple = row._replace(law="simple", error=law.gamma_error)
        yield simple.of("gamma", law.gamma)
        yield simple.of("held_out_error", law.gamma_held_out_error)
        refined = row._replace(law="refined", error=law.refined_error)
        yield refined.of("constant", law.constant_bytes, BYTES)
        for name in ("activations", "weights", "optimizer"):
            yield refined.of(name, getattr(law, name))
        yield refined.of("held_out_error", law.refined_held_out_error)
        yield row._replace(law=law.chosen, form="chosen").of("error_factor", law.error_factor)
        yield from _residuals(row._replace(law=law.chosen), law.residual_quantiles)


def _overlap(of: Parameters) -> Rows:
    for law in of.overlap:
        row = CsvRow(
            "overlap", "data", law.library, law.device, ranks=law.ranks, n=law.n, error=law.error
        )
        yield row.of("eta", law.eta)
        yield row.of("slowdown", law.slowdown)
        yield row.of("held_out_error", law.held_out_error)
        yield row.of("error_factor", law.error_factor)
        yield from _residuals(row, law.residual_quantiles)


def _partitions(of: Parameters) -> Rows:
    for law in of.partitions:
        row = CsvRow(
            "partitions",
            library=law.library,
            ranks=law.ranks,
            nodes=law.nodes,
            name=law.name,
            n=law.n,
            error=law.error,
        ).between(law.min_partitions, law.max_partitions, "partitions")
        for name in ("rows", "width", "share", "server_partitions"):
            yield row.of(name, getattr(law, name))
        for method, seconds in law.methods.items():
            yield row.of(method, seconds, SECONDS)
        yield row.of("constant", law.constant_s, SECONDS)
        yield row.of("parallel", law.parallel_s, SECONDS)
        yield row.of("per_partition", law.per_partition_s, SECONDS)
        best = row.of("best_partitions", law.best_partitions)
        yield best._replace(low95=law.best_low, high95=law.best_high)
        yield row.of("held_out_error", law.held_out_error)
        yield row.of("error_factor", law.error_factor)
        yield from _residuals(row, law.residual_quantiles)
