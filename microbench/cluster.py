"""The Cluster record (cluster.json): what was measured, so that numbers are never merged silently."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from foundation.files import read_record, write_json

CLUSTER_FORMAT = 1
# of a host, what may differ on a machine whose numbers are comparable
NOT_COMPARED = {"name", "network_interfaces"}


class Device(BaseModel):
    """One processing element that layers run on: a GPU, or the CPU cores of a host."""

    model_config = ConfigDict(extra="forbid")

    kind: str  # "cpu" or "cuda"
    name: str
    count: int = Field(ge=1, description="cores of a CPU, 1 of a GPU")
    memory_bytes: int = Field(ge=0)
    driver: str = ""


class Host(BaseModel):
    """One machine and the versions on it."""

    model_config = ConfigDict(extra="forbid")

    name: str
    kernel: str
    devices: list[Device]
    network_interfaces: dict[str, float | None] = Field(
        default_factory=dict, description="name -> bytes per second that the system states, or null"
    )
    versions: dict[str, str] = Field(default_factory=dict)


class Level(BaseModel):
    """One level of the machine: the ranks inside a node, the nodes of a system."""

    model_config = ConfigDict(extra="forbid")

    name: str  # node, rack, system
    members: int = Field(ge=1, description="PEs of a node; nodes of a rack or system")
    link: str = Field(description="what connects the members: shared memory, an interface's name")


class Cluster(BaseModel):
    """Hosts, devices, levels and library versions of one machine."""

    model_config = ConfigDict(extra="forbid")

    format_version: int = CLUSTER_FORMAT
    name: str
    hosts: list[Host] = Field(min_length=1)
    levels: list[Level] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_a_node(self) -> Cluster:
        if not any(level.name == "node" for level in self.levels):
            raise ValueError("levels holds no level named node")
        return self

    @property
    def fingerprint(self) -> str:
        """A hash of what makes numbers comparable: devices, levels, kernel and library versions.

        Host names are left out: two equal nodes of a partition have the same fingerprint. So are
        network interfaces: a container's virtual one comes and goes, and is no other machine.
        """
        content = {
            "levels": [level.model_dump() for level in self.levels],
            "hosts": sorted(
                json.dumps(host.model_dump(exclude=NOT_COMPARED), sort_keys=True)
                for host in self.hosts
            ),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def ranks_per_node(self) -> int:
        """PEs of a node."""
        return next(level.members for level in self.levels if level.name == "node")

    def write(self, path: Path) -> None:
        """Write cluster.json whole or not at all."""
        write_json(path, self.model_dump())

    @classmethod
    def read(cls, path: Path) -> Cluster:
        """Read cluster.json. Raises FileError."""
        return read_record(cls, path, "cluster file", CLUSTER_FORMAT)
