"""What is thin, noisy or extrapolated in the collectives, structural laws and contention of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fitting.findings import (
    MAX_ERROR,
    MAX_HALF_WIDTH,
    QUIETER,
    Finding,
    half_width,
    off,
    several,
    size,
    wide,
)
from fitting.parameters import Parameters
from fitting.parameters_collective import CollectiveFit, StructuralFit
from fitting.parameters_contention import ContentionFit
from foundation.statistics import median_ranks

# sizes, under which every second one says nothing of the others (fitting/collective_fit.py)
MIN_SIZES = 6
# under this many values a median has no 95% interval
MIN_REPETITIONS = next(n for n in range(1, 100) if median_ranks(n, 0.95) is not None)
# p, under which none can be left out to choose the algorithm by (fitting/parameters_collective.py)
MIN_P = 3
# what issue 4 asks of the structural law, for the largest p when it is left out
MAX_HELD_OUT_ERROR = 0.15
# a smaller fall between two pieces is none that a reader would see
MIN_FALL = 0.02
MIN_GROUPS = 3


def review_collectives(parameters: Parameters, gradients: Mapping[str, int]) -> Iterator[Finding]:
    """Findings on everything that sends messages. `gradients`: model -> bytes of its allreduce."""
    for fit in parameters.collectives:
        yield from _thin(fit)
        yield from _noisy(fit)
        yield from _shape(fit)
    yield from _reach(parameters, gradients)
    for law in parameters.structural:
        yield from _structural(law)
    for contended in parameters.contention:
        yield from _contention(contended)


def name(fit: CollectiveFit) -> str:
    """Operation, library, device, level and p."""
    return f"{fit.operation} ({fit.library}, {fit.device}, {fit.level}, p={fit.ranks})"


def _thin(fit: CollectiveFit) -> Iterator[Finding]:
    if len(fit.points) < MIN_SIZES:
        yield Finding(
            "warning", "thin", "collectives", name(fit),
            f"{len(fit.points)} sizes, under the {MIN_SIZES} that let some be left out as a check; "
            "measure more sizes",
        )  # fmt: skip
    few = [point for point in fit.points if point.n < MIN_REPETITIONS]
    if few:
        yield Finding(
            "warning", "thin", "collectives", name(fit),
            f"{len(few)} of {len(fit.points)} sizes have under {MIN_REPETITIONS} repetitions (least "
            f"{min(point.n for point in few)}), so their medians have no 95% interval; repeat the "
            "measurement, or import more logs of it",
        )  # fmt: skip
    if fit.left_out_error is not None and fit.left_out_error > MAX_ERROR:
        yield Finding(
            "warning", "thin", "collectives", name(fit),
            f"every second size, predicted from the others, is off by {fit.left_out_error:.1%} on "
            f"average, over {MAX_ERROR:.0%}; measure more sizes between {size(fit.points[0].nbytes)} "
            f"and {size(fit.points[-1].nbytes)}",
        )  # fmt: skip


def _noisy(fit: CollectiveFit) -> Iterator[Finding]:
    widths = [(half_width(point.seconds), point.nbytes) for point in fit.points]
    over = [pair for pair in widths if pair[0] > MAX_HALF_WIDTH]
    laws = [("alpha", fit.alpha_s), ("beta", fit.beta_s_per_byte)]
    if over:
        worst, nbytes = max(over)
        yield Finding(
            "warning" if 2 * len(over) > len(widths) else "note",
            "noisy", "collectives", name(fit),
            f"{len(over)} of {len(widths)} sizes have a 95% interval over +-{MAX_HALF_WIDTH:.0%}, worst "
            f"{size(nbytes)} with +-{worst:.0%}; {QUIETER}",
        )  # fmt: skip
    # the interval of the line holds how badly a line describes the sizes
    then = f"one line is off by {fit.mean_relative_error:.0%} on average, so "
    then += "use the pieces" if fit.pieces else "fit the runs again, in pieces"
    yield from wide("collectives", name(fit), laws, then)
    factor = fit.pieces_error_factor if fit.pieces else fit.line_error_factor
    what = "measured sizes" if fit.pieces else "measured sizes (one line, no pieces)"
    yield from off("collectives", name(fit), factor, what, "measure more sizes where they are off")


def _shape(fit: CollectiveFit) -> Iterator[Finding]:
    if fit.outliers_nbytes:
        yield Finding(
            "note", "left out", "collectives", name(fit),
            f"{len(fit.outliers_nbytes)} of {len(fit.points)} sizes lie far from their neighbours "
            f"and feed no law: {several([size(m) for m in fit.outliers_nbytes])}; measure them again",
        )  # fmt: skip
    for left, right in zip(fit.pieces, fit.pieces[1:], strict=False):
        before, after = left.at(left.to_nbytes), right.at(right.from_nbytes)
        if before > 0 and after < (1 - MIN_FALL) * before:
            yield Finding(
                "note", "shape", "collectives", name(fit),
                f"the time falls by {1 - after / before:.0%} from {size(left.to_nbytes)} to "
                f"{size(right.from_nbytes)}, as where the protocol changes; see whether it "
                "does so in another run",
            )  # fmt: skip


def _reach(parameters: Parameters, gradients: Mapping[str, int]) -> Iterator[Finding]:
    """What the gradient exchange of the models, at any p, would be beyond."""
    fits = [fit for fit in parameters.collectives if fit.operation == "allreduce" and fit.at_home]
    if not fits:
        yield Finding(
            "warning", "thin", "collectives", "allreduce",
            "there is none, so the exchange of gradients cannot be predicted; measure it on 2 ranks "
            "or more",
        )  # fmt: skip
        return
    for fit in fits:
        low, high = fit.range_nbytes
        beyond = [f"{model} {size(m)}" for model, m in gradients.items() if not low <= m <= high]
        if beyond:
            yield Finding(
                "warning", "extrapolated", "collectives", name(fit),
                f"gradients lie outside the measured {size(low)} to {size(high)}: {several(beyond)}; "
                "measure up to that size",
            )  # fmt: skip
    for library in dict.fromkeys(fit.library for fit in fits):
        measured = sorted({fit.ranks for fit in fits if fit.library == library})
        laws = [
            s for s in parameters.structural if (s.operation, s.library) == ("allreduce", library)
        ]
        how = "the structural law" if laws else "one line, as if it were a ring"
        yield Finding(
            "note", "extrapolated", "collectives", f"allreduce ({library})",
            f"measured on p = {', '.join(map(str, measured))}; every other p is predicted by {how}; "
            "measure the p that you train on",
        )  # fmt: skip
        if not any(fit.level != "node" for fit in fits if fit.library == library):
            yield Finding(
                "note", "extrapolated", "collectives", f"allreduce ({library})",
                f"nothing was measured between nodes, so beyond {parameters.ranks_per_node} ranks "
                "predictions are a guess; calibrate on two nodes or more",
            )  # fmt: skip


def _structural(law: StructuralFit) -> Iterator[Finding]:
    subject = f"{law.operation} ({law.library}, {law.device}, {law.level})"
    if len(set(law.ranks)) < MIN_P:
        yield Finding(
            "warning", "thin", "structural", subject,
            f"only p = {', '.join(map(str, sorted(set(law.ranks))))}, under the {MIN_P} that let one "
            "be left out, so its algorithm is a guess; measure another p",
        )  # fmt: skip
    elif law.held_out_error is not None and law.held_out_error > MAX_HELD_OUT_ERROR:
        yield Finding(
            "warning", "noisy", "structural", subject,
            f"p = {max(law.ranks)}, predicted from the smaller ones, is off by "
            f"{law.held_out_error:.1%} on average, over {MAX_HELD_OUT_ERROR:.0%}; measure the p that "
            "you train on",
        )  # fmt: skip
    yield from off(
        "structural", subject, law.error_factor, "times", "trust it for p in between only"
    )


def _contention(fit: ContentionFit) -> Iterator[Finding]:
    subject = (
        f"{fit.operation} ({fit.library}, {fit.device}, {fit.level}, p={fit.ranks}, "
        f"stride {fit.stride})"
    )
    if len(fit.points) < MIN_GROUPS:
        yield Finding(
            "note", "thin", "contention", subject,
            f"phi is known for {' and '.join(str(p.groups) for p in fit.points)} groups only; "
            "measure more groups at once",
        )  # fmt: skip
    if fit.baseline != "same layout":
        yield Finding(
            "note", "thin", "contention", subject,
            f"one group alone was not measured in this layout (taken from: {fit.baseline}), so phi "
            "holds how the layouts differ; measure one group of it",
        )  # fmt: skip
    yield from wide(
        "contention", subject, ((f"phi of {p.groups} groups", p.contention) for p in fit.points)
    )
    if fit.mean_relative_error > MAX_ERROR:
        yield Finding(
            "warning", "noisy", "contention", subject,
            f"times are off by {fit.mean_relative_error:.1%} on average, over {MAX_ERROR:.0%}; "
            "measure more sizes of each number of groups",
        )  # fmt: skip
