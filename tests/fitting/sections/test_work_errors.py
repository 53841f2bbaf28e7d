"""Errors of laws between batches, and over the layers of a model, of data whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from tests.helpers.rows import as_samples, constant

from calib.fitting.parameters.file import WorkModel
from calib.fitting.sections.compute import layer_times
from calib.fitting.sections.work_laws import work_models
from calib.foundation.layer_keys import but_batch
from calib.foundation.layers import LayerShape
from calib.microbench.cases import LayerCase

CALL, PER_BYTE = 4e-6, 2e-10


def passing(items: int, batch: int = 8) -> LayerCase:
    shape = LayerShape(kind="relu", input_shapes=((items,),), output_shape=(items,))
    return LayerCase(ranks=2, layer=shape, batch=batch)


def seconds(case: LayerCase) -> float:
    return CALL + PER_BYTE * 8 * case.batch * case.layer.output_items


def fitted(rows: Sequence[tuple[LayerCase, float, str]]) -> WorkModel:
    """The law of ReLU's forward, of (case, seconds, model)."""
    samples = [row for case, time, _ in rows for row in constant(case, "forward", time)]
    cases = {case.id: case for case, _, _ in rows}
    owners = {but_batch(case.key): model for case, _, model in rows}
    laws = work_models(layer_times(as_samples(samples), cases), cases, owners=owners)
    (law,) = (law for law in laws if law.kind == "relu")
    return law


def test_the_error_between_batches_is_of_the_ratio_alone() -> None:
    """Layers that are off by factors up to 2 are exact from batch to batch."""
    off = {2**k: 2.0 ** ((k % 3) - 1) for k in range(12, 20)}
    cases = [(passing(items, batch), factor) for items, factor in off.items() for batch in (2, 8)]
    law = fitted([(case, factor * seconds(case), "") for case, factor in cases])
    assert law.batch_factor < 1.2 < law.error_factor
    once = [passing(items) for items in off]
    assert fitted([(case, seconds(case), "") for case in once]).batch_factor == 0.0  # not known


def test_the_error_between_batches_counts_for_each_doubling() -> None:
    """A layer whose time grows 1.44 more in four times the batch: 1.2 for each doubling."""
    exact = [passing(2**k, batch) for k in range(10, 22, 2) for batch in (2, 8)]
    rows = [(case, seconds(case), "") for case in exact]
    for batch, more in ((2, 1.0), (8, 1.44)):
        odd = passing(3000, batch)
        rows.append((odd, more * seconds(odd), ""))
    assert fitted(rows).batch_factor == pytest.approx(1.2, abs=0.02)


@pytest.mark.parametrize(("common", "own"), [(0.3, 0.0), (0.0, 0.3), (0.2, 0.2)])
def test_what_the_layers_of_a_model_have_in_common(common: float, own: float) -> None:
    """Eight models of six layers, off by a factor of the model and one of the layer."""
    shares = []
    for seed in range(8):
        generator = np.random.default_rng(seed)
        rows = []
        for number in range(8):
            of_model = common * generator.standard_normal()
            for layer in range(6):
                case = passing(4096 + 97 * (6 * number + layer))
                off = of_model + own * generator.standard_normal()
                rows.append((case, math.exp(off) * seconds(case), f"model{number}"))
        shares.append(fitted(rows).shared)
    assert np.mean(shares) == pytest.approx(common**2 / (common**2 + own**2), abs=0.2)


def test_of_few_models_all_is_taken_as_common() -> None:
    cases = [passing(2**k) for k in range(12, 20)]
    times = [(case, (1.0 + 0.1 * (n % 2)) * seconds(case)) for n, case in enumerate(cases)]
    for models in (0, 3):
        rows = [(c, t, f"m{n // 2}" if n // 2 < models else "") for n, (c, t) in enumerate(times)]
        assert fitted(rows).shared == 1.0
