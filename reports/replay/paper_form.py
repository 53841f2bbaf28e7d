"""Published runs again: the `paper` form on published parameters, beside the authors' projections.

Calibrates nothing: it checks that the equations are those that the authors used, or says by how much
they are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from calib.foundation.division import Division
from calib.foundation.errors import InputError, MissingParameter
from calib.oracle.cost import total
from calib.oracle.costs.link import Link
from calib.oracle.layout.shards import fitted, why_impossible
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.published import PublishedCosts
from calib.oracle.strategies import strategy_named
from calib.oracle.terms import by_phase
from calib.reports.replay.causes import ReplayCause, cause_of
from calib.reports.replay.published_tables import (
    STRATEGY_OF,
    LinkRow,
    PublishedPoint,
    exact_link,
    link_of,
)

FIGURE, CODE, TEXT = "tech report Fig 2", "parallel_analysis.py", "tech report V.A text"
ANYWHERE = ((CODE, "any ring collective"), (CODE, "any"))
INSIDE = ((TEXT, "GPU-GPU over NVLink startup"), *ANYWHERE)
# strategy -> (operation, or "" for all; inside a node?) -> rows of the table, the first that has p
USED: dict[str, dict[tuple[str, bool], tuple[tuple[str, str], ...]]] = {
    "data": {("", True): ANYWHERE, ("", False): ((FIGURE, "d"), *ANYWHERE)},
    "filter": {("", True): INSIDE, ("", False): ((FIGURE, "f,c ResNet-152"), *ANYWHERE)},
    "data+filter": {
        ("", True): INSIDE,
        ("", False): ((CODE, "df inter-group Allreduce"), *ANYWHERE),
    },
    "data+spatial": {
        ("p2p", True): ((CODE, "ds halo"), (CODE, "halo p2p / Allgatherv")),
        ("allgather", True): ((CODE, "ds Allgather/Scatter"), (CODE, "halo p2p / Allgatherv")),
        ("", True): ANYWHERE,
        ("", False): ((CODE, "ds leader Allreduce"), *ANYWHERE),
    },
}
# seconds below which a projection is no time
SHORTEST = 1e-12
USED["channel"] = USED["filter"]
USED["spatial"] = USED["data+spatial"]
USED["pipeline"] = {("", True): INSIDE, ("", False): ANYWHERE}


@dataclass(frozen=True)
class Replayed:
    """One published point and what our equations give; seconds in the point's unit."""

    point: PublishedPoint
    strategy: str
    batch: int
    compute: float
    communication: float
    cause: ReplayCause | None = None

    @property
    def seconds(self) -> float:
        """Compute and communication."""
        return self.compute + self.communication

    @property
    def difference(self) -> float | None:
        """Ours / the authors' projection - 1; None where they state none."""
        theirs = self.point.projected.get("total", 0.0)
        return self.seconds / theirs - 1.0 if theirs > SHORTEST else None


@dataclass(frozen=True)
class Publication:
    """What a replay needs beside the points. `models` by the publication's names."""

    models: Callable[[str], ModelSpec]
    seconds_per_sample: Mapping[str, float]
    links: Sequence[LinkRow] = ()
    ranks_per_node: int = 4
    segments: int = 4
    samples: int = 1_281_167

    def divided(self, point: PublishedPoint) -> tuple[ModelSpec, Division] | str:
        """The model and the division of a point, or why it has no equations."""
        strategy = STRATEGY_OF.get(point.strategy)
        if strategy is None:
            return f"no equations of strategy {point.strategy}, only of {', '.join(STRATEGY_OF)}"
        if point.model not in self.seconds_per_sample:
            return f"no time of {point.model} on one GPU"
        try:
            model = self.models(point.model)
        except InputError as error:
            return str(error).partition(";")[0]  # without the list of models
        batch = point.batch(self.ranks_per_node)
        inner = min(self.ranks_per_node, point.p) if "+" in strategy else 1
        try:
            division = fitted(model, Division(strategy, point.p, batch, inner, self.segments))
        except InputError as error:
            return str(error)
        reasons = why_impossible(model, division)
        return reasons[0] if reasons else (model, division)

    def scale(self, point: PublishedPoint, division: Division) -> float:
        """Iterations in a point's unit."""
        return self.samples / division.batch if point.unit == "s/epoch" else 1.0


class PaperFormReplay(Publication):
    """Published points through our equations."""

    def run(
        self, points: Sequence[PublishedPoint]
    ) -> tuple[list[Replayed], list[tuple[PublishedPoint, str]]]:
        """The points that could be replayed, and the others with the reason."""
        done, left_out = [], []
        for point in points:
            found = self._one(point)
            if isinstance(found, str):
                left_out.append((point, found))
            else:
                done.append(found)
        return done, left_out

    def _one(self, point: PublishedPoint) -> Replayed | str:
        divided = self.divided(point)
        if isinstance(divided, str):
            return divided
        model, division = divided

        def with_p2p(alpha_s: float, beta_s_per_byte: float) -> float:
            return self._seconds(point, model, division, (alpha_s, beta_s_per_byte))[1]

        try:
            seconds = self._seconds(point, model, division)
            cause = cause_of(point, model, division.batch, self.ranks_per_node, with_p2p)
        except MissingParameter as error:
            return str(error)
        compute, communication = (self.scale(point, division) * each for each in seconds)
        return Replayed(point, division.strategy, division.batch, compute, communication, cause)

    def _seconds(
        self,
        point: PublishedPoint,
        model: ModelSpec,
        division: Division,
        p2p: tuple[float, float] | None = None,
    ) -> tuple[float, float]:
        """Compute and communication of one iteration; `p2p` is another alpha and beta of messages."""
        links = links_of(self.links, division.strategy, self.ranks_per_node, p2p)
        costs = PublishedCosts(model, self.seconds_per_sample[point.model], links)
        phases = by_phase(strategy_named(division.strategy).paper(model, division, costs))
        compute = total(phases[p] for p in ("forward", "backward", "update")).seconds
        return compute, total(phases.values()).seconds - compute


def links_of(
    rows: Sequence[LinkRow], strategy: str, ranks_per_node: int, p2p: tuple[float, float] | None
) -> Callable[[int, str], Link]:
    """The Link of (span, operation) that the authors used; `p2p` is another alpha and beta of messages.

    It raises MissingParameter where the table has none.
    """
    rules = USED[strategy]

    def link(span: int, operation: str) -> Link:
        if operation == "p2p" and p2p is not None:
            return exact_link("another alpha and beta", *p2p)
        inside = span <= ranks_per_node
        wanted = rules.get((operation, inside)) or rules.get(("", inside)) or ANYWHERE
        return link_of(rows, wanted, span)

    return link
