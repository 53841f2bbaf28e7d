"""The collective records of parameters.json: direct laws of one p, and structural ones for any p."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from pydantic import Field, model_validator

from calib.fitting.parameters.algorithms import AlgorithmShape, steps_and_volume
from calib.fitting.parameters.size_law import SizeLaw, falls, interpolate, risen
from calib.foundation.errors import InputError
from calib.foundation.names import DeviceKind, LevelName, LibraryName, OperationName
from calib.foundation.quantities import (
    MAX_ALPHA_S,
    MAX_RANKS,
    Count,
    CountOrNone,
    Factor,
    KnownRanks,
    Nbytes,
    Ratio,
    Residuals,
    Seconds,
)
from calib.foundation.records import (
    BytesEstimate,
    Estimate,
    Record,
    SignedTimeEstimate,
    TimeEstimate,
    TimePerByte,
)
from calib.foundation.words import bytes_words, several


class CollectiveLaw(Record):
    """What every law of collectives is of."""

    operation: OperationName
    library: LibraryName
    device: DeviceKind = "cpu"
    level: LevelName


class CollectivePoint(Record):
    """One measured size."""

    nbytes: Count = Field(description="size of the whole buffer, B")
    seconds: TimeEstimate = Field(description="median time, s")
    n: Count = Field(description="repetitions, each the mean of `calls` calls or more")
    calls: CountOrNone = Field(
        default=1, description="of a repetition, at least; 0 unknown, but many"
    )
    estimate_s: Seconds | None = Field(
        default=None, description="of a call, as NCCL itself expects it; null: it said nothing"
    )
    channels: dict[str, CountOrNone] = Field(
        default_factory=dict,
        description="algorithm/protocol that NCCL took -> channels of a call, where its log says so",
    )


class SharedPoint(Record):
    """A size beyond the measured ones, as other operations on the same links say."""

    nbytes: Count = Field(description="size of the whole buffer, B")
    seconds: TimeEstimate = Field(description="s")


class HockneyPiece(Record):
    """t = intercept_s + slope_s_per_byte m; a line that is not used near zero may begin below 0."""

    from_nbytes: Nbytes = Field(description="first size, B")
    to_nbytes: Nbytes = Field(description="last size, B")
    intercept_s: SignedTimeEstimate = Field(description="s; may be below 0 but in the first piece")
    slope_s_per_byte: TimePerByte = Field(description="s/B")

    def at(self, nbytes: float) -> float:
        """Seconds at `nbytes`."""
        return self.intercept_s.value + self.slope_s_per_byte.value * nbytes


class Burst(Record):
    """What a link that has rested takes at once: a token bucket, or a queue that somebody else empties.

    In a row, messages find it full. While ranks compute it empties at the rate of the link, up to
    `nbytes`, so that of a message after t seconds of work `share` min(beta m, beta nbytes, t) is saved.
    """

    nbytes: BytesEstimate = Field(description="that pass at once, B")
    share: Ratio = Field(gt=0, description="of their time in a row that is saved")

    def saved(self, beta: float, nbytes: float, rested_s: float) -> Estimate:
        """Seconds saved of a message of `nbytes` after `rested_s`, on a link of `beta` s/B."""
        most = min(beta * nbytes, rested_s)
        value, low, high = (self.share * min(most, beta * size) for size in self.nbytes.numbers)
        return Estimate(value=value, low=low, high=high)


class CollectiveFit(CollectiveLaw):
    """One operation of one library, device, level, p and layout: points, both ends, and pieces.

    Predictions take the points, and go straight in log-log from one to the next. The ends say what
    the smallest messages take and how the time grows with the largest; alpha and beta are derived from
    them. The pieces describe the points in few numbers; where the data prove a fall between two (a
    change of protocol) the time falls.
    """

    ranks: int = Field(ge=2, le=MAX_RANKS, description="p: ranks of a group")
    nodes: KnownRanks = Field(default=0, description="that a group spans; 0 unknown")
    ranks_per_node: KnownRanks = Field(
        default=0, description="the most of a group on one node; 0 unknown"
    )
    intercept_s: TimeEstimate = Field(
        description="what the smallest sizes take without their bytes, s"
    )
    slope_s_per_byte: TimePerByte = Field(description="at the largest sizes, and beyond, s/B")
    slope_from: list[OperationName] = Field(
        default_factory=list,
        description="operations on the same links that say the slope, where the largest size of this "
        "one is too small for it; none: it is its own",
    )
    mean_relative_error: Ratio = Field(
        description="of the line intercept_s + slope_s_per_byte m at the measured sizes"
    )
    line_error_factor: Factor = Field(
        description="95% of the sizes lie within that line / and * this"
    )
    interpolation_error_factor: Factor = Field(
        description="95% of the sizes lie within what their neighbours say / and * this"
    )
    pieces: list[HockneyPiece] = Field(
        default_factory=list, description="lines that hold between two sizes each, in their order"
    )
    pieces_mean_relative_error: Ratio | None = Field(
        default=None, description="of the pieces at the measured sizes"
    )
    pieces_error_factor: Factor | None = Field(
        default=None, description="95% of the sizes lie within the pieces / and * this"
    )
    launch_factor: Factor = Field(
        default=1.0,
        description="95% of single launches lie within the median of many / and * this; of logs each "
        "run is one, by its own hosts. 1: there was one launch, which does not say",
    )
    burst: Burst | None = Field(
        default=None,
        description="of p2p_both: what passes at once where a message follows work; null: nothing does, "
        "or it was not measured",
    )
    left_out_error: Ratio | None = Field(
        default=None,
        description="mean relative error of a size that is left out, from its neighbours",
    )
    residual_quantiles: Residuals = Field(default_factory=list)
    runner_up: str = Field(
        default="",
        description="the next best number of pieces, and by how much its criterion is worse",
    )
    outliers_nbytes: list[Count] = Field(
        default_factory=list, description="measured sizes that no law explains, B"
    )
    n: CountOrNone = Field(default=0, description="repetitions")
    points: list[CollectivePoint] = Field(min_length=2, description="the measured sizes")
    beyond: list[SharedPoint] = Field(
        default_factory=list, description="larger sizes, as those of slope_from grow; none: a line"
    )

    @model_validator(mode="after")
    def _rising(self) -> CollectiveFit:
        sizes = [point.nbytes for point in self.points]
        sizes += [point.nbytes for point in self.beyond]
        if sizes != sorted(set(sizes)):
            raise ValueError("points are not in the order of their nbytes")
        borders = [end for piece in self.pieces for end in (piece.from_nbytes, piece.to_nbytes)]
        if borders != sorted(borders) or (borders and borders[0] <= 0):
            raise ValueError("pieces are not in the order of their nbytes")
        if self.alpha_s.value > MAX_ALPHA_S:
            raise ValueError(
                f"alpha of {self.alpha_s.value:g} s is over {MAX_ALPHA_S:g} s: other units?"
            )
        return self

    @property
    def shape(self) -> AlgorithmShape:
        """(steps, volume) of the default algorithm; (1, 1) of an operation without a cost model."""
        try:
            return steps_and_volume(self.operation.removesuffix(" graph"), self.ranks)
        except InputError:
            return 1.0, 1.0

    @property
    def alpha_s(self) -> Estimate:
        """Start-up time of one message, s: intercept_s / the algorithm's messages in a row.

        The time of no bytes is steps alpha (formulas.md, "structural"). That the library uses the
        default algorithm is assumed, not measured: by another one alpha would be another.
        """
        return self.intercept_s.scaled(1 / self.shape[0])

    @property
    def beta_s_per_byte(self) -> Estimate:
        """Time per byte of a large message, s/B: slope_s_per_byte / the algorithm's volume."""
        return self.slope_s_per_byte.scaled(1 / self.shape[1])

    @property
    def at_home(self) -> bool:
        """Whether the buffers are where the library has them: NCCL's on GPUs, the others' on hosts."""
        return self.device == ("cuda" if self.library in ("nccl", "torch_nccl") else "cpu")

    @property
    def placed(self) -> str:
        """p and the layout, for people: `p=8`, `p=10 on 10 nodes`."""
        return f"p={self.ranks}{self.among}"

    @property
    def among(self) -> str:
        """The layout behind p: nothing in a node, ` on 10 nodes`, ` on 2 nodes of up to 8` if uneven."""
        if self.nodes < 2:
            return ""
        even = self.ranks_per_node in (0, -(-self.ranks // self.nodes))
        return f" on {self.nodes} nodes" + ("" if even else f" of up to {self.ranks_per_node}")

    def made_on(self, nodes: int, ranks_per_node: int) -> bool:
        """Whether it was measured in this layout, as far as the file says."""
        return self.nodes in (0, nodes) and self.ranks_per_node in (0, ranks_per_node)

    @property
    def range_nbytes(self) -> tuple[int, int]:
        """The sizes between which the fit is an interpolation."""
        return self.points[0].nbytes, self.points[-1].nbytes

    @property
    def shows_bytes(self) -> bool:
        """Whether bytes take most of the largest size's time, which then says how fast the link is."""
        return self._law.shows_bytes

    @property
    def slope_words(self) -> str:
        """Where the slope is from: nothing, or `beta from allreduce: the largest size is 512 B`."""
        if not self.slope_from:
            return ""
        largest = bytes_words(self.points[-1].nbytes)
        return f"beta from {several(self.slope_from)}: the largest size measured is {largest}"

    def described_seconds(self, nbytes: float) -> float:
        """What describes the points: the pieces, or the line of both ends where there are none."""
        if self.pieces:
            return piecewise(self.pieces, nbytes)
        return self.intercept_s.value + self.slope_s_per_byte.value * nbytes

    def seconds(self, nbytes: float) -> float:
        """The law at any size: through the points, but for outliers, and by the ends beyond them.

        Where no fall is proven, times that fall by chance share their mean.
        """
        return self._law.at(nbytes)

    @cached_property
    def _law(self) -> SizeLaw:
        outliers = set(self.outliers_nbytes)
        kept = [p for p in self.points if p.nbytes not in outliers] or self.points
        times = [point.seconds.value for point in kept]
        if not falls([p.seconds.low for p in kept], [p.seconds.high for p in kept]):
            times = risen(times)
        sizes = [point.nbytes for point in kept] + [point.nbytes for point in self.beyond]
        times += [point.seconds.value for point in self.beyond]
        return SizeLaw.through(sizes, times, self.intercept_s.value, self.slope_s_per_byte.value)


def piecewise(pieces: Sequence[HockneyPiece], nbytes: float) -> float:
    """Seconds of a law in pieces; the first and the last hold for what lies beyond them."""
    here = max((k for k, piece in enumerate(pieces) if piece.from_nbytes <= nbytes), default=0)
    left = pieces[here]
    if nbytes <= left.to_nbytes or here + 1 == len(pieces):
        return left.at(nbytes)
    right = pieces[here + 1]
    ends = [left.to_nbytes, right.from_nbytes]
    return interpolate(nbytes, ends, [left.at(ends[0]), right.at(ends[1])])
