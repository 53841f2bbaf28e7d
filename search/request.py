"""The Search: model, devices, costs, space, method and budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from calib.fitting.parameters.memory import STATES
from calib.foundation.errors import InputError
from calib.foundation.words import bytes_words
from calib.oracle.costs.machine import Machine
from calib.oracle.model.spec import ModelSpec
from calib.oracle.projection import Form
from calib.search.nominal import NOTE

MOST_DEVICES = 1 << 20
# a detail of a plan that the memory limit changed
LIMITED, FASTER = "memory limit", "faster plans do not fit"
SAMPLES_PER_DEVICE = 32


@dataclass(frozen=True)
class Devices:
    """`nodes` x `per_node` devices; `memory_bytes` of each are a constraint of the search, 0 none."""

    nodes: int
    per_node: int
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        if min(self.nodes, self.per_node) < 1:
            raise InputError(f"a cluster of {self.nodes} x {self.per_node} devices has none")
        if self.p > MOST_DEVICES:
            raise InputError(f"{self.p} devices are more than {MOST_DEVICES}")
        if self.memory_bytes < 0:
            raise InputError("the memory of a device is not below 0")

    @property
    def p(self) -> int:
        """All of them."""
        return self.nodes * self.per_node


@dataclass(frozen=True)
class Budget:
    """How long a search may take: seconds, evaluations of whole plans, or both; None: no such limit.

    Seconds are those of `clock` from the start, tables of costs too. A method that ends by itself before
    ignores it. Raises InputError for one of nothing.
    """

    seconds: float | None = 60.0
    evaluations: int | None = None
    clock: Callable[[], float] = perf_counter

    def __post_init__(self) -> None:
        if self.seconds is not None and not self.seconds > 0:
            raise InputError(
                f"a budget of {self.seconds:g} seconds finds nothing: give more than 0"
            )
        if self.evaluations is not None and self.evaluations < 1:
            raise InputError(
                f"a budget of {self.evaluations} evaluations finds nothing: give 1 at least"
            )

    def started(self) -> Spending:
        """The budget, running from now on."""
        return Spending(self, self.clock())


class BudgetOver(InputError):
    """The seconds of a budget ended inside a loop, whose caller says what is known by then."""


# what a loop that can be long calls in each turn: it raises BudgetOver when the seconds are spent
Look = Callable[[], None]


def never() -> None:
    """The Look of a loop that is short, or that has to come to its end."""


@dataclass
class Spending:
    """A running budget: `evaluated` counts whole plans.

    A method's own loop ends where it is `over`; loops inside of it `look`.
    """

    budget: Budget
    start: float
    evaluated: int = 0

    @property
    def seconds(self) -> float:
        """Since the start."""
        return self.budget.clock() - self.start

    @property
    def late(self) -> bool:
        """Whether no seconds are left."""
        return self.budget.seconds is not None and self.seconds >= self.budget.seconds

    def look(self) -> None:
        """A Look. Raises BudgetOver."""
        if self.late:
            raise BudgetOver(f"the budget of {self.budget.seconds:g} s ended: give a longer budget")

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        of = self.budget
        return self.late or (of.evaluations is not None and self.evaluated >= of.evaluations)

    @property
    def share(self) -> float:
        """How much of it is spent, 0 to 1."""
        of = self.budget
        shares = [
            self.seconds / of.seconds if of.seconds else 0.0,
            self.evaluated / of.evaluations if of.evaluations else 0.0,
        ]
        return min(1.0, max(shares))


# what is done, and the share of it from 0 to 1
Progress = Callable[[str, float], None]


def silent(what: str, share: float) -> None:
    """Progress that nobody looks at."""


@dataclass(frozen=True)
class SearchRequest:
    """One search. `model` is a ModelSpec or what the space's `model_of` makes.

    `options` are the space's own, by name, as text; `batch` is the global mini-batch B, None where
    nobody said it. `given`: the devices were asked for, and are not just those of the parameters.
    """

    model: Any
    devices: Devices
    machine: Machine
    batch: int | None
    method: str
    budget: Budget = field(default_factory=Budget)
    form: Form = "measured"
    optimizer: str = "momentum"
    seed: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    progress: Progress = silent
    given: bool = False

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch < 1:
            raise InputError(f"a batch of {self.batch} samples: give 1 at least")
        if self.optimizer not in STATES:
            raise InputError(f"unknown optimizer {self.optimizer!r}; known: {', '.join(STATES)}")

    @property
    def spec(self) -> ModelSpec:
        """The model, where the space takes one of layers. Raises InputError for another."""
        if not isinstance(self.model, ModelSpec):
            name = getattr(self.model, "name", "it")
            raise InputError(f"{name} has no layers that calib can train: choose another space")
        return self.model

    @property
    def room(self) -> str:
        """The memory limit, and whose it is."""
        limit, of = self.devices.memory_bytes, self.machine.parameters
        whose = ""
        if limit == of.device_memory_bytes:
            sheet = NOTE in of.provenance.notes
            whose = f" ({of.provenance.cluster_name}{', by its data sheet' if sheet else ''})"
        return f"the memory limit of {bytes_words(limit)} per device{whose}"

    def no_room(self, least: int, what: str = "no plan fits") -> InputError:
        """That nothing fits; `least` bytes would do."""
        return InputError(
            f"{what} {self.room}: the smallest found takes {least} bytes ({bytes_words(least)})"
        )

    @property
    def samples(self) -> int:
        """The global mini-batch B, for what depends on it. Raises InputError where it is not known."""
        if self.batch is None:
            name = getattr(self.model, "name", "it")
            raise InputError(
                f"{name} does not say of how many samples its mini-batch is", wants="batch"
            )
        return self.batch

    def whole(self, option: str, default: int, least: int = 1) -> int:
        """An option that is a whole number. Raises InputError."""
        text = self.options.get(option, "")
        if not text:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 13 and int(text) >= least):
            raise InputError(f"{option}={text} is not a whole number from {least} on")
        return int(text)

    def number(self, option: str, default: float) -> float:
        """An option that is a positive number. Raises InputError."""
        text = self.options.get(option, "")
        try:
            value = float(text) if text else default
        except ValueError:
            value = -1.0
        if not 0.0 < value < float("inf"):
            raise InputError(f"{option}={text} is not a number above 0")
        return value

    def word(self, option: str, known: tuple[str, ...]) -> str:
        """An option that is one of some words, the first by default. Raises InputError."""
        text = self.options.get(option, "") or known[0]
        if text not in known:
            raise InputError(f"{option}={text} is unknown; known: {', '.join(known)}")
        return text


def default_batch(model: Any, devices: Devices) -> int | None:
    """So many samples for each device; None of a model that comes with its own, known or not."""
    return None if getattr(model, "own_batch", False) else SAMPLES_PER_DEVICE * devices.p


@dataclass(frozen=True)
class Space:
    """A space of plans: one module of search/, and one line in its registry.

    `methods` by name, what each does; the first is the default. `options` by name, what each is for.
    `model_of` finds a model of the space's own by a name (or a file), None where it has none.
    """

    name: str
    about: str
    methods: Mapping[str, str]
    find: Callable[[SearchRequest], Any]
    options: Mapping[str, str] = field(default_factory=dict)
    model_of: Callable[[str], Any] = lambda name: None
    models: tuple[str, ...] = ()
