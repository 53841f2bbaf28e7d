"""What a given layer-wise plan costs."""

from __future__ import annotations

from collections.abc import Mapping

from calib.oracle.layout.partitions import Configuration
from calib.search.layerwise.plan_of import Priced, price
from calib.search.layerwise.tables import Pricing
from calib.search.request import SearchRequest


def priced(request: SearchRequest, plan: Mapping[str, Configuration]) -> Priced:
    """The costs of a plan by phase, with intervals."""
    return price(Pricing(request), [plan[layer.name] for layer in request.spec.layers])
