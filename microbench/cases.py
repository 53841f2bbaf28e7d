"""What can be measured: case records, pure data. A plan is a list of them; each has a stable id.

The front door builds them from model specs (calib/plan.py); microbench runs them knowing no model.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from foundation.layers import LayerShape, Shape


class CaseBase(BaseModel):
    """`ranks` is the size of the launch that runs the case; `purpose` is for people."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ranks: int = Field(ge=1)
    purpose: str = ""

    @property
    def id(self) -> str:
        """16 hex digits of what is measured: equal work has an equal id, whatever its purpose."""
        text = type(self).__name__ + self.model_dump_json(exclude={"purpose"})
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class CollectiveCase(CaseBase):
    """One operation at one size: allreduce by all ranks, or p2p between two."""

    kind: Literal["collective"] = "collective"
    operation: Literal["allreduce", "p2p"]
    nbytes: int = Field(ge=4, multiple_of=4)
    pair: tuple[int, int] = (0, 1)

    @property
    def label(self) -> str:
        """Short text for the progress bar."""
        return f"{self.operation} {self.nbytes} B on {self.ranks} ranks"


class LayerCase(CaseBase):
    """Forward and backward of one layer at one batch, all ranks at once."""

    kind: Literal["layer"] = "layer"
    layer: LayerShape
    batch: int = Field(ge=1)
    dtype: str = "float32"
    needs_input_grad: bool = True

    @property
    def key(self) -> str:
        """The layer key that parameters are found by."""
        return self.layer.key(self.batch, self.dtype, self.needs_input_grad)

    @property
    def label(self) -> str:
        """Short text for the progress bar."""
        shape = "x".join(map(str, self.layer.output_shape)) or "1"
        return f"{self.layer.kind} -> {self.batch}x{shape} on {self.ranks} ranks"


class TensorsCase(CaseBase):
    """A pass over a list of tensors: pack and unpack of gradients, or the optimizer's update."""

    kind: Literal["tensors"] = "tensors"
    operation: Literal["pack", "update"]
    key: str
    shapes: tuple[Shape, ...] = Field(min_length=1)
    dtype: str = "float32"

    @property
    def label(self) -> str:
        """Short text for the progress bar."""
        return f"{self.operation} of {len(self.shapes)} tensors on {self.ranks} ranks"


class InPlaceCase(CaseBase):
    """Iterations of a whole model, phase by phase: what the sum of the parts leaves out.

    Run by a runner of the training room that the front door hands in.
    """

    kind: Literal["in_place"] = "in_place"
    model: str
    batch: int = Field(ge=1)
    layer_keys: tuple[str, ...] = Field(description="of its layers, one for each use")
    activation_bytes: int = Field(ge=0, description="outputs of all layers for the batch")
    tensors_key: str = Field(description="key of the list of its weights")
    gradient_bytes: int = Field(ge=0)

    @property
    def label(self) -> str:
        """Short text for the progress bar."""
        return f"{self.model} in place on {self.ranks} ranks"


Case = Annotated[
    CollectiveCase | LayerCase | TensorsCase | InPlaceCase, Field(discriminator="kind")
]


class Plan(BaseModel):
    """What to measure. `launches` is how often the ranks are started anew for every size p."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cases: tuple[Case, ...] = Field(min_length=1)
    launches: int = Field(default=2, ge=1)
    budget_seconds: float = Field(
        gt=0, allow_inf_nan=False, description="for measuring, all launches together"
    )
    seed: int = 0
    target_half_width: float = Field(
        default=0.025, gt=0, description="of the 95% interval of the median, relative"
    )

    @property
    def sizes(self) -> list[int]:
        """The launch sizes, in order."""
        return sorted({case.ranks for case in self.cases})

    def cases_for(self, ranks: int) -> list[Case]:
        """The cases of one launch size, without duplicates."""
        return list({case.id: case for case in self.cases if case.ranks == ranks}.values())
