"""predictions.json: a projection holds what is needed to repeat it."""

from __future__ import annotations

from typing import Literal

import pytest
from tests.oracle.handmade import machine, operations, tensor_loops
from tests.oracle.simulated import cuttable

from calib.fitting.parameters.file import Parameters
from calib.foundation.division import Division
from calib.oracle.layout.shards import fitted
from calib.oracle.predict import project
from calib.oracle.predicted import same
from calib.oracle.projection import PHASES, Projection

CUT = cuttable()
BATCH = 8
DIVISIONS = (
    Division("serial", 1, BATCH),
    Division("data", 2, BATCH),
    Division("data", 2, BATCH, overlap=True),
    Division("data", 2, BATCH, sharded_optimizer=True),
    Division("pipeline", 2, BATCH, segments=4),
    Division("pipeline", 2, BATCH, segments=4, schedule="1f1b", boundaries=(2,)),
    Division("filter", 2, BATCH),
    Division("spatial", 2, BATCH),
    Division("data+filter", 4, BATCH, inner=2),
    Division("data+spatial", 4, BATCH, inner=2, gradients="all"),
)


def everything() -> Parameters:
    """A machine with every operation between 2 and 4 ranks."""
    names = ("allreduce", "allgather", "reduce_scatter", "halo", "p2p")
    passes = ("update", "pack", "unpack", "concat", "split")
    return machine(
        collectives=operations(*names, ranks=(2, 4)),
        tensor_loops=tensor_loops(*passes, active=(1, 2, 4)),
    )


@pytest.mark.parametrize("form", ["measured", "paper"])
@pytest.mark.parametrize("asked", DIVISIONS, ids=lambda of: f"{of.strategy} {of.layout}")
def test_every_strategy_is_predicted_again(
    asked: Division, form: Literal["measured", "paper"]
) -> None:
    """From its file, to the last bit."""
    made = project(CUT.model, asked, everything(), form, "sgd", 1000)
    kept = Projection.model_validate_json(made.model_dump_json())
    assert made.total is not None and kept.division == fitted(CUT.model, asked)
    again = project(CUT.model, kept.division, everything(), kept.form, kept.optimizer, kept.samples)
    assert again == made and same(kept, again)


def test_what_is_the_same() -> None:
    """All numbers that a score takes and their bases, to 1e-9; not the words."""
    of = project(CUT.model, DIVISIONS[1], everything())
    assert of.total is not None
    assert same(of, of.model_copy(update={"notes": ["otherwise"], "terms": []}))
    near = of.total.model_copy(update={"high": of.total.high * (1 + 1e-12)})
    assert same(of, of.model_copy(update={"total": near}))
    for name in ("value", "low", "high"):
        other = of.total.model_copy(update={name: 1.001 * getattr(of.total, name)})
        assert not same(of, of.model_copy(update={"total": other}))
        for phase in PHASES:
            if of.phases[phase].value:
                changed = {**of.phases, phase: other}
                assert not same(of, of.model_copy(update={"phases": changed}))
    surer = of.total.model_copy(update={"basis": "exact"})
    assert not same(of, of.model_copy(update={"total": surer}))
    without = {name: time for name, time in of.phases.items() if time.value}
    assert same(of, of.model_copy(update={"phases": without}))
    assert not same(of, of.model_copy(update={"phases": dict(list(without.items())[1:])}))
