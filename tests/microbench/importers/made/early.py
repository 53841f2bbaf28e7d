"""Logs of nccl-tests of 2016 to 2019."""

from __future__ import annotations

SIZES = [1 << power for power in range(16, 27)]  # from 64 KiB on the bandwidths have digits


RANKS = 4


def millis(size: int) -> float:
    return round(0.02 + size / 1e7, 3)


def devices(host: str, ranks: int = RANKS) -> str:
    where = f"on {host:>10s} device" if host else "uses device"
    lines = [
        f"#   Rank {rank:2d} {where} {rank:2d} [0x{rank + 6:02x}] Tesla P100"
        for rank in range(ranks)
    ]
    return "# Using devices\n" + "\n".join(lines) + "\n\n"


def early(
    ranks: int = RANKS,
    names: str = "op",
    words: str = "sum",
    moved: float = 1.0,
    factor: float = 1.5,
    parts: int = 1,
    halves: int = 2,
    host: str = "node7",
    scale: float = 1.0,
    result: str = "res",
    check: str = "  0e+00",
) -> str:
    """A table; algbw is size * moved / time, and the count is of one of the parts of the size."""
    text = (
        devices(host, ranks) + f"# {'':>46s}        out-of-place{'in-place' * (halves - 1):>20s}\n"
    )
    text += (
        f"#      bytes             N    type  {names}"
        + f"     time  algbw  busbw  {result}" * halves
    )
    for size in SIZES:
        text += f"\n{size:12d}  {size // 4 // parts:12d}   float  {words}"
        for half in range(halves):
            time = millis(size) + half / 1000
            algbw = size * moved / time * 1e-6
            text += f"  {time * scale:7.3f}  {algbw:5.2f}  {algbw * factor:5.2f}  {check:>7s}"
    return text + "\n\n Out of bounds values : 0 OK\n Avg bus bandwidth    : 9.41 \n\n"
