"""Tables of where intervals come from."""

from __future__ import annotations

from tests.reports.records import point, projection

from calib.oracle.projection import ErrorSource
from calib.oracle.sources import IN_PLACE, MACHINE
from calib.reports.page.sections import bars_section
from calib.reports.scoring.summary import summary
from calib.reports.tables.predictions import sources
from calib.reports.tables.sources import WIDEST, widest

MANY = ErrorSource(
    source=IN_PLACE, below_s=4e-3, above_s=6e-3, share=0.9995, mostly="update of one model"
)
FEW = ErrorSource(source=MACHINE, below_s=0.0, above_s=1e-4, share=0.0005)


def test_sources_with_a_share_that_counts() -> None:
    found = sources(projection(0.1).model_copy(update={"sources": [MANY, FEW]}))
    (row,) = found.rows
    assert row[:3] == ["in place", "-4.00 +6.00", "100.0%"]
    assert row[-1].endswith("; mostly update of one model")


def test_points_that_missed_come_first_then_the_widest() -> None:
    points = [point(1.0, 1.02, p=p) for p in range(2, 8)] + [point(1.0, 1.5, p=9)]
    told = [of.model_copy(update={"sources": [MANY]}) for of in points]
    table = widest(told)
    assert table is not None and len(table.rows) == 1 + WIDEST
    first = dict(zip(table.columns, table.rows[0], strict=True))
    assert first["p"] == "9" and first["in the interval"] == "no"
    assert first["mainly from"] == "in place (update of one model)"
    assert {row[list(table.columns).index("in the interval")] for row in table.rows[1:]} == {"yes"}


def test_predictions_of_others_have_no_sources() -> None:
    assert widest([point(1.0, 1.5)]) is None


def test_the_page_has_them() -> None:
    accuracy = point(1.0, 1.5).model_copy(update={"sources": [MANY]})
    section = bars_section([accuracy], summary([accuracy]))
    assert [table.title for table in section.tables][1:] == ["Where the intervals come from"]
