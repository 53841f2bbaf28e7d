"""Layer times within training: hooks around each module and node.

PyTorch's full backward hook passes a module's tensors through functions of its own, which a ReLU in
place after it forbids. So the backward is timed at the nodes of the autograd graph that a module added,
except those that accumulate into its parameters, which a hook would make copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves

ACCUMULATION = "torch::autograd::AccumulateGrad"


def _nodes_of(tensors: Any) -> set[Node]:
    """The nodes that made the tensors in a nested structure; for a leaf its accumulation."""
    found = set()
    for tensor in tree_leaves(tensors):
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            found.add(torch.autograd.graph.get_gradient_edge(tensor).node)
    return found


def nodes_between(outputs: set[Node], inputs: set[Node]) -> list[Node]:
    """The nodes from `outputs` back to, and without, `inputs`."""
    found: dict[Node, None] = {}
    stack = [node for node in outputs if node not in inputs]
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            following = [parent for parent, _ in node.next_functions if parent is not None]
            stack += [parent for parent in following if parent not in inputs]
    return list(found)


class LayerTimes:
    """Seconds, in the current iteration, of each module that contains no other of them.

    `seconds`: "layer_forward:<name>" and, where it has a backward, "layer_backward:<name>", since
    `begin`; the sum over the uses of a module. For one thread on a CPU. `read` is the clock of "forward"
    or "backward": one that stands still in other phases leaves out what a module copies and sends.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        read: Callable[[str], float] = lambda _: perf_counter(),
    ) -> None:
        self.seconds: dict[str, float] = {}
        self._read = read
        given = set(modules.values())
        self._modules = {
            name: module
            for name, module in modules.items()
            if not any(part in given for part in module.modules() if part is not module)
        }
        self._handles: list[Any] = []

    def begin(self) -> None:
        """An iteration begins."""
        self.seconds.clear()

    def __enter__(self) -> LayerTimes:
        for name, module in self._modules.items():
            self._watch(name, module)
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def _watch(self, name: str, module: nn.Module) -> None:
        start = 0.0
        inputs: set[Node] = set()

        def before(_: nn.Module, given: Any) -> None:
            nonlocal start, inputs
            inputs = _nodes_of(given)  # now: a module that works in place changes its input's node
            start = self._read("forward")

        def after(_: nn.Module, given: Any, output: Any) -> None:
            nonlocal inputs
            self._add(f"layer_forward:{name}", self._read("forward") - start)
            for node in nodes_between(_nodes_of(output), inputs):
                # with a hook it would copy the gradient that it takes over without one
                if node.name() != ACCUMULATION:
                    self._time(node, f"layer_backward:{name}")
            inputs = set()  # nodes keep the graph

        self._handles.append(module.register_forward_pre_hook(before))
        self._handles.append(module.register_forward_hook(after))

    def _time(self, node: Node, name: str) -> None:
        """Time one node; it is freed with its hooks when the iteration's graph is."""
        start = 0.0

        def before(_: Any) -> None:
            nonlocal start
            start = self._read("backward")

        def after(*_: Any) -> None:
            self._add(name, self._read("backward") - start)

        node.register_prehook(before)
        node.register_hook(after)
