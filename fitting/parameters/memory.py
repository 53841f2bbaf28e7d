"""Records of the parameter file: memory reuse, overlap, and partitions of sparse variables."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from calib.foundation.execution import USUAL, ExecutionName
from calib.foundation.names import DeviceKind, LibraryName, ModelName, RankCount
from calib.foundation.quantities import MAX_RANKS, Count, Factor, Nbytes, Ranks, Ratio, Residuals
from calib.foundation.records import BytesEstimate, Estimate, RatioEstimate, Record, TimeEstimate

# state tensors that an optimizer keeps for every weight (formulas.md)
STATES = {"sgd": 0, "momentum": 1, "adam": 2}
MemoryForm = Literal["simple", "refined"]
NO_SLOWDOWN = Estimate(value=0.0, low=0.0, high=0.0)
NO_BYTES = Estimate.exactly(0.0)
MemoryTerm = Literal["constant", "activations", "weights", "optimizer"]


class LiveCheck(Record):
    """Measured peaks by the oracle's count of live bytes.

    Nothing in the count is fitted. A GPU's libraries take workspace from the same allocator, which is
    added to it.
    """

    ratio: RatioEstimate = Field(description="measured / counted, with its least and its largest")
    workspace_bytes: BytesEstimate = Field(
        default=NO_BYTES,
        description="B of a GPU's peaks beyond the count: workspace of cuBLAS and cuDNN; 0 where the "
        "count alone is as close",
    )
    error: Ratio = Field(description="mean relative error of the count with workspace")
    error_factor: Factor = Field(description="95% of the peaks lie within that / and * this")
    n: Count = Field(description="peaks")


class DeviceMemory(Record):
    """What a GPU holds for live tensors: peak = reserved * live + outside_bytes."""

    reserved: RatioEstimate = Field(
        description="reserved by the caching allocator / live tensors, at their peaks: rounding and "
        "fragmentation; 1 at least"
    )
    outside_bytes: BytesEstimate | None = Field(
        description="B outside the allocator: the context, cuBLAS, cuDNN and, with data parallelism, "
        "NCCL; null: NVML did not say"
    )
    n: Count = Field(description="peaks")

    def peak(self, live: Estimate) -> Estimate:
        """Bytes on the device for bytes of live tensors: all three are as far off as they may be."""
        reserved, outside = self.reserved, self.outside_bytes or NO_BYTES
        return Estimate(
            value=reserved.value * live.value + outside.value,
            low=reserved.low * live.low + outside.low,
            high=reserved.high * live.high + outside.high,
        )


class MemoryReuse(Record):
    """Gamma: measured peak bytes of a rank's live tensors by the naive sums of formulas.md.

    simple: peak = gamma (activations + weights + optimizer), where weights hold their gradients and
    the biases. refined: peak = constant_bytes + a factor for each; `parts`, as few models cannot tell
    four numbers.
    """

    framework: str = Field(description="whose memory it is: pytorch")
    device: DeviceKind
    family: str = Field(description="strategies whose naive sum is one: serial, data, ...")
    execution: ExecutionName = USUAL
    gamma: RatioEstimate = Field(description="simple: peak / (activations + weights + optimizer)")
    gamma_error: Ratio = Field(description="mean relative error of the simple form")
    gamma_held_out_error: Ratio | None = Field(
        description="the same of models that were left out; null of one model"
    )
    constant_bytes: BytesEstimate = Field(description="refined: what every model needs, B")
    activations: RatioEstimate = Field(description="refined: factor of their naive bytes")
    weights: RatioEstimate = Field(
        description="refined: factor of the naive bytes of weights, gradients and biases"
    )
    optimizer: RatioEstimate = Field(
        description="refined: factor of the naive bytes of the optimizer's states"
    )
    parts: list[list[MemoryTerm]] = Field(
        min_length=1,
        description="terms of the refined form: those of an inner list share one number, one in "
        "none is 0",
    )
    refined_error: Ratio = Field(description="mean relative error of the refined form")
    refined_held_out_error: Ratio | None = Field(
        description="the same of models that were left out; null of one model"
    )
    chosen: MemoryForm = Field(description="the form with the smaller error")
    error_factor: Factor = Field(description="95% of left-out models lie within / and * this")
    min_bytes: Nbytes = Field(description="smallest naive sum that was measured")
    max_bytes: Nbytes = Field(description="largest naive sum that was measured")
    models: list[str] = Field(min_length=1, description="that it was fitted to")
    n: Count = Field(description="peaks")
    residual_quantiles: Residuals = Field(default_factory=list)
    live: LiveCheck | None = Field(
        default=None, description="of the count of live bytes, where the cases have one"
    )
    on_device: DeviceMemory | None = Field(
        default=None, description="what a GPU holds for live tensors; null: a CPU, or not measured"
    )

    @property
    def count_is_better(self) -> bool:
        """Whether the count of live bytes is nearer to the measured peaks than the chosen form.

        That is judged by models that were left out where there are several; the count has seen none. Of
        a single model a GPU has the count, with the workspace: gamma is then checked on nothing.
        """
        if self.live is None:
            return False
        fitted, held_out = self.refined_error, self.refined_held_out_error
        if self.chosen == "simple":
            fitted, held_out = self.gamma_error, self.gamma_held_out_error
        if held_out is None and self.on_device is not None:
            return True
        return self.live.error <= (fitted if held_out is None else held_out)

    def peak_bytes(self, activations: float, weights: float, optimizer: float) -> float:
        """The peak by the chosen form, from naive bytes of a rank."""
        if self.chosen == "simple":
            return self.gamma.value * (activations + weights + optimizer)
        return (
            self.constant_bytes.value
            + self.activations.value * activations
            + self.weights.value * weights
            + self.optimizer.value * optimizer
        )


class OverlappedIteration(Record):
    """An iteration of data parallelism that was measured with its exchange overlapped."""

    key: str = Field(description="what a rank runs: foundation/layer_keys.py, iteration_key")
    model: ModelName
    seconds: TimeEstimate = Field(description="of the iteration, s")


class Overlap(Record):
    """Eta: data parallelism hides min(eta * exchange, backward) of the exchange.

    Where overlapped iterations take longer than others, eta is 0 and `slowdown` says by how much.
    """

    library: LibraryName
    device: DeviceKind
    ranks: int = Field(ge=2, le=MAX_RANKS, description="p")
    eta: RatioEstimate = Field(
        description="share of the exchange that the backward pass hides, 0 to 1"
    )
    slowdown: RatioEstimate = Field(
        default=NO_SLOWDOWN,
        description="share of an iteration by which an overlapped one takes longer; 0: it does not",
    )
    error: Ratio = Field(description="mean relative error of the iteration")
    held_out_error: Ratio | None = Field(
        description="the same of models that were left out; null of one model"
    )
    error_factor: Factor = Field(description="95% of iterations lie within / and * this")
    models: list[str] = Field(min_length=1, description="that it was fitted to")
    iterations: list[OverlappedIteration] = Field(
        default_factory=list, description="of these models, as they were measured"
    )
    n: Count = Field(description="iterations")
    residual_quantiles: Residuals = Field(default_factory=list)

    @model_validator(mode="after")
    def _share(self) -> Overlap:
        if self.eta.high > 1:
            raise ValueError(f"eta is a share; its interval ends at {self.eta.high}")
        return self


class Partitions(Record):
    """The exchange of a sparse gradient by a server of P partitions, and by the other methods.

    Parallax: seconds = constant_s + parallel_s / P + per_partition_s * P. Where a partition seemed to
    cost nothing, `best_partitions` is None: more were always faster.
    """

    rows: Count = Field(description="of the variable")
    width: Count = Field(description="items of a row")
    share: Ratio = Field(gt=0, le=1, description="a: rows that a rank touches over all rows")
    ranks: RankCount
    nodes: Ranks = Field(description="that they are on")
    library: LibraryName
    server_s: TimeEstimate = Field(description="s by server, at the fastest P that was measured")
    server_partitions: Ranks = Field(description="that P")
    allgatherv_s: TimeEstimate | None = Field(description="s by allgatherv; null: not measured")
    allreduce_s: TimeEstimate | None = Field(
        description="s by allreduce of the whole gradient; null: not measured"
    )
    constant_s: TimeEstimate = Field(description="s of an exchange")
    parallel_s: TimeEstimate = Field(description="s, divided by the partitions")
    per_partition_s: TimeEstimate = Field(description="s for each partition")
    best_partitions: Factor | None = Field(
        description="sqrt(parallel_s / per_partition_s), 1 at least; null: more are always faster"
    )
    best_low: Factor | None = Field(description="lower end of its 95% interval")
    best_high: Factor | None = Field(description="upper end of its 95% interval; null: infinite")
    error: Ratio = Field(description="mean relative error")
    held_out_error: Ratio | None = Field(
        description="the same of numbers of partitions that were left out"
    )
    error_factor: Factor = Field(description="95% of times lie within / and * this")
    min_partitions: Ranks = Field(description="fewest that were measured")
    max_partitions: Ranks = Field(description="most that were measured")
    n: Count = Field(description="times")
    residual_quantiles: Residuals = Field(default_factory=list)

    @property
    def name(self) -> str:
        """What it is of, for people."""
        places = f", {self.nodes} nodes" if self.nodes > 1 else ""
        layout = f"p={self.ranks}{places}, {self.library}"
        return f"{self.rows}x{self.width}@{self.share:g} ({layout})"

    @property
    def methods(self) -> dict[str, Estimate]:
        """Seconds of each method that was measured; the server's at its fastest P."""
        times = {
            "server": self.server_s,
            "allgatherv": self.allgatherv_s,
            "allreduce": self.allreduce_s,
        }
        return {name: time for name, time in times.items() if time is not None}

    @property
    def fastest(self) -> str:
        """The method that took least."""
        times = self.methods
        return min(times, key=lambda name: times[name].value)
