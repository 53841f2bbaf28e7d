"""The peaks of the device, from the two layers that are measured for them (microbench/peaks.py)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from calib.fitting.estimate import slowest_rank
from calib.fitting.launches import NO_OTHERS, Launches
from calib.fitting.parameters.peaks import Peaks
from calib.foundation.execution import execution_of
from calib.foundation.records import Estimate
from calib.microbench.cases import LayerCase
from calib.microbench.peaks import is_square_product, is_sum_of_arrays
from calib.microbench.records.samples import Samples


class Rate(NamedTuple):
    """What was done a second, in how much work and how many repetitions."""

    per_second: Estimate
    amount: float
    n: int


def device_peaks(
    samples: Samples, cases: Mapping[str, LayerCase], among: Launches = NO_OTHERS
) -> list[Peaks]:
    """One record for every (device, dtype, active ranks) with both peaks, sorted.

    Of the slowest rank, as all layer times are; of several sizes the fastest.
    """
    products: dict[tuple[str, str, int], list[Rate]] = defaultdict(list)
    sums: dict[tuple[str, int], list[Rate]] = defaultdict(list)
    layers = samples.where(kind="layer").groups("case_id", "operation")
    for (case_id, operation), rows in sorted(layers.items()):
        case, active = cases[case_id], rows.first.active_ranks
        if operation != "forward":
            continue
        if is_square_product(case):
            flops = case.layer.forward_flops(case.batch)
            products[case.device, case.execution, active] += _rate(rows, flops, among)
        elif is_sum_of_arrays(case):
            nbytes = case.layer.moved_bytes(
                case.batch, execution_of(case.execution).items.activation_bytes
            )
            sums[case.device, active] += _rate(rows, nbytes, among)
    return [
        Peaks(
            device=device,
            dtype=dtype,
            active_ranks=active,
            flops_per_s=product.per_second,
            bytes_per_s=added.per_second,
            flops=product.amount,
            nbytes=added.amount,
            n=product.n,
        )
        for (device, dtype, active), found in sorted(products.items())
        if (product := _fastest(found)) and (added := _fastest(sums[device, active]))
    ]


def _rate(rows: Samples, amount: float, among: Launches) -> list[Rate]:
    """Nothing where a call may take no time on its clock."""
    found = slowest_rank(rows, among).per_second(amount)
    return [] if found is None else [Rate(found, amount, len(rows))]


def _fastest(found: list[Rate]) -> Rate | None:
    return max(found, key=lambda rate: rate.per_second.value, default=None)
