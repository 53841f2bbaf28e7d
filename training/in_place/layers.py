"""Layer times within training: hooks around each module and node.

PyTorch's full backward hook passes a module's tensors through functions of its own, which a ReLU in
place after it forbids. So the backward is timed at the nodes of the autograd graph that a module added,
except those that accumulate into its parameters, which a hook would make copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves

from calib.training.clock import PhaseClock

# a hook would make it copy a gradient that it takes over without one
ACCUMULATION = "torch::autograd::AccumulateGrad"


def _nodes_of(tensors: Any) -> set[Node]:
    """The nodes that made the tensors in a nested structure; for a leaf its accumulation."""
    found = set()
    for tensor in tree_leaves(tensors):
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            found.add(torch.autograd.graph.get_gradient_edge(tensor).node)
    return found


def nodes_between(outputs: set[Node], latest: int) -> list[Node]:
    """The nodes behind `outputs` that were made after the one of number `latest`, accumulations aside.

    Numbers rise as nodes are made. The inputs themselves are no border: a change in place of a view
    (a dropout after flatten) puts a new node behind the output, beside that of the input.
    """
    found: dict[Node, None] = {}
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node in found or node.name() == ACCUMULATION or node._sequence_nr() <= latest:
            continue
        found[node] = None
        stack += [parent for parent, _ in node.next_functions if parent is not None]
    return list(found)


def _latest(nodes: set[Node]) -> int:
    """The number of the last one made, accumulations aside; -1 without any."""
    return max((of._sequence_nr() for of in nodes if of.name() != ACCUMULATION), default=-1)


class LayerTimes:
    """While it is entered, the clock has a part "forward:NAME" of each module, and a "backward:NAME".

    Of modules that contain others of them there are none. What a module copies and sends is in phases of
    its own, and not in its part; the uses of a module add up. For a backward in one thread at a time.
    """

    def __init__(self, modules: Mapping[str, nn.Module], clock: PhaseClock) -> None:
        self._clock = clock
        given = set(modules.values())
        self._modules = {
            name: module
            for name, module in modules.items()
            if not any(part in given for part in module.modules() if part is not module)
        }
        self._handles: list[Any] = []
        self._entered = ""  # the module that a checkpoint runs again
        self._left_out: set[str] = set()

    @property
    def seconds(self) -> dict[str, float]:
        """Of the last iteration: "layer_forward:NAME", and "layer_backward:NAME" where it has one."""
        self._leave_out()
        found = ((*name.partition(":"), spent) for name, spent in self._clock.parts.items())
        return {
            f"layer_{direction}:{name}": spent
            for direction, _, name, spent in found
            if direction in ("forward", "backward") and name and name not in self._left_out
        }

    def _leave_out(self) -> None:
        """The module in which a checkpoint stopped, as its region ran again in its backward."""
        if self._entered:
            self._left_out.add(self._entered)
        self._entered = ""

    def __enter__(self) -> LayerTimes:
        for name, module in self._modules.items():
            self._watch(name, module)
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _watch(self, name: str, module: nn.Module) -> None:
        phase = ""
        latest = -1

        def before(_: nn.Module, given: Any) -> None:
            nonlocal phase, latest
            phase = self._clock.switch(f"forward:{name}")
            if phase.startswith("backward"):  # a checkpoint runs it again
                self._clock.switch("backward")
                self._leave_out()
                self._entered = name
                return
            latest = _latest(_nodes_of(given))

        def after(_: nn.Module, given: Any, output: Any) -> None:
            if self._entered == name:
                self._entered = ""
                return
            self._clock.switch(phase)
            for node in nodes_between(_nodes_of(output), latest):
                self._time(node, f"backward:{name}")

        self._handles.append(module.register_forward_pre_hook(before))
        self._handles.append(module.register_forward_hook(after))

    def _time(self, node: Node, part: str) -> None:
        """Time one node; it is freed with its hooks when the iteration's graph is."""
        phase = ""

        def before(_: Any) -> None:
            nonlocal phase
            phase = self._clock.switch(part)

        def after(*_: Any) -> None:
            self._clock.switch(phase)

        node.register_prehook(before)
        node.register_hook(after)
