"""Update, pack and unpack: seconds by the number and the bytes of the tensors."""

from __future__ import annotations

from collections import defaultdict

from fitting.estimate import group, slowest_rank
from fitting.parameters import TensorLoop
from fitting.records import Estimate
from fitting.regression import checked_law
from microbench.samples import Sample


def tensor_loops(samples: list[Sample]) -> list[TensorLoop]:
    """One TensorLoop for every (operation, active ranks), with its measured lists, sorted."""
    rows: dict[tuple[str, int], list[tuple[Sample, Estimate]]] = defaultdict(list)
    tensors = [
        s for s in samples if s.kind == "tensors" and s.device == "cpu" and s.dtype == "float32"
    ]
    for (_, operation), repetitions in sorted(group(tensors).items()):
        first = repetitions[0]
        rows[operation, first.active_ranks].append((first, slowest_rank(repetitions)))
    return [_loop(*key, values) for key, values in sorted(rows.items())]


def _loop(operation: str, active_ranks: int, rows: list[tuple[Sample, Estimate]]) -> TensorLoop:
    features = [[1.0, float(sample.ntensors), float(sample.nbytes)] for sample, _ in rows]
    seconds = [estimate.value for _, estimate in rows]
    (call, per_tensor, per_byte), factor = checked_law(features, seconds)
    return TensorLoop(
        operation=operation, active_ranks=active_ranks, call_s=call, s_per_tensor=per_tensor,
        s_per_byte=per_byte, error_factor=factor, max_bytes=max(s.nbytes for s, _ in rows),
        measured={sample.key: estimate for sample, estimate in sorted(rows, key=lambda r: r[0].key)},
    )  # fmt: skip
