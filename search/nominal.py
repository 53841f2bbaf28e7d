"""Parameters of the papers' machines from data sheets, to search where those papers searched.

Nothing was measured: alpha, beta and rates are what vendors state, times one stated efficiency. Every
law is right up to FACTOR only, and the file's notes and every plan say "nominal".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calib.fitting.parameters.algorithms import shape_of
from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint, HockneyPiece
from calib.fitting.parameters.file import Parameters, TensorLoop, WorkModel
from calib.fitting.parameters.provenance import Provenance
from calib.fitting.parameters.structural import ScaledLayout, StructuralBand, StructuralFit
from calib.foundation.errors import InputError
from calib.foundation.records import Z_95, Estimate

FACTOR = 3.0  # a convention: a data sheet is no measurement
NOTE = "nominal parameters, from data sheets: nothing was measured on such a machine"
# operation -> the algorithm of formulas.md, "Collectives"
RINGS = {
    "allreduce": "ring",
    "allgather": "ring",
    "reduce_scatter": "ring",
    "all_to_all": "ring",
    "broadcast": "binomial tree",
}
# a law is straight in log-log between two sizes: one for each power of two
SIZES = [1 << k for k in range(2, 41)]
LAUNCHES = {"forward": 1.0, "backward": 2.0}  # the backward computes two gradients


@dataclass(frozen=True)
class Nominal:
    """A cluster on paper: FLOP/s, memory bytes/s and bytes of a device, alpha and beta of each level.

    `efficiency` is the share of the peak that large convolutions and matrix products are given;
    `launch_s` the start of one kernel.
    """

    about: str
    nodes: int
    per_node: int
    flops_per_s: float
    memory_bytes_per_s: float
    memory_bytes: int
    node_bytes_per_s: float
    system_bytes_per_s: float
    efficiency: float = 0.6
    launch_s: float = 5e-6
    node_alpha_s: float = 1e-5
    system_alpha_s: float = 2e-5


GIB = 1 << 30
NOMINAL = {
    # OptCNN, section 6: 4 nodes, NVLink (1st generation: 20 GB/s a link and direction), EDR
    "p100": Nominal(
        "4 x 4 P100, NVLink, EDR InfiniBand (OptCNN)", 4, 4, 10.6e12, 732e9, 16 * GIB, 20e9, 12.5e9
    ),
    # AutoDDL, section 5.2: one P100 per node, Aries
    "piz-daint": Nominal(
        "64 x 1 P100, Cray Aries (AutoDDL)", 64, 1, 9.3e12, 732e9, 16 * GIB, 10e9, 10e9
    ),
    # AutoDDL, section 5.3: 2 servers of 16 A100 of 40 GB, 600 GB/s NVLink, 100 Gb/s between them
    "a100": Nominal(
        "2 x 16 A100 40 GB, NVLink, 100 Gb/s (AutoDDL)",
        2,
        16,
        312e12,
        1555e9,
        40 * GIB,
        300e9,
        12.5e9,
        efficiency=0.5,
        system_alpha_s=3e-5,
    ),
    # ParaDL: 4 V100 per node, NVLink 20 GB/s, 2 EDR (models.md)
    "v100": Nominal(
        "256 x 4 V100, NVLink, 2 EDR InfiniBand (ParaDL)",
        256,
        4,
        15.7e12,
        900e9,
        16 * GIB,
        20e9,
        25e9,
    ),
    # Parallax, section 6: 8 machines of 6 TITAN Xp, 100 Gb/s InfiniBand
    "titan-xp": Nominal(
        "8 x 6 TITAN Xp, PCIe, 100 Gb/s InfiniBand (Parallax)",
        8,
        6,
        12.1e12,
        547e9,
        12 * GIB,
        12e9,
        12.5e9,
    ),
}


def nominal(name: str) -> Parameters:
    """The parameters of a machine of NOMINAL. Raises InputError."""
    if name not in NOMINAL:
        raise InputError(f"unknown nominal machine {name!r}; known: {', '.join(NOMINAL)}")
    return parameters_of(name, NOMINAL[name])


def parameters_of(name: str, of: Nominal) -> Parameters:
    """A parameter file of such a machine, with the laws that predictions and searches ask for."""
    levels = [
        ("node", of.node_alpha_s, of.node_bytes_per_s, 1),
        ("system", of.system_alpha_s, of.system_bytes_per_s, 2),
    ]
    return Parameters(
        provenance=Provenance(
            program_version="",
            cluster_name=f"nominal {name}",
            cluster_fingerprint=f"nominal-{name}",
            samples_sha256=["nominal"],
            measured_from="",
            measured_until="",
            seed=0,
            notes=[NOTE, of.about],
        ),
        device_kind="cuda",
        device=name,
        device_memory_bytes=of.memory_bytes,
        ranks_per_node=of.per_node,
        nodes=of.nodes,
        nodes_per_rack=0,
        links_per_node=1,
        collectives=[_pair(operation, *level) for level in levels for operation in ("p2p", *RINGS)],
        structural=[
            _ring(operation, level, nodes) for level, *_, nodes in levels for operation in RINGS
        ],
        work=[
            _work(of, kind, direction)
            for kind in ("conv", "linear", "any")
            for direction in LAUNCHES
        ],
        tensor_loops=[
            _loop(of, operation)
            for operation in ("update", "update_adam", "pack", "unpack", "concat", "split")
        ],
    )


def _pair(
    operation: str, level: str, alpha_s: float, bytes_per_s: float, nodes: int
) -> CollectiveFit:
    """The operation between two devices: a line, whose times are stated at each of SIZES."""
    steps, volume = (1.0, 1.0) if operation == "p2p" else shape_of(operation, RINGS[operation], 2)
    intercept, slope = _about(steps * alpha_s), _about(volume / bytes_per_s)
    line = {"intercept_s": intercept, "slope_s_per_byte": slope}
    points = [
        CollectivePoint(nbytes=m, seconds=_about(intercept.value + slope.value * m), n=1)
        for m in SIZES
    ]
    return CollectiveFit(
        operation=operation,
        library="nccl",
        device="cuda",
        level=level,
        ranks=2,
        nodes=nodes,
        **line,
        mean_relative_error=FACTOR - 1,
        line_error_factor=FACTOR,
        interpolation_error_factor=FACTOR,
        points=points,
        pieces=[HockneyPiece(from_nbytes=SIZES[0], to_nbytes=SIZES[-1], **line)],
        pieces_error_factor=FACTOR,
    )


def _ring(operation: str, level: str, nodes: int) -> StructuralFit:
    """Rings of any length, scaled from the pair."""
    return StructuralFit(
        operation=operation,
        library="nccl",
        device="cuda",
        level=level,
        layouts=[ScaledLayout(ranks=2, nodes=nodes, ranks_per_node=2 // nodes)],
        # one ring, and a link for each rank of an all-to-all
        links_exponent=Estimate.exactly(float(operation == "all_to_all")),
        bands=[StructuralBand(nbytes=SIZES[0], weights={RINGS[operation]: 1.0})],
        deviation=math.log(FACTOR) / Z_95,
        doubling_deviation=0.0,
        held_out_error=None,
    )


def _work(of: Nominal, kind: str, direction: str) -> WorkModel:
    times = LAUNCHES[direction]
    return WorkModel(
        kind=kind,
        direction=direction,
        active_ranks=of.per_node,
        call_s=times * of.launch_s,
        s_per_flop=times / (of.flops_per_s * of.efficiency),
        s_per_byte=times / of.memory_bytes_per_s,
        form="max",
        error_factor=FACTOR,
        max_flops=1e18,
        max_bytes=1e18,
        n_layers=1,
    )


def _loop(of: Nominal, operation: str) -> TensorLoop:
    return TensorLoop(
        operation=operation,
        device="cuda",
        active_ranks=of.per_node,
        call_s=of.launch_s,
        s_per_tensor=0.0,
        s_per_byte=2.0 / of.memory_bytes_per_s,  # read and written
        error_factor=FACTOR,
        max_bytes=1e18,
        n=1,
    )


def _about(value: float) -> Estimate:
    return Estimate.within_factor(value, FACTOR)
