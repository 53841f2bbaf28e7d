"""Logs of the Intel MPI Benchmarks."""

from __future__ import annotations

SUITE = "#----\n#    Intel(R) MPI Benchmarks 2021.2, MPI-1 part\n#----\n"


SIZES = [0, *(1 << power for power in range(12))]


def block(name: str, processes: int = 4, mega: float = 1e6, waiting: int = 0) -> str:
    """A block with times and, for Sendrecv, a bandwidth of 2 messages (IMB's user guide)."""
    bandwidth = name == "Sendrecv"
    more = "   Mbytes/sec" if bandwidth else ""
    lines = [
        f"# Benchmarking {name} ",
        f"# #processes = {processes} ",
        "#-----",
        f"#bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]{more}",
    ]
    if waiting:
        more = "es" if waiting > 1 else ""
        lines.insert(2, f"# ( {waiting} additional process{more} waiting in MPI_Barrier)")
    for size in SIZES:
        least, most = round(9 + size / 100, 2), round(11 + size / 100, 2)
        rate = f" {2 * size / most / mega * 1e6:.2f}" if bandwidth else ""
        lines.append(f"{size} 1000 {least:.2f} {most:.2f} {(least + most) / 2:.2f}{rate}")
    return "\n".join(lines) + "\n\n"
