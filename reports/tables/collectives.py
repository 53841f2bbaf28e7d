"""Tables of collectives: what one message costs, as measured, by algorithm, on any p, with others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby

from calib.fitting.parameters.algorithms import GroupShape
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.contention import ContentionFit
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.measured_sizes import MeasuredSize, measured_sizes
from calib.fitting.parameters.structural import ANY_LINKS, StructuralBand, StructuralFit
from calib.fitting.parameters.told import ToldLaw, fastest_told
from calib.foundation.words import (
    bytes_words,
    estimate_words,
    exact_bytes,
    number,
    percent,
    several,
    signed_percent,
)
from calib.reports.tables.cells import NONE, bandwidth, factor, span, two, us, where
from calib.reports.tables.table import Table, in_columns

BANDWIDTHS = "algbw = size / time; busbw = algbw x nccl-tests' factor, if any; GB/s = 1e9 B/s"


def collective_name(fit: CollectiveFit) -> str:
    """Operation, p and layout, and what it ran through, on and across."""
    return f"{fit.operation}, {fit.placed} ({where(fit.library, fit.device, fit.level)})"


def collectives(parameters: Parameters) -> Table:
    """alpha and bandwidth of one message, and how well they and the pieces describe the times."""
    rows = (
        {
            "operation": fit.operation,
            "library, device, level": where(fit.library, fit.device, fit.level),
            "p (nodes)": f"{fit.ranks} ({fit.nodes})" if fit.nodes else str(fit.ranks),
            "alpha us": us(fit.alpha_s),
            "1/beta GB/s": bandwidth(fit.beta_s_per_byte) + "*" * bool(fit.slope_from),
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
        "alpha: start-up time of a message, what the smallest sizes take without their bytes / the "
        "steps of the algorithm; 1/beta: bandwidth of a message at the largest sizes; [95% interval]",
        "off: mean relative error, of one line with this alpha and beta, of the pieces (how many), "
        "and of a size when it is left out and predicted from its neighbours",
        *_shared_slopes(parameters),
        *_bursts(parameters),
    ]
    return Table("Collectives: one message", *in_columns(rows), remarks=remarks)


def _bursts(parameters: Parameters) -> Iterator[str]:
    """A remark for every link that takes something at once."""
    for fit in parameters.collectives:
        if fit.burst is not None:
            size = bytes_words(round(fit.burst.nbytes.value))
            yield (
                f"{where(fit.library, fit.device, fit.level)}: where a message follows work, its link "
                f"takes {size} at once, {percent(fit.burst.share)} of their time"
            )


def _shared_slopes(parameters: Parameters) -> Iterator[str]:
    """A remark for all collectives whose beta is from the same others."""
    named: dict[str, list[str]] = {}
    for fit in parameters.collectives:
        if fit.slope_from:
            named.setdefault(several(fit.slope_from), []).append(fit.operation)
    for others, mine in named.items():
        operations = several(list(dict.fromkeys(mine)))
        yield f"*: of {operations}, whose largest size is too small for it, beta is from {others}"


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
            "time: median of a call, [95% interval]; law: the pieces; off: time / law - 1, * where no "
            "law explains it",
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
    """The laws that predict a layout which was not measured, and how well."""
    rows = (
        {
            "operation": fit.operation,
            "library, device, level": where(fit.library, fit.device, fit.level),
            "measured on": several([_placed(each.shape) for each in fit.layouts], 4),
            "links of r ranks": _links(fit),
            "held out off": percent(fit.held_out_error),
            "error": factor(fit.error_factor),
            "sizes": span(*fit.range_nbytes),
        }
        for fit in parameters.structural
    )
    remarks = [
        "measured on: nodes x ranks on each; held out: the largest layout, predicted from the smaller "
        "ones; a dash: only one",
        "error: 95% of times on twice the nodes lie within the law / and * it",
        *(f"{words}." for fit in parameters.structural for words in fit.outlying_words),
    ]
    return Table("Collectives on any layout: structural laws", *in_columns(rows), remarks=remarks)


def _links(fit: StructuralFit) -> str:
    """`r^0.5, 4 for all nodes`; none in a node; of one number of ranks not known."""
    if fit.level == "node":
        return ""
    exponent = fit.links_exponent
    shared = f", {fit.shared_links:.3g} for all nodes" if fit.shared_links else ""
    return ("unknown" if exponent == ANY_LINKS else f"r^{exponent.value:.2g}") + shared


def _placed(shape: GroupShape) -> str:
    """`4`, `2x8`; uneven, `2 nodes of up to 8`."""
    if shape.nodes == 1:
        return str(shape.ranks)
    each = shape.ranks_per_node
    return f"{shape.nodes}x{each}" if shape.is_even else f"{shape.nodes} nodes of up to {each}"


def algorithms(parameters: Parameters) -> Table:
    """What the structural laws take a library to do: one row for every run of sizes with one choice."""
    rows = (
        {
            "law": ""
            if index
            else f"{fit.operation} ({where(fit.library, fit.device, fit.level)})",
            "sizes": span(bands[0].nbytes, bands[-1].nbytes),
            "algorithm, the fastest": bands[0].likeliest,
            "weight": f"{min(band.weights[band.likeliest] for band in bands):.0%}",
        }
        for fit in parameters.structural
        for index, bands in enumerate(_choices(fit))
    )
    remarks = [
        "weight: the least in these sizes; what is left is on other algorithms",
        *(
            f"{fit.operation} ({where(fit.library, fit.device, fit.level)}): by {rule}, "
            f"{share:.0%} likely"
            for fit in parameters.structural
            for rule, share in fit.rules.items()
        ),
    ]
    return Table(
        "Collectives on any layout: algorithms by size", *in_columns(rows), remarks=remarks
    )


def _choices(fit: StructuralFit) -> Iterator[list[StructuralBand]]:
    """The bands of every run of sizes with one choice."""
    for _, bands in groupby(fit.bands, lambda band: band.likeliest):
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
