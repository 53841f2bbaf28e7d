"""ASTRA-sim's local memory: the rate at which a message is reduced."""

from __future__ import annotations

from collections.abc import Sequence

from calib.export.astra.times import PASSES, RING, AstraTime, work_of
from calib.export.collapse import collapse_of
from calib.export.devices import at_work, bytes_bound, copies, one_rate, points_of
from calib.export.reference import Reference
from calib.export.target import Collapse
from calib.foundation.words import number

# a memory that takes no time, where none was measured: what a reduction takes is in the network's times
NO_TIME_GB_PER_S = 1e9
# a reduction's memory is that of large buffers; start-up times of copies are no rate
LARGE_NBYTES = 1 << 20
NO_TIME_WORDS = (
    "local-mem-bw stands for a memory that takes no time, so that what reductions take stays in the "
    "network's times"
)


def memory_of(
    reference: Reference, asked: Sequence[AstraTime]
) -> tuple[float, list[Collapse], list[str]]:
    """local-mem-bw in GB/s, the error that one rate makes, and what must be said of it.

    It is of the device that the library's buffers are on. Of the CPU that are the layers that only move
    bytes, as a reduction does (two reads and a write, as an add), else copies; of a GPU copies alone, as
    layers' times are those of the CPU.
    """
    device = next((fit.device for fit in reference.fits), "cpu")
    known = [copies(reference.parameters, device)]
    if device == "cpu":
        known.insert(0, bytes_bound(reference.parameters))
    large = [[kernel for kernel in each if kernel.nbytes >= LARGE_NBYTES] for each in known]
    kernels = next((each for each in large + known if each), [])
    if not kernels:
        return (
            NO_TIME_GB_PER_S,
            [],
            [f"no pass that moves bytes was measured on {device}: {NO_TIME_WORDS}"],
        )
    rate = one_rate(kernels)
    over = sum(
        reductions_s(one, rate) > one.point.seconds for one in asked if one.point.operation != "p2p"
    )
    if over:
        return (
            NO_TIME_GB_PER_S,
            [],
            [
                f"by the passes measured on {device} the memory alone would take longer than {over} of "
                f"{len(asked)} collectives: {NO_TIME_WORDS}"
            ],
        )
    points = points_of(kernels, at_work(reference.parameters))
    values = [kernel.nbytes / rate for kernel in kernels]
    kinds = ", ".join(sorted({kernel.kind for kernel in kernels}))
    what = f"bytes of {kinds} ({device})"
    written = f"{number(rate / 1e9)} GB/s"
    return rate / 1e9, [collapse_of(what, "local-mem-bw", written, points, values)], []


def reductions_s(one: AstraTime, rate: float) -> float:
    """What the reductions of a collective take of a memory of so many bytes per second, by rings."""
    work = work_of(one.point.operation, one.sizes, [RING] * len(one.sizes))
    return PASSES * work.reduced * one.point.nbytes / rate
