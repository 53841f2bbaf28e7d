"""One row of the target csv: a number of the parameter file with all that tells it apart."""

from __future__ import annotations

from typing import NamedTuple

from calib.fitting.parameters.records import SignedEstimate

Number = int | float
ONE, SECONDS, PER_BYTE, BYTES = "1", "s", "s/B", "B"


class Row(NamedTuple):
    """A number with all that tells it apart; "" and None where that does not apply.

    `kind` is of a layer; `law` what describes the times (line, pieces, points, an algorithm, sum),
    `form` how (flat or hierarchical), `part` which piece, band, point or neighbour of it, from 0;
    `low95` and `high95` the 95% interval. `start` and `end` are the columns from and to: between
    which sizes (or at which one) the number holds, in `range_unit`. `error` is the mean relative
    error of the law that the number is of.
    """

    section: str
    operation: str = ""
    library: str = ""
    device: str = ""
    dtype: str = ""
    level: str = ""
    ranks: int | None = None
    nodes: int | None = None
    stride: int | None = None
    active_ranks: int | None = None
    batch: int | None = None
    name: str = ""
    kind: str = ""
    law: str = ""
    form: str = ""
    part: int | None = None
    quantity: str = ""
    unit: str = ONE
    value: Number | None = None
    low95: Number | None = None
    high95: Number | None = None
    start: Number | None = None
    end: Number | None = None
    range_unit: str = ""
    n: int | None = None
    error: float | None = None

    def of(self, quantity: str, found: SignedEstimate | Number | None, unit: str = ONE) -> Row:
        """The same law's number `found`; None is one that was not known."""
        if found is None or isinstance(found, (int, float)):
            return self._replace(quantity=quantity, unit=unit, value=found)
        if not found.has_interval:  # one time alone: its ends would read as certainty
            return self._replace(quantity=quantity, unit=unit, value=found.value)
        return self._replace(
            quantity=quantity, unit=unit, value=found.value, low95=found.low, high95=found.high
        )

    def between(self, start: Number, end: Number, unit: str = BYTES) -> Row:
        """The same, for these sizes."""
        return self._replace(start=start, end=end, range_unit=unit)

    def at(self, place: Number, unit: str = BYTES) -> Row:
        """The same, at one size."""
        return self.between(place, place, unit)
