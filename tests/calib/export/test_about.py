"""What an export says of itself: the side file and the comment."""

from __future__ import annotations

import pytest
from tests.helpers.filled import UNTIL, filled, of_two_clusters

from calib.commands.export import print_errors
from calib.export.about import about, in_words, lines, ranks_in_words
from calib.export.target import Collapse, Exported, ExportRequest, Source
from calib.fitting.parameters.file import FORMAT_VERSION
from calib.microbench.records.cluster import Cluster, Host, Level

SHA = "sha256:" + "ab" * 32
COLLAPSE = Collapse(
    what="allreduce",
    into="alpha and beta",
    written="2 us, 3 GB/s",
    ranks=(2, 4),
    nbytes=(64, 2**20),
    points=30,
    mean_error=0.123,
    worst_error=0.5,
    worst_nbytes=4096,
    worst_ranks=4,
    basis="measured",
)
EXPORTED = Exported({"": "x\n"}, ("allreduce on 2, 4 ranks",), (COLLAPSE,), ("phi",), ("read it",))


def test_the_side_file_says_whose_numbers_these_are() -> None:
    found = about("simgrid", ExportRequest(filled(), Source("p.json", SHA)), EXPORTED)
    assert found["target"] == "simgrid"
    assert found["parameters"] == {
        "file": "p.json",
        "sha256": SHA,
        "edited_by_hand": False,
        "format_version": FORMAT_VERSION,
        "cluster_name": "filled",
        "cluster_fingerprint": "0123456789abcdef",
        "measured_from": "2026-11-03T09:50:00+00:00",
        "measured_until": UNTIL,
    }
    (collapsed,) = found["collapsed"]
    assert (collapsed["mean_error"], collapsed["worst_nbytes"]) == (0.123, 4096)
    assert (found["holds_for"], found["lost"], found["notes"]) == (
        ["allreduce on 2, 4 ranks"],
        ["phi"],
        ["read it"],
    )


def test_the_comment_says_the_same() -> None:
    text = "\n".join(
        lines("simgrid", ExportRequest(filled(), Source("p.json", SHA, True)), EXPORTED, 500)
    )
    for words in (
        SHA,
        "EDITED BY HAND",
        "filled (0123456789abcdef)",
        "holds for: allreduce on 2, 4",
        "lost: phi",
        "note: read it",
        "note: the parameter file was edited by hand",
    ):
        assert words in text
    assert (
        "collapsed: allreduce on 2, 4 ranks, 64 B to 1 MiB (measured), into alpha and beta (2 us, 3 "
        "GB/s): off by 12.3% on average over 30 times, by 50.0% at worst (4 KiB on 4 ranks)"
    ) in text


def test_hostile_names_stay_in_the_comment() -> None:
    name = "--->\x1b[2J\n<b>\u202e" + "x" * 300
    of = filled()
    parameters = of.model_copy(
        update={"provenance": of.provenance.model_copy(update={"cluster_name": name})}
    )
    found = lines("simgrid", ExportRequest(parameters, Source(name, SHA)), EXPORTED)
    assert all(line.isascii() and line.isprintable() and len(line) <= 100 for line in found)
    assert "--" not in "\n".join(found)


def test_a_machine_of_another_cluster_is_said() -> None:
    host = Host(name="h", kernel="k", devices=[])
    cluster = Cluster(name="other", hosts=[host], levels=[Level(name="node", members=2, link="l")])
    found = about("simgrid", ExportRequest(filled(), Source("p", SHA), cluster=cluster), EXPORTED)
    assert found["notes"][1] == (
        f"the machine's shape is that of other ({cluster.fingerprint}), the numbers are of filled "
        "(0123456789abcdef)"
    )


def test_parameters_of_several_clusters_are_said() -> None:
    request = ExportRequest(of_two_clusters(filled()), Source("p", SHA))
    (_, note) = about("simgrid", request, EXPORTED)["notes"]
    assert note.startswith("the parameter file was merged of different clusters: ")
    assert "alpha" in note and "beta" in note


def test_the_table_of_errors_drops_columns_and_keeps_the_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written stands beside its errors at any width; a line says what is not shown."""
    monkeypatch.setenv("COLUMNS", "150")
    print_errors([("simgrid", COLLAPSE)])
    head, _, row, *rest = capsys.readouterr().out.splitlines()[1:]
    assert not rest and head.split()[-3:] == ["file", "ranks", "sizes"]
    assert " ".join(row.split()) == (
        "simgrid allreduce 2 us, 3 GB/s 12.3% 50.0% 4 KiB, p=4 measured alpha and beta 2, 4 64 B to "
        "1 MiB"
    )
    monkeypatch.setenv("COLUMNS", "70")
    print_errors([("simgrid", COLLAPSE)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 70 and not any(line.startswith("-") for line in lines)
    assert any(
        " ".join(line.split()).startswith("simgrid allreduce 2 us, 3 GB/s 12.3% 50.0%")
        for line in lines
    )
    said = " ".join(" ".join(lines).split())
    assert "(70 columns leave out: " in said and "JSON has them)" in said


def test_words() -> None:
    assert [ranks_in_words(r) for r in ((2,), (2, 4, 8, 16), (2, 4, 8, 16, 32))] == [
        "2",
        "2, 4, 8, 16",
        "2 to 32 (5 of them)",
    ]
    assert in_words(COLLAPSE).startswith("allreduce on 2, 4 ranks, 64 B to 1 MiB (measured), into")
