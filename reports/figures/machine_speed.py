"""The machine's speed over a run: its references beside those calibrated, the trainings as bands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from calib.fitting.parameters.speed import REFERENCES, Reference, Speed
from calib.foundation.statistics import median
from calib.foundation.text import plain
from calib.foundation.words import counted
from calib.microbench.records.looks import DISTURBANCES, Look
from calib.reports.figures.basics import LEGEND_ABOVE, Figure, markers, significant
from calib.reports.scoring.accuracy import by_others

NAMES: dict[Reference, str] = {
    "arithmetic_s": "arithmetic",
    "memory_s": "memory",
    "threads_s": "threads",
    "message_s": "messages",
}
SYMBOLS: dict[Reference, str] = {
    "arithmetic_s": "square",
    "memory_s": "triangle-up",
    "threads_s": "diamond",
    "message_s": "circle",
}
QUIET, SLOW, DISTURBED = "#2f74c0", "#c76a14", "#d0483e"
BANDS = ("rgba(125,132,141,0.22)", "rgba(125,132,141,0.10)")  # by turns: trainings follow closely
MOST_LOOKS = 1500  # of a reference


@dataclass(frozen=True)
class Watched:
    """Looks at the machine during one launch, of a measurement or of a training."""

    what: str
    ranks: int
    looks: Sequence[Look]
    training: bool = False


@dataclass(frozen=True)
class Slowness:
    """A reference at one look: how many times as long it took as calibrated."""

    reference: Reference
    of: Watched
    look: Look
    ratio: float


def slowness(watched: Sequence[Watched], speed: Speed | None = None) -> list[Slowness]:
    """The references of all looks, beside those of the calibration for as many ranks.

    Where these are not known, or nothing is known to follow them, beside the median of the looks: what a
    copy takes depends on what ran before it.
    """
    found = []
    laws = speed.laws if speed is not None else []
    followed = {name for law in laws for name in law.exponents}
    for name in REFERENCES:
        for ranks in sorted({of.ranks for of in watched}):
            there = [
                (of, look, seconds)
                for of in watched
                if of.ranks == ranks
                for look in of.looks
                if (seconds := getattr(look, name))
            ]
            known = speed.of_ranks(ranks) if speed is not None else None
            usual = known.seconds.get(name) if known is not None and name in followed else None
            if there:
                base = usual.value if usual else median([seconds for _, _, seconds in there])
                found += [Slowness(name, of, look, seconds / base) for of, look, seconds in there]
    return found


def machine_speed_figure(watched: Sequence[Watched], found: Sequence[Slowness]) -> Figure:
    """How many times as long the references took over the time of day; trainings are bands."""
    data = []
    for name in REFERENCES:
        mine = [of for of in found if of.reference == name]
        mine = mine[:: -(-len(mine) // MOST_LOOKS) or 1]
        if mine:
            look = {"size": 7, "symbol": SYMBOLS[name], "color": [_colour(of.look) for of in mine]}
            data.append(
                markers(
                    NAMES[name],
                    [_moment(of.look.unix_s) for of in mine],
                    [significant(of.ratio) for of in mine],
                    [_words(of) for of in mine],
                    look,
                    hover="%{text}: %{y:.2f} times<br>%{x|%H:%M:%S}",
                )
            )
    bands = [of for of in watched if of.training and of.looks]
    bands.sort(key=lambda of: of.looks[0].unix_s)
    return {
        "data": data,
        "layout": {
            "showlegend": True,
            "legend": LEGEND_ABOVE,
            "xaxis": {"type": "date", "showgrid": False, "title": {"text": "UTC"}},
            "yaxis": {"title": {"text": "times as long as calibrated"}, "rangemode": "tozero"},
            "shapes": [_band(of, BANDS[k % 2]) for k, of in enumerate(bands)],
        },
    }


def _colour(look: Look) -> str:
    if by_others(look.disturbed):
        return DISTURBED
    return SLOW if look.disturbed else QUIET


def _words(of: Slowness) -> str:
    disturbed = "; ".join(DISTURBANCES[word] for word in of.look.disturbed)
    return f"{plain(of.of.what)}, {NAMES[of.reference]}" + (f" ({disturbed})" if disturbed else "")


def _moment(unix_s: float) -> str:
    """To the tenth of a second, as plotly takes it."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-5]


def _band(of: Watched, colour: str) -> Figure:
    start = min(look.unix_s - look.window_s for look in of.looks)
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": _moment(start),
        "x1": _moment(max(look.unix_s for look in of.looks)),
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": {"width": 0},
        "fillcolor": colour,
    }


def machine_speed_words(watched: Sequence[Watched], found: Sequence[Slowness]) -> str:
    """The figure in words, for screen readers."""
    looks = [look for of in watched for look in of.looks]
    said = []
    for name in REFERENCES:
        ratios = [of.ratio for of in found if of.reference == name]
        if ratios:
            said.append(
                f"{NAMES[name]} took {median(ratios):.2f} times as long as calibrated in the median, "
                f"{min(ratios):.2f} to {max(ratios):.2f}"
            )
    disturbed = sum(by_others(look.disturbed) for look in looks)
    trainings = sum(of.training for of in watched)
    return (
        f"{counted(len(looks), 'look')} at the machine, {counted(trainings, 'training')} as bands: "
        f"{'; '.join(said)}. Others disturbed {disturbed} of the looks."
    )
