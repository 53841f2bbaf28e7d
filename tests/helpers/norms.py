"""What a program of layers computed, and which of its layers `define_norms` made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from calib.training.checks.serial import PiecewiseNorm
from calib.training.layer_program import LayerProgram


@dataclass
class Tensors:
    """Outputs of the layers of a program, and the gradients of the loss by them, as they come.

    A layer that ran several times (micro-batches) has several, in the order of the forwards.
    """

    outputs: dict[str, list[Tensor]] = field(default_factory=dict)
    gradients: dict[str, list[Tensor | None]] = field(default_factory=dict)

    def see(self, layer: str, output: Tensor) -> None:
        """An Observer of a LayerProgram."""
        self.outputs.setdefault(layer, []).append(output.detach().clone())
        gradients = self.gradients.setdefault(layer, [])
        gradients.append(None)
        place = len(gradients) - 1

        def keep(gradient: Tensor) -> None:
            # a tensor that is read twice (a shortcut) has the sum of what comes back
            gradients[place] = gradient.detach().clone()

        if output.requires_grad:
            hooked: Any = output  # torch's register_hook has no types
            hooked.register_hook(keep)


def norms_of(program: LayerProgram) -> Iterator[tuple[str, PiecewiseNorm]]:
    """The layers that `define_norms` made, by their names."""
    for node in program.graph.graph.nodes:
        if node.op == "call_module":
            module = program.graph.get_submodule(str(node.target))
            if isinstance(module, PiecewiseNorm):
                yield program.layer_of[node.name], module
