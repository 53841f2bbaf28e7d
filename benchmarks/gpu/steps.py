"""The steps, in the order in which they run, and what one yields. PyTorch is for their processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from calib.foundation.words import bytes_words, number, seconds_words

# unit of a Row -> what its value is divided by, and the unit then
SHOWN = {"B/s": (1e9, "GB/s"), "FLOP/s": (1e12, "TFLOP/s"), "Hz": (1e6, "MHz")}
WORDS: dict[str, Callable[[float], str]] = {"s": seconds_words, "B": bytes_words}


class Row(NamedTuple):
    """One number that was measured, in SI units, or a word."""

    name: str
    value: float | str
    unit: str = ""
    note: str = ""

    @property
    def cells(self) -> list[str]:
        """As a person reads it: name, value, unit, note."""
        if isinstance(self.value, str):
            return [self.name, self.value, self.unit, self.note]
        if self.unit in WORDS:
            return [self.name, *WORDS[self.unit](self.value).split(" ", 1), self.note]
        scale, unit = SHOWN.get(self.unit, (1.0, self.unit))
        whole = float(self.value).is_integer() and scale == 1.0
        value = str(int(self.value)) if whole else number(self.value / scale)
        return [self.name, value, unit, self.note]


class Missing(NamedTuple):
    """A part of a step that could not be run here, and why."""

    what: str
    why: str


class Identity(NamedTuple):
    """Which machine it is."""

    of: dict[str, str]


Found = Row | Missing | Identity


@dataclass(frozen=True)
class Setting:
    """Where a step keeps files, and whether it only rehearses, with small sizes."""

    folder: Path
    small: bool

    @property
    def log(self) -> Path:
        """What calib's verbs say."""
        return self.folder / "calib.log"

    @property
    def run(self) -> Path:
        """The run directory of the calibration."""
        return self.folder / "run"


@dataclass(frozen=True)
class Step:
    """A function of `module`, named as the step; it may take `limit_s` and no longer."""

    name: str
    module: str
    limit_s: float
    title: str

    def load(self) -> Callable[[Setting], Iterator[Found]]:
        """The function."""
        found: Callable[[Setting], Iterator[Found]] = getattr(
            import_module(f"benchmarks.gpu.{self.module}"), self.name
        )
        return found


# the first is always run: it says which machine the others are of
STEPS = {
    step.name: step
    for step in (
        Step("machine", "machine", 90, "The machine"),
        Step("events", "timing", 60, "How finely events time"),
        Step("spin", "timing", 60, "A stream held by a spin, and not"),
        Step("do_bench", "kernels", 120, "Products and copies beside triton.testing.do_bench"),
        Step("layers", "kernels", 180, "Layers: warm, cold, under autocast, channels last"),
        Step("counters", "machine", 90, "Counters under load"),
        Step("launch", "nccl", 120, "NCCL on one rank: what a call costs"),
        Step("calibrate", "training", 570, "A calibration"),
        Step("train", "training", 300, "Serial training in three kinds of arithmetic"),
        Step("predict", "training", 60, "Predicted against measured"),
        Step("ranks", "nccl", 300, "Several ranks: a test of the code"),
    )
}
