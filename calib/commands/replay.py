"""Project published runs again from published parameters, beside what their authors projected.

Example: calib replay ../shared/data/paradl/abci_fig2_small_p.csv -o replay.json
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib.options import MOST, Json, Output, print_json, save, say, table
from foundation.errors import InputError

if TYPE_CHECKING:
    from reports.published_tables import PublishedPoint
    from reports.replay import Replayed

SINGLE_GPU, LINKS = "abci_single_gpu.csv", "abci_alpha_beta_used.csv"
# the paper's variants of the models: 3 x 226 x 226, pooling of VGG16 that rounds up (models.md)
PAPER_VARIANT = "-226"


def command(
    runs: Annotated[Path, typer.Argument(help="CSV of published iteration times.")],
    single_gpu: Annotated[
        Path | None, typer.Option(help=f"CSV of one-GPU times; default {SINGLE_GPU} beside it.")
    ] = None,
    links: Annotated[
        Path | None, typer.Option(help=f"CSV of alpha and beta; default {LINKS} beside it.")
    ] = None,
    pes_per_node: Annotated[
        int, typer.Option(min=1, max=MOST, help="GPUs per node, of b per node and of hybrids.")
    ] = 4,
    segments: Annotated[
        int, typer.Option(min=1, max=MOST, help="Micro-batches of the pipeline rows.")
    ] = 4,
    samples: Annotated[
        int, typer.Option(min=1, max=10**12, help="Samples of an epoch, for rows per epoch.")
    ] = 1_281_167,
    output: Output = None,
    as_json: Json = False,
) -> None:
    from reports.published_tables import read_links, read_points, read_single_gpu
    from reports.replay import Replay
    from training.models import model_names
    from training.models.specs import spec

    known = model_names()
    replay = Replay(
        models=lambda name: spec(name + PAPER_VARIANT if name + PAPER_VARIANT in known else name),
        seconds_per_sample=read_single_gpu(single_gpu or runs.parent / SINGLE_GPU),
        links=read_links(links or runs.parent / LINKS),
        pes_per_node=pes_per_node, segments=segments, samples=samples,
    )  # fmt: skip
    done, left_out = replay.run(read_points(runs))
    if not done:
        raise InputError(f"{runs}: no row can be replayed: {left_out[0][1]}")
    content = as_content(done, left_out)
    save(output, content)
    if as_json:
        print_json(content)
    else:
        show(done, left_out)


def as_content(
    done: Sequence[Replayed], left_out: Sequence[tuple[PublishedPoint, str]]
) -> dict[str, Any]:
    """What --json prints; seconds in each row's unit."""
    return {
        "rows": [
            {
                "model": r.point.model, "strategy": r.strategy, "p": r.point.p, "batch": r.batch,
                "unit": r.point.unit, "compute": r.compute, "communication": r.communication,
                "total": r.seconds, "authors": r.point.projected, "measured": r.point.measured,
                "difference": r.difference, "note": r.point.note,
                "cause": r.cause.what if r.cause else None,
                "communication_with_cause": r.cause.with_cause if r.cause else None,
            }
            for r in done
        ],
        "left_out": [
            {"model": point.model, "strategy": point.strategy, "p": point.p, "why": why}
            for point, why in left_out
        ],
    }  # fmt: skip


def show(done: Sequence[Replayed], left_out: Sequence[tuple[PublishedPoint, str]]) -> None:
    """A row for every point, and the mean difference of every strategy."""

    def pair(ours: float, theirs: float | None) -> str:
        return f"{ours:.4g} / {'-' if theirs is None else f'{theirs:.4g}'}"

    rows = [
        [
            r.point.model, r.strategy, str(r.point.p), str(r.batch), r.point.unit,
            pair(r.compute, r.point.projected.get("comp")),
            pair(r.communication, r.point.projected.get("comm")),
            pair(r.seconds, r.point.projected.get("total")),
            "-" if r.difference is None else f"{r.difference:+.1%}",
            f"{r.point.measured['total']:.4g}" if "total" in r.point.measured else "-",
            "" if r.cause is None or r.cause.with_cause is None
            else pair(r.cause.with_cause, r.point.projected.get("comm")),
        ]
        for r in done
    ]  # fmt: skip
    columns = ["model", "strategy", "p", "B", "unit", "compute", "communication", "total",
               "difference", "measured", "communication with the cause"]  # fmt: skip
    table("Published runs: our paper form / the authors' projection", columns, rows)
    differences: dict[str, list[float]] = defaultdict(list)
    for r in done:
        if r.difference is not None:
            differences[r.strategy].append(r.difference)
    for strategy, values in differences.items():
        worst = max(values, key=abs)
        mean = sum(map(abs, values)) / len(values)
        say(f"{strategy}: off by {mean:.1%} in the mean of {len(values)}, {worst:+.1%} at most")
    causes: dict[str, list[str]] = defaultdict(list)
    for r in done:
        if r.cause:
            causes[r.cause.what].append(f"{r.point.model} {r.strategy}")
    for what, where in causes.items():
        say(f"cause, {', '.join(dict.fromkeys(where))}: {what}")
    for point, why in left_out:
        say(f"left out: {point.model} {point.strategy} p={point.p}: {why}")
