"""Measure a sparse exchange: MPI one-sided parameter server, allgatherv and allreduce of an embedding.

Over a range of a (touched rows over all rows) and of partitions; then which is fastest where, and the
best number of partitions (Parallax). Example: calib sparse --rows 50000 --width 64 --shares 0.01,0.1,0.5
--partitions 1,4,16,64 -o sparse.json
"""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib.options import (
    Json,
    Launcher,
    Output,
    Ranks,
    default_ranks,
    number_list,
    print_json,
    save,
    table,
)
from calib.ranks import driven, emit, join_ranks, run_ranks
from foundation.errors import InputError

if TYPE_CHECKING:
    from calib.listen import Event
    from microbench.one_sided.cases import SparseCase, SparseTime

TARGET = 0.025  # of the 95% interval of the median, as elsewhere
HANG_S = 60.0


def command(
    rows: Annotated[int, typer.Option(min=1, max=1 << 31, help="Rows of the table.")] = 50_000,
    width: Annotated[int, typer.Option(min=1, max=1 << 20, help="Items of a row.")] = 64,
    shares: Annotated[
        str, typer.Option(help="a: touched rows over all rows, a list.")
    ] = "0.01,0.02,0.05,0.1,0.2,0.5,1",
    partitions: Annotated[
        str, typer.Option(help="Parts of the table on the servers, a list.")
    ] = "1,2,4,8,16,32,64",
    ranks: Ranks = None,
    launcher: Launcher = "local",
    seconds: Annotated[
        float, typer.Option(min=0.01, max=3600, help="The most for one case.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of rows, gradients and order.")] = 0,
    output: Output = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    cases = cases_of(rows, width, shares, partitions, seed)
    if driven():
        as_rank(cases, seconds, seed, output)
        return
    n = ranks or default_ranks(launcher)
    if n < 2:
        raise InputError("an exchange needs 2 ranks at least (--ranks)")
    arguments = [
        "sparse", "--rows", str(rows), "--width", str(width), "--shares", shares, "--partitions",
        partitions, "--seconds", repr(seconds), "--seed", str(seed),
    ]  # fmt: skip
    times = measured(launcher, n, arguments, len(cases), seconds, as_json)
    content = {"ranks": n, "times": [time.model_dump() for time in times], **found_of(times)}
    save(output, content)
    if as_json:
        print_json(content)
    else:
        show(times, content)


def cases_of(rows: int, width: int, shares: str, partitions: str, seed: int) -> list[SparseCase]:
    """What the options ask for. Raises InputError."""
    from pydantic import ValidationError

    from foundation.files import first_error
    from microbench.one_sided.cases import plan

    try:
        parts = [float(word) for word in shares.split(",")]
    except ValueError as error:
        raise InputError(
            f"--shares {shares!r} is not a list of numbers such as 0.01,0.5"
        ) from error
    try:
        return plan(rows, width, parts, number_list(partitions, "--partitions"), seed)
    except ValidationError as error:
        raise InputError(f"--shares, --partitions: {first_error(error)}") from error


def as_rank(cases: list[SparseCase], seconds: float, seed: int, output: Path | None) -> None:
    """SPMD: one rank of all cases, in one shuffled order; rank 0 writes what was measured."""
    from foundation.files import write_json
    from microbench.one_sided.measure import measure
    from microbench.placement import place

    communicator = join_ranks()
    oversubscribed = place(communicator).oversubscribed
    order = list(range(len(cases)))
    Random(seed).shuffle(order)
    found: dict[int, dict[str, Any]] = {}
    for done, number in enumerate(order):
        case = cases[number]
        if communicator.rank == 0:
            left = seconds * (len(cases) - done)
            emit({"event": "case", "id": "", "label": case.label, "done": done, "of": len(cases),
                  "left_s": left})  # fmt: skip
        time = measure(communicator, case, seconds, TARGET, oversubscribed)
        found[number] = time.model_dump()
    if communicator.rank == 0 and output is not None:
        write_json(output, {"times": [found[k] for k in range(len(cases))]})


def measured(
    launcher: str, ranks: int, arguments: list[str], cases: int, seconds: float, quiet: bool
) -> list[SparseTime]:
    """Start the ranks, show how far they are, and read what they wrote."""
    import json

    from calib.progress import Bar
    from foundation.files import read_bytes
    from microbench.one_sided.cases import SparseTime

    with tempfile.TemporaryDirectory(prefix="calib-sparse-") as folder:
        result, log = Path(folder) / "times.json", Path(folder) / "ranks.log"
        with Bar("sparse", cases) as bar:

            def on_event(event: Event) -> None:
                if event["event"] == "case":
                    bar.update(event["done"], event["label"], event["left_s"])

            run_ranks(launcher, ranks, [*arguments, "-o", str(result)], log, on_event,
                      "nothing was written", HANG_S + 4 * seconds)  # fmt: skip
        content = json.loads(read_bytes(result, "result of the ranks"))
    return [SparseTime.model_validate(time) for time in content["times"]]


def found_of(times: list[SparseTime]) -> dict[str, Any]:
    """Per share the fastest, and the best partitions of the server with their interval."""
    from foundation.statistics import median, median_interval

    rows = []
    for share in dict.fromkeys(time.case.share for time in times):
        of = [time for time in times if time.case.share == share]
        server = [time for time in of if time.case.method == "server"]
        best = min(server, key=lambda time: median(time.timed))
        others: dict[str, SparseTime] = {t.case.method: t for t in of if t.case.method != "server"}
        row: dict[str, Any] = {"a": share, "best_partitions_measured": best.case.partitions}
        for name, time in [("server", best), *others.items()]:
            low, high = median_interval(time.timed)
            row[f"{name}_s"] = {"value": median(time.timed), "low": low, "high": high}
            row[f"{name}_bytes"] = time.remote_bytes
        row["fastest"] = min(("server", *others), key=lambda name: row[f"{name}_s"]["value"])
        rows.append(row | partitions_of(server))
    return {"shares": rows, "crossings": crossings(rows)}


def partitions_of(server: list[SparseTime]) -> dict[str, Any]:
    """theta of t(P) = theta0 + theta1 / P + theta2 P, and the best P; nothing of fewer than four P."""
    if len({time.case.partitions for time in server}) < 4:
        return {}
    import math

    from fitting.estimators.partitions import Partitions

    x = [float(t.case.partitions) for t in server for _ in t.timed]
    y = [second for t in server for second in t.timed]
    weight = [1.0 / len(t.timed) for t in server for _ in t.timed]
    law = Partitions().fit(x, y, weight)
    ends = {"best_partitions": law.best_partitions_, "best_low": law.best_low_,
            "best_high": law.best_high_}  # fmt: skip
    return {
        "constant_s": law.constant_s_, "parallel_s": law.parallel_s_,
        "per_partition_s": law.per_partition_s_,
        **{name: value if math.isfinite(value) else None for name, value in ends.items()},
    }  # fmt: skip


def crossings(rows: list[dict[str, Any]]) -> list[float]:
    """Every a where gathering costs as much as the server, straight in log-log between measured ones."""
    import math

    ordered = sorted(rows, key=lambda row: row["a"])
    logs = [(math.log(row["a"]), math.log(row["allgatherv_s"]["value"] / row["server_s"]["value"]))
            for row in ordered]  # fmt: skip
    return [
        math.exp(a + (b - a) * before / (before - behind))
        for (a, before), (b, behind) in pairwise(logs) if (before < 0) != (behind < 0)
    ]  # fmt: skip


def show(times: list[SparseTime], content: dict[str, Any]) -> None:
    """The table of shares."""
    from reports.words import number, with_interval

    first = times[0]
    rows = []
    for row in content["shares"]:
        cells = [f"{row['a']:g}"]
        for name in ("server", "allgatherv", "allreduce"):
            time = row[f"{name}_s"]
            cells.append(with_interval(time["value"], time["low"], time["high"], 1e3))
        best = row.get("best_partitions")
        fitted = "-"
        if "constant_s" in row:
            ends = [best, row["best_low"], row["best_high"]]
            words = ["more" if end is None else number(end, 2) for end in ends]
            fitted = f"{words[0]} [{words[1]}, {words[2]}]"
        rows.append([*cells, str(row["best_partitions_measured"]), fitted, row["fastest"]])
    marked = ", oversubscribed: these times are of no machine" if first.oversubscribed else ""
    table(
        f"{first.case.rows} x {first.case.width} float32 on {first.ranks} ranks{marked}: ms [95%]",
        ["a", "server, best P", "allgatherv", "allreduce", "best P", "fitted P [95%]", "fastest"],
        rows,
    )
    where = ", ".join(f"{a:.2g}" for a in content["crossings"])
    if where:
        typer.echo(f"Gathering and the server cost the same at a = {where}.")
    else:
        typer.echo("Gathering and the server do not cross between these a.")
