"""What traces say is wrong with a run, each with what it costs of a step, where they say that."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from calib.foundation.records import Record
from calib.foundation.statistics import effective_number
from calib.foundation.words import bytes_words, percent, seconds_words
from calib.training.traces.configuration import RunConfiguration
from calib.training.traces.split import Split

# below these shares of a step, or of the others' time, nothing is said
SLOWER, STALLED, EXPOSED = 0.05, 0.05, 0.05
# PyTorch's own bucket is 25 MiB (torch.nn.parallel.DistributedDataParallel); its first is smaller
BUCKET_NBYTES = 25 << 20
WHOLE = 0.05  # how far from a whole number the exchanges of a gradient may be
LEAST_STEPS, MANY = 3, 20
TRIMMED = 0.2  # of the steps, at either end


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
    """The rank whose own work takes longer than the others', but for a few steps.

    Steps are compared one by one: what disturbs all ranks alike is in none of these differences.
    """
    if len(splits) < 2:
        return []
    own = np.array([split.own for split in splits])
    at = int(np.median(own, axis=1).argmax())
    others = np.median(np.delete(own, at, axis=0), axis=0)
    if len(others) < LEAST_STEPS:
        return []
    by, half = _trimmed_mean(own[at] - others)
    usual = float(np.median(others))
    if by - half <= SLOWER * usual:
        return []
    words = (
        f"rank {ranks[at]} needs {percent(by / usual)} longer for its own work than the "
        f"other{'s' if len(splits) > 2 else ''}: {seconds_words(by)} of a step, for which they wait"
    )
    kind = "unequal stages" if run.strategy == "pipeline" else "slow rank"
    return [Fault(kind=kind, rank=ranks[at], seconds=by, says=words)]


def _trimmed_mean(values: NDArray[np.float64]) -> tuple[float, float]:
    """The mean without the lowest and highest fifth, and half of its 95% interval.

    One long step widens the interval of a mean until it says nothing; the median's is wide at once. The
    interval is that of winsorized values (Tukey and McLaughlin, Sankhya A 25, 1963).
    """
    n, cut = len(values), int(TRIMMED * len(values))
    ordered = np.sort(values)
    kept = (n - 2 * cut) / n
    spread = float(np.clip(values, ordered[cut], ordered[n - 1 - cut]).std(ddof=1))
    number = _independent(values)
    freedom = max(kept * number - 1, 1)
    half = float(student.ppf(0.975, freedom)) * spread / (kept * math.sqrt(number))
    return float(ordered[cut : n - cut].mean()), half


def _independent(values: NDArray[np.float64]) -> int:
    """How many count as independent, of many values in order of time; of a few nobody can tell."""
    n = len(values)
    return max(effective_number(values.tolist()), 2) if n >= MANY else n


def half_width(values: NDArray[np.float64]) -> float:
    """Half of the 95% interval of the mean of values in order of time (Student's t)."""
    n = _independent(values)
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
