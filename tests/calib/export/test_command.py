"""`calib export`: what it takes, what it writes and what it says; one line for every mistake."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from tests.calib.inside import calib
from tests.helpers.filled import collective, filled

from calib.export import TARGETS
from calib.foundation.errors import InputError
from calib.microbench.records.cluster import Cluster, Host, Level
from calib.options import size_range


@pytest.fixture
def home(tmp_path: Path) -> Path:
    filled().write(tmp_path / "parameters.json")
    (tmp_path / "hard").hardlink_to(tmp_path / "parameters.json")
    (tmp_path / "soft").symlink_to("parameters.json")
    (tmp_path / "blocked" / "system.json").mkdir(parents=True)
    host = Host(name="h", kernel="k", devices=[])
    levels = [Level(name="node", members=8, link="l")]
    Cluster(name="c", hosts=[host], levels=levels).write(tmp_path / "c.json")
    return tmp_path


def export(home: Path, *arguments: str) -> CompletedProcess[str]:
    return calib(home, "export", *arguments)


def refused(home: Path, *arguments: str) -> str:
    """The one line of exit code 2; nothing was written."""
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    done = export(home, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    return line.removeprefix("calib: error: ")


def test_a_file_and_its_side_file(home: Path) -> None:
    done = export(home, "parameters.json", "--to", "python", "-o", "out/numbers.json")
    assert done.returncode == 0, done.stderr
    assert "written: out/numbers.json, out/numbers.json.about.json" in done.stderr
    side = json.loads((home / "out/numbers.json.about.json").read_text())
    signed = json.loads((home / "parameters.json").read_text())["signature"]
    assert side["target"] == "python" and side["parameters"]["sha256"] == signed
    assert sorted(path.name for path in (home / "out").iterdir()) == [
        "numbers.json",
        "numbers.json.about.json",
    ]


def test_a_directory_has_a_side_file_by_the_name_of_the_tool(home: Path) -> None:
    assert export(home, "parameters.json", "--to", "galvatron", "-o", "d").returncode == 0
    assert export(home, "parameters.json", "--to", "astra-sim", "-o", "d").returncode == 0
    targets = {
        name: json.loads((home / f"d/{name}.about.json").read_text())["target"]
        for name in ("galvatron", "astra-sim")
    }
    assert targets == {"galvatron": "galvatron", "astra-sim": "astra-sim"}


def test_a_stream_gets_the_file_alone(home: Path) -> None:
    done = export(home, "parameters.json", "--to", "simgrid", "-o", "/dev/stderr")
    assert done.returncode == 0 and done.stdout == ""
    pipe = home / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        text = pool.submit(pipe.read_text)
        done = export(home, "parameters.json", "--to", "python", "-o", "pipe", "--json")
        assert json.loads(text.result(timeout=60))["collectives"]
    assert done.stdout == "" and '"target": "python"' in done.stderr
    assert not (home / "pipe.about.json").exists()


def test_a_cluster_file_that_cannot_be_read_is_in_nobodys_way(home: Path) -> None:
    (home / "cluster.json").write_text("{")
    done = export(home, "parameters.json", "--to", "csv", "-o", "p.csv")
    assert done.returncode == 0 and "note: cluster.json is not used" in done.stderr


def test_whose_times_are_written(home: Path) -> None:
    both = [collective(2, library="torch_mpi"), collective(2)]
    filled(collectives=both).write(home / "both.json")
    content = json.loads(
        export(home, "both.json", "--to", "simgrid", "-o", "p.xml", "--json").stdout
    )
    assert content["library"] == "torch_mpi"
    assert any("the file also holds mpi: --library" in note for note in content["notes"])
    again = ("both.json", "--to", "simgrid", "--library", "mpi", "-o", "p.xml", "--json")
    content = json.loads(export(home, *again).stdout)
    assert content["library"] == "mpi"
    assert not any("--library" in note for note in content["notes"])


def test_json_is_the_side_file_and_the_paths(home: Path) -> None:
    done = export(home, "parameters.json", "--to", "csv", "-o", "p.csv", "--json")
    content = json.loads(done.stdout)
    assert content.pop("files") == ["p.csv", "p.csv.about.json"]
    assert content == json.loads((home / "p.csv.about.json").read_text())


def test_the_same_file_gives_the_same_bytes(home: Path) -> None:
    found = []
    for name in ("one", "two"):
        assert export(home, "parameters.json", "--to", "all", "-o", name).returncode == 0
        found.append(
            {
                path.relative_to(home / name): path.read_bytes()
                for path in (home / name).rglob("*")
                if path.is_file()
            }
        )
    assert found[0] == found[1] and len(found[0]) > len(TARGETS)


def test_all_says_what_is_not_written(home: Path) -> None:
    done = export(home, "parameters.json", "--to", "all", "-o", "out", "--json")
    results = {result["target"]: result for result in json.loads(done.stdout)}
    assert set(results) == set(TARGETS) and done.stderr == ""
    assert not results["nccl-tuner"]["files"]
    said = export(home, "parameters.json", "--to", "all", "-o", "out")
    assert f"nccl-tuner: not written: {results['nccl-tuner']['error']}" in said.stderr
    assert "simgrid: out/platform.xml, and 2 more" in said.stderr
    assert "earlier export" not in said.stderr
    (home / "out/nccl_tuner.conf").write_text("of yesterday\n")
    again = export(home, "parameters.json", "--to", "all", "-o", "out")
    assert "(out/nccl_tuner.conf is of an earlier export)" in again.stderr
    # one row of the table for each number that stands for many, its value beside the error
    wide = calib(home, "export", "parameters.json", "--to", "all", "-o", "out", COLUMNS="400")
    table = [line for line in wide.stdout.splitlines() if ", p=" in line]
    collapsed = [c for of in results.values() for c in of.get("collapsed", ())]
    assert len(table) == len(collapsed) > 5
    for line, of in zip(table, collapsed, strict=True):
        assert f"{of['written']} {of['mean_error']:.1%}" in " ".join(line.split())
    assert max(map(len, said.stdout.splitlines())) <= 100
    assert "(100 columns leave out: there, " in said.stdout
    for name in ("simgrid", "astra-sim", "galvatron", "csv", "python"):
        assert all((home / file).is_file() for file in results[name]["files"])


def test_all_says_every_note_once(home: Path) -> None:
    """Below the target that it is of; in --json with each."""
    done = export(home, "parameters.json", "--to", "all", "-o", "out", "--json")
    notes = {of["target"]: of["notes"] for of in json.loads(done.stdout) if of["files"]}
    assert any("p2p_bandwidth_" in note for note in notes["galvatron"])
    said = calib(home, "export", "parameters.json", "--to", "all", "-o", "out", COLUMNS="72").stderr
    assert max(len(line) for line in said.splitlines() if line.startswith("  ")) <= 72
    whole = " ".join(said.split())
    for note in {note for of in notes.values() for note in of}:
        assert whole.count(f"- {note}") == 1
    at = [whole.index(f"{name}: out/") for name in notes]
    assert at == sorted(at)
    own = [note for note in notes["galvatron"] if sum(note in of for of in notes.values()) == 1]
    begin, end = (whole.index(f"{name}: out/") for name in ("galvatron", "flexflow"))
    assert own and all(begin < whole.index(note) < end for note in own)


@pytest.mark.parametrize(
    ("to", "options", "code"),
    [
        ("all", "", 0),
        ("nccl-tuner", "", 2),
        ("csv,nccl-tuner", "", 2),
        ("nccl-tuner,flexflow,nccl-tuner", "", 2),
        ("csv, python", "", 0),
        ("all,nccl-tuner", "", 2),
        ("ALL", "", 0),
        ("all", "--topology ring", 2),
        ("all", "--nodes 3", 2),
    ],
)
def test_exit_code_2_where_what_was_named_is_not_there(
    home: Path, to: str, options: str, code: int
) -> None:
    """Alone or beside others; `all` names no target, but an option that was typed must hold."""
    done = export(home, "parameters.json", "--to", to, "-o", "out/x", *options.split())
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if "," in to or to.lower() == "all":
        written = {name for name in TARGETS if f"{name}: out/x" in done.stderr}
        refused = {name for name in TARGETS if f"{name}: not written: " in done.stderr}
        named = set(to.replace(" ", "").split(","))
        assert written | refused == (set(TARGETS) if "all" in to.lower() else named)
        assert (home / "out/x/parameters.csv").exists() == ("csv" in written)


def test_a_file_in_the_way_of_one_of_all_is_no_success(home: Path) -> None:
    """The others are written; -o names a directory where galvatron's is a file."""
    (home / "out").mkdir()
    (home / "out/galvatron").write_text("mine\n")
    done = export(home, "parameters.json", "--to", "all", "-o", "out")
    assert (
        done.returncode == 2 and "galvatron: not written: -o out/galvatron is a file" in done.stderr
    )
    assert (home / "out/galvatron").read_text() == "mine\n" and (home / "out/numbers.json").exists()


def test_list_names_every_target(home: Path) -> None:
    done = export(home, "--list")
    assert done.returncode == 0 and all(name in done.stdout for name in TARGETS)
    listed = json.loads(export(home, "--list", "--json").stdout)
    assert [of["name"] for of in listed] == list(TARGETS)
    assert all(len(of[key]) > 10 for of in listed for key in ("receives", "loses", "needs"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "export needs a parameter file, --to TARGET and -o PATH"),
        ("parameters.json --to gpu -o x", "unknown target 'gpu'; known: simgrid, astra-sim"),
        ("parameters.json --to nccl -o x", "did you mean nccl-tuner? known: simgrid"),
        ("none.json --to csv -o x", "parameter file none.json does not exist"),
        (
            "parameters.json --to csv -o parameters.json",
            "is an input of this export: choose another -o",
        ),
        ("parameters.json --to csv -o hard", "is an input of this export"),
        ("parameters.json --to csv -o soft", "is an input of this export"),
        ("parameters.json --to simgrid --cluster c.json -o c.json", "is an input of this export"),
        ("parameters.json --to csv -o " + "x" * 250, "File name too long"),
        ("parameters.json --to csv -o parameters.json/x", "Not a directory"),
        ("parameters.json --to astra-sim -o blocked", "system.json: it is a directory"),
        ("parameters.json --to csv --topology flat -o x", "--topology does not apply to csv"),
        ("parameters.json --to simgrid --topology ring -o x", "flat, fat-tree, dragonfly"),
        ("parameters.json --to simgrid --ranks 1 -o x", "one rank sends nothing"),
        ("parameters.json --to simgrid --ranks 2:1000:+1 -o x", "over 64 numbers of ranks"),
        ("parameters.json --to simgrid --ranks a -o x", "is not a list of numbers"),
        ("parameters.json --to simgrid --bytes 4KiB:1 -o x", "the smaller first"),
        ("parameters.json --to simgrid --bytes 4Kb -o x", "is not a size such as 16GiB"),
        ("parameters.json --to simgrid --library gloo -o x", "only those of mpi"),
        ("parameters.json --to simgrid --cluster none.json -o x", "none.json does not exist"),
        ("parameters.json --to galvatron -o parameters.json", "writes several files"),
        ("parameters.json --to nccl-tuner -o x", "algorithm"),
    ],
)
def test_one_line_for_a_mistake(home: Path, arguments: str, words: str) -> None:
    assert words in refused(home, *arguments.split())


def test_an_edited_file_is_usable_with_a_warning(home: Path) -> None:
    path = home / "parameters.json"
    path.write_text(path.read_text().replace('"Some CPU"', '"A faster CPU"'))
    done = export(home, "parameters.json", "--to", "python", "-o", "n.json")
    assert done.returncode == 0
    (warning,) = [line for line in done.stderr.splitlines() if "warning" in line]
    assert "parameters.json was edited by hand" in warning
    side = json.loads((home / "n.json.about.json").read_text())
    assert side["parameters"]["edited_by_hand"]
    assert "the parameter file was edited by hand after its fit" in side["notes"]


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("64KiB:64MiB", (65536, 67108864)),
        ("1:2", (1, 2)),
        ("8 B", (8, 8)),
        ("1MB:1 GB", (10**6, 10**9)),
        ("1024TiB", (2**50, 2**50)),
        ("1.5KiB", (1536, 1536)),
    ],
)
def test_sizes(text: str, ends: tuple[int, int]) -> None:
    assert size_range(text, "--bytes") == ends


@pytest.mark.parametrize("text", ["", ":", "0", "1:2:3", "-1", "2PiB", "1025TiB", "٣"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InputError, match="--bytes"):
        size_range(text, "--bytes")
