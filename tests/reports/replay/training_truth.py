"""Clusters of known truth: their terms, and the times that follow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calib.oracle.projection import PhaseTime
from calib.reports.replay.training_times import Trained
from calib.training.importers.epochs.record import EpochLog

SAMPLES, EPOCHS, EACH, BATCH = 1_000_000, 50, 8, 64
NODES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Cluster:
    """Seconds of each term; `divided`: whether the nodes share the validation."""

    startup: float
    pause: float
    validation: float
    divided: bool
    compute: float
    factor: float
    noise: float
    inside_s: float  # exchange of a node
    growth_s: float  # more for each doubling of nodes
    seed: int

    def exchange(self, p: int) -> PhaseTime:
        """Of a loop, as a law without an error says it."""
        value = self.inside_s + self.growth_s * math.log2(max(p / EACH, 1))
        return PhaseTime(value=value, low=0.97 * value, high=1.03 * value, basis="measured")

    def validation_on(self, nodes: int) -> float:
        """Of an epoch."""
        return self.validation / (nodes if self.divided else 1)

    def rows(self) -> list[Trained]:
        """The times on NODES, with their noise; exchanges differ by 7% from those of the loop."""
        random = np.random.default_rng(self.seed)
        found = []
        for nodes in NODES:
            row = Trained(nodes, nodes * EACH, BATCH, EPOCHS, None)
            sent = self.factor * self.exchange(row.gpus).value * math.exp(0.07 * random.normal())
            fixed = self.startup + EPOCHS * (self.pause + self.validation_on(nodes))
            seconds = fixed + row.iterations(SAMPLES) * (self.compute + sent)
            seconds *= math.exp(self.noise * random.normal())
            found.append(Trained(nodes, row.gpus, BATCH, EPOCHS, seconds))
        return found

    def log(self, nodes: int) -> EpochLog:
        """What a log of a training on so many nodes says."""
        return EpochLog(
            "known",
            startup_s=self.startup,
            validations_s=(self.validation_on(nodes),) * 3,
            pauses_s=(self.pause,) * 2,
        )


def cluster(seed: int, validation: bool = False) -> Cluster:
    """A cluster of terms that are log-normal around what is usual."""
    random = np.random.default_rng(seed)

    def around(median: float, deviation: float) -> float:
        return float(median * math.exp(deviation * random.normal()))

    compute = around(0.25, 0.4)
    return Cluster(
        startup=around(30, 0.7),
        pause=around(2, 1.0),
        validation=around(10, 0.5) if validation else 0.0,
        divided=random.random() < 0.5,
        compute=compute,
        factor=around(1.2, 0.5),
        noise=around(0.012, 0.6),
        inside_s=around(0.02, 0.5) * compute,
        growth_s=around(0.03, 0.5) * compute,
        seed=seed + 10_000,
    )
