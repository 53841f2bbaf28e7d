"""TensorBoard events: checksums of RFC 3720, protobuf written by hand, epochs of known times."""

from __future__ import annotations

import math
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.training.importers.event_files import event, record, simple, tensor, varint, write_events

from calib.foundation.errors import FileError
from calib.training.importers.epochs.reading import read_epoch_log
from calib.training.importers.epochs.tensorboard import event as read_event
from calib.training.importers.epochs.tensorboard import fields, is_events, masked_crc32c

BEGIN = 1.7e9


def test_checksums_of_the_standard() -> None:
    """RFC 3720, B.4: CRC-32C of 32 bytes of zeros, of ones, and of 0 to 31."""
    for data, crc in (
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
    ):
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        assert masked_crc32c(data) == masked


@given(st.integers(0, 2**63 - 1), st.floats(0, 1e10), st.text(max_size=20), st.floats(width=32))
def test_an_event_as_it_was_written(step: int, at: float, tag: str, value: float) -> None:
    for written in (simple(tag, value), tensor(tag, value), tensor(tag, value, packed=False)):
        found = read_event(event(at, step, written), Path("x"))
        assert found[:2] == (at, step)
        ((name, number),) = found[2]
        assert name == tag
        assert struct.pack("<f", number) == struct.pack("<f", value) or math.isnan(number)


@given(st.binary(max_size=200))
def test_no_bytes_are_a_traceback(data: bytes) -> None:
    with suppress(FileError):
        read_event(data, Path("x"))


def test_numbers_of_protobuf() -> None:
    """Its documentation, "Encoding": field 1 = 150 is 08 96 01."""
    assert list(fields(bytes.fromhex("089601"))) == [(1, 150)]
    assert varint(150) == bytes.fromhex("9601")
    with pytest.raises(ValueError, match="cut off"):
        list(fields(bytes.fromhex("0a05")))


# 3 epochs of 100 steps of 0.5 s, logged every 10; 40 s before the first, 6 s of validation and 4 s of
# pause after each
def training(step_s: float = 0.5, begin: float = BEGIN + 40) -> list[bytes]:
    events, at = [], begin
    for step in range(1, 301):
        at += step_s
        if step % 10 == 0:
            waited = simple("time/data_time", 0.02)
            events.append(event(at, step, simple("train/loss", 2.0), waited))
        if step % 100 == 0:
            at += 6
            events.append(event(at, step, simple("val/loss", 2.0)))
            at += 4
    return events


def test_a_training_of_known_times(tmp_path: Path) -> None:
    path = write_events(tmp_path / "events.out.tfevents.1.host", BEGIN, training())
    with path.open("rb") as stream:
        assert is_events(stream.read(100))
    log = read_epoch_log(path)
    assert log.startup_s == pytest.approx(40.0, abs=1e-5)
    assert log.step_s == pytest.approx(0.5, abs=1e-6)
    # the first step of an epoch that is logged is the 10th, so an epoch is from there to there
    assert log.epochs_s == pytest.approx([50.0, 50.0], abs=1e-5)
    assert log.epoch_steps == 100
    assert log.validations_s == pytest.approx([6.0] * 3, abs=1e-5)
    assert log.pause_s == pytest.approx(4.0, abs=1e-5)
    assert log.input_s == pytest.approx(0.02)


def test_folders_of_one_training(tmp_path: Path) -> None:
    """Training and validation in files of their own, tags alike."""
    events = training()
    train = [each for each in events if b"train/loss" in each]
    validation = [each.replace(b"val/loss", b"the_loss") for each in events if b"val/loss" in each]
    write_events(tmp_path / "train" / "events.out.tfevents.1", BEGIN, train)
    write_events(tmp_path / "validation" / "events.out.tfevents.2", BEGIN + 95, validation)
    log = read_epoch_log(tmp_path)
    assert log.validations_s == pytest.approx([6.0] * 3, abs=1e-5)
    assert log.startup_s == pytest.approx(40.0, abs=1e-5)


def test_one_scalar_an_epoch(tmp_path: Path) -> None:
    """Keras writes epoch_loss at the end of each epoch; the first has the start-up."""
    events = [
        event(BEGIN + 130 + 100 * epoch, epoch, tensor("epoch_loss", 1.0)) for epoch in range(4)
    ]
    log = read_epoch_log(write_events(tmp_path / "x", BEGIN, events))
    assert log.epochs_s == pytest.approx([100, 100, 100])
    assert (log.epoch_s, log.startup_s) == (pytest.approx(100), pytest.approx(30))
    # any tags, where each epoch has one of training and one of validation
    events = []
    for epoch in range(4):
        at = BEGIN + 130 + 100 * epoch
        events += [event(at, epoch, simple("Loss/train", 1.0))]
        events += [event(at + 0.01, epoch, simple("Loss/test", 1.0))]
    log = read_epoch_log(write_events(tmp_path / "y", BEGIN, events))
    assert log.epochs_s == pytest.approx([100, 100, 100])


def test_epochs_by_their_number(tmp_path: Path) -> None:
    """Lightning's scalar `epoch`, without a validation: the pause is all that is between."""
    events, at = [], BEGIN
    for step in range(200):
        at += 0.1 + 3.0 * (step == 100)
        scalars = simple("train_loss_step", 1.0), simple("epoch", float(step // 100))
        events.append(event(at, step, *scalars))
    log = read_epoch_log(write_events(tmp_path / "x", BEGIN, events))
    assert log.pause_s == pytest.approx(3.0, abs=1e-4)
    assert log.epoch_s == pytest.approx(10.0, abs=1e-4)


def test_damaged_files(tmp_path: Path) -> None:
    whole = write_events(tmp_path / "x", BEGIN, training()).read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(whole[:-30])  # while it was written: the events before count
    assert read_epoch_log(cut).step_s == pytest.approx(0.5, abs=1e-6)
    flipped = bytearray(whole)
    flipped[-20] ^= 1
    cut.write_bytes(flipped)
    with pytest.raises(FileError, match="checksum of an event is wrong"):
        read_epoch_log(cut)
    cut.write_bytes(whole + b"x" * 12)
    with pytest.raises(FileError, match="checksum of a length is wrong"):
        read_epoch_log(cut)
    write_events(cut, BEGIN, [])
    with pytest.raises(FileError, match="no scalar of a training"):
        read_epoch_log(cut)
    cut.write_bytes(record(b"\x0a\x05"))
    with pytest.raises(FileError, match="no protobuf message"):
        read_epoch_log(cut)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="no event files"):
        read_epoch_log(tmp_path / "empty")
