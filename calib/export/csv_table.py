"""Target csv: every number of the parameter file in one tidy table, CSV by RFC 4180, a row each.

    import pandas
    table = pandas.read_csv("parameters.csv")
    table[(table.operation == "allreduce") & (table.law == "line") & (table.quantity == "alpha")]

A number is at least 0 or its cell is empty, as for one that does not exist or is not known. Where the
file may hold less than 0, the table has the same content in other numbers: of a piece of a law, whose
intercept may be negative, the seconds at both ends; of a residual q = measured / law - 1 the ratio
1 + q; of logs what they are the logs of. Only the lower end of an intercept's interval is lost. The
rows of "provenance" say where the numbers come from. Remarks in words are left out (notes, runner-up
laws, names of models and of kernels).

CSV has no comments, so fingerprint, ranges and what was lost are in the side file. A text cell that a
spreadsheet would take for a formula gets an apostrophe in front (OWASP, "CSV Injection"), as does a
name such as nan, and control characters are replaced.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from calib.export.target import Exported, ExportRequest
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.contention import ContentionFit
from calib.fitting.parameters.file import Composition, LayerTime, Parameters, TensorLoop, WorkModel
from calib.fitting.parameters.measured_passes import passes_of
from calib.fitting.parameters.measured_sizes import measured_sizes
from calib.fitting.parameters.memory import MemoryReuse, Overlap, Partitions
from calib.fitting.parameters.peaks import Peaks
from calib.fitting.parameters.structural import StructuralFit
from calib.fitting.parameters.work import SIZE_SHARE
from calib.foundation.layer_keys import execution_in
from calib.foundation.records import Estimate, Record
from calib.foundation.text import csv_cell
from calib.foundation.words import counted

NAME = "csv"
FILENAME = "parameters.csv"
DIRECTORY = False
RECEIVES = "every number of the file with its interval, one row each"
LOSES = (
    "remarks in words; numbers below 0: pieces have their times at both ends beside the intercept, "
    "residuals are ratios measured / law"
)
NEEDS = "nothing: any parameter file"
OPTIONS: frozenset[str] = frozenset()

Number = int | float
ONE, SECONDS, PER_BYTE, BYTES, PER_SECOND = "1", "s", "s/B", "B", "B/s"
FLOPS_PER_SECOND = "flop/s"
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of residuals (fitting/estimators/base.py)


class CsvRow(NamedTuple):
    """A number with all that tells it apart; "" and None where that does not apply.

    `kind` is of a layer; `law` what describes the times (line, pieces, points, others, an
    algorithm, sum), `form` how, `part` which piece, band, point or neighbour of it, from 0; `low95`
    and `high95` the 95% interval. `start` and `end` are the columns from and to: between which sizes
    (or at which one) the number holds, in `range_unit`. `error` is the mean relative error of the law
    that the number is of.
    """

    section: str
    operation: str = ""
    library: str = ""
    device: str = ""
    dtype: str = ""
    execution: str = ""
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
        """The same law's number `found`; None is one that is not known."""
        value, low, high = value_and_ends(found)
        return self._replace(quantity=quantity, unit=unit, value=value, low95=low, high95=high)

    def fields(self, law: object, *names: str) -> Rows:
        """The law's fields of these names: alpha_s is the quantity alpha, in s."""
        for name in names:
            suffix = next(
                (end for end in ("_s_per_byte", "_s", "_bytes") if name.endswith(end)), ""
            )
            yield self.of(name.removesuffix(suffix), getattr(law, name), unit_of(name))

    def between(self, start: Number, end: Number, unit: str = BYTES) -> CsvRow:
        """The same, for these sizes."""
        return self._replace(start=start, end=end, range_unit=unit)

    def at(self, place: Number, unit: str = BYTES) -> CsvRow:
        """The same, at one size."""
        return self.between(place, place, unit)


Rows = Iterator[CsvRow]
NUMBERS = ("value", "low95", "high95", "start", "end")
RENAMED = {"start": "from", "end": "to"}
# columns that are fields of a law
OWN = (
    "operation",
    "library",
    "device",
    "dtype",
    "execution",
    "level",
    "ranks",
    "nodes",
    "stride",
    "active_ranks",
    "batch",
    "kind",
    "n",
)


def unit_of(field: str) -> str:
    """The unit that the name of a law's field ends with."""
    before, per, what = field.rpartition("s_per_")
    if per and (not before or before.endswith("_")):
        return PER_BYTE if what.endswith("byte") else f"s/{what}"
    units = {"_s": SECONDS, "bytes": BYTES, "flops": "flop"}
    return next((unit for end, unit in units.items() if field.endswith(end)), ONE)


def value_and_ends(
    found: Estimate | Number | None,
) -> tuple[Number | None, Number | None, Number | None]:
    """A number and the ends of its 95% interval; of one time alone these would read as certainty."""
    if not isinstance(found, Estimate):
        return found, None, None
    return (found.value, found.low, found.high) if found.has_interval else (found.value, None, None)


def possible(number: Number | None) -> Number | None:
    """The number; None where it is below 0 or not finite."""
    return number if number is not None and math.isfinite(number) and number >= 0 else None


def possible_rows(of: Parameters) -> tuple[list[CsvRow], int]:
    """The rows of a file with the numbers that are `possible`, and how many numbers were not.

    Rows without any number are left out, but for those of "provenance".
    """
    rows, below = [], 0
    for row in every_row(of):
        numbers: dict[str, Any] = {name: possible(getattr(row, name)) for name in NUMBERS}
        kept = row._replace(**numbers)
        below += sum(getattr(kept, name) != getattr(row, name) for name in NUMBERS)
        known = (kept.value, kept.low95, kept.high95) != (None, None, None)
        if known or row.section == "provenance":
            rows.append(kept)
    return rows, below


def export(request: ExportRequest) -> Exported:
    """One table; nothing is collapsed."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow([RENAMED.get(name, name) for name in CsvRow._fields])
    rows, below = possible_rows(request.parameters)
    writer.writerows([_cell(cell) for cell in row] for row in rows)
    return Exported(
        files={"": stream.getvalue()},
        holds_for=(f"all that was measured; each of {len(rows)} rows says its ranks and sizes",),
        lost=tuple(lost(request.parameters, below)),
    )


def lost(of: Parameters, below: int) -> Iterator[str]:
    """What this file has and the table lacks; `below` of its numbers have an empty cell."""
    others = (
        law.runner_up
        for laws in (of.collectives, of.contention, of.work, of.composition)
        for law in laws
    )
    remarks = {
        "notes": of.provenance.notes,
        "laws that came second": any(others),
        "names of kernels": any(layer.kernels for layer in of.layers),
        "models that laws were fitted to": any((of.composition, of.memory, of.overlap)),
    }
    if found := [name for name, held in remarks.items() if held]:
        yield f"remarks in words: {', '.join(found)}"
    if below:
        yield f"{counted(below, 'number')} below 0 or not finite, with an empty cell"


def _cell(cell: str | Number | None) -> str:
    """Numbers with all their digits; text so that it is no formula, no NaN, and drives no terminal."""
    if cell is None:
        return ""
    if not isinstance(cell, str):
        return repr(cell + 0)  # 0, and not -0.0
    text = str(csv_cell(cell))
    try:
        finite = math.isfinite(float(text))
    except ValueError:
        finite = True
    return text if finite else f"'{text}"  # readers of tables take nan, inf and 1e999 for numbers


def every_row(of: Parameters) -> Rows:
    """All of a file, section by section."""
    row = CsvRow("cluster", name=of.device, device=of.device_kind)
    yield from row.fields(of, "device_memory_bytes", "ranks_per_node")
    for name in ("nodes", "nodes_per_rack", "links_per_node", "rack_links", "shared_links"):
        yield row.of(name, getattr(of, name) or None)  # 0 is unknown
    yield row.of("link_bandwidth", of.link_bandwidth or None, PER_SECOND)
    yield from _provenance(of)
    sections: dict[str, Callable[[CsvRow, Any], Rows]] = {
        "collectives": _collective,
        "structural": _structural,
        "contention": _contention,
        "peaks": _peaks,
        "layers": _layer,
        "work": _work,
        "tensor_loops": _loop,
        "composition": _composition,
        "memory": _memory,
        "overlap": _overlap,
        "partitions": _partitions,
    }
    for section, rows_of in sections.items():
        for law in getattr(of, section):
            yield from rows_of(_own(section, law), law)


def _own(section: str, law: Record) -> CsvRow:
    """A row with what the law's own fields say; a count of 0 is unknown."""
    own = {name: getattr(law, name) for name in OWN if hasattr(law, name)}
    known: dict[str, Any] = {k: v for k, v in own.items() if isinstance(v, (int, str)) and v != 0}
    return CsvRow(section, **known)


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


def _priced(
    row: CsvRow, law: object, names: Sequence[str], intervals: Mapping[str, tuple[float, float]]
) -> Rows:
    """Coefficients with their intervals; then intervals of coefficients that are not known."""
    for name in dict.fromkeys((*names, *intervals)):
        low, high = intervals.get(name, (None, None))
        value = getattr(law, name) if name in names else None
        yield row.of(name, value, unit_of(name))._replace(low95=low, high95=high)


def _collective(row: CsvRow, fit: CollectiveFit) -> Rows:
    row = row.between(*fit.range_nbytes)
    line = row._replace(law="line", error=fit.mean_relative_error)
    yield from line.fields(fit, "alpha_s", "beta_s_per_byte", "intercept_s", "slope_s_per_byte")
    yield line.of("error_factor", fit.line_error_factor)
    yield row._replace(law="points").of("error_factor", fit.interpolation_error_factor)
    yield row._replace(law="points").of("launch_factor", fit.launch_factor)
    if fit.burst is not None:
        burst = row._replace(law="burst")
        yield burst.of("bytes", fit.burst.nbytes, BYTES)
        yield burst.of("share", fit.burst.share)
    law = row._replace(law="pieces", error=fit.pieces_mean_relative_error)
    for part, piece in enumerate(fit.pieces):
        one = law._replace(part=part).between(piece.from_nbytes, piece.to_nbytes)
        yield from one.fields(piece, "slope_s_per_byte", "intercept_s")
        for nbytes in (piece.from_nbytes, piece.to_nbytes):
            yield one.at(nbytes).of("seconds", piece.at(nbytes), SECONDS)
    yield law.of("error_factor", fit.pieces_error_factor)
    yield law.of("left_out_error", fit.left_out_error)
    yield from _residuals(
        row._replace(law="pieces" if fit.pieces else "line"), fit.residual_quantiles
    )
    for part, size in enumerate(measured_sizes(fit)):
        one = row._replace(law="points", part=part, n=size.n).at(size.nbytes)
        yield one.of("seconds", size.seconds, SECONDS)
        yield one.of("algbw", size.algbw_bytes_per_s, PER_SECOND)
        yield one.of("busbw", size.busbw_bytes_per_s, PER_SECOND)
    for part, point in enumerate(fit.beyond):
        larger = row._replace(law="others", part=part).at(point.nbytes)
        yield larger.of("seconds", point.seconds, SECONDS)
    for part, nbytes in enumerate(fit.outliers_nbytes):
        outlier = row._replace(law="points", part=part).at(nbytes)
        yield outlier.of("outlier_size", nbytes, BYTES)


def _structural(row: CsvRow, fit: StructuralFit) -> Rows:
    row = row._replace(error=fit.held_out_error).between(*fit.range_nbytes)
    numbers = "held_out_error", "deviation", "doubling_deviation", "links_exponent", "shared_links"
    yield from row.fields(fit, *numbers)
    for part, layout in enumerate(fit.layouts):
        form = "outlying" if layout.outlying else ""
        one = row._replace(ranks=layout.ranks, nodes=layout.nodes, part=part, form=form)
        yield from one.fields(layout, "ranks_per_node", "factor")
    for part, band in enumerate(fit.bands):
        for name, weight in band.weights.items():
            yield row._replace(law=name, part=part).at(band.nbytes).of("weight", weight)
    for name, share in fit.rules.items():
        yield row._replace(law=name).of("weight", share)


def _contention(row: CsvRow, fit: ContentionFit) -> Rows:
    row = row._replace(name=fit.baseline, law=fit.law, error=fit.mean_relative_error)
    row = row.between(fit.min_nbytes, fit.max_nbytes)
    yield from row.fields(fit, "capacity", "intercept_s", "slope_s_per_byte", "score_gap")
    yield from _residuals(row, fit.residual_quantiles)
    for part, point in enumerate(fit.points):
        one = row._replace(part=part, n=point.n).at(point.groups, "groups")
        yield from one.fields(point, "contention", "intercept_s", "analytical")


def _peaks(row: CsvRow, peaks: Peaks) -> Rows:
    row = row._replace(library="torch", law="points")
    flops, nbytes = row.at(peaks.flops, "flop"), row.at(peaks.nbytes)
    yield flops.of("flops_per_s", peaks.flops_per_s, FLOPS_PER_SECOND)
    yield nbytes.of("bytes_per_s", peaks.bytes_per_s, PER_SECOND)


def _layer(row: CsvRow, layer: LayerTime) -> Rows:
    row = row._replace(
        library="torch", name=layer.key, execution=execution_in(layer.key), law="points"
    )
    forward, backward = row._replace(operation="forward"), row._replace(operation="backward")
    yield forward.of("seconds", layer.forward_s, SECONDS)
    yield backward.of("seconds", layer.backward_s, SECONDS)
    # an unknown one has no row in the table of a notebook either
    if layer.in_place_forward_s is not None:
        yield forward.of("seconds_in_place", layer.in_place_forward_s, SECONDS)
    if layer.in_place_backward_s is not None:
        yield backward.of("seconds_in_place", layer.in_place_backward_s, SECONDS)
    for one in passes_of(layer):
        of_pass = row._replace(operation=one.direction)
        yield of_pass.at(one.flops, "flop").of("flops_per_s", one.flops_per_s, FLOPS_PER_SECOND)
        yield of_pass.at(one.nbytes).of("bytes_per_s", one.bytes_per_s, PER_SECOND)


def _work(row: CsvRow, law: WorkModel) -> Rows:
    row = row._replace(operation=law.direction, library="torch", law=law.form, error=law.score)
    names = (
        "call_s",
        "s_per_flop",
        "s_per_byte",
        "s_per_weight_byte",
        "s_per_patch_byte",
        "s_per_fresh_byte",
    )
    yield from _priced(row.between(law.min_bytes, law.max_bytes), law, names, law.intervals)
    yield from row.fields(
        law,
        "error_factor",
        "shared",
        "growth_per_decade",
        "batch_factor",
        "n_layers",
        "runner_up_score",
    )
    yield row.between(law.min_flops, law.max_flops, "flop").of("most_work", law.max_flops, "flop")
    yield row.of("most_fresh_bytes", law.max_fresh_bytes, BYTES)
    yield from _residuals(row, law.residual_quantiles)
    # the measured layers that correct the law near them (fitting/parameters/work.py, likeness)
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


def _loop(row: CsvRow, loop: TensorLoop) -> Rows:
    row = row._replace(library="torch", error=loop.mean_relative_error)
    ranged = row.between(loop.min_bytes, loop.max_bytes)
    yield from _priced(ranged, loop, ("call_s", "s_per_tensor", "s_per_byte"), loop.intervals)
    yield from ranged.fields(loop, "error_factor", "held_out_error")
    yield from _residuals(ranged, loop.residual_quantiles)
    for key, seconds in loop.measured.items():
        alone = row._replace(name=key, law="points", n=None, error=None)
        yield alone.of("seconds", seconds, SECONDS)


def _composition(row: CsvRow, term: Composition) -> Rows:
    row = row._replace(operation=term.phase, library=term.library or "torch", form=term.form)
    row = row.between(0, term.max_bytes)
    yield from _priced(row, term, ("s_per_layer", "s_per_byte"), term.intervals)
    yield from row.fields(term, "error_factor", "sum_error_factor")
    yield from _residuals(row, term.residual_quantiles)


def _memory(row: CsvRow, law: MemoryReuse) -> Rows:
    row = row._replace(operation=law.family, library=law.framework)
    row = row.between(law.min_bytes, law.max_bytes)
    simple = row._replace(law="simple", error=law.gamma_error)
    yield simple.of("gamma", law.gamma)
    yield simple.of("held_out_error", law.gamma_held_out_error)
    refined = row._replace(law="refined", error=law.refined_error)
    yield from refined.fields(law, "constant_bytes", "activations", "weights", "optimizer")
    yield refined.of("held_out_error", law.refined_held_out_error)
    chosen = row._replace(law=law.chosen)
    yield chosen._replace(form="chosen").of("error_factor", law.error_factor)
    yield from _residuals(chosen, law.residual_quantiles)
    if law.on_device is not None:
        yield from row._replace(law="on_device").fields(law.on_device, "reserved", "outside_bytes")


def _overlap(row: CsvRow, law: Overlap) -> Rows:
    row = row._replace(operation="data", error=law.error)
    yield from row.fields(law, "eta", "slowdown", "held_out_error", "error_factor")
    for each in law.iterations:
        yield row.of("iteration", each.seconds, SECONDS)._replace(name=each.model)
    yield from _residuals(row, law.residual_quantiles)


def _partitions(row: CsvRow, law: Partitions) -> Rows:
    row = row._replace(name=law.name, error=law.error)
    row = row.between(law.min_partitions, law.max_partitions, "partitions")
    yield from row.fields(law, "rows", "width", "share", "server_partitions")
    for method, seconds in law.methods.items():
        yield row.of(method, seconds, SECONDS)
    yield from row.fields(law, "constant_s", "parallel_s", "per_partition_s")
    best = row.of("best_partitions", law.best_partitions)
    yield best._replace(low95=law.best_low, high95=law.best_high)
    yield from row.fields(law, "held_out_error", "error_factor")
    yield from _residuals(row, law.residual_quantiles)
