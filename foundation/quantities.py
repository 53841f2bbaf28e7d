"""Types of the numbers in records: one for each kind, with bounds beyond any machine.

A number outside its bounds is a mistake of units or a spoilt file, and is refused where it is read.
Within them, whatever is computed from a record is finite. Bounds are generous; each says its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from pydantic import Field, ValidationError

from calib.foundation.errors import InputError
from calib.foundation.files import first_error

MAX_SECONDS = 1e9  # 30 years: longer than any machine lives
LEAST_SECONDS = 1e-15  # a millionth of a clock cycle; what took no time is 0
MAX_UNIX_S = 1e11  # the year 5138
MAX_ALPHA_S = 10.0  # a start-up of a message
MAX_S_PER_BYTE = 10.0  # a thousand million times slower than any link
MAX_S_PER_FLOP = 10.0  # the same of any processor
MAX_BYTES = 2**63 - 1  # what a file system can count
MAX_COUNT = 2**63 - 1  # what a database can
MAX_RANKS = 10**9  # a hundred times the cores of the largest machine
MAX_FLOPS = 1e30  # a day of a million of the largest machines
MAX_PER_SECOND = 1e25  # operations or bytes; a million times the largest machine
MAX_RATIO = 1e15  # of two times, or of an error to its value
MAX_LOG = 100.0  # logarithms of such ratios, flops and bytes
MAX_GROWTH = 1e3  # of an interval, for a decade of extrapolation

Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]
UnixSeconds = Annotated[  # since 1970, UTC
    float, Field(ge=0, le=MAX_UNIX_S, allow_inf_nan=False)
]
SignedSeconds = Annotated[float, Field(ge=-MAX_SECONDS, le=MAX_SECONDS, allow_inf_nan=False)]
SecondsPerByte = Annotated[float, Field(ge=0, le=MAX_S_PER_BYTE, allow_inf_nan=False)]
SecondsPerFlop = Annotated[float, Field(ge=0, le=MAX_S_PER_FLOP, allow_inf_nan=False)]
Nbytes = Annotated[float, Field(ge=0, le=MAX_BYTES, allow_inf_nan=False)]  # a law's, or a mean
WholeBytes = Annotated[int, Field(ge=0, le=MAX_BYTES)]
Bandwidth = Annotated[float, Field(gt=0, le=MAX_PER_SECOND, allow_inf_nan=False)]  # B/s
Flops = Annotated[float, Field(ge=0, le=MAX_FLOPS, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=0, le=MAX_RATIO, allow_inf_nan=False)]
SignedRatio = Annotated[float, Field(ge=-MAX_RATIO, le=MAX_RATIO, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=1, le=MAX_RATIO, allow_inf_nan=False)]
Growth = Annotated[float, Field(ge=0, le=MAX_GROWTH, allow_inf_nan=False)]
Logarithm = Annotated[float, Field(ge=-MAX_LOG, le=MAX_LOG, allow_inf_nan=False)]
Residuals = Annotated[
    list[SignedRatio], Field(description="measured / law - 1 at 5, 25, 50, 75 and 95% of them")
]
# NaN or infinite in memory, null in JSON, where it is not known
FiniteOrNull = Annotated[float, Field(json_schema_extra={"type": ["number", "null"]})]
# a value of any of these kinds
Magnitude = Annotated[float, Field(ge=0, le=MAX_FLOPS, allow_inf_nan=False)]
SignedMagnitude = Annotated[float, Field(ge=-MAX_FLOPS, le=MAX_FLOPS, allow_inf_nan=False)]

Ranks = Annotated[int, Field(ge=1, le=MAX_RANKS)]  # or nodes, or groups
ActiveRanks = Annotated[Ranks, Field(description="ranks of one node that worked at once")]
KnownRanks = Annotated[int, Field(ge=0, le=MAX_RANKS)]  # 0 unknown, or an index of one
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
CountOrNone = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Whole = Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)]
FormatVersion = Annotated[
    int,
    Field(
        ge=1, strict=True, description="of the record's format; a file of a later one is refused"
    ),
]


@contextmanager
def possible(what: str) -> Iterator[None]:
    """Around code that makes records of computed numbers: one beyond its bounds is an InputError.

    `what` names the whole: "the prediction of ...".
    """
    try:
        yield
    except ValidationError as error:
        raise InputError(f"{what} is outside plausible bounds: {first_error(error)}") from error
    except OverflowError as error:
        raise InputError(f"{what} is outside plausible bounds: {error}") from error
