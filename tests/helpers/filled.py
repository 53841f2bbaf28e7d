"""A parameter file with one law of every kind, all of them well measured: no check complains of it."""

from __future__ import annotations

from typing import Any

from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint, HockneyPiece
from calib.fitting.parameters.contention import ContentionFit, ContentionPoint
from calib.fitting.parameters.file import Composition, LayerTime, Parameters, TensorLoop, WorkModel
from calib.fitting.parameters.memory import MemoryReuse, Overlap, OverlappedIteration, Partitions
from calib.fitting.parameters.peaks import Peaks
from calib.fitting.parameters.provenance import MergedSource, Provenance
from calib.fitting.parameters.structural import ScaledLayout, StructuralBand, StructuralFit
from calib.foundation.records import Estimate

SIZES = [8 * 8**k for k in range(8)]  # 8 B to 16 MiB
BORDER = 4096
# two pieces that meet at BORDER: 4 us + 1 ns/B, then 6.048 us + 0.5 ns/B
SMALL, LARGE = (4e-6, 1e-9), (6.048e-6, 0.5e-9)
MODELS = ["a x 8", "b x 8", "c x 8", "d x 8"]
UNTIL = "2026-11-03T09:56:00+00:00"
QUANTILES = [-0.04, -0.02, 0.0, 0.02, 0.04]
CONV_KEY = "conv(groups=1,kernel=3x3,padding=1x1,stride=1x1)|8*4x8x8->4x8x8|4x4x3x3+4|float32"


def near(value: float, margin: float = 0.05) -> Estimate:
    """`value` +- 5%."""
    return Estimate(value=value, low=value * (1 - margin), high=value * (1 + margin))


def seconds(nbytes: float) -> float:
    """What an allreduce takes."""
    intercept, slope = SMALL if nbytes <= BORDER else LARGE
    return intercept + slope * nbytes


def _piece(low: float, high: float, law: tuple[float, float]) -> HockneyPiece:
    intercept = near(law[0])
    return HockneyPiece(
        from_nbytes=low, to_nbytes=high, intercept_s=intercept, slope_s_per_byte=near(law[1])
    )


def collective(ranks: int = 2, **changes: Any) -> CollectiveFit:
    """The allreduce."""
    content: dict[str, Any] = {
        "operation": "allreduce",
        "library": "mpi",
        "level": "node",
        "ranks": ranks,
        "nodes": 1,
        "intercept_s": near(4e-6),
        "slope_s_per_byte": near(0.5e-9),
        "mean_relative_error": 0.12,
        "line_error_factor": 1.3,
        "interpolation_error_factor": 1.1,
        "pieces": [_piece(SIZES[0], BORDER, SMALL), _piece(BORDER, SIZES[-1], LARGE)],
        "pieces_mean_relative_error": 0.01,
        "pieces_error_factor": 1.05,
        "left_out_error": 0.03,
        "residual_quantiles": QUANTILES,
        "runner_up": "3 pieces, criterion 4.00 worse",
        "n": 160,
        "points": [CollectivePoint(nbytes=m, seconds=near(seconds(m)), n=20) for m in SIZES],
    }
    return CollectiveFit(**(content | changes))


def structural(**changes: Any) -> StructuralFit:
    """Rings on any p, from 2, 4 and 8 ranks."""
    content: dict[str, Any] = {
        "operation": "allreduce",
        "library": "mpi",
        "level": "node",
        "layouts": [scaled_layout(p) for p in (2, 4, 8)],
        "links_exponent": near(0.5),
        "shared_links": 4.0,
        "rules": {"Open MPI's rule": 0.6},
        "bands": [
            StructuralBand(nbytes=float(m), weights={"ring": 0.75, "recursive doubling": 0.25})
            for m in (SIZES[0], SIZES[-1])
        ],
        "deviation": 0.05,
        "doubling_deviation": 0.08,
        "held_out_error": 0.05,
    }
    return StructuralFit(**(content | changes))


def scaled_layout(ranks: int, **changes: Any) -> ScaledLayout:
    """A layout in a node."""
    content = {"ranks": ranks, "nodes": 1, "ranks_per_node": ranks, "factor": 1.02}
    return ScaledLayout(**(content | changes))


def contention(**changes: Any) -> ContentionFit:
    """phi = 1, 1, 2 with 1, 2, 4 groups."""
    points = [
        ContentionPoint(groups=k, contention=near(phi), intercept_s=5e-6, analytical=phi, n=60)
        for k, phi in ((1, 1.0), (2, 1.0), (4, 2.0))
    ]
    content: dict[str, Any] = {
        "operation": "allreduce",
        "library": "mpi",
        "device": "cpu",
        "level": "node",
        "ranks": 2,
        "stride": 1,
        "nodes": 1,
        "baseline": "same layout",
        "law": "saturation",
        "runner_up": "steps",
        "score_gap": 3.0,
        "capacity": near(2.0),
        "intercept_s": near(5e-6),
        "slope_s_per_byte": near(1e-10),
        "min_nbytes": 1024.0,
        "max_nbytes": 2.0**24,
        "mean_relative_error": 0.02,
        "residual_quantiles": QUANTILES,
        "points": points,
    }
    return ContentionFit(**(content | changes))


def peaks(**changes: Any) -> Peaks:
    """20 GFLOP/s and 10 GB/s."""
    content: dict[str, Any] = {
        "active_ranks": 2,
        "flops_per_s": near(2e10),
        "bytes_per_s": near(1e10),
        "flops": 2.0 * 512**3,
        "nbytes": 9e7,
        "n": 40,
    }
    return Peaks(**(content | changes))


def layer(**changes: Any) -> LayerTime:
    """A convolution that runs at 100 us and 200 us, in a model at 120 us and 250 us."""
    content: dict[str, Any] = {
        "key": CONV_KEY,
        "kind": "conv",
        "batch": 8,
        "active_ranks": 2,
        "forward_s": near(1e-4),
        "backward_s": near(2e-4),
        "n": 40,
        "in_place_forward_s": near(1.2e-4),
        "in_place_backward_s": near(2.5e-4),
    }
    return LayerTime(**(content | changes))


def work(**changes: Any) -> WorkModel:
    """10 us a call, 10 GFLOP/s and 5 GB/s."""
    content: dict[str, Any] = {
        "kind": "conv",
        "direction": "forward",
        "active_ranks": 2,
        "call_s": 1e-5,
        "s_per_flop": 1e-10,
        "s_per_byte": 2e-10,
        "error_factor": 1.2,
        "max_flops": 1e9,
        "max_bytes": 1e8,
        "n_layers": 12,
        "n": 36,
        "score": 0.08,
        "runner_up": "flop",
        "runner_up_score": 0.1,
        "intervals": {"call_s": (9e-6, 1.1e-5), "s_per_flop": (9e-11, 1.1e-10)},
    }
    return WorkModel(**(content | changes))


def loop(**changes: Any) -> TensorLoop:
    """1 us a call, 2 us a tensor, 10 GB/s."""
    content: dict[str, Any] = {
        "operation": "update",
        "active_ranks": 2,
        "call_s": 1e-6,
        "s_per_tensor": 2e-6,
        "s_per_byte": 1e-10,
        "error_factor": 1.1,
        "mean_relative_error": 0.03,
        "held_out_error": 0.04,
        "min_bytes": 128.0,
        "max_bytes": 1e7,
        "n": 400,
        "measured": {f"{k:016x}": near(1e-5 * (k + 1)) for k in range(5)},
        "intervals": {"s_per_tensor": (1.9e-6, 2.1e-6)},
    }
    return TensorLoop(**(content | changes))


def composition(**changes: Any) -> Composition:
    """Half a microsecond a layer."""
    content: dict[str, Any] = {
        "phase": "forward",
        "active_ranks": 2,
        "s_per_layer": 5e-7,
        "s_per_byte": 0.0,
        "error_factor": 1.05,
        "sum_error_factor": 1.3,
        "max_bytes": 1e8,
        "n": 80,
        "intervals": {"s_per_layer": (4e-7, 6e-7), "s_per_byte": (0.0, 0.0)},
        "models": MODELS,
    }
    return Composition(**(content | changes))


def memory(**changes: Any) -> MemoryReuse:
    """gamma 0.8; 100 MiB and factors of 0.7, 1.0, 1.0."""
    content: dict[str, Any] = {
        "framework": "torch",
        "device": "cpu",
        "family": "data",
        "gamma": near(0.8),
        "gamma_error": 0.05,
        "gamma_held_out_error": 0.06,
        "constant_bytes": near(100 * 2.0**20),
        "activations": near(0.7),
        "weights": near(1.0),
        "optimizer": near(1.0),
        "parts": [["constant"], ["activations"], ["weights"], ["optimizer"]],
        "refined_error": 0.01,
        "refined_held_out_error": 0.02,
        "chosen": "refined",
        "error_factor": 1.05,
        "min_bytes": 1e8,
        "max_bytes": 1e9,
        "models": MODELS,
        "n": 40,
    }
    return MemoryReuse(**(content | changes))


def overlap(**changes: Any) -> Overlap:
    """eta 0.6."""
    content: dict[str, Any] = {
        "library": "mpi",
        "device": "cpu",
        "ranks": 2,
        "eta": near(0.6),
        "error": 0.02,
        "held_out_error": 0.03,
        "error_factor": 1.05,
        "models": MODELS,
        "iterations": [OverlappedIteration(key="0" * 16, model="net", seconds=near(0.1))],
        "n": 40,
    }
    return Overlap(**(content | changes))


def partitions(**changes: Any) -> Partitions:
    """The best P is 10."""
    content: dict[str, Any] = {
        "rows": 1000,
        "width": 64,
        "share": 0.1,
        "ranks": 2,
        "nodes": 1,
        "library": "mpi",
        "server_s": near(0.3),
        "server_partitions": 10,
        "allgatherv_s": near(0.2),
        "allreduce_s": near(0.5),
        "constant_s": near(0.1),
        "parallel_s": near(1.0),
        "per_partition_s": near(0.01),
        "best_partitions": 10.0,
        "best_low": 9.0,
        "best_high": 11.0,
        "error": 0.01,
        "held_out_error": 0.02,
        "error_factor": 1.05,
        "min_partitions": 1,
        "max_partitions": 64,
        "n": 70,
    }
    return Partitions(**(content | changes))


def filled(**changes: Any) -> Parameters:
    """The whole file; `changes` replace its sections."""
    content: dict[str, Any] = {
        "provenance": Provenance(
            program_version="0.1.0",
            cluster_name="filled",
            cluster_fingerprint="0123456789abcdef",
            samples_sha256=["ab" * 32],
            measured_from="2026-11-03T09:50:00+00:00",
            measured_until=UNTIL,
            seed=1,
        ),
        "device": "Some CPU",
        "device_memory_bytes": 8 * 2**30,
        "ranks_per_node": 8,
        "collectives": [collective(2), collective(4), collective(8)],
        "structural": [structural()],
        "contention": [contention()],
        "peaks": [peaks()],
        "layers": [layer()],
        "work": [work()],
        "tensor_loops": [loop()],
        "composition": [composition()],
        "memory": [memory()],
        "overlap": [overlap()],
        "partitions": [partitions()],
    }
    return Parameters(**(content | changes))


def of_two_clusters(of: Parameters) -> Parameters:
    """The same, recorded as merged of clusters alpha and beta."""
    parts = [
        MergedSource(
            sha256="sha256:" + "ab" * 32,
            cluster_name=name,
            cluster_fingerprint=16 * name[0],
            measured_from="unknown",
            measured_until="unknown",
            parts={"collectives": 1},
        )
        for name in ("alpha", "beta")
    ]
    merged = of.provenance.model_copy(update={"merged": parts})
    return of.model_copy(update={"provenance": merged})
