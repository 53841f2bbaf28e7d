"""What can be measured of a sparse exchange: one table, one share of touched rows, one method."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Method = Literal["server", "allgatherv", "allreduce"]
METHODS: tuple[Method, ...] = ("server", "allgatherv", "allreduce")


class SparseCase(BaseModel):
    """Every rank has gradients of `touched` distinct rows of a table of `rows` x `width` float32.

    server: the table is cut by rows into `partitions` parts, whose owners are the ranks in turn; a
    rank adds its updates to the parts by MPI_Accumulate, and gets the rows that it touches by
    MPI_Get. allgatherv: all ranks have the table, and gather each other's indices and rows.
    allreduce: they sum the gradient of the whole table. `seed` draws rows and gradients.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int = Field(ge=1, lt=1 << 31)
    width: int = Field(ge=1, le=1 << 20)
    share: float = Field(gt=0, le=1, description="a: touched rows over all rows")
    method: Method
    partitions: int = Field(default=1, ge=1)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _possible(self) -> SparseCase:
        if self.partitions > self.rows:
            raise ValueError(f"{self.partitions} partitions are more than {self.rows} rows")
        if self.partitions > 1 and self.method != "server":
            raise ValueError("partitions are those of a parameter server")
        return self

    @property
    def touched(self) -> int:
        """Rows that a rank touches."""
        return max(1, round(self.share * self.rows))

    @property
    def label(self) -> str:
        """For the progress bar."""
        parts = f", {self.partitions} parts" if self.method == "server" else ""
        return f"{self.method} of {self.share:.3g} of {self.rows} x {self.width}{parts}"


class SparseTime(BaseModel):
    """Repetitions of one case: the slowest rank's seconds of each, in order; the first are warm-up.

    `remote_bytes` are those that rank 0 sent to others and got from them, for itself and as owner.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    case: SparseCase
    ranks: int
    launch: int = 0
    seconds: list[float]
    warmup: int
    stopped_by: str
    half_width: float | None = Field(description="of the interval of the median; null: too few")
    remote_bytes: int
    oversubscribed: bool

    @property
    def timed(self) -> list[float]:
        """Without the warm-up."""
        return self.seconds[self.warmup :]


def plan(
    rows: int, width: int, shares: list[float], partitions: list[int], seed: int = 0
) -> list[SparseCase]:
    """All methods at every share; the server at every number of partitions.

    Raises ValueError for a case that cannot be.
    """
    found: list[SparseCase] = []
    for share in shares:
        common: dict[str, Any] = {"rows": rows, "width": width, "share": share, "seed": seed}
        found += [SparseCase(method="server", partitions=p, **common) for p in partitions]
        found += [SparseCase(method=method, **common) for method in METHODS[1:]]
    return found
