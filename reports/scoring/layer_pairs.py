"""Layers predicted from isolated times, against the same layers timed in place.

A calibration times every layer of a model in the model itself (training/in_place/iterations.py); here
are those of one rank. Of a layer that was not, a prediction takes the time measured alone, and adds
what a model in place takes beside its layers (Composition: seconds per layer and per byte of the
outputs): so these pairs say how good a prediction of other layers is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pydantic import Field

from calib.fitting.estimate import slowest_rank
from calib.fitting.parameters.file import Composition, LayerTime, Parameters
from calib.foundation.errors import CalibError
from calib.foundation.execution import USUAL, ExecutionName, execution_of
from calib.foundation.records import Record
from calib.microbench.records.samples import Samples
from calib.oracle.model.layer import Layer
from calib.oracle.model.spec import ModelSpec
from calib.training.models.specs import spec

TIMED = ("layer_forward", "layer_backward")


class LayerPair(Record):
    """One layer of one model: seconds alone and what is added in place, and seconds in place.

    The prediction of the layer is predicted + added. In place, what accumulates its gradients is in.
    """

    model: str
    batch: int = Field(ge=1)
    ranks: int = Field(ge=1)
    execution: ExecutionName = USUAL
    name: str
    kind: str
    key: str = Field(description="of its shape, as in the parameter file")
    predicted_forward_s: float
    predicted_backward_s: float
    added_forward_s: float = Field(description="its part of the composition; 0 where there is none")
    added_backward_s: float
    measured_forward_s: float = Field(description="median over the repetitions in place")
    measured_backward_s: float


def layer_pairs(
    parameters: Parameters, samples: Samples, spec_of: Callable[[str], ModelSpec] = spec
) -> list[LayerPair]:
    """The pairs of every model that was measured in place, in the order of its layers.

    `samples` are rows of the runs that the parameters are of; `spec_of` gives a model
    by its name. Left out are models that it does not know, and layers that were not timed
    alone, that have no module (an addition, a flatten) or whose module is used twice. Of a model that
    was measured with several optimizers, which its layers do not notice, the first is taken.
    """
    times = {(time.key, time.active_ranks): time for time in parameters.layers}
    laws = {(law.phase, law.active_ranks, law.execution): law for law in parameters.composition}
    rows: dict[_Timed, dict[tuple[str, str], Samples]] = {}
    # on several ranks a layer may be a part of one
    timed = samples.where(samples.mask("operation", TIMED.__contains__), kind="in_place", ranks=1)
    columns = ("key", "batch", "ranks", "dtype", "case_id", "operation")
    for (key, *about, operation), of in timed.where(warmup=False).groups(*columns).items():
        model, _, name = key.rpartition(":")
        rows.setdefault(_Timed(model, *about), {})[name, operation] = of
    first: dict[tuple[str, int, int, str], _Timed] = {}
    for case in rows:
        first.setdefault(case[:4], case)
    found = []
    for case in first.values():
        for layer in _layers_of(case.model, spec_of):
            forward, backward = (rows[case].get((layer.name, way)) for way in TIMED)
            if forward is not None:
                found += _pair(case, layer, forward, backward, times, laws)
    return found


class _Timed(NamedTuple):
    """A model that was timed in place."""

    model: str
    batch: int
    ranks: int
    execution: str
    case_id: str


def _layers_of(model: str, spec_of: Callable[[str], ModelSpec]) -> list[Layer]:
    """The layers whose module is used once: its hooks time all uses together."""
    try:
        found = spec_of(model)
    except CalibError:  # not known here, or not to be traced
        return []
    names = {layer.name for layer in found.layers}
    return [layer for layer in found.layers if f"{layer.name}#2" not in names]


def _pair(
    case: _Timed,
    layer: Layer,
    forward: Samples,
    backward: Samples | None,
    times: Mapping[tuple[str, int], LayerTime],
    laws: Mapping[tuple[str, int, str], Composition],
) -> list[LayerPair]:
    """The pair of one layer; none where it was not timed alone."""
    execution = execution_of(case.execution)
    key = layer.shape.key(case.batch, execution.kernels.name, layer.needs_input_grad)
    active = forward.first.active_ranks
    alone = times.get((key, active))
    if alone is None:
        return []
    nbytes = execution.items.activation_bytes * case.batch * layer.shape.output_items

    def added(phase: str) -> float:
        law = laws.get((phase, active, execution.name))
        return law.s_per_layer + nbytes * law.s_per_byte if law else 0.0

    return [
        LayerPair(
            model=case.model,
            batch=case.batch,
            ranks=case.ranks,
            execution=execution.name,
            name=layer.name,
            kind=layer.shape.name,
            key=key,
            predicted_forward_s=alone.forward_s.value,
            predicted_backward_s=alone.backward_s.value,
            added_forward_s=added("forward"),
            added_backward_s=added("backward"),
            measured_forward_s=slowest_rank(forward).value,
            measured_backward_s=slowest_rank(backward).value if backward else 0.0,
        )
    ]
