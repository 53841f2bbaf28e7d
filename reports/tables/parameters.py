"""The parameter file as tables (us, GB/s, MiB).

A bandwidth is 1 / beta with the ends of its interval turned round. "x1.3" is an error factor: 95% of
the times lie between 1/1.3 of the law and 1.3 times it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import get_args

from calib.fitting.parameters.collectives import CollectiveFit, StructuralBand, StructuralFit
from calib.fitting.parameters.contention import ContentionFit
from calib.fitting.parameters.file import LayerTime, Parameters, WorkModel
from calib.fitting.parameters.measured_passes import MeasuredPass
from calib.fitting.parameters.measured_sizes import MeasuredSize, measured_sizes
from calib.fitting.parameters.memory import Partitions
from calib.fitting.parameters.told import ToldLaw, fastest_told
from calib.foundation.records import Estimate
from calib.foundation.statistics import median
from calib.foundation.words import (
    bytes_words,
    counted,
    estimate_words,
    exact_bytes,
    number,
    percent,
    signed_percent,
    with_interval,
)
from calib.microbench.cases import SparseMethod
from calib.reports.tables.table import Table, in_columns
from calib.reports.words import kernels_words, layer_words

NONE = "-"
BANDWIDTHS = "algbw = size / time; busbw = algbw x nccl-tests' factor, if any; GB/s = 1e9 B/s"


def sections(parameters: Parameters) -> list[Table]:
    """The tables of all sections that the file fills, in the order of the file."""
    makers = (
        collectives,
        largest_sizes,
        fastest_algorithms,
        pieces,
        structural,
        algorithms,
        contention,
        peaks,
        layers,
        work,
        loops,
        composition,
        memory,
        device_memory,
        overlap,
        sparse,
        partitions,
    )
    tables = [make(parameters) for make in makers]
    return [provenance(parameters), *(table for table in tables if table.rows)]


def kinds(parameters: Parameters) -> dict[str, Sequence[object]]:
    """What a file may hold, by its name for people."""
    return {
        "collectives": parameters.collectives,
        "structural laws": parameters.structural,
        "contention laws": parameters.contention,
        "peaks": parameters.peaks,
        "layer times": parameters.layers,
        "work laws": parameters.work,
        "tensor loops": parameters.tensor_loops,
        "composition laws": parameters.composition,
        "memory laws": parameters.memory,
        "overlap laws": parameters.overlap,
        "sparse exchanges": parameters.partitions,
    }


def absent(parameters: Parameters) -> str:
    """One line that names the sections that the file leaves empty; "" where it leaves none."""
    missing = [name for name, content in kinds(parameters).items() if not content]
    return f"not measured, so not in this file: {', '.join(missing)}" if missing else ""


def us(of: Estimate) -> str:
    """Seconds as microseconds with the interval."""
    return estimate_words(of, 1e6)


def ms(of: Estimate) -> str:
    """Seconds as milliseconds with the interval."""
    return estimate_words(of, 1e3)


def rate(price: float) -> str:
    """1 / price, s/B as GB/s or s/flop as GFLOP/s; a dash where it costs nothing."""
    return number(1e-9 / price) if price > 0 else NONE


def bandwidth(beta: Estimate) -> str:
    """1 / beta in GB/s (1e9 B/s) with its interval; "inf" where beta may be 0."""
    if beta.value <= 0:
        return f"inf [{rate(beta.high)}, inf]" if beta.high > 0 else NONE
    value, low = 1e-9 / beta.value, 1e-9 / beta.high
    if beta.low <= 0:
        return f"{number(value)} [{number(low)}, inf]"
    return with_interval(value, low, 1e-9 / beta.low)


def factor(value: float | None) -> str:
    """An error factor as `x1.32`; a dash where there is none."""
    return NONE if value is None else f"x{value:.{2 if value < 100 else 0}f}"


def span(low: float, high: float) -> str:
    """`8 B to 16 MiB`."""
    return bytes_words(low) if low == high else f"{bytes_words(low)} to {bytes_words(high)}"


def where(library: str, device: str, level: str) -> str:
    """What an operation ran through, on and across."""
    return f"{library}, {device}, {level}"


def collective_name(fit: CollectiveFit) -> str:
    """Operation, p and layout, and what it ran through, on and across."""
    return f"{fit.operation}, {fit.placed} ({where(fit.library, fit.device, fit.level)})"


def two(first: str, second: str) -> str:
    """`first (second)`, or `first` alone where the second is none."""
    return first if second == NONE else f"{first} ({second})"


def provenance(parameters: Parameters) -> Table:
    """Where the numbers come from."""
    source = parameters.provenance
    memory = parameters.device_memory_bytes
    counts = (parameters.nodes, parameters.nodes_per_rack, parameters.links_per_node)
    rows = [
        ["cluster", f"{source.cluster_name} (fingerprint {source.cluster_fingerprint})"],
        ["device", parameters.device + (f", {bytes_words(memory)} a rank" if memory else "")],
        ["ranks per node", str(parameters.ranks_per_node)],
        ["nodes, of a rack, links of a node", ", ".join(str(n or "unknown") for n in counts)],
        ["measured (UTC)", f"{source.measured_from} to {source.measured_until}"],
        ["fitted by", f"calib {source.program_version}, seed {source.seed}"],
        ["samples (sha256)", ", ".join(digest[:16] for digest in source.samples_sha256)],
        *([["edited", "by hand, after its fit"]] if source.edited else []),
        *(
            ["merged of", f"{x.sha256}, cluster {x.cluster_name} ({x.cluster_fingerprint})"]
            for x in source.merged
        ),
        *(["note", note] for note in source.notes),
    ]
    return Table("Where the numbers come from", ["what", "value"], rows)


def collectives(parameters: Parameters) -> Table:
    """alpha and bandwidth of one message, and how well line and pieces describe the times."""
    rows = (
        {
            "operation": fit.operation,
            "library, device, level": where(fit.library, fit.device, fit.level),
            "p (nodes)": f"{fit.ranks} ({fit.nodes})" if fit.nodes else str(fit.ranks),
            "alpha us": us(fit.alpha_s),
            "1/beta GB/s": bandwidth(fit.beta_s_per_byte),
            "line off": percent(fit.mean_relative_error),
            "pieces off": two(
                percent(fit.pieces_mean_relative_error), str(len(fit.pieces) or NONE)
            ),
            "left out off": percent(fit.left_out_error),
            "sizes": two(span(*fit.range_nbytes), str(len(fit.points))),
            "reps": str(fit.n or sum(point.n for point in fit.points)),
        }
        for fit in parameters.collectives
    )
    remarks = [
        "alpha: start-up time of one message, the line's intercept / the steps of its algorithm; "
        "1/beta: bandwidth of one message, the bytes that it moves / slope; [95% interval]",
        "off: mean relative error, of one line, of the pieces (how many), and of every second size "
        "when it is left out and predicted from the others",
    ]
    return Table("Collectives: one message", *in_columns(rows), remarks=remarks)


def largest_sizes(parameters: Parameters) -> Table:
    """Of every collective the largest size as measured."""
    rows = [[_measured_row(fit, measured_sizes(fit)[-1])] for fit in parameters.collectives]
    return _measured("Collectives as measured: the largest size", rows)


def every_size(parameters: Parameters) -> Table:
    """Every size of every collective as measured, beside its law."""
    rows = [
        [_measured_row(fit, size) for size in measured_sizes(fit)] for fit in parameters.collectives
    ]
    return replace(_measured("Collectives as measured: every size", rows), folded=True)


def fastest_algorithms(parameters: Parameters) -> Table:
    """By size the fastest of the algorithms and protocols that NCCL was told, beside its own choice."""
    rows = [
        {
            "collective": "" if index else _untold(part.law),
            "sizes": span(part.low, part.high),
            "fastest": part.law.name,
            "us at the first": number(part.law.fit.seconds(part.low) * 1e6),
            "NCCL's own choice us": number(own.fit.seconds(part.low) * 1e6)
            if own is not None and own.knows(part.low)
            else NONE,
        }
        for parts, own in fastest_told(parameters.collectives)
        for index, part in enumerate(parts)
    ]
    remarks = [
        "by the laws; where a row begins, its choice becomes faster than that of the row before"
    ]
    title = "Collectives of NCCL: the fastest algorithm and protocol by size"
    return Table(title, *in_columns(rows), remarks=remarks)


def _untold(law: ToldLaw) -> str:
    """The collective of a law, without what NCCL was told."""
    operation = law.fit.operation.partition(" ")[0]
    return collective_name(law.fit.model_copy(update={"operation": operation}))


def _measured(title: str, groups: list[list[dict[str, str]]]) -> Table:
    """Rows of each collective, which names itself in its first."""
    rows = [
        row | ({"collective": ""} if index else {})
        for rows in groups
        for index, row in enumerate(rows)
    ]
    columns, cells = in_columns(rows)
    return Table(
        title,
        columns,
        cells,
        numbers=columns[1:],
        remarks=[
            "time: median of a call, [95% interval]; off: time / law - 1, * where no law explains it",
            BANDWIDTHS,
        ],
        least=[["reps"], ["off"], ["law us"]],
    )


def _measured_row(fit: CollectiveFit, size: MeasuredSize) -> dict[str, str]:
    law = size.law_seconds
    off = signed_percent(size.seconds.value / law - 1) if law > 0 else NONE
    return {
        "collective": collective_name(fit),
        "size": exact_bytes(size.nbytes),
        "time us": us(size.seconds),
        "law us": number(law * 1e6),
        **({} if size.estimate_s is None else {"NCCL expects us": number(size.estimate_s * 1e6)}),
        "off": off + "*" * size.outlier,
        **bandwidths(size),
        **({"channels": channels_words(size.channels)} if size.channels else {}),
        "reps": str(size.n),
    }


def channels_words(of: Mapping[str, int]) -> str:
    """`16 ring/simple`: what NCCL took."""
    return ", ".join(f"{count} {how}" for how, count in of.items())


def bandwidths(size: MeasuredSize) -> dict[str, str]:
    """algbw and busbw as columns; their intervals are, relatively, that of the time."""
    columns = {"algbw GB/s": size.algbw_bytes_per_s, "busbw GB/s": size.busbw_bytes_per_s}
    return {name: "" if of is None else number(of.value * 1e-9) for name, of in columns.items()}


def pieces(parameters: Parameters) -> Table:
    """The pieces of every collective: t = intercept + bytes / bandwidth between two sizes."""
    rows = (
        {
            "collective": "" if index else collective_name(fit),
            "from": bytes_words(piece.from_nbytes),
            "to": bytes_words(piece.to_nbytes),
            "intercept us": us(piece.intercept_s),
            "slope as GB/s": bandwidth(piece.slope_s_per_byte),
        }
        for fit in parameters.collectives
        for index, piece in enumerate(fit.pieces)
    )
    remarks = [
        "time of a call = intercept + bytes / slope; between two pieces it goes straight in log-log; "
        "inf: it does not grow with the bytes"
    ]
    return Table("Collectives: the pieces of a call", *in_columns(rows), remarks=remarks)


def structural(parameters: Parameters) -> Table:
    """The laws that predict a p which was not measured, and how well."""
    rows = (
        {
            "operation": fit.operation,
            "library, device, level": where(fit.library, fit.device, fit.level),
            "measured p": ", ".join(map(str, fit.ranks)),
            "off": percent(fit.mean_relative_error),
            "held out off": percent(fit.held_out_error),
            "error": factor(fit.error_factor),
            "sizes": span(*fit.range_nbytes),
            "reps": str(fit.n),
        }
        for fit in parameters.structural
    )
    remarks = ["held out: the largest p, predicted from the others; a dash: only two p"]
    return Table("Collectives on any p: structural laws", *in_columns(rows), remarks=remarks)


def algorithms(parameters: Parameters) -> Table:
    """What algorithm the structural laws chose: one row for every run of sizes with one choice."""
    rows = (
        {
            "law": ""
            if index
            else f"{fit.operation} ({where(fit.library, fit.device, fit.level)})",
            "sizes": span(bands[0].nbytes, bands[-1].nbytes),
            "algorithm": bands[0].algorithm,
            "among": "nodes, a ring inside" if bands[0].hierarchical else "ranks",
            "alpha us": us(bands[0].alpha_s),
            "1/beta GB/s": bandwidth(bands[-1].beta_s_per_byte),
        }
        for fit in parameters.structural
        for index, bands in enumerate(_choices(fit))
    )
    remarks = ["alpha at the first size of a row, 1/beta at its last"]
    return Table("Collectives on any p: the algorithm by size", *in_columns(rows), remarks=remarks)


def _choices(fit: StructuralFit) -> Iterator[list[StructuralBand]]:
    """The bands of every run of sizes with one choice."""
    for _, bands in groupby(fit.bands, lambda band: (band.algorithm, band.hierarchical)):
        yield list(bands)


def contention(parameters: Parameters) -> Table:
    """phi: how much slower a byte is when k groups send at once."""
    rows = []
    for fit in parameters.contention:
        flows = f", {estimate_words(fit.capacity)} flows" if fit.capacity is not None else ""
        law = {
            "operation": contention_name(fit),
            "library, device, level": where(fit.library, fit.device, fit.level),
            "sizes": span(fit.min_nbytes, fit.max_nbytes),
            "law": f"{fit.law}{flows}",
        }
        for index, point in enumerate(fit.points):
            links = point.analytical
            rows.append(
                {
                    **(dict.fromkeys(law, "") if index else law),
                    "groups k": str(point.groups),
                    "phi measured": estimate_words(point.contention),
                    "phi of the links": NONE if links is None else f"{links:.2f}",
                    "n": str(point.n),
                }
            )
    return Table("Contention: phi multiplies the time per byte", *in_columns(rows))


def contention_name(fit: ContentionFit) -> str:
    """Operation, ranks of a group, and how they lie."""
    layout = f", stride {fit.stride}" if fit.stride > 1 else ""
    nodes = f", {fit.nodes} nodes" if fit.nodes > 1 else ""
    return f"{fit.operation}, p={fit.ranks}{layout}{nodes}"


def layers(parameters: Parameters) -> Table:
    """How many layers of each kind were measured, and how well."""

    def which(layer: LayerTime) -> tuple[str, int]:
        return layer.kind, layer.active_ranks

    rows = []
    for (kind, active), group in groupby(sorted(parameters.layers, key=which), which):
        mine = list(group)
        forward = [layer.forward_s for layer in mine]
        backward = [layer.backward_s for layer in mine if layer.backward_s.value > 0]
        rows.append(
            {
                "kind": kind,
                "ranks": str(active),
                "layers": str(len(mine)),
                "forward us": _range_us(forward),
                "backward us": _range_us(backward),
                "half-width": percent(median_half_width(forward + backward)),
                "least reps": str(min(layer.n for layer in mine)),
            }
        )
    remarks = [
        "ranks: of a node that work at once; half-width: the median one of the 95% intervals"
    ]
    return Table("Layers that were measured", *in_columns(rows), remarks=remarks)


def _range_us(times: list[Estimate]) -> str:
    if not times:
        return NONE
    low, high = (pick(time.value for time in times) * 1e6 for pick in (min, max))
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def median_half_width(times: list[Estimate]) -> float | None:
    """Median relative half-width of the intervals; None where none has one."""
    widths = [time.half_width for time in times if time.value > 0 and time.has_interval]
    return median(widths) if widths else None


def slowest_passes(passes: Sequence[MeasuredPass], most: int | None = None) -> Table:
    """A row for each pass (as `measured_passes` sorts them), or for the `most` slowest."""
    rows = (
        {
            "layer": layer_words(of.key),
            "pass": of.direction,
            "ranks": str(of.active_ranks),
            "ms": number(of.seconds.value * 1e3),
            "half-width": percent(of.seconds.half_width if of.seconds.has_interval else None),
            "TFLOP/s": rate_words(of.flops_per_s, 1e-12),
            "GB/s": rate_words(of.bytes_per_s, 1e-9),
            "flop/B": NONE if of.intensity is None else number(of.intensity),
            "of peak": percent(of.peak_share),
            **(
                {} if of.workspace_bytes is None else {"workspace": bytes_words(of.workspace_bytes)}
            ),
            **({"kernels": kernels_words(of.kernels)} if of.kernels else {}),
        }
        for of in passes[:most]
    )
    shown = f"{most} of " if most is not None and most < len(passes) else ""
    columns, cells = in_columns(rows)
    return Table(
        "Layers measured alone, the slowest first",
        columns,
        cells,
        numbers=[name for name in columns if name not in ("layer", "pass", "kernels")],
        remarks=[
            f"{shown}{counted(len(passes), 'time')} of one call on the whole batch (batch * input -> "
            "output); ranks: of a node that work at once; half-width: of the 95% intervals "
            "of time and rates",
            "operations and bytes are the fewest that the layer needs, each tensor moved once; of peak: "
            "the least time by the device's peaks of operations and of memory / the time; over 100% is "
            "from a cache, a faster algorithm (Winograd) or better kernels than those of the peak",
        ],
        split=2,
        folded=True,
    )


def rate_words(of: Estimate | None, scale: float) -> str:
    """A rate times `scale` without its interval, which is, relatively, that of the time."""
    return NONE if of is None else number(of.value * scale)


def peaks(parameters: Parameters) -> Table:
    """What a matrix product and a sum of arrays reach: the roof over all layers."""
    rows = (
        {
            "device, items": f"{of.device}, {of.dtype}",
            "ranks": str(of.active_ranks),
            "TFLOP/s": estimate_words(of.flops_per_s, 1e-12),
            "GB/s": estimate_words(of.bytes_per_s, 1e-9),
            "ridge flop/B": number(of.flops_per_s.value / of.bytes_per_s.value),
            "product flop": f"{of.flops:.3g}",
            "sum": bytes_words(of.nbytes),
            "reps": str(of.n),
        }
        for of in parameters.peaks
    )
    remarks = [
        "of a rank, when so many ranks of a node work at once: a product of two square matrices, and a "
        "sum of two float32 arrays; below the ridge, memory is the bound"
    ]
    return Table("Peaks of the device", *in_columns(rows), remarks=remarks)


def work(parameters: Parameters) -> Table:
    """The laws of layers that were not measured: what a call, an operation and a byte cost."""
    rows = (
        {
            "kind": law.kind,
            "direction": law.direction,
            "ranks": str(law.active_ranks),
            "form": law.form,
            "call us": number(law.call_s * 1e6),
            "GFLOP/s": rate(law.s_per_flop),
            "GB/s": rate(law.s_per_byte),
            "weights GB/s": rate(law.s_per_weight_byte),
            "patches GB/s": rate(law.s_per_patch_byte),
            "fresh GB/s": rate(law.s_per_fresh_byte),
            "error": factor(law.error_factor),
            "layers": str(law.n_layers),
            "off": percent(law.score or None),
            "runner-up off": _runner_up(law),
        }
        for law in parameters.work
    )
    remarks = [
        "time of a call = call + bytes of fresh pages + form(operations, bytes, bytes of weights, "
        "bytes of patches); a dash costs nothing. form: sum, the slowest alone (max), or norm2 between "
        "them; fresh: results over 32 MiB, in pages that the system gives anew; any: kinds without a "
        "law of their own",
        "error x1.3: 95% of the layers that were left out lie between 1/1.3 and 1.3 times the law; "
        "off: a typical one of them; runner-up: the next best form",
    ]
    title = "Work laws: layers that were not measured"
    return Table(title, *in_columns(rows), remarks=remarks)


def _runner_up(law: WorkModel) -> str:
    """`flop+byte, max 16.6%`: the next best law and its typical error."""
    name = law.runner_up.replace("_byte", "").replace(" + ", "+")
    return f"{name} {percent(law.runner_up_score)}" if name else NONE


def loops(parameters: Parameters) -> Table:
    """Passes over lists of tensors: optimizer update, packing of gradients, ..."""
    rows = (
        {
            "pass": loop.operation,
            "device, items": f"{loop.device}, {loop.execution}",
            "ranks": str(loop.active_ranks),
            "call us": number(loop.call_s * 1e6),
            "us per tensor": number(loop.s_per_tensor * 1e6),
            "GB/s": rate(loop.s_per_byte),
            "off": percent(loop.mean_relative_error),
            "left out off": percent(loop.held_out_error),
            "error": factor(loop.error_factor),
            "bytes": span(loop.min_bytes, loop.max_bytes),
            "lists measured": str(len(loop.measured)),
        }
        for loop in parameters.tensor_loops
    )
    return Table("Passes over lists of tensors", *in_columns(rows))


def composition(parameters: Parameters) -> Table:
    """What the sum of isolated parts leaves out of an iteration in place."""
    rows = (
        {
            "phase": law.phase,
            "ranks": str(law.active_ranks),
            "us per layer": number(law.s_per_layer * 1e6),
            "ns per byte": number(law.s_per_byte * 1e9),
            "error": factor(law.error_factor),
            "error of the sum": factor(law.sum_error_factor),
            "up to": bytes_words(law.max_bytes),
            "models": ", ".join(law.models),
        }
        for law in parameters.composition
    )
    remarks = [
        "a phase in an iteration = the sum of its layers timed apart + us per layer + ns per byte; "
        "error: of models that were left out; error of the sum: without the addition"
    ]
    title = "Composition: added to the sum of isolated parts"
    return Table(title, *in_columns(rows), remarks=remarks)


def memory(parameters: Parameters) -> Table:
    """gamma = measured peak / naive sum, and the refined form with a factor for each term."""
    rows = (
        {
            "framework, device, family": f"{reuse.framework}, {reuse.device}, {reuse.family}",
            "gamma": estimate_words(reuse.gamma),
            "simple off": two(percent(reuse.gamma_error), percent(reuse.gamma_held_out_error)),
            "constant MiB": number(reuse.constant_bytes.value / 2**20),
            "activations": number(reuse.activations.value),
            "weights": number(reuse.weights.value),
            "optimizer": number(reuse.optimizer.value),
            "refined off": two(percent(reuse.refined_error), percent(reuse.refined_held_out_error)),
            "by count": "" if reuse.live is None else estimate_words(reuse.live.ratio),
            "chosen": "count" if reuse.count_is_better else reuse.chosen,
            "models": str(len(reuse.models)),
        }
        for reuse in parameters.memory
    )
    remarks = [
        "simple: peak = gamma times the naive sum; refined: constant + a factor for each of the three",
        "by count: measured peak by the oracle's count of live tensors, which nothing is fitted to",
        "off: mean relative error (of models that were left out)",
    ]
    title = "Memory reuse: measured peak of live tensors by naive sum"
    return Table(title, *in_columns(rows), remarks=remarks)


def device_memory(parameters: Parameters) -> Table:
    """What a GPU holds for live tensors: the allocator's factor, and what is outside it."""
    rows = (
        {
            "framework, device, family": f"{reuse.framework}, {reuse.device}, {reuse.family}",
            "workspace": ""
            if reuse.live is None
            else bytes_words(reuse.live.workspace_bytes.value),
            "reserved / live": estimate_words(found.reserved),
            "outside MiB": "not measured"
            if found.outside_bytes is None
            else estimate_words(found.outside_bytes, 2**-20),
            "peaks": str(found.n),
        }
        for reuse in parameters.memory
        if (found := reuse.on_device) is not None
    )
    remarks = [
        "peak of the device = reserved / live * (count + workspace, or gamma's peak) + outside",
        "outside the allocator: context, cuBLAS, cuDNN; NCCL's part is what data has beyond serial",
    ]
    return Table("Memory of the device", *in_columns(rows), remarks=remarks)


def overlap(parameters: Parameters) -> Table:
    """eta: the share of the gradient exchange that hides behind the backward; or what it costs."""
    rows = (
        {
            "library, device": f"{law.library}, {law.device}",
            "p": str(law.ranks),
            "eta": estimate_words(law.eta),
            "slowdown": estimate_words(law.slowdown),
            "off": percent(law.error),
            "left out off": percent(law.held_out_error),
            "error": factor(law.error_factor),
            "models": ", ".join(law.models),
        }
        for law in parameters.overlap
    )
    return Table("Overlap: share of the exchange that is hidden", *in_columns(rows))


def sparse(parameters: Parameters) -> Table:
    """Every method of a sparse exchange, and the fastest."""
    rows = (
        {
            "of": law.name,
            "fastest": law.fastest,
            **{
                of: ms(law.methods[of]) if of in law.methods else NONE
                for of in get_args(SparseMethod)
            },
            "P of server": str(law.server_partitions),
        }
        for law in parameters.partitions
    )
    return Table("Sparse exchanges: ms [95%]", *in_columns(rows))


def partitions(parameters: Parameters) -> Table:
    """The server's law, theta0 + theta1 / P + theta2 P of Parallax, and its best P."""
    rows = (
        {
            "of": law.name,
            "theta0 ms": ms(law.constant_s),
            "theta1 ms": ms(law.parallel_s),
            "theta2 ms": ms(law.per_partition_s),
            "best P": _best_words(law),
            "off": percent(law.error),
            "left out off": percent(law.held_out_error),
            "measured P": f"{law.min_partitions} to {law.max_partitions}",
        }
        for law in parameters.partitions
    )
    return Table("Partitions: theta0 + theta1 / P + theta2 P", *in_columns(rows))


def _best_words(law: Partitions) -> str:
    """The best number of partitions with its interval; "inf" where more are always faster."""
    middle, low, high = (
        "inf" if value is None else number(value)
        for value in (law.best_partitions, law.best_low, law.best_high)
    )
    return f"{middle} [{low}, {high}]"
