"""A layer by itself, as LayerCosts takes it."""

from __future__ import annotations

from calib.oracle.layout.workload import LayerPiece, Tensors, Workload


def lone(piece: LayerPiece, weights: Tensors) -> Workload:
    """A workload of this layer alone; `weights` are what a device has of it."""
    counts = {0: 1}
    return Workload(
        pieces=(piece,),
        index=(0,),
        split=(True,),
        counts={"all": counts, "split": counts, "whole": {}},
        weights=weights,
        layers=1,
        output_items=piece.shape.output_items,
    )
