"""An infrastructure as InfraGraph describes it: devices, how many of each, and edges between them.

References
----------
InfraGraph (Keysight, MLCommons Chakra), artifacts/openapi.yaml, version 2.4: Infrastructure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from calib.foundation.errors import FileError
from calib.foundation.words import counted
from calib.microbench.topology.fabric import FabricLink, fabric
from calib.microbench.topology.found import FoundTopology

KEYS = re.compile(
    r"^[ \t]*[\"']?(?:infrastructure|devices|instances|edges)[\"']?\s*:", re.MULTILINE
)
MOST_HOSTS, MOST_LINKS = 100_000, 1_000_000  # so that a slip in a slice ends early
# B/s of a link by the unit of its bandwidth; transfers per second say nothing of bytes
UNITS = {"gigabits_per_second": 1e9 / 8, "gigabytes_per_second": 1e9}
PART = re.compile(r"([^\[\]]+)(?:\[(-?\d{0,9})(:?)(-?\d{0,9}):?(-?\d{0,9})\])?")
Tree = Mapping[str, Any]


def is_infragraph(text: str) -> bool:
    """Whether it looks like InfraGraph's JSON or YAML."""
    return KEYS.search(text) is not None or text.lstrip().startswith("{")


def read_infragraph(text: str) -> FoundTopology:
    """The topology of an infrastructure. Raises FileError where it is none.

    Hosts are instances of devices with an xpu, or else a cpu, and are called instance.index.
    """
    graph = Infrastructure(_content(text))
    links, ringed = list[FabricLink](), 0
    for edge in graph.edges:
        if edge.get("scheme") == "ring":
            ringed += 1
            continue
        ends = (graph.ends(_tree(edge, "ep1")), graph.ends(_tree(edge, "ep2")))
        speed = graph.bandwidths.get(_text(edge, "link"))
        every = edge.get("scheme") == "many2many"
        count = len(ends[0]) * len(ends[1]) if every else min(map(len, ends))
        if len(links) + count > MOST_LINKS:
            raise FileError(f"its edges are more than {MOST_LINKS:,} links")
        pairs = product(*ends) if every else zip(*ends, strict=False)
        links += [FabricLink(one, other, speed) for one, other in pairs if one != other]
    notes = []
    if unknown := sum(link.bandwidth is None for link in links):
        notes.append(f"{counted(unknown, 'link')} without a bandwidth")
    if ringed:
        notes.append(f"{counted(ringed, 'edge')} of the scheme ring")
    return fabric("InfraGraph", links, graph.hosts, notes)


class Component(NamedTuple):
    """A component of a device: how many, and what it is."""

    number: int
    choice: str


class Infrastructure:
    """What topologies need of an infrastructure. Raises FileError for what it must not hold."""

    def __init__(self, content: Tree) -> None:
        tree = _tree(content, "infrastructure") if "infrastructure" in content else content
        self.edges = _trees(tree, "edges")
        self.bandwidths = {_text(x, "name"): _bandwidth(x) for x in _trees(tree, "links")}
        self.devices = {
            _text(device, "name"): {
                _text(x, "name"): Component(_count(x), _text(x, "choice"))
                for x in _trees(device, "components")
            }
            for device in _trees(tree, "devices")
        }
        self.instances = {
            _text(x, "name"): (_text(x, "device"), _count(x)) for x in _trees(tree, "instances")
        }
        if not self.instances:
            raise FileError("it holds no instances of devices, as InfraGraph has")

    @property
    def hosts(self) -> list[str]:
        """instance.index of each host."""
        for kind in ("xpu", "cpu"):
            mine = [
                name for name, (device, _) in self.instances.items() if kind in self._in(device)
            ]
            if sum(self.instances[name][1] for name in mine) > MOST_HOSTS:
                raise FileError(f"it has more than {MOST_HOSTS:,} hosts")
            if mine:
                return [
                    f"{name}.{index}" for name in mine for index in range(self.instances[name][1])
                ]
        return []

    def _in(self, device: str) -> set[str]:
        """What a device consists of, with the devices within it."""
        kinds, seen, waiting = set(), {device}, [device]
        while waiting:
            for name, of in self.devices.get(waiting.pop(), {}).items():
                kinds.add(of.choice)
                if of.choice == "device" and name not in seen:
                    seen.add(name)
                    waiting.append(name)
        return kinds

    def ends(self, endpoint: Tree) -> list[str]:
        """instance.index of each end of an edge, once for each component there."""
        name, where = _part(_text(endpoint, "instance"))
        if name not in self.instances:
            raise FileError(f"an edge is to {name!a:.60}, which is no instance")
        device, count = self.instances[name]
        components = 1
        for part in _text(endpoint, "component").split("."):
            inner, which = _part(part)
            known = self.devices.get(device, {})
            if inner not in known:
                raise FileError(f"an edge is to {inner!a:.60}, which {device!a:.60} does not hold")
            components *= len(range(known[inner].number)[which])
            device = inner
        indices = range(count)[where]
        if len(indices) * components > MOST_LINKS:
            raise FileError(f"an edge has more than {MOST_LINKS:,} ends")
        return [f"{name}.{index}" for index in indices for _ in range(components)]


def _content(text: str) -> Tree:
    """The value of a JSON or YAML text."""
    try:
        content = json.loads(text) if text.lstrip().startswith("{") else _yaml(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"it is truncated or not JSON ({error})") from error
    if not isinstance(content, dict):
        raise FileError("it is no InfraGraph: it has no named fields")
    return content


def _yaml(text: str) -> Any:
    # late: not everybody has PyYAML, and only this format needs it
    try:
        import yaml
    except ImportError as error:
        raise FileError(
            "it is YAML, and PyYAML is not installed; install it, or write the file as JSON"
        ) from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise FileError(f"it is truncated or not YAML ({error})") from error


def _part(text: str) -> tuple[str, slice]:
    """A name with its slice, as `host[0:2]`, `nic[3]` or `port`."""
    found = PART.fullmatch(text)
    if found is None:
        raise FileError(f"{text!a:.60} is no name with a slice")
    start, stop, step = (int(n) if n not in (None, "", "-") else None for n in found.group(2, 4, 5))
    if found[3] or start is None:
        return found[1], slice(start, stop, step or None)
    return found[1], slice(start, start + 1 or None)


def _bandwidth(link: Tree) -> float | None:
    """B/s each way, as its physical properties have it."""
    of = _tree(_tree(link, "physical"), "bandwidth")
    for unit, factor in UNITS.items():
        value = of.get(unit)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e12:
            return float(value) * factor
    return None


def _tree(of: Tree, name: str) -> Tree:
    """The fields that a field holds; none where it is not there."""
    found = of.get(name) or {}
    if not isinstance(found, dict):
        raise FileError(f"{name} must have named fields")
    return found


def _trees(of: Tree, name: str) -> Sequence[Tree]:
    found = of.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise FileError(f"{name} must be a list of named fields")
    return found


def _text(of: Tree, name: str) -> str:
    found = of.get(name, "")
    if not isinstance(found, str):
        raise FileError(f"{name} must be text")
    return found


def _count(of: Tree) -> int:
    found = of.get("count", 1)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= MOST_LINKS:
        raise FileError(f"count must be a whole number up to {MOST_LINKS:,}")
    return found
