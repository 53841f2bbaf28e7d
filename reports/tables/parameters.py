"""A parameter file as tables, in the order of the file."""

from __future__ import annotations

from collections.abc import Sequence

from calib.fitting.parameters.file import Parameters
from calib.foundation.words import bytes_words
from calib.reports.tables.collectives import (
    algorithms,
    collectives,
    contention,
    fastest_algorithms,
    largest_sizes,
    pieces,
    structural,
)
from calib.reports.tables.compute import composition, layers, loops, peaks, work
from calib.reports.tables.exchanges import overlap, partitions, sparse
from calib.reports.tables.memory import device_memory, memory
from calib.reports.tables.table import Table


def sections(parameters: Parameters) -> list[Table]:
    """The tables of all sections that the file fills, in the order of the file."""
    makers = (
        collectives,
        largest_sizes,
        fastest_algorithms,
        pieces,
        structural,
        algorithms,
        contention,
        peaks,
        layers,
        work,
        loops,
        composition,
        memory,
        device_memory,
        overlap,
        sparse,
        partitions,
    )
    tables = [make(parameters) for make in makers]
    return [provenance(parameters), *(table for table in tables if table.rows)]


def kinds(parameters: Parameters) -> dict[str, Sequence[object]]:
    """What a file may hold, by its name for people."""
    return {
        "collectives": parameters.collectives,
        "structural laws": parameters.structural,
        "contention laws": parameters.contention,
        "peaks": parameters.peaks,
        "layer times": parameters.layers,
        "work laws": parameters.work,
        "tensor loops": parameters.tensor_loops,
        "composition laws": parameters.composition,
        "memory laws": parameters.memory,
        "overlap laws": parameters.overlap,
        "sparse exchanges": parameters.partitions,
    }


def absent(parameters: Parameters) -> str:
    """One line that names the sections that the file leaves empty; "" where it leaves none."""
    missing = [name for name, content in kinds(parameters).items() if not content]
    return f"not measured, so not in this file: {', '.join(missing)}" if missing else ""


def _declared(parameters: Parameters) -> str:
    """What the cluster declares of links between nodes; "" where it does nothing."""
    speed, racks, shared = (
        parameters.link_bandwidth,
        parameters.rack_links,
        parameters.shared_links,
    )
    parts = [f"{speed / 1e9:.3g} GB/s each way"] if speed else []
    parts += [f"{racks:.3g} out of a rack"] if racks else []
    parts += [f"{shared:.3g} that all nodes share"] if shared else []
    return ", ".join(parts)


def provenance(parameters: Parameters) -> Table:
    """Where the numbers come from."""
    source = parameters.provenance
    memory = parameters.device_memory_bytes
    counts = (parameters.nodes, parameters.nodes_per_rack, parameters.links_per_node)
    rows = [
        ["cluster", f"{source.cluster_name} (fingerprint {source.cluster_fingerprint})"],
        ["device", parameters.device + (f", {bytes_words(memory)} a rank" if memory else "")],
        ["ranks per node", str(parameters.ranks_per_node)],
        ["nodes, of a rack, links of a node", ", ".join(str(n or "unknown") for n in counts)],
        *([["links, as declared", words]] if (words := _declared(parameters)) else []),
        ["measured (UTC)", f"{source.measured_from} to {source.measured_until}"],
        *(["environment", each.words] for each in source.environments),
        ["fitted by", f"calib {source.program_version}, seed {source.seed}"],
        ["samples (sha256)", ", ".join(digest[:16] for digest in source.samples_sha256)],
        *([["edited", "by hand, after its fit"]] if source.edited else []),
        *(
            ["merged of", f"{x.sha256}, cluster {x.cluster_name} ({x.cluster_fingerprint})"]
            for x in source.merged
        ),
        *(["note", note] for note in source.notes),
    ]
    return Table("Where the numbers come from", ["what", "value"], rows)
