"""Links and nominal machines: the collectives of formulas.md in both forms."""

from __future__ import annotations

import math

import pytest

from calib.foundation.errors import InputError
from calib.oracle.cost import NOTHING
from calib.oracle.costs.machine import Machine
from calib.oracle.projection import Form
from calib.search.links import Collective, LinkGroup, Links, adapted
from calib.search.nominal import FACTOR, NOMINAL, nominal
from calib.search.request import Devices

FORMS: tuple[Form, ...] = ("measured", "paper")
M = float(1 << 24)  # a power of two, where no law is interpolated


def links(name: str, form: Form) -> Links:
    of = NOMINAL[name]
    devices = Devices(of.nodes, of.per_node)
    machine, notes = adapted(Machine(nominal(name)), devices)
    assert notes == ()
    return Links(machine, devices, form)


def hockney(operation: Collective, p: int, alpha: float, beta: float) -> float:
    if operation == "allreduce":
        return 2 * (p - 1) * (alpha + M * beta / p)
    if operation == "broadcast":
        return math.ceil(math.log2(p)) * (alpha + M * beta)
    return (p - 1) * (alpha + M * beta / p)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "operation", ["allreduce", "allgather", "reduce_scatter", "all_to_all", "broadcast"]
)
def test_collectives_are_those_of_the_table(operation: Collective, form: Form) -> None:
    of, found = NOMINAL["p100"], links("p100", form)
    inside = found.cost(operation, M, LinkGroup(1, 4))
    wanted = hockney(operation, 4, of.node_alpha_s, 1 / of.node_bytes_per_s)
    assert inside.seconds == pytest.approx(wanted, rel=1e-9)
    across = found.cost(operation, M, LinkGroup(4, 4), at_once=1)
    wanted = hockney(operation, 16, of.system_alpha_s, 1 / of.system_bytes_per_s)
    if (operation, form) == ("all_to_all", "measured"):
        wanted *= 12 / 15  # messages to the 3 ranks of the own node take no time beside the others
    assert across.seconds == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NOMINAL)
def test_messages_take_alpha_and_beta(name: str, form: Form) -> None:
    of, found = NOMINAL[name], links(name, form)
    across = found.p2p(M, between_nodes=True)
    assert across.seconds == pytest.approx(of.system_alpha_s + M / of.system_bytes_per_s, rel=1e-9)
    if of.per_node > 1:
        inside = found.p2p(M, between_nodes=False, count=3)
        wanted = 3 * (of.node_alpha_s + M / of.node_bytes_per_s)
        assert inside.seconds == pytest.approx(wanted, rel=1e-9)
    # a data sheet is no measurement: the interval says so
    assert across.high >= 0.99 * FACTOR * across.seconds


def test_alone_or_without_bytes_nothing_is_sent() -> None:
    found = links("p100", "measured")
    assert found.cost("allreduce", M, LinkGroup(1, 1)) is NOTHING
    assert found.cost("allreduce", 0, LinkGroup(1, 4)) is NOTHING
    assert found.p2p(0, True) is NOTHING


@pytest.mark.parametrize("group", [LinkGroup(5, 1), LinkGroup(1, 3), LinkGroup(2, 8)])
def test_a_group_that_is_no_part_is_refused(group: LinkGroup) -> None:
    with pytest.raises(InputError, match="no part of a cluster of 4 x 4"):
        links("p100", "measured").cost("allreduce", M, group)


def test_other_nodes_than_the_parameters_are_told() -> None:
    machine, notes = adapted(Machine(nominal("p100")), Devices(2, 8))
    assert machine.parameters.ranks_per_node == 8
    assert notes == ("parameters were measured with 4 devices per node; 8 were asked for",)


def test_nominal_parameters_are_a_file(tmp_path: pytest.TempPathFactory) -> None:
    for name in NOMINAL:
        found = nominal(name)
        again = type(found).parse(found.model_dump(), name)
        assert again == found
        assert any("nothing was measured" in note for note in found.provenance.notes)
    with pytest.raises(InputError, match="known: p100"):
        nominal("p200")
