"""Tables of what a rank computes: layers, their laws, peaks, passes over tensors, composition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from calib.fitting.parameters.file import LayerTime, Parameters, WorkModel
from calib.fitting.parameters.measured_passes import MeasuredPass
from calib.foundation.execution import USUAL
from calib.foundation.records import Estimate
from calib.foundation.statistics import median
from calib.foundation.words import bytes_words, counted, estimate_words, number, percent
from calib.reports.tables.cells import NONE, execution_column, execution_words, factor, rate, span
from calib.reports.tables.table import Table, in_columns
from calib.reports.words import kernels_words, layer_words

WORDS = ("layer", "pass", "execution", "kernels")  # columns of the slowest passes


def layers(parameters: Parameters) -> Table:
    """How many layers of each kind were measured, and how well."""

    def which(layer: LayerTime) -> tuple[str, str, int]:
        return layer.kind, layer.execution, layer.active_ranks

    execution, rows = execution_column(parameters), []
    for (kind, how, active), group in groupby(sorted(parameters.layers, key=which), which):
        mine = list(group)
        forward = [layer.forward_s for layer in mine]
        backward = [layer.backward_s for layer in mine if layer.backward_s.value > 0]
        rows.append(
            {
                "kind": kind,
                **execution(how),
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
    usual = all(of.execution in ("", USUAL) for of in passes)
    rows = (
        {
            "layer": layer_words(of.key),
            "pass": of.direction,
            **({} if usual else {"execution": execution_words(of.execution)}),
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
        numbers=[name for name in columns if name not in WORDS],
        remarks=[
            f"{shown}{counted(len(passes), 'time')} of one call on the whole batch (batch * input -> "
            "output); ranks: of a node that work at once; half-width: of the 95% intervals "
            "of time and rates",
            "operations and bytes are the fewest that the layer needs, each tensor moved once; of peak: "
            "the least time by the device's peaks of operations and of memory / the time; over 100% is "
            "from a cache, a faster algorithm (Winograd) or better kernels than those of the peak",
        ],
        split=2 if usual else 3,
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
    execution = execution_column(parameters)
    rows = (
        {
            "kind": law.kind,
            "direction": law.direction,
            **execution(law.execution),
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
            "kinds": str(law.n_kinds),
            "off": percent(law.score or None),
            "runner-up off": _runner_up(law),
        }
        for law in parameters.work
    )
    remarks = [
        "time of a call = call + bytes of fresh pages + form(operations, bytes, bytes of weights, "
        "bytes of patches); a dash costs nothing. form: sum, the slowest alone (max), or norm2 between "
        "them; fresh: results over 32 MiB, in pages that the system gives anew; any, products, norms, "
        "arithmetic, functions, copies: of kinds that were never measured",
        "error x1.3: 95% of the layers that were left out lie between 1/1.3 and 1.3 times the law; "
        "off: a typical one of them; runner-up: the next best form; kinds over 1: whole kinds were left "
        "out (of a kind of few layers, which is that much dearer or cheaper than all: these)",
    ]
    title = "Work laws: layers that were not measured"
    return Table(title, *in_columns(rows), remarks=remarks)


def _runner_up(law: WorkModel) -> str:
    """`flop+byte, max 16.6%`: the next best law and its typical error."""
    name = law.runner_up.replace("_byte", "").replace(" + ", "+")
    return f"{name} {percent(law.runner_up_score)}" if name else NONE


def loops(parameters: Parameters) -> Table:
    """Passes over lists of tensors: optimizer update, packing of gradients, ..."""
    execution = execution_column(parameters)
    rows = (
        {
            "pass": loop.operation,
            "device": loop.device,
            **execution(loop.execution),
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
    execution = execution_column(parameters)
    rows = (
        {
            "phase": " by ".join(filter(None, (law.phase, law.library))),
            **execution(law.execution),
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
