"""How numbers stand in the tables of a parameter file (us, GB/s).

A bandwidth is 1 / beta with the ends of its interval turned round. "x1.3" is an error factor: 95% of
the times lie between 1/1.3 of the law and 1.3 times it.
"""

from __future__ import annotations

from collections.abc import Callable

from calib.fitting.parameters.file import Parameters
from calib.foundation.execution import USUAL
from calib.foundation.records import Estimate
from calib.foundation.words import bytes_words, estimate_words, number, with_interval

NONE = "-"


def us(of: Estimate) -> str:
    """Seconds as microseconds with the interval."""
    return estimate_words(of, 1e6)


def ms(of: Estimate) -> str:
    """Seconds as milliseconds with the interval."""
    return estimate_words(of, 1e3)


def rate(price: float) -> str:
    """1 / price, s/B as GB/s or s/flop as GFLOP/s; a dash where it costs nothing."""
    return number(1e-9 / price) if price > 0 else NONE


def bandwidth(beta: Estimate) -> str:
    """1 / beta in GB/s (1e9 B/s) with its interval; "inf" where beta may be 0."""
    if beta.value <= 0:
        return f"inf [{rate(beta.high)}, inf]" if beta.high > 0 else NONE
    value, low = 1e-9 / beta.value, 1e-9 / beta.high
    if beta.low <= 0:
        return f"{number(value)} [{number(low)}, inf]"
    return with_interval(value, low, 1e-9 / beta.low)


def factor(value: float | None) -> str:
    """An error factor as `x1.32`; a dash where there is none."""
    return NONE if value is None else f"x{value:.{2 if value < 100 else 0}f}"


def span(low: float, high: float) -> str:
    """`8 B to 16 MiB`."""
    return bytes_words(low) if low == high else f"{bytes_words(low)} to {bytes_words(high)}"


def where(library: str, device: str, level: str) -> str:
    """What an operation ran through, on and across."""
    return f"{library}, {device}, {level}"


def two(first: str, second: str) -> str:
    """`first (second)`, or `first` alone where the second is none."""
    return first if second == NONE else f"{first} ({second})"


def execution_column(parameters: Parameters) -> Callable[[str], dict[str, str]]:
    """The cell of an execution by its name; none where all that the file has ran in float32."""
    names = {
        *(layer.execution for layer in parameters.layers),
        *(law.execution for law in parameters.work),
        *(loop.execution for loop in parameters.tensor_loops),
        *(law.execution for law in parameters.composition),
        *(reuse.execution for reuse in parameters.memory),
    }
    if names <= {USUAL, ""}:
        return lambda _: {}
    return lambda name: {"execution": execution_words(name)}


def execution_words(name: str) -> str:
    """The name of an execution, which a table can break before its marks."""
    return name.replace("+", " +")
