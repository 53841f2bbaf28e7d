"""Explanation: a traced run, its prediction, and where the difference between them is."""

from __future__ import annotations

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.execution import execution_of
from calib.foundation.records import Record
from calib.oracle.costs.asked import Collectives
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.workload import workload
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.projection import Projection
from calib.reports.explained.changes import MOST, Change, changes_for
from calib.reports.explained.collectives import (
    ExplainedCollective,
    collectives_beside,
    larger_buckets,
)
from calib.reports.explained.lines import ExplainedLine, lines_of
from calib.reports.explained.operators import ExplainedOperators, operators_beside
from calib.training.traces.configuration import RunConfiguration
from calib.training.traces.run import TracedRun

# a run whose communication computation hides by as much overlaps it
OVERLAPPED = 0.05


class Explanation(Record):
    """A traced run beside its prediction. `differs` says what of the run was asked otherwise."""

    run: TracedRun
    predicted: Projection
    differs: list[str]
    lines: list[ExplainedLine]
    operators: list[ExplainedOperators]
    collectives: list[ExplainedCollective]
    changes: list[Change]


def explain(
    run: TracedRun, model: ModelSpec, division: Division, machine: Machine, optimizer: str
) -> Explanation:
    """Hold a traced run against the prediction of a division.

    Raises
    ------
    InputError
        The division cannot be predicted: why not.
    MissingParameter
        The parameters lack something that the prediction needs.
    """
    predicted = project(model, division, machine, optimizer=optimizer, explain=True)
    if predicted.total is None:
        raise InputError(f"{model.name}, {division.words}: {predicted.limits[0]}")
    asked = Collectives(machine.parameters)
    changes = [*larger_buckets(run, asked), *changes_for(model, division, machine, optimizer)]
    return Explanation(
        run=run,
        predicted=predicted,
        differs=differences(run, model, division),
        lines=lines_of(run, predicted),
        operators=operators_beside(run, model, division, machine, optimizer),
        collectives=collectives_beside(run, asked),
        changes=sorted(changes, key=lambda change: -change.gain.value)[:MOST],
    )


def overlapped(run: TracedRun) -> bool:
    """Whether computation hides communication of the run."""
    return run.hidden.value > OVERLAPPED * run.talking.value


def differences(run: TracedRun, model: ModelSpec, division: Division) -> list[str]:
    """What the trace shows otherwise than it is predicted, a line each."""
    of = run.configuration
    found = []

    def differ(what: str, traced: object, asked: object) -> None:
        if traced not in (None, "", asked):
            found.append(f"the trace has {what} {traced}, the prediction {asked}")

    differ("ranks:", of.ranks, division.p)
    differ("the strategy", of.strategy, division.strategy)
    differ("micro-batches of", of.batch_per_rank, division.local_batch)
    turns = division.segments if division.traits.stages else division.accumulation
    differ("micro-batches:", of.micro_batches, turns)
    differ("products in", of.dtype, _product_type(model))
    differ("activation checkpointing:", of.checkpointing, _checkpointed(model, division))
    if of.strategy == division.strategy == "data" and of.ranks > 1:
        differ("overlap of the exchange:", overlapped(run), division.overlap)
    return found + _weights_differ(of, model, division)


def _product_type(model: ModelSpec) -> str:
    """The item type of matrix products."""
    dtype = execution_of(model.execution).dtype.removesuffix("-mixed")
    return "float32" if dtype == "tf32" else dtype


def _checkpointed(model: ModelSpec, division: Division) -> bool:
    return bool(workload(model, division).again)


def _weights_differ(of: RunConfiguration, model: ModelSpec, division: Division) -> list[str]:
    """Whether as many gradients are made as the model has weights: else it is another model."""
    items = model.parameter_items
    whole = division.strategy in ("serial", "data", "fully_sharded")
    if not whole or of.gradient_items in (None, items):
        return []
    return [f"the trace has {of.gradient_items} gradients, {model.name} {items} weights"]
