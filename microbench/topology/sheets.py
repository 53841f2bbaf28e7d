"""What the data sheets of GPUs state: arithmetic, memory, links.

Rates are without sparsity, at the boost clock. Names are those that NVML gives.

References
----------
NVIDIA: Tesla V100 (DS-May-2018), V100S, A100 (2188504, 2021), H100 (2287922, 2023; arithmetic of tensor
cores is stated there with sparsity, twice the dense rate), H200, GH200 data sheets; DGX Spark (GB10)
specifications. NVLink 1.0 carries 20 GB/s a link and direction, 2.0 to 4.0 25, 5.0 50.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

NVLINK_BYTES_PER_S = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}  # of a link each way


@dataclass(frozen=True)
class Sheet:
    """Of one model of GPU: FLOP/s by item type, B/s of memory, its NVLinks (generation, links)."""

    model: str
    memory_bytes_per_s: float
    flops_per_s: dict[str, float] = field(default_factory=dict)
    nvlink: tuple[int, int] | None = None
    """Links to other GPUs of its node, for boards that always have them all; None bridges or none."""
    copies_over_pcie: bool = True
    """Whether host and device are connected by PCIe, and not by something faster."""


def _rates(float32: float, half: float, tf32: bool = True) -> dict[str, float]:
    """FLOP/s from TFLOP/s: bfloat16 like float16, TF32 half of it; Volta has only float16."""
    newer = {"tf32": half / 2, "bfloat16": half} if tf32 else {}
    return {
        kind: teraflops * 1e12
        for kind, teraflops in {"float32": float32, "float16": half, **newer}.items()
    }


V100, A100 = _rates(15.7, 125, tf32=False), _rates(19.5, 312)
H100 = _rates(67, 989.4)
H100_NVL = _rates(60, 835.5)
SHEETS = (
    (r"Tesla V100-SXM[23]-(16|32)GB", Sheet("V100 SXM", 900e9, V100, (2, 6))),
    (r"Tesla V100-PCIE-(16|32)GB", Sheet("V100 PCIe", 900e9, _rates(14, 112, tf32=False))),
    (r"Tesla V100S-PCIE-32GB", Sheet("V100S", 1134e9, _rates(16.4, 130, tf32=False))),
    (r"A100-SXM4-40GB", Sheet("A100 40 GB SXM", 1555e9, A100, (3, 12))),
    (r"A100-SXM4-80GB", Sheet("A100 80 GB SXM", 2039e9, A100, (3, 12))),
    (r"A100-PCIE-40GB", Sheet("A100 40 GB PCIe", 1555e9, A100)),
    (r"A100 80GB PCIe", Sheet("A100 80 GB PCIe", 1935e9, A100)),
    (r"H100 80GB HBM3", Sheet("H100 SXM", 3350e9, H100, (4, 18))),
    (r"H100 PCIe", Sheet("H100 PCIe", 2000e9, _rates(51, 756))),
    (r"H100 NVL", Sheet("H100 NVL", 3900e9, H100_NVL)),
    (r"H200", Sheet("H200 SXM", 4800e9, H100, (4, 18))),
    (r"H200 NVL", Sheet("H200 NVL", 4800e9, H100_NVL)),
    (r"GH200 (120|480)GB", Sheet("GH200 96 GB", 4000e9, H100, copies_over_pcie=False)),
    (r"GH200 144G HBM3e", Sheet("GH200 144 GB", 4900e9, H100, copies_over_pcie=False)),
    (r"GB10", Sheet("GB10", 273e9, copies_over_pcie=False)),
)


def sheet_of(name: str) -> Sheet | None:
    """The data sheet of a GPU by the name that NVML gives; None where it is not known."""
    short = name.removeprefix("NVIDIA ")
    return next((sheet for pattern, sheet in SHEETS if re.fullmatch(pattern, short)), None)
