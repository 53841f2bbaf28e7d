"""`calib parameters`: validate, merge, and that every verb warns once of a file edited by hand."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.helpers import filled as f
from tests.oracle.handmade import machine, mlp

from calib.driver.ranks import EVENTS_VARIABLE, speaks
from calib.fitting.parameters.file import Parameters
from calib.fitting.parameters.signature import digest
from calib.microbench.machine.launchers import RANK_VARIABLES

NETWORK = ("collectives", "structural", "contention")


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    """By hand: the content changes and the signature stays."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content, indent=2))


def written(path: Path, **changes: Any) -> Path:
    f.filled(**changes).write(path)
    return path


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    path = written(tmp_path / "edited.json")
    edit(path, lambda c: c["overlap"][0]["eta"].update(value=0.59))
    return path


# validate


def test_one_line_for_each_valid_file(tmp_path: Path, edited: Path) -> None:
    written(tmp_path / "good.json", layers=[], work=[])
    done = calib(tmp_path, "parameters", "validate", "good.json", "edited.json")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "good.json: valid, format 1, signed, cluster filled (0123456789abcdef), holds 3 collectives, "
        "1 structural, 1 contention, 1 peaks, 1 tensor_loops, 1 composition, 1 memory, 1 overlap, "
        "1 partitions",
        "edited.json: valid, format 1, EDITED by hand, cluster filled (0123456789abcdef), holds 3 "
        "collectives, 1 structural, 1 contention, 1 peaks, 1 layers, 1 work, 1 tensor_loops, "
        "1 composition, 1 memory, 1 overlap, 1 partitions",
    ]
    assert done.stderr == (
        "calib: warning: edited.json was edited by hand after its fit: its signature is not that of "
        "its content\n"
    )


def test_every_mistake_is_named_with_its_place(tmp_path: Path, edited: Path) -> None:
    bad = written(tmp_path / "bad.json")
    edit(
        bad,
        lambda c: (
            c.update(ranks_per_node=0, **{"col\x1bour": 1}),
            c["layers"][0].update(n=0),
            c["collectives"][1]["intercept_s"].update(low=1.0),
        ),
    )
    (tmp_path / "text.json").write_text("alpha: 1")
    done = calib(
        tmp_path, "parameters", "validate", "bad.json", "nosuch.json", "text.json", str(edited)
    )
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    assert lines[0] == "bad.json: not valid, 4 mistakes"
    assert sorted(line.split(": ")[0].strip() for line in lines[1:5]) == [
        "collectives.1.intercept_s",
        "col\N{REPLACEMENT CHARACTER}our",
        "layers.0.n",
        "ranks_per_node",
    ]
    assert lines[5] == "nosuch.json: not valid, 1 mistake"
    assert lines[6] == "  the file: parameter file nosuch.json does not exist"
    assert lines[7] == "text.json: not valid, 1 mistake" and "not JSON" in lines[8]
    assert lines[9].startswith(f"{edited}: valid, ") and len(lines) == 10
    assert done.stderr.count("calib: ") == 1


def test_validate_as_json(tmp_path: Path, edited: Path) -> None:
    bad = written(tmp_path / "bad.json")
    edit(bad, lambda c: c.update(format_version=9))
    done = calib(tmp_path, "parameters", "validate", "edited.json", "bad.json", "--json")
    one, two = json.loads(done.stdout)
    assert done.returncode == 2
    assert (one["valid"], one["signature"], one["format_version"]) == (True, "edited", 1)
    assert one["sha256"] == digest(json.loads(edited.read_text()))
    assert one["holds"]["collectives"] == 3 and one["mistakes"] == []
    assert not two["valid"] and two["signature"] is None
    assert "format 9 is newer than this program" in two["mistakes"][0]["message"]


# show, check, diff


@pytest.mark.parametrize("verb", ["show", "check"])
def test_the_verbs_are_the_same_inside(tmp_path: Path, verb: str) -> None:
    written(tmp_path / "p.json")
    one, two = calib(tmp_path, verb, "p.json"), calib(tmp_path, "parameters", verb, "p.json")
    assert (one.returncode, one.stdout, one.stderr) == (two.returncode, two.stdout, two.stderr)
    assert "allreduce" in calib(tmp_path, "parameters", "show", "p.json").stdout


def test_diff_inside(tmp_path: Path, edited: Path) -> None:
    written(tmp_path / "p.json")
    done = calib(tmp_path, "parameters", "diff", "p.json", "edited.json")
    assert done.returncode == 0 and "none of 65 quantities differs" in done.stdout
    assert "note: the second file was edited by hand after its fit" in done.stderr


def test_what_show_prints_is_signed(tmp_path: Path, edited: Path) -> None:
    good = written(tmp_path / "good.json")
    done = calib(tmp_path, "show", "good.json", "--json")
    assert json.loads(done.stdout) == json.loads(good.read_text()) and done.stderr == ""
    # an edit does not get lost on that way
    (tmp_path / "again.json").write_text(calib(tmp_path, "show", "edited.json", "--json").stdout)
    done = calib(tmp_path, "parameters", "validate", "again.json")
    assert "EDITED" in done.stdout and "its provenance says so" in done.stderr


def test_check_finds_an_edit_and_show_says_so(tmp_path: Path, edited: Path) -> None:
    done = calib(tmp_path, "check", "edited.json", "--json", "--max-age-days", "1e6")
    (found,) = [x for x in json.loads(done.stdout) if x["severity"] == "warning"]
    assert (found["kind"], found["subject"], done.returncode) == ("edited", "signature", 1)
    assert "by hand, after its fit" in calib(tmp_path, "show", "edited.json").stdout


# one warning, whichever verb


@pytest.fixture
def to_predict(tmp_path: Path) -> Path:
    machine().write(tmp_path / "hand.json")
    edit(tmp_path / "hand.json", lambda c: c["work"][0].update(call_s=1.1e-6))
    mlp([12, 8, 3]).write(tmp_path / "model.json")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        "show hand.json --json",
        "check hand.json --json",
        "diff hand.json hand.json --json",
        "predict --model model.json --strategy data -p 1,2 --batch-per-rank 4 --parameters hand.json "
        "--json",
        "sweep --models model.json --strategies data,serial -p 1,2 --batch-per-rank 4 --parameters "
        "hand.json -o out.csv",
        "export hand.json --to csv -o out.csv --json",
        "parameters validate hand.json hand.json --json",
    ],
)
def test_one_warning_line(to_predict: Path, arguments: str) -> None:
    done = calib(to_predict, *arguments.split())
    warned = [line for line in done.stderr.splitlines() if line.startswith("calib: ")]
    assert warned == [
        "calib: warning: hand.json was edited by hand after its fit: its signature is not that of its "
        "content"
    ]
    assert done.returncode in (0, 1)
    if "--json" in arguments:
        json.loads(done.stdout)


def test_a_refusal_is_one_line_more(to_predict: Path) -> None:
    done = calib(to_predict, "parameters", "merge", "hand.json", "hand.json", "-o", "out.json")
    assert done.returncode == 2
    assert [line.split(" ")[1] for line in done.stderr.splitlines()] == ["warning:", "error:"]


def test_a_warning_that_the_environment_turns_off_or_into_an_error(to_predict: Path) -> None:
    actions: tuple[Literal["ignore", "error"], ...] = ("ignore", "error")
    for action in actions:
        with warnings.catch_warnings():
            warnings.simplefilter(action)  # as PYTHONWARNINGS and -W do
            done = calib(to_predict, "show", "hand.json", "--json")
        assert done.returncode == 0 and done.stderr.count("calib: warning: ") == 1


@pytest.mark.parametrize(
    ("rank", "events", "heard"),
    [
        (None, None, True),
        ("0", None, True),
        ("1", None, False),
        ("0", "1", False),
        (None, "1", True),
    ],
)
def test_of_all_ranks_one_speaks_or_their_driver(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    edited: Path,
    rank: str | None,
    events: str | None,
    heard: bool,
) -> None:
    for name in (*RANK_VARIABLES, EVENTS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    if rank is not None:
        monkeypatch.setenv("PMI_RANK", rank)
    if events is not None:
        monkeypatch.setenv(EVENTS_VARIABLE, events)
    assert speaks() is heard
    assert calib(tmp_path, "show", "edited.json", "--json").stderr.count("warning") == heard


# merge


def parts(where: Path) -> tuple[Path, Path]:
    network = {
        name: [] for name, value in f.filled() if isinstance(value, list) and name not in NETWORK
    }
    kernels: dict[str, Any] = {name: [] for name in NETWORK}
    return written(where / "net.json", **network), written(where / "kernels.json", **kernels)


def test_merge_writes_a_signed_file(tmp_path: Path) -> None:
    parts(tmp_path)
    done = calib(tmp_path, "parameters", "merge", "net.json", "kernels.json", "-o", "whole.json")
    assert done.returncode == 0 and done.stderr == "written: whole.json\n"
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["collectives", "net.json", "3", "0", "0"] in rows
    assert ["layers", "kernels.json", "1", "0", "0"] in rows
    found = Parameters.read(tmp_path / "whole.json")
    bare = {"provenance": f.filled().provenance}
    assert found.model_copy(update=bare) == f.filled()
    assert len(found.provenance.merged) == 2
    # the same content gives the same bytes
    first = (tmp_path / "whole.json").read_bytes()
    calib(tmp_path, "parameters", "merge", "net.json", "kernels.json", "-o", "whole.json")
    assert (tmp_path / "whole.json").read_bytes() == first
    assert "merged of" in calib(tmp_path, "show", "whole.json").stdout


def test_merge_as_json(tmp_path: Path, edited: Path) -> None:
    written(tmp_path / "good.json")
    command = ("parameters", "merge", "good.json", "edited.json", "-o", "out.json")
    line = calib(tmp_path, *command).stderr.splitlines()[-1]
    assert "1 law differs between the files, first mpi, cpu, p=2 of overlap" in line
    assert not (tmp_path / "out.json").exists()
    done = calib(tmp_path, *command, "--prefer", "last", "--json")
    found = json.loads(done.stdout)
    assert found["sha256"] == json.loads((tmp_path / "out.json").read_text())["signature"]
    assert [x["edited"] for x in found["files"]] == [False, True]
    assert found["files"][0]["sections"]["overlap"] == {"taken": 0, "same": 0, "passed_over": 1}
    assert found["files"][1]["sections"]["overlap"] == {"taken": 1, "same": 0, "passed_over": 0}
    assert "EDITED" in calib(tmp_path, "parameters", "validate", "out.json").stdout


def test_merge_across(tmp_path: Path) -> None:
    source = f.filled().provenance.model_copy(update={"cluster_fingerprint": "f" * 16})
    written(tmp_path / "a.json", layers=[]), written(tmp_path / "b.json", provenance=source)
    command = ("parameters", "merge", "a.json", "b.json", "-o", "out.json")
    assert "of different clusters" in refused(calib(tmp_path, *command))
    assert calib(tmp_path, *command, "--across").returncode == 0
    done = calib(tmp_path, "parameters", "check", "out.json")
    assert done.returncode == 1 and "merged of different clusters" in done.stdout


def test_merge_never_writes_over_what_it_reads(tmp_path: Path) -> None:
    net, kernels = parts(tmp_path)
    before = net.read_bytes()
    (tmp_path / "link.json").symlink_to(net)
    for output in ("net.json", "./kernels.json", "link.json"):
        line = refused(calib(tmp_path, "parameters", "merge", str(net), str(kernels), "-o", output))
        assert "is one of the files that are read" in line
    assert net.read_bytes() == before
    assert "is a directory" in refused(
        calib(tmp_path, "parameters", "merge", "net.json", "kernels.json", "-o", "")
    )
    assert "name two or more" in refused(
        calib(tmp_path, "parameters", "merge", "net.json", "-o", "out.json")
    )
