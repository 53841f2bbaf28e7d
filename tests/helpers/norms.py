"""Which layers `define_norms` made."""

from __future__ import annotations

from collections.abc import Iterator

from calib.training.checks.serial import PiecewiseNorm
from calib.training.layer_program import LayerProgram


def norms_of(program: LayerProgram) -> Iterator[tuple[str, PiecewiseNorm]]:
    """The layers that `define_norms` made, by their names."""
    for node in program.graph.graph.nodes:
        if node.op == "call_module":
            module = program.graph.get_submodule(str(node.target))
            if isinstance(module, PiecewiseNorm):
                yield program.layer_of[node.name], module
