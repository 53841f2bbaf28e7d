"""Laws of a collective for every layout, from its direct laws on some.

Each layout is predicted from the next smaller one at all its sizes, under each choice of algorithms that
the library has. What the errors say: which choice holds around which size; how many links between nodes
r ranks use; how far another layout is off; and which layout is no draw of the same machine.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from calib.fitting.parameters.algorithms import ALGORITHMS, BETWEEN, GroupShape, Links, choices_of
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.rules import rules_of
from calib.fitting.parameters.scaling import (
    RuleChange,
    RuledSweep,
    log_seconds,
    rule_change,
    shape_of_fit,
    swept,
)
from calib.fitting.parameters.structural import (
    ANY_LINKS,
    DEVIATION,
    DOUBLING_DEVIATION,
    UNCHECKED,
    ScaledLaw,
    ScaledLayout,
    StructuralBand,
    StructuralFit,
)
from calib.foundation.arrays import Floats
from calib.foundation.records import Estimate

# the priors of the deviations are DEVIATION and DOUBLING_DEVIATION
PRIOR_ERRORS = 8.0  # independent errors that the priors count as
ALIKE_SIZES = 3.0  # sizes next to one another, whose errors count as one
NEIGHBOURHOOD = 1.0  # of a size: standard deviation of ln m
EARLIER = 0.5  # weight of an error between smaller layouts beside one of the largest
INDIFFERENT = 0.05  # mean errors that differ by this much leave two choices e : 1
OTHER_CHOICE = 0.5  # weight beforehand of a choice that is not the library's first
MOST_BANDS = 48  # of a denser sweep, sizes evenly by decades are taken
# odds of each rule beforehand, and the mean error of a law that is right
RULE_ODDS, RULE_ERROR = 0.5, 0.15
OBEYED = 0.5  # of a library with a rule: the share of operations that go by it
MOST_GAIN = 20.0  # of one operation
LEAST_SHARE = 0.01  # of a choice or a rule that is kept
EXPONENTS = np.linspace(0.0, 1.0, 21)
# different numbers of nodes that show whether nodes share links, and how many times as many nodes as it
# takes to fill them: one number beyond may be an outlying run
FEWEST_NODES, SHARED_BY = 4, 4
SHARING_SHOWS = 0.75  # mean error where nodes share links, beside that where they do not
NOT_SURE = 0.02  # mean errors under which a links exponent is as good as the best
OUTLYING_DEVIATION = 0.6
OUTLYING_SHARE = 0.05  # of layouts, beforehand
MOST_OUTLYING = 3
LEAST_OUTLYING = 1.35  # a smaller factor is not named


class Error(NamedTuple):
    """ln(measured / predicted) of one size of a layout, predicted from another by each choice.

    `rules`: rule -> what changes where the library goes by it.
    """

    nbytes: float
    shape: GroupShape
    of: GroupShape
    logs: Floats
    rules: dict[str, RuleChange]


def structural_fits(
    fits: Sequence[CollectiveFit], links: int = 0, shared_links: float = 0.0
) -> list[StructuralFit]:
    """A structural law of every operation, library, device and level that has a model, sorted.

    Parameters
    ----------
    fits
        Direct laws, sorted.
    links
        Links of a node to others, as the machine declares them; 0 unknown.
    shared_links
        Those that all nodes have together, in links of a node; 0: no such.
    """
    groups: dict[tuple[str, str, str], dict[str, list[CollectiveFit]]] = {}
    for fit in fits:
        if fit.operation in ALGORITHMS:
            of = groups.setdefault((fit.library, fit.device, fit.level), defaultdict(list))
            of[fit.operation].append(fit)
    laws = []
    for group in groups.values():
        every = [_Layouts(mine) for mine in group.values()]
        exponent = links_exponent(every, links, shared_links)
        shared = shared_links or shared_by_nodes(every, exponent.value)
        if shared != shared_links:
            exponent = links_exponent(every, links, shared)
        found = Links(exponent.value, shared)
        shares = rule_shares([each.rule_gains(each.errors(found)) for each in every])
        laws += [
            each.law(exponent, shared, rules) for each, rules in zip(every, shares, strict=True)
        ]
    return sorted(laws, key=lambda law: (law.operation, law.library, law.device, law.level))


def links_exponent(every: Sequence[_Layouts], links: int = 0, shared: float = 0.0) -> Estimate:
    """How the links between nodes that r ranks use grow with r, from layouts that differ in r.

    `links` a node has at most: as many as ranks make it 1, one makes it 0. `shared`: see Links.
    """
    told = [each for each in every if each.ranks_per_node_differ]
    if not told:
        most = max(shape.ranks_per_node for each in every for shape in each.fits)
        if links and most > 1:
            return Estimate.exactly(min(math.log(links) / math.log(most), 1.0))
        return ANY_LINKS
    means = np.array([mean_error(told, Links(exponent, shared)) for exponent in EXPONENTS.tolist()])
    good = EXPONENTS[means <= means.min() + NOT_SURE]
    return Estimate.around(float(EXPONENTS[means.argmin()]), float(good.min()), float(good.max()))


def shared_by_nodes(every: Sequence[_Layouts], exponent: float) -> float:
    """How many links all nodes have together, from all operations; 0: nothing shows that they share.

    Only where that explains the times on more nodes much better than each operation by itself.
    """
    if max(len({shape.nodes for shape in each.fits}) for each in every) < FEWEST_NODES:
        return 0.0
    most = max(shape.nodes for each in every for shape in each.fits)
    tried = [2.0**power for power in range(most.bit_length()) if SHARED_BY * 2**power <= most]
    means = {shared: mean_error(every, Links(exponent, shared)) for shared in tried}
    # of as good ones, the most: where all measured nodes share, fewer links say the same
    best = min(means, key=lambda shared: (round(means[shared], 6), -shared), default=0.0)
    if not best or means[best] > mean_error(every, Links(exponent)) * SHARING_SHOWS:
        return 0.0
    return best


def mean_error(every: Sequence[_Layouts], links: Links) -> float:
    """Of the choice that is nearest to the time, size by size."""
    errors = [error for each in every for error in each.errors(links)]
    return float(np.mean([np.abs(error.logs).min() for error in errors])) if errors else 0.0


def rule_shares(gains: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """How likely each operation is taken by each rule, from ln likelihood ratios of all operations.

    A library has one rule or none; where it has one, an operation may have been told otherwise. A rule
    that the times of no operation speak for is none.
    """
    names = sorted({name for each in gains for name, gain in each.items() if gain > 0})
    odds = {
        name: RULE_ODDS
        * math.prod(1.0 + OBEYED * math.expm1(each[name]) for each in gains if name in each)
        for name in names
    }
    total = 1.0 + math.fsum(odds.values())
    shares = []
    for each in gains:
        found = {}
        for name in set(odds).intersection(each):
            obeyed = OBEYED * math.exp(each[name])
            share = odds[name] / total * obeyed / (obeyed + 1.0 - OBEYED)
            if share >= LEAST_SHARE:
                found[name] = round(share, 3)
        shares.append(dict(sorted(found.items())))
    return shares


class _Layouts:
    """The direct laws of one operation, by layout, smallest first."""

    def __init__(self, fits: Sequence[CollectiveFit]) -> None:
        by_shape = {shape_of_fit(fit): fit for fit in fits}
        self.fits = {shape: by_shape[shape] for shape in sorted(by_shape)}
        self.first = fits[0]
        self.operation = self.first.operation
        self.choices = choices_of(self.operation, self.first.library)
        self.rules = rules_of(self.operation, self.first.library)

    @property
    def ranks_per_node_differ(self) -> bool:
        return len({shape.ranks_per_node for shape in self.fits if shape.nodes > 1}) > 1

    def errors(self, links: Links, outlying: Sequence[GroupShape] = ()) -> list[Error]:
        """Of every layout but the smallest, predicted from the nearest smaller one."""
        shapes = [shape for shape in self.fits if shape not in outlying]
        found = []
        for index, shape in enumerate(shapes[1:], 1):
            of = min(shapes[:index], key=lambda each: (each.doublings(shape), -each.ranks))
            fit, measured = self.fits[of], self.fits[shape]
            sweeps = {
                name: RuledSweep.by(rule, fit, of, self.operation, links)
                for name, rule in self.rules.items()
            }
            for m in sizes_of(measured):
                measured_log = math.log(swept(measured, m))
                logs = [
                    measured_log - log_seconds(self.operation, choice, links, fit, of, shape, m)
                    for choice in self.choices
                ]
                rules = {
                    name: rule_change(rule, sweeps[name], shape, m)
                    for name, rule in self.rules.items()
                }
                found.append(Error(m, shape, of, np.array(logs), rules))
        return found

    def rule_gains(self, errors: Sequence[Error]) -> dict[str, float]:
        """Rule -> ln of how much likelier the times are where the library goes by it.

        Errors are taken as Laplace distributed.
        """
        gains = dict.fromkeys(self.rules, 0.0)
        for error in errors:
            free = float(self.weights(errors, error.nbytes) @ error.logs)
            for name, change in error.rules.items():
                if change.logarithm:
                    left = abs(free - change.logarithm)
                    gains[name] += _log_laplace(left, change.deviation) - _log_laplace(free)
        return {name: min(gain / ALIKE_SIZES, MOST_GAIN) for name, gain in gains.items()}

    def law(self, exponent: Estimate, shared: float, rules: Mapping[str, float]) -> StructuralFit:
        """The law of all layouts. `rules`: how likely the library goes by each."""
        links = Links(exponent.value, shared)

        def draft(outlying: Sequence[GroupShape] = ()) -> StructuralFit:
            errors = self.errors(links, outlying)
            own = [self._log(errors, error, rules) for error in errors]
            return self.draft(exponent, shared, rules, errors, own, outlying)

        every = draft()
        errors = self.errors(links)
        own = [self._log(errors, error, rules) for error in errors]
        outlying = self.outlying(every, self._usual_scale(errors, own))
        return draft(outlying) if outlying else every

    def _log(self, errors: Sequence[Error], error: Error, rules: Mapping[str, float]) -> float:
        """ln(measured / predicted) of one of the errors."""
        free = float(self.weights(errors, error.nbytes) @ error.logs)
        return free - math.fsum(
            share * error.rules[name].logarithm for name, share in rules.items()
        )

    def draft(
        self,
        exponent: Estimate,
        shared: float,
        rules: Mapping[str, float],
        errors: Sequence[Error],
        own: Sequence[float],
        outlying: Sequence[GroupShape],
    ) -> StructuralFit:
        """The law, with the outlying layouts named. `own`: its logarithms of the errors."""
        last = [shape for shape in self.fits if shape not in outlying][-1]
        sizes = sizes_of(self.fits[last])
        weights = [self.weights(errors, m) for m in sizes]
        scale, held_out = UNCHECKED, None
        if errors:
            scale = math.sqrt(_scale(errors, own))
            largest = [log for error, log in zip(errors, own, strict=True) if error.shape == last]
            held_out = float(np.mean(np.abs(np.expm1(-np.array(largest)))))
        law = StructuralFit(
            operation=self.operation,
            library=self.first.library,
            device=self.first.device,
            level=self.first.level,
            layouts=[
                ScaledLayout(**shape._asdict(), outlying=shape in outlying) for shape in self.fits
            ],
            links_exponent=exponent,
            shared_links=shared,
            bands=list(self._bands(sizes, weights)),
            rules=dict(rules),
            deviation=scale * DEVIATION,
            doubling_deviation=scale * DOUBLING_DEVIATION,
            held_out_error=held_out,
        )
        layouts = [
            each.model_copy(update={"factor": self._factor(law, each.shape)})
            for each in law.layouts
        ]
        return law.model_copy(update={"layouts": layouts})

    def weights(self, errors: Sequence[Error], nbytes: float) -> Floats:
        """Weights [choices] around one size, by the errors there; the first choice's without any."""
        prior = np.array([1.0, *[OTHER_CHOICE] * (len(self.choices) - 1)])
        if len(prior) == 1 or not errors:
            return _first(len(prior))
        last = errors[-1].shape
        near = _near(errors, nbytes) * np.array(
            [1.0 if error.shape == last else EARLIER for error in errors]
        )
        if near.sum() < 1e-9:
            return _first(len(prior))
        mean: Floats = near @ np.abs([error.logs for error in errors]) / near.sum()
        weights: Floats = prior * np.exp(-(mean - mean.min()) / INDIFFERENT)
        weights /= weights.sum()
        return weights

    def _bands(self, sizes: Sequence[float], weights: Sequence[Floats]) -> Iterator[StructuralBand]:
        """One band for each size whose weights are not those of the size before."""
        before: dict[str, float] = {}
        for nbytes, of in zip(sizes, weights, strict=True):
            shares = {
                BETWEEN.join(choice): round(weight, 3)
                for choice, weight in zip(self.choices, of.tolist(), strict=True)
                if weight >= LEAST_SHARE
            }
            total = math.fsum(shares.values())
            shares = {name: share / total for name, share in shares.items()}
            if shares != before or nbytes == sizes[-1]:
                yield StructuralBand(nbytes=nbytes, weights=shares)
            before = shares

    def _usual_scale(self, errors: Sequence[Error], own: Sequence[float]) -> float:
        """How much larger the deviations of the best third of neighbours are than the priors say.

        One outlying layout between others spoils two of three pairs.
        """
        squares: dict[GroupShape, list[float]] = defaultdict(list)
        for error, log in zip(errors, own, strict=True):
            squares[error.shape].append(log**2 / _prior_variance(error))
        means = sorted(float(np.mean(each)) for each in squares.values())
        return math.sqrt(max(1.0, means[(len(means) - 1) // 3])) if means else 1.0

    def outlying(self, law: StructuralFit, scale: float) -> list[GroupShape]:
        """The layouts that are likelier no draw of the same machine than a drift of this size.

        Every set of at most a third of the layouts is tried, with what each size of the largest
        layout would be, predicted from every layout: normal around one value, correlated as in kriging
        with the priors times `scale`, the outlying ones with a wide error of their own.
        """
        shapes = list(self.fits)
        if len(shapes) < 3:
            return []
        logs = self._said(law, shapes)
        usual = law.model_copy(
            update={
                "deviation": scale * DEVIATION,
                "doubling_deviation": scale * DOUBLING_DEVIATION,
            }
        )
        apart = np.array([[usual.variance(one, other) for other in shapes] for one in shapes])
        covariance = apart.max() / 2 + 1.0 - apart / 2
        found = []
        for count in range(min(len(shapes) // 3, MOST_OUTLYING) + 1):
            for chosen in combinations(range(len(shapes)), count):
                own = covariance.copy()
                for index in chosen:
                    own[index, index] += OUTLYING_DEVIATION**2
                likelihood = len(logs) / ALIKE_SIZES * _log_likelihood(logs, own)
                found.append((likelihood + count * math.log(OUTLYING_SHARE), chosen))
        _, chosen = max(found)
        outlying = [shapes[index] for index in chosen]
        return [
            shape
            for shape in outlying
            # nothing disturbs a machine so that it is faster: that is another algorithm
            if (self._factor(law, shape, outlying) or 1.0) > LEAST_OUTLYING
        ]

    def _said(self, law: StructuralFit, shapes: Sequence[GroupShape]) -> Floats:
        """ln seconds [sizes, layouts] of the largest layout, as each layout says."""
        largest = shapes[-1]
        return np.array(
            [
                [
                    math.log(_expected(law, largest, {shape: self.fits[shape]}, m))
                    for shape in shapes
                ]
                for m in sizes_of(self.fits[largest])
            ]
        )

    def _factor(
        self, law: StructuralFit, shape: GroupShape, outlying: Sequence[GroupShape] = ()
    ) -> float | None:
        """Median of the times on one layout / what the nearest other ones say, of the larger sizes."""
        others = [
            each.shape
            for each in law.layouts
            if each.shape not in (shape, *outlying) and not each.outlying
        ]
        if not others:
            return None
        near = min(others, key=shape.doublings)
        sizes = sizes_of(self.fits[shape])
        ratios = [
            swept(self.fits[shape], m) / _expected(law, shape, {near: self.fits[near]}, m)
            for m in sizes[len(sizes) // 2 :]
        ]
        return float(np.median(ratios))


def _expected(
    law: StructuralFit, shape: GroupShape, fits: dict[GroupShape, CollectiveFit], nbytes: float
) -> float:
    if shape in fits:
        return swept(fits[shape], nbytes)
    return ScaledLaw(law, shape, fits).expected(nbytes).seconds


def _first(count: int) -> Floats:
    """All weight on the first of `count`."""
    weights = np.zeros(count)
    weights[0] = 1.0
    return weights


def _near(errors: Sequence[Error], nbytes: float) -> Floats:
    """Weights of errors by how near their sizes are to one."""
    logs = np.array([math.log(error.nbytes / nbytes) for error in errors])
    near: Floats = np.exp(-0.5 * (logs / NEIGHBOURHOOD) ** 2)
    return near


def _prior_variance(error: Error) -> float:
    return DEVIATION**2 + DOUBLING_DEVIATION**2 * error.shape.doublings(error.of)


def _scale(errors: Sequence[Error], own: Sequence[float]) -> float:
    """How much larger squared errors are than the priors say; these count as PRIOR_ERRORS of them."""
    squares = [log**2 / _prior_variance(error) for error, log in zip(errors, own, strict=True)]
    count = len(squares) / ALIKE_SIZES
    return (PRIOR_ERRORS + math.fsum(squares) / ALIKE_SIZES) / (PRIOR_ERRORS + count)


def _log_laplace(error: float, deviation: float = 0.0) -> float:
    """ln of how likely an error is, but for a constant, where `deviation` adds to the usual one."""
    scale = math.hypot(RULE_ERROR, deviation)
    return -abs(error) / scale - math.log(scale)


def _log_likelihood(logs: Floats, covariance: Floats) -> float:
    """Mean over sizes of the log likelihood of logs [sizes, layouts], of one unknown mean each."""
    inverse = np.linalg.inv(covariance)
    ones = np.ones(logs.shape[1])
    weight = ones @ inverse @ ones
    residual = logs - ((logs @ inverse @ ones) / weight)[:, None]
    squares = np.einsum("ij,jk,ik->i", residual, inverse, residual)
    return float(
        np.mean(-0.5 * squares) - 0.5 * np.linalg.slogdet(covariance)[1] - 0.5 * math.log(weight)
    )


def sizes_of(fit: CollectiveFit) -> list[float]:
    """At most about MOST_BANDS of the measured sizes over 0, evenly by decades, the ends kept."""
    sizes = [float(point.nbytes) for point in fit.points if point.nbytes > 0]
    if len(sizes) <= MOST_BANDS:
        return sizes
    wanted = np.geomspace(sizes[0], sizes[-1], MOST_BANDS)
    places = np.unique(np.searchsorted(sizes, wanted * (1 - 1e-9)))
    return [sizes[place] for place in places.tolist()]
