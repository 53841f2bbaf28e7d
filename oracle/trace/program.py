"""torch.export's program of a module, on tensors without data (exported.py reads its graph)."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.traceback import preserve_node_meta

from calib.foundation.garbage import rare_collections
from calib.microbench.memory import storages
from calib.oracle.trace.checkpoints import checkpoints_marked
from calib.oracle.trace.unseen import Unseen, generators, unseen_refused


def made_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Attributes that a forward makes anew of weights, as torch.nn.utils.weight_norm has one."""
    weights = storages(module.parameters())
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor) and (
                not value.is_leaf
                or value.is_meta
                or not storages([value]).keys().isdisjoint(weights)
            ):
                yield value


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch.export's advice on what it does inside."""
    before = logging.root.manager.disable
    aside = io.StringIO()  # it prints the graph that it cannot follow
    with warnings.catch_warnings(), rare_collections(), redirect_stderr(aside):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def exported(module: nn.Module, samples: Iterable[Tensor]) -> Any:
    """torch.export's program of a module on tensors without data, in train mode.

    They are as on a CPU, because how an operator lays out its result depends on its kernel.
    """
    with quiet():
        with FakeTensorMode(allow_non_fake_inputs=True):
            given = tuple(map(_like, samples))
            memo: dict[int, Any] = {
                id(of): nn.Parameter(_like(of), of.requires_grad) for of in module.parameters()
            }
            memo |= {id(of): _like(of) for of in module.buffers()}
            memo |= {id(of): _like(of) for of in made_tensors(module)}
        of_own, before = copy.deepcopy(module, memo), generators()
        with checkpoints_marked(), unseen_refused(), preserve_node_meta():
            program = torch.export.export(of_own, given)
    if before != generators():
        raise Unseen(
            "it draws numbers by Python's or NumPy's generator, of which a graph has one draw"
        )
    return program


def first_item_type(module: nn.Module) -> torch.dtype:
    """The item type of a module's first floating-point weight; torch's default without one."""
    types = (of.dtype for of in module.parameters() if of.is_floating_point())
    return next(types, torch.get_default_dtype())


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
