"""What an Ethernet card counts beside bytes: the statistics that `ethtool -S` prints (read only)."""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct
from collections.abc import Mapping

# linux/sockios.h and linux/ethtool.h
SIOCETHTOOL = 0x8946
STRINGS, STATISTICS, HOW_MANY = 0x1B, 0x1D, 0x37  # ETHTOOL_GSTRINGS, _GSTATS, _GSSET_INFO
OF_STATISTICS = 1  # ETH_SS_STATS
NAME_BYTES = 32  # ETH_GSTRING_LEN

# every driver has its own names: rx_pause (igb, tg3), rx_prio3_pause and tx_pause_ctrl_phy (mlx5),
# rx_flow_control_xoff (ixgbe), rx_pause_frames (bnxt_en: bnxt_re); not their durations in microseconds
A_PAUSE = re.compile(r"[rt]x_.*(?:pause|xoff)(?!.*(?:duration|transition|storm|watchdog|cfg))")


def statistics_of(interface: str) -> dict[str, int]:
    """All statistics of a card by their driver's names; none where it has none.

    A card may take milliseconds to answer, because it asks its firmware.
    """
    try:
        return _statistics(interface)
    except OSError:
        return {}


def pauses(statistics: Mapping[str, int]) -> int | None:
    """Pause frames received and sent, of the link and of its priorities; None where none are counted."""
    counts = [count for name, count in statistics.items() if A_PAUSE.match(name)]
    return sum(counts) if counts else None


def _statistics(interface: str) -> dict[str, int]:
    info = array.array("B", struct.pack("=IIQI", HOW_MANY, 0, 1 << OF_STATISTICS, 0))
    _ask(interface, info)
    mask, count = struct.unpack_from("=QI", info, 8)
    if not mask:
        return {}
    head = struct.pack("=III", STRINGS, OF_STATISTICS, count)
    strings = array.array("B", head + bytes(NAME_BYTES * count))
    _ask(interface, strings)
    values = array.array("B", struct.pack("=II", STATISTICS, count) + bytes(8 * count))
    _ask(interface, values)
    names = struct.iter_unpack(f"{NAME_BYTES}s", strings.tobytes()[len(head) :])
    numbers = struct.unpack_from(f"={count}Q", values, 8)
    return {
        name.partition(b"\0")[0].decode("ascii", "replace"): number
        for (name,), number in zip(names, numbers, strict=True)
    }


def _ask(interface: str, request: array.array[int]) -> None:
    """Let the kernel answer in the request itself. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        place, _ = request.buffer_info()
        # struct ifreq: a name of 16 bytes and a union of 24 with a pointer
        fcntl.ioctl(any_socket, SIOCETHTOOL, struct.pack("16sP16x", interface.encode(), place))
