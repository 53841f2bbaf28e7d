"""What traces say is wrong with a run, each with what it costs of a step, where they say that."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from calib.foundation.records import Record
from calib.foundation.statistics import binomial_at_most, effective_number
from calib.foundation.words import bytes_words, percent, seconds_words
from calib.training.traces.configuration import RunConfiguration
from calib.training.traces.split import Split

# below these shares of a step, or of the others' time, nothing is said
SLOWER, STALLED, EXPOSED = 0.05, 0.05, 0.05
# PyTorch's own bucket is 25 MiB (torch.nn.parallel.DistributedDataParallel); its first is smaller
BUCKET_NBYTES = 25 << 20
WHOLE = 0.05  # how far from a whole number the exchanges of a gradient may be
LEAST_STEPS, FEW, MANY = 3, 6, 20
FAST = 0.25  # the quantile of a rank's steps that little disturbs
DRAWS, BLOCK = 1000, 5  # of the bootstrap


class Fault(Record):
    """What is wrong: its kind, the rank where it is one's, what it costs of a step, and a sentence."""

    kind: str
    rank: int | None
    seconds: float | None
    says: str


def faults_of(run: RunConfiguration, splits: Sequence[Split], ranks: Sequence[int]) -> list[Fault]:
    """The faults, those that cost most first."""
    found = [*_slow(run, splits, ranks), *_stalled(splits, ranks), *_small_buckets(run, splits)]
    found += [*_twice(run), *_other_types(run)]
    return sorted(found, key=lambda fault: -(fault.seconds or 0.0))


def _slow(run: RunConfiguration, splits: Sequence[Split], ranks: Sequence[int]) -> list[Fault]:
    """The rank whose own work takes longer than the others', in most steps or in its fast ones.

    Steps are compared one by one, as what disturbs all ranks alike is in none of these differences; and
    ranks by the quartile of their fast steps, which what disturbs one of them now and then leaves alone.
    """
    if len(splits) < 2:
        return []
    own = np.array([split.own for split in splits])
    if own.shape[1] < LEAST_STEPS:
        return []
    at = int(np.median(own, axis=1).argmax())
    others = np.median(np.delete(own, at, axis=0), axis=0)
    excess, usual = own[at] - others, float(np.median(others))
    by = float(np.median(excess))
    if not _usually_above(excess, SLOWER * usual):
        at = int(np.quantile(own, FAST, axis=1).argmax())
        if not _slow_undisturbed(own, at):
            return []
        usual = float(np.median(np.delete(np.quantile(own, FAST, axis=1), at)))
        by = float(np.quantile(own[at], FAST)) - usual
    longer = f"{percent(by / usual)} longer" if usual > 0 else "longer"
    words = (
        f"rank {ranks[at]} needs {longer} for its own work than the "
        f"other{'s' if len(splits) > 2 else ''}: {seconds_words(by)} of a step, for which they wait"
    )
    kind = "unequal stages" if run.strategy == "pipeline" else "slow rank"
    return [Fault(kind=kind, rank=ranks[at], seconds=by, says=words)]


def _usually_above(values: NDArray[np.float64], level: float) -> bool:
    """Whether the median of values in order of time is above a level, with 95% confidence.

    A sign test, because one long step tells nothing and would widen the interval of a mean; of as many
    values as autocorrelation leaves of "is above the level". Of few values it is the mean's interval.
    """
    n = len(values)
    if n < FEW:
        return float(values.mean()) - half_width(values) > level
    number = max(effective_number(values.tolist(), level), 1)
    below = -(-int(np.sum(values <= level)) * number // n)
    return binomial_at_most(below, number, 0.5) <= 0.025


def _slow_undisturbed(own: NDArray[np.float64], at: int) -> bool:
    """Whether a rank's fast steps are longer than the others', with 99% confidence.

    By a bootstrap of blocks of consecutive steps, the same of all ranks (Kuensch, Annals of Statistics
    17, 1989): disturbances last for some steps.
    """
    n = own.shape[1]
    if n < MANY:
        return False
    starts = np.random.default_rng(0).integers(0, n, size=(DRAWS, -(-n // BLOCK)))
    steps = (starts[:, :, None] + np.arange(BLOCK)).reshape(DRAWS, -1)[:, :n] % n
    fast = np.quantile(own[:, steps], FAST, axis=2)
    others = np.median(np.delete(fast, at, axis=0), axis=0)
    return float(np.quantile(fast[at] - (1 + SLOWER) * others, 0.01)) > 0


def half_width(values: NDArray[np.float64]) -> float:
    """Half of the 95% interval of the mean of values in order of time (Student's t).

    Of many values, those that autocorrelation leaves count; that of a few cannot be told.
    """
    n = len(values)
    n = max(effective_number(values.tolist()), 2) if n >= MANY else n
    return float(student.ppf(0.975, n - 1)) * float(values.std(ddof=1)) / math.sqrt(n)


def _stalled(splits: Sequence[Split], ranks: Sequence[int]) -> list[Fault]:
    """Ranks that wait for their data."""
    loading = np.array([split.parts["input"] for split in splits])
    whole = float(np.mean([split.whole.mean() for split in splits]))
    at = int(loading.mean(axis=1).argmax())
    lost = float(loading[at].mean())
    if lost <= STALLED * whole:
        return []
    often = int(np.sum(loading[at] > STALLED * whole))
    words = (
        f"rank {ranks[at]} loads data, or waits for them, before it calls the model: "
        f"{seconds_words(lost)} of a step, {percent(lost / whole)} of it, in {often} of "
        f"{loading.shape[1]} steps"
    )
    return [Fault(kind="input", rank=ranks[at], seconds=lost, says=words)]


def _small_buckets(run: RunConfiguration, splits: Sequence[Split]) -> list[Fault]:
    """Gradients that go in many small messages, where the wire is felt."""
    buckets = run.buckets
    if buckets is None or run.strategy != "data" or buckets.operation != "allreduce":
        return []
    usual = -(-buckets.nbytes // BUCKET_NBYTES) + 1  # the first is smaller
    exposed = float(np.mean([(s.parts["wire"] / s.whole).mean() for s in splits]))
    if buckets.count <= 2 * usual or exposed < EXPOSED:
        return []
    words = (
        f"gradients of {bytes_words(buckets.nbytes)} go in {buckets.count} messages of at most "
        f"{bytes_words(buckets.largest_nbytes)}; buckets of 25 MiB, PyTorch's own, would be {usual} "
        f"at most, and {percent(exposed)} of the step is communication that nothing hides"
    )
    return [Fault(kind="small buckets", rank=None, seconds=None, says=words)]


def _twice(run: RunConfiguration) -> list[Fault]:
    """More items added up over the ranks than there are gradients."""
    items, exchanged = run.gradient_items, run.exchanged_items
    if not items or not exchanged or run.strategy != "data":
        return []
    times = exchanged / items
    if times < 2 - WHOLE or abs(times - round(times)) > WHOLE:  # other sums than those of gradients
        return []
    words = (
        f"{exchanged} items are added up over the ranks in a step, but there are {items} gradients: "
        f"they are exchanged {round(times)} times"
    )
    return [Fault(kind="doubled collective", rank=None, seconds=None, says=words)]


def _other_types(run: RunConfiguration) -> list[Fault]:
    """Matrix products in another item type than most."""
    if not run.other_dtypes:
        return []
    first = [f"{what} in {dtype}" for what, dtype in list(run.other_dtypes.items())[:3]]
    more = len(run.other_dtypes) - len(first)
    words = f"most products are in {run.dtype}, but " + "; ".join(first)
    words += f" and {more} more" if more else ""
    return [Fault(kind="other item type", rank=None, seconds=None, says=words)]
