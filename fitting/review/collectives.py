"""Collectives, structural laws and contention: what is thin, noisy or extrapolated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint
from calib.fitting.parameters.contention import ContentionFit
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.findings import (
    BEYOND,
    FEW,
    GAPS,
    LEFT_OUT,
    MAX_ERROR,
    MAX_HALF_WIDTH,
    MIN_REPETITIONS,
    MISFIT,
    ONE_RUN,
    OUTLYING,
    QUIETER,
    SHAPE,
    WIDE,
    Finding,
    Remark,
    about,
    large_error,
    note,
    warning,
    wide_intervals,
)
from calib.fitting.parameters.laws import label_of
from calib.fitting.parameters.structural import StructuralFit
from calib.foundation.words import bytes_words, several

# sizes, under which every second one says nothing of the others (fitting/sections/collectives.py)
MIN_SIZES = 6
# what issue 4 asks of the structural law, for the largest p when it is left out
MAX_HELD_OUT_ERROR = 0.15
# a smaller fall between two pieces is none that a reader would see
MIN_FALL = 0.02
# numbers of groups, under which phi of another number is a guess
MIN_GROUPS = 3


def review_collectives(parameters: Parameters, gradients: Mapping[str, int]) -> Iterator[Finding]:
    """Findings on everything that sends messages. `gradients`: model -> bytes of its allreduce."""
    for fit in parameters.collectives:
        name = label_of("collectives", fit)
        yield from about("collectives", name, _thin(fit), _noisy(fit), _shape(fit))
    yield from _gradient_exchange(parameters, gradients)
    for law in parameters.structural:
        yield from about("structural", label_of("structural", law), _structural(law))
    for contended in parameters.contention:
        yield from about("contention", label_of("contention", contended), _contention(contended))


def _thin(fit: CollectiveFit) -> Iterator[Remark]:
    if len(fit.points) < MIN_SIZES:
        yield warning(
            GAPS,
            f"{len(fit.points)} sizes, under the {MIN_SIZES} that let some be left out as a check; "
            "measure more sizes",
        )
    if fit.slope_from:
        yield note(BEYOND, f"{fit.slope_words}; measure larger ones")
    short = [point for point in fit.points if point.n < MIN_REPETITIONS]
    # a mean of many calls is no single repetition, but says nothing of another run
    means = [point for point in short if not 0 < point.calls < MIN_REPETITIONS]
    few = [point for point in short if point not in means]
    if few:
        yield warning(
            FEW,
            f"{len(few)} of {len(fit.points)} sizes have under {MIN_REPETITIONS} repetitions (least "
            f"{min(point.n for point in few)}), so their medians have no 95% interval; repeat the "
            "measurement, or import more logs of it",
        )
    if means:
        yield note(
            ONE_RUN,
            f"{len(means)} of {len(fit.points)} sizes have {few_words(means)} each, means of many "
            "calls, which do not say how runs differ; import more logs of it",
        )
    if fit.left_out_error is not None and fit.left_out_error > MAX_ERROR:
        low, high = fit.range_nbytes
        yield warning(
            GAPS,
            f"a size that is left out, predicted from its neighbours, is off by "
            f"{fit.left_out_error:.1%} on average, over {MAX_ERROR:.0%}; measure more "
            f"sizes between {bytes_words(low)} and {bytes_words(high)}",
        )


def few_words(points: Sequence[CollectivePoint]) -> str:
    """`1 row`, `2 to 5 rows`."""
    counts = sorted({point.n for point in points})
    return " to ".join(map(str, counts[:1] + counts[1:][-1:])) + f" row{'s' * (counts[-1] > 1)}"


def _noisy(fit: CollectiveFit) -> Iterator[Remark]:
    widths = [(point.seconds.half_width, point.nbytes) for point in fit.points]
    over = [pair for pair in widths if pair[0] > MAX_HALF_WIDTH]
    if over:
        worst, nbytes = max(over)
        yield Remark(
            "warning" if 2 * len(over) > len(widths) else "note",
            WIDE,
            f"{len(over)} of {len(widths)} sizes have a 95% interval over +-{MAX_HALF_WIDTH:.0%}, "
            f"worst {bytes_words(nbytes)} with +-{worst:.0%}; {QUIETER}",
        )
    yield from wide_intervals([("alpha", fit.alpha_s)], "measure smaller sizes, or more often")
    yield from wide_intervals(
        [("beta", fit.beta_s_per_byte)], "measure larger sizes, or more often"
    )
    factor = fit.pieces_error_factor if fit.pieces else fit.line_error_factor
    what = "measured sizes" if fit.pieces else "measured sizes (by alpha and beta, no pieces)"
    yield from large_error(factor, what, "measure more sizes where they are off")


def _shape(fit: CollectiveFit) -> Iterator[Remark]:
    if fit.outliers_nbytes:
        yield note(
            LEFT_OUT,
            f"{len(fit.outliers_nbytes)} of {len(fit.points)} sizes lie far from their neighbours "
            f"and feed no law: {several([bytes_words(m) for m in fit.outliers_nbytes])}; measure "
            "them again",
        )
    for left, right in pairwise(fit.pieces):
        before, after = left.at(left.to_nbytes), right.at(right.from_nbytes)
        if before > 0 and after < (1 - MIN_FALL) * before:
            yield note(
                SHAPE,
                f"the time falls by {1 - after / before:.0%} from {bytes_words(left.to_nbytes)} to "
                f"{bytes_words(right.from_nbytes)}, as where the protocol changes; see whether it "
                "does so in another run",
            )


def _gradient_exchange(parameters: Parameters, gradients: Mapping[str, int]) -> Iterator[Finding]:
    """Where the allreduce of gradients would be extrapolated, in size or in p."""
    fits = [fit for fit in parameters.collectives if fit.operation == "allreduce" and fit.at_home]
    if not fits:
        remark = warning(
            GAPS,
            "there is none, so the exchange of gradients cannot be predicted; measure it on 2 ranks "
            "or more",
        )
        yield from about("collectives", "allreduce", [remark])
    for fit in fits:
        yield from about("collectives", label_of("collectives", fit), _other_sizes(fit, gradients))
    for library in dict.fromkeys(fit.library for fit in fits):
        mine = [fit for fit in fits if fit.library == library]
        subject = f"allreduce ({library})"
        yield from about("collectives", subject, _other_ranks(mine, library, parameters))


def _other_sizes(fit: CollectiveFit, gradients: Mapping[str, int]) -> Iterator[Remark]:
    low, high = fit.range_nbytes
    beyond = [f"{model} {bytes_words(m)}" for model, m in gradients.items() if not low <= m <= high]
    if beyond:
        yield warning(
            BEYOND,
            f"gradients lie outside the measured {bytes_words(low)} to {bytes_words(high)}: "
            f"{several(beyond)}; "
            "measure up to that size",
        )


def _other_ranks(
    fits: Sequence[CollectiveFit], library: str, parameters: Parameters
) -> Iterator[Remark]:
    """`fits` are all allreduces of the library."""
    measured = ", ".join(map(str, sorted({fit.ranks for fit in fits})))
    laws = [(law.operation, law.library) for law in parameters.structural]
    is_structural = ("allreduce", library) in laws
    how = "the structural law" if is_structural else "the nearest, scaled as a ring"
    yield note(
        BEYOND,
        f"measured on p = {measured}; every other p is predicted by {how}; measure the p that you "
        "train on",
    )
    if all(fit.level == "node" for fit in fits):
        # who has one node cannot calibrate on two
        advice = "" if parameters.nodes == 1 else "; calibrate on two nodes or more"
        yield note(
            BEYOND,
            f"nothing was measured between nodes, so beyond {parameters.ranks_per_node} ranks "
            f"predictions are a guess{advice}",
        )


def _structural(law: StructuralFit) -> Iterator[Remark]:
    for words in law.outlying_words:
        yield warning(OUTLYING, f"{words}; run them again")
    if law.held_out_error is not None and law.held_out_error > MAX_HELD_OUT_ERROR:
        yield warning(
            MISFIT,
            f"{law.usual[-1].words}, predicted from the smaller layouts, are off by "
            f"{law.held_out_error:.1%} on average, over {MAX_HELD_OUT_ERROR:.0%}; measure the layout "
            "that you train on",
        )


def _contention(fit: ContentionFit) -> Iterator[Remark]:
    if len(fit.points) < MIN_GROUPS:
        yield note(
            GAPS,
            f"phi is known for {' and '.join(str(p.groups) for p in fit.points)} groups only; "
            "measure more groups at once",
        )
    if fit.baseline != "same layout":
        yield note(
            GAPS,
            f"one group alone was not measured in this layout (taken from: {fit.baseline}), so phi "
            "holds how the layouts differ; measure one group of it",
        )
    yield from wide_intervals((f"phi of {p.groups} groups", p.contention) for p in fit.points)
    if fit.mean_relative_error > MAX_ERROR:
        yield warning(
            MISFIT,
            f"times are off by {fit.mean_relative_error:.1%} on average, over {MAX_ERROR:.0%}; "
            "measure more sizes of each number of groups",
        )
