"""Memory reuse made by hand."""

from __future__ import annotations

from tests.oracle.handmade import estimate

from calib.fitting.parameters.memory import DeviceMemory, MemoryForm, MemoryReuse, MemoryTerm

GAMMA, FACTOR = 0.5, 1.6


# naive: 1000 + (400 + 400) + 400 = 2200 bytes, and 400 of the exchange's buffer beside
PARTS = {"activations": 1000, "weights": 400, "gradients": 400, "optimizer": 400, "exchange": 400}


def reuse(
    family: str = "data",
    device: str = "cpu",
    chosen: MemoryForm = "simple",
    gamma: float = GAMMA,
    sums: tuple[float, float] = (1e3, 1e4),
    on_device: DeviceMemory | None = None,
) -> MemoryReuse:
    """A record with gamma, and 100 + 0.25, 1.5 and 2 times the parts as its refined form."""
    parts: list[list[MemoryTerm]] = [["constant"], ["activations"], ["weights"], ["optimizer"]]
    return MemoryReuse(
        framework="torch",
        device=device,
        family=family,
        gamma=estimate(gamma),
        gamma_error=0.1,
        gamma_held_out_error=0.2,
        constant_bytes=estimate(100.0),
        activations=estimate(0.25),
        weights=estimate(1.5),
        optimizer=estimate(2.0),
        parts=parts,
        refined_error=0.1,
        refined_held_out_error=0.2,
        chosen=chosen,
        error_factor=FACTOR,
        min_bytes=sums[0],
        max_bytes=sums[1],
        models=["hand"],
        n=3,
        on_device=on_device,
    )
