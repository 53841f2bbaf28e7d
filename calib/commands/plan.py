"""List what measuring would time, for how long and what for.

It writes plan.toml for `calib measure`. Example: calib plan --models vgg16-mini --strategies all -p
1,2,4 --budget 10m -o plan.toml
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from calib.driver.defaults import default_device, default_ranks
from calib.foundation.division import STRATEGIES
from calib.foundation.errors import InputError
from calib.foundation.files import destination
from calib.microbench.budget import FIRST_OVERHEAD_S, weight_of
from calib.microbench.cases import Case, Plan
from calib.microbench.probe import probe
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.manifest import Manifest
from calib.microbench.turns import starts_of
from calib.options import (
    BatchPerRank,
    Budget,
    DeviceOption,
    Executions,
    GlobalBatch,
    Json,
    Libraries,
    Models,
    Quick,
    RanksOption,
    Seed,
    Segments,
    execution_list,
    model_list,
    numbers,
    word_list,
)
from calib.planning.plan import Draft, draft, specs_of
from calib.planning.request import FULL, QUICK, Request, request_of, seconds_of
from calib.terminal.printing import file_of, print_json, say, table


def command(
    plan: Annotated[
        Path | None, typer.Option(help="A plan.toml to list, instead of the options that make one.")
    ] = None,
    models: Models = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated, or all; default serial,data. Strategies: "
            f"{', '.join(STRATEGIES)}."
        ),
    ] = None,
    p: Annotated[
        str | None,
        typer.Option("-p", help="ranks to predict for, as 1,2,4; default 1 and --ranks."),
    ] = None,
    ranks: RanksOption = None,
    batch_per_rank: BatchPerRank = None,
    batch: GlobalBatch = None,
    segments: Segments = None,
    execution: Executions = None,
    libraries: Libraries = None,
    device: DeviceOption = None,
    sparse: Annotated[
        str | None,
        typer.Option(metavar="ROWSxWIDTH", help="Variable whose sparse exchange is measured."),
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(help="Of --sparse: rows that a rank touches over all, as 0.01,0.1."),
    ] = None,
    partitions: Annotated[
        str | None, typer.Option(help="Of --sparse: parts on the servers; default 1,2,4,8.")
    ] = None,
    budget: Budget = None,
    quick: Quick = False,
    seed: Seed = None,
    cluster: Annotated[
        Path | None, typer.Option(help="cluster.json to plan for; default this machine.")
    ] = None,
    measured: Annotated[
        Path | None, typer.Option(help="A run directory: the time that these cases took there.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write plan.toml.")
    ] = None,
    cases: Annotated[bool, typer.Option("--cases", help="Also list every case, in order.")] = False,
    as_json: Json = False,
) -> None:
    options: dict[str, Any] = {
        "models": None if models is None else tuple(model_list(models)),
        "strategies": tuple(STRATEGIES) if strategies == "all" else word_list(strategies),
        "p": tuple(numbers(p, "-p")) if p else None,
        "ranks": ranks,
        "batch_per_rank": batch_per_rank,
        "batch": batch,
        "segments": segments,
        "executions": execution_list(execution) if execution else None,
        "libraries": word_list(libraries),
        "device": device,
        "sparse": _sparse(sparse, shares, partitions),
        "budget_s": seconds_of(budget, "--budget") if budget else None,
        "seed": seed,
    }
    if plan is None:
        kind = device or ("cpu" if cluster else default_device())
        most = ranks or default_ranks(device=kind)
        options |= {"device": kind, "p": options["p"] or tuple(sorted({1, most}))}
        request = request_of(QUICK if quick else FULL, **options)
    elif quick or any(option is not None for option in options.values()):
        raise InputError("--plan names a whole plan; change the file instead of giving options")
    else:
        request = Request.read(plan)
    drafted = draft(request, Cluster.read(cluster) if cluster else probe(), specs_of(request))
    took = times_of(measured) if measured else None
    if output is not None:
        request.write(destination(file_of(output, "-o")))
    if as_json:
        print_json(as_content(drafted, took))
        return
    show(drafted, took)
    if cases:
        show_cases(drafted.plan)
    if output is not None:
        say(f"written: {output}; next: calib measure --plan {output} -o runs/mine")


def _sparse(
    sparse: str | None, shares: str | None, partitions: str | None
) -> dict[str, Any] | None:
    """The [sparse] table of a request, which parses the numbers; None where no option of it is given."""
    content: dict[str, Any] = {"shares": word_list(shares), "partitions": word_list(partitions)}
    if sparse is not None:
        content["rows"], _, content["width"] = sparse.partition("x")
    return {name: value for name, value in content.items() if value is not None} or None


def times_of(run: Path) -> dict[str, float]:
    """Seconds that each case of a run directory took, all its launches together.

    Without cases that were left out or failed there.
    """
    seconds: dict[str, float] = {}
    for end in (case for case in Manifest.read(run).cases if case.repetitions):
        seconds[end.case_id] = seconds.get(end.case_id, 0.0) + end.elapsed_s
    return seconds


def shares_of(plan: Plan) -> dict[str, float]:
    """Seconds of the budget that each case may take, all launches together."""
    total = sum(map(weight_of, plan.cases))
    return {case.id: plan.budget_seconds * weight_of(case) / total for case in plan.cases}


def as_content(drafted: Draft, took: dict[str, float] | None) -> dict[str, Any]:
    """What --json prints."""
    shares = shares_of(drafted.plan)
    return {
        "budget_s": drafted.plan.budget_seconds,
        "launches": drafted.plan.launches,
        "launch_sizes": drafted.plan.sizes,
        "duplicates_dropped": drafted.duplicates,
        "left_out": drafted.left_out,
        "cases": [
            {
                "id": case.id,
                "kind": case.kind,
                "label": case.label,
                "ranks": case.ranks,
                "tier": case.tier,
                "share_s": round(shares[case.id], 4),
                "purpose": case.purpose,
                **({} if took is None else {"measured_s": took.get(case.id)}),
            }
            for case in drafted.plan.cases
        ],
    }


CaseGroup = tuple[int, str, str, int]  # tier, what is timed, library, p


def group_of(case: Case) -> CaseGroup:
    """The line of the table that counts a case."""
    if case.kind == "collective":
        marks = [
            *([f"{case.groups} at once"] if case.groups > 1 else []),
            *([f"{case.stride} apart"] if case.stride > 1 else []),
            *([f"by {case.told}"] if case.told else []),
            *(["cold"] if case.cold else []),
            *(["in a window"] if case.start == "window" else []),
        ]
        what = ", ".join([case.operation.replace("_", " "), *marks])
        return case.tier, what, case.library, case.group_size
    if case.kind == "layer":
        apart = "layer passes apart" if case.passes == "parts" else "layers"
        what = ", ".join([apart, *(["cold"] if case.cold else [])])
        return case.tier, what, "torch", case.ranks
    if case.kind == "tensors":
        update = case.operation == "update"
        what = f"{case.optimizer} update" if update else case.operation
        return case.tier, what, "torch", case.ranks
    if case.kind == "sparse":
        return case.tier, f"sparse {case.method}", "mpi", case.ranks
    if case.is_overlap:
        return case.tier, "models with and without overlap", case.library, case.ranks
    return case.tier, "models in place", "torch", case.ranks


LAYERS_FOR = (
    "forward and backward of the layers that cost most",
    "forward and backward of the other layers",
    "dL/dx and dL/dw of weighted layers, each alone",
)
TENSORS_FOR = {
    "update": "the weights that a rank of each point holds",
    "accumulate": "adding the gradients of a micro-batch to those of earlier ones",
    "pack": "gradients into one buffer and back, at each point",
    "concat": "shards of y or dL/dx joined (filter, channel)",
    "split": "x or dL/dy cut into shards (filter, channel)",
}


def purpose_of(cases: Sequence[Case]) -> str:
    """What a group is for, in a few words; --cases has the purpose of each case."""
    first = cases[0]
    if first.kind == "layer":
        apart = first.passes == "parts" or first.cold
        return LAYERS_FOR[2 if apart else min(first.tier, 1)]
    if first.kind == "tensors":
        each = "the same for each layer, from which other models follow"
        of_layers = first.tier == 1 and first.operation != "accumulate"
        return each if of_layers else TENSORS_FOR[first.operation]
    if first.kind == "in_place":
        hides = "how much of the exchange the backward hides"
        return hides if first.is_overlap else "what the sum of the parts leaves out"
    if first.kind == "sparse":
        return first.purpose
    if first.tier == 0:
        return "exactly the sizes that the strategies send"
    common = Counter(text for case in cases for text in case.purpose.split("; "))
    return common.most_common(1)[0][0]


def show(drafted: Draft, took: dict[str, float] | None) -> None:
    """One line for each group, in the order of the tiers, and the totals."""
    plan, shares = drafted.plan, shares_of(drafted.plan)
    groups: dict[CaseGroup, list[Case]] = {}
    for case in plan.cases:
        groups.setdefault(group_of(case), []).append(case)
    rows = []
    for (tier, what, library, p), cases in sorted(groups.items(), key=lambda item: item[0][0]):
        row = [
            str(tier),
            what,
            library,
            str(p),
            str(len(cases)),
            f"{sum(shares[case.id] for case in cases):.1f}",
        ]
        if took is not None:
            row.append(_measured(cases, took))
        rows.append([*row, purpose_of(cases)])
    columns = [
        "tier",
        "what",
        "library",
        "p",
        "cases",
        "may take s",
        *(["took s"] if took is not None else []),
        "for",
    ]
    sizes = ", ".join(map(str, plan.sizes))
    times = "once" if plan.launches == 1 else f"{plan.launches} times"
    title = f"{len(plan.cases)} cases, each run {times}, in launches of {sizes} ranks"
    table(title, columns, rows)
    beside = FIRST_OVERHEAD_S * sum(len(plan.cases_for(size)) for size in plan.sizes)
    beside *= plan.launches
    say(
        f"{plan.budget_seconds:.0f} s in all; a case that ends early leaves its time to the others. "
        f"{drafted.duplicates} duplicates dropped: the same work is measured once.\n"
        "tier 0 is what predictions look up, 1 what they interpolate in, 2 the rest; tier 0 runs "
        "first, and where time is short the last tiers are left out."
    )
    short = "; that is too short for all of them" if beside > plan.budget_seconds / 2 else ""
    launches = range(plan.launches)
    starts = sum(starts_of(plan.cases_in(size, n)) for size in plan.sizes for n in launches)
    say(
        f"Beside their repetitions, cases take some {beside:.0f} s of it{short}. Starting the ranks "
        f"{starts} times comes on top: whole models are timed by ranks of their own."
    )
    for line in drafted.left_out:
        say(f"left out: {line}")


def _measured(cases: Sequence[Case], took: dict[str, float]) -> str:
    """Seconds that a group took in an earlier run, and how many of its cases were there."""
    known = [took[case.id] for case in cases if case.id in took]
    if not known:
        return "-"
    some = f" ({len(known)} of {len(cases)})" if len(known) < len(cases) else ""
    return f"{sum(known):.1f}{some}"


def show_cases(plan: Plan) -> None:
    """Every case in the order of the plan; a launch shuffles each tier."""
    shares = shares_of(plan)
    rows = [
        [case.id, str(case.tier), case.label, f"{shares[case.id]:.2f}", case.purpose]
        for case in plan.cases
    ]
    table("cases", ["id", "tier", "case", "may take s", "for"], rows)
