"""What a slow part of a cluster costs an iteration, by the parameters of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from calib.fitting.outliers.check import Culprit, Symptom
from calib.fitting.parameters.file import Parameters
from calib.foundation.division import Division
from calib.foundation.errors import CalibError
from calib.foundation.records import Estimate
from calib.microbench.records.peers import CONVOLUTION, MEMORY, OF_A_DEVICE, PRODUCT
from calib.oracle.model.spec import ModelSpec
from calib.oracle.predict import project
from calib.oracle.what_if.changes import apply

# by which an iteration's layers are taken to be slower, the first that a device is slow in
LIKE_LAYERS = (CONVOLUTION, PRODUCT, MEMORY)
End = Literal["value", "low", "high"]


@dataclass(frozen=True)
class Cost:
    """A culprit, and an iteration's time with it over that without, less 1."""

    culprit: Culprit
    share: Estimate
    at_most: bool


def cost_of(
    culprit: Culprit,
    model: ModelSpec,
    division: Division,
    parameters: Parameters,
    included: bool = False,
) -> Cost | None:
    """How much longer an iteration takes with a culprit among its ranks.

    All ranks wait for the slowest, so what it is slow in is scaled for all: the time per byte between
    nodes by its large sizes, the start-up by its small ones, all layers by a device's.

    Parameters
    ----------
    culprit
        Who is slow.
    model, division
        What is trained, and how.
    parameters
        Of the machine without the culprit, or with it where it is `included`.
    included
        Whether the parameters were measured with it.

    Returns
    -------
    Cost or None
        The share by which the iteration is longer, for the slowdown and the ends of its interval. At
        most that of a pair: whether the two exchange anything depends on the order of the ranks. None
        where the parameters do not have what it slows down, or it fails.
    """
    shares = []
    for end in ("low", "value", "high"):
        settings = _settings(culprit.symptoms, end, included)
        if not settings and end == "value":
            return None
        try:
            as_is = project(model, division, parameters).total
            changed = project(model, division, apply(parameters, settings)).total
        except CalibError:
            return None
        if as_is is None or changed is None:
            return None
        longer, shorter = (as_is, changed) if included else (changed, as_is)
        shares.append(max(longer.value / shorter.value - 1.0, 0.0))
    low, value, high = shares
    return Cost(culprit, Estimate.around(value, low, high), culprit.kind == "pair")


def _settings(symptoms: Sequence[Symptom], end: End, included: bool) -> list[str]:
    """What-if settings of a culprit: each path once, by the worst of what it is slow in."""
    factors: dict[str, float] = {}
    devices = {each.what: each for each in symptoms if each.what in OF_A_DEVICE}
    layers = next((devices[what] for what in LIKE_LAYERS if what in devices), None)
    for symptom in symptoms:
        if symptom.slowdown is None:
            continue
        link = "alpha_s" if symptom.aspect == "start-up" else "beta_s_per_byte"
        path = f"communication.{'intra' if symptom.scope == 'node' else 'inter'}_node.{link}"
        if symptom.scope == "device":
            if symptom is not layers:
                continue
            path = "compute.all_s"
        factor = max(1.0, getattr(symptom.slowdown, end))
        factors[path] = max(factor, factors.get(path, 1.0))
    return [f"{path}*={1.0 / f if included else f:.9g}" for path, f in factors.items() if f > 1.0]
