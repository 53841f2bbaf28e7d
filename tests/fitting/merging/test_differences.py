"""differences(): by hand, what lies beyond both intervals and what does not."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.helpers import filled as f

from calib.fitting.merging.differences import differences, quantities
from calib.fitting.parameters.file import Parameters
from calib.foundation.environment import Environment
from calib.foundation.errors import InputError
from calib.foundation.records import Estimate


def elsewhere(parameters: Parameters, **changes: Any) -> Parameters:
    """The file as another measurement, of another cluster if so said."""
    source = parameters.provenance.model_copy(update={"samples_sha256": ["cd" * 32], **changes})
    return parameters.model_copy(update={"provenance": source})


def test_a_file_does_not_differ_from_itself() -> None:
    found = differences(f.filled(), f.filled())
    assert found.changed == [] and found.only_first == found.only_second == {}
    assert found.whole.both == 1.0 and found.whole.median_log_ratio == 0.0
    assert found.notes == [
        "both files are fits of the same samples: what differs is how they were fitted"
    ]


def test_every_section_has_quantities() -> None:
    sections = set(differences(f.filled(), f.filled()).sections)
    lists = {name for name, value in f.filled() if isinstance(value, list)}
    assert sections == lists


def test_keys_are_unique() -> None:
    keys = [key for key, _ in quantities(f.filled())]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("margins", "differs"),
    [((0.05, 0.05), True), ((0.3, 0.05), False), ((0.05, 0.3), False), ((0.3, 0.3), False)],
)
def test_a_quantity_differs_where_neither_value_lies_in_the_others_interval(
    margins: tuple[float, float], differs: bool
) -> None:
    """2 and 2.5 us: 25% and 20% apart, so that +-30% of either holds the other."""
    one = f.filled(collectives=[f.collective(intercept_s=f.near(4e-6, margins[0]))])
    two = elsewhere(f.filled(collectives=[f.collective(intercept_s=f.near(5e-6, margins[1]))]))
    found = differences(one, two)
    changed = [(p.kind, p.label, p.operation, p.unit) for p in found.changed]
    law = "allreduce (mpi, cpu, node, p=2)"
    assert changed == ([("collectives", law, "alpha", "s")] if differs else [])
    if differs:
        assert found.changed[0].log_ratio == pytest.approx(math.log(1.25))
    assert found.notes == []


def test_the_largest_change_comes_first_and_one_from_nothing_before_all() -> None:
    none = Estimate.exactly(0.0)
    one = f.filled(memory=[f.memory(constant_bytes=none)], overlap=[f.overlap(eta=f.near(0.3))])
    two = f.filled(layers=[f.layer(forward_s=f.near(5e-5))])
    found = differences(one, elsewhere(two))
    assert [(p.kind, p.operation) for p in found.changed] == [
        ("memory", "constant"),
        ("layers", "forward"),
        ("overlap", "eta"),
    ]
    # the first has 0 and cannot hold a positive value; the eta doubled, the forward halved
    assert found.changed[0].log_ratio == math.inf
    assert abs(found.changed[1].log_ratio) == pytest.approx(math.log(2))
    assert found.sections["overlap"].both == 0.5, "the slowdown is the same"


def test_what_only_one_file_has_is_counted() -> None:
    one = f.filled(collectives=[f.collective(2)], overlap=[])
    two = elsewhere(f.filled(collectives=[f.collective(2), f.collective(4)]))
    found = differences(one, two)
    assert found.only_first == {}
    # alpha, beta and eight sizes of p = 4; eta and slowdown
    assert found.only_second == {"collectives": 10, "overlap": 2}


def test_a_structural_law_is_compared_by_what_it_adds_to_direct_laws() -> None:
    other = f.filled(structural=[f.structural(links_exponent=f.near(0.25))])
    (found,) = differences(f.filled(), elsewhere(other)).changed
    assert found.operation == "links exponent"
    assert found.log_ratio == pytest.approx(-math.log(2))


def test_another_cluster_is_refused_unless_asked_for() -> None:
    other = elsewhere(f.filled(), cluster_fingerprint="f" * 16)
    with pytest.raises(InputError, match="of different clusters "):
        differences(f.filled(), other)
    found = differences(f.filled(), other, across=True)
    assert found.notes == [f"the files are of different clusters (0123456789abcdef and {'f' * 16})"]


def test_files_without_a_law_in_common_are_refused() -> None:
    lists = [name for name, value in f.filled() if isinstance(value, list)]
    bare = f.filled(**{name: [] for name in lists})
    with pytest.raises(InputError, match="no law in common"):
        differences(f.filled(), bare)


def test_circumstances_that_changed_are_noted() -> None:
    two = elsewhere(f.filled(device="Other CPU", ranks_per_node=4), program_version="0.2.0")
    assert differences(f.filled(), two).notes == [
        "device: Some CPU in the first file, Other CPU in the second",
        "ranks per node: 8 in the first file, 4 in the second",
        "calib: 0.1.0 in the first file, 0.2.0 in the second",
    ]


def test_environments_that_differ_are_noted() -> None:
    """Of the same number of ranks; where one is not known, nothing is said."""
    one, two = (Environment(ranks=n, threads=1, cores=2) for n in (1, 2))
    wide = two.model_copy(update={"threads": 2})
    first = elsewhere(f.filled(), environments=[one, two])
    assert differences(first, elsewhere(f.filled(), environments=[wide])).notes[1:] == [
        "environment of 2 ranks: threads: 1 and 2"
    ]
    assert len(differences(first, f.filled()).notes) == 0
