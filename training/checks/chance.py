"""Forwards without chance, so that the same samples give the same gradients however they are divided.

And without rounding, whatever item types a forward names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._pytree import tree_map_only

_DROPOUT = frozenset(
    (
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "alpha_dropout",
        "feature_alpha_dropout",
        "feature_dropout",
    )
)
# with dropout inside, by their one positional float or by `dropout_p`
_DROPOUT_INSIDE = frozenset(
    (
        "scaled_dot_product_attention",
        "multi_head_attention_forward",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
    )
)
# what draws numbers, and what it gives instead: no path is dropped (stochastic depth), no noise is added
_DRAWN = {
    "bernoulli": 1.0,
    "rand": 0.5,
    "rand_like": 0.5,
    "uniform": 0.5,
    "exponential": 1.0,
    "log_normal": 1.0,
    "randn": 0.0,
    "randn_like": 0.0,
    "normal": 0.0,
}
_EXACT = {
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64),
    torch.complex64: torch.complex128,
}
_CASTS = frozenset(("float", "half", "bfloat16"))  # methods that name an item type


class WithoutChance(DeviceContext):
    """A context in which dropout passes its input on, and random numbers are constants, in this thread.

    By modules, functions or operators of ATen, also within attention and recurrent layers. With
    `building`, weights and samples may be made inside: of what is drawn, masks alone are constants.

    It says that it is the context of the default device: in no other does torch.utils.checkpoint run a
    forward again.

    With `exact`, what a forward casts to another float type (`x.float()`) or makes in the default one
    (`torch.zeros(3)`) is in float64.
    """

    def __init__(self, building: bool = False, exact: bool = False) -> None:
        super().__init__(torch.get_default_device())
        self._drawn = {"bernoulli": 1.0} if building else _DRAWN
        self._exact = exact

    # what a device's does beside would change the order of modes
    __enter__, __exit__ = TorchFunctionMode.__enter__, TorchFunctionMode.__exit__

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        name = getattr(func, "__name__", "").split(".")[0].rstrip("_")
        if name in _DROPOUT:
            return args[0] if args else keywords["input"]
        if name in _DROPOUT_INSIDE:
            args = [0.0 if type(given) is float else given for given in args]
            keywords |= {"dropout_p": 0.0} if "dropout_p" in keywords else {}
        if self._exact:
            func = Tensor.double if func is getattr(Tensor, name, None) and name in _CASTS else func
            args, keywords = tree_map_only(torch.dtype, _exact_type, (args, keywords))
        found = func(*args, **keywords)
        if self._exact:
            found = tree_map_only(Tensor, _exact, found)
        if name in self._drawn:
            with torch.no_grad():
                found.fill_(self._drawn[name])
        return found


def _exact_type(item: torch.dtype) -> torch.dtype:
    return _EXACT.get(item, item)


def _exact(tensor: Tensor) -> Tensor:
    return tensor.to(_EXACT[tensor.dtype]) if tensor.dtype in _EXACT else tensor
