"""What the `paper` form says of a published point before any level is fitted.

The form is linear in the alpha and beta of its links. So it is asked with beta alone and with alpha
alone, inside a node and between nodes: what comes out are the volumes at the published prices and the
start-ups of the very equations (oracle/strategies), and a calibration multiplies them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from calib.foundation.division import Division
from calib.foundation.errors import InputError, MissingParameter
from calib.oracle.costs.link import Link
from calib.oracle.model.spec import ModelSpec
from calib.oracle.paper.published import PublishedCosts
from calib.oracle.strategies import strategy_named
from calib.oracle.terms import by_phase
from calib.reports.replay.paper_form import Publication, links_of
from calib.reports.replay.published_tables import PublishedPoint, exact_link

FIVE = ("d", "f", "c", "df", "ds")
NO_ALPHA, NO_BETA = (0.0, 1.0), (1.0, 0.0)


@dataclass(frozen=True)
class PointShape:
    """A point as the equations see it. Seconds are at published prices, of the point's unit.

    `group_s`: compute of the samples of a group on one rank; `share`: 1/p2, the part of it that a
    rank has where all of it scales. `inside_s`, `between_s`: volumes over beta, inside a node and
    between nodes; `members`: ranks of the ring that grows with p; `steps`: start-ups between
    nodes, of which `startups_s` is the published time (None: none is published). `whole_s`: the
    whole form. Where there is no form of it, `why` says so, and times are per sample of a group:
    they only scale with b.
    """

    group_s: float
    share: float
    inside_s: float
    between_s: float
    members: int
    nodes: float
    steps: float
    startups_s: float | None
    whole_s: float
    strong: bool
    why: str = ""

    @property
    def scope(self) -> str:
        """Whether the ring that grows is inside a node or between nodes: another link, another level."""
        return "between nodes" if self.nodes > 1 else "inside a node"

    @property
    def doublings(self) -> float:
        """log2 of the nodes."""
        return math.log2(max(self.nodes, 1.0))

    def volume_s(self, endless: bool) -> float:
        """Bytes at published prices; `endless`: of a ring of so many ranks that (n-1)/n is 1."""
        if not endless or self.members < 2:
            return self.inside_s + self.between_s
        factor = self.members / (self.members - 1)
        if self.between_s == 0.0:  # all in one node: its ring is the one that grows
            return self.inside_s * (factor if self.scope == "inside a node" else 1.0)
        return self.inside_s + self.between_s * factor


class Shapes(Publication):
    """Makes PointShapes; without links, every byte costs one second."""

    def of(self, point: PublishedPoint) -> PointShape:
        """The shape of a point; an empirical one, with the reason, where there is no form of it."""
        found = self._form(point)
        return self._empirical(point, found) if isinstance(found, str) else found

    def _nodes(self, point: PublishedPoint) -> float:
        return max(1.0, point.p / self.ranks_per_node)

    def _empirical(self, point: PublishedPoint, why: str) -> PointShape:
        strong = point.b_means.startswith("global")
        # stages divide the work; those that share layers hardly do (s is near 1)
        whole = point.b / point.p if point.strategy == "p" else float(point.b)
        return PointShape(
            group_s=float(point.b),
            share=0.0,
            inside_s=0.0,
            between_s=float(point.b),
            members=1,
            nodes=self._nodes(point),
            steps=0.0,
            startups_s=None,
            whole_s=whole,
            strong=strong,
            why=why,
        )

    def _form(self, point: PublishedPoint) -> PointShape | str:
        divided = self.divided(point)
        if isinstance(divided, str):
            return divided
        try:
            return self._linear(point, *divided)
        except (InputError, MissingParameter) as error:
            return str(error)

    def _linear(self, point: PublishedPoint, model: ModelSpec, division: Division) -> PointShape:
        def ask(inside: tuple[float, float], between: tuple[float, float]) -> float:
            return self._seconds(point.model, model, division, inside, between)

        nothing = (0.0, 0.0)
        compute = ask(nothing, nothing)
        inside = ask(NO_ALPHA, nothing) - compute
        between = ask(nothing, NO_ALPHA) - compute
        startups = ask(nothing, NO_BETA) - compute
        steps = self._steps(point.model, model, division) - compute
        epoch = self.scale(point, division)
        group = self.seconds_per_sample[point.model] * division.batch / division.replicas
        hybrid = "+" in division.strategy
        return PointShape(
            group_s=group * epoch,
            share=1.0 / division.parts if division.parts > 1 else 1.0,
            inside_s=inside * epoch,
            between_s=between * epoch,
            members=division.replicas if hybrid else division.p,
            nodes=self._nodes(point),
            steps=steps * epoch,
            startups_s=startups * epoch if self.links else None,
            whole_s=(compute + (inside + between + startups if self.links else 0.0)) * epoch,
            strong=point.b_means.startswith("global"),
        )

    def _seconds(
        self,
        name: str,
        model: ModelSpec,
        division: Division,
        inside: tuple[float, float],
        between: tuple[float, float],
    ) -> float:
        """The form, with alpha and beta of links multiplied by these."""
        published = links_of(self.links, division.strategy, self.ranks_per_node, None)

        def link(span: int, operation: str) -> Link:
            alpha, beta = inside if span <= self.ranks_per_node else between
            if not self.links:
                return exact_link("a second per byte", alpha, beta)
            of = published(span, operation)
            return exact_link(of.level, alpha * of.alpha_s.value, beta * of.beta_s_per_byte.value)

        return self._asked(name, model, division, link)

    def _steps(self, name: str, model: ModelSpec, division: Division) -> float:
        def link(span: int, operation: str) -> Link:
            return exact_link("a second per step", float(span > self.ranks_per_node), 0.0)

        return self._asked(name, model, division, link)

    def _asked(
        self, name: str, model: ModelSpec, division: Division, link: Callable[[int, str], Link]
    ) -> float:
        costs = PublishedCosts(model, self.seconds_per_sample[name], link)
        terms = strategy_named(division.strategy).paper(model, division, costs)
        return math.fsum(cost.seconds for cost in by_phase(terms).values())
