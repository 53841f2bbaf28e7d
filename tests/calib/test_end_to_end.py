"""The whole way once, `calib calibrate --quick` under real mpiexec, and what must be true.

A registered model, a user's own as `calib model trace` wrote it, and one that does not say how it is
built. No test here looks at how long anything took or how accurate it was: only that numbers exist,
belong together and can be made again. Calibrations in several executions: tests/standin.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import statistics
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.calib import inside
from tests.calib.running import calib, one_after_the_other
from tests.helpers.rows import rows_in
from tests.helpers.words import words_of
from tests.reports.history_entries import entry
from tests.training.launching import needs_mpiexec

from calib.fitting.parameters.file import Parameters
from calib.microbench.cases import CollectiveCase, InPlaceCase, LayerCase, Plan
from calib.microbench.machine.placement import distinct_cores, usable_cores
from calib.microbench.records.cluster import Cluster
from calib.microbench.records.parts import OUT_OF_TIME
from calib.microbench.session import NOT_HELD
from calib.oracle.model.spec import ModelSpec
from calib.oracle.projection import PHASES
from calib.reports.history.store import History
from calib.training.models.specs import spec
from calib.training.run.lines import TIMED_PHASES
from calib.training.run.record import TrainingRun

pytestmark = [pytest.mark.mpi, pytest.mark.e2e, pytest.mark.waits, needs_mpiexec]

TRAINED = ("vgg16-mini", "tokens")
OF_HAND = "hand"  # a model's layers alone
NET = """
from torch import nn


def build():
    return nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 50))
"""
TRACE = "model trace my_pkg.net:build --input 12 --name tokens -o net.json"
# of this budget each launch measures what predictions rest on, and of all else what it has time for
OPTIONS = (
    *("--quick", "--budget", "6s", "--batch-per-rank", "4", "--iterations", "6"),
    *("--models", "vgg16-mini,net.json,hand.json", "--json"),
)
CORES = len(distinct_cores(usable_cores()))
SIZES = sorted({1, CORES})
two_cores = pytest.mark.skipif(
    CORES < 2, reason="one usable core: data parallelism is not calibrated here"
)
POINTS = [
    (model, strategy, p)
    for model in TRAINED
    for strategy, p in [("serial", 1), *(("data", size) for size in SIZES)]
]


@dataclass
class Calibration:
    """A finished run directory and what the call printed and said; `files` as they were then."""

    home: Path
    run: Path
    printed: dict[str, Any]
    said: str
    files: dict[str, bytes]

    def json(self, name: str) -> Any:
        return json.loads(self.files[name])


def contents(run: Path) -> dict[str, bytes]:
    paths = [path for path in sorted(run.rglob("*")) if path.is_file()]
    return {str(path.relative_to(run)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    home = tmp_path_factory.mktemp("whole")
    (home / "my_pkg").mkdir()
    (home / "my_pkg/net.py").write_text(NET)
    traced = calib(home, TRACE)
    assert traced.returncode == 0, traced.stderr
    model = ModelSpec.read(home / "net.json")
    model.model_copy(update={"name": OF_HAND, "built_by": ""}).write(home / "hand.json")
    call = calib(home, "calibrate", *OPTIONS, "-o", "tmp/run")
    assert call.returncode == 0, call.stderr[-3000:]
    assert "Traceback" not in call.stderr
    run = home / "tmp/run"
    return Calibration(home, run, json.loads(call.stdout), call.stderr, contents(run))


@pytest.fixture
def copied(done: Calibration, tmp_path: Path) -> Path:
    """A run directory to write in."""
    return Path(shutil.copytree(done.run, tmp_path / "run"))


@pytest.fixture
def again(done: Calibration, copied: Path) -> Path:
    """A run directory to go on in, with what was calibrated beside it."""
    for name in ("net.json", "hand.json", "my_pkg/net.py"):
        (copied.parent / name).parent.mkdir(exist_ok=True)
        shutil.copy(done.home / name, copied.parent / name)
    return copied


def run_file(model: str, strategy: str, p: int) -> str:
    return f"training/{model}-{strategy}-p{p}.jsonl"


def point_of(row: dict[str, Any]) -> tuple[str, str, int]:
    """Model, strategy and p of a record in JSON."""
    return row["model"], row["division"]["strategy"], row["division"]["p"]


def layers_left_out(done: Calibration, model: str, batch_per_rank: int, p: int) -> set[str]:
    """Keys of a model's layers that no launch on p ranks had time for, alone or in a whole model.

    Each must have been planned alone.
    """
    plan = Plan.model_validate(done.json("plan.json"))
    cases = [case for case in plan.cases if case.ranks == p]
    ends = done.json("manifest.json")["cases"]
    timed = {end["case_id"] for end in ends if not end["stopped_by"].startswith(OUT_OF_TIME)}
    alone = {
        case.key: case.id in timed
        for case in cases
        if isinstance(case, LayerCase) and case.passes == "whole"
    }
    models = [case for case in cases if isinstance(case, InPlaceCase) and case.layer_names]
    in_place = {key for case in models if case.id in timed for key in case.layer_keys}
    layers = [layer for layer in spec(model, done.run).layers if not layer.shape.is_free]
    keys = [layer.shape.key(batch_per_rank, "float32", layer.needs_input_grad) for layer in layers]
    return {key for key in keys if not alone[key] and key not in in_place}


def messages_left_out(done: Calibration, p: int) -> set[int]:
    """Sizes that strategies send on p ranks, and that no launch had time for."""
    plan = Plan.model_validate(done.json("plan.json"))
    sent = [
        case
        for case in plan.cases
        if isinstance(case, CollectiveCase) and case.ranks == p and case.tier == 0
    ]
    ends = done.json("manifest.json")["cases"]
    timed = {end["case_id"] for end in ends if not end["stopped_by"].startswith(OUT_OF_TIME)}
    return {case.nbytes for case in sent if case.left_out or case.id not in timed}


def test_the_run_directory(done: Calibration) -> None:
    whole = {
        *words_of(
            "doctor.json cluster.json plan.toml plan.json samples.parquet manifest.json "
            "parameters.json predictions.json report.json report.html ranks.log training/ranks.log "
            "training/ranks.job.json models/tokens.json models/hand.json"
        ),
        *(run_file(*point) for point in POINTS),
    }
    found = {name: size for name, size in done.files.items() if not name.startswith(".")}
    assert set(found) == whole
    assert all(found.values()), "an empty file"
    latest = done.run.parent / "latest"
    assert latest.is_symlink() and latest.resolve() == done.run.resolve()
    assert done.printed["run"] == "tmp/run"


def test_no_case_failed(done: Calibration) -> None:
    manifest = done.json("manifest.json")
    plan = Plan.model_validate(done.json("plan.json"))
    tiers = {case.id: case.tier for case in plan.cases}
    held = {case.id for size in plan.sizes for case in plan.cases_for(size)}
    for case in manifest["cases"]:
        short_of_time = case["stopped_by"].startswith(OUT_OF_TIME) and tiers[case["case_id"]] > 0
        not_held = case["stopped_by"] == NOT_HELD and case["case_id"] not in held
        assert case["stopped_by"] in ("interval", "budget") or short_of_time or not_held
    planned = {(size, n) for size in plan.sizes for n in range(plan.launches_of(size))}
    assert all(plan.launches_of(size) >= 2 for size in plan.sizes)
    assert {(launch["ranks"], launch["launch"]) for launch in manifest["launches"]} == planned


def test_parameters(done: Calibration) -> None:
    """They parse, and come from these samples on this machine."""
    parameters = Parameters.read(done.run / "parameters.json")
    sha256 = hashlib.sha256(done.files["samples.parquet"]).hexdigest()
    assert parameters.provenance.samples_sha256 == [sha256]
    assert done.json("manifest.json")["samples_sha256"] == sha256
    header = TrainingRun.read(done.run / run_file("vgg16-mini", "serial", 1)).header
    assert parameters.provenance.cluster_fingerprint == header.cluster_fingerprint
    assert {time.active_ranks for time in parameters.layers} == set(SIZES)


@two_cores
def test_alpha_and_beta(done: Calibration) -> None:
    """Every operation has a line that was measured at two sizes: a busy machine has no time for some."""
    parameters = Parameters.read(done.run / "parameters.json")
    sizes: dict[str, set[int]] = {}
    for row in rows_in(done.run):
        if row.kind == "collective" and not row.cold:
            sizes.setdefault(row.operation, set()).add(row.nbytes)
    assert sizes
    fits = {fit.operation: fit for fit in parameters.collectives}
    assert set(fits) == {operation for operation, of in sizes.items() if len(of) > 1}
    for operation, fit in fits.items():
        assert fit.range_nbytes == (min(sizes[operation]), max(sizes[operation]))
        assert min(fit.alpha_s.value, fit.beta_s_per_byte.value) >= 0
    for operation in {"allreduce", "p2p"} & set(fits):
        assert fits[operation].beta_s_per_byte.value > 0 and fits[operation].alpha_s.value > 0


@pytest.mark.parametrize("point", POINTS, ids=str)
def test_every_point_has_a_measured_and_a_predicted_time(
    done: Calibration, point: tuple[str, str, int]
) -> None:
    p = point[2]
    rows = [row for row in done.json("report.json")["accuracies"] if point_of(row) == point]
    assert len(rows) == 1
    total = rows[0]["total"]
    assert total["measured"]["value"] > 0 and total["predicted"]["value"] > 0
    assert not rows[0]["oversubscribed"]
    run = TrainingRun.read(done.run / run_file(*point))
    assert run.complete and len(run.timed) == 6
    # a busy machine may have no time for a small layer or a long message: the prediction must say so
    short = layers_left_out(done, point[0], run.header.batch_per_rank, p)
    is_measured = total["predicted"]["basis"] == "measured"
    assert is_measured == (not short) or (not is_measured and messages_left_out(done, p)), short
    phases = {"forward", "backward", "update"} | ({"pack", "exchange"} if p > 1 else set())
    for phase in TIMED_PHASES:
        found = [rows[0]["phases"][phase][way]["value"] for way in ("predicted", "measured")]
        assert [seconds > 0 for seconds in found] == [phase in phases] * 2


@two_cores
@pytest.mark.parametrize("model", TRAINED)
def test_gradients_equal_the_serial_ones(done: Calibration, model: str) -> None:
    run = TrainingRun.read(done.run / run_file(model, "data", CORES))
    assert run.header.p == CORES
    if CORES <= 8:
        assert run.header.gradient_difference is not None
        assert run.header.gradient_difference <= 1e-5


def test_a_users_model_is_run_in_place_and_one_without_code_predicted_alone(
    done: Calibration,
) -> None:
    """A line says why it is no more than that."""
    assert ModelSpec.read(done.home / "net.json").built_by == "my_pkg.net:build"
    in_place = {row.key.partition(":")[0] for row in rows_in(done.run) if row.kind == "in_place"}
    assert in_place == set(TRAINED)
    predicted = [point_of(row) for row in done.json("predictions.json")["projections"]]
    of_hand = [(OF_HAND, strategy, p) for model, strategy, p in POINTS if model == "tokens"]
    assert sorted(predicted) == sorted([*POINTS, *of_hand])
    assert "not predicted" not in done.said
    [line] = [line for line in done.said.splitlines() if line.startswith("left out: hand")]
    assert "does not say how it is built" in line


def test_accuracy_is_one_minus_the_relative_error(done: Calibration) -> None:
    """Again from predictions.json and the lines of run.jsonl, with nothing of reports/."""
    predicted = {point_of(x): x for x in done.json("predictions.json")["projections"]}
    rows = done.json("report.json")["accuracies"]
    assert len(rows) == len(POINTS)
    for row in rows:
        point = point_of(row)
        totals = []
        for line in done.files[run_file(*point)].decode().splitlines():
            record = json.loads(line)
            if record["record"] != "iteration" or record["warmup"]:
                continue
            seconds, ranks = record["seconds"], range(point[2])
            by_rank = [sum(seconds[phase][rank] for phase in seconds) for rank in ranks]
            # the rank that waited least in the exchange arrived last
            last = min(ranks, key=lambda rank: seconds["exchange"][rank])
            totals.append(by_rank[last] if point[2] > 1 else by_rank[0])
        measured = statistics.median(totals)
        p = predicted[point]["total"]["value"]
        assert row["total"]["measured"]["value"] == pytest.approx(measured, rel=1e-9)
        expected = 1 - abs(p - measured) / measured
        assert row["total"]["accuracy"] == pytest.approx(expected, rel=1e-9)


def test_what_was_printed_is_what_was_written(done: Calibration) -> None:
    assert done.printed["accuracies"] == done.json("report.json")["accuracies"]
    assert done.printed["projections"] == done.json("predictions.json")["projections"]
    assert not done.json("report.json")["missing"]
    steps = ["doctor", "probe", "measure", "fit", "predict", "train", "report"]
    assert list(done.printed["seconds"]) == steps


def test_report_again_gives_the_same_numbers(done: Calibration, copied: Path) -> None:
    """Of the run directory alone: the user's code and files are not here."""
    for name in ("report.json", "report.html"):
        (copied / name).unlink()
    again = inside.calib(copied.parent, "report", "run", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == done.json("report.json")
    assert (copied / "report.json").read_bytes() == done.files["report.json"]


@pytest.mark.parametrize("text", ["[{}]", '{"a": 1}', "5"])
def test_predictions_that_are_none(copied: Path, text: str) -> None:
    (copied / "predictions.json").write_text(text)
    again = inside.calib(copied.parent, "report", "run")
    assert again.returncode == 2 and "Traceback" not in again.stderr


@pytest.mark.parametrize("name", ["manifest.json", "plan.json", "cluster.json", "samples.parquet"])
@pytest.mark.parametrize("half", [True, False])
def test_fit_of_a_spoilt_run(copied: Path, name: str, half: bool) -> None:
    """Cut, or of another shape: one line that names the file."""
    whole = (copied / name).read_bytes()
    (copied / name).write_bytes(whole[: len(whole) // 2] if half else b"[1]")
    again = inside.calib(copied.parent, "fit", "run")
    assert again.returncode == 2 and "Traceback" not in again.stderr
    assert len(again.stderr.splitlines()) == 1 and name in again.stderr


@two_cores
def test_predict_of_a_model_that_was_not_measured(done: Calibration) -> None:
    """The example of the issue: ResNet-50 on 64 ranks from what minis on one node gave."""
    call = inside.calib(
        done.home,
        "predict --model resnet50 --strategy data -p 64 --batch-per-rank 64 --parameters "
        "tmp/run/parameters.json --json",
    )
    assert call.returncode == 0, call.stderr
    (found,) = json.loads(call.stdout)
    assert list(found["phases"]) == list(PHASES)
    taken = {phase for phase, time in found["phases"].items() if time["value"] > 0}
    assert taken == {"forward", "backward", "pack", "exchange", "update"}
    assert found["total"]["basis"] == found["phases"]["exchange"]["basis"] == "extrapolated"
    assert found["total"]["low"] < found["total"]["value"] < found["total"]["high"]
    assert (found["division"]["batch"], found["bytes_by_part"]["weights"]) == (4096, 4 * 25_557_032)
    assert found["bytes_per_rank"] == sum(found["bytes_by_part"].values())
    # on as many nodes as 64 ranks take where one has those of this machine
    said = re.compile(r"allreduce on 64 ranks( of \d+ nodes)? was not measured")
    assert any(said.match(note) for note in found["notes"])


def test_latest_is_where_predict_looks(done: Calibration) -> None:
    """Without --parameters: runs/latest/parameters.json."""
    home = done.home / "default"
    home.mkdir()
    (home / "runs").symlink_to(done.run.parent)
    call = inside.calib(
        home, "predict --model vgg16-mini --strategy serial --batch-per-rank 4 --json"
    )
    assert call.returncode == 0, call.stderr
    expected = next(
        x
        for x in done.json("predictions.json")["projections"]
        if point_of(x) == ("vgg16-mini", "serial", 1)
    )
    (found,) = json.loads(call.stdout)
    for of in (
        found,
        expected,
    ):  # what to type to measure what was left out for time depends on the verb
        of["notes"] = [note.partition("; to measure")[0] for note in of["notes"]]
    assert found == expected


@two_cores
def test_the_notebook_page(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of docs/notebook.md, in one namespace, on this run and a night of its machine."""
    home = copied.parent
    (home / "runs").mkdir()
    (home / "runs/latest").symlink_to("../run")
    with History.open(str(home / "calib.db")) as history:
        history.record(entry(machine=Cluster.read(copied / "cluster.json").machine))
    page = (Path(__file__).parents[2] / "docs/notebook.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(home)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/notebook.md", "exec"), names)
    assert len(names["points"]) == len(POINTS) and len(names["nights"]) == 1
    assert set(names["medians"].size_B) <= set(names["samples"].size_B)
    assert not names["best"].empty and (names["law"].time_s > 0).all()


class References(HTMLParser):
    """What a browser would fetch (or follow) from a page; scripts and styles are kept apart."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.styles = ""
        self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        names = ("src", "href", "action", "data", "poster", "srcset", "xlink:href")
        self.found += [value for name, value in attrs if name in names and value]
        self.styles += "".join(value for name, value in attrs if name == "style" and value)

    def handle_data(self, data: str) -> None:
        if self._tag == "style":
            self.styles += data


def test_the_page_needs_no_network(done: Calibration) -> None:
    page = done.files["report.html"].decode()
    assert all(model in page for model in TRAINED)
    references = References()
    references.feed(page)
    assert all(found.startswith(("data:", "#")) for found in references.found), references.found
    assert references.styles and not re.search(
        r"@import|url\(\s*[\"']?(https?:)?//", references.styles
    )


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_run_can_be_fitted(done: Calibration, copied: Path, tmp_path: Path) -> None:
    copied.chmod(0o555)
    try:
        assert calib(tmp_path, "fit", "run", "-o", "out.json").returncode == 0
        assert calib(tmp_path, "fit", "run").returncode == 2
    finally:
        copied.chmod(0o755)


def test_calibrate_again_does_nothing_twice(done: Calibration, again: Path) -> None:
    """Rows and training runs stay as they are; predictions and report come out the same."""
    call = calib(again.parent, "calibrate", *OPTIONS, "-o", "run")
    assert call.returncode == 0, call.stderr
    assert json.loads(call.stdout)["rows"] == done.printed["rows"]
    same = [
        "plan.json",
        "manifest.json",
        "samples.parquet",
        "parameters.json",
        "predictions.json",
        "report.json",
        *(run_file(*point) for point in POINTS),
    ]
    for name in same:
        assert (again / name).read_bytes() == done.files[name], name


@two_cores
def test_a_users_model_is_trained_by_its_record(done: Calibration, tmp_path: Path) -> None:
    """Without --input and --loss, by a strategy that divides its layers."""
    options = ("--strategy", "pipeline", "-p", "2", "--iterations", "6")
    path = tmp_path / "one.jsonl"
    call = calib(done.home, "train", "--model", "net.json", *options, "-o", str(path))
    assert call.returncode == 0, call.stderr
    header = TrainingRun.read(path).header
    assert (header.model, header.strategy, header.p) == ("tokens", "pipeline", 2)
    assert header.gradient_difference is not None


CHANGED = NET.replace("(16, 32)", "(16, 24)").replace("(32, 50)", "(24, 50)")
VERBS = (
    "calibrate --models net.json -o other",
    "train --model net.json -o other.jsonl",
    "measure --resume -o tmp/run",
    "nightly --calibration tmp/run",
)


@pytest.mark.parametrize(
    ("code", "why", "verbs"),
    [
        (CHANGED, "has changed since", VERBS),
        ("", "cannot be built any more: the Python module my_pkg.net has no 'build'", VERBS[:1]),
    ],
    ids=["another", "gone"],
)
def test_code_that_is_another_or_gone_is_one_line_before_ranks_start(
    done: Calibration, code: str, why: str, verbs: tuple[str, ...]
) -> None:
    net, before = done.home / "my_pkg/net.py", done.files["manifest.json"]
    net.write_text(code)
    try:
        calls = one_after_the_other(done.home, *verbs)
    finally:
        net.write_text(NET)
    for call in calls:
        assert call.returncode == 2, call
        [line] = [x for x in call.stderr.splitlines() if x.startswith("calib: error")]
        assert why in line
    assert (done.run / "manifest.json").read_bytes() == before
    assert not any((done.home / name).exists() for name in ("other", "other.jsonl", "ranks.log"))
