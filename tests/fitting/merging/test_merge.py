"""merge(): by hand what is taken from where, and the laws of a union for any parts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import filled as f

from calib.fitting.merging.differences import circumstances
from calib.fitting.merging.merge import Counts, Merged, Prefer, across_note, merge
from calib.fitting.parameters.file import Parameters, Signed
from calib.fitting.parameters.findings import Finding
from calib.fitting.parameters.signature import digest
from calib.fitting.review.review import review
from calib.foundation.environment import Environment
from calib.foundation.errors import InputError
from calib.oracle.costs.senders import library_of

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
        {"collectives": Counts(2)},
        {"collectives": Counts(1), "layers": Counts(1)},
    ]
    one, two = found.parameters.provenance.merged
    assert (one.sha256, one.parts) == (network.sha256, {"collectives": 2})
    assert (two.sha256, two.parts) == (kernels.sha256, {"collectives": 1, "layers": 1})
    assert found.parameters.format_version == 1


def test_of_launches_that_differ_the_most_is_taken() -> None:
    one = a_file("a", collectives=[f.collective(2)], launch_factors={1: 1.1, 2: 1.2})
    two = a_file("b", layers=[f.layer()], launch_factors={2: 1.1, 4: 1.3})
    assert merge([one, two]).parameters.launch_factors == {1: 1.1, 2: 1.2, 4: 1.3}


def test_the_same_law_is_taken_once() -> None:
    one = a_file("a", collectives=[f.collective(2)], layers=[f.layer()])
    two = a_file("b", collectives=[f.collective(2), f.collective(4)])
    found = merge([one, two])
    assert found.parameters.collectives == [f.collective(2), f.collective(4)]
    assert found.counts[1] == {"collectives": Counts(taken=1, same=1)}


def differing() -> list[Signed]:
    """Two collectives and a layer that differ, and one collective that does not."""
    return [
        a_file(
            name,
            {"measured_until": until},
            layers=[f.layer(n=n)],
            collectives=[f.collective(2, n=n), f.collective(4, n=n), f.collective(8)],
        )
        # 01:00 in Tokyo is 16:00 the day before in UTC
        for name, until, n in (
            ("a", "unknown", 11),
            ("b", "2026-11-03T17:00:00+00:00", 12),
            ("c", "2026-11-04T01:00:00+09:00", 13),
        )
    ]


def test_different_laws_are_refused_unless_somebody_says_whose() -> None:
    with pytest.raises(InputError) as caught:
        merge(differing())
    assert str(caught.value) == (
        "3 laws differ between the files, first allreduce (mpi, cpu, node, p=2) of collectives (in "
        "a.json, b.json, c.json)"
    )
    assert caught.value.wants == "prefer"


@pytest.mark.parametrize(("prefer", "taken"), [("first", 11), ("last", 13), ("newest", 12)])
def test_whose_law_is_taken(prefer: Prefer, taken: int) -> None:
    files = differing()
    found = merge(files, prefer=prefer)
    assert [fit.n for fit in found.parameters.collectives] == [taken, taken, 160]
    assert [layer.n for layer in found.parameters.layers] == [taken]
    index = taken - 11
    # the collective that all have is the first's, whoever is preferred
    assert found.counts[index] == {
        "collectives": Counts(2 + (index == 0), index != 0),
        "layers": Counts(1),
    }
    other = (index + 1) % 3
    assert found.counts[other]["layers"] == Counts(passed_over=1)
    assert found.counts[other]["collectives"].passed_over == 2
    assert found.notes[0] == (
        f"merged: collectives that differ between the files are of {files[index].sha256[:19]} (the "
        f"{prefer}): allreduce (mpi, cpu, node, p=2), allreduce (mpi, cpu, node, p=4)"
    )
    assert found.notes == found.parameters.provenance.notes


@pytest.mark.parametrize(
    ("until", "why"),
    [
        (("unknown", "unknown"), "a.json, b.json differ in .* do not say when they were measured"),
        # the same moment in Tokyo and in UTC
        (("2026-11-04T01:00:00+09:00", "2026-11-03T16:00:00+00:00"), "at the same time"),
    ],
)
def test_newest_of_files_that_do_not_say_which(until: tuple[str, str], why: str) -> None:
    one, two = (
        a_file(x, {"measured_until": time}, layers=[f.layer(n=n)], work=[f.work()])
        for x, time, n in zip("ab", until, (1, 2), strict=True)
    )
    with pytest.raises(InputError, match=rf"which is newer is not known: .*{why}.*first or last"):
        merge([one, two], prefer="newest")
    # laws that do not differ have no newest, and of three files a later one is
    same = a_file("c", {"measured_until": until[1]}, layers=[f.layer(n=1)])
    assert merge([one, same], prefer="newest").parameters.layers[0].n == 1
    late = a_file("d", {"measured_until": "2026-11-05T00:00:00"}, layers=[f.layer(n=3)])
    assert merge([late, one, two], prefer="newest").parameters.layers[0].n == 3


def test_a_merged_file_is_as_new_as_the_part_that_a_law_is_of() -> None:
    """January's collectives and March's of another p and layers, against February's."""
    two, eight = f.collective(2, n=1), f.collective(8)
    february = a_file(
        "c",
        {"measured_until": "2026-02-01T00:00:00"},
        collectives=[f.collective(2, n=2)],
        layers=[f.layer(n=2)],
    )
    march = a_file(
        "b", {"measured_until": "2026-03-01T00:00:00"}, collectives=[eight], layers=[f.layer(n=3)]
    )
    # a part that does not say when it was measured leaves it open
    for until in ("2026-01-01T00:00:00", "unknown"):
        january = a_file("a", {"measured_until": until}, collectives=[two])
        pair = as_read(merge([january, march]).parameters, "pair")
        for files in ([january, march, february], [pair, february], [february, pair]):
            found = merge(files, prefer="newest").parameters
            assert [fit.n for fit in found.collectives] == [2, eight.n]
            assert found.layers[0].n == 3


@pytest.mark.parametrize(
    ("section", "one", "two"),
    [
        ("structural", f.structural(), f.structural(level="system")),
        ("contention", f.contention(), f.contention(stride=2)),
        ("contention", f.contention(), f.contention(baseline="packed")),
        ("peaks", f.peaks(), f.peaks(dtype="float16")),
        ("layers", f.layer(), f.layer(active_ranks=1)),
        ("work", f.work(), f.work(direction="backward")),
        ("tensor_loops", f.loop(), f.loop(execution="float16")),
        ("composition", f.composition(), f.composition(active_ranks=1)),
        ("memory", f.memory(), f.memory(family="serial")),
        ("overlap", f.overlap(), f.overlap(ranks=4)),
        ("partitions", f.partitions(), f.partitions(share=0.5)),
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
    assert f"{name} is {mine} in a.json and {value} in b.json" in str(caught.value)
    assert caught.value.wants == "across"
    found = merge(files, across=True)
    assert getattr(found.parameters, name) == mine
    shas = [each.sha256[:19] for each in files]
    assert found.notes == [f"merged: {name} is {mine}; {mine} in {shas[0]}, {value} in {shas[1]}"]


OTHER = {"cluster_fingerprint": "f" * 16, "cluster_name": "other"}


def test_other_clusters_are_refused_unless_asked_for() -> None:
    files = [a_file("a", layers=[f.layer()]), a_file("b", OTHER, collectives=[f.collective()])]
    with pytest.raises(InputError, match=r"a\.json and b\.json are of different clusters "):
        merge(files)
    found = merge(files, across=True).parameters
    assert found.provenance.cluster_fingerprint == "0123456789abcdef"
    assert [x.cluster_name for x in found.provenance.merged] == ["filled", "other"]
    (warning,) = [x for x in review(found, TODAY) if x.subject == "merge"]
    assert (warning.severity, warning.kind) == ("warning", "mixed")
    assert "filled (0123456789abcdef), other (ffffffffffffffff)" in warning.message
    assert across_note(found) == (
        "merged of different clusters: filled (0123456789abcdef), other (ffffffffffffffff); "
        "no machine is like this"
    )


def test_clusters_of_logs_that_name_no_device_are_told_by_name() -> None:
    """The fingerprint of such a cluster is that of a shape: two machines may share it."""
    alpha, beta = (
        a_file(x, {"cluster_name": name}, device="unknown", collectives=[f.collective(p)])
        for x, name, p in (("a", "alpha", 2), ("b", "beta", 4))
    )
    with pytest.raises(InputError, match=r"do not name their device, .* alpha and beta"):
        merge([alpha, beta])
    found = merge([alpha, beta], across=True).parameters
    assert across_note(found).startswith(
        "merged of different clusters: alpha (0123456789abcdef), b"
    )
    assert "alpha (0123456789abcdef), beta (01" in of_kind_text(found)
    # of one name they are taken as one, and that is said; where a device is known it needs no name
    again = a_file("c", {"cluster_name": "alpha"}, device="unknown", collectives=[f.collective(4)])
    one = merge([alpha, again])
    assert one.notes == [
        "merged: no file names a device: taken as of one cluster by the name alpha"
    ]
    assert across_note(one.parameters) == "" == across_note(alpha.parameters)
    renamed = [
        a_file(x, {"cluster_name": x}, collectives=[f.collective(p)])
        for x, p in (("a", 2), ("b", 4))
    ]
    assert merge(renamed).notes == [] and across_note(merge(renamed).parameters) == ""


def of_kind_text(of: Parameters) -> str:
    return " ".join(x.message for x in review(of, TODAY) if x.subject == "merge")


def test_what_another_cluster_fills_in_is_noted() -> None:
    files = [a_file("a"), a_file("b", OTHER, nodes=4)]
    (note,) = merge(files, across=True).notes
    assert note.startswith("merged: nodes is 4; 0 in sha256:")


# provenance


def test_provenance() -> None:
    one = a_file(
        "a",
        {
            "measured_from": "2026-11-02T00:30:00+01:00",
            "measured_until": "2026-11-02T02:00:00+00:00",
            "samples_sha256": ["a", "b"],
            "launches": 0,
            "notes": ["x", "y"],
            "seed": 5,
            "program_version": "0.2.0",
        },
    )
    two = a_file(
        "b",
        {
            "measured_from": "2026-11-02T00:00:00",
            "measured_until": "unknown",
            "samples_sha256": ["b", "c"],
            "launches": 4,
            "notes": ["y", "z"],
            "seed": 6,
        },
    )
    three = a_file(
        "c",
        {"measured_from": "unknown", "measured_until": "2026-11-02T03:00:00+02:00", "launches": 3},
    )
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
    one, two, three = (
        a_file(x, collectives=[f.collective(p)]) for x, p in (("a", 2), ("b", 4), ("c", 8))
    )
    first = as_read(merge([one, two]).parameters)
    merged = merge([first, three]).parameters.provenance.merged
    assert [x.sha256 for x in merged] == [one.sha256, two.sha256, first.sha256, three.sha256]
    assert [x.parts["collectives"] for x in merged] == [1, 1, 2, 1]
    assert [x.is_merged for x in merged] == [False, False, True, False]
    # they count once: review and diff speak of three
    whole = merge([first, three]).parameters
    assert "merged of 3 files" in of_kind_text(whole)
    assert "the second file was merged of 3 files" in circumstances(one.parameters, whole)


def test_an_edited_copy_is_no_other_fit_of_the_same_samples() -> None:
    """What differs between the two is the edit, not how they were fitted."""
    one, edited = a_file("a"), a_file("a", {"edited": True})
    assert circumstances(one.parameters, edited.parameters) == [
        "the second file was edited by hand after its fit"
    ]
    assert "the same samples" in circumstances(one.parameters, one.parameters)[0]
    # an imported cluster may be known by its name alone
    other = a_file("b", {"cluster_name": "other"})
    assert "cluster: filled in the first file, other in the second" in circumstances(
        one.parameters, other.parameters
    )


def test_versions_of_merged_files_are_named_once() -> None:
    old, new, other = (
        a_file(x, {"program_version": version}, layers=[f.layer(key=x)])
        for x, version in (("a", "0.1.0"), ("b", "0.2.0"), ("c", "0.1.0"))
    )
    pair = as_read(merge([old, new]).parameters)
    assert merge([pair, other]).parameters.provenance.program_version == "0.1.0, 0.2.0"


def test_a_file_of_which_nothing_is_taken_leaves_no_trace_in_the_numbers() -> None:
    old = a_file(
        "a",
        {
            "measured_from": "2026-01-01T00:00:00",
            "measured_until": "2026-01-02T00:00:00",
            "notes": ["odd"],
            "program_version": "0.0.1",
            "launches": 1,
            "seed": 8,
        },
        layers=[f.layer(n=1)],
    )
    fresh = a_file("b", layers=[f.layer(n=2)])
    found = merge([old, fresh], prefer="newest").parameters
    source, mine = found.provenance, fresh.parameters.provenance
    assert source.samples_sha256 == ["b" * 64]
    assert (source.measured_from, source.measured_until) == (
        mine.measured_from,
        mine.measured_until,
    )
    assert "odd" not in source.notes and source.program_version == mine.program_version
    assert source.launches == mine.launches
    # it stays in the list, and makes nothing old
    assert [x.parts for x in source.merged] == [{}, {"layers": 1}]
    assert not [x for x in review(found, datetime(2026, 11, 10, tzinfo=UTC)) if x.kind == "stale"]
    # one that has the same law is what the law rests on, too
    twin = a_file("c", {"samples_sha256": ["t"]}, layers=[f.layer(n=2)])
    assert merge([fresh, twin]).parameters.provenance.samples_sha256 == ["b" * 64, "t"]


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
        ({"composition": [f.composition(phase="layerwise")]}, f.collective(2), "collectives"),
        ({"composition": [f.composition(phase="backward")]}, f.work(direction="backward"), "work"),
        ({"work": [f.work()]}, f.layer(), "layers"),
        ({"composition": [f.composition(execution="float32+cuda_graph")]}, f.layer(), "layers"),
        ({"composition": [f.composition(execution="float32+cuda_graph")]}, f.work(), "work"),
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
        ({"layers": [f.layer()]}, {"work": [f.work(kind="other")]}),
        ({"layers": [f.layer(active_ranks=1)]}, {"work": [f.work(active_ranks=2)]}),
        ({"layers": [f.layer()]}, {"work": [f.work(execution="float16")]}),
        ({"composition": [f.composition(execution="float16")]}, {"layers": [f.layer()]}),
        (
            {"composition": [f.composition(phase="update")]},
            {"tensor_loops": [f.loop(execution="float16")]},
        ),
        ({"composition": [f.composition(execution="float32+channels_last")]}, {"work": [f.work()]}),
        (
            {"composition": [f.composition(phase="forward")]},
            {"work": [f.work(direction="backward")]},
        ),
        (
            {"composition": [f.composition(phase="exchange")]},
            {"collectives": [f.collective(library="nccl", device="cuda")]},
        ),
    ],
)
def test_laws_that_have_nothing_to_do_with_others(
    theirs: dict[str, Any], mine: dict[str, Any]
) -> None:
    assert merge([a_file("a", **theirs), a_file("b", **mine)]).notes == []


def test_the_same_law_in_another_file_is_no_stranger() -> None:
    """The layer is taken from the first file; the second, whose composition it is, has it as well."""
    files = [
        a_file("a", layers=[f.layer()]),
        a_file("b", layers=[f.layer()], composition=[f.composition()]),
    ]
    assert merge(files).notes == []


def by(library: str, *ranks: int, **changes: Any) -> list[Any]:
    device = "cuda" if library.endswith("nccl") else "cpu"
    return [f.collective(p, library=library, device=device, **changes) for p in ranks]


def test_libraries_that_predictions_do_not_take_are_noted() -> None:
    """Predictions use one library: the network of the other file would be ignored without a word."""
    exchange = [f.composition(phase="exchange")]
    layers = a_file("a", collectives=by("torch_mpi", 2), composition=exchange)
    network = a_file("b", collectives=by("mpi", 128, 4, 16))
    for files in ([layers, network], [network, layers]):
        found = merge(files)
        # the law of the exchange corrects its own file's torch_mpi still
        assert found.notes == [
            "mixed: predictions take collectives of torch_mpi alone; 3 of mpi (p = 4 to 128) of "
            f"{network.sha256[:19]} are not used"
        ]
        (warning,) = [x for x in of_kind(found, "mixed") if x.severity == "warning"]
        assert warning.message.endswith("are not used")
        assert library_of(found.parameters)[0] == "torch_mpi"
    # the other way round it corrects torch_mpi that it was not fitted with
    below = a_file("c", collectives=by("mpi", 2), composition=exchange)
    notes = merge([below, a_file("d", collectives=by("torch_mpi", 2))]).notes
    assert "1 of mpi (p = 2)" in notes[0] and notes[0].endswith("is not used")
    assert notes[1].startswith("mixed: composition laws of")
    # no file whose laws of another library stand beside some of the one that is taken
    both = a_file("e", collectives=[*by("torch_mpi", 2), *by("mpi", 4)])
    assert merge([a_file("f", collectives=by("torch_mpi", 8)), both]).notes == []


def test_which_library_is_taken_is_said_as_the_oracle_takes_it() -> None:
    nccl = a_file("a", collectives=by("nccl", 8))
    gloo = a_file("b", collectives=by("torch_gloo", 2))
    found = merge([gloo, nccl])
    assert library_of(found.parameters)[0] == "nccl" and "1 of torch_gloo (p = 2)" in found.notes[0]
    # where buffers are not where the library has them nothing is taken
    away = a_file("c", collectives=[f.collective(library="torch_mpi", device="cuda")])
    assert merge([away, nccl]).notes == [] and merge([away, a_file("d")]).notes == []


def test_an_old_part_makes_the_file_stale() -> None:
    files = [
        a_file(x, {"measured_until": f"2026-{month}-20T00:00:00+00:00"}, layers=[f.layer(key=x)])
        for x, month in (("a", "10"), ("b", "11"))
    ]
    (warning,) = of_kind(merge(files), "stale")
    assert (warning.severity, warning.subject) == ("warning", "merge")
    assert "a part was measured 33 days ago, over 30" in warning.message
    # where the whole file is, that is said once
    whole = review(merge(files).parameters, datetime(2027, 3, 1, tzinfo=UTC))
    assert [x.subject for x in whole if x.kind == "stale"] == ["date"]


# any parts

POOL: list[tuple[str, Any]] = [
    *(("collectives", f.collective(p, library=x)) for p in (2, 4, 8) for x in ("mpi", "nccl")),
    ("structural", f.structural()),
    ("contention", f.contention()),
    *(("layers", f.layer(key=key, active_ranks=a)) for key in "xy" for a in (1, 2)),
    ("peaks", f.peaks()),
    ("work", f.work()),
    ("tensor_loops", f.loop()),
    ("composition", f.composition()),
    ("memory", f.memory()),
    ("overlap", f.overlap()),
    ("partitions", f.partitions()),
]
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


def test_files_of_two_environments_are_refused() -> None:
    """Of the same, or where one does not say, they are merged; across machines the first counts."""
    one, two = (Environment(ranks=n, threads=1, cores=2) for n in (1, 2))
    wide = two.model_copy(update={"threads": 2})
    first = a_file("a", {"environments": [one, two]}, layers=[f.layer()])
    silent = a_file("b", collectives=[f.collective()])
    other = a_file("c", {"environments": [wide]}, collectives=[f.collective()])
    assert merge([silent, first]).parameters.provenance.environments == [one, two]
    with pytest.raises(InputError, match=r"launches of 2 ranks .* threads: 1 and 2"):
        merge([first, other])
    assert merge([other, first], across=True).parameters.provenance.environments == [wide]
