"""Messages after work: what a rested link takes at once shortens them, by closed forms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.handmade import estimate, machine, mlp, operations, tensor_loops

from calib.fitting.parameters.collectives import Burst
from calib.fitting.parameters.file import Parameters
from calib.foundation.division import Division
from calib.foundation.records import Estimate
from calib.oracle.layout.traffic import flow_message, grouped_flows
from calib.oracle.layout.workload import model_weights
from calib.oracle.predict import project
from calib.oracle.projection import Projection

NET = mlp((64, 8, 16, 4))
SOME = settings(max_examples=30, deadline=None)
BURSTS, SHARES = st.floats(8, 1e5), st.floats(0.1, 1.0)


def hosts(burst: Burst | None, level: str = "system", each: int = 1) -> Parameters:
    """Two hosts of `each` ranks, whose operations are all like one allreduce."""
    names = "allreduce", "allgather", "reduce_scatter", "p2p", "p2p_both", "halo"
    fits = [
        fit.model_copy(
            update={"level": level, "burst": burst if fit.operation == "p2p_both" else None}
        )
        for fit in operations(*names)
    ]
    loops = tensor_loops("update", "pack", "unpack", "concat", "split")
    return machine(collectives=fits, ranks_per_node=each, tensor_loops=loops)


def bucket(nbytes: float, share: float) -> Burst:
    return Burst(nbytes=Estimate.exactly(nbytes), share=share)


def of(division: Division, burst: Burst | None) -> Projection:
    return project(NET, division, hosts(burst))


def beta() -> float:
    return next(
        f for f in hosts(None).collectives if f.operation == "p2p_both"
    ).beta_s_per_byte.value


def shorter(division: Division, burst: Burst, phase: str) -> float:
    """Seconds that a phase takes less with the burst; no other phase changes."""
    without, having = of(division, None).phases, of(division, burst).phases
    for name, time in without.items():
        assert name == phase or having[name].value == pytest.approx(time.value)
    return without[phase].value - having[phase].value


@SOME
@given(BURSTS, SHARES)
def test_gradients_follow_a_whole_backward(nbytes: float, share: float) -> None:
    """share beta min(W, burst), and no more than the exchange takes; a ring of 2 sends W."""
    division, weights = Division("data", 2, 8), model_weights(NET).nbytes
    alone = of(division, None).phases["exchange"].value
    expected = min(alone, share * beta() * min(weights, nbytes))
    assert shorter(division, bucket(nbytes, share), "exchange") == pytest.approx(expected)


@SOME
@given(st.sampled_from(("filter", "channel")), BURSTS, SHARES)
def test_layers_run_between_messages(strategy: str, nbytes: float, share: float) -> None:
    """Each message finds what its link could pass while the layers before it ran."""
    division = Division(strategy, 2, 8)
    without = of(division, None)
    flows = grouped_flows(NET, division)
    compute = without.phases["forward"].value + without.phases["backward"].value
    rested = compute / sum(flow.count for flow in flows)
    factor = {"allreduce": 1.0, "allgather": 0.5}  # what a rank of two sends
    sent = [(flow_message(NET, flow, division), flow.count) for flow in flows]
    expected = math.fsum(
        count * share * min(beta() * m.nbytes * factor[m.operation], beta() * nbytes, rested)
        for m, count in sent
    )
    assert shorter(division, bucket(nbytes, share), "layerwise") == pytest.approx(expected)


def test_messages_one_way_were_measured_on_rested_links() -> None:
    division = Division("pipeline", 2, 8, segments=4)
    assert of(division, bucket(1e9, 1.0)).phases == of(division, None).phases


def test_inside_a_node_nothing_changes() -> None:
    burst = bucket(1e5, 1.0)
    division = Division("filter", 2, 8)
    inside = project(NET, division, hosts(burst, each=2, level="node"))
    assert inside.phases == project(NET, division, hosts(None, each=2, level="node")).phases


def test_the_error_of_a_burst_is_in_the_interval() -> None:
    division = Division("data", 2, 8)
    sure, unsure = (
        of(division, Burst(nbytes=nbytes, share=1.0)).phases["exchange"]
        for nbytes in (Estimate.exactly(400.0), estimate(400.0, 0.9))
    )
    assert sure.value == pytest.approx(unsure.value)
    assert unsure.high - unsure.value > sure.high - sure.value
    assert unsure.value - unsure.low > sure.value - sure.low
