"""Plain tables of sizes and times."""

from __future__ import annotations

ROWS = [(1 << power, 10.5 + (1 << power) / 2048) for power in range(10, 20)]  # bytes, us


def text(
    header: str = "size(B),time(us)", size: float = 1, time: float = 1, comma: str = ","
) -> str:
    """A table whose columns are in `size` bytes and `time` microseconds."""
    rows = "".join(f"{n / size:.9g}{comma}{t / time:.9g}\n" for n, t in ROWS)
    return f"{header}\n{rows}"


BANDWIDTHS = "size(B),time(us),algbw(GB/s),busbw(GB/s)\n" + "".join(
    f"{n},{t:.2f},{n / t * 1e-3:.3f},{n / t * 1e-3 * 1.75:.3f}\n" for n, t in ROWS
)
