"""Logs of the OSU micro-benchmarks."""

from __future__ import annotations

SIZES = [1 << power for power in range(0, 12)]


def log(
    title: str, header: str = "# Size       Avg Latency(us)", more: str = "", extra: str = ""
) -> str:
    rows = "".join(f"{size:<10d}{5 + size / 100:16.2f}{extra}\n" for size in SIZES)
    return f"\n# OSU {title} v7.3\n{more}{header}\n{rows}"
