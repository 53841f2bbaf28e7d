"""Passes of measured layers beside the peaks of their device: what they achieve of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from calib.fitting.parameters.file import LayerTime, Parameters
from calib.fitting.parameters.peaks import Peaks
from calib.foundation.execution import execution_of
from calib.foundation.layer_keys import NamedLayer, parse
from calib.foundation.layers import Direction
from calib.foundation.quantities import ActiveRanks, Count, Flops, Nbytes, Ranks, WholeBytes
from calib.foundation.records import Estimate, Record, TimeEstimate

DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


class MeasuredPass(Record):
    """One pass of a measured layer: SI units.

    Operations and bytes are counted from the shapes (foundation/layers.py), each byte once: what caches
    do not hold is moved more often, and Winograd's convolutions compute less.
    """

    key: str = Field(description="the layer, its batch and its item type (foundation/layers.py)")
    kind: str = Field(description="kind of layer")
    batch: Ranks = Field(description="mini-batch, samples")
    execution: str = Field(description='how it ran; "" unknown')
    active_ranks: ActiveRanks
    direction: Literal["forward", "backward"] = Field(description="which pass")
    seconds: TimeEstimate = Field(description="median time of a call, s")
    n: Count = Field(description="repetitions")
    flops: Flops = Field(
        description="operations of the pass, a multiply-add is two; 0: none, or the key names no layer"
    )
    nbytes: Nbytes = Field(description="fewest bytes that the pass reads and writes; 0 as flops")
    intensity: float | None = Field(description="flops / nbytes, flop/B; null where either is 0")
    flops_per_s: Estimate | None = Field(
        description="flops / seconds, flop/s; null where flops are 0, or the time may be"
    )
    bytes_per_s: Estimate | None = Field(
        description="nbytes / seconds, B/s; null where nbytes are 0, or the time may be"
    )
    peak_share: float | None = Field(
        description="least time by the device's peaks / seconds; null where no peak was measured, or "
        "the pass needs no work"
    )
    bound: Literal["flops", "bytes"] | None = Field(
        description="which peak makes the least time; null with peak_share"
    )
    kernels: list[str] = Field(description="that ran, in order, on a GPU; else empty")
    workspace_bytes: WholeBytes | None = Field(
        description="that they had for themselves at most, B; null: not known"
    )


def measured_passes(parameters: Parameters) -> list[MeasuredPass]:
    """Every pass of every measured layer, the slowest first."""
    peaks = [of for of in parameters.peaks if of.device == parameters.device_kind]
    found = [one for layer in parameters.layers for one in passes_of(layer, peaks)]
    return sorted(found, key=lambda of: (-of.seconds.value, of.key, of.direction))


def passes_of(layer: LayerTime, peaks: Sequence[Peaks] = ()) -> list[MeasuredPass]:
    """The passes of a layer that took time; `peaks` are those of the device that it ran on."""
    named = parse(layer.key)
    about = named and (execution_of(named.execution).product_type, layer.active_ranks)
    mine = next((of for of in peaks if (of.dtype, of.active_ranks) == about), None)
    timed = [of for of in DIRECTIONS if _seconds(layer, of).value > 0]
    return [_pass(layer, named, direction, mine) for direction in timed]


def work_of_pass(named: NamedLayer, direction: Direction) -> tuple[float, float]:
    """(operations, bytes) of a pass; a layer that runs no kernel has none."""
    shape, batch = named.shape, named.batch
    if shape.is_free:
        return 0.0, 0.0
    item_bytes = execution_of(named.execution).items.activation_bytes
    if direction == "forward":
        return shape.forward_flops(batch), shape.moved_bytes(batch, item_bytes)
    return (
        shape.backward_flops(batch, named.needs_input_grad),
        shape.backward_bytes(batch, item_bytes, named.needs_input_grad),
    )


def _seconds(layer: LayerTime, direction: Direction) -> Estimate:
    return layer.forward_s if direction == "forward" else layer.backward_s


def _pass(
    layer: LayerTime, named: NamedLayer | None, direction: Direction, peaks: Peaks | None
) -> MeasuredPass:
    seconds = _seconds(layer, direction)
    flops, nbytes = work_of_pass(named, direction) if named else (0.0, 0.0)
    roof = peaks.roof(flops, nbytes) if peaks is not None and (flops or nbytes) else None
    return MeasuredPass(
        key=layer.key,
        kind=layer.kind,
        batch=layer.batch,
        execution=named.execution if named else "",
        active_ranks=layer.active_ranks,
        direction=direction,
        seconds=seconds,
        n=layer.n,
        flops=flops,
        nbytes=nbytes,
        intensity=flops / nbytes if flops and nbytes else None,
        flops_per_s=seconds.per_second(flops) if flops else None,
        bytes_per_s=seconds.per_second(nbytes) if nbytes else None,
        peak_share=roof.seconds / seconds.value if roof else None,
        bound=roof.bound if roof else None,
        kernels=layer.kernels.get(direction, []),
        workspace_bytes=layer.workspace_bytes.get(direction),
    )
