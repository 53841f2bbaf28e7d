"""Epochs in what training loops print: tqdm's bars, Keras's, lines of PyTorch's examples and timm."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from calib.foundation.errors import FileError
from calib.training.importers.epochs.lines import lines_of
from calib.training.importers.epochs.record import EpochLog

VALIDATION = re.compile(r"(?i)\b(val\w*|eval\w*|test\w*)\b")
# Train Epoch  #3: 100%|#####| 3337/3337 [16:07<00:00, 3.45it/s]
TQDM = re.compile(r"^(.*?):?\s*\d+%\|[^|]*\|\s*(\d+)/(\d+)\s*\[((?:\d+:)?\d+:\d\d)<")
# 1251/1251 [=====] - 312s 249ms/step - loss: 2.1; ━━━━ 312s 249ms/step of Keras 3
KERAS = re.compile(
    r"^(\d+)/(\d+)\s*(?:\[[=>.]*\]|[━╸╺─]+).*?\s(\d+)s \d+(?:\.\d+)?[mu]?s/(?:step|epoch)"
)
KERAS_EPOCH = re.compile(r"^Epoch (\d+)(?:/\d+)?$")
# Epoch: [0][ 10/5005] Time 0.30 ( 0.52) Data 0.00 ( 0.20); Train: 0 [ 10/1251 ( 1%)] ... Time: 3.6s, ...
COUNTED = re.compile(r"^(Epoch|Train|Test|Val\w*):?\s*\[?(\d*)\]?\s*\[\s*(\d+)/(\d+)\b")
TIME = re.compile(r"\bTime:?\s*\d+\.?\d*s?[^(]*\(\s*(\d+\.?\d*)")
DATA = re.compile(r"\bData:?\s*\d+\.?\d*s?\s*\(\s*(\d+\.?\d*)")
LONGEST_S = 1e9


@dataclass
class Found:
    """Seconds by what names an epoch or a validation: the last line of it counts."""

    epochs: dict[str, float] = field(default_factory=dict)
    validations: dict[str, float] = field(default_factory=dict)
    inputs: dict[str, float] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    epoch: str = ""  # that is under way
    bars: int = 0  # of tqdm that began
    whole: bool = False  # whether the last bar was

    def add(self, key: str, seconds: float, steps: int, validation: bool) -> None:
        """An epoch or a validation so far. Raises ValueError for a time that is none."""
        if not 0 <= seconds <= LONGEST_S:
            raise ValueError(key)
        if validation:
            self.validations[key] = seconds
        else:
            self.epochs[key], self.steps[key] = seconds, steps


def _tqdm(line: str, found: Found) -> bool:
    match = TQDM.match(line)
    if match is None:
        return False
    if match[2] != match[3]:
        found.bars += found.whole
        found.whole = False
        return False
    found.whole, label = True, match[1].strip()
    # bars with the same number are one: of several ranks, or drawn again
    key = label if re.search(r"\d", label) else f"{label} {found.bars} {match[4]}"
    seconds = 0
    for part in match[4].split(":"):
        seconds = 60 * seconds + int(part)
    found.add(key, seconds, int(match[2]), bool(VALIDATION.search(label)))
    return True


def _keras(line: str, found: Found) -> bool:
    if begun := KERAS_EPOCH.match(line):
        found.epoch = begun[1]
        return False
    match = KERAS.match(line)
    if match is None or match[1] != match[2] or not found.epoch:
        return False
    found.add(found.epoch, float(match[3]), int(match[2]), validation=False)
    return True


def _counted(line: str, found: Found) -> bool:
    match, time = COUNTED.match(line), TIME.search(line)
    if match is None or time is None or int(match[4]) < 1:
        return False
    validation = bool(VALIDATION.search(match[1]))
    if not validation:
        found.epoch = match[2]
    steps = int(match[4])
    found.add(found.epoch, float(time[1]) * steps, steps, validation)
    if (data := DATA.search(line)) and not validation:
        found.inputs[found.epoch] = float(data[1])
    return True


READERS: dict[str, Callable[[str, Found], bool]] = {
    "bars of tqdm": _tqdm,
    "Keras": _keras,
    "lines of a PyTorch loop": _counted,
}


def read_text_log(path: Path) -> EpochLog:
    """The epochs of the first kind of line that is found. Raises FileError where there is none."""
    found, known = Found(), dict(READERS)
    for line in lines_of(path):
        for name, reader in known.items():
            try:
                if reader(line, found):
                    known = {name: reader}
                    break
            except ValueError as error:
                raise FileError(f"{path}: an impossible time: {line[:80]}") from error
    if len(known) > 1 or not found.epochs:
        raise FileError(
            f"{path}: no epochs in it: {', '.join(READERS)}, DLLogger, MLPerf, TensorBoard events "
            "and tables with a column of seconds are read"
        )
    waits = list(found.inputs.values())
    return EpochLog(
        next(iter(known)),
        epochs_s=tuple(found.epochs.values()),
        validations_s=tuple(found.validations.values()),
        epoch_steps=max(found.steps.values()),
        input_s=waits[-1] if waits else None,
    )
