"""The space `pipeline` through oracle.search.search, on nominal parameters and on a profile."""

from __future__ import annotations

import pytest

from foundation.errors import InputError
from oracle.division import Division
from oracle.model import ModelSpec
from oracle.predict import project
from oracle.search import search
from oracle.search.nominal import nominal
from oracle.search.pipelines import SPACE
from oracle.search.plan import Plan
from oracle.search.request import Devices
from reports.timeline_figure import timeline_figure
from tests.helpers.published import DATA, needs_data
from tests.oracle.handmade import mlp

BATCH = 16


def model() -> ModelSpec:
    return mlp([64, 512, 256, 512, 128, 64, 10])


FOUR = Devices(1, 4)


def planned(method: str, devices: Devices = FOUR, **options: str) -> Plan:
    return search(model(), devices, nominal("v100"), "pipeline", method, batch=BATCH,
                  options=options)  # fmt: skip


@pytest.mark.parametrize("method", list(SPACE.methods))
@pytest.mark.parametrize("form", ["measured", "paper"])
def test_a_plan_of_every_method(method: str, form: str) -> None:
    of = search(model(), Devices(1, 4), nominal("v100"), "pipeline", method, batch=BATCH, form=form)
    assert of.stages[0].first == 0 and of.stages[-1].stop == len(model().layers)
    assert sum(time.seconds for time in of.phases.values()) == pytest.approx(of.total.seconds)
    assert of.total.low <= of.total.seconds <= of.total.high
    assert of.certificate.lower_bound_s is not None
    assert of.certificate.lower_bound_s <= of.total.seconds * (1 + 1e-12)
    assert sum(stage.replicas for stage in of.stages) == 4 * (2 if method == "interleaved" else 1)
    assert [layer.name for layer in of.layers] == [layer.name for layer in model().layers]
    figure = timeline_figure(of.timeline)
    assert sum(len(trace["x"]) for trace in figure["data"]) == len(of.timeline) > 0
    assert len(figure["layout"]["yaxis"]["tickvals"]) == len({event.row for event in of.timeline})


def test_what_training_runs_is_projected() -> None:
    """The table has the oracle's own prediction of the same division, beside the simulation."""
    of = planned("straight", microbatches="4")
    (row,) = of.tables["micro-batches"]
    division = Division("pipeline", 4, BATCH, segments=4, schedule="1f1b",
                        boundaries=tuple(stage.first for stage in of.stages[1:]))  # fmt: skip
    total = project(model(), division, nominal("v100")).total
    assert total is not None and row["projected_s"] == pytest.approx(total.seconds)
    # its update begins when the slowest has; the simulation's as soon as a stage is done
    assert of.total.seconds <= total.seconds * (1 + 1e-9)


def test_memory_is_a_constraint() -> None:
    """Too little names the least that would do, and that does; GPipe keeps all micro-batches."""
    free = planned("pipedream")
    with pytest.raises(InputError, match="smallest memory that would do is") as error:
        planned("pipedream", Devices(1, 4, 1000))
    least = int(str(error.value).split()[-2])
    fitting = planned("pipedream", Devices(1, 4, least))
    assert fitting.bytes_per_device <= least <= max(free.bytes_per_device, least)
    assert fitting.total.seconds >= free.total.seconds


def test_stashed_weights() -> None:
    """A version for each mini-batch in flight, the gradients, momentum; activations of all of them."""
    of = planned("pipedream")
    for row, stage in zip(of.tables["stages"], of.stages, strict=True):
        assert row["weight_versions"] == row["in_flight"]
        layers = model().layers[stage.first : stage.stop]
        weights = 4 * sum(layer.shape.parameter_items for layer in layers)
        items = sum(x.shape.input_items + x.shape.output_items for x in layers)
        flying = int(row["in_flight"])
        assert row["bytes"] == weights * (flying + 2) + 8 * BATCH * items * flying


def test_recomputing_holds_less() -> None:
    """Inputs of all micro-batches and the activations of one: O(N + (L/K)(N/M))."""
    kept = planned("gpipe", microbatches="8")
    again = planned("gpipe", microbatches="8", recompute="yes")
    assert again.bytes_per_device < kept.bytes_per_device
    assert again.phases["recompute"].seconds == pytest.approx(again.phases["forward"].seconds)


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("pipedream", {"machines": "0x4"}, "machines=0x4"),
        ("pipedream", {"bandwidth": "1,2,3"}, "3 bandwidths for 1 levels"),
        ("pipedream", {"bandwidth": "nan"}, "bandwidth=nan"),
        ("pipedream", {"microbatches": "2"}, "no microbatches"),
        ("gpipe", {"microbatches": "3"}, "do not divide"),
        ("gpipe", {"schedule": "pipedream"}, "schedule=pipedream"),
        ("interleaved", {"microbatches": "2"}, "groups of the 4 devices"),
        ("interleaved", {"chunks": "9"}, "too few for 36 stages"),
        ("straight", {"machines": "32"}, "too few for 32 stages"),
    ],
)
def test_refusals(method: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        planned(method, **options)


@needs_data
def test_a_profile_on_two_levels() -> None:
    """Golden: reference_partitions.json, vgg16 -n 4 4 -b 10e9 1.25e9 (without compression)."""
    profile = SPACE.model_of(str(DATA / "pipedream" / "vgg16.graph.txt"))
    of = search(profile, Devices(1, 1), nominal("v100"), "pipeline", batch=64,
                options={"machines": "4x4", "bandwidth": "10e9,1.25e9"})  # fmt: skip
    assert of.total.seconds == pytest.approx(0.044121074311111085, abs=1e-9)
    assert (of.nodes, of.devices_per_node) == (4, 4)
    assert [(s.first, s.stop, s.replicas) for s in of.stages] == [(0, 16, 3), (16, 40, 1)]
    inner = [[(s.first, s.stop, s.replicas) for s in stage.inner] for stage in of.stages]
    assert inner == [[(0, 16, 4)], [(16, 25, 3), (25, 40, 1)]]


@needs_data
def test_too_many_cuts_are_told() -> None:
    """Inception's branches have more antichains than are searched: no plan of it is called optimal."""
    profile = SPACE.model_of(str(DATA / "pipedream" / "inception_v3.graph.txt"))
    of = search(profile, Devices(1, 4), nominal("v100"), "pipeline", batch=64)
    assert of.certificate.kind == "bound" and any("too many cuts" in note for note in of.notes)


def test_names_of_models() -> None:
    assert SPACE.model_of("vgg16") is None
