"""A topology file of any format, told by its content."""

from __future__ import annotations

from pathlib import Path

from calib.foundation.errors import FileError
from calib.foundation.files import read_text
from calib.microbench.topology.found import FoundTopology
from calib.microbench.topology.hwloc import is_xml, read_hwloc
from calib.microbench.topology.ibnetdiscover import is_ibnetdiscover, read_ibnetdiscover
from calib.microbench.topology.infragraph import is_infragraph, read_infragraph
from calib.microbench.topology.nvidia import is_nvidia_smi, read_nvidia_smi

MOST_BYTES = 256 * 2**20  # a hundred times what the largest networks fill
FORMATS = (
    (is_xml, read_hwloc),
    (is_ibnetdiscover, read_ibnetdiscover),
    (is_nvidia_smi, read_nvidia_smi),
    (is_infragraph, read_infragraph),
)


def read_topology(path: Path) -> FoundTopology:
    """What a file tells. Raises FileError: missing, too large, of no known format, or broken."""
    if path.is_file() and path.stat().st_size > MOST_BYTES:
        raise FileError(f"topology file {path} is larger than {MOST_BYTES >> 20} MiB")
    text = read_text(path, "topology file")
    reader = next((read for is_it, read in FORMATS if is_it(text)), None)
    if reader is None:
        raise FileError(
            f"topology file {path} is none that is known: XML of hwloc, output of ibnetdiscover or of "
            "nvidia-smi topo -m, InfraGraph"
        )
    try:
        found = reader(text)
    except FileError as error:
        raise FileError(f"topology file {path}: {error}") from error
    if not any(host.speeds or host.gpus for host in found.hosts):
        raise FileError(f"topology file {path} ({found.format}) tells of no link and no GPU")
    return found
