"""Tables of exchanges of gradients: what the backward hides, and sparse ones."""

from __future__ import annotations

from typing import get_args

from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.memory import Partitions
from calib.foundation.words import estimate_words, number, percent
from calib.microbench.cases import SparseMethod
from calib.reports.tables.cells import NONE, factor, ms
from calib.reports.tables.table import Table, in_columns


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
