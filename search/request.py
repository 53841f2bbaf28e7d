"""What a search is asked for: model, devices, costs, space, method and budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from calib.search.plan import Searched, SearchedPlan

MOST_DEVICES = 1 << 20
# a detail of a plan that the memory limit changed
LIMITED, FASTER = "memory limit", "faster plans do not fit"


@dataclass(frozen=True)
class Devices:
    """`nodes` x `per_node` devices; `memory_bytes` limits what each may hold (0: no limit)."""

    nodes: int
    per_node: int
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        if min(self.nodes, self.per_node) < 1:
            raise InputError(f"a cluster of {self.nodes} x {self.per_node} devices has none")
        if self.p > MOST_DEVICES:
            raise InputError(f"{self.p} devices are more than {MOST_DEVICES}")
        if self.memory_bytes < 0:
            raise InputError("device memory cannot be negative")

    @property
    def p(self) -> int:
        """Number of devices."""
        return self.nodes * self.per_node


@dataclass(frozen=True)
class Budget:
    """How long a search may take: seconds, evaluations of whole plans, or both; None: no limit.

    Seconds run on `clock` from the start and include building the tables of costs. Raises InputError
    for a budget of nothing.
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
        """Start the clock."""
        return Spending(self, self.clock())


class BudgetOver(InputError):
    """The seconds ran out inside a loop; its caller says what is known by then."""


# called in each turn of a long loop; raises BudgetOver when the seconds are spent
Look = Callable[[], None]


def never() -> None:
    """The Look of a loop that is short or has to finish."""


@dataclass
class Spending:
    """A running budget: `evaluated` counts whole plans, `tables_s` is the time that the tables took.

    A method's own loop stops when the budget is `over`; loops inside it `look`.
    """

    budget: Budget
    start: float
    evaluated: int = 0
    tables_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self.budget.clock() - self.start

    @property
    def late(self) -> bool:
        """Whether the seconds are spent."""
        return self.budget.seconds is not None and self.seconds >= self.budget.seconds

    def look(self) -> None:
        """A Look. Raises BudgetOver."""
        if self.late:
            raise BudgetOver(f"the budget of {self.budget.seconds:g} s ended: give a longer budget")

    @property
    def over(self) -> bool:
        """Whether the seconds or the evaluations are spent."""
        of = self.budget
        return self.late or (of.evaluations is not None and self.evaluated >= of.evaluations)

    def searched(
        self,
        log10_space: float,
        complete: bool,
        course: Sequence[tuple[float, float]],
        steps: Mapping[str, int],
        evaluated: int | None = None,
    ) -> Searched:
        """How far the search looked: `complete` unless the budget ended it."""
        return Searched(
            evaluated=self.evaluated if evaluated is None else evaluated,
            log10_space=log10_space,
            tables_seconds=self.tables_s,
            seconds=max(0.0, self.seconds - self.tables_s),
            stopped="complete" if complete else "budget",
            steps=dict(steps),
            course=tuple(course),
        )


# what is being done, and how much of it is done (0 to 1)
Progress = Callable[[str, float], None]


def silent(what: str, share: float) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class SearchRequest:
    """One search. `model` is a ModelSpec or what the space's `model_of` makes.

    `options` are the space's own, by name, as text; `batch` is the global mini-batch B, None where
    nobody gave one. `given`: the user asked for these devices; else they are the parameters' own.
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
    space: str = ""

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch < 1:
            raise InputError(f"a batch of {self.batch} samples: give 1 at least")
        if self.optimizer not in STATES:
            raise InputError(f"unknown optimizer {self.optimizer!r}; known: {', '.join(STATES)}")

    def head(self, **changes: Any) -> dict[str, Any]:
        """The fields of a SearchedPlan that repeat the request, with `changes`."""
        return {
            "space": self.space,
            "method": self.method,
            "model": self.model.name,
            "nodes": self.devices.nodes,
            "devices_per_node": self.devices.per_node,
            "batch": self.batch,
            "form": self.form,
            "optimizer": self.optimizer,
            "memory_limit_bytes": self.devices.memory_bytes,
            "parameters": self.machine.parameters.provenance.cluster_name,
            **changes,
        }

    @property
    def spec(self) -> ModelSpec:
        """The model as a ModelSpec. Raises InputError for any other."""
        if not isinstance(self.model, ModelSpec):
            name = getattr(self.model, "name", "it")
            raise InputError(f"{name} has no layers that calib can train: choose another space")
        return self.model

    @property
    def room(self) -> str:
        """The memory limit and where it comes from, in words."""
        limit, of = self.devices.memory_bytes, self.machine.parameters
        whose = ""
        if limit == of.device_memory_bytes:
            sheet = NOTE in of.provenance.notes
            whose = f" ({of.provenance.cluster_name}{', by its data sheet' if sheet else ''})"
        return f"the memory limit of {bytes_words(limit)} per device{whose}"

    def no_room(self, least: int, what: str = "no plan fits") -> InputError:
        """The error that nothing fits; `least` bytes would do."""
        return InputError(
            f"{what} {self.room}: the smallest found takes {least} bytes ({bytes_words(least)})"
        )

    @property
    def samples(self) -> int:
        """The global mini-batch B. Raises InputError where it is not known."""
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
        """An option that is one of `known`, the first by default. Raises InputError."""
        text = self.options.get(option, "") or known[0]
        if text not in known:
            raise InputError(f"{option}={text} is unknown; known: {', '.join(known)}")
        return text

    def numbers(self, option: str, default: Sequence[float] = ()) -> tuple[float, ...]:
        """An option that is positive numbers with commas between them. Raises InputError."""
        text = self.options.get(option, "")
        try:
            found = tuple(map(float, text.split(","))) if text else tuple(default)
        except ValueError:
            found = (-1.0,)
        if not all(0.0 < value < float("inf") for value in found):
            raise InputError(f"{option}={text} are not numbers above 0, as 0.5,1,2")
        return found


@dataclass(frozen=True)
class Space:
    """A space of plans: one module of search/, and one line in its registry.

    `methods` and `options` say by name what each does; the first method is the default. `model_of`
    finds one of the space's own models by its name or file; None for any other name. `any_execution`:
    it prices layers in whatever execution was measured, not in float32 alone.
    """

    name: str
    about: str
    methods: Mapping[str, str]
    find: Callable[[SearchRequest], SearchedPlan]
    options: Mapping[str, str] = field(default_factory=dict)
    model_of: Callable[[str], Any] = lambda name: None
    models: tuple[str, ...] = ()
    any_execution: bool = False
