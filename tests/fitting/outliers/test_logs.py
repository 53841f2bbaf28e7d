"""Who talked with whom is kept from a log to the fit, which leaves a culprit's rows out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fitting.outliers.clusters import made, node
from tests.helpers.published import DATA, needs_data
from tests.microbench.importers.logs import imported, start
from tests.microbench.importers.pair_logs import (
    START_US,
    US_PER_BYTE,
    failed_log,
    pair_log,
    write_pairs,
)

from calib.fitting.fit import fit_runs
from calib.fitting.outliers.check import check
from calib.fitting.outliers.logs import peers_of_logs, peers_of_samples
from calib.foundation.run_files import CLUSTER_CHECK_FILE
from calib.importing.logs import read_runs
from calib.microbench.importers.machine import cluster_of, write_run
from calib.microbench.importers.table import rows_of


def test_a_log_says_where_its_ranks_ran() -> None:
    [block] = imported(pair_log("a", "b")).blocks
    assert block.places == ("a/1b:00", "b/43:00")
    assert imported(start(ranks=4) + "nothing").failed[0].places == tuple(["node0/1b:00"] * 4)


def test_gpus_without_an_address_have_their_number() -> None:
    text = pair_log("a", "b").replace("[0000:1b:00]", "[0x00]").replace("[0000:43:00]", "[0x00]")
    [block] = imported(text).blocks
    assert block.places == ("a/0", "b/0")


def test_lines_that_are_lost_leave_the_places_unknown() -> None:
    lines = pair_log("a", "b").splitlines(keepends=True)
    text = "".join(line for line in lines if "Rank  0" not in line)
    assert [block.places for block in imported(text, ranks=2, nodes=2).blocks] == [()]


def test_a_run_that_failed_says_where_and_why() -> None:
    [failed] = imported(failed_log("a", "b")).failed
    assert failed.operation == "sendrecv" and failed.places == ("a/1b:00", "b/43:00")
    assert "network error" in failed.reason


def test_rows_of_samples_give_the_same_times_as_the_logs(tmp_path: Path) -> None:
    found = read_runs([write_pairs(tmp_path / "logs", 4, lambda a, b: 1.0)])
    of_logs = {
        (t.what, tuple(t.places), t.nbytes): sorted(t.seconds)
        for t in peers_of_logs(found, "x").times
    }
    of_rows = {
        (t.what, tuple(t.places), t.nbytes): sorted(t.seconds)
        for t in peers_of_samples(rows_of(found))
    }
    assert of_logs == of_rows and len(of_logs) == 6 * 5


@pytest.mark.parametrize("bad", ["node", "pair"])
def test_a_fit_of_pairs_does_not_average_over_a_culprit(tmp_path: Path, bad: str) -> None:
    """The law is that of the good pairs, as planted, and a note names who was left out."""

    def slow(one: str, other: str) -> float:
        hit = "n2" in (one, other) if bad == "node" else (one, other) == ("n1", "n2")
        return 2.5 if hit else 1.0

    found = read_runs([write_pairs(tmp_path / "logs", 6, slow)])
    write_run(tmp_path / "run", [], found, cluster_of(found, "made"), "0")
    # a run of logs is one that says so
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(
        manifest.read_text().replace('"imported": []', '"imported": [' + RECORD + "]")
    )
    parameters = fit_runs([tmp_path / "run"])
    [law] = parameters.collectives
    largest = law.points[-1]
    expected = (START_US + US_PER_BYTE * largest.nbytes) * 1e-6
    assert largest.seconds.value == pytest.approx(expected, rel=0.01)
    assert largest.seconds.half_width < 0.01
    assert law.launch_factor < 1.02
    name = "node n2" if bad == "node" else "pair n1/1b:00 and n2/43:00"
    [note] = [note for note in parameters.provenance.notes if "left out" in note]
    assert name in note


def test_a_fit_says_who_was_among_the_ranks_that_it_is_of(tmp_path: Path) -> None:
    """A run that was checked has its check beside the samples: all ranks waited for the culprit."""
    found = read_runs([write_pairs(tmp_path / "logs", 4, lambda a, b: 1.0)])
    write_run(tmp_path / "run", [], found, cluster_of(found, "made"), "0")
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(
        manifest.read_text().replace('"imported": []', '"imported": [' + RECORD + "]")
    )
    assert fit_runs([tmp_path / "run"]).provenance.notes == []
    check(made(4, node(["n02"], 2.0))).write(tmp_path / "run" / CLUSTER_CHECK_FILE)
    [note] = fit_runs([tmp_path / "run"]).provenance.notes
    assert note.startswith("measured with node n02, which is not like the others")


RECORD = (
    '{"name": "x", "sha256": "' + "0" * 64 + '", "tool": "nccl-tests", "tool_version": "", '
    '"library_version": "", "rows": 1, "faults": [], "notes": []}'
)


@needs_data
def test_the_published_pairs_of_17_nodes() -> None:
    """Eight pairs are slow, counted by hand from the files, and five break off; no node is to blame."""
    found = check(peers_of_logs(read_runs([DATA / "nccl-pairs"]), "h100"))
    slow = {c.name for c in found.culprits if c.symptoms[0].slowdown is not None}
    failed = {c.name for c in found.culprits if c.symptoms[0].slowdown is None}
    assert {each.kind for each in found.culprits} == {"pair"}
    numbers = {tuple(int(place[7:10]) for place in name.split(" and ")) for name in slow}
    assert numbers == {
        (1, 4), (2, 3), (2, 6), (4, 6), (4, 9), (11, 12), (13, 16), (13, 17)
    }  # fmt: skip
    assert len(failed) == 5 and sum("cnode2-016" in name for name in failed) == 2
    assert [each.word for each in found.common] == ["9d:00"]
    of_messages = next(level for level in found.levels if level.what == "sendrecv")
    assert of_messages.nbytes / of_messages.seconds.value == pytest.approx(13.55e9, rel=0.01)
