"""The logic of timing on a GPU that needs none: the spin's length, repetitions made again, precision.

The device is simulated where one would be: a queue that the host fills at a given pace. On a real
one: test_gpu.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.ranks import results, run_ranks

from calib.foundation.errors import MeasurementError
from calib.foundation.layers import LayerShape
from calib.microbench.cases import LayerCase
from calib.microbench.devices.cuda import CudaDevice
from calib.microbench.timing.held import (
    LONGEST_SPIN_S,
    MAX_TRIES,
    SHORTEST_SPIN_S,
    SPIN_MARGIN,
    Lap,
    held_block,
    next_spin_s,
    spin_cycles,
)
from calib.microbench.timing.repeat import Timings
from calib.microbench.timing.stretches import CallStretch, TimedCalls

CASE = LayerCase(
    ranks=2,
    layer=LayerShape(kind="relu", input_shapes=((4,),), output_shape=(4,)),
    batch=2,
    device="cuda",
)
SECONDS = st.floats(1e-7, 1.0)


@given(spin_s=SECONDS, queue_s=SECONDS, held=st.booleans())
def test_length_of_the_next_spin(spin_s: float, queue_s: float, held: bool) -> None:
    longer = next_spin_s(spin_s, queue_s, held)
    assert SHORTEST_SPIN_S <= longer <= LONGEST_SPIN_S
    assert longer >= min(SPIN_MARGIN * queue_s, LONGEST_SPIN_S)
    if not held:
        assert longer >= min(2 * spin_s, LONGEST_SPIN_S)
    if held and SHORTEST_SPIN_S <= SPIN_MARGIN * queue_s <= LONGEST_SPIN_S:
        assert longer == SPIN_MARGIN * queue_s  # no longer than it need be, whatever the last


def test_lengths_by_hand() -> None:
    assert next_spin_s(2e-3, 100e-6, held=True) == pytest.approx(400e-6)
    assert next_spin_s(100e-6, 150e-6, held=False) == pytest.approx(600e-6)
    assert next_spin_s(400e-6, 150e-6, held=False) == pytest.approx(800e-6)
    assert next_spin_s(1.0, 0.0, held=True) == SHORTEST_SPIN_S


@given(spin_s=st.floats(SHORTEST_SPIN_S, LONGEST_SPIN_S), hertz=st.floats(1e8, 4e9))
def test_cycles_last_as_long_as_asked(spin_s: float, hertz: float) -> None:
    cycles = spin_cycles(spin_s, 1 / hertz)
    assert cycles / hertz >= spin_s * (1 - 1e-12)
    assert (cycles - 1) / hertz <= spin_s * (1 + 1e-12)


class Simulated:
    """A device whose host takes `queue_s[i]` to queue the calls of the i-th lap (the last repeats)."""

    def __init__(self, queue_s: list[float]) -> None:
        self.queue_s, self.spins = queue_s, list[float]()
        self.log: list[str] = []

    def ready(self) -> None:
        self.log.append("ready")

    def lap(
        self,
        calls: Mapping[str, Callable[[], object]],
        number: int,
        spin_s: float,
        lead: Callable[[], None],
    ) -> Lap:
        self.log.append("lap")
        number = len(self.spins)
        queue_s = self.queue_s[min(number, len(self.queue_s) - 1)]
        self.spins.append(spin_s)
        held = queue_s < spin_s
        # what events would show: 1 us a call, and the host's pace where nothing held the stream
        seconds = {name: 1e-6 if held else queue_s for name in calls}
        return Lap(seconds, dict.fromkeys(calls, queue_s), held, queue_s, float(number))


def run(
    devices: list[Simulated], names: list[list[str]], repetitions: int
) -> list[Timings | BaseException]:
    def program(comm: Any) -> Any:
        device = devices[comm.rank]
        stretches = [
            CallStretch(
                {name: lambda: None for name in calls}, lambda: device.log.append("prepare")
            )
            for calls in names
        ]
        return held_block(TimedCalls(comm, CASE.label, stretches), device)(repetitions)

    return run_ranks(len(devices), program)


def test_what_the_spin_did_not_hold_is_made_again_by_all_ranks() -> None:
    slow, fast = Simulated([1e-4, 5e-2, 1e-4]), Simulated([1e-4])
    timings: list[Timings] = results(run([slow, fast], [["forward", "backward"]], 3))
    for timing in timings:
        assert timing.seconds == {"forward": [1e-6] * 3, "backward": [1e-6] * 3}
        assert timing.host_seconds == {"forward": [1e-4] * 3, "backward": [1e-4] * 3}
        assert list(timing.starts) == [0.0, 3.0, 2.0]  # the second was made again, as the fourth
    assert len(slow.spins) == len(fast.spins) == 4
    assert slow.spins == fast.spins  # one length for all ranks
    assert slow.spins[3] == pytest.approx(SPIN_MARGIN * 5e-2)
    assert slow.log == ["prepare", "ready", "lap"] * 4


def test_the_spin_becomes_as_short_as_the_slowest_rank_lets_it() -> None:
    devices = [Simulated([1e-4]), Simulated([2e-4])]

    def program(comm: Any) -> Any:
        stretches = [CallStretch({"backward_data": lambda: None})]
        block = held_block(TimedCalls(comm, CASE.label, stretches), devices[comm.rank])
        block(2)
        return block(2)

    for timing in results(run_ranks(2, program)):
        assert timing.seconds == {"backward_data": [1e-6] * 2}
    for device in devices:
        assert device.spins[2:] == pytest.approx([SPIN_MARGIN * 2e-4] * 2)


def test_two_stretches_are_two_laps() -> None:
    device = Simulated([1e-4])
    (timing,) = results(run([device], [["backward_data"], ["backward_weight"]], 2))
    assert timing.seconds == {"backward_data": [1e-6] * 2, "backward_weight": [1e-6] * 2}
    assert list(timing.starts) == [0.0, 2.0]


def test_calls_that_wait_for_the_device_have_no_time() -> None:
    devices = [Simulated([math.inf]), Simulated([1e-4])]
    for outcome in run(devices, [["forward"]], 2):
        assert isinstance(outcome, MeasurementError)
        assert "one waits for it" in str(outcome)
    assert len(devices[0].spins) == 2 * MAX_TRIES


@pytest.mark.parametrize("tf32", [False, True])
def test_precision_is_set_and_put_back(tf32: bool) -> None:
    cudnn: Any = torch.backends.cudnn

    def now() -> tuple[str, str, bool]:
        precision = torch.backends.cuda.matmul.fp32_precision
        return precision, cudnn.conv.fp32_precision, cudnn.benchmark

    before = now()
    word = "tf32" if tf32 else "ieee"
    # what a device is does not matter here: a machine without one has none to make
    with pytest.raises(KeyError), CudaDevice.arithmetic(cast(Any, None), word):
        assert now() == (word, word, before[2])
        raise KeyError
    assert now() == before
