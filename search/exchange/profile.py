"""The gradients of a PipeDream profile (search/pipelines/profile.py)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from calib.foundation.layers import ITEM_BYTES
from calib.search.pipelines import profile as pipedream


@dataclass(frozen=True)
class ExchangeProfile:
    """Layers in an order of their edges: seconds of forward and backward, items of parameters."""

    own_batch: ClassVar[bool] = True
    name: str
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    items: tuple[int, ...]
    source: pipedream.PipelineProfile


def profile_of(name: str) -> ExchangeProfile | None:
    """The profile of a file that is named so; None of another name. Raises FileError."""
    return read(Path(name)) if name.endswith(pipedream.SUFFIXES) else None


def read(path: Path) -> ExchangeProfile:
    """Read a graph.txt (msr-fiddle/pipedream). Raises FileError."""
    of = pipedream.read(path)
    nodes = [of.nodes[k] for k in _ordered(of)]
    return ExchangeProfile(
        of.name,
        tuple(node.name for node in nodes),
        tuple(node.what.split("(")[0].lower() for node in nodes),
        tuple(node.forward_s for node in nodes),
        tuple(node.backward_s for node in nodes),
        tuple(round(node.parameter_bytes / ITEM_BYTES) for node in nodes),
        of,
    )


def _ordered(of: pipedream.PipelineProfile) -> list[int]:
    """Each layer after those that it reads, else in the order of their numbers."""
    before: dict[int, list[int]] = {}
    for source, reader in of.edges:
        before.setdefault(reader, []).append(source)
    left = sorted(range(len(of.nodes)), key=lambda k: (len(of.nodes[k].name), of.nodes[k].name))
    order: dict[int, None] = {}
    while left:
        ready = next(k for k in left if all(b in order for b in before.get(k, ())))
        order[ready] = None
        left.remove(ready)
    return list(order)
