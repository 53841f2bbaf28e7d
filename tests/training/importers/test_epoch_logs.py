"""Logs of epochs in each format, told apart by what is in them; lines as the tools print them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.published import DATA, needs_data

from calib.foundation.errors import FileError
from calib.training.importers.epochs.reading import read_epoch_log
from calib.training.importers.epochs.record import EpochLog, Mark, log_of_marks


def log_of(folder: Path, text: str) -> EpochLog:
    path = folder / "log"
    path.write_text(text)
    return read_epoch_log(path)


def test_a_table(tmp_path: Path) -> None:
    text = (
        "epoch,loss,train_seconds,val_seconds\n1,2.5,130,6\n2,2.0,100,6.5\n3,1.5,101,6\n4,1,99,6\n"
    )
    log = log_of(tmp_path, text)
    assert log.epochs_s == (130, 100, 101, 99)
    assert (log.epoch_s, log.validation_s, log.pause_s) == (100.5, 6.0, None)
    assert log.startup_s is None  # what comes before the first epoch is in no row
    log = log_of(tmp_path, "epoch;epoch time (ms);startup_s\n0;2000;7\n1;3000;\n")
    assert (log.epochs_s, log.startup_s) == ((2.0, 3.0), 7.0)


def test_dllogger(tmp_path: Path) -> None:
    """2 epochs of 4 steps of 1 s after 30 s; 3 s of validation and 2 s of pause after the first."""
    at, lines = 1000.0, []

    def say(step: object, **data: float) -> None:
        entry = {"timestamp": str(at), "type": "LOG", "step": step, "data": data}
        lines.append("[1,0]<stdout>:DLLL " + json.dumps(entry))

    lines.append("noise of another tool")
    entry = {"timestamp": "1000.0", "step": "PARAMETER", "data": {"world_size": 8}}
    lines.append("DLLL " + json.dumps(entry))
    at += 30
    for epoch in range(2):
        for step in range(1, 5):
            at += 1
            say([epoch, step], **{"train.loss": 2.0, "train.data_time": 0.25})
        say([epoch], **{"train.loss": 2.0})
        at += 3
        say([epoch], **{"val.loss": 2.0})
        at += 2
    log = log_of(tmp_path, "\n".join(lines) + '\nDLLL {"timestamp": "10')
    assert (log.startup_s, log.step_s, log.ranks) == (30.0, 1.0, 8)
    assert log.epochs_s == (4.0,)
    assert log.validations_s == (3.0, 3.0)
    assert (log.validation_s, log.pause_s, log.input_s) == (3.0, 2.0, 0.25)


@needs_data
def test_published_dllogger() -> None:
    """100 iterations of one epoch; by hand, the first line of a step at 37.38 s, the second's period."""
    path = DATA / "training" / "abci_V_resnet50_single_4gpu_7164538.txt"
    log = read_epoch_log(path)
    assert (log.ranks, log.epochs_s, log.validations_s) == (4, (), ())
    assert log.step_s == pytest.approx(0.354, rel=0.01)
    assert log.startup_s == pytest.approx(37.380026 - 0.354, abs=0.01)
    assert log.input_s == pytest.approx(0.0009, rel=0.1)


def test_mlperf(tmp_path: Path) -> None:
    """mlperf_logging's keys, in ms: an evaluation every second epoch."""
    lines, at = [], 5_000_000

    def say(key: str, event: str = "POINT_IN_TIME", **metadata: int) -> None:
        entry = {"namespace": "", "time_ms": at, "event_type": event, "key": key}
        lines.append(":::MLLOG " + json.dumps(entry | {"value": None, "metadata": metadata}))

    say("init_start", "INTERVAL_START")
    at += 50_000
    for epoch in range(4):
        say("epoch_start", "INTERVAL_START", epoch_num=epoch)
        at += 60_000
        say("epoch_stop", "INTERVAL_END", epoch_num=epoch)
        if epoch % 2:
            say("eval_start", "INTERVAL_START")
            at += 4_000
            say("eval_stop", "INTERVAL_END")
        at += 1_000
    log = log_of(tmp_path, "\n".join(lines))
    assert log.startup_s == 50.0
    assert log.epochs_s == (60.0,) * 4
    assert (log.validations_s, log.validation_s) == ((4.0, 4.0), 2.0)
    assert log.pause_s == 1.0


KERAS = """Epoch 1/3
\r 1/1251 [..............................] - ETA: 5:00 - loss: 6.9
1251/1251 [==============================] - 342s 270ms/step - loss: 6.1 - val_loss: 5.5
Epoch 2/3
1251/1251 [==============================] - 312s 249ms/step - loss: 5.1 - val_loss: 4.5
Epoch 3/3
\x1b[1m1251/1251\x1b[0m \x1b[32m━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m311s\x1b[0m 249ms/step - loss: 4
"""
HOROVOD = (
    "Train Epoch     #1:   0%|          | 0/3337 [00:00<?, ?it/s]\r"
    "Train Epoch     #1:  50%|#####     | 1668/3337 [08:00<08:00, 3.45it/s]\r"
    "Train Epoch     #1: 100%|##########| 3337/3337 [16:07<00:00, 3.45it/s, loss=6.1]\n"
    "Validate Epoch  #1: 100%|##########| 131/131 [00:30<00:00, 4.3it/s, loss=5.1]\n"
    "Train Epoch     #2: 100%|##########| 3337/3337 [16:05<00:00, 3.45it/s, loss=6.1]\n"
    "Train Epoch     #2: 100%|##########| 3337/3337 [16:05<00:00, 3.45it/s, loss=6.1]\n"
    "Validate Epoch  #2: 100%|##########| 131/131 [00:28<00:00, 4.3it/s, loss=5.1]\n"
)
IMAGENET = (
    "=> creating model 'resnet50'\n"
    "Epoch: [0][   1/5005]\tTime  9.301 ( 9.301)\tData  2.000 ( 2.000)\tLoss 6.9e+00 (6.9e+00)\n"
    "Epoch: [0][5001/5005]\tTime  0.301 ( 0.320)\tData  0.000 ( 0.020)\tLoss 6.0e+00 (6.5e+00)\n"
    "Test: [  1/196]\tTime  2.9 ( 2.9)\tLoss 1.0 (1.0)\n"
    "Test: [191/196]\tTime  0.2 ( 0.25)\tLoss 1.0 (1.0)\n"
    "Epoch: [1][5001/5005]\tTime  0.301 ( 0.300)\tData  0.000 ( 0.010)\tLoss 6.0e+00 (6.5e+00)\n"
    "Test: [191/196]\tTime  0.2 ( 0.25)\tLoss 1.0 (1.0)\n"
)
TIMM = (
    "Train: 0 [   0/1251 (  0%)]  Loss: 6.96 (6.96)  Time: 3.613s,  283.45/s  (3.613s,  283.45/s)  "
    "LR: 1.0e-06  Data: 2.106 (2.106)\n"
    "Train: 0 [1250/1251 (100%)]  Loss: 6.96 (6.96)  Time: 0.3s,  283.45/s  (0.400s,  283.45/s)  "
    "LR: 1.0e-06  Data: 0.106 (0.006)\n"
    "Test: [  48/48]  Time: 0.250 (0.500)  Loss:  6.9 (6.9)\n"
)


@pytest.mark.parametrize(
    ("text", "epochs", "validations", "steps"),
    [
        (KERAS, (342, 312, 311), (), 1251),
        (HOROVOD, (967, 965), (30, 28), 3337),
        (IMAGENET, (0.32 * 5005, 0.3 * 5005), (49, 49), 5005),
        (TIMM, (0.4 * 1251,), (24,), 1251),
    ],
    ids=["keras", "tqdm", "imagenet", "timm"],
)
def test_what_training_loops_print(
    tmp_path: Path, text: str, epochs: tuple[float, ...], validations: tuple[float, ...], steps: int
) -> None:
    log = log_of(tmp_path, text)
    assert log.epochs_s == pytest.approx(epochs)
    assert log.validations_s == pytest.approx(validations)
    assert (log.epoch_steps, log.pause_s) == (steps, None)


def test_bars_without_a_number(tmp_path: Path) -> None:
    bar = "Training: {}%|##| {}/100 [{}<00:00, 3it/s]\r"
    text = "".join(
        bar.format(part, part, time) for time in ("01:00", "01:00") for part in (0, 50, 100, 100)
    )
    assert log_of(tmp_path, text).epochs_s == (60.0, 60.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no epochs in it"),
        ("Epoch 1/3\nloss 3\n", "no epochs in it"),
        ("epoch,seconds\n", "no seconds of an epoch"),
        ("epoch,seconds\n1,fast\n", "line 2: 'fast' is not a number of seconds"),
        ("epoch,seconds\n1,-3\n", "line 2: -3 is no time"),
        ("epoch,seconds\n1,nan\n", "line 2: nan is no time"),
        ('{"a": 1}\n', "no step of DLLogger or epoch of MLPerf"),
    ],
)
def test_what_is_no_log(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FileError, match=message):
        log_of(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="does not exist"):
        read_epoch_log(tmp_path / "none")


@given(st.binary(max_size=300))
def test_no_file_is_a_traceback(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_bytes(data)
    with suppress(FileError):
        read_epoch_log(path)


@given(
    steps=st.integers(5, 60),
    every=st.integers(1, 5),
    step_ms=st.integers(10, 1000),
    validation_ms=st.integers(0, 5000),
    pause_ms=st.integers(0, 5000),
    counted_in_all=st.booleans(),
)
def test_marks_of_known_times(
    steps: int, every: int, step_ms: int, validation_ms: int, pause_ms: int, counted_in_all: bool
) -> None:
    """Three epochs, every so many steps logged: each term comes out, whatever was not logged."""
    if not counted_in_all:
        steps -= steps % every  # what follows the last mark is seen only where all are counted
    marks, at, total = [], 100.0, 0
    for epoch in range(3):
        for step in range(1, steps + 1):
            at += step_ms / 1e3
            total += 1
            if step % every == 0:
                marks.append(Mark(at, epoch, total if counted_in_all else step))
        at += validation_ms / 1e3
        marks.append(Mark(at, epoch, total if counted_in_all else 0, validation=True))
        at += pause_ms / 1e3
    log = log_of_marks("marks", marks, 90.0)
    if len(marks) < 9:
        return  # one step an epoch was logged: how long it takes is not known
    assert log.startup_s == pytest.approx(10.0, abs=1e-6)
    assert log.step_s == pytest.approx(step_ms / 1e3)
    assert log.validations_s[0] == pytest.approx(validation_ms / 1e3, abs=1e-6)
    assert log.pauses_s == pytest.approx([pause_ms / 1e3] * 2, abs=1e-6)
    assert log.epochs_s == pytest.approx([steps * step_ms / 1e3] * 2, abs=1e-6)
