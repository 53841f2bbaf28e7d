"""The kinds of numbers: what each holds, and that what is computed from them is one line or a number."""

from __future__ import annotations

import math

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from calib.foundation import quantities
from calib.foundation.errors import InputError
from calib.foundation.quantities import (
    FormatVersion,
    Nbytes,
    Seconds,
    SecondsPerByte,
    WholeBytes,
    possible,
)

NEVER = (float("nan"), float("inf"), -1.0, 1e300)


@pytest.mark.parametrize("kind", [Seconds, Seconds, SecondsPerByte, Nbytes, WholeBytes])
@pytest.mark.parametrize("value", NEVER)
def test_what_no_quantity_is(kind: object, value: float) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(value)


@pytest.mark.parametrize("value", [True, 1.0, 1e9, "1", 0, -3, None])
def test_a_version_is_a_whole_number(value: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(FormatVersion).validate_python(value)


def test_the_largest_of_each_kind_make_a_finite_time() -> None:
    """Bytes at a price on all ranks, as far off as an interval goes, is still a double."""
    worst = quantities.MAX_BYTES * quantities.MAX_S_PER_BYTE * quantities.MAX_RANKS
    assert math.isfinite(worst * quantities.MAX_RATIO * quantities.MAX_GROWTH**50)
    assert math.isfinite(math.exp(quantities.MAX_LOG) * worst)


def test_what_comes_out_beyond_is_one_line() -> None:
    class One(BaseModel):
        seconds: Seconds

    message = r"^the sum is outside plausible bounds: seconds: must be"
    with pytest.raises(InputError, match=message), possible("the sum"):
        One(seconds=1e10)
    with (
        pytest.raises(InputError, match="the power is outside plausible bounds"),
        possible("the power"),
    ):
        One(seconds=10.0**400)
