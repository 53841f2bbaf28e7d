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
import math
from collections.abc import Callable, Mapping
from typing import Any

from calib.export.target import Exported, ExportRequest
from calib.fitting.parameters.algorithms import steps_and_volume
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import InputError
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

ONE, SECONDS, PER_BYTE, BYTES = "1", "s", "s/B", "B"
Tree = dict[str, Any]


def export(request: ExportRequest) -> Exported:
    """One dict; nothing is collapsed."""
    parameters = request.parameters
    sections: dict[str, Callable[[Parameters], Tree]] = {
        "machine": _machine,
        "collectives": _collectives,
        "collectives on any ranks": _structural,
        "contention": _contention,
        "layers": _work,
        "tensor lists": _loops,
        "in place": _composition,
        "memory": _memory,
        "overlap": _overlap,
        "partitions": _partitions,
    }
    tree = {name: _known(section(parameters)) for name, section in sections.items()}
    return Exported(
        files={"": _text({name: of for name, of in tree.items() if of}) + "\n"},
        holds_for=("all that was measured; each law says its ranks and sizes",),
        lost=tuple(_lost(parameters)),
    )


def _lost(of: Parameters) -> list[str]:
    """What this file has, and the dict has not."""
    counts = {
        "measured times of collectives": sum(len(fit.points) for fit in of.collectives),
        "measured times of layers": 2 * len(of.layers),
        "measured times of lists of tensors": sum(len(loop.measured) for loop in of.tensor_loops),
        "ratios that correct the laws of layers": sum(len(law.neighbours) for law in of.work),
    }
    return [f"{what} ({count})" for what, count in counts.items() if count]


def leaf(found: Estimate | float | None, unit: str = ONE) -> Tree | None:
    """A number with its unit; None where it is not known, negative or not finite."""
    if found is None or isinstance(found, (int, float)):
        ends = {"value": found}
    elif not found.has_interval:  # one time alone: its ends would read as certainty
        ends = {"value": found.value}
    else:
        ends = {"value": found.value, "low": found.low, "high": found.high}
    kept = {k: v + 0 for k, v in ends.items() if v is not None and math.isfinite(v) and v >= 0}
    return {**kept, "unit": unit} if "value" in kept else None


def _text(tree: Tree, indent: str = "") -> str:
    """JSON with a leaf a line."""
    if "unit" in tree:
        return json.dumps(tree, allow_nan=False)
    within = indent + " "
    lines = [f"{within}{json.dumps(name)}: {_text(of, within)}" for name, of in tree.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"


def _known(tree: Tree) -> Tree:
    """Without what is not known, and without branches that hold nothing."""
    found = {}
    for name, of in tree.items():
        kept = _known(of) if isinstance(of, dict) and "unit" not in of else of
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


def _machine(of: Parameters) -> Tree:
    return {
        "memory of a rank": leaf(of.device_memory_bytes, BYTES),
        "ranks of a node": leaf(of.ranks_per_node),
        "nodes": leaf(of.nodes or None),  # 0 is unknown
        "nodes of a rack": leaf(of.nodes_per_rack or None),
        "links of a node": leaf(of.links_per_node or None),
    }


def _collectives(of: Parameters) -> Tree:
    tree: Tree = {}
    for fit in of.collectives:
        place = "" if fit.at_home else f" on {fit.device}"
        name = f"{fit.library}{place}, {fit.level}, {fit.ranks} ranks"
        others = [other.placed for other in of.collectives if _alike(fit, other)]
        if others != [fit.placed]:  # on other nodes, too
            name += fit.among
        _put(tree.setdefault(plain(fit.operation), {}), name, _law(fit))
    return tree


def _alike(one: CollectiveFit, other: CollectiveFit) -> bool:
    names = ("operation", "library", "device", "level", "ranks")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _law(fit: CollectiveFit) -> Tree:
    low, high = fit.range_nbytes
    pieces = {
        str(number): {
            "from": leaf(piece.from_nbytes, BYTES),
            "to": leaf(piece.to_nbytes, BYTES),
            "time at from": leaf(piece.at(piece.from_nbytes), SECONDS),
            "time at to": leaf(piece.at(piece.to_nbytes), SECONDS),
            "slope": leaf(piece.slope_s_per_byte, PER_BYTE),
        }
        for number, piece in enumerate(fit.pieces, 1)
    }
    return {
        "alpha": leaf(fit.alpha_s, SECONDS),
        "beta": leaf(fit.beta_s_per_byte, PER_BYTE),
        **_shape(fit.operation, fit.ranks),
        "mean error of the line": leaf(fit.mean_relative_error),
        "smallest size": leaf(low, BYTES),
        "largest size": leaf(high, BYTES),
        "mean error of the pieces": leaf(fit.pieces_mean_relative_error),
        "pieces": pieces,
    }


def _shape(operation: str, ranks: int) -> Tree:
    """What alpha and m beta are multiplied by; of an operation that calib does not know, nothing."""
    try:
        steps, volume = steps_and_volume(operation, ranks)
    except InputError:
        return {}
    return {"steps": leaf(steps), "volume": leaf(volume)}


def _structural(of: Parameters) -> Tree:
    tree: Tree = {}
    for fit in of.structural:
        bands: Tree = {}
        for band in fit.bands:
            form = "hierarchical " * band.hierarchical
            name = f"{form}{band.algorithm}, {band.nbytes:.15g} B"
            _put(
                bands,
                name,
                {
                    "size": leaf(band.nbytes, BYTES),
                    "base": leaf(band.base_s, SECONDS),
                    "base per byte": leaf(band.base_s_per_byte, PER_BYTE),
                    "alpha": leaf(band.alpha_s, SECONDS),
                    "beta": leaf(band.beta_s_per_byte, PER_BYTE),
                },
            )
        law = {
            "fewest ranks": leaf(min(fit.ranks)),
            "most ranks": leaf(max(fit.ranks)),
            "mean error": leaf(fit.mean_relative_error),
            "mean error of the most ranks, left out": leaf(fit.held_out_error),
            "at sizes": bands,
        }
        name = f"{fit.library} on {fit.device}, {fit.level}"
        _put(tree.setdefault(plain(fit.operation), {}), name, law)
    return tree


def _contention(of: Parameters) -> Tree:
    tree: Tree = {}
    for fit in of.contention:
        name = (
            f"{fit.library} on {fit.device}, {fit.level}, {fit.ranks} ranks {fit.stride} apart on "
            f"{fit.nodes} node(s)"
        )
        phi = {f"{point.groups} groups": leaf(point.contention) for point in fit.points}
        law = {
            "phi": phi,
            "capacity": leaf(fit.capacity),
            "intercept": leaf(fit.intercept_s, SECONDS),
            "slope": leaf(fit.slope_s_per_byte, PER_BYTE),
            "smallest size": leaf(fit.min_nbytes, BYTES),
            "largest size": leaf(fit.max_nbytes, BYTES),
            "mean error": leaf(fit.mean_relative_error),
        }
        _put(tree.setdefault(plain(fit.operation), {}), name, law)
    return tree


def _priced(
    record: object, names: Mapping[str, tuple[str, str]], ends: Mapping[str, tuple[float, float]]
) -> Tree:
    """Coefficients by what they are called here; each with its interval if it has one."""
    found: Tree = {}
    for field, (name, unit) in names.items():
        one = leaf(getattr(record, field), unit)
        if one is not None and field in ends:
            one.update(low=ends[field][0] + 0, high=ends[field][1] + 0)
        found[name] = one
    return found


def _work(of: Parameters) -> Tree:
    names = {
        "call_s": ("call", SECONDS),
        "s_per_flop": ("per flop", "s/flop"),
        "s_per_byte": ("per byte", PER_BYTE),
        "s_per_weight_byte": ("per byte of weights", PER_BYTE),
        "s_per_patch_byte": ("per byte of patches", PER_BYTE),
        "s_per_fresh_byte": ("per fresh byte", PER_BYTE),
    }
    tree: Tree = {}
    for law in of.work:
        name = f"{law.direction}, {law.active_ranks} ranks at work, {law.form}"
        _put(
            tree.setdefault(plain(law.kind), {}),
            name,
            {
                **_priced(law, names, law.intervals),
                "error factor": leaf(law.error_factor),
                "most flops": leaf(law.max_flops, "flop"),
                "most bytes": leaf(law.max_bytes, BYTES),
            },
        )
    return tree


def _loops(of: Parameters) -> Tree:
    names = {
        "call_s": ("call", SECONDS),
        "s_per_tensor": ("per tensor", "s/tensor"),
        "s_per_byte": ("per byte", PER_BYTE),
    }
    tree: Tree = {}
    for loop in of.tensor_loops:
        where = "" if loop.of_training else f" on {loop.device}, {loop.dtype}"
        name = f"{loop.active_ranks} ranks at work{where}"
        _put(
            tree.setdefault(plain(loop.operation), {}),
            name,
            {
                **_priced(loop, names, loop.intervals),
                "error factor": leaf(loop.error_factor),
                "fewest bytes": leaf(loop.min_bytes, BYTES),
                "most bytes": leaf(loop.max_bytes, BYTES),
            },
        )
    return tree


def _composition(of: Parameters) -> Tree:
    names = {"s_per_layer": ("per layer", "s/layer"), "s_per_byte": ("per byte", PER_BYTE)}
    tree: Tree = {}
    for term in of.composition:
        _put(
            tree.setdefault(plain(term.phase), {}),
            f"{term.active_ranks} ranks at work",
            {
                **_priced(term, names, term.intervals),
                "error factor": leaf(term.error_factor),
                "most bytes": leaf(term.max_bytes, BYTES),
            },
        )
    return tree


def _memory(of: Parameters) -> Tree:
    tree: Tree = {}
    for law in of.memory:
        _put(
            tree.setdefault(plain(law.family), {}),
            f"{law.framework}, {law.device}, {law.measure}",
            {
                "gamma": leaf(law.gamma),
                "constant": leaf(law.constant_bytes, BYTES),
                "of activations": leaf(law.activations),
                "of weights": leaf(law.weights),
                "of the optimizer": leaf(law.optimizer),
                "error factor": leaf(law.error_factor),
            },
        )
    return tree


def _overlap(of: Parameters) -> Tree:
    tree: Tree = {}
    for law in of.overlap:
        name = f"{law.library} on {law.device}, {law.ranks} ranks"
        content = {
            "eta": leaf(law.eta),
            "slowdown": leaf(law.slowdown),
            "error factor": leaf(law.error_factor),
        }
        _put(tree, name, content)
    return tree


def _partitions(of: Parameters) -> Tree:
    tree: Tree = {}
    for law in of.partitions:
        _put(
            tree,
            law.name,
            {
                **{method: leaf(seconds, SECONDS) for method, seconds in law.methods.items()},
                "constant": leaf(law.constant_s, SECONDS),
                "parallel": leaf(law.parallel_s, SECONDS),
                "per partition": leaf(law.per_partition_s, SECONDS),
                "best": leaf(law.best_partitions),
                "error factor": leaf(law.error_factor),
            },
        )
    return tree
