"""The matrix that `nvidia-smi topo -m` prints: GPUs, network cards, and what lies between them.

References
----------
The legend under the matrix; NVIDIA's data sheets for the most NVLinks of a GPU.
"""

from __future__ import annotations

import re

from calib.foundation.words import counted
from calib.microbench.topology.found import FoundHost, FoundTopology

UNDERLINE = re.compile(r"\x1b\[[0-9;]*m")
HEAD = re.compile(r"^[ \t]*GPU0[ \t]+(?:GPU1|NIC0|mlx\w+|CPU)\b", re.MULTILINE)
CARD = re.compile(r"NIC\d+|mlx\d+_\w+|ib\w*\d+|bnxt_re\w*|irdma\w*|rocep\w+|cxi\d+|efa\w*")
# from near to far
WAYS = ("PIX", "PXB", "PHB", "NODE", "SOC", "SYS")
BONDED = re.compile(r"NV(\d+)")
MOST_NVLINKS = 18  # of a GPU: Hopper and Blackwell


def is_nvidia_smi(text: str) -> bool:
    """Whether it holds a matrix of nvidia-smi."""
    return HEAD.search(UNDERLINE.sub("", text)) is not None


def read_nvidia_smi(text: str) -> FoundTopology:
    """The topology of one host, which the matrix does not name.

    Its links are the cards that are nearest to some GPU: one that none is near to is for storage or
    management. Speeds are not in it.
    """
    lines = UNDERLINE.sub("", text).splitlines()
    start = next(n for n, line in enumerate(lines) if HEAD.match(line))
    columns = [name for name in lines[start].split() if _is_device(name)]
    rows = {}
    for line in lines[start + 1 :]:
        name, *cells = line.split() or [""]
        if name in columns and len(cells) >= len(columns):
            rows[name] = dict(zip(columns, cells, strict=False))
        elif rows and not line.strip():
            break
    gpus = [name for name in columns if name.startswith("GPU") and name in rows]
    cards = [name for name in columns if not name.startswith("GPU")]
    near = {card for gpu in gpus for card in _nearest(rows[gpu], cards)}
    links = max((_nvlinks(rows[gpu], gpus) for gpu in gpus), default=0)
    lost = len(columns) - len(cards) - len(gpus)
    notes = [f"{counted(lost, 'GPU')} whose row is not there"] if lost else []
    if far := len(cards) - len(near):
        notes.append(f"{counted(far, 'network card')} near to no GPU: not counted as links")
    host = FoundHost("", (None,) * len(near), len(gpus), links)
    return FoundTopology("nvidia-smi topo -m", (host,), of_one_host=True, notes=tuple(notes))


def _is_device(name: str) -> bool:
    return re.fullmatch(r"GPU\d+", name) is not None or CARD.fullmatch(name) is not None


def _nearest(ways: dict[str, str], cards: list[str]) -> list[str]:
    """The cards of the shortest way from a GPU."""
    known = [card for card in cards if ways[card] in WAYS]
    least = min((WAYS.index(ways[card]) for card in known), default=0)
    return [card for card in known if WAYS.index(ways[card]) == least]


def _nvlinks(ways: dict[str, str], gpus: list[str]) -> int:
    """NVLinks of a GPU: over NVSwitches all lead to every other, else some to each."""
    bonded = [int(found[1]) for gpu in gpus if (found := BONDED.fullmatch(ways[gpu]))]
    total = sum(bonded)
    return total if total <= MOST_NVLINKS else min(max(bonded), MOST_NVLINKS)
