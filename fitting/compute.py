"""Layer times: the table of what was measured, and a work model for what was not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from fitting.estimate import group, slowest_rank
from fitting.parameters import LayerTime, WorkModel
from fitting.records import Estimate
from fitting.regression import MIN_ROWS, checked_law
from microbench.cases import LayerCase
from microbench.samples import Sample

ZERO = Estimate(value=0.0, low=0.0, high=0.0)
ANY_KIND = "any"
COMPUTE_BOUND = ("conv", "linear")


def layer_times(samples: list[Sample], cases: Mapping[str, LayerCase]) -> list[LayerTime]:
    """One LayerTime for every measured (layer key, active ranks), sorted."""
    groups = group(sample for sample in samples if sample.kind == "layer")
    times = []
    for case_id in sorted({case_id for case_id, _ in groups}):
        case = cases[case_id]
        if not is_plain(case):
            continue
        forward = groups[case_id, "forward"]
        backward = groups.get((case_id, "backward"))
        times.append(
            LayerTime(
                key=case.key,
                kind=case.layer.kind,
                batch=case.batch,
                active_ranks=forward[0].active_ranks,
                forward_s=slowest_rank(forward),
                backward_s=slowest_rank(backward) if backward else ZERO,
                n=len(forward),
            )
        )
    return sorted(times, key=lambda time: (time.active_ranks, time.key))


def is_plain(case: LayerCase) -> bool:
    """A layer as training runs it by default: whole, eager, warm, float32, on CPUs."""
    usual = case.passes == "whole" and case.mode == "eager" and case.dtype == "float32"
    return usual and case.device == "cpu" and not case.cold and not case.channels_last


def work_models(times: list[LayerTime], cases: Mapping[str, LayerCase]) -> list[WorkModel]:
    """Per kind, direction and active ranks: t = call + flops s/flop + bytes s/byte.

    The bytes and flops are those of the forward; the backward has coefficients of its own. A kind
    with under MIN_ROWS distinct layers is left to the model of all memory-bound kinds.
    """
    by_key = {case.key: case for case in cases.values()}
    rows: dict[tuple[str, str, int], list[tuple[float, float, float]]] = defaultdict(list)
    for time in times:
        case = by_key[time.key]
        flops = case.layer.forward_flops(case.batch)
        nbytes = case.layer.moved_bytes(case.batch)
        kinds = [time.kind] if time.kind in COMPUTE_BOUND else [time.kind, ANY_KIND]
        for kind in kinds:
            for direction, seconds in (("forward", time.forward_s), ("backward", time.backward_s)):
                # no backward, or that of a first layer, which computes no dL/dx
                whole = direction == "forward" or case.needs_input_grad
                if seconds.value > 0 and whole:
                    rows[kind, direction, time.active_ranks].append((flops, nbytes, seconds.value))
    return [
        _work_model(key, sorted(set(values)))
        for key, values in sorted(rows.items())
        if key[0] in (ANY_KIND, *COMPUTE_BOUND) or len(set(values)) >= MIN_ROWS
    ]


def _work_model(key: tuple[str, str, int], rows: list[tuple[float, float, float]]) -> WorkModel:
    kind, direction, active_ranks = key
    features = [[1.0, flops, nbytes] for flops, nbytes, _ in rows]
    seconds = [row[2] for row in rows]
    (call, per_flop, per_byte), factor = checked_law(features, seconds)
    return WorkModel(
        kind=kind, direction=direction, active_ranks=active_ranks, call_s=call,
        s_per_flop=per_flop, s_per_byte=per_byte, error_factor=factor,
        max_flops=max(row[0] for row in rows), max_bytes=max(row[1] for row in rows),
        n_layers=len(rows),
    )  # fmt: skip
