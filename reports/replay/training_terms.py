"""What the time of a whole training is made of, as far as a few measured ones tell.

    time(n) = start-up + epochs [end of an epoch + validation(n)] + iterations(n) [compute + k X(n)]

X is the exchange of an iteration in a loop, by the logs of allreduce, and k how much longer it takes in
training. Every term has a prior and is at least 0. Draws of all of them are weighed by how well they
explain the known times (importance sampling); in each, compute is what the known times leave. So one row
leaves the priors as they are, a second one narrows what it can tell, and no row is fitted exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from calib.fitting.parameters.structural import DEVIATION
from calib.foundation.arrays import Floats
from calib.foundation.errors import InputError
from calib.foundation.records import Estimate
from calib.foundation.words import counted, seconds_words, several
from calib.reports.replay.draws import LatinHypercube, estimate
from calib.reports.replay.training_exchange import ExchangeTime
from calib.reports.replay.training_times import Trained
from calib.training.importers.epochs.record import EpochLog

ASSUMED, LOGGED = "assumed", "log of epochs"
STARTUP, PAUSE, FACTOR = "start-up", "end of an epoch", "exchange in training / in a loop"
TOLD = 0.8  # rows tell a term whose interval they narrow to this
FEWEST = 50  # draws that must count
LARGEST_NOISE = 0.08  # of known times that the terms explain
DIVIDED = 0.75  # how likely the nodes share the validation, where one log alone tells its time
EXPONENT_DEVIATION = 0.1  # of how it shrinks, from the logs of two trainings


class Prior(NamedTuple):
    """A term beforehand: log-normal around `median`, and what that is from."""

    median: float
    deviation: float  # of the logarithm
    source: str = ASSUMED


# PyTorch with DALI took 35 s to its first step (../shared/data/training/*_single_*), and ABCI's epochs
# end in about 2 s; both are small in a short training
USUAL_STARTUP, USUAL_PAUSE, LARGEST_SHARE = Prior(30.0, 0.7), Prior(2.0, 1.0), 0.01
# 1.0 on ABCI, 18.3/13.9 on H200s (formulas.md); less where some of it is hidden
USUAL_FACTOR = Prior(1.2, 0.5)
USUAL_NOISE = Prior(0.015, 0.8)  # by which whole trainings differ; of ABCI's 1.2%
LOGGED_DEVIATION = 0.15  # of what another training's log says
LEAST_S = 1e-6


class Logged(NamedTuple):
    """A training and its own log."""

    trained: Trained
    log: EpochLog


@dataclass(frozen=True)
class Term:
    """A term with its 90% interval, in s or a ratio, and what it is from."""

    name: str
    unit: str
    value: Estimate
    source: str


class _Observed(NamedTuple):
    """A known time, and what is in it: that of a log of epochs has no start-up."""

    trained: Trained
    seconds: float
    startup: bool = True
    pauses: bool = True


class TrainingTerms:
    """The terms, given what is known.

    Parameters
    ----------
    known
        Rows with a time, at least one. Of that on the fewest nodes is the batch of `compute`.
    exchange
        p -> exchange of an iteration in a loop.
    samples
        Of an epoch.
    logs
        Trainings' own logs; of a row that is not known, the epochs are a known time, too.

    Attributes
    ----------
    contradicted
        Whether these terms hardly explain the known times together; intervals are then wider.

    Raises
    ------
    InputError
        Where an iteration takes no longer than its exchange, or nothing explains the known times.
    """

    def __init__(
        self,
        known: Sequence[Trained],
        exchange: ExchangeTime,
        samples: int,
        logs: Sequence[Logged] = (),
    ) -> None:
        self.known = sorted(known, key=lambda row: row.nodes)
        self.base, self.samples, self.logs = self.known[0], samples, list(logs)
        self._exchange, self.contradicted = exchange, False
        self._errors: dict[int, Floats] = {}  # of an exchange's law, by the GPUs of known times
        self._check()
        cube = self._cube = LatinHypercube()
        self.priors = self._priors()
        self._terms = {name: cube.around(*prior[:2]) for name, prior in self.priors.items()}
        self._noise = cube.around(*USUAL_NOISE[:2])
        self._validated, self._exponent = cube.around(0.0, 0.0), cube.around(1.0, 0.0)
        self._draw_validation()
        # of what is predicted: its noise, its run's and its law's
        self._late, self._other, self._law = (cube.normal() for _ in range(3))
        self._compute, self._weights = self._given(self._observed())

    def seconds(self, row: Trained) -> Estimate:
        """The median and 90% interval of a training's time."""
        law = self._errors.get(row.gpus, self._law)
        sent = self._sent(row.gpus, law) * np.exp(DEVIATION * self._other)
        each = self._share(row) * self._compute + sent
        time = self._fixed(_Observed(row, 0.0)) + row.iterations(self.samples) * each
        return self._estimate(time * np.exp(self._noise * self._late))

    def terms(self) -> list[Term]:
        """The terms after all, and what they are from."""
        found = [
            Term(name, "" if name == FACTOR else "s", self._estimate(drawn), self._source(name))
            for name, drawn in self._terms.items()
        ]
        if self._validated.any():
            divided = np.average(self._exponent, weights=self._weights)
            source = f"{LOGGED}; divided among the nodes: {divided:.0%} likely"
            if len(self._validations()) > 1:
                source = f"{LOGGED}: shrinks with nodes to the power of {divided:.2f}"
            on = counted(self.base.nodes, "node")
            value = self._estimate(self._validation_of(self.base))
            found.append(Term(f"validation of an epoch on {on}", "s", value, source))
        compute = self._estimate(self._compute)
        found.append(Term("compute and input of an iteration", "s", compute, self._rows))
        waits = [log.input_s for _, log in self.logs if log.input_s is not None]
        if waits:
            wait = Estimate.exactly(fmean(waits))
            found.append(Term("of it, waiting for input", "s", wait, LOGGED))
        return found

    @property
    def _rows(self) -> str:
        """Which times are known, for people."""
        nodes = [str(row.nodes) for row in self.known]
        return f"time on {several(nodes, len(nodes))} node{'s' * (nodes != ['1'])}"

    def _source(self, name: str) -> str:
        prior = self.priors[name]
        logs = np.log(np.maximum(self._terms[name], LEAST_S))
        mean = np.average(logs, weights=self._weights)
        deviation = math.sqrt(np.average((logs - mean) ** 2, weights=self._weights))
        return self._rows if deviation < TOLD * prior.deviation else prior.source

    def _check(self) -> None:
        """Raise InputError where the base takes no longer than its exchange."""
        each = _seconds(self.base) / self.base.iterations(self.samples)
        own = self._exchange(self.base.gpus).value
        if each <= own:
            raise InputError(
                f"an iteration on {counted(self.base.nodes, 'node')} takes {seconds_words(each)}, "
                f"and its exchange {seconds_words(own)} by the logs"
            )

    def _priors(self) -> dict[str, Prior]:
        most = LARGEST_SHARE * _seconds(self.base)
        starts = [log.startup_s for _, log in self.logs if log.startup_s is not None]
        pauses = [
            each.log.pause_s * self._epochs_of(each)
            for each in self.logs
            if each.log.pause_s is not None
        ]
        return {
            STARTUP: _prior(USUAL_STARTUP, most, starts),
            PAUSE: _prior(USUAL_PAUSE, most / self.base.epochs, pauses),
            FACTOR: USUAL_FACTOR,
        }

    def _epochs_of(self, logged: Logged) -> float:
        """How many of what its log tells apart make an epoch: one may validate more or less often."""
        steps = logged.log.epoch_steps
        return logged.trained.epoch_iterations(self.samples) / steps if steps else 1.0

    def _validations(self) -> dict[int, float]:
        """Validation of an epoch by GPUs, s, as logs say."""
        return {
            each.trained.gpus: each.log.validation_s * self._epochs_of(each)
            for each in self.logs
            if each.log.validation_s
        }

    def _draw_validation(self) -> None:
        """Of one log alone, validation is divided among the GPUs or not; of more, they say how."""
        said = self._validations()
        if not said:
            return
        gpus, seconds = np.log(list(said)), np.log(list(said.values()))
        if len(said) == 1:
            self._exponent = (self._cube.uniform() < DIVIDED).astype(np.float64)
        else:
            slope = -float(np.polyfit(gpus, seconds, 1)[0])
            drawn = slope + EXPONENT_DEVIATION * self._cube.normal()
            self._exponent = np.clip(drawn, 0.0, 1.0)
        away = math.log(self.base.gpus) - gpus.mean()
        on_base = np.exp(seconds.mean() - self._exponent * away)
        self._validated = on_base * self._cube.around(1.0, LOGGED_DEVIATION)

    def _validation_of(self, row: Trained) -> Floats:
        return self._validated * (self.base.gpus / row.gpus) ** self._exponent

    def _share(self, row: Trained) -> float:
        """Compute of an iteration beside the base's."""
        return row.batch_per_gpu / self.base.batch_per_gpu

    def _fixed(self, seen: _Observed) -> Floats:
        """What is no iteration."""
        epoch = self._validation_of(seen.trained) + self._terms[PAUSE] * seen.pauses
        return self._terms[STARTUP] * seen.startup + seen.trained.epochs * epoch

    def _sent(self, gpus: int, normal: Floats) -> Floats:
        """An iteration's exchange in training, as the law and the factor say it."""
        return self._terms[FACTOR] * self._cube.skewed(self._exchange(gpus), normal)

    def _observed(self) -> list[_Observed]:
        """The known rows, and the epochs of logs of other rows."""
        found = [_Observed(row, _seconds(row)) for row in self.known]
        there = {row.gpus for row in self.known}
        for each in self.logs:
            row, log = each
            if log.epoch_s is None or row.gpus in there:
                continue
            there.add(row.gpus)
            seconds = (log.epoch_s + (log.pause_s or 0.0)) * self._epochs_of(each)
            seconds += self._validations().get(row.gpus, 0.0)
            # a log that counts steps and tells no pauses leaves them out
            pauses = log.pause_s is not None or log.epoch_steps is None
            found.append(_Observed(row, row.epochs * seconds, False, pauses))
        return found

    def _given(self, observed: Sequence[_Observed]) -> tuple[Floats, Floats]:
        """Compute of the base's iteration, and weights, of every draw.

        Times are normal around what the terms make, with the noise of a training and of its exchange.
        """
        left, precision = [], []  # compute by each known time, and 1 / variance of that
        for seen in observed:
            row = seen.trained
            error = self._errors.setdefault(row.gpus, self._cube.normal())
            iterations, sent = row.iterations(self.samples), self._sent(row.gpus, error)
            each = (seen.seconds - self._fixed(seen)) / iterations
            variance = (self._noise * seen.seconds / iterations) ** 2 + (DEVIATION * sent) ** 2
            left.append((each - sent) / self._share(row))
            precision.append(self._share(row) ** 2 / variance)
        of, weight = np.array(left), np.array(precision)
        whole = weight.sum(axis=0)
        mean = (of * weight).sum(axis=0) / whole
        log = (np.log(weight) - weight * (of - mean) ** 2).sum(axis=0) - np.log(whole)
        compute = mean + self._cube.normal() / np.sqrt(whole)
        log = np.where(compute > 0, log / 2, -np.inf)
        if not np.isfinite(log).any():
            raise InputError("the known times are shorter than start-up, validation and exchange")
        weights = np.exp(log - log.max())
        noise = float(np.average(self._noise, weights=weights))
        self.contradicted = noise > LARGEST_NOISE
        while weights.sum() ** 2 < FEWEST * (weights**2).sum():
            weights = np.sqrt(weights)
        return compute, weights

    def _estimate(self, drawn: Floats) -> Estimate:
        return estimate(drawn, self._weights)


def _seconds(row: Trained) -> float:
    """Of a row that has a time."""
    assert row.seconds is not None
    return row.seconds


def _prior(usual: Prior, most: float, logged: Sequence[float]) -> Prior:
    """What logs say, else what is usual, up to `most` seconds."""
    if logged:
        return Prior(max(median(logged), LEAST_S), LOGGED_DEVIATION, LOGGED)
    return usual._replace(median=min(usual.median, most))
