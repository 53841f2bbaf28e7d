"""Records of the parameter file: memory reuse, overlap, and partitions of sparse variables.

Of each the residuals are measured / law - 1 at the quantiles of fitting/estimators/base.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from calib.fitting.parameters.records import (
    BytesEstimate,
    CallTime,
    Estimate,
    RatioEstimate,
    Record,
)
from calib.foundation.quantities import MAX_RANKS, Count, Factor, Nbytes, Ranks, Ratio, SignedRatio

# state tensors that an optimizer keeps for every weight (formulas.md)
STATES = {"sgd": 0, "momentum": 1, "adam": 2}
Measure = Literal["allocated", "reserved", "device"]
Form = Literal["simple", "refined"]
Term = Literal["constant", "activations", "weights", "optimizer"]


class LiveCheck(Record):
    """Measured peaks by the oracle's count of live bytes, which nothing fits.

    `ratio` is measured / counted with its least and its largest, `error` the mean relative error of the
    count, and within / and * `error_factor` lie 95% of the peaks.
    """

    ratio: RatioEstimate
    error: Ratio
    error_factor: Factor
    n: Count


class MemoryReuse(Record):
    """Gamma: measured peak bytes of a PE by the naive sums of formulas.md, "Memory per PE".

    simple: peak = gamma (activations + weights + optimizer), where weights hold their gradients and
    the biases. refined: peak = constant_bytes + a factor for each. Of `parts`, every inner list is
    terms that share one number, and a term in none is 0: few models cannot tell four. Errors are mean
    relative ones, `held_out` of models that were left out (None of one model). `chosen` has the
    smaller of these. `measure` is which peak: of live tensors (allocated), of the allocator, or of
    the device, with context and libraries.
    """

    framework: str
    device: str
    family: str = Field(description="strategies whose naive sum is one: serial, data, ...")
    measure: Measure
    gamma: RatioEstimate
    gamma_error: Ratio
    gamma_held_out_error: Ratio | None
    constant_bytes: BytesEstimate
    activations: RatioEstimate
    weights: RatioEstimate
    optimizer: RatioEstimate
    parts: list[list[Term]] = Field(min_length=1)
    refined_error: Ratio
    refined_held_out_error: Ratio | None
    chosen: Form
    error_factor: Factor = Field(description="95% of left-out models lie within / and * this")
    min_bytes: Nbytes = Field(description="smallest naive sum that was measured")
    max_bytes: Nbytes
    models: list[str] = Field(min_length=1)
    n: Count
    residual_quantiles: list[SignedRatio] = Field(default_factory=list)
    live: LiveCheck | None = Field(
        default=None, description="of the count of live bytes, where the cases have one"
    )

    @property
    def count_is_better(self) -> bool:
        """Whether the count of live bytes is nearer to the measured peaks than the chosen form.

        That is judged by models that were left out where there are several; the count has seen none.
        """
        if self.live is None:
            return False
        fitted, held_out = self.refined_error, self.refined_held_out_error
        if self.chosen == "simple":
            fitted, held_out = self.gamma_error, self.gamma_held_out_error
        return self.live.error <= (fitted if held_out is None else held_out)

    def peak_bytes(self, activations: float, weights: float, optimizer: float) -> float:
        """The peak by the chosen form, from naive bytes of a PE."""
        if self.chosen == "simple":
            return self.gamma.value * (activations + weights + optimizer)
        return (
            self.constant_bytes.value
            + self.activations.value * activations
            + self.weights.value * weights
            + self.optimizer.value * optimizer
        )


class Overlap(Record):
    """Eta in [0, 1]: data parallelism hides min(eta * exchange, backward) of the exchange.

    Errors are mean relative ones of the iteration, `held_out` of models that were left out.
    """

    library: str
    device: str
    ranks: int = Field(ge=2, le=MAX_RANKS)
    eta: Estimate
    error: Ratio
    held_out_error: Ratio | None
    error_factor: Factor
    models: list[str] = Field(min_length=1)
    n: Count
    residual_quantiles: list[SignedRatio] = Field(default_factory=list)

    @model_validator(mode="after")
    def _share(self) -> Overlap:
        if self.eta.high > 1:
            raise ValueError(f"eta is a share; its interval ends at {self.eta.high}")
        return self


class Partitions(Record):
    """Parallax: seconds of an iteration = constant_s + parallel_s / P + per_partition_s * P.

    `best_partitions` is sqrt(parallel_s / per_partition_s), 1 at least; None is infinity: a partition
    seemed to cost nothing, so that more were always faster. Errors are mean relative ones, `held_out`
    of numbers of partitions that were left out.
    """

    name: str = Field(description="what is partitioned: a model or a variable")
    constant_s: CallTime
    parallel_s: CallTime
    per_partition_s: CallTime
    best_partitions: Factor | None
    best_low: Factor | None
    best_high: Factor | None
    error: Ratio
    held_out_error: Ratio | None
    error_factor: Factor
    min_partitions: Ranks
    max_partitions: Ranks
    n: Count
    residual_quantiles: list[SignedRatio] = Field(default_factory=list)
