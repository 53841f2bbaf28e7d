"""What was fitted, in one table and a few lines; `calib show` prints all of it."""

from __future__ import annotations

from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.measured_sizes import measured_sizes
from calib.foundation.words import estimate_words, percent
from calib.reports.tables.collectives import BANDWIDTHS, bandwidths
from calib.reports.tables.parameters import kinds
from calib.reports.tables.table import Table, in_columns
from calib.terminal.printing import print_table, say

ENDS = "alpha: start-up of the smallest sizes; beta: per byte at the largest; line: these two alone"
# what a narrow terminal may leave out
LEAST = [["left-out sizes off by"], ["line off by"], ["pieces off by"]]


def show(parameters: Parameters) -> None:
    """alpha, beta and bandwidths of every collective, and how many of the rest there are."""
    places = {_where(fit) for fit in parameters.collectives}
    rows = [
        {
            "operation": f"{fit.operation} ({_where(fit)})" if len(places) > 1 else fit.operation,
            "alpha us": estimate_words(fit.alpha_s, 1e6),
            "beta ns/B": estimate_words(fit.beta_s_per_byte, 1e9),
            "line off by": percent(fit.mean_relative_error),
            "pieces off by": percent(fit.pieces_mean_relative_error),
            "left-out sizes off by": percent(fit.left_out_error),
            **bandwidths(measured_sizes(fit)[-1]),
        }
        for fit in parameters.collectives
    ]
    if rows:
        where = f" ({places.pop()})" if len(places) == 1 else ""
        title = f"Collectives{where}: alpha, beta (95% interval) and the pieces"
        remarks = [ENDS, "algbw and busbw: at the largest size", BANDWIDTHS]
        print_table(Table(title, *in_columns(rows), remarks=remarks, least=LEAST))
    else:
        say("no collective was measured (it takes 2 ranks with a core each)")
    held = fitted_words(parameters, collectives=False)
    if held:
        say(f"also {held}; `calib show` prints them")
    else:
        say("nothing else was measured; `calib show` prints the pieces and all numbers")
    for note in parameters.provenance.notes:
        say(f"note: {note}")


def fitted_words(parameters: Parameters, collectives: bool = True) -> str:
    """How many laws of each kind a file holds, and of which device; "" where it holds none."""
    held = ", ".join(
        f"{what} {len(items)}"
        for what, items in kinds(parameters).items()
        if items and (collectives or what != "collectives")
    )
    return f"{held} on {parameters.device}" if held else ""


def _where(fit: CollectiveFit) -> str:
    """Library, buffers of a GPU, level, p and layout."""
    parts = [fit.library, *([fit.device] if fit.device != "cpu" else []), fit.level, fit.placed]
    return ", ".join(parts)
