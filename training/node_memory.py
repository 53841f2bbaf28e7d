"""Which nodes of a program share memory, which write into it, and what depends on samples."""

from __future__ import annotations

import operator

import torch
from torch import fx

from calib.training.exported_graph import operator_of, writes
from calib.training.layer_program import LayerProgram

OUTSIDE = ("placeholder", "output", "get_attr")


class NodeMemory:
    """The memory of every node's result, by the node that made it.

    A view, and what an operator in place returns, lie in the memory of what they were made from.
    """

    def __init__(self, program: LayerProgram) -> None:
        self._program = program
        nodes: list[fx.Node] = list(program.graph.graph.nodes)
        layers = program.spec.layers
        self._views = {name for of in layers if of.shape.is_view for name in of.outputs}
        self._weights = {name for name, _ in program.graph.named_parameters(remove_duplicate=False)}
        self._place = {node: place for place, node in enumerate(nodes)}
        self._maker: dict[fx.Node, fx.Node] = {}
        self._writers: dict[fx.Node, list[fx.Node]] = {}  # by the maker of the memory
        for node in nodes:
            writes_here = self._writes(node)
            of = node.all_input_nodes[0] if writes_here or self._is_view(node) else None
            self._maker[node] = node if of is None else self._maker[of]
            if writes_here:
                self._writers.setdefault(self._maker[node], []).append(node)
        self._on_samples = self._depending(nodes)

    def writers(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that write into the memory of `node`."""
        return self._writers.get(self._maker[node], [])

    def is_made_once(self, node: fx.Node, is_layer: bool) -> bool:
        """Whether one stage makes a node's result: that of a layer or a write, on samples.

        Counters and other buffers are written once, too. `is_layer`: of one that is not free.
        """
        if node.op in OUTSIDE:
            return False
        if self._writes(node):
            return node in self._on_samples or self._maker[node].op == "get_attr"
        later = any(self._place[of] > self._place[node] for of in self.writers(node))
        return is_layer and node in self._on_samples and not (self._is_view(node) and later)

    def _writes(self, node: fx.Node) -> bool:
        return writes(node, self._program.module_called(node))

    def _is_view(self, node: fx.Node) -> bool:
        """Whether a node's result is the memory of the first tensor that it reads."""
        if node.op in OUTSIDE or not node.all_input_nodes:
            return False
        if node.target is operator.getitem:  # of several outputs
            return self._is_view(node.all_input_nodes[0])
        layer, called = self._program.layer_of.get(node.name), operator_of(node)
        if layer is not None or called is None:
            return layer in self._views
        return any(of.alias_info is not None for of in called._schema.returns)

    def _depending(self, nodes: list[fx.Node]) -> set[fx.Node]:
        """What depends on the model's input, its weights or random numbers, also by a write."""
        found: set[fx.Node] = set()
        before = -1
        while before < len(found):
            before = len(found)
            for node in nodes:
                of = {*node.all_input_nodes, self._maker[node]}
                if self._begins(node) or not found.isdisjoint(of):
                    found.add(node)
                    if self._writes(node):
                        found.add(self._maker[node])
        return found

    def _begins(self, node: fx.Node) -> bool:
        if node.op == "get_attr":
            return node.target in self._weights
        called = operator_of(node)
        random = called is not None and torch.Tag.nondeterministic_seeded in called.tags
        return node.op == "placeholder" or random
