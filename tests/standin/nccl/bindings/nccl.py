"""NCCL's own errors, as nccl4py 0.6 raises them."""

from __future__ import annotations

RESULTS = {4: "InvalidArgument", 5: "InvalidUsage"}


class NCCLError(Exception):
    """A result of NCCL that is not success."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"{RESULTS[status]} ({status}): made up")
