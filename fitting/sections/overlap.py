"""Overlap as a record of the parameter file.

Rows of an overlap case (training/in_place/overlap.py; `library` is that of the exchange): "overlapped"
and "blocking" are whole iterations, one right after the other in each repetition; "backward" and
"exchange" are phases of the blocking one, and `others` the rest of it. Every repetition waits for the
last rank, so the exchange itself is that of the rank that waited least.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from calib.fitting.estimate import estimated, slowest_rank, together
from calib.fitting.estimators.overlap import OverlapLaw
from calib.fitting.launches import NO_OTHERS, Launches
from calib.fitting.parameters.memory import Overlap, OverlappedIteration
from calib.fitting.sections.memory import none_if_nan
from calib.foundation.execution import USUAL
from calib.foundation.layer_keys import iteration_key
from calib.foundation.records import Estimate
from calib.microbench.cases import BLOCKING, OVERLAPPED, InPlaceCase
from calib.microbench.records.samples import Samples

WITHOUT = {BLOCKING, "backward", "exchange"}


class PairedIteration(NamedTuple):
    """An overlapped iteration; `without` are seconds of (others, backward, exchange)."""

    without: tuple[float, float, float]
    seconds: float
    launch: int


def overlaps(
    samples: Samples,
    cases: Mapping[str, InPlaceCase] | None = None,
    seed: int = 0,
    among: Launches = NO_OTHERS,
) -> tuple[list[Overlap], list[str]]:
    """One Overlap for every (library, device, ranks) with overlapped iterations, and notes.

    `cases` are those of the rows by their id, `among` is how launches differ. A case that lacks
    iterations or phases without overlap is left out, with a note; so is one of another execution than
    the first: eta, a share, is taken for all.
    """
    rows: dict[str, dict[str, Samples]] = defaultdict(dict)
    in_place = samples.where(kind="in_place")
    for (case, operation), of in in_place.groups("case_id", "operation").items():
        rows[case][operation] = of
    overlapped = in_place.where(operation=OVERLAPPED)
    execution = overlapped.first.dtype if len(overlapped) else USUAL
    found: dict[tuple[str, str, int], dict[str, list[PairedIteration]]] = defaultdict(dict)
    whole: dict[tuple[str, str, int], list[OverlappedIteration]] = defaultdict(list)
    notes = []
    for case_id, by_operation in sorted(rows.items()):
        if OVERLAPPED not in by_operation:
            continue
        first = by_operation[OVERLAPPED].first
        model = f"{first.key} x {first.batch}"
        if first.dtype != execution:
            notes.append(f"overlap of {model} in {first.dtype}: left out, as it is of {execution}")
            continue
        if not by_operation.keys() >= WITHOUT:
            notes.append(f"overlap of {model} on {first.ranks} ranks: not measured without")
            continue
        where = first.library, first.device, first.ranks
        found[where].setdefault(model, []).extend(_iterations(by_operation))
        if (case := (cases or {}).get(case_id)) is not None:
            key = iteration_key(case.layer_keys, case.tensors_key, case.optimizer)
            seconds = together(by_operation[OVERLAPPED], among)
            whole[where].append(OverlappedIteration(key=key, model=case.model, seconds=seconds))
    laws = [_law(*where, models, whole[where], seed) for where, models in sorted(found.items())]
    return laws, notes


def _iterations(rows: Mapping[str, Samples]) -> list[PairedIteration]:
    """Every overlapped iteration, scaled as if its blocking twin took the median time.

    So a disturbance of both iterations of a repetition cancels out.
    """
    whole = together(rows[BLOCKING]).value
    backward = slowest_rank(rows["backward"]).value
    waited_least = rows["exchange"].rank_seconds.min(axis=1)
    exchange = estimated(rows["exchange"], waited_least).value
    others = max(whole - backward - exchange, 0.0)
    beside = dict(_repetitions(rows[BLOCKING]))
    return [
        PairedIteration((others, backward, exchange), whole * seconds / without, at[0])
        for at, seconds in _repetitions(rows[OVERLAPPED])
        if (without := beside.get(at))
    ]


def _repetitions(rows: Samples) -> Iterator[tuple[tuple[int, int], float]]:
    """((launch, repetition), seconds) of each row."""
    at = zip(rows["launch"].tolist(), rows["repetition"].tolist(), strict=True)
    return zip(at, rows["seconds"].tolist(), strict=True)


def _law(
    library: str,
    device: str,
    ranks: int,
    models: Mapping[str, Sequence[PairedIteration]],
    iterations: list[OverlappedIteration],
    seed: int,
) -> Overlap:
    every = [iteration for of in models.values() for iteration in of]
    law = OverlapLaw(seed=seed).fit(
        [iteration.without for iteration in every],
        [iteration.seconds for iteration in every],
        groups=[iteration.launch for iteration in every],
    )
    return Overlap(
        library=library,
        device=device,
        ranks=ranks,
        eta=Estimate(value=law.eta_, low=law.eta_low_, high=law.eta_high_),
        slowdown=Estimate(value=law.slowdown_, low=law.slowdown_low_, high=law.slowdown_high_),
        error=law.error_,
        held_out_error=none_if_nan(law.held_out_error_),
        error_factor=law.error_factor_,
        models=list(models),
        iterations=iterations,
        n=len(every),
        residual_quantiles=law.residual_quantiles_.tolist(),
    )
