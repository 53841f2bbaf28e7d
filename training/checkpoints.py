"""Checkpointed regions of a program, which torch.utils.checkpoint runs again in the backward.

A trace goes through a region as if it were none (oracle/trace/checkpoints.py). Here its nodes become one
call, of a program of their own, when a strategy has changed them: what it put in front of a layer that
reads in a region is run again, too, whatever else reads it later. A stage has the part of a region that
is in it as one of its own.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint

from calib.training.layer_program import LayerProgram

# calls that strategies put in front of the first layer that reads what they make
PUT_IN = ("calib_gather_", "calib_moved_")


class Checkpointed(nn.Module):
    """A region: it keeps what it reads, and runs again from that."""

    def __init__(self, program: LayerProgram) -> None:
        super().__init__()
        self.program = program

    def forward(self, *read: Tensor) -> Any:
        """What the program returns."""
        return checkpoint(self.program, *read, use_reentrant=False)


def checkpoint_regions(program: LayerProgram) -> None:
    """Let every region of a program be one call. The last change of its graph."""
    region_of = {name: of.recomputed for of in program.spec.layers for name in of.outputs}
    nodes: list[fx.Node] = list(program.graph.graph.nodes)
    spans: dict[str, range] = {}
    for place, node in enumerate(nodes):
        name = region_of.get(program.layer_of.get(node.name, ""), "")
        if name:
            spans[name] = range(spans.get(name, range(place, 0)).start, place + 1)
    for number, span in enumerate(spans.values()):
        _fold(program, f"calib_region_{number}", _within(program, nodes, span))
    if spans:
        program.recompile()


def _within(program: LayerProgram, nodes: list[fx.Node], span: range) -> dict[fx.Node, None]:
    """A region's nodes in order, with those in front that it alone reads, or that were put in for it.

    Weights stay outside.
    """
    found = dict.fromkeys(nodes[at] for at in span if nodes[at].op != "get_attr")
    for node in reversed(nodes[: span.start]):
        if node.op == "get_attr":
            continue
        if node.op == "placeholder" or node.name in program.layer_of or not node.users:
            break
        put_in = node.op == "call_module" and str(node.target).startswith(PUT_IN)
        if not put_in and not found.keys() >= node.users.keys():
            break
        found = {node: None, **found}
    return found


def _fold(program: LayerProgram, name: str, within: dict[fx.Node, None]) -> None:
    """Put nodes that follow one another behind one call of a program of their own."""
    outer, graph, first = program.graph.graph, fx.Graph(), next(iter(within))
    read = dict.fromkeys(of for node in within for of in node.all_input_nodes if of not in within)
    made = [node for node in within if not within.keys() >= node.users.keys()]
    copied = {node: graph.placeholder(node.name) for node in read}
    for node in within:
        copied[node] = graph.node_copy(node, copied.__getitem__)
    graph.output(tuple(copied[node] for node in made))
    layer_of = {
        copied[node].name: program.layer_of.pop(node.name)
        for node in within
        if node.name in program.layer_of
    }
    part = LayerProgram(program.spec, fx.GraphModule(program.graph, graph), layer_of)
    program.graph.add_module(name, Checkpointed(part))
    for node in read:
        if node.op == "get_attr":
            first.prepend(node)
    with outer.inserting_before(first):
        call = outer.call_module(name, tuple(read))
        for place, node in enumerate(made):
            node.replace_all_uses_with(
                outer.call_function(operator.getitem, (call, place)),
                delete_user_cb=lambda user: user not in within,
            )
    for node in reversed(within):
        outer.erase_node(node)
