"""Predict one training iteration."""

from __future__ import annotations

from functools import partial
from typing import Any

from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.memory import STATES
from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.foundation.quantities import possible
from calib.oracle.bottlenecks import bottlenecks
from calib.oracle.cost import Cost, total
from calib.oracle.costs.layers import merged
from calib.oracle.costs.machine import Costs, Machine
from calib.oracle.layout.shards import fitted, last_split, why_impossible
from calib.oracle.memory.live_bytes import live_bytes
from calib.oracle.memory.peak import peak_bytes, room_used, why_no_room
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.costs import paper_costs
from calib.oracle.projection import Form, Limit, Phase, Projection
from calib.oracle.sources import by_class
from calib.oracle.strategies import Strategy, strategy_named
from calib.oracle.strategies.pipeline import placed
from calib.oracle.terms import Term, by_phase


def project(
    model: ModelSpec,
    strategy: Division,
    parameters: Parameters | Machine,
    form: Form = "measured",
    optimizer: str = "momentum",
    samples: int | None = None,
    explain: bool = False,
) -> Projection:
    """Predict one iteration of a model under a strategy, and an epoch.

    A configuration that cannot run (numbers that do not divide, too many ranks, too little memory) is
    an answer, not an error: `feasible` is False and `limits` has the reasons.

    Parameters
    ----------
    model
        Its layers.
    strategy
        How training is divided.
    parameters
        The fit of the machine. For many predictions, make the `Machine` once and pass that.
    form
        "measured" uses all measurements; "paper" evaluates the equations of ParaDL as written.
    optimizer
        sgd, momentum or adam.
    samples
        D, the samples of an epoch; None predicts no epoch.
    explain
        Whether to add the terms of the formula.

    Raises
    ------
    InputError
        An unknown optimizer.
    MissingParameter
        The parameters lack something this prediction needs.

    References
    ----------
    Kahira et al., "An Oracle for Guiding Large-Scale Model/Hybrid Parallel Training of Convolutional
    Neural Networks", HPDC 2021, Table 3; corrected in docs/predicting.md.
    """
    if optimizer not in STATES:
        raise InputError(f"unknown optimizer {optimizer!r}; known: {', '.join(STATES)}")
    machine = parameters if isinstance(parameters, Machine) else Machine(parameters)
    division = asked = fitted(model, strategy)
    chosen = strategy_named(strategy.strategy)
    reasons = why_impossible(model, division)
    if reasons:
        limit = chosen.limit(model, division)
        return without_time(model, division, form, optimizer, reasons, limit)
    with possible(f"the prediction of {model.name} {division.strategy} p={division.p}"):
        return _possible(model, asked, division, machine, form, optimizer, samples, explain)


def divided(model: ModelSpec, division: Division, machine: Machine) -> Division:
    """What the measured form predicts for a possible division: with its grid, and stages by their times.

    Raises MissingParameter where these are not known.
    """
    division = fitted(model, division)
    # the optimizer's pass is no part of the balance
    return placed(model, division, costs_of(model, machine, division, "momentum"))


def iteration(
    model: ModelSpec, division: Division, machine: Machine, optimizer: str = "momentum"
) -> Cost:
    """The time of one iteration, measured form, of a possible division, with its error sources.

    Raises MissingParameter as `project` does.
    """
    terms, division = measured_terms(model, division, machine, optimizer)
    return total(_phases(terms, machine, division.p).values())


def measured_terms(
    model: ModelSpec, division: Division, machine: Machine, optimizer: str = "momentum"
) -> tuple[list[Term], Division]:
    """The terms of the same, and the division with its grid and stages. Raises MissingParameter."""
    chosen, division = strategy_named(division.strategy), fitted(model, division)
    return _terms(chosen, model, division, machine, "measured", optimizer)


def _phases(terms: list[Term], machine: Machine, p: int) -> dict[Phase, Cost]:
    """The cost of every phase, in one launch of `p` ranks; messages know their own (`Costs.sent`)."""
    factor, speed = machine.parameters.launch_factor(p), machine.parameters.speed.variation(p)

    def launched(cost: Cost) -> Cost:
        return cost.in_one_launch(1.0 if cost.launch_factor > 1 else factor, speed)

    return by_phase([term._replace(cost=launched(term.cost)) for term in terms])


def _possible(
    model: ModelSpec,
    asked: Division,
    division: Division,
    machine: Machine,
    form: Form,
    optimizer: str,
    samples: int | None,
    explain: bool,
) -> Projection:
    """Predict a division that the model and the rank count allow."""
    chosen = strategy_named(division.strategy)
    terms, division = _terms(chosen, model, division, machine, form, optimizer)
    parameters, phases = machine.parameters, _phases(terms, machine, division.p)
    whole = total(phases.values())
    parts = chosen.memory(model, division, optimizer)
    widens = machine.parameters.device_kind == "cpu"  # MPI (training/teams.py)
    count = partial(live_bytes, model, division, optimizer, widens)
    peak, live, about = peak_bytes(parameters, division, parts, count, model.execution)
    naive = sum(parts.values())
    reasons = why_no_room(parameters, naive, peak)
    room = room_used(parameters, naive, peak)
    limit = chosen.limit(model, division)
    return Projection(
        **_about(model, asked, form, optimizer),
        environment=parameters.environment_on(division.p),
        split_ends_after=last_split(model, division),
        phases={name: cost.record() for name, cost in phases.items()},
        total=whole.record(),
        sources=by_class(whole.errors),
        launch_factors={name: cost.launch_factor for name, cost in phases.items()},
        samples=samples,
        # D / B iterations: the last, incomplete mini-batch counts by its share (formulas.md)
        epoch=None if samples is None else whole.times(samples / division.batch).record(),
        bytes_per_rank=naive,
        bytes_by_part=parts,
        peak_bytes=peak,
        live_peak_bytes=None if parameters.device_kind == "cpu" else live,
        limit=limit,
        bottlenecks=bottlenecks(division, terms, whole, parts, limit, room),
        feasible=not reasons,
        limits=reasons,
        notes=[*merged(whole.notes), *about, *model.told],
        terms=[term.record() for term in terms] if explain else [],
    )


def _terms(
    chosen: Strategy,
    model: ModelSpec,
    division: Division,
    machine: Machine,
    form: Form,
    optimizer: str,
) -> tuple[list[Term], Division]:
    """The terms, and the division with the boundaries of a balanced pipeline.

    The balance depends on the times, and a stage's memory on the balance.
    """
    if form == "paper":
        paper = paper_costs(machine, model, division, optimizer)
        division = placed(model, division, paper)
        return chosen.paper(model, division, paper), division
    costs = costs_of(model, machine, division, optimizer)
    division = placed(model, division, costs)
    return chosen.measured(model, division, costs), division


def costs_of(model: ModelSpec, machine: Machine, division: Division, optimizer: str) -> Costs:
    """The look-ups of a prediction, with as many ranks at work on a node as it has."""
    active = min(division.p, machine.parameters.ranks_per_node)
    return machine.costs(active, optimizer, model.execution)


def _about(model: ModelSpec, division: Division, form: Form, optimizer: str) -> dict[str, Any]:
    """The fields that say what was asked."""
    return {
        "model": model.name,
        "division": division,
        "form": form,
        "optimizer": optimizer,
        "execution": model.execution,
    }


def without_time(
    model: ModelSpec,
    division: Division,
    form: Form,
    optimizer: str,
    reasons: list[str],
    limit: Limit | None = None,
) -> Projection:
    """The projection of a division that cannot run."""
    return Projection(
        **_about(model, division, form, optimizer),
        phases={},
        bytes_per_rank=0,
        bytes_by_part={},
        **({} if limit is None else {"limit": limit}),
        feasible=False,
        limits=reasons,
    )
