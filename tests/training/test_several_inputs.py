"""Models of several inputs (the example in docs/other-training.md) and of several outputs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.helpers.tensor_ranks import on_ranks

from calib.foundation.division import Division
from calib.foundation.errors import InputError
from calib.oracle.model.spec import ModelSpec
from calib.training.checks.own import described, require_as_traced, traced
from calib.training.models import entry
from calib.training.step import TrainingStep, synthetic_batch

DOCS = Path(__file__).parents[2] / "docs/other-training.md"
ROWS, TABLES, WIDTH = 1000, 26, 16


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (example,) = re.findall(r"```python\n(from torch import.*?)```", DOCS.read_text(), re.DOTALL)
    (tmp_path / "dlrm_of_docs.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("dlrm_of_docs", None)


def spec() -> ModelSpec:
    return traced("dlrm_of_docs:OneInput", (39,), "dlrm", "cross_entropy")


def test_its_layers(here: None) -> None:
    model = spec()
    assert (model.rows, model.classes) == (ROWS, 2)
    pairs = (TABLES + 1) ** 2
    products = [13 * 64, 64 * WIDTH, pairs * WIDTH, (WIDTH + pairs) * 64, 64 * 2]
    assert model.multiply_adds() == sum(products)
    tables = [layer for layer in model.layers if layer.shape.name == "embedding"]
    assert len(tables) == TABLES
    require_as_traced(model)


def test_it_is_trained_on_rows_of_its_tables(here: None) -> None:
    own = spec().own
    assert own is not None
    assert described.__wrapped__("dlrm_of_docs:OneInput", (39,), "cross_entropy") == own
    about = entry("dlrm", own)
    inputs, _ = synthetic_batch(about, 50, 0)
    assert inputs.dtype == torch.int64 and inputs.min() >= 0 and 900 < inputs.max() < ROWS
    division = Division("data", 2, 8)

    def program(teams: object) -> float | None:
        return TrainingStep(about, division, 0, teams).iterate()[1]  # type: ignore[arg-type]

    assert all(loss and 0 < loss < 5 for loss in on_ranks(division, program))


def test_the_advice_where_it_is_not_wrapped(here: None) -> None:
    with pytest.raises(InputError, match=r"reads numbers, categories: .*Several inputs") as caught:
        traced("dlrm_of_docs:Dlrm", (39,), "dlrm", "cross_entropy")
    assert "\n" not in str(caught.value)


LIKE_TRANSFORMERS = """
from torch import nn


class Model(nn.Module):
    config = None
    names = ("logits", "hidden")

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x, labels=None):
        return {name: self.linear(x) for name in self.names}


class Bare(Model):
    names = ("last", "pooled")
"""


def test_the_logits_of_a_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "like_transformers.py").write_text(LIKE_TRANSFORMERS)
    monkeypatch.chdir(tmp_path)
    model = traced("like_transformers:Model", (6,), "model", "cross_entropy")
    assert [layer.name for layer in model.layers] == ["linear", "loss"]
    with pytest.raises(InputError, match=r"returns last, pooled: .* self.model\(x\).last"):
        traced("like_transformers:Bare", (6,), "bare", "cross_entropy")
    sys.modules.pop("like_transformers")
