"""Bytes per rank: the naive sums of formulas.md, and peaks by the memory reuse of a machine."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
from tests.helpers.divided import model_case
from tests.oracle.handmade import machine, mlp
from tests.oracle.memory.reuse import FACTOR, PARTS, reuse

from calib.fitting.parameters.memory import DeviceMemory, MemoryForm, MemoryReuse
from calib.fitting.sections.memory import Naive, naive_bytes
from calib.foundation.division import Division
from calib.foundation.records import Estimate
from calib.oracle.memory.naive import naive_parts, replicated_parts
from calib.oracle.memory.peak import (
    OF_DEVICE,
    OF_LIVE,
    OF_RESERVED,
    OTHER_STRATEGY_FACTOR,
    peak_bytes,
    room_used,
    why_no_room,
)
from calib.oracle.model.spec import ModelSpec, tensors_key
from calib.training.models.specs import spec

GIB = 2**30
OPTIMIZERS: tuple[Literal["sgd", "momentum", "adam"], ...] = ("sgd", "momentum", "adam")
SERIAL, DATA = Division("serial", 1, 8), Division("data", 4, 8)


def peak(
    *records: MemoryReuse, division: Division = DATA, room: int = 0
) -> tuple[Estimate, list[str]]:
    """The peak of PARTS where there is one, and the notes but for what it is of."""
    of = machine(memory=list(records), device_memory_bytes=room)
    found, _, notes = peak_bytes(of, division, PARTS)
    assert found is not None and notes[0].startswith("peak memory is of")
    return found, notes[1:]


@pytest.mark.parametrize("name", ["vgg16-mini", "resnet50-mini", "cosmoflow-mini"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_naive_sums_are_those_that_the_reuse_was_fitted_to(
    name: str, optimizer: Literal["sgd", "momentum", "adam"]
) -> None:
    """gamma is fitted to the same bytes that it multiplies."""
    model, batch = spec(name), 6
    layers = [layer for layer in model.layers if not layer.shape.is_free]
    weights = 4 * sum(math.prod(shape) for shape in model.parameter_shapes)
    case = model_case(
        name,
        1,
        batch,
        gradient_bytes=weights,
        layer_keys=tuple(x.shape.key(batch, "float32", x.needs_input_grad) for x in layers),
        tensors_key=tensors_key(model.parameter_shapes),
        optimizer=optimizer,
    )
    parts = replicated_parts(model, batch, False, optimizer)
    fitted = Naive(parts["activations"], parts["weights"] + parts["gradients"], parts["optimizer"])
    assert naive_bytes(case) == fitted


def test_naive_sum_of_an_mlp_by_hand() -> None:
    """2 B' delta sum(|x| + |y|) + 2 delta (|w| + |bi|), and a state of each weight (formulas.md)."""
    model: ModelSpec = mlp([12, 8, 3])
    items = (12 + 8) + (8 + 8) + (8 + 3) + (3 + 1)  # fc1, ReLU, fc2, loss
    weights = 4 * (12 * 8 + 8 + 8 * 3 + 3)
    assert replicated_parts(model, 5, True, "adam", share=4) == {
        "activations": 2 * 4 * 5 * items,
        "weights": weights,
        "gradients": weights,
        "optimizer": weights // 2,  # two states of each, on four ranks
        "exchange": weights,
    }
    assert (
        naive_parts(0, 10, False, "momentum", share=4)["optimizer"] == 3
    )  # the rank that has most


def test_published_weights() -> None:
    """VGG16 has 138.36 M parameters (Simonyan and Zisserman; torchvision): 553.4 MB of float32."""
    assert replicated_parts(spec("vgg16"), 1, False, "sgd")["weights"] == 138357544 * 4


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [("simple", 0.5 * 2200.0), ("refined", 100 + 0.25 * 1000 + 1.5 * 800 + 2.0 * 400)],
)
def test_peak_by_either_form_without_the_buffer_that_the_factors_hold(
    chosen: MemoryForm, expected: float
) -> None:
    """Measured peaks of data parallelism held the exchange's buffer, the naive sums did not."""
    found, notes = peak(reuse(chosen=chosen))
    assert found.value == pytest.approx(expected, rel=1e-12)
    assert (found.low, found.high) == pytest.approx((expected / FACTOR, expected * FACTOR))
    assert notes == []


def test_serial_has_its_own_record_and_so_has_one_rank_of_any_strategy() -> None:
    """p = 1 equals serial."""
    records = (reuse("data"), reuse("serial", gamma=0.25))
    for strategy in ("serial", "data", "filter", "spatial", "pipeline", "data+filter"):
        found, notes = peak(*records, division=Division(strategy, 1, 8))
        assert (found.value, notes) == (550.0, [])
    assert peak(*records, division=DATA)[0].value == 1100.0


@pytest.mark.parametrize(
    "division",
    [
        Division("filter", 4, 8),
        Division("channel", 4, 8),
        Division("pipeline", 4, 8, segments=2),
        Division("spatial", 4, 8),
        Division("data+filter", 4, 8, inner=2),
        Division("data+spatial", 4, 8, inner=2),
    ],
)
def test_other_strategies_take_the_factors_of_data_with_a_wider_interval(
    division: Division,
) -> None:
    """Nobody measured them: the note says so and by how much the interval grew."""
    found, notes = peak(reuse("serial", gamma=9.0), reuse("data"), division=division)
    wide = FACTOR * OTHER_STRATEGY_FACTOR
    assert (found.value, found.low) == pytest.approx((1100.0, 1100.0 / wide))
    assert found.high == pytest.approx(1100.0 * wide)
    assert len(notes) == 1
    assert "measured for data-parallel training only" in notes[0]
    assert f"{OTHER_STRATEGY_FACTOR:g} times as wide" in notes[0]


@pytest.mark.parametrize(
    ("sums", "decades"),
    [((1.0, 2200.0), 0.0), ((2200.0, 1e9), 0.0), ((1.0, 22.0), 2.0), ((2.2e6, 1e9), 3.0)],
)
def test_interval_grows_with_every_decade_beyond_the_measured_sums(
    sums: tuple[float, float], decades: float
) -> None:
    """Once more the error factor for a decade, on either side."""
    found, notes = peak(reuse(sums=sums))
    assert found.high / found.value == pytest.approx(FACTOR ** (1 + decades))
    assert found.value / found.low == pytest.approx(FACTOR ** (1 + decades))
    assert [("naive sums of" in note) for note in notes] == ([True] if decades else [])


ON_DEVICE = DeviceMemory(
    reserved=Estimate(value=1.25, low=1.0, high=1.5),
    outside_bytes=Estimate(value=5000.0, low=4000.0, high=6000.0),
    n=3,
)


def gpu(*records: MemoryReuse) -> Any:
    return machine(memory=list(records), device_kind="cuda")


def test_the_device_holds_what_is_reserved_and_what_is_outside() -> None:
    """1100 B of tensors: 1.25 times as much is reserved, and 5000 B are not the allocator's."""
    found = peak_bytes(gpu(reuse(device="cuda", on_device=ON_DEVICE)), DATA, PARTS)
    assert found.device is not None and found.live is not None
    assert found.live == Estimate.within_factor(1100.0, FACTOR)
    assert found.device.numbers == pytest.approx(
        (1.25 * 1100 + 5000, 1100 / FACTOR + 4000, 1.5 * 1100 * FACTOR + 6000)
    )
    assert found.notes == [OF_DEVICE]
    without = ON_DEVICE.model_copy(update={"outside_bytes": None})
    found = peak_bytes(gpu(reuse(device="cuda", on_device=without)), DATA, PARTS)
    assert found.device is not None and found.device.value == pytest.approx(1.25 * 1100)
    assert found.notes == [OF_RESERVED]
    found = peak_bytes(gpu(reuse(device="cuda")), DATA, PARTS)
    assert (found.device, found.notes) == (found.live, [OF_LIVE])


def test_other_strategies_widen_the_tensors_and_not_the_constant() -> None:
    parameters = gpu(reuse(device="cuda", on_device=ON_DEVICE))
    found = peak_bytes(parameters, Division("pipeline", 4, 8, segments=2), PARTS)
    wide = FACTOR * OTHER_STRATEGY_FACTOR
    assert found.device is not None
    assert found.device.numbers == pytest.approx(
        (1.25 * 1100 + 5000, 1100 / wide + 4000, 1.5 * 1100 * wide + 6000)
    )


def test_serial_training_says_nothing_of_nccl() -> None:
    """Its constant may be OTHER_STRATEGY_FACTOR times as much where ranks talk."""
    parameters = gpu(reuse("serial", device="cuda", on_device=ON_DEVICE))
    found = peak_bytes(parameters, DATA, PARTS)
    assert found.device is not None and found.live is not None
    expected = 1.5 * found.live.high + OTHER_STRATEGY_FACTOR * 6000
    assert found.device.high == pytest.approx(expected)


def test_records_of_another_device_are_a_last_resort() -> None:
    """device_memory_bytes is that of the file's kind of device."""
    other, cpu = reuse(device="cuda", gamma=0.25), reuse("serial", device="cpu")
    assert peak(other, cpu)[0].value == 1100.0 + 400.0
    assert peak(other)[0].value == 550.0
    found = peak_bytes(gpu(other, cpu), DATA, PARTS).device
    assert found is not None and found.value == 550.0


def test_without_the_family_the_other_one_stands_in() -> None:
    """serial's factors do not hold the buffer of the exchange, so it is added; data's do."""
    found, notes = peak(reuse("serial"))
    wide = FACTOR * OTHER_STRATEGY_FACTOR
    assert (found.value, found.high) == pytest.approx((1500.0, 1500.0 * wide))
    assert "measured for serial training only" in notes[0]
    found, notes = peak(reuse("data"), division=SERIAL)
    assert (found.value, found.high) == pytest.approx((1100.0, 1100.0 * wide))
    assert "measured for data training only" in notes[0]


def test_no_record_no_peak() -> None:
    """A record of a family that this version does not know is none."""
    assert peak_bytes(machine(), DATA, PARTS) == (None, None, [])
    odd = machine(memory=[reuse("expert")])
    assert peak_bytes(odd, DATA, PARTS) == (None, None, [])


def test_room_is_judged_by_the_peak_else_by_the_naive_sum() -> None:
    """A naive sum over the capacity is no reason where reuse was measured."""
    room = machine(device_memory_bytes=16 * GIB)
    low_peak = Estimate(value=12.0 * GIB, low=6.0 * GIB, high=24.0 * GIB)
    assert why_no_room(room, 40 * GIB, low_peak) == []
    assert room_used(room, 40 * GIB, low_peak) == 0.75
    (reason,) = why_no_room(room, 40 * GIB, None)
    assert "40 GiB" in reason and "16 GiB" in reason and "naive" in reason
    high_peak = Estimate(value=20.5 * GIB, low=10.0 * GIB, high=40.0 * GIB)
    (reason,) = why_no_room(room, GIB, high_peak)
    assert "20.5 GiB" in reason and "16 GiB" in reason and "naive" not in reason
    exactly = Estimate(value=16.0 * GIB, low=10.0 * GIB, high=40.0 * GIB)
    assert why_no_room(room, GIB, exactly) == []


def test_unknown_capacity_is_no_limit() -> None:
    """device_memory_bytes 0."""
    assert why_no_room(machine(), 1e18, None) == []
    assert room_used(machine(), 1e18, None) is None


@pytest.mark.parametrize(
    ("room", "said"), [(1099, False), (1100, True), (1759, True), (1761, False)]
)
def test_upper_end_over_the_capacity_is_a_note(room: int, said: bool) -> None:
    """The peak is 1100 B, up to 1760; over the capacity itself it is a limit, not a note."""
    _, notes = peak(reuse(), room=room)
    assert [note.startswith("memory may be short") for note in notes] == ([True] if said else [])
    found: Any = Estimate(value=1100.0, low=1.0, high=1760.0)
    assert bool(why_no_room(machine(device_memory_bytes=room), 1, found)) is (room < 1100)
