"""Ranks of tests/training/test_live_bytes.py: `live_ranks.py MODEL,STRATEGY,WAY,BATCH ...`, a line each.

Of every training the measured peak of live bytes on the rank that has most, and the oracle's count: of
a plan per layer (`layerwise`) that of searches.
"""

from __future__ import annotations

import gc
import random
import sys

import torch
from tests.helpers.layerwise import priced
from tests.oracle.checkpointed_models import MODELS, entry_of, traced

from calib.foundation.division import Division
from calib.foundation.execution import DTYPES, USUAL
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.oracle.costs.machine import Machine
from calib.oracle.layout.partitions import Configuration
from calib.oracle.layout.shards import fitted
from calib.oracle.layout.stages import with_boundaries
from calib.oracle.memory.live_bytes import live_bytes
from calib.oracle.model.spec import ModelSpec
from calib.search.layerwise.configurations import ConfigurationChoices
from calib.search.nominal import nominal
from calib.search.request import Devices, SearchRequest
from calib.training.footprint import peak_live_bytes
from calib.training.models import entry
from calib.training.models.specs import spec
from calib.training.plans.division import LAYERWISE, LayerwiseDivision
from calib.training.step import TrainingStep
from calib.training.teams import make_teams
from calib.training.worker import WorkerOptions

SEGMENTS = 4


def division_of(strategy: str, way: str, p: int, batch: int) -> Division:
    """`way`: ddp, sharded, 1f1b, tokens, an execution, accumulated micro-batches, or nothing."""
    return Division(
        strategy,
        p,
        batch,
        segments=SEGMENTS if strategy == "pipeline" else 1,
        schedule="1f1b" if way == "1f1b" else "gpipe",
        overlap=way == "ddp",
        sharded_optimizer=way == "sharded",
        sequence_parallel=way == "tokens",
        accumulation=int(way) if way.isdecimal() else 1,
    )


def planned(model: ModelSpec, way: str, p: int, batch: int) -> LayerwiseDivision:
    """`way`: a dimension that all layers are cut along, by samples where they cannot; mixed: any."""
    draw, found = random.Random(5), []
    choices = ConfigurationChoices(Devices(1, p), batch, ("sample", "channel", "height"))
    for layer in model.layers:
        able, first = choices.configurations(layer.shape), Configuration.of({way: p})
        other = draw.choice(able) if way == "mixed" else Configuration(sample=p)
        found.append(first if way != "mixed" and first in able else other)
    return LayerwiseDivision(LAYERWISE, p, batch, configurations=tuple(found))


def counted(model: ModelSpec, division: Division) -> int:
    """The oracle's count."""
    if not isinstance(division, LayerwiseDivision):
        return live_bytes(model, division, "momentum", widens=True)
    devices, machine = Devices(1, division.p), Machine(nominal("p100"))
    request = SearchRequest(model, devices, machine, division.batch, "elimination")
    names = (layer.name for layer in model.layers)
    return priced(request, dict(zip(names, division.configurations, strict=True))).nbytes


def main() -> None:
    """Collective over all ranks."""
    control = MpiCommunicator()
    torch.set_num_threads(1)
    for job in sys.argv[1:]:
        name, strategy, way, batch = job.split(",")
        execution = way if way.split("+")[0] in DTYPES else USUAL
        own = name in MODELS
        model = (traced(name) if own else spec(name)).run_as(execution)
        if strategy == LAYERWISE:
            division: Division = planned(model, way, control.size, int(batch))
        else:
            division = division_of(strategy, way, control.size, int(batch))
            division = with_boundaries(model, fitted(model, division))
        teams = make_teams(control, division, "mpi")
        about = entry_of(name) if own else entry(name)
        gc.freeze()  # every count of bytes looks through all objects
        step = TrainingStep(about, division, 0, teams, WorkerOptions(execution=execution))
        for _ in range(2 if way == "ddp" else 1):  # its second iteration makes new buckets
            step.iterate()
        peaks = control.allgather_object(peak_live_bytes(step))
        step.close()
        teams.close()
        del step, teams
        gc.collect()
        if control.rank == 0:
            print(job, max(peaks), counted(model, division), flush=True)
        control.quiet_barrier()  # the others leave the cores to rank 0


if __name__ == "__main__":
    main()
