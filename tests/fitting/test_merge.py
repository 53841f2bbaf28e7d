"""merge(): by hand what is taken from where, and the laws of a union for any parts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fitting.findings import Finding
from fitting.merge import Counts, Merged, Prefer, merge
from fitting.parameters import Parameters
from fitting.review import review
from fitting.signature import Signed, digest
from foundation.errors import InputError
from tests.helpers import filled as f

SECTIONS = [name for name, value in f.filled() if isinstance(value, list)]
BARE: dict[str, Any] = {name: [] for name in SECTIONS}
TODAY = datetime(2026, 11, 22, tzinfo=UTC)


def a_file(name: str, source: dict[str, Any] | None = None, **content: Any) -> Signed:
    """A file with this content and nothing else, as it was read."""
    about = {"samples_sha256": [name * 64], **(source or {})}
    provenance = f.filled().provenance.model_copy(update=about)
    parameters = f.filled(**{**BARE, "provenance": provenance, **content})
    return as_read(parameters, name)


def as_read(parameters: Parameters, name: str = "m", edited: bool = False) -> Signed:
    return Signed(parameters, digest(parameters.signed()), edited, Path(f"{name}.json"))


def laws(of: Parameters) -> dict[str, list[Any]]:
    return {name: getattr(of, name) for name in SECTIONS}


# what is taken


def test_parts_of_two_files() -> None:
    network = a_file("a", collectives=[f.collective(4), f.collective(2)])
    kernels = a_file("b", layers=[f.layer()], collectives=[f.collective(8)])
    found = merge([network, kernels])
    assert [fit.ranks for fit in found.parameters.collectives] == [2, 4, 8]
    assert found.parameters.layers == [f.layer()] and found.notes == []
    assert found.counts == [
        {"collectives": Counts(2)}, {"collectives": Counts(1), "layers": Counts(1)}
    ]  # fmt: skip
    one, two = found.parameters.provenance.merged
    assert (one.sha256, one.parts) == (network.sha256, {"collectives": 2})
    assert (two.sha256, two.parts) == (kernels.sha256, {"collectives": 1, "layers": 1})
    assert found.parameters.format_version == 4


def test_the_same_law_is_taken_once() -> None:
    one = a_file("a", collectives=[f.collective(2)], layers=[f.layer()])
    two = a_file("b", collectives=[f.collective(2), f.collective(4)])
    found = merge([one, two])
    assert found.parameters.collectives == [f.collective(2), f.collective(4)]
    assert found.counts[1] == {"collectives": Counts(taken=1, same=1)}


def differing() -> list[Signed]:
    """Two collectives and a layer that differ, and one collective that does not."""
    return [
        a_file(name, {"measured_until": until}, layers=[f.layer(n=n)],
               collectives=[f.collective(2, n=n), f.collective(4, n=n), f.collective(8)])
        # 01:00 in Tokyo is 16:00 the day before in UTC
        for name, until, n in (("a", "2026-11-04T01:00:00+09:00", 11),
                               ("b", "2026-11-03T17:00:00+00:00", 12),
                               ("c", "unknown", 13))
    ]  # fmt: skip


def test_different_laws_are_refused_unless_somebody_says_whose() -> None:
    with pytest.raises(InputError) as caught:
        merge(differing())
    assert str(caught.value) == (
        "3 laws differ between the files, first allreduce (mpi, cpu, node, p=2) of collectives (in "
        "a.json, b.json, c.json); --prefer first, last or newest says whose is taken"
    )


@pytest.mark.parametrize(("prefer", "taken"), [("first", 11), ("last", 13), ("newest", 12)])
def test_whose_law_is_taken(prefer: Prefer, taken: int) -> None:
    files = differing()
    found = merge(files, prefer=prefer)
    assert [fit.n for fit in found.parameters.collectives] == [taken, taken, 160]
    assert [layer.n for layer in found.parameters.layers] == [taken]
    index = taken - 11
    # the collective that all have is the first's, whoever is preferred
    assert found.counts[index] == {
        "collectives": Counts(2 + (index == 0), index != 0), "layers": Counts(1)
    }  # fmt: skip
    other = (index + 1) % 3
    assert found.counts[other]["layers"] == Counts(passed_over=1)
    assert found.counts[other]["collectives"].passed_over == 2
    assert found.notes[0] == (
        f"merged: collectives that differ between the files are of {files[index].sha256[:19]} (the "
        f"{prefer}): allreduce (mpi, cpu, node, p=2), allreduce (mpi, cpu, node, p=4)"
    )
    assert found.notes == found.parameters.provenance.notes


def test_newest_of_files_that_do_not_say_is_the_first() -> None:
    files = [a_file(x, {"measured_until": "unknown"}, layers=[f.layer(n=n)])
             for n, x in enumerate("ab", 1)]  # fmt: skip
    assert merge(files, prefer="newest").parameters.layers[0].n == 1


@pytest.mark.parametrize(
    ("section", "one", "two"),
    [
        ("structural", f.structural(), f.structural(level="system")),
        ("contention", f.contention(), f.contention(stride=2)),
        ("contention", f.contention(), f.contention(baseline="packed")),
        ("layers", f.layer(), f.layer(active_ranks=1)),
        ("work", f.work(), f.work(direction="backward")),
        ("tensor_loops", f.loop(), f.loop(dtype="float16")),
        ("composition", f.composition(), f.composition(active_ranks=1)),
        ("memory", f.memory(), f.memory(measure="device")),
        ("overlap", f.overlap(), f.overlap(ranks=4)),
        ("partitions", f.partitions(), f.partitions(name="other")),
        ("collectives", f.collective(), f.collective(device="cuda")),
        ("collectives", f.collective(), f.collective(library="nccl")),
    ],
)
def test_what_a_law_is_of(section: str, one: Any, two: Any) -> None:
    found = merge([a_file("a", **{section: [one]}), a_file("b", **{section: [two]})])
    assert len(getattr(found.parameters, section)) == 2


# the machine


def test_what_one_file_does_not_know_is_the_others() -> None:
    one = a_file("a", device="unknown", device_memory_bytes=0, links_per_node=2)
    found = merge([one, a_file("b", nodes=4, nodes_per_rack=2)])
    machine = found.parameters
    assert (machine.device, machine.device_memory_bytes) == ("Some CPU", 8 * 2**30)
    assert (machine.nodes, machine.nodes_per_rack, machine.links_per_node) == (4, 2, 2)
    assert found.notes == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("device", "{Other} CPU"), ("ranks_per_node", 4), ("device_memory_bytes", 1)],
)
def test_machines_that_differ(name: str, value: Any) -> None:
    mine = getattr(f.filled(), name)
    files = [a_file("a"), a_file("b", **{name: value})]
    with pytest.raises(InputError) as caught:
        merge(files, prefer="last")
    assert f"{name} is {mine} in a.json and {value} in b.json; --across" in str(caught.value)
    found = merge(files, across=True)
    assert getattr(found.parameters, name) == mine
    shas = [each.sha256[:19] for each in files]
    assert found.notes == [f"merged: {name} is {mine}; {mine} in {shas[0]}, {value} in {shas[1]}"]


OTHER = {"cluster_fingerprint": "f" * 16, "cluster_name": "other"}


def test_other_clusters_are_refused_unless_asked_for() -> None:
    files = [a_file("a", layers=[f.layer()]), a_file("b", OTHER, collectives=[f.collective()])]
    with pytest.raises(
        InputError, match=r"a\.json and b\.json are of different clusters .*--across"
    ):
        merge(files)
    found = merge(files, across=True).parameters
    assert found.provenance.cluster_fingerprint == "0123456789abcdef"
    assert [x.cluster_name for x in found.provenance.merged] == ["filled", "other"]
    (warning,) = [x for x in review(found, TODAY) if x.subject == "merge"]
    assert (warning.severity, warning.kind) == ("warning", "mixed")
    assert "filled (0123456789abcdef), other (ffffffffffffffff)" in warning.message


def test_what_another_cluster_fills_in_is_noted() -> None:
    files = [a_file("a"), a_file("b", OTHER, nodes=4)]
    (note,) = merge(files, across=True).notes
    assert note.startswith("merged: nodes is 4; 0 in sha256:")


# provenance


def test_provenance() -> None:
    one = a_file("a", {
        "measured_from": "2026-11-02T00:30:00+01:00", "measured_until": "2026-11-02T02:00:00+00:00",
        "samples_sha256": ["a", "b"], "launches": 0, "notes": ["x", "y"], "seed": 5,
        "program_version": "0.2.0",
    })  # fmt: skip
    two = a_file("b", {
        "measured_from": "2026-11-02T00:00:00", "measured_until": "unknown",
        "samples_sha256": ["b", "c"], "launches": 4, "notes": ["y", "z"], "seed": 6,
    })  # fmt: skip
    three = a_file("c", {
        "measured_from": "unknown", "measured_until": "2026-11-02T03:00:00+02:00", "launches": 3,
    })  # fmt: skip
    source = merge([one, two, three]).parameters.provenance
    # half past midnight in Paris is before midnight in UTC, and 3:00 in Kyiv before 2:00
    assert source.measured_from == "2026-11-02T00:30:00+01:00"
    assert source.measured_until == "2026-11-02T02:00:00+00:00"
    assert source.samples_sha256 == ["a", "b", "c", "c" * 64]
    assert (source.launches, source.notes, source.seed) == (3, ["x", "y", "z"], 5)
    assert source.program_version == "0.1.0, 0.2.0" and not source.edited


def test_a_file_that_was_edited_makes_the_merged_one_so() -> None:
    one = a_file("a", {"edited": True}, layers=[f.layer()])
    found = merge([as_read(one.parameters, "a", edited=True), a_file("b")]).parameters.provenance
    assert found.edited and [x.edited for x in found.merged] == [True, False]


def test_the_files_of_a_merged_file_are_kept() -> None:
    one, two, three = (a_file(x, collectives=[f.collective(p)])
                       for x, p in (("a", 2), ("b", 4), ("c", 8)))  # fmt: skip
    first = as_read(merge([one, two]).parameters)
    merged = merge([first, three]).parameters.provenance.merged
    assert [x.sha256 for x in merged] == [one.sha256, two.sha256, first.sha256, three.sha256]
    assert [x.parts["collectives"] for x in merged] == [1, 1, 2, 1]


def test_files_of_the_same_content_are_refused() -> None:
    with pytest.raises(InputError, match=r"a\.json and b\.json hold the same"):
        merge([a_file("a"), as_read(a_file("a").parameters, "b")])
    with pytest.raises(InputError, match="name two or more"):
        merge([a_file("a")])


# laws that were not fitted with those beside them


def of_kind(found: Merged, kind: str) -> list[Finding]:
    return [x for x in review(found.parameters, TODAY) if x.kind == kind]


@pytest.mark.parametrize(
    ("theirs", "mine", "base"),
    [
        ({"structural": [f.structural()]}, f.collective(2), "collectives"),
        ({"contention": [f.contention()]}, f.collective(2), "collectives"),
        ({"composition": [f.composition()]}, f.layer(), "layers"),
        ({"composition": [f.composition(phase="update")]}, f.loop(), "tensor_loops"),
        ({"composition": [f.composition(phase="exchange")]}, f.collective(2), "collectives"),
    ],
)
def test_laws_beside_others_are_noted(theirs: dict[str, Any], mine: Any, base: str) -> None:
    one, two = a_file("a", **theirs), a_file("b", **{base: [mine]})
    found = merge([one, two])
    (section,) = theirs
    (note,) = found.notes
    assert note.startswith(
        f"mixed: {section} laws of {one.sha256[:19]} stand beside {base} of {two.sha256[:19]}, which "
        "they were not fitted with: "
    )
    (warning,) = [x for x in of_kind(found, "mixed") if x.severity == "warning"]
    assert "stand beside" in warning.message and "fit the runs together" in warning.message
    # with the same law in its own file there is nothing to be said
    both = a_file("a", **theirs, **{base: [mine]})
    assert merge([both, two]).notes == []


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        ({"structural": [f.structural()]}, {"collectives": [f.collective(library="nccl")]}),
        ({"composition": [f.composition()]}, {"layers": [f.layer(active_ranks=1)]}),
        ({"composition": [f.composition()]}, {"tensor_loops": [f.loop()]}),
        ({"composition": [f.composition(phase="pack")]}, {"tensor_loops": [f.loop()]}),
        ({"layers": [f.layer()]}, {"work": [f.work()]}),
    ],
)
def test_laws_that_have_nothing_to_do_with_others(
    theirs: dict[str, Any], mine: dict[str, Any]
) -> None:
    assert merge([a_file("a", **theirs), a_file("b", **mine)]).notes == []


def test_an_old_part_makes_the_file_stale() -> None:
    files = [a_file(x, {"measured_until": f"2026-{month}-20T00:00:00+00:00"})
             for x, month in (("a", "10"), ("b", "11"))]  # fmt: skip
    (warning,) = of_kind(merge(files), "stale")
    assert (warning.severity, warning.subject) == ("warning", "merge")
    assert "a part was measured 33 days ago, over 30" in warning.message
    # where the whole file is, that is said once
    whole = review(merge(files).parameters, datetime(2027, 3, 1, tzinfo=UTC))
    assert [x.subject for x in whole if x.kind == "stale"] == ["date"]


def test_a_part_of_an_old_format_is_noted() -> None:
    found = merge([a_file("a"), a_file("b", format_version=2)])
    (note,) = [x for x in review(found.parameters, TODAY) if x.subject == "format"]
    assert "format 2 (that of a part) does not hold nodes, racks and links" in note.message


# any parts

POOL: list[tuple[str, Any]] = [
    *(("collectives", f.collective(p, library=x)) for p in (2, 4, 8) for x in ("mpi", "nccl")),
    ("structural", f.structural()), ("contention", f.contention()),
    *(("layers", f.layer(key=key, active_ranks=a)) for key in "xy" for a in (1, 2)),
    ("work", f.work()), ("tensor_loops", f.loop()), ("composition", f.composition()),
    ("memory", f.memory()), ("overlap", f.overlap()), ("partitions", f.partitions()),
]  # fmt: skip
chosen = st.lists(st.sampled_from(range(len(POOL))), unique=True)


def of_pool(name: str, numbers: list[int]) -> Signed:
    content: dict[str, list[Any]] = {}
    for number in numbers:
        section, law = POOL[number]
        content.setdefault(section, []).append(law)
    return a_file(name, **content)


def texts(of: Parameters) -> list[str]:
    return sorted(f"{name}{x.model_dump_json()}" for name, xs in laws(of).items() for x in xs)


@settings(max_examples=40)
@given(a=chosen, b=chosen, c=chosen)
def test_a_union_is_one(a: list[int], b: list[int], c: list[int]) -> None:
    one, two, three = of_pool("a", a), of_pool("b", b), of_pool("c", c)
    found = merge([one, two, three]).parameters
    assert texts(found) == texts(of_pool("d", sorted({*a, *b, *c})).parameters)
    # the order of the files, and that of merging
    assert laws(merge([three, one, two]).parameters) == laws(found)
    pair = as_read(merge([one, two]).parameters)
    assert laws(merge([pair, three]).parameters) == laws(found)
    # merging a part once more adds nothing
    again = merge([as_read(found), two]).parameters
    assert laws(again) == laws(found) and merge([as_read(found), two]).notes == []
    # and whoever is preferred
    assert laws(merge([one, two, three], prefer="last").parameters) == laws(found)
    assert Parameters.parse(found.signed(), "the merged file") == found
    counts = sum(sum(x.parts.values()) for x in found.provenance.merged)
    assert counts == len({*a, *b, *c})
