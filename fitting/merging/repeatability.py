"""How well a measurement repeats: medians of two runs of one plan.

The estimates are computed as for parameters (fitting/estimate.py), so how well the intervals hold here
is how well they hold there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from calib.fitting.estimate import slowest_rank, together
from calib.fitting.launches import Launches
from calib.fitting.measured_run import MeasuredRun, read_run
from calib.foundation.errors import InputError
from calib.foundation.records import Estimate
from calib.foundation.statistics import median, quantile


@dataclass(frozen=True)
class Pair:
    """One operation of one case in both runs, in seconds."""

    case_id: str
    operation: str
    kind: str
    label: str
    first: Estimate
    second: Estimate

    @property
    def log_ratio(self) -> float:
        """ln(second / first); infinite where one of them took no time on its clock."""
        if self.first.value == self.second.value:
            return 0.0
        if self.first.value <= 0 or self.second.value <= 0:
            return math.inf
        return math.log(self.second.value / self.first.value)

    @property
    def agreements(self) -> int | None:
        """How many of the two medians lie in the other's interval: 0, 1 or 2.

        None where neither has an interval: single times say nothing about their own errors.
        """
        if not (self.first.has_interval or self.second.has_interval):
            return None
        return self.second.covers(self.first.value) + self.first.covers(self.second.value)


@dataclass(frozen=True)
class Agreement:
    """What several pairs say together.

    `both` is the share of pairs whose medians lie in each other's intervals, `one` of those where
    only one of them does; the rest differ. Pairs of which that cannot be said (`agreements`) are in
    no share. `median_log_ratio` and `p90_log_ratio` are quantiles of |ln(second / first)|; `half_width`
    is the median of all intervals' relative half-widths. None where there is no interval.
    """

    pairs: int
    both: float | None
    one: float | None
    median_log_ratio: float
    p90_log_ratio: float
    half_width: float | None

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> Agreement:
        """Raises ValueError for no pairs."""
        ratios = [abs(pair.log_ratio) for pair in pairs]
        widths = [
            e.half_width if e.value > 0 else math.inf
            for pair in pairs
            for e in (pair.first, pair.second)
            if e.has_interval
        ]
        told = [pair.agreements for pair in pairs if pair.agreements is not None]
        return cls(
            pairs=len(pairs),
            both=told.count(2) / len(told) if told else None,
            one=told.count(1) / len(told) if told else None,
            median_log_ratio=median(ratios),
            p90_log_ratio=quantile(ratios, 0.9),
            half_width=median(widths) if widths else None,
        )


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side. `pairs` are sorted, the farthest apart first."""

    pairs: list[Pair]
    whole: Agreement
    kinds: dict[str, Agreement]
    only_first: int
    only_second: int
    notes: list[str]


def compare_runs(first: Path, second: Path, across: bool = False) -> Comparison:
    """Compare two run directories case by case.

    Parameters
    ----------
    first, second
        Run directories with samples.
    across
        Whether they may be of different clusters.

    Raises
    ------
    FileError
        A run cannot be read.
    InputError
        Different clusters without `across`; the same samples twice; no case in common.
    """
    one, two = read_run(first), read_run(second)
    if one.sha256 == two.sha256:
        raise InputError(f"{first} and {second} hold the same samples; compare two measurements")
    notes = []
    if one.cluster.fingerprint != two.cluster.fingerprint:
        about = f"{one.cluster.fingerprint} and {two.cluster.fingerprint}"
        if not across:
            raise InputError(f"the runs are of different clusters ({about})", wants="across")
        notes.append(f"the runs are of different clusters: {about}")
    return compare(one, two, notes)


def compare(one: MeasuredRun, two: MeasuredRun, notes: Iterable[str] = ()) -> Comparison:
    """Pair the operations of two runs that are in memory. Raises InputError when none pairs."""
    remarks = list(notes)
    sides, among = [], []
    for name, run in (("first", one), ("second", two)):
        used = run.samples.usable
        if spoilt := int((~run.samples["warmup"]).sum()) - len(used):
            remarks.append(
                f"{spoilt} rows of the {name} run were left out: oversubscribed or marked"
            )
        sides.append(used.groups("case_id", "operation"))
        among.append(Launches.of(used))
    labels = {end.case_id: end.label for run in (two, one) for end in run.manifest.cases}
    common = [key for key in sides[0] if key in sides[1]]
    if not common:
        about = "".join(f" ({remark})" for remark in remarks)
        raise InputError(f"the runs have no case in common{about}; measure the same plan twice")
    pairs = []
    for case_id, operation in common:
        rows = [side[case_id, operation] for side in sides]
        kind = rows[0].first.kind
        estimate = together if kind == "collective" else slowest_rank
        label = labels.get(case_id, case_id)
        first, second = map(estimate, rows, among)
        pairs.append(Pair(case_id, operation, kind, label, first, second))
    remarks += untold_note(pairs)
    pairs.sort(key=lambda pair: (-abs(pair.log_ratio), pair.case_id, pair.operation))
    kinds = sorted({pair.kind for pair in pairs})
    return Comparison(
        pairs=pairs,
        whole=Agreement.of(pairs),
        kinds={kind: Agreement.of([p for p in pairs if p.kind == kind]) for kind in kinds},
        only_first=len(sides[0]) - len(common),
        only_second=len(sides[1]) - len(common),
        notes=remarks,
    )


def untold_note(pairs: Sequence[Pair]) -> list[str]:
    """A note on pairs of single times, which can neither agree nor differ, if there are any."""
    untold = sum(pair.agreements is None for pair in pairs)
    if not untold:
        return []
    return [
        f"{untold} of {len(pairs)} are single times on both sides, which say nothing about their own "
        "errors: whether they differ is not known"
    ]
