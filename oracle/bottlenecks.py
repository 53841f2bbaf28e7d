"""Limitations (L) and bottlenecks (B) of ParaDL's Table 6 that apply to a prediction.

Shares of time come from the causes of the terms (oracle/terms.py). The table's columns are kept, with
two additions for spatial strategies: the allgather at the end of the split is layer-wise
communication, and every rank repeats the layers after it (both are missing in the paper's Table 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from calib.foundation.division import STRATEGIES, Division, StrategyTraits
from calib.foundation.words import bytes_words
from calib.oracle.cost import Cost
from calib.oracle.projection import Bottleneck, Limit
from calib.oracle.sources import CONTENTION
from calib.oracle.terms import Term, TermCause

# a smaller share of the time, or of a rank's naive bytes, is not reported
MATTERS = 0.01
# on a fuller device the allocator waits for free memory (ParaDL, section 5.3.2)
NEARLY_FULL = 0.9
# words that notes on contention contain (oracle/costs/contention.py)
WORDS = ("contention", "flows", "groups at once")


def _named(is_one: Callable[[StrategyTraits], bool]) -> tuple[str, ...]:
    return tuple(name for name, traits in STRATEGIES.items() if is_one(traits))


PARALLEL = _named(lambda of: of.parallel)
SPATIAL = _named(lambda of: of.cuts == "image")
STAGED = _named(lambda of: of.stages)
SHARDED = _named(lambda of: of.shards)
SHARED = _named(lambda of: of.cuts in ("filters", "channels", "regions", "tokens"))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a prediction is judged by; `room` is the share of the device's memory, None if unknown."""

    division: Division
    terms: Sequence[Term]
    seconds: float
    parts: Mapping[str, int]
    limit: Limit
    room: float | None
    by_cause: Mapping[TermCause, float]

    def share(self, seconds: float) -> float:
        """The share of the iteration's time."""
        return seconds / self.seconds if self.seconds > 0 else 0.0


# (share of the time or None, why); None if the row does not apply or matter
Answer = tuple[float | None, str] | None


@dataclass(frozen=True)
class Table6Row:
    """One row of Table 6."""

    name: str
    kind: Literal["L", "B"]
    strategies: tuple[str, ...]
    judge: Callable[[Evidence], Answer]


def bottlenecks(
    division: Division,
    terms: Sequence[Term],
    whole: Cost,
    parts: Mapping[str, int],
    limit: Limit,
    room: float | None,
) -> list[Bottleneck]:
    """The rows that apply and matter: those of time by share, largest first, then the others.

    `parts` are a rank's naive bytes; `room` is the peak over the device's memory (room_used in
    oracle/memory/peak.py).
    """
    by_cause: dict[TermCause, float] = {}
    for term in terms:  # hidden time is negative
        by_cause[term.cause] = by_cause.get(term.cause, 0.0) + term.cost.seconds
    found = Evidence(division, terms, whole.seconds, parts, limit, room, by_cause)
    answers = [(row, row.judge(found)) for row in TABLE if division.strategy in row.strategies]
    applying = [
        Bottleneck(name=row.name, kind=row.kind, share=answer[0], why=answer[1])
        for row, answer in answers
        if answer is not None
    ]
    return sorted(applying, key=lambda b: -1.0 if b.share is None else b.share, reverse=True)


def _of_time(cause: TermCause, why: str) -> Callable[[Evidence], Answer]:
    """A judge of one cause's share of the time."""

    def judge(found: Evidence) -> Answer:
        share = found.share(found.by_cause.get(cause, 0.0))
        return (share, why) if share >= MATTERS else None

    return judge


def _gradient_exchange(found: Evidence) -> Answer:
    # the rest of the packing is of halos and shards
    pack = sum(t.cost.seconds for t in found.terms if t.cause == "pack" and "gradients" in t.what)
    exchange = found.by_cause.get("gradient exchange", 0.0)
    share = found.share(exchange + pack)
    if share < MATTERS:
        return None
    why = "gradients are summed over the ranks that hold the same weights"
    part = pack / (exchange + pack)
    return share, why + (f"; {part:.0%} of it is packing and unpacking" if part >= MATTERS else "")


def _layerwise(found: Evidence) -> Answer:
    why = "ranks that share layers join or sum their outputs and gradients"
    if found.division.shards:
        why = "every rank gathers all weights, and their gradients are reduced to shards"
    return _of_time("layer-wise", why)(found)


def _congestion(found: Evidence) -> Answer:
    """Terms with phi, which multiplies beta alone: the share is an upper bound."""
    added, most, whys = 0.0, 1.0, []
    for term in found.terms:
        phi = term.values.get("phi", "")
        if not isinstance(phi, str):
            added += term.cost.seconds * (1 - 1 / phi)
            most = max(most, phi)
        elif term.cost.seconds >= MATTERS * found.seconds:
            whys += _about_contention(term)
    share = found.share(added)
    if share >= MATTERS:
        return share, f"up to {most:.3g} flows share a link (phi), which adds at most this share"
    return (None, whys[0]) if whys else None


def _about_contention(term: Term) -> list[str]:
    """The notes on contention behind a term; empty if it has none."""
    if not any([source == CONTENTION and up > 0 for source, _, up in term.cost.errors]):
        return []
    said = [note for note in term.cost.notes if any(word in note for word in WORDS)]
    return said or [f"groups at once share links or memory: phi is in the time of {term.what}"]


def _memory_redundancy(found: Evidence) -> Answer:
    """Bytes of a rank that it could share with others."""
    division, parts = found.division, found.parts
    weights = parts["weights"] + parts["gradients"]
    what = "weights and gradients"
    if not division.sharded_optimizer:
        weights += parts["optimizer"]
        what = "weights, gradients and optimizer state" if parts["optimizer"] else what
    ranks = division.p if division.traits.replicated else division.replicas
    ranks = 1 if division.shards else ranks
    shared = division.traits.cuts in ("filters", "channels")
    held = [
        (what, weights, ranks),
        ("activations", parts["activations"], division.parts if shared else 1),
    ]
    wasted = [
        f"{bytes_words(nbytes)} of {name} on every one of {ranks} ranks"
        for name, nbytes, ranks in held
        if nbytes * (1 - 1 / ranks) >= MATTERS * max(1, sum(parts.values()))
    ]
    if division.traits.stages and division.p > 1:
        kept = bytes_words(parts["activations"])
        wasted = [f"activations of all segments in flight are kept for their backward: {kept}"]
    return (None, "; ".join(wasted)) if wasted else None


def _memory_stalls(found: Evidence) -> Answer:
    if found.room is None or found.room <= NEARLY_FULL:
        return None
    return None, f"{found.room:.0%} of the device's memory: the allocator has to wait or fails"


def _balance(found: Evidence) -> Answer:
    share = found.share(found.by_cause.get("bubble", 0.0))
    if share < MATTERS:
        return None
    why = "stages wait for others while the pipeline fills and drains"
    ratios = (term.values.get("max/mean stage") for term in found.terms)
    uneven = max((x for x in ratios if isinstance(x, float)), default=1.0)
    more = f"; the slowest stage takes {uneven:.3g} times the mean" if uneven > 1 + MATTERS else ""
    return share, why + more


def _number_of_ranks(found: Evidence) -> Answer:
    most = found.limit.ranks
    if most is None or 2 * found.division.p <= most:
        return None
    return None, f"twice p = {found.division.p} is over the limit of {most}: {found.limit.why}"


TABLE = (
    Table6Row(
        "gradient exchange",
        "L",
        _named(lambda of: (of.replicas and not of.shards) or of.replicated),
        _gradient_exchange,
    ),
    Table6Row("layer-wise communication", "L", (*SHARED, *SPATIAL, *SHARDED), _layerwise),
    Table6Row(
        "peer-to-peer communication",
        "B",
        (*STAGED, *SPATIAL),
        _of_time("p2p", "halos, or activations between stages, go from rank to rank"),
    ),
    Table6Row("network congestion", "B", PARALLEL, _congestion),
    Table6Row("memory redundancy", "B", PARALLEL, _memory_redundancy),
    Table6Row("memory stalls", "B", tuple(STRATEGIES), _memory_stalls),
    Table6Row(
        "weight update",
        "L",
        tuple(STRATEGIES),
        _of_time("update", "the optimizer's pass over the weights of a rank"),
    ),
    Table6Row("workload balancing", "L", STAGED, _balance),
    Table6Row(
        "computation redundancy",
        "B",
        (*SHARED, *SPATIAL),
        _of_time(
            "redundant", "every rank computes layers that are not split, or cuts and joins tensors"
        ),
    ),
    Table6Row("number of ranks", "L", PARALLEL, _number_of_ranks),
)
