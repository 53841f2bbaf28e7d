"""What a given layer-wise plan costs."""

from __future__ import annotations

from collections.abc import Mapping

from calib.oracle.layout.partitions import Configuration
from calib.search.layerwise.plan_of import Priced, price
from calib.search.layerwise.search import pricing_of
from calib.search.request import SearchRequest


def priced(request: SearchRequest, plan: Mapping[str, Configuration]) -> Priced:
    """The costs of a plan by phase, with intervals."""
    return price(pricing_of(request)[0], plan)
