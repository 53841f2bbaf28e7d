"""Recorded /proc and /sys, written below a directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# man 5 proc; numbers of a virtual machine with two threads on each of two cores, in 1/100 s
STAT = """\
cpu  1567172 86156 485259 384528 6243 0 7908 18072 0 0
cpu0 734338 47083 240576 241557 1758 77 3192 9349 500 0
cpu1 832833 39072 244683 142970 4485 88 4715 8722 600 0
cpu2 1000 0 200 900000 10 0 0 30 0 0
cpu3 4000 500 600 900000 10 0 0 40 0 0
intr 9116893 0 0 0 1 1 15 0 2555 993
ctxt 858538086
btime 1795777223
processes 47814
procs_running 3
procs_blocked 0
softirq 9222896 0 784713 1173728 4071532
"""
SNMP = """\
Ip: Forwarding DefaultTTL InReceives
Ip: 2 64 257059
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab \
InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors
Tcp: 1 200 120000 -1 855 814 6 0 0 257059 246961 404 0 47 0
"""
CPUINFO = """\
processor\t: 0
model name\t: AMD EPYC
cpu MHz\t\t: 2445.432

processor\t: 1
model name\t: AMD EPYC
cpu MHz\t\t: 1990.250
"""
DEVICES = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls \
carrier compressed
"""


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Path -> content below `root`; where a path ends in a slash, a directory."""
    for name, content in files.items():
        path = root / name
        folder = path if name.endswith("/") else path.parent
        folder.mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text(content)
    return root


def device_table(counts: Mapping[str, tuple[int, int]]) -> str:
    """/proc/net/dev of interfaces with bytes received and sent."""
    lines = (
        f"{name:>6}:{received} 23 0 0 0 0 0 0 {sent} 13 0 0 0 0 0 0\n"
        for name, (received, sent) in counts.items()
    )
    return DEVICES + "".join(lines)
