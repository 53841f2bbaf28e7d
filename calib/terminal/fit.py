"""What was fitted, in one table and a few lines; `calib show` prints all of it."""

from __future__ import annotations

from collections.abc import Sequence

from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import Parameters
from calib.foundation.words import estimate_words
from calib.terminal.printing import say, table


def show(parameters: Parameters) -> None:
    """alpha and beta of every collective, and how many of the rest there are."""
    places = {_where(fit) for fit in parameters.collectives}
    rows = [
        [
            f"{fit.operation} ({_where(fit)})" if len(places) > 1 else fit.operation,
            estimate_words(fit.alpha_s, 1e6),
            estimate_words(fit.beta_s_per_byte, 1e9),
            f"{fit.mean_relative_error:.1%}",
            f"{len(fit.pieces)}",
            _percent(fit.pieces_mean_relative_error),
            _percent(fit.left_out_error),
        ]
        for fit in parameters.collectives
    ]
    columns = [
        "operation",
        "alpha us",
        "beta ns/B",
        "line off by",
        "pieces",
        "pieces off by",
        "left-out sizes off by",
    ]
    if rows:
        where = f" ({places.pop()})" if len(places) == 1 else ""
        title = f"Collectives{where}: one line (alpha, beta, 95% interval) and the pieces"
        table(title, columns, rows)
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
    counts: dict[str, Sequence[object]] = {
        "collectives": parameters.collectives if collectives else (),
        "layer times": parameters.layers,
        "work laws": parameters.work,
        "tensor loops": parameters.tensor_loops,
        "composition laws": parameters.composition,
        "structural laws": parameters.structural,
        "contention laws": parameters.contention,
        "memory laws": parameters.memory,
        "overlap laws": parameters.overlap,
        "sparse exchanges": parameters.partitions,
    }
    held = ", ".join(f"{what} {len(items)}" for what, items in counts.items() if items)
    return f"{held} on {parameters.device}" if held else ""


def _where(fit: CollectiveFit) -> str:
    """Library, buffers of a GPU, level, p and layout."""
    parts = [fit.library, *([fit.device] if fit.device != "cpu" else []), fit.level, fit.placed]
    return ", ".join(parts)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
