"""calib cluster check: who is named, in every form of its result; what cannot be looked at."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from tests.calib.inside import calib
from tests.calib.running import calib as calib_process
from tests.calib.running import refused
from tests.microbench.importers.logs import table
from tests.microbench.importers.pair_logs import slow_node, write_pairs
from tests.oracle.handmade import machine, mlp
from tests.oracle.networks import line

from calib.fitting.outliers.check import ClusterCheck, check
from calib.fitting.outliers.logs import peers_of_logs
from calib.fitting.parameters.file import Parameters
from calib.foundation.division import Division
from calib.importing.logs import read_runs
from calib.microbench.records.doctor import warn
from calib.oracle.predict import project
from calib.oracle.what_if.changes import apply
from calib.predicting.slowed import cost_of
from calib.reports.tables.cluster_check import settings_lines
from calib.schema import entry_named, schema_of


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Logs of all pairs of n0 to n4: n2 has a third of the bandwidth, n0 and n4 fail."""
    return write_pairs(tmp_path / "logs", 5, slow_node("n2", 3.0), failing=("n0 n4",))


def test_the_culprit_is_named_with_what_it_does_and_what_others_do(pairs: Path) -> None:
    done = calib(pairs.parent, "cluster check --logs logs")
    assert done.returncode == 1
    assert "5 nodes (9 pairs of nodes compared): 2 culprits" in done.stderr
    assert "node n2: send and receive of 256 MiB at 4.17 GB/s, others 12.5" in done.stderr
    assert "in 4 of 4" in done.stderr
    assert "pair n0/1b:00 and n4/43:00: send and receive fails, NCCL failure" in done.stderr
    assert "leave out: n2,n4" in done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_all_forms_of_the_result_agree(pairs: Path) -> None:
    words = "cluster check --logs logs -o c.json --junit c.xml --page c.html --hosts good --json"
    done = calib(pairs.parent, words)
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert said.pop("costs") == []
    Draft202012Validator(schema_of(entry_named("cluster-check"))).validate(said)
    kept = ClusterCheck.read(pairs.parent / "c.json")
    assert kept.model_dump(mode="json") == said
    assert [each.name for each in kept.culprits if each.kind == "node"] == ["n2"]
    assert (pairs.parent / "good").read_text() == "n0\nn1\nn3\n"
    suite = ET.parse(pairs.parent / "c.xml").getroot()
    failing = {
        case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None
    }
    assert failing == {"node n2", "pair n0/1b:00 and n4/43:00"}
    assert suite.get("tests") == "6" and suite.get("failures") == "2"
    page = (pairs.parent / "c.html").read_text()
    assert "Who is not like the others" in page and "heatmap" in page


def test_hosts_to_leave_out_are_as_srun_takes_them(pairs: Path) -> None:
    assert calib(pairs.parent, "cluster check --logs logs --exclude").stdout == "n2,n4\n"


def test_nothing_is_named_of_good_pairs(tmp_path: Path) -> None:
    write_pairs(tmp_path / "logs", 5, lambda one, other: 1.0)
    done = calib(tmp_path, "cluster check --logs logs --exclude")
    assert (done.returncode, done.stdout) == (0, "\n")
    assert "5 nodes (10 pairs of nodes compared): all alike" in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--logs", "takes the logs behind it"),
        ("logs", "takes the logs behind it"),
        ("--logs nowhere", "nowhere"),
        ("--logs unnamed.txt", "names the hosts"),
        ("--logs words.txt", "not a log that this program reads"),
        ("--logs logs -o logs", "is a directory"),
        ("--logs logs --model nosuch", "unknown model 'nosuch'"),
        ("--model resnet50 --parameters none.json", "none.json"),
        ("--logs logs -o x --junit x", "name the same file"),
    ],
)
def test_what_cannot_be_looked_at_is_one_line(pairs: Path, words: str, why: str) -> None:
    lines = [line for line in table().splitlines() if "Rank" not in line]
    (pairs.parent / "unnamed.txt").write_text("\n".join(lines) + "\n")
    (pairs.parent / "words.txt").write_text("nothing of the kind\n")
    assert why in refused(calib(pairs.parent, f"cluster check {words}"))


def _parameters() -> Parameters:
    """One rank on each node: all that is sent goes between nodes."""
    fits = [line("allreduce", 2, nodes=2, ranks_per_node=1, level="system")]
    return machine(collectives=fits, ranks_per_node=1)


def test_a_cost_is_what_the_whole_takes_longer_where_all_wait_for_the_slowest(pairs: Path) -> None:
    """Of a network three times as slow the allreduce alone grows, by the law that it has."""
    culprit = next(
        c for c in check(peers_of_logs(read_runs([pairs]), "x")).culprits if c.name == "n2"
    )
    model, division, parameters = mlp([64, 64, 10]), Division("data", 2, 16), _parameters()
    slowdown = culprit.symptoms[0].slowdown
    assert slowdown is not None
    before = project(model, division, parameters).total
    changed = apply(parameters, [f"communication.inter_node.beta_s_per_byte*={slowdown.value:.9g}"])
    after = project(model, division, changed).total
    assert before is not None and after is not None
    cost = cost_of(culprit, model, division, parameters)
    assert cost is not None and not cost.at_most
    assert cost.share.value == pytest.approx(after.value / before.value - 1)
    assert cost.share.low <= cost.share.value <= cost.share.high
    without = cost_of(culprit, model, division, changed, included=True)
    assert without is not None and without.share.value == pytest.approx(cost.share.value, rel=1e-6)


@pytest.mark.mpi
def test_real_ranks_of_this_machine_are_compared(tmp_path: Path) -> None:
    """Two ranks on one host: each device, and the collectives of the one node."""
    line = "cluster check --ranks 2 --quick -o c.json"
    done = calib_process(tmp_path, line, NCCL_P2P_DISABLE="1")
    assert done.returncode in (0, 1), done.stderr
    found = ClusterCheck.read(tmp_path / "c.json")
    of = {time.what: time for time in found.peers.times}
    assert {"matrix_product", "memory", "convolution", "allreduce"} <= set(of)
    assert len({place for time in found.peers.times for place in time.places}) == 2
    assert all(seconds > 0 for time in found.peers.times for seconds in time.seconds)
    assert "allreduce: one node alone, compared with no other" in found.notes
    [settings] = found.peers.settings.values()
    assert any("NCCL_P2P_DISABLE=1" in each.found for each in settings)
    assert "all nodes: settings: NCCL_P2P_DISABLE=1" in done.stderr


def test_a_setting_is_named_with_the_nodes_that_have_it(pairs: Path) -> None:
    found = check(peers_of_logs(read_runs([pairs]), "x"))
    slow, off = (warn("clocks", f"governor {word}", "set it") for word in ("powersave", "ondemand"))
    settings = {"n1": [slow], "n3": [slow]}
    peers = found.peers.model_copy(update={"settings": settings})
    of = found.model_copy(update={"peers": peers})
    assert settings_lines(of) == ["n1, n3: clocks: governor powersave; set it"]
    everywhere = peers.model_copy(update={"settings": {f"n{n}": [off] for n in range(5)}})
    of = found.model_copy(update={"peers": everywhere})
    assert settings_lines(of) == ["all nodes: clocks: governor ondemand; set it"]
