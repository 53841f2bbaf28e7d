"""Parallax: the search over exchanges of variables and partitions, and its Plan.

Times by calibrated links (exchange.py), the choice by predicted time (choosing.py), the number of
partitions by the paper's samples and law (partitioning.py).
"""

from __future__ import annotations

import math
from dataclasses import replace

from calib.foundation.errors import InputError
from calib.oracle.cost import total
from calib.oracle.model.spec import ModelSpec
from calib.search.links import Links
from calib.search.plan import Baseline, Certificate, PlanLayer, SearchedPlan
from calib.search.request import FASTER, LIMITED, SearchRequest, Space, Spending
from calib.search.variables.choosing import (
    Choosing,
    VariableChoices,
    by_rule,
    held_bytes,
    possible,
    reduced,
    served,
)
from calib.search.variables.exchange import VariableExchange, parts_of
from calib.search.variables.models import (
    PUBLISHED,
    Variable,
    Variables,
    allgatherv_bytes,
    allreduce_bytes,
    of_model,
    server_bytes,
)
from calib.search.variables.partitioning import (
    Sampled,
    best_of,
    fitted,
    measured_law,
    measured_words,
    sample,
    times_of,
)

NO_AGGREGATION = (
    "what a server does with gradients is not in the times of partitions: only links are; measured "
    "seconds of an iteration go in by times=8:0.21,16:0.19,..., those of an exchange by parameters of a "
    "run whose plan has this sparse variable"
)
OF_NO_BATCH = (
    "published variables have an a of their own: no batch is known, and none changes the numbers"
)
WHY = "each variable alone at its fastest, start-ups shared by all"
NAMES = {"allreduce": "allreduce", "allgatherv": "allgatherv", "server": "parameter server"}
DetailRows = list[dict[str, float | int | str]]


def find(request: SearchRequest) -> SearchedPlan:
    """The plan of a request. Raises InputError, MissingParameter."""
    spending = request.budget.started()
    model = variables_of(request)
    links = Links(request.machine, request.devices, request.form)
    local = request.word("aggregation", ("local", "none")) == "local"
    exchange = VariableExchange(links, "local" if local else "none")
    most = max([of.rows for of in model.variables if of.sparse], default=1)
    fixed, none = request.whole("partitions", 0), f"{model.name} has no sparse variables"
    if fixed and not model.items(sparse=True):
        raise InputError(f"{none}, which alone are cut by `partitions`")
    if fixed > most:
        raise InputError(f"partitions={fixed} are more than the {most} rows of a variable")
    if request.options.get("times") and not model.items(sparse=True):
        raise InputError(f"{none}, whose partitions `times` would be of")
    model, found = with_measured(request, model, exchange)
    sampled, partitions = partitions_of(request, model, exchange, spending, most)
    spending.tables_s = spending.seconds
    choosing = Choosing(
        exchange,
        model.variables,
        partitions,
        request.optimizer,
        request.devices.memory_bytes,
        spending,
    )
    choices = chosen(request, choosing)
    phases = exchange.phases(model.variables, choices, partitions)
    whole = total(phases.values())
    bound = min(choosing.bound(), whole.seconds)
    batch = request.samples if isinstance(request.model, ModelSpec) else None
    return SearchedPlan(
        **request.head(batch=batch),
        layers=layers_of(model, exchange, choices, partitions, request),
        details=details_of(model, exchange, sampled, partitions)
        | found
        | ({LIMITED: FASTER} if choosing.limited else {}),
        phases={name: cost.record() for name, cost in phases.items()},
        total=whole.record(),
        bytes_per_device=choosing.held(choices),
        searched=spending.searched(
            sum(math.log10(len(possible(of))) for of in model.variables) + math.log10(most),
            not choosing.cut_short,
            choosing.course,
            {"numbers of partitions": len(sampled.times)} if sampled else {},
        ),
        certificate=Certificate.bounded(whole.seconds, bound, WHY),
        baselines=baselines_of(choosing, request.method),
        tables={
            "bytes in and out of a machine, one worker on each": bytes_of(model, exchange),
            **({"partitions": sweep_of(sampled)} if sampled else {}),
        },
        notes=(
            *links.notes,
            *model.notes,
            *([OF_NO_BATCH] if batch is None else []),
            *([NO_AGGREGATION] if sampled and not request.options.get("times") else []),
            *whole.notes,
        ),
    )


def variables_of(request: SearchRequest) -> Variables:
    """Those of a published model or a ModelSpec, with a= for the sparse ones. Raises InputError."""
    found = request.model
    if isinstance(found, ModelSpec):
        found = of_model(found, max(1, request.samples // request.devices.p))
    if not isinstance(found, Variables):
        raise InputError(f"{getattr(found, 'name', 'it')} has no variables: choose another space")
    if not found.variables:
        raise InputError(f"{found.name} has no variables, so there is nothing to exchange")
    return found.with_a(request.number("a", 1.0)) if request.options.get("a") else found


def with_measured(
    request: SearchRequest, model: Variables, exchange: VariableExchange
) -> tuple[Variables, dict[str, str]]:
    """Sparse variables in as many parts as was measured to be best, and a detail on each.

    Measured exchanges have a server on every device, and say nothing of others. A request with a number
    of partitions or with times goes before them.
    """
    said: dict[str, str] = {}
    if {"partitions", "times"} & set(request.options) or exchange.machines != request.devices.p:
        return model, said
    variables = []
    for of in model.variables:
        laws = request.machine.parameters.partitions if of.sparse else []
        law = measured_law(laws, of, request.devices)
        parts = 0
        if law is not None:
            parts = min(round(law.best_partitions or law.server_partitions), of.rows)
            said[f"partitions of {of.name}"] = f"{parts}; best {measured_words(law)}"
        variables.append(replace(of, parts=parts))
    return replace(model, variables=tuple(variables)), said


def partitions_of(
    request: SearchRequest,
    model: Variables,
    exchange: VariableExchange,
    spending: Spending,
    most: int,
) -> tuple[Sampled | None, int]:
    """(what was sampled, the number to take); (None, 1) where no variable is cut, or each as measured.

    By the law of measured `times`, else of times predicted with sparse variables by parameter server.
    """
    measured = request.options.get("times")
    fixed = request.whole("partitions", 0)
    rule = by_rule(model.variables)
    if all(of.parts or not of.sparse for of in model.variables) or exchange.machines == 1:
        return None, 1
    known: dict[int, float] = {}

    def time(partitions: int) -> float:
        if partitions not in known:
            spending.evaluated += 1
            request.progress(f"{partitions} partitions", 0.5)
            phases = exchange.phases(model.variables, rule, partitions)
            known[partitions] = sum(cost.seconds for cost in phases.values())
        return known[partitions]

    if measured:
        sampled = fitted(times_of(measured), request.seed)
        best = sampled.law.best_partitions_ if sampled.law else math.inf
        number = round(best) if math.isfinite(best) else sampled.fastest
    else:
        sampled = fitted(sample(time, exchange.machines, most), request.seed)
        number = best_of(sampled, time, most)
    return sampled, fixed or min(number, most)


def chosen(request: SearchRequest, choosing: Choosing) -> VariableChoices:
    """The choices of the method. Raises InputError where none fits the memory."""
    if request.method == "hybrid":
        made, what = choosing.hybrid(), "no plan fits"
        least = min(map(choosing.held, (made, served(choosing.variables))))
    else:
        made = {"server": served, "allreduce": reduced}[request.method](choosing.variables)
        least, what = choosing.held(made), f"{request.method} does not fit"
    if choosing.seconds(made) == math.inf:
        raise request.no_room(least, what)
    return made


def layers_of(
    model: Variables,
    exchange: VariableExchange,
    choices: VariableChoices,
    partitions: int,
    request: SearchRequest,
) -> tuple[PlanLayer, ...]:
    """The variables with their exchange, and the seconds that it takes by itself."""
    made = []
    for of, choice in zip(model.variables, choices, strict=True):
        parts = parts_of(of, partitions, exchange.machines)
        words = NAMES[choice]
        if choice == "server":
            words += ", spread evenly" if of.even else f", {parts} part{'s' * (parts > 1)}"
        alone = total(exchange.phases([of], [choice], partitions).values())
        made.append(
            PlanLayer(
                name=of.name,
                kind="sparse" if of.sparse else "dense",
                choice=words,
                degrees={"partitions": parts} if choice == "server" and parts > 1 else {},
                seconds={"exchange": alone.seconds},
                bytes_per_device=held_bytes(of, choice, exchange, request.optimizer),
            )
        )
    return tuple(made)


def details_of(
    model: Variables, exchange: VariableExchange, sampled: Sampled | None, partitions: int
) -> dict[str, str]:
    """The plan in words."""
    dense, sparse = model.items(sparse=False), model.items(sparse=True)
    own = {f"{of.a:.3g}" for of in model.variables if of.sparse}
    fractions = f" with a = {', '.join(sorted(own))}" if own else ""
    words = {
        "variables": f"{dense / 1e6:.1f}M dense, {sparse / 1e6:.1f}M sparse elements{fractions}; "
        f"a = {model.a:.3g} of all",
        "servers": f"{exchange.machines}, for {exchange.clients} clients beside their own machine",
    }
    if sampled is not None:
        words["partitions"] = f"{partitions}; best by the law {sampled.words()}"
    return words


def baselines_of(choosing: Choosing, method: str) -> tuple[Baseline, ...]:
    """The architectures that the method is not, and the paper's rule."""
    found = []
    for of, name, choices in (
        ("server", "all by parameter server", served),
        ("allreduce", "all by allreduce and allgatherv", reduced),
        ("", "dense by allreduce, sparse by parameter server", by_rule),
    ):
        if of == method:
            continue
        made = choices(choosing.variables)
        phases = choosing.exchange.phases(choosing.variables, made, choosing.partitions)
        time = total(phases.values()).record()
        found.append(Baseline.judged(name, time, choosing.held(made), choosing.limit))
    return tuple(found)


def bytes_of(model: Variables, exchange: VariableExchange) -> DetailRows:
    """formulas.md's table of each variable, in MB."""

    def row(of: Variable) -> dict[str, float | int | str]:
        w, n = of.nbytes, exchange.machines
        gathered = allgatherv_bytes(w, n, of.a) if of.sparse else allreduce_bytes(w, n)
        return {
            "variable": of.name,
            "MB": w / 1e6,
            "a": of.a,
            "its owner MB": "-" if of.even else server_bytes(w, n, of.a) / 1e6,
            "server, balanced MB": server_bytes(w, n, of.a, balanced=True) / 1e6,
            "allgatherv MB" if of.sparse else "allreduce MB": gathered / 1e6,
        }

    return [row(of) for of in model.variables]


def sweep_of(sampled: Sampled) -> DetailRows:
    """Samples, and what the law says of them."""
    rows: DetailRows = []
    for number, seconds in sorted(sampled.times.items()):
        row: dict[str, float | int | str] = {"partitions": number, "sample ms": 1e3 * seconds}
        if sampled.law is not None:
            row["law ms"] = 1e3 * float(sampled.law.predict([[float(number)]])[0])
        rows.append(row)
    return rows


SPACE = Space(
    name="variables",
    about="Parallax: dense and sparse variables by allreduce or parameter server; the exchange alone",
    methods={
        "hybrid": "each variable by what is predicted to be faster",
        "server": "all variables by parameter server",
        "allreduce": "dense variables by allreduce, sparse ones by allgatherv",
    },
    find=find,
    options={
        "a": "fraction of the elements of sparse variables that a worker uses in an iteration",
        "partitions": "of each sparse variable; default as measured, else by doubling and halving",
        "aggregation": "local (a machine talks to servers as one; default) or none (each device does)",
        "times": "measured seconds of an iteration by partitions, as 8:0.21,16:0.19,32:0.2",
    },
    model_of=PUBLISHED.get,
    models=tuple(PUBLISHED),
)
