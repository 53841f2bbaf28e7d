"""What the conformance suite is made of: which estimators and examples there are, and rows of them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from tests.fitting.estimators.example import Example, Floats

import calib.fitting.estimators
from calib.fitting.estimators.affine import NonNegativeLaw
from calib.fitting.estimators.base import Estimator

# bases that leave the law itself to their subclasses
ABSTRACT = {Estimator, NonNegativeLaw}
EXAMPLES = Path(__file__).parent / "examples"


def estimators() -> set[type]:
    """Every class of fitting/estimators that can be fitted and predicts."""
    found = set()
    package = calib.fitting.estimators
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        content = importlib.import_module(module.name)
        for _, each in inspect.getmembers(content, inspect.isclass):
            if hasattr(each, "fit") and hasattr(each, "predict"):
                found.add(each)
    return {
        each for each in found - ABSTRACT if each.__module__.startswith("calib.fitting.estimators.")
    }


def examples() -> list[Example]:
    """All examples of tests/fitting/estimators/examples, by file and then as they stand there."""
    found: list[Example] = []
    for module in sorted(pkgutil.iter_modules([str(EXAMPLES)]), key=lambda each: each.name):
        name = f"tests.fitting.estimators.examples.{module.name}"
        found += importlib.import_module(name).EXAMPLES
    return found


@dataclass(frozen=True)
class Table:
    """Rows as `fit` takes them."""

    x: Floats
    y: Floats
    launch: np.ndarray

    def fit(self, model: Any) -> Any:
        """The fitted model."""
        return model.fit(self.x, self.y, groups=self.launch)

    def reordered(self, seed: int) -> Table:
        """The same rows in another order."""
        order = np.random.default_rng(seed).permutation(len(self.y))
        return Table(self.x[order], self.y[order], self.launch[order])


def repetitions(example: Example, seed: int, launches: int = 2, each: int = 6) -> Table:
    """Every x timed `each` times in every launch, with the noises of the example; medians are 1."""
    generator = np.random.default_rng([7, seed])
    times = launches * each
    noise = 1.0 + example.noise * generator.standard_normal(len(example.x) * times)
    speed = 1.0 + example.launch_noise * generator.standard_normal(launches)
    launch = np.tile(np.repeat(np.arange(launches), each), len(example.x))
    seconds = np.repeat(example.seconds, times) * noise * speed[launch]
    return Table(np.repeat(example.x, times, axis=0), seconds, launch)


def below(example: Example) -> Floats:
    """Its row below the range [1, k]: where it names none, the smallest x with a 1000th of column 0."""
    if example.below is not None:
        return example.below
    result = example.x[[example.x[:, 0].argmin()]]
    result[:, 0] /= 1000.0
    return result


def learned(model: Any) -> dict[str, Any]:
    """What `fit` learned: the attributes that end in an underscore."""
    return {name: value for name, value in vars(model).items() if name.endswith("_")}


def number(model: Any, name: str) -> Floats:
    """A learned number or array; `bands_.score` is the score of every band."""
    name, _, inside = name.partition(".")
    value = getattr(model, name)
    return np.array([attrgetter(inside)(each) for each in value] if inside else value, dtype=float)


def fingerprint(value: Any) -> Any:
    """Every bit of what was learned, comparable; a float differs from another by its last bit."""
    return tuple(_bits(value if not isinstance(value, Estimator) else learned(value)))


def _bits(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield str(key)
            yield from _bits(value[key])
    elif isinstance(value, list | tuple):
        yield len(value)
        for each in value:
            yield from _bits(each)
    elif is_dataclass(value):
        yield from _bits({field.name: getattr(value, field.name) for field in fields(value)})
    elif isinstance(value, float | np.ndarray | np.generic):
        array = np.asarray(value)
        yield array.shape, array.dtype.str, array.tobytes()
    else:
        yield repr(value)
