"""The parameter file as tables (us, GB/s, MiB), the same in terminal and page.

A bandwidth is 1 / beta with the ends of its interval turned round. "x1.3" is an error factor: 95% of
the times lie between 1/1.3 of the law and 1.3 times it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from typing import get_args

from calib.fitting.parameters.collectives import CollectiveFit, StructuralBand, StructuralFit
from calib.fitting.parameters.contention import ContentionFit
from calib.fitting.parameters.file import Parameters, WorkModel
from calib.fitting.parameters.memory import Partitions
from calib.foundation.records import Estimate
from calib.foundation.statistics import median
from calib.foundation.text import plain
from calib.foundation.words import bytes_words, estimate_words, number, with_interval
from calib.microbench.cases import SparseMethod
from calib.reports.terminal.layout import Sheet

NONE = "-"


def sections(parameters: Parameters) -> list[Sheet]:
    """The tables of all sections that the file fills, in the order of the file."""
    makers = (
        collectives,
        pieces,
        structural,
        algorithms,
        contention,
        layers,
        work,
        loops,
        composition,
        memory,
        overlap,
        sparse,
        partitions,
    )
    tables = [make(parameters) for make in makers]
    return [provenance(parameters), *(table for table in tables if table.rows)]


def absent(parameters: Parameters) -> str:
    """One line that names the sections that the file leaves empty; "" where it leaves none."""
    names = {
        "collectives": parameters.collectives,
        "structural laws": parameters.structural,
        "contention": parameters.contention,
        "layer times": parameters.layers,
        "work laws": parameters.work,
        "tensor loops": parameters.tensor_loops,
        "composition": parameters.composition,
        "memory reuse": parameters.memory,
        "overlap": parameters.overlap,
        "partitions": parameters.partitions,
    }
    missing = [name for name, content in names.items() if not content]
    return f"not measured, so not in this file: {', '.join(missing)}" if missing else ""


def us(of: Estimate) -> str:
    """Seconds as microseconds with the interval."""
    return estimate_words(of, 1e6)


def rate(price: float, scale: float = 1e-9) -> str:
    """1 / price times `scale` (s/B to GB/s, s/flop to GFLOP/s); a dash where it costs nothing."""
    return number(scale / price) if price > 0 else NONE


def bandwidth(beta: Estimate) -> str:
    """1 / beta in GB/s (1e9 B/s) with its interval; "inf" where beta may be 0."""
    if beta.value <= 0:
        return f"inf [{rate(beta.high)}, inf]" if beta.high > 0 else NONE
    value, low = 1e-9 / beta.value, 1e-9 / beta.high
    if beta.low <= 0:
        return f"{number(value)} [{number(low)}, inf]"
    return with_interval(value, low, 1e-9 / beta.low)


def share(value: float | None) -> str:
    """A relative error as `2.4%`; a dash where there is none."""
    return NONE if value is None else f"{value:.1%}"


def factor(value: float | None) -> str:
    """An error factor as `x1.32`; a dash where there is none."""
    return NONE if value is None else f"x{value:.{2 if value < 100 else 0}f}"


def span(low: float, high: float) -> str:
    """`8 B to 16 MiB`."""
    return bytes_words(low) if low == high else f"{bytes_words(low)} to {bytes_words(high)}"


def where(library: str, device: str, level: str) -> str:
    """What an operation ran through, on and across."""
    return plain(f"{library}, {device}, {level}")


def ranks_words(fit: CollectiveFit) -> str:
    """p, and in brackets how many nodes it spans where that is known."""
    return f"{fit.ranks} ({fit.nodes})" if fit.nodes else str(fit.ranks)


def two(first: str, second: str) -> str:
    """`first (second)`, or `first` alone where the second is none."""
    return first if second == NONE else f"{first} ({second})"


def provenance(parameters: Parameters) -> Sheet:
    """Where the numbers come from."""
    source = parameters.provenance
    memory = parameters.device_memory_bytes
    rows = [
        ["cluster", f"{source.cluster_name} (fingerprint {source.cluster_fingerprint})"],
        ["device", parameters.device + (f", {bytes_words(memory)} a rank" if memory else "")],
        ["ranks per node", str(parameters.ranks_per_node)],
        [
            "nodes, of a rack, links of a node",
            ", ".join(
                str(n) if n else "unknown"
                for n in (parameters.nodes, parameters.nodes_per_rack, parameters.links_per_node)
            ),
        ],
        ["measured (UTC)", f"{source.measured_from} to {source.measured_until}"],
        ["fitted by", f"calib {source.program_version}, seed {source.seed}"],
        ["samples (sha256)", ", ".join(digest[:16] for digest in source.samples_sha256)],
    ]
    if source.edited:
        rows.append(["edited", "by hand, after its fit"])
    rows += [
        ["merged of", f"{x.sha256}, cluster {x.cluster_name} ({x.cluster_fingerprint})"]
        for x in source.merged
    ]
    rows += [["note", note] for note in source.notes]
    rows = [[plain(cell) for cell in row] for row in rows]
    return Sheet("Where the numbers come from", ["what", "value"], rows)


def collectives(parameters: Parameters) -> Sheet:
    """alpha and bandwidth of one message, and how well line and pieces describe the times."""
    rows = [
        [
            plain(fit.operation),
            where(fit.library, fit.device, fit.level),
            ranks_words(fit),
            us(fit.alpha_s),
            bandwidth(fit.beta_s_per_byte),
            share(fit.mean_relative_error),
            two(share(fit.pieces_mean_relative_error), str(len(fit.pieces) or NONE)),
            share(fit.left_out_error),
            two(span(*fit.range_nbytes), str(len(fit.points))),
            str(fit.n or sum(point.n for point in fit.points)),
        ]
        for fit in parameters.collectives
    ]
    columns = [
        "operation",
        "library, device, level",
        "p (nodes)",
        "alpha us",
        "1/beta GB/s",
        "line off",
        "pieces off",
        "left out off",
        "sizes",
        "reps",
    ]
    remarks = [
        "alpha: start-up time of one message, the line's intercept / the steps of its algorithm; "
        "1/beta: bandwidth of one message, the bytes that it moves / slope; [95% interval]",
        "off: mean relative error, of one line, of the pieces (how many), and of every second size "
        "when it is left out and predicted from the others",
    ]
    return Sheet("Collectives: one message", columns, rows, remarks)


def pieces(parameters: Parameters) -> Sheet:
    """The pieces of every collective: t = intercept + bytes / bandwidth between two sizes."""
    rows = []
    for fit in parameters.collectives:
        name = plain(f"{fit.operation}, {fit.placed} ({fit.library}, {fit.device}, {fit.level})")
        for index, piece in enumerate(fit.pieces):
            intercept = piece.intercept_s
            rows.append(
                [
                    "" if index else name,
                    bytes_words(piece.from_nbytes),
                    bytes_words(piece.to_nbytes),
                    us(intercept),
                    bandwidth(piece.slope_s_per_byte),
                ]
            )
    remarks = [
        "time of a call = intercept + bytes / slope; between two pieces it goes straight in log-log; "
        "inf: it does not grow with the bytes"
    ]
    columns = ["collective", "from", "to", "intercept us", "slope as GB/s"]
    return Sheet("Collectives: the pieces of a call", columns, rows, remarks)


def structural(parameters: Parameters) -> Sheet:
    """The laws that predict a p which was not measured, and how well."""
    rows = [
        [
            plain(fit.operation),
            where(fit.library, fit.device, fit.level),
            ", ".join(map(str, fit.ranks)),
            share(fit.mean_relative_error),
            share(fit.held_out_error),
            factor(fit.error_factor),
            span(*fit.range_nbytes),
            str(fit.n),
        ]
        for fit in parameters.structural
    ]
    columns = [
        "operation",
        "library, device, level",
        "measured p",
        "off",
        "held out off",
        "error",
        "sizes",
        "reps",
    ]
    remarks = ["held out: the largest p, predicted from the others; a dash: only two p"]
    return Sheet("Collectives on any p: structural laws", columns, rows, remarks)


def algorithms(parameters: Parameters) -> Sheet:
    """What algorithm the structural laws chose: one row for every run of sizes with one choice."""
    rows = []
    for fit in parameters.structural:
        name = f"{plain(fit.operation)} ({where(fit.library, fit.device, fit.level)})"
        for index, bands in enumerate(_choices(fit)):
            first, last = bands[0], bands[-1]
            rows.append(
                [
                    "" if index else name,
                    span(first.nbytes, last.nbytes),
                    plain(first.algorithm),
                    "nodes, a ring inside" if first.hierarchical else "ranks",
                    us(first.alpha_s),
                    bandwidth(last.beta_s_per_byte),
                ]
            )
    columns = ["law", "sizes", "algorithm", "among", "alpha us", "1/beta GB/s"]
    remarks = ["alpha at the first size of a row, 1/beta at its last"]
    return Sheet("Collectives on any p: the algorithm by size", columns, rows, remarks)


def _choices(fit: StructuralFit) -> Iterator[list[StructuralBand]]:
    """The bands of every run of sizes with one choice."""
    for _, bands in groupby(fit.bands, lambda band: (band.algorithm, band.hierarchical)):
        yield list(bands)


def contention(parameters: Parameters) -> Sheet:
    """phi: how much slower a byte is when k groups send at once."""
    rows = []
    for fit in parameters.contention:
        for index, point in enumerate(fit.points):
            law = (
                fit.law
                if fit.capacity is None
                else f"{fit.law}, {estimate_words(fit.capacity)} flows"
            )
            head = [
                contention_name(fit),
                where(fit.library, fit.device, fit.level),
                span(fit.min_nbytes, fit.max_nbytes),
                law,
            ]
            expected = NONE if point.analytical is None else f"{point.analytical:.2f}"
            rows.append(
                [
                    *(head if not index else [""] * len(head)),
                    str(point.groups),
                    estimate_words(point.contention),
                    expected,
                    str(point.n),
                ]
            )
    columns = [
        "operation",
        "library, device, level",
        "sizes",
        "law",
        "groups k",
        "phi measured",
        "phi of the links",
        "n",
    ]
    return Sheet("Contention: phi multiplies the time per byte", columns, rows)


def contention_name(fit: ContentionFit) -> str:
    """Operation, ranks of a group, and how they lie."""
    layout = f", stride {fit.stride}" if fit.stride > 1 else ""
    nodes = f", {fit.nodes} nodes" if fit.nodes > 1 else ""
    return plain(f"{fit.operation}, p={fit.ranks}{layout}{nodes}")


def layers(parameters: Parameters) -> Sheet:
    """How many layers of each kind were measured, and how well."""
    ordered = sorted(parameters.layers, key=lambda layer: (layer.kind, layer.active_ranks))
    rows = []
    for (kind, active), group in groupby(ordered, lambda layer: (layer.kind, layer.active_ranks)):
        mine = list(group)
        forward = [layer.forward_s for layer in mine]
        backward = [layer.backward_s for layer in mine if layer.backward_s.value > 0]
        rows.append(
            [
                plain(kind),
                str(active),
                str(len(mine)),
                _range_us(forward),
                _range_us(backward),
                share(median_half_width(forward + backward)),
                str(min(layer.n for layer in mine)),
            ]
        )
    columns = ["kind", "ranks", "layers", "forward us", "backward us", "half-width", "least reps"]
    remarks = [
        "ranks: of a node that work at once; half-width: the median one of the 95% intervals"
    ]
    return Sheet("Layers that were measured", columns, rows, remarks)


def _range_us(times: list[Estimate]) -> str:
    if not times:
        return NONE
    low, high = (pick(time.value for time in times) * 1e6 for pick in (min, max))
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def median_half_width(times: list[Estimate]) -> float | None:
    """Median relative half-width of the intervals; None where none has one."""
    widths = [time.half_width for time in times if time.value > 0 and time.has_interval]
    return median(widths) if widths else None


def every_layer(parameters: Parameters) -> Sheet:
    """One row for each layer time, the slowest first."""
    ordered = sorted(
        parameters.layers,
        key=lambda layer: (-math.fsum((layer.forward_s.value, layer.backward_s.value)), layer.key),
    )
    rows = [
        [
            plain(layer.key),
            str(layer.batch),
            str(layer.active_ranks),
            us(layer.forward_s),
            us(layer.backward_s) if layer.backward_s.value > 0 else NONE,
            str(layer.n),
        ]
        for layer in ordered
    ]
    columns = ["layer", "batch", "ranks", "forward us", "backward us", "reps"]
    return Sheet("Every layer that was measured, the slowest first", columns, rows)


def work(parameters: Parameters) -> Sheet:
    """The laws of layers that were not measured: what a call, an operation and a byte cost."""
    rows = [
        [
            plain(law.kind),
            law.direction,
            str(law.active_ranks),
            law.form,
            number(law.call_s * 1e6),
            rate(law.s_per_flop),
            rate(law.s_per_byte),
            rate(law.s_per_weight_byte),
            rate(law.s_per_patch_byte),
            rate(law.s_per_fresh_byte),
            factor(law.error_factor),
            str(law.n_layers),
            share(law.score or None),
            _runner_up(law),
        ]
        for law in parameters.work
    ]
    columns = [
        "kind",
        "direction",
        "ranks",
        "form",
        "call us",
        "GFLOP/s",
        "GB/s",
        "weights GB/s",
        "patches GB/s",
        "fresh GB/s",
        "error",
        "layers",
        "off",
        "runner-up off",
    ]
    remarks = [
        "time of a call = call + bytes of fresh pages + form(operations, bytes, bytes of weights, "
        "bytes of patches); a dash costs nothing. form: sum, the slowest alone (max), or norm2 between "
        "them; fresh: results over 32 MiB, in pages that the system gives anew; any: kinds without a "
        "law of their own",
        "error x1.3: 95% of the layers that were left out lie between 1/1.3 and 1.3 times the law; "
        "off: a typical one of them; runner-up: the next best form",
    ]
    return Sheet("Work laws: layers that were not measured", columns, rows, remarks)


def _runner_up(law: WorkModel) -> str:
    """`flop+byte, max 16.6%`: the next best law and its typical error."""
    name = plain(law.runner_up).replace("_byte", "").replace(" + ", "+")
    return f"{name} {share(law.runner_up_score)}" if name else NONE


def loops(parameters: Parameters) -> Sheet:
    """Passes over lists of tensors: optimizer update, packing of gradients, ..."""
    rows = [
        [
            plain(loop.operation),
            plain(f"{loop.device}, {loop.dtype}"),
            str(loop.active_ranks),
            number(loop.call_s * 1e6),
            number(loop.s_per_tensor * 1e6),
            rate(loop.s_per_byte),
            share(loop.mean_relative_error),
            share(loop.held_out_error),
            factor(loop.error_factor),
            span(loop.min_bytes, loop.max_bytes),
            str(len(loop.measured)),
        ]
        for loop in parameters.tensor_loops
    ]
    columns = [
        "pass",
        "device, items",
        "ranks",
        "call us",
        "us per tensor",
        "GB/s",
        "off",
        "left out off",
        "error",
        "bytes",
        "lists measured",
    ]
    return Sheet("Passes over lists of tensors", columns, rows)


def composition(parameters: Parameters) -> Sheet:
    """What the sum of isolated parts leaves out of an iteration in place."""
    rows = [
        [
            law.phase,
            str(law.active_ranks),
            number(law.s_per_layer * 1e6),
            number(law.s_per_byte * 1e9),
            factor(law.error_factor),
            factor(law.sum_error_factor),
            bytes_words(law.max_bytes),
            plain(", ".join(law.models)),
        ]
        for law in parameters.composition
    ]
    columns = [
        "phase",
        "ranks",
        "us per layer",
        "ns per byte",
        "error",
        "error of the sum",
        "up to",
        "models",
    ]
    title = "Composition: added to the sum of isolated parts"
    remarks = [
        "a phase in an iteration = the sum of its layers timed apart + us per layer + ns per byte; "
        "error: of models that were left out; error of the sum: without the addition"
    ]
    return Sheet(title, columns, rows, remarks)


def memory(parameters: Parameters) -> Sheet:
    """gamma = measured peak / naive sum, and the refined form with a factor for each term."""
    rows = [
        [
            plain(f"{reuse.framework}, {reuse.device}, {reuse.family}"),
            reuse.measure,
            estimate_words(reuse.gamma),
            _errors(reuse.gamma_error, reuse.gamma_held_out_error),
            number(reuse.constant_bytes.value / 2**20),
            number(reuse.activations.value),
            number(reuse.weights.value),
            number(reuse.optimizer.value),
            _errors(reuse.refined_error, reuse.refined_held_out_error),
            "" if reuse.live is None else estimate_words(reuse.live.ratio),
            "count" if reuse.count_is_better else reuse.chosen,
            str(len(reuse.models)),
        ]
        for reuse in parameters.memory
    ]
    columns = [
        "framework, device, family",
        "peak",
        "gamma",
        "simple off",
        "constant MiB",
        "activations",
        "weights",
        "optimizer",
        "refined off",
        "by count",
        "chosen",
        "models",
    ]
    remarks = [
        "simple: peak = gamma times the naive sum; refined: constant + a factor for each of the three",
        "by count: measured peak by the oracle's count of live tensors, which nothing is fitted to",
        "off: mean relative error (of models that were left out)",
    ]
    return Sheet("Memory reuse: measured peak by naive sum", columns, rows, remarks)


def _errors(fitted: float, left_out: float | None) -> str:
    return two(share(fitted), share(left_out))


def overlap(parameters: Parameters) -> Sheet:
    """eta: the share of the gradient exchange that hides behind the backward; or what it costs."""
    rows = [
        [
            plain(f"{law.library}, {law.device}"),
            str(law.ranks),
            estimate_words(law.eta),
            estimate_words(law.slowdown),
            share(law.error),
            share(law.held_out_error),
            factor(law.error_factor),
            plain(", ".join(law.models)),
        ]
        for law in parameters.overlap
    ]
    columns = ["library, device", "p", "eta", "slowdown", "off", "left out off", "error", "models"]
    return Sheet("Overlap: share of the exchange that is hidden", columns, rows)


def partitions(parameters: Parameters) -> Sheet:
    """The server's law, theta0 + theta1 / P + theta2 P of Parallax, and its best P."""
    rows = [
        [
            plain(law.name),
            estimate_words(law.constant_s, 1e3),
            estimate_words(law.parallel_s, 1e3),
            estimate_words(law.per_partition_s, 1e3),
            best_words(law),
            share(law.error),
            share(law.held_out_error),
            f"{law.min_partitions} to {law.max_partitions}",
        ]
        for law in parameters.partitions
    ]
    columns = [
        "of",
        "theta0 ms",
        "theta1 ms",
        "theta2 ms",
        "best P",
        "off",
        "left out off",
        "measured P",
    ]
    return Sheet("Partitions: theta0 + theta1 / P + theta2 P", columns, rows)


def sparse(parameters: Parameters) -> Sheet:
    """Every method of a sparse exchange, and the fastest."""
    rows = [
        [
            plain(law.name),
            law.fastest,
            *(ms(law.methods[of]) if of in law.methods else NONE for of in get_args(SparseMethod)),
            str(law.server_partitions),
        ]
        for law in parameters.partitions
    ]
    columns = ["of", "fastest", *get_args(SparseMethod), "P of server"]
    return Sheet("Sparse exchanges: ms [95%]", columns, rows)


def ms(of: Estimate) -> str:
    """Seconds as milliseconds with the interval."""
    return estimate_words(of, 1e3)


def best_words(law: Partitions) -> str:
    """The best number of partitions with its interval; "inf" where more are always faster."""
    middle, low, high = (
        "inf" if value is None else number(value)
        for value in (law.best_partitions, law.best_low, law.best_high)
    )
    return f"{middle} [{low}, {high}]"
