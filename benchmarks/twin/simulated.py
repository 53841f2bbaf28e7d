"""Runs of collectives.c under SimGrid: compiled by smpicc, run by smpirun, its logs as rows."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.twin.platforms import Platform

HERE = Path(__file__).parent


def is_here() -> bool:
    """Whether SimGrid's MPI is installed (Debian's libsimgrid-dev)."""
    return bool(shutil.which("smpicc") and shutil.which("smpirun"))


def compiled(source: str, folder: Path) -> Path:
    """A program of this folder, by smpicc."""
    program = folder / source.removesuffix(".c")
    command = ["smpicc", "-O1", str(HERE / source), "-o", str(program), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    return program


def run(
    platform: Platform,
    nodes: int,
    per_node: int,
    command: Sequence[str],
    folder: Path,
    timeout_s: float | None = None,
) -> str:
    """What a program prints on the first `nodes` nodes of a platform, `per_node` ranks on each.

    Raises CalledProcessError and TimeoutExpired.
    """
    xml = folder / f"{platform.name}.xml"
    if not xml.exists():
        xml.write_text(platform.xml())
    hosts = folder / f"{platform.name}-{nodes}x{per_node}"
    hosts.write_text(platform.hosts(nodes, per_node))
    words = ["smpirun", "-no-privatize", "-np", str(nodes * per_node), "-platform", str(xml)]
    words += ["-hostfile", str(hosts), *platform.options, "--log=root.thres:error", *command]
    # smpirun leaves a host file that it unrolls where it runs
    done = subprocess.run(
        words, cwd=folder, check=True, capture_output=True, text=True, timeout=timeout_s
    )
    return done.stdout
