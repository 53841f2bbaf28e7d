"""Buffers of communicators that take PyTorch's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from calib.microbench.device import Device


class TensorBuffers:
    """Buffers are tensors on `device`. PyTorch is imported when one is made (see MpiCommunicator)."""

    device: Device

    def buffer(self, items: int) -> Any:
        """torch.empty."""
        import torch

        return torch.empty(items, dtype=torch.float32, device=self.device.tensors)

    def fill(self, buffer: Any, value: float) -> None:
        """Write one value to every item."""
        buffer.fill_(value)

    def write(self, buffer: Any, values: np.ndarray) -> None:
        """Copy from the host."""
        import torch

        buffer.copy_(torch.from_numpy(values.astype("float32", copy=False)))

    def read(self, buffer: Any) -> np.ndarray:
        """A copy on the host."""
        copied: np.ndarray = buffer.cpu().numpy().copy()
        return copied
