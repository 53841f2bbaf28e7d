"""The one interface of the searches: what it refuses, and budgets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.oracle.handmade import mlp

from calib.fitting.parameters.file import Parameters
from calib.foundation.errors import FileError, InputError
from calib.oracle.costs.machine import Machine
from calib.oracle.projection import PhaseTime
from calib.search import SPACES, search
from calib.search.nominal import nominal
from calib.search.plan import Certificate, PlanLayer, Searched, SearchedPlan
from calib.search.request import Budget, Devices, SearchRequest
from calib.training.models.specs import spec

TIME = PhaseTime(value=1.0, low=0.5, high=2.0, basis="interpolated")
PLAN = SearchedPlan(
    space="layerwise",
    method="elimination",
    model="m",
    nodes=2,
    devices_per_node=2,
    batch=8,
    form="measured",
    layers=(PlanLayer(name="a", kind="conv", choice="n=4", degrees={"sample": 4}),),
    phases={"compute": TIME},
    total=TIME,
    bytes_per_device=10,
    searched=Searched(
        evaluated=1, log10_space=0.0, tables_seconds=0.0, seconds=0.0, stopped="complete"
    ),
    certificate=Certificate(kind="optimal", lower_bound_s=1.0, gap=0.0, why="test"),
    parameters="nominal p100",
)


def request(**changes: Any) -> SearchRequest:
    given: dict[str, Any] = {
        "model": None,
        "devices": Devices(1, 2),
        "machine": Machine(nominal("p100")),
        "batch": 8,
        "method": "m",
        **changes,
    }
    return SearchRequest(**given)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Budget(seconds=float("nan")), "finds nothing"),
        (lambda: Devices(1 << 20, 4), "more than"),
        (lambda: Devices(1, 1, -1), "cannot be negative"),
        (lambda: request(batch=0), "batch of 0"),
        (lambda: request().spec, "no layers"),
        (lambda: request(options={"v": "x"}).whole("v", 1), "v=x is not a whole number"),
        (lambda: request(options={"v": "-1"}).number("v", 1.0), "not a number above 0"),
        (lambda: request(options={"v": "x"}).word("v", ("a", "b")), "known: a, b"),
        (lambda: request(options={"v": "1,nan"}).numbers("v"), "v=1,nan are not numbers above 0"),
    ],
)
def test_what_cannot_be_is_one_line(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as raised:
        make()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", SPACES)
def test_unknown_methods_and_options_are_refused(name: str) -> None:
    devices, parameters = Devices(1, 2), nominal("p100")
    with pytest.raises(InputError, match=f"unknown method 'luck' of the space {name}"):
        search(None, devices, parameters, name, "luck", batch=8)
    with pytest.raises(InputError, match="has no option 'luck'"):
        search(None, devices, parameters, name, batch=8, options={"luck": "1"})


def test_the_interface_takes_what_the_issue_names() -> None:
    """search(model, cluster, parameters, space, method, budget): 32 samples for each device."""
    model, cluster, budget = mlp([16, 8, 4]), Devices(1, 2), Budget(seconds=5)
    plan = search(model, cluster, nominal("p100"), "layerwise", "elimination", budget)
    assert plan.batch == 64 and plan.certificate.kind == "optimal"


def test_options_have_defaults() -> None:
    asked = request(options={"n": "3", "x": "2.5", "w": "b"})
    assert (asked.whole("n", 1), asked.whole("other", 7)) == (3, 7)
    assert (asked.number("x", 1.0), asked.number("other", 0.5)) == (2.5, 0.5)
    assert (asked.word("w", ("a", "b")), asked.word("other", ("a", "b"))) == ("b", "a")


def test_evaluations_are_spent() -> None:
    spending = Budget(seconds=None, evaluations=2).started()
    for spending.evaluated in range(3):
        assert spending.over == (spending.evaluated == 2)


def test_a_plan_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    PLAN.write(path)
    found = SearchedPlan.read(path)
    assert found.model_copy(update={"signature": ""}) == PLAN and PLAN.p == 4 and not found.edited
    text = path.read_text()
    path.write_text(text.replace('"batch": 8', '"batch": 9'))
    assert SearchedPlan.read(path).edited == "its signature is not that of its content"
    path.write_text(text.replace(found.signature, ""))
    assert SearchedPlan.read(path).edited == "it has no signature"
    path.write_text(text.replace('"format_version": 1', '"format_version": 99'))
    with pytest.raises(FileError, match="99"):
        SearchedPlan.read(path)
    path.write_text("{}")
    with pytest.raises(FileError, match="plan file"):
        SearchedPlan.read(path)


def test_a_limit_is_named_where_it_changes_an_answer() -> None:
    """Whose it is, and what it excludes; nothing is said of one that excludes nothing."""
    model, p100 = spec("vgg16"), nominal("p100")
    room = p100.device_memory_bytes
    sheet = "the memory limit of 16 GiB per device (nominal p100, by its data sheet)"

    def notes(batch: int, memory: int, of: Parameters = p100) -> list[str]:
        plan = search(
            model,
            Devices(1, 4, memory),
            of,
            "layerwise",
            batch=batch,
            form="paper",
            options={"dimensions": "sample,channel"},
        )
        held = {of.name: of.bytes_per_device for of in plan.baselines}
        assert (held["data"] > memory > 0) == any(
            "data" in x.split(" excludes ")[1] for x in excluded(plan.notes)
        )
        return excluded(plan.notes)

    def excluded(notes: Sequence[str]) -> list[str]:
        return [note for note in notes if "memory limit" in note]

    (found,) = notes(4 * 224, room)
    assert found.startswith(f"{sheet} excludes ")
    assert notes(4 * 224, 0) == [] and notes(4 * 8, 64 << 30) == []
    (given,) = notes(4 * 224, 16320 << 20)
    assert given.startswith("the memory limit of 15.9 GiB per device excludes ")
    about = p100.provenance.model_copy(update={"notes": [], "cluster_name": "rack 7"})
    (own,) = notes(4 * 224, room, p100.model_copy(update={"provenance": about}))
    assert own.startswith("the memory limit of 16 GiB per device (rack 7) excludes ")
    words = re.escape(f"no plan fits {sheet}: the smallest found takes ")
    with pytest.raises(InputError, match=words):
        notes(4 * 4096, room)


@pytest.mark.parametrize("form", ["paper", "measured"])
def test_pooling_to_the_size_that_there_is_costs_nothing_and_says_so(form: Any) -> None:
    """AlexNet at 224 x 224: 6 x 6 to 6 x 6, which training does not run."""
    plan = search(
        spec("alexnet"),
        Devices(1, 4),
        nominal("p100"),
        "layerwise",
        batch=128,
        form=form,
        options={"dimensions": "sample,channel"},
    )
    (pool,) = (layer for layer in plan.layers if layer.kind == "adaptive_avg_pool")
    assert pool.choice.endswith(", identity") and pool.bytes_per_device == 0
    assert pool.seconds["compute"] == 0
    said = (
        "avgpool: pooled to the size that it has, the identity: not run, so that it costs nothing"
    )
    assert said in plan.notes
    other = search(spec("resnet50"), Devices(1, 2), nominal("p100"), "exchange", batch=8)
    assert not any("identity" in note for note in other.notes)
    assert (
        said in search(spec("alexnet"), Devices(1, 2), nominal("p100"), "exchange", batch=8).notes
    )
