"""Target python: the laws as a dict of numbers and units, to paste into a script.

    import json
    numbers = json.load(open("numbers.json"))
    alpha = numbers["collectives"]["allreduce"]["torch_mpi, node, 2 ranks"]["alpha"]["value"]  # s

Every leaf is {"value", "unit"}, with "low" and "high" where it has a 95% interval; what is not known
is left out. A collective takes steps x alpha + volume x m x beta seconds for m bytes (formulas.md), or,
nearer to what was measured, the straight line between the ends of the piece that m is in. What it
cannot hold: measured points, measured layers and lists of tensors (their laws are there), residuals,
neighbours of laws of work, a piece's intercept (its times at both ends are there instead, which are
not below 0), and remarks. Whose numbers they are stands in the side file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from calib.export.csv_table import (
    BYTES,
    FLOPS_PER_SECOND,
    ONE,
    PER_SECOND,
    SECONDS,
    possible,
    unit_of,
    value_and_ends,
)
from calib.export.target import Exported, ExportRequest
from calib.fitting.parameters.algorithms import steps_and_volume
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import InputError
from calib.foundation.execution import unusual
from calib.foundation.records import Estimate
from calib.foundation.text import plain

NAME = "python"
FILENAME = "numbers.json"
DIRECTORY = False
RECEIVES = "the laws as a nested dict of numbers and units, for json.load"
LOSES = (
    "measured points, layers and lists of tensors (their laws stay), residuals, what corrects laws of "
    "layers near measured ones, a piece's intercept (its times at both ends stay), remarks"
)
NEEDS = "nothing: any parameter file"
OPTIONS: frozenset[str] = frozenset()

Tree = dict[str, Any]
Laws = Iterator[tuple[str | None, str, Tree]]  # the branch it is under, its name, its numbers


def export(request: ExportRequest) -> Exported:
    """One dict; nothing is collapsed."""
    parameters = request.parameters
    sections: dict[str, Callable[[Parameters], Laws]] = {
        "collectives": _collectives,
        "collectives on any ranks": _structural,
        "contention": _contention,
        "peaks": _peaks,
        "layers": _work,
        "tensor lists": _loops,
        "in place": _composition,
        "memory": _memory,
        "overlap": _overlap,
        "partitions": _partitions,
    }
    trees = {name: _branches(laws_of(parameters)) for name, laws_of in sections.items()}
    tree = _known({"machine": _machine(parameters), **trees})
    return Exported(
        files={"": _text(tree) + "\n"},
        holds_for=("all that was measured; each law says its ranks and sizes",),
        lost=tuple(_lost(parameters)),
    )


def _lost(of: Parameters) -> list[str]:
    """What this file has and the dict lacks."""
    counts = {
        "measured times of collectives": sum(len(fit.points) for fit in of.collectives),
        "measured times of layers": 2 * len(of.layers),
        "measured times of lists of tensors": sum(len(loop.measured) for loop in of.tensor_loops),
        "ratios that correct the laws of layers": sum(len(law.neighbours) for law in of.work),
    }
    return [f"{what} ({count})" for what, count in counts.items() if count]


def leaf(found: Estimate | float | None, unit: str = ONE) -> Tree | None:
    """A number with its unit; None where it is not known, negative or not finite."""
    ends = zip(("value", "low", "high"), map(possible, value_and_ends(found)), strict=True)
    kept: Tree = {name: number + 0 for name, number in ends if number is not None}
    return {**kept, "unit": unit} if "value" in kept else None


def leaves(law: object, names: Mapping[str, str]) -> Tree:
    """Fields of a law, by what they are called here; each with its interval if it has one."""
    intervals: Mapping[str, tuple[float, float]] = getattr(law, "intervals", {})
    found: Tree = {}
    for name, field in names.items():
        found[name] = one = leaf(getattr(law, field), unit_of(field))
        if one is not None and field in intervals:
            low, high = intervals[field]
            one.update(low=low + 0, high=high + 0)
    return found


def _is_leaf(tree: Tree) -> bool:
    return isinstance(tree.get("unit"), str)  # a branch may be called unit, too


def _text(tree: Tree, indent: str = "") -> str:
    """JSON with a leaf a line."""
    if _is_leaf(tree):
        return json.dumps(tree, allow_nan=False)
    within = indent + " "
    lines = [f"{within}{json.dumps(name)}: {_text(of, within)}" for name, of in tree.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"


def _known(tree: Tree) -> Tree:
    """Without what is not known, and without branches that hold nothing."""
    found = {}
    for name, of in tree.items():
        kept = _known(of) if of is not None and not _is_leaf(of) else of
        if kept:
            found[name] = kept
    return found


def _put(tree: Tree, name: str, of: Tree) -> None:
    """Under a name that is not taken: two laws may be called the same."""
    name, number = plain(name), 2
    free = name
    while free in tree:
        free, number = f"{name} ({number})", number + 1
    tree[free] = of


def _branches(laws: Laws) -> Tree:
    """Every law under its branch (an operation, a kind, a phase), or beside each other where None."""
    tree: Tree = {}
    for branch, name, law in laws:
        _put(tree if branch is None else tree.setdefault(plain(branch), {}), name, law)
    return tree


def _machine(of: Parameters) -> Tree:
    return {
        "memory of a rank": leaf(of.device_memory_bytes, BYTES),
        "ranks of a node": leaf(of.ranks_per_node),
        "nodes": leaf(of.nodes or None),  # 0 is unknown
        "nodes of a rack": leaf(of.nodes_per_rack or None),
        "links of a node": leaf(of.links_per_node or None),
    }


def _collectives(of: Parameters) -> Laws:
    for fit in of.collectives:
        place = "" if fit.at_home else f" on {fit.device}"
        name = f"{fit.library}{place}, {fit.level}, {fit.ranks} ranks"
        others = [other.placed for other in of.collectives if _alike(fit, other)]
        if others != [fit.placed]:  # on other nodes, too
            name += fit.among
        low, high = fit.range_nbytes
        pieces = {
            str(number): {
                **leaves(piece, {"from": "from_nbytes", "to": "to_nbytes"}),
                "time at from": leaf(piece.at(piece.from_nbytes), SECONDS),
                "time at to": leaf(piece.at(piece.to_nbytes), SECONDS),
                **leaves(piece, {"slope": "slope_s_per_byte"}),
            }
            for number, piece in enumerate(fit.pieces, 1)
        }
        law = {
            **leaves(fit, {"alpha": "alpha_s", "beta": "beta_s_per_byte"}),
            **_shape(fit.operation, fit.ranks),
            "mean error of the line": leaf(fit.mean_relative_error),
            "smallest size": leaf(low, BYTES),
            "largest size": leaf(high, BYTES),
            "mean error of the pieces": leaf(fit.pieces_mean_relative_error),
            "pieces": pieces,
        }
        yield fit.operation, name, law


def _alike(one: CollectiveFit, other: CollectiveFit) -> bool:
    names = ("operation", "library", "device", "level", "ranks")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _shape(operation: str, ranks: int) -> Tree:
    """What alpha and m beta are multiplied by; of an operation that calib does not know, nothing."""
    try:
        steps, volume = steps_and_volume(operation, ranks)
    except InputError:
        return {}
    return {"steps": leaf(steps), "volume": leaf(volume)}


def _structural(of: Parameters) -> Laws:
    names = {
        "size": "nbytes",
        "base": "base_s",
        "base per byte": "base_s_per_byte",
        "alpha": "alpha_s",
        "beta": "beta_s_per_byte",
    }
    for fit in of.structural:
        bands: Tree = {}
        for band in fit.bands:
            form = "hierarchical " * band.hierarchical
            _put(bands, f"{form}{band.algorithm}, {band.nbytes:.15g} B", leaves(band, names))
        law = {
            "fewest ranks": leaf(min(fit.ranks)),
            "most ranks": leaf(max(fit.ranks)),
            "mean error": leaf(fit.mean_relative_error),
            "mean error of the most ranks, left out": leaf(fit.held_out_error),
            "at sizes": bands,
        }
        yield fit.operation, f"{fit.library} on {fit.device}, {fit.level}", law


def _contention(of: Parameters) -> Laws:
    names = {
        "capacity": "capacity",
        "intercept": "intercept_s",
        "slope": "slope_s_per_byte",
        "smallest size": "min_nbytes",
        "largest size": "max_nbytes",
        "mean error": "mean_relative_error",
    }
    for fit in of.contention:
        name = (
            f"{fit.library} on {fit.device}, {fit.level}, {fit.ranks} ranks {fit.stride} apart on "
            f"{fit.nodes} node(s)"
        )
        phi = {f"{point.groups} groups": leaf(point.contention) for point in fit.points}
        yield fit.operation, name, {"phi": phi, **leaves(fit, names)}


def _peaks(of: Parameters) -> Laws:
    for peaks in of.peaks:
        yield (
            None,
            f"{peaks.device}, {peaks.dtype}, {peaks.active_ranks} ranks at work",
            {
                "operations": leaf(peaks.flops_per_s, FLOPS_PER_SECOND),
                "bytes": leaf(peaks.bytes_per_s, PER_SECOND),
            },
        )


def _work(of: Parameters) -> Laws:
    names = {
        "call": "call_s",
        "per flop": "s_per_flop",
        "per byte": "s_per_byte",
        "per byte of weights": "s_per_weight_byte",
        "per byte of patches": "s_per_patch_byte",
        "per fresh byte": "s_per_fresh_byte",
        "error factor": "error_factor",
        "most flops": "max_flops",
        "most bytes": "max_bytes",
    }
    for law in of.work:
        name = f"{law.direction}, {law.active_ranks} ranks at work, {law.form}"
        yield law.kind, _run_as(name, law.execution), leaves(law, names)


def _loops(of: Parameters) -> Laws:
    names = {
        "call": "call_s",
        "per tensor": "s_per_tensor",
        "per byte": "s_per_byte",
        "error factor": "error_factor",
        "fewest bytes": "min_bytes",
        "most bytes": "max_bytes",
    }
    for loop in of.tensor_loops:
        where = "" if loop.device == of.device_kind else f" on {loop.device}"
        name = _run_as(f"{loop.active_ranks} ranks at work{where}", loop.execution)
        yield loop.operation, name, leaves(loop, names)


def _run_as(name: str, execution: str) -> str:
    """The name of a law, with its execution where that is not float32."""
    return ", ".join(filter(None, (name, unusual(execution))))


def _composition(of: Parameters) -> Laws:
    names = {
        "per layer": "s_per_layer",
        "per byte": "s_per_byte",
        "error factor": "error_factor",
        "most bytes": "max_bytes",
    }
    for term in of.composition:
        name = _run_as(f"{term.active_ranks} ranks at work", term.execution)
        name = ", ".join(filter(None, (name, term.library)))
        yield term.phase, name, leaves(term, names)


def _memory(of: Parameters) -> Laws:
    names = {
        "gamma": "gamma",
        "constant": "constant_bytes",
        "of activations": "activations",
        "of weights": "weights",
        "of the optimizer": "optimizer",
        "error factor": "error_factor",
    }
    device = {"reserved": "reserved", "outside": "outside_bytes"}
    for law in of.memory:
        found = leaves(law, names)
        if law.on_device is not None:
            found |= {"on the device": leaves(law.on_device, device)}
        yield law.family, _run_as(f"{law.framework}, {law.device}", law.execution), found


def _overlap(of: Parameters) -> Laws:
    names = {"eta": "eta", "slowdown": "slowdown", "error factor": "error_factor"}
    for law in of.overlap:
        yield None, f"{law.library} on {law.device}, {law.ranks} ranks", leaves(law, names)


def _partitions(of: Parameters) -> Laws:
    names = {
        "constant": "constant_s",
        "parallel": "parallel_s",
        "per partition": "per_partition_s",
        "best": "best_partitions",
        "error factor": "error_factor",
    }
    for law in of.partitions:
        methods = {method: leaf(seconds, SECONDS) for method, seconds in law.methods.items()}
        yield None, law.name, {**methods, **leaves(law, names)}
