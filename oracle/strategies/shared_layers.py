"""Filter, channel, tensor, sequence and data+filter: layers that a group of ranks shares.

Every rank of a group has all of its samples. Around a split layer the ranks join or sum tensors
(layer_flows in oracle/layout/traffic.py), and each of them splits and concats its own memory, for which
calib/planning/tensors.py measures the tensors listed here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from calib.foundation.division import Division
from calib.foundation.errors import MissingParameter
from calib.foundation.layers import Shape
from calib.oracle.cost import NOTHING, Cost, total
from calib.oracle.costs.machine import Costs
from calib.oracle.layout.shards import (
    WEIGHTED,
    narrowest,
    parts_of_tokens,
    split_layers,
    split_places,
)
from calib.oracle.layout.stages import activations_before
from calib.oracle.layout.tokens import moves_again
from calib.oracle.layout.traffic import grouped_flows
from calib.oracle.layout.workload import workload
from calib.oracle.memory.naive import activation_bytes, naive_parts
from calib.oracle.model.layer import Layer
from calib.oracle.model.recomputed import read_again, run_again
from calib.oracle.model.spec import ModelSpec, tensors_key
from calib.oracle.once import once_per_geometry
from calib.oracle.paper.form import PaperCosts
from calib.oracle.projection import Limit
from calib.oracle.strategies.common import (
    compute_terms,
    exchange_terms,
    flow_terms,
    paper_compute,
    paper_update,
    update_terms,
)
from calib.oracle.terms import Term

LoopOperation = Literal["concat", "split"]
MOVED = {"split": "what is sent", "concat": "what has come"}
TENSORS = {
    "filters": {"concat": "y, after the forward", "split": "dL/dy, before the backward"},
    "channels": {"split": "x, before the forward", "concat": "dL/dx, after the backward"},
    "regions": MOVED,
    "tokens": MOVED,
}


@dataclass(frozen=True)
class CutLoop:
    """`count` tensors of shape `whole` (per sample) that are cut into shards or joined from them."""

    operation: LoopOperation
    whole: Shape
    count: int


def measured(model: ModelSpec, division: Division, costs: Costs) -> list[Term]:
    """Layers at the part's shape, joining and cutting, gradients between groups, and the update."""
    compute = compute_terms(model, division, costs)
    return [
        *compute,
        *flow_terms(model, division, costs, compute),
        *cut_terms(model, division, costs),
        *exchange_terms(model, division, costs),
        *update_terms(model, division, costs),
    ]


def cut_terms(model: ModelSpec, division: Division, costs: Costs) -> list[Term]:
    """Split and concat of the shards; 0 with a note if the machine has no such loop."""
    terms = []
    for operation, cuts in _cuts(model, division).items():
        n = sum(cut.count for cut in cuts)
        items = sum(cut.count * math.prod(cut.whole) for cut in cuts)
        what = TENSORS[division.traits.cuts][operation]
        each = f"{n} {'tensors' if TENSORS[division.traits.cuts] is MOVED else 'layers'}"
        terms.append(
            Term(
                "pack",
                "redundant",
                f"{operation} of {what}, of {each}",
                cutting(operation, cuts, model, division, costs),
                f"sum of {operation}(p shards, B' items delta) over {each}",
                {"p": division.parts, "B'": division.local_batch, "sum of items": items},
            )
        )
    return terms


def cutting(
    operation: LoopOperation,
    cuts: list[CutLoop],
    model: ModelSpec,
    division: Division,
    costs: Costs,
) -> Cost:
    """Of one operation on these tensors; 0 with a note if the machine has no such loop."""
    batch, parts = division.local_batch, division.parts
    each = model.items.activation_bytes * batch
    try:
        return total(
            costs.tensors.cutting(
                operation, _key(batch, cut.whole), parts, each * math.prod(cut.whole), cut.count
            )
            for cut in cuts
        )
    except MissingParameter:
        return NOTHING.at_best("extrapolated").noted(
            f"no {operation} of shards was measured: it is left out"
        )


@lru_cache(maxsize=1 << 14)
def _key(batch: int, whole: Shape) -> str:
    """The key of a single tensor."""
    return tensors_key(((batch, *whole),))


@once_per_geometry
def _cuts(model: ModelSpec, division: Division) -> dict[LoopOperation, list[CutLoop]]:
    """`cut_tensors`, with equal ones counted."""
    return {
        operation: [CutLoop(operation, shape, n) for shape, n in Counter(whole.values()).items()]
        for operation, whole in cut_tensors(model, division).items()
        if whole
    }


def cut_tensors(model: ModelSpec, division: Division) -> dict[LoopOperation, dict[str, Shape]]:
    """By operation and layer: the whole tensor (per sample) that is cut into shards or joined.

    filter: y is joined and dL/dy cut; channel: x is cut, and dL/dx joined if it is needed. For every
    split layer, as in training: see calib.oracle.layout.traffic._shared_layers. tensor and sequence:
    every tensor that is moved where tokens are cut. What checkpointed regions make again is joined or
    cut again.
    """
    if division.traits.cuts in ("regions", "tokens"):
        return _moved_tensors(model, division)
    split = {place: model.layers[place] for place in split_places(model, division)}
    if division.traits.cuts == "channels":
        inputs = {layer.name: layer.shape.input_shapes[0] for layer in split.values()}
        needed = {layer.name for layer in split.values() if layer.needs_input_grad}
        joined = {name: shape for name, shape in inputs.items() if name in needed}
        again = {f"{of.name}, again": inputs[of.name] for of in _those(split, read_again(model))}
        return {"split": inputs | again, "concat": joined}
    outputs = {layer.name: layer.shape.output_shape for layer in split.values()}
    again = {f"{of.name}, again": outputs[of.name] for of in _those(split, run_again(model))}
    return {"concat": outputs | again, "split": outputs}


def _those(split: Mapping[int, Layer], again: Sequence[bool]) -> list[Layer]:
    return [layer for place, layer in split.items() if again[place]]


def _moved_tensors(model: ModelSpec, division: Division) -> dict[LoopOperation, dict[str, Shape]]:
    """By operation, and by the tensor and the layer that reads it."""
    found: dict[LoopOperation, dict[str, Shape]] = {"split": {}, "concat": {}}
    for move in parts_of_tokens(model, division).moves:
        reader = model.layers[move.readers[0]].name
        for operation, what, shape in move.copies(division.parts):
            found[operation][f"{what} = {move.name} of {reader}"] = shape
            if what == "x" and moves_again(model, move):
                found[operation][f"{what} = {move.name} of {reader}, again"] = shape
    return found


def paper(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """(B/p) sum_split(FW + BW) + (B/p1) sum_rest(FW + BW) + sum(WU)/p2 + joining and summing.

    p1 = 1 and p2 = p except in data+filter, whose exchange between groups is not included.
    """
    work, samples = workload(model, division), division.batch / division.replicas
    return [
        *paper_compute(work, costs, division.batch / division.p, samples),
        *paper_flows(model, division, costs),
        paper_update(costs, division.parts),
    ]


def paper_flows(model: ModelSpec, division: Division, costs: PaperCosts) -> list[Term]:
    """A term for each operation and tensor, of all its calls among the p2 ranks of a group.

    formulas.md rounds them to 3 (p2-1) (alpha + B |y| delta beta / p) per split layer; here an allgather
    has (p2-1) steps and an allreduce 2 (p2-1), each with its own layers.
    """
    terms = []
    p2 = division.parts
    for (operation, what), (n, items) in _joined(model, division).items():
        link = costs.link(p2, operation, division.replicas)
        turns = 2 if operation == "allreduce" else 1
        steps = turns * (p2 - 1)
        nbytes = model.items.activation_bytes * items * division.local_batch
        terms.append(
            Term(
                "layerwise",
                "layer-wise",
                f"{operation} of {what}, of {n} layers",
                link.hockney(steps * n, steps * nbytes / p2),
                f"{'2 ' * (turns - 1)}(p-1) (n alpha + B delta beta sum|{what[-1]}| / p)",
                {
                    "p": p2,
                    "n": n,
                    "B": division.local_batch,
                    "delta": model.items.activation_bytes,
                    f"sum|{what[-1]}|": items,
                    **link.values,
                },
            )
        )
    return terms


@once_per_geometry
def _joined(model: ModelSpec, division: Division) -> dict[tuple[str, str], tuple[int, int]]:
    """By operation and tensor: the number of layers, and the sum of their items per sample.

    formulas.md: filter joins every y but the model's last and sums every dL/dx but the first; channel
    sums every y of its split layers and joins every dL/dx but the first. tensor and sequence: as
    measured, of sequence x and dL/dx of the layers that read it.
    """
    if division.traits.cuts in ("regions", "tokens"):
        joined: dict[tuple[str, str], tuple[int, int]] = {}
        for flow in grouped_flows(model, division):
            about = flow.operation, flow.why.partition(" ")[0]
            if flow.direction == "backward" and not about[1].startswith("dL/"):
                continue  # what is run again
            n, items = joined.get(about, (0, 0))
            joined[about] = n + flow.count, items + flow.count * flow.items
        return joined
    split = split_layers(model, division)
    if division.traits.cuts == "channels":
        y, dx = ("allreduce", split), ("allgather", split[1:])
    else:
        last = [layer.name for layer in model.layers if layer.shape.kind in WEIGHTED][-1]
        y = "allgather", [layer for layer in split if layer.name != last]
        dx = "allreduce", [layer for layer in split if layer.needs_input_grad]
    sums = {
        (y[0], "y"): (len(y[1]), sum(layer.shape.output_items for layer in y[1])),
        (dx[0], "dL/dx"): (len(dx[1]), sum(layer.shape.input_items for layer in dx[1])),
    }
    return {about: of for about, of in sums.items() if of[0]}


def memory(model: ModelSpec, division: Division, optimizer: str) -> dict[str, int]:
    """Whole activations of B/p1 samples, and the weights and state of the rank that has most.

    With several groups also the buffer of the exchanged gradients.
    """
    activations = activation_bytes(model, division.local_batch * activations_before(model)[-1])
    nbytes = workload(model, division).weights.nbytes
    return naive_parts(activations, nbytes, division.replicas > 1, optimizer)


def limit(model: ModelSpec, division: Division) -> Limit:
    """The width of the narrowest split layer; for a hybrid B times that."""
    hybrid = division.traits.hybrid
    samples = division.batch if hybrid else 1
    also = f", and one sample for each of p1 <= B = {division.batch} groups" if hybrid else ""
    cuts = division.traits.cuts
    found = narrowest(model, cuts)
    if found is None:
        return Limit(ranks=samples, why=f"no layer can be split{also}")
    width, name = found
    symbol = "C" if cuts == "channels" else "F"
    p = "p2" if hybrid else "p"
    why = f"{name} has the fewest {cuts}, {width}: {p} <= min {symbol}_l{also}"
    return Limit(ranks=samples * width, why=why)
