"""Tables of the parameter file, second half: compute, tensor loops, composition, memory and the rest."""

from __future__ import annotations

from calib.fitting.parameters.file import Parameters, WorkModel
from calib.fitting.parameters.memory import Partitions
from calib.fitting.parameters.records import Estimate
from calib.reports.terminal.parameters import NONE, Section, factor, rate, share, size, span, two
from calib.reports.words import estimate, number, plain


def work(parameters: Parameters) -> Section:
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
    return Section("Work laws: layers that were not measured", columns, rows, remarks)


def _runner_up(law: WorkModel) -> str:
    """`flop+byte, max 16.6%`: the next best law and its typical error."""
    name = plain(law.runner_up).replace("_byte", "").replace(" + ", "+")
    return f"{name} {share(law.runner_up_score)}" if name else NONE


def loops(parameters: Parameters) -> Section:
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
    return Section("Passes over lists of tensors", columns, rows)


def composition(parameters: Parameters) -> Section:
    """What the sum of isolated parts leaves out of an iteration in place."""
    rows = [
        [
            law.phase,
            str(law.active_ranks),
            number(law.s_per_layer * 1e6),
            number(law.s_per_byte * 1e9),
            factor(law.error_factor),
            factor(law.sum_error_factor),
            size(law.max_bytes),
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
    return Section(title, columns, rows, remarks)


def memory(parameters: Parameters) -> Section:
    """gamma = measured peak / naive sum, and the refined form with a factor for each term."""
    rows = [
        [
            plain(f"{reuse.framework}, {reuse.device}, {reuse.family}"),
            reuse.measure,
            estimate(reuse.gamma),
            _errors(reuse.gamma_error, reuse.gamma_held_out_error),
            number(reuse.constant_bytes.value / 2**20),
            number(reuse.activations.value),
            number(reuse.weights.value),
            number(reuse.optimizer.value),
            _errors(reuse.refined_error, reuse.refined_held_out_error),
            "" if reuse.live is None else estimate(reuse.live.ratio),
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
    return Section("Memory reuse: measured peak by naive sum", columns, rows, remarks)


def _errors(fitted: float, left_out: float | None) -> str:
    return two(share(fitted), share(left_out))


def overlap(parameters: Parameters) -> Section:
    """eta: the share of the gradient exchange that hides behind the backward."""
    rows = [
        [
            plain(f"{law.library}, {law.device}"),
            str(law.ranks),
            estimate(law.eta),
            share(law.error),
            share(law.held_out_error),
            factor(law.error_factor),
            plain(", ".join(law.models)),
        ]
        for law in parameters.overlap
    ]
    columns = ["library, device", "p", "eta", "off", "left out off", "error", "models"]
    return Section("Overlap: share of the exchange that is hidden", columns, rows)


def partitions(parameters: Parameters) -> Section:
    """theta0 + theta1 / P + theta2 P of Parallax, and the best P."""
    rows = [
        [
            plain(law.name),
            ms(law.constant_s),
            ms(law.parallel_s),
            ms(law.per_partition_s),
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
    return Section("Partitions: theta0 + theta1 / P + theta2 P", columns, rows)


def ms(of: Estimate) -> str:
    """Seconds as milliseconds with the interval."""
    return estimate(of, 1e3)


def best_words(law: Partitions) -> str:
    """The best number of partitions with its interval; "inf" where more are always faster."""
    middle, low, high = (
        "inf" if value is None else number(value)
        for value in (law.best_partitions, law.best_low, law.best_high)
    )
    return f"{middle} [{low}, {high}]"
