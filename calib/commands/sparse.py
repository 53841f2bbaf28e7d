"""Time sparse exchanges: server, allgatherv and allreduce.

The server is MPI one-sided. Of an embedding, over a range of a (touched rows over all rows) and of
partitions; then which is fastest where, and the best number of partitions (Parallax). Example: calib
sparse --rows 50000 --width 64 --shares 0.01,0.1,0.5 --partitions 1,4,16,64 -o sparse.json
"""

from __future__ import annotations

import json
import math
import tempfile
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from calib.driver.listen import Event
from calib.driver.ranks import default_ranks, driven, emit, join_ranks, run_ranks
from calib.foundation.errors import InputError
from calib.foundation.files import first_error, read_bytes, write_json
from calib.foundation.statistics import median, median_interval
from calib.foundation.words import number, with_interval
from calib.microbench.machine.placement import place
from calib.microbench.sparse.cases import SparseCase, SparseTime, plan
from calib.microbench.sparse.measure import measure
from calib.options import Json, Launcher, Output, Ranks, number_list
from calib.terminal.printing import print_json, save, table
from calib.terminal.progress import Bar

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
    launches: Annotated[
        int, typer.Option(min=1, max=100, help="Starts of the ranks: they differ.")
    ] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Of rows, gradients and order.")] = 0,
    output: Output = None,
    as_json: Json = False,
) -> None:
    cases = cases_of(rows, width, shares, partitions, seed)
    if driven():
        as_rank(cases, seconds, seed, output)
        return
    n = ranks or default_ranks(launcher)
    if n < 2:
        raise InputError("an exchange needs 2 ranks at least (--ranks)")
    arguments = [
        "sparse",
        "--rows",
        str(rows),
        "--width",
        str(width),
        "--shares",
        shares,
        "--partitions",
        partitions,
        "--seconds",
        repr(seconds),
        "--seed",
        str(seed),
    ]
    times = measured(launcher, n, arguments, len(cases), seconds, launches)
    content = {"ranks": n, "times": [time.model_dump() for time in times], **found_of(times)}
    save(output, content)
    if as_json:
        print_json(content)
    else:
        show(times, content)


def cases_of(rows: int, width: int, shares: str, partitions: str, seed: int) -> list[SparseCase]:
    """What the options ask for. Raises InputError."""
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
    communicator = join_ranks()
    oversubscribed = place(communicator).oversubscribed
    order = list(range(len(cases)))
    Random(seed).shuffle(order)
    found: dict[int, dict[str, Any]] = {}
    for done, index in enumerate(order):
        case = cases[index]
        if communicator.rank == 0:
            left = seconds * (len(cases) - done)
            emit(
                {
                    "event": "case",
                    "id": "",
                    "label": case.label,
                    "done": done,
                    "of": len(cases),
                    "left_s": left,
                }
            )
        time = measure(communicator, case, seconds, TARGET, oversubscribed)
        found[index] = time.model_dump()
    if communicator.rank == 0 and output is not None:
        write_json(output, {"times": [found[k] for k in range(len(cases))]})


def measured(
    launcher: str, ranks: int, arguments: list[str], cases: int, seconds: float, launches: int
) -> list[SparseTime]:
    """Start the ranks, again and again, show how far they are, and read what they wrote."""
    found: list[SparseTime] = []
    with tempfile.TemporaryDirectory(prefix="calib-sparse-") as folder:
        result, log = Path(folder) / "times.json", Path(folder) / "ranks.log"
        with Bar("sparse", launches * cases) as bar:
            for launch in range(launches):
                later = seconds * cases * (launches - launch - 1)

                def on_event(
                    event: Event, done: int = launch * cases, later: float = later
                ) -> None:
                    if event["event"] == "case":
                        bar.update(done + event["done"], event["label"], event["left_s"] + later)

                run_ranks(
                    launcher,
                    ranks,
                    [*arguments, "-o", str(result)],
                    log,
                    on_event,
                    "nothing was written",
                    HANG_S + 4 * seconds,
                )
                content = json.loads(read_bytes(result, "result of the ranks"))
                found += [
                    SparseTime.model_validate({**time, "launch": launch})
                    for time in content["times"]
                ]
    return found


def found_of(times: list[SparseTime]) -> dict[str, Any]:
    """Per share the fastest, and the best partitions of the server with their interval."""
    rows = []
    for share in dict.fromkeys(time.case.share for time in times):
        by_case: dict[SparseCase, list[SparseTime]] = {}
        for time in times:
            if time.case.share == share:
                by_case.setdefault(time.case, []).append(time)
        server = {c: of for c, of in by_case.items() if c.method == "server"}
        best = min(server, key=lambda case: median(medians(server[case])))
        row: dict[str, Any] = {"a": share, "best_partitions_measured": best.partitions}
        for case, of in by_case.items():
            if case.method != "server" or case == best:
                row[f"{case.method}_s"] = interval_of(of)
                row[f"{case.method}_bytes"] = of[0].remote_bytes
        names = [name.removesuffix("_s") for name in row if name.endswith("_s")]
        row["fastest"] = min(names, key=lambda name: row[f"{name}_s"]["value"])
        rows.append(row | partitions_of([time for of in server.values() for time in of]))
    return {"shares": rows, "crossings": crossings(rows)}


def medians(of: list[SparseTime]) -> list[float]:
    """Of each launch."""
    return [median(time.timed) for time in of]


def interval_of(of: list[SparseTime]) -> dict[str, float]:
    """The median of the launches' medians, and from the lowest to the highest end of their intervals."""
    ends = [median_interval(time.timed) for time in of]
    return {
        "value": median(medians(of)),
        "low": min(low for low, _ in ends),
        "high": max(high for _, high in ends),
    }


def partitions_of(server: list[SparseTime]) -> dict[str, Any]:
    """theta of t(P) = theta0 + theta1 / P + theta2 P, and the best P; nothing of fewer than four P."""
    if len({time.case.partitions for time in server}) < 4:
        return {}
    # late: scikit-learn, for which the ranks have no use
    from calib.fitting.estimators.partitions import Partitions

    x = [float(time.case.partitions) for time in server]
    launches = [time.launch for time in server]
    law = Partitions().fit(x, medians(server), groups=launches if len(set(launches)) > 1 else None)
    ends = {
        "best_partitions": law.best_partitions_,
        "best_low": law.best_low_,
        "best_high": law.best_high_,
    }
    return {
        "constant_s": law.constant_s_,
        "parallel_s": law.parallel_s_,
        "per_partition_s": law.per_partition_s_,
        **{name: value if math.isfinite(value) else None for name, value in ends.items()},
    }


def crossings(rows: list[dict[str, Any]]) -> list[float]:
    """Every a where gathering costs as much as the server, straight in log-log between measured ones."""
    ordered = sorted(rows, key=lambda row: row["a"])
    logs = [
        (math.log(row["a"]), math.log(row["allgatherv_s"]["value"] / row["server_s"]["value"]))
        for row in ordered
    ]
    return [
        math.exp(a + (b - a) * before / (before - behind))
        for (a, before), (b, behind) in pairwise(logs)
        if (before < 0) != (behind < 0)
    ]


def show(times: list[SparseTime], content: dict[str, Any]) -> None:
    """The table of shares."""
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
    launches = 1 + max(time.launch for time in times)
    marked = ", oversubscribed: these times are of no machine" if first.oversubscribed else ""
    of = f"{first.case.rows} x {first.case.width} float32 on {first.ranks} ranks"
    table(
        f"{of}, {launches} launches{marked}: ms [95%]",
        ["a", "server, best P", "allgatherv", "allreduce", "best P", "fitted P [95%]", "fastest"],
        rows,
    )
    where = ", ".join(f"{a:.2g}" for a in content["crossings"])
    if where:
        typer.echo(f"Gathering and the server cost the same at a = {where}.")
    else:
        typer.echo("Gathering and the server do not cross between these a.")
