"""Channels last: images whose channels are the innermost dimension in memory."""

from __future__ import annotations

from torch import Tensor, channels_last_3d
from torch import channels_last as channels_last_2d

# dimensions of a batched tensor (batch, channels, ...), or of a weight -> the format
FORMATS = {4: channels_last_2d, 5: channels_last_3d}


def channels_last(tensor: Tensor) -> Tensor:
    """The tensor with its channels last; itself where it is of no image."""
    if tensor.dim() not in FORMATS:
        return tensor
    return tensor.contiguous(memory_format=FORMATS[tensor.dim()])
