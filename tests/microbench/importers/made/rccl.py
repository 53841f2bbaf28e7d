"""Logs of rccl-tests."""

from __future__ import annotations

from tests.microbench.importers.logs import END, TIMES, start, width

NAMES = ("NVLSTree", "RING", "TREE", "COLLNET_DIRECT")  # the first and the last fill their column


def head(halves: str, event: bool, choice: bool, stamp: bool) -> str:
    """The two lines above the rows and the one of units, printed as writeResultHeader does."""
    names = f"{'time':>7s}  {'hipevt':>7s}  " if event else f"{'time':>7s}  "
    names += f"{'algbw':>6s}  {'busbw':>6s}  {'#wrong':>6s}"
    units = "(us)  (us)  " if event else "(us)  "
    count = 2 if halves == "both" else 1
    which = "out-of-place    in-place" if halves == "both" else halves
    more = " algo      proto      nchannels" if choice else " "
    lead = f"# {'size':>10s}  {'count':>12s}  {'type':>8s}  {'redop':>6s}  {'root':>6s}  "
    return (
        f"#\n# {'':>46s}           {which}          \n"
        + lead
        + "  ".join([names] * count)
        + more
        + ("           timestamp" if stamp else " ")
        + f"\n# (B)  (elements)  {(units + '(GB/s)  (GB/s)  ') * count}\n"
    )


def line(
    size: int, micros: float, halves: str, event: bool, choice: str, stamp: bool, wrong: str = "0"
) -> str:
    """A row of allreduce on 4 ranks; the algorithm stands right behind the number of wrong results."""
    text = f"{size:12d}  {size // 4:12d}  {'float':>8s}  {'sum':>6s}  {-1:6d}"
    wanted = {"both": (0, 1), "out-of-place": (0,), "in-place": (1,)}[halves]
    for place in wanted:
        time = micros - place
        algbw = size / time * 1e-3
        text += f"  {width(time, 7):>7s}"
        text += f"  {width(0.9 * time, 7):>7s}" if event else ""
        text += f"  {width(algbw, 6):>6s}  {width(algbw * 1.5, 6):>6s}  {wrong:>6s}"
    text += f"{'2026-11-21 14:31:00':>21s}" if stamp and 1 in wanted else ""
    text += f"{choice:>8s}  {'SIMPLE':>8s}  {56:10d}" if choice else ""
    return text + "\n"


def log(halves: str, event: bool, choice: bool, stamp: bool, wrong: str = "0") -> str:
    said = start().replace(
        "# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902",
        "# rccl-tests version 2.17.9-a1b2c3d rccl-headers=22705 rccl-library=22705",
    )
    rows = "".join(
        line(size, time, halves, event, NAMES[at % len(NAMES)] if choice else "", stamp, wrong)
        for at, (size, time) in enumerate(TIMES)
    )
    return said + head(halves, event, choice, stamp) + rows + END
