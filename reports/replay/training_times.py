"""Training time on more nodes, from allreduce logs and the one-node time alone.

Weak scaling: time(n) = iterations(n) [time(1) / iterations(1) - X(1) + X(n)], where X is the exchange
of gradients in one iteration by the oracle's laws of the logs. Compute, input and validation are what is
left of the one-node time, and shrink with the iterations: every node reads and validates its part.
Horovod sends a gradient when it is ready, about one a cycle of 1 ms, so X is a message per tensor, and
none of it is hidden (eta = 0, as in ParaDL). The interval is from an exchange that is hidden
altogether, on one node and on n, to one at the laws' upper end with the cold buffers and late ranks
of training (formulas.md, "What makes a prediction wrong", 3), after one on one node at their lower
end. What does not shrink with the nodes (start-up, ends of epochs) is in neither.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from calib.foundation.errors import FileError, InputError
from calib.foundation.files import read_text
from calib.foundation.layers import ITEM_BYTES
from calib.foundation.records import Estimate
from calib.foundation.words import seconds_words
from calib.oracle.cost import total
from calib.oracle.costs.collectives import CollectiveCosts
from calib.oracle.layout.traffic import Message
from calib.oracle.model.spec import ModelSpec
from calib.oracle.projection import PhaseTime
from calib.reports.replay.published_tables import count_of, seconds_of
from calib.reports.scoring.accuracy import score

COLUMNS = ("nodes", "gpus", "batch_per_gpu")
EPOCHS = re.compile(r"seconds_for_(\d{1,6})_epochs?")
IN_TRAINING = 18.3 / 13.9  # an allreduce in training beside one in a loop (formulas.md)


@dataclass(frozen=True)
class Trained:
    """A whole training: `seconds` for `epochs`; None where the table states none."""

    nodes: int
    gpus: int
    batch_per_gpu: int
    epochs: int
    seconds: float | None

    def iterations(self, samples: int) -> int:
        """Of all epochs; the last batch of an epoch may be short."""
        return self.epochs * math.ceil(samples / (self.gpus * self.batch_per_gpu))


@dataclass(frozen=True)
class Expected:
    """A training and its predicted seconds; `exchange` of one iteration."""

    trained: Trained
    seconds: Estimate
    exchange: PhaseTime

    @property
    def accuracy(self) -> float | None:
        """1 - |predicted - measured| / measured."""
        measured = self.trained.seconds
        return None if measured is None else score(self.seconds.value, measured)

    @property
    def inside(self) -> bool | None:
        """Whether the interval holds the measured time."""
        measured = self.trained.seconds
        return None if measured is None else self.seconds.covers(measured)


ExchangeTime = Callable[[int], PhaseTime]  # p -> of an iteration


def is_training_table(path: Path) -> bool:
    """Whether a CSV has the columns of whole trainings."""
    head = read_text(path, "table").split("\n", 1)[0]
    return {"nodes", "gpus"} <= {name.strip() for name in head.split(",")}


def read_trainings(path: Path) -> list[Trained]:
    """The rows, with the epochs of the column's name. Raises FileError with the line."""
    reader = csv.DictReader(io.StringIO(read_text(path, "table")))
    names = [name.strip() for name in reader.fieldnames or []]
    reader.fieldnames = names
    timed = [name for name in names if EPOCHS.fullmatch(name)]
    missing = [name for name in COLUMNS if name not in names]
    if missing or len(timed) != 1:
        lacks = ", ".join([*missing, *([] if len(timed) == 1 else ["one of seconds_for_N_epochs"])])
        raise FileError(f"table {path}: no column {lacks}")
    matched = EPOCHS.fullmatch(timed[0])
    assert matched is not None
    epochs = int(matched[1])
    found = []
    try:
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            nodes, gpus, batch = (count_of(row[name] or "", where) for name in COLUMNS)
            if gpus % nodes or not epochs:
                raise FileError(f"{where}: {gpus} GPUs on {nodes} nodes, {epochs} epochs")
            text = (row[timed[0]] or "").strip()
            seconds = seconds_of(text, where) if text else None
            if seconds == 0:
                raise FileError(f"{where}: {text[:40]} seconds")
            found.append(Trained(nodes, gpus, batch, epochs, seconds))
    except csv.Error as error:
        raise FileError(f"table {path} is not CSV: {error}") from error
    if not found:
        raise FileError(f"table {path} has no row")
    return found


def exchange_of(costs: CollectiveCosts, model: ModelSpec) -> ExchangeTime:
    """Sum over the tensors of weights of their allreduce among p GPUs of neighbouring nodes."""
    sizes = Counter(
        ITEM_BYTES * math.prod(shape)
        for layer in model.layers
        for shape in layer.shape.parameter_shapes
    )

    def exchange(p: int) -> PhaseTime:
        return total(
            costs.time(Message("allreduce", nbytes, p)).times(count)
            for nbytes, count in sizes.items()
        ).record()

    return exchange


def expected(trainings: Sequence[Trained], exchange: ExchangeTime, samples: int) -> list[Expected]:
    """Every training but the one on the fewest nodes, from that one.

    A batch per GPU that is another scales what is not exchange. Raises InputError without a time to
    start from, or where it is shorter than its own exchange.
    """
    timed = [row for row in trainings if row.seconds is not None]
    if not timed:
        raise InputError("no row has a time to start from")
    base = min(timed, key=lambda row: row.nodes)
    if base.nodes > 1:
        raise InputError(f"no time on one node to start from: the fewest nodes are {base.nodes}")
    assert base.seconds is not None
    first = exchange(base.gpus)
    own = first.value
    each = base.seconds / base.iterations(samples)
    if each <= own:
        raise InputError(
            f"an iteration on one node takes {seconds_words(each)}, and its exchange "
            f"{seconds_words(own)} by the logs"
        )
    found = []
    for row in trainings:
        if row is base:
            continue
        iterations, share = row.iterations(samples), row.batch_per_gpu / base.batch_per_gpu
        sent = exchange(row.gpus)
        rest, most = (each - own) * share, (each - min(first.low, own)) * share
        slowest = max(sent.value, sent.high) * IN_TRAINING
        value = iterations * (rest + sent.value)
        hidden = iterations * each * share
        ends = min(hidden, value), max(iterations * (most + slowest), value)
        found.append(Expected(row, Estimate(value=value, low=ends[0], high=ends[1]), sent))
    return found
