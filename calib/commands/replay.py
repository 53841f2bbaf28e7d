"""Predict published runs from others of the same machine.

It says how right that is. A table of iteration times: calibrates from its runs and predicts those of
--holdout, or the largest p of each series from the smaller ones. A table of whole trainings (nodes,
gpus, batch_per_gpu, seconds_for_90_epochs): predicts the others from that on the fewest nodes, or from
those of --known, logs of allreduce, and logs of epochs.

Example: calib replay ../shared/data/paradl/abci_fig2_small_p.csv -o replay.json
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from calib.foundation.errors import InputError
from calib.options import MOST, Json, Output, numbers
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.costs.levels import Levels
from calib.oracle.model.spec import ModelSpec
from calib.replay.logs import parameters_of
from calib.replay.shown import (
    authors_content,
    show,
    show_authors,
    show_trainings,
    trainings_content,
)
from calib.reports.replay.paper_form import PaperFormReplay
from calib.reports.replay.predictions import as_content, replay
from calib.reports.replay.published_tables import read_links, read_points, read_single_gpu
from calib.reports.replay.shapes import Shapes
from calib.reports.replay.training_exchange import exchange_of, without_outlying
from calib.reports.replay.training_replay import replay_trainings
from calib.reports.replay.training_times import is_training_table, read_trainings
from calib.terminal.printing import print_json, save, say
from calib.training.importers.epochs.reading import read_epoch_log
from calib.training.importers.epochs.record import EpochLog
from calib.training.models import model_names
from calib.training.models.specs import spec

SINGLE_GPU, LINKS = "abci_single_gpu.csv", "abci_alpha_beta_used.csv"
# the paper's variants of the models: 3 x 226 x 226, pooling of VGG16 that rounds up (models.md)
PAPER_VARIANT = "-226"
OF_NODES = re.compile(r"(\d{1,8})=(.+)", re.DOTALL)


def command(
    runs: Annotated[
        Path, typer.Argument(help="CSV of published iteration times, or of trainings.")
    ],
    more_logs: Annotated[
        list[Path] | None, typer.Argument(help="More logs, as a shell's * gives after --logs.")
    ] = None,
    holdout: Annotated[
        Path | None, typer.Option(help="CSV of the runs to predict; default the largest p of RUNS.")
    ] = None,
    logs: Annotated[
        list[Path] | None, typer.Option(help="Logs of allreduce, for a table of trainings.")
    ] = None,
    known: Annotated[
        str | None,
        typer.Option(help="Nodes of the trainings whose times are used: 1,4; default the fewest."),
    ] = None,
    epochs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NODES=]LOG",
            help="Log of a training's epochs, or TensorBoard events, on so many nodes; repeatable.",
        ),
    ] = None,
    authors: Annotated[
        bool, typer.Option("--authors", help="Compute the authors' own projections again.")
    ] = False,
    single_gpu: Annotated[
        Path | None, typer.Option(help=f"CSV of one-GPU times; default {SINGLE_GPU} beside it.")
    ] = None,
    links: Annotated[
        Path | None, typer.Option(help=f"CSV of alpha and beta; default {LINKS} beside it.")
    ] = None,
    ranks_per_node: Annotated[
        int, typer.Option(min=1, max=MOST, help="GPUs per node, of b per node and of hybrids.")
    ] = 4,
    segments: Annotated[
        int, typer.Option(min=1, max=MOST, help="Micro-batches of the pipeline rows.")
    ] = 4,
    samples: Annotated[
        int, typer.Option(min=1, max=10**12, help="Samples of an epoch, for rows per epoch.")
    ] = 1_281_167,
    model: Annotated[str, typer.Option(help="The model of a table of trainings.")] = "resnet50",
    output: Output = None,
    as_json: Json = False,
) -> None:
    every_log = [*(logs or []), *(more_logs or [])]
    how = {"ranks_per_node": ranks_per_node, "segments": segments, "samples": samples}
    if is_training_table(runs):
        if holdout or authors:
            raise InputError(
                f"{runs} is a table of trainings: --holdout and --authors are of others"
            )
        nodes = numbers(known, "--known")
        content, shown = trainings(runs, every_log, model, samples, nodes, epochs or [])
    elif known or epochs:
        raise InputError(f"{runs} is no table of trainings: --known and --epochs are of one")
    elif every_log:
        raise InputError(f"{runs} is no table of trainings (columns nodes, gpus): no logs with it")
    elif authors:
        content, shown = again(runs, single_gpu, links, how)
    else:
        content, shown = predict(runs, holdout, single_gpu, links, how)
    save(output, content)
    if as_json:
        print_json(content)
    else:
        shown()


Result = tuple[
    dict[str, Any], Callable[[], None]
]  # the JSON content, and what prints it for people


def model_of(name: str) -> ModelSpec:
    """The publication's variant of a model. Raises InputError for an unknown one."""
    return spec(name + PAPER_VARIANT if name + PAPER_VARIANT in model_names() else name)


def beside(runs: Path, named: Path | None, usual: str, without: str) -> Path | None:
    """The table that was named, or the usual one beside the runs; if that is missing, it is said."""
    path = named or runs.parent / usual
    if named is None and not path.is_file():
        say(f"note: no {path.name} beside {runs.name}: {without}")
        return None
    return path


def predict(
    runs: Path,
    holdout: Path | None,
    single_gpu: Path | None,
    links: Path | None,
    how: dict[str, Any],
) -> Result:
    """Calibrate and predict."""
    known = read_points(runs, ["meas_total"])
    wanted = read_points(holdout, []) if holdout else None
    without = "levels without equations, each series by itself"
    one = beside(runs, single_gpu, SINGLE_GPU, without)
    prices = beside(runs, links, LINKS, "all bytes have one price")
    shapes = Shapes(
        models=model_of,
        seconds_per_sample=read_single_gpu(one) if one else {},
        links=read_links(prices) if prices else [],
        **how,
    )
    done = replay(shapes, known, wanted)
    return as_content(done), partial(show, done)


def again(runs: Path, single_gpu: Path | None, links: Path | None, how: dict[str, Any]) -> Result:
    """The authors' own projections, from published alpha and beta."""
    replay = PaperFormReplay(
        models=model_of,
        seconds_per_sample=read_single_gpu(single_gpu or runs.parent / SINGLE_GPU),
        links=read_links(links or runs.parent / LINKS),
        **how,
    )
    done, left_out = replay.run(read_points(runs))
    if not done:
        raise InputError(f"{runs}: no row can be replayed: {left_out[0][1]}")
    return authors_content(done, left_out), partial(show_authors, done, left_out)


def trainings(
    runs: Path,
    logs: list[Path],
    model: str,
    samples: int,
    known: Sequence[int],
    epochs: Sequence[str],
) -> Result:
    """Whole trainings from those that are known, logs of allreduce, and logs of epochs."""
    if not logs:
        raise InputError(f"{runs} is a table of trainings: it needs --logs of allreduce")
    table, of = read_trainings(runs), spec(model)
    own = epoch_logs(epochs)
    parameters, notes = without_outlying(parameters_of(logs))
    each = {row.gpus // row.nodes for row in table}
    levels = Levels.of(parameters)
    if len(each) == 1:
        levels = replace(levels, ranks_per_node=each.pop())
    exchange = exchange_of(CollectiveCosts(parameters, levels=levels), of)
    found = replay_trainings(table, exchange, samples, known, own, notes)
    return trainings_content(found, model, samples), partial(show_trainings, found, model)


def epoch_logs(given: Sequence[str]) -> dict[int | None, list[EpochLog]]:
    """Logs by the nodes that they are of; None for those that do not say."""
    found: dict[int | None, list[EpochLog]] = {}
    for text in given:
        named = OF_NODES.fullmatch(text)
        nodes, path = (int(named[1]), named[2]) if named else (None, text)
        found.setdefault(nodes, []).append(read_epoch_log(Path(path)))
    return found
