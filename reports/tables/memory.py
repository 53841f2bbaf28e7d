"""Tables of memory: peaks by the naive sum and by the count, and what a GPU holds."""

from __future__ import annotations

from calib.fitting.parameters.file import Parameters
from calib.foundation.words import bytes_words, estimate_words, number, percent
from calib.reports.tables.cells import execution_column, two
from calib.reports.tables.table import Table, in_columns


def memory(parameters: Parameters) -> Table:
    """gamma = measured peak / naive sum, and the refined form with a factor for each term."""
    execution = execution_column(parameters)
    rows = (
        {
            "framework, device, family": f"{reuse.framework}, {reuse.device}, {reuse.family}",
            **execution(reuse.execution),
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
    execution = execution_column(parameters)
    rows = (
        {
            "framework, device, family": f"{reuse.framework}, {reuse.device}, {reuse.family}",
            **execution(reuse.execution),
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
