"""calib search: tables, --json, --plot, what is refused; every space on a small model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.oracle.handmade import mlp

from calib.commands.search import options_of
from calib.foundation.errors import InputError
from calib.options import bytes_of
from calib.search import SPACES, space_named
from calib.search.nominal import NOMINAL
from calib.search.plan import SearchedPlan

NOMINAL_1X4 = ("--nominal", "p100", "--cluster", "1x4", "--batch", "64")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    mlp([64, 256, 256, 16]).write(tmp_path / "model.json")
    return tmp_path


def search(here: Path, *more: str, model: str = "model.json") -> str:
    """What it prints."""
    done = calib(here, "search", "--model", model, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def searched(here: Path, *more: str, model: str = "model.json") -> dict[str, Any]:
    plans: list[dict[str, Any]] = json.loads(search(here, *more, "--json", model=model))
    (plan,) = plans  # --json prints a list, of one plan too
    return plan


@pytest.mark.parametrize("space", SPACES)
def test_every_space_plans_a_small_model(here: Path, space: str) -> None:
    """Sums, certificates and limits that hold of any plan."""
    plan = SearchedPlan.model_validate(searched(here, "--space", space, *NOMINAL_1X4))
    assert plan.total.low <= plan.total.value <= plan.total.high
    assert sum(time.value for time in plan.phases.values()) == pytest.approx(plan.total.value)
    assert (plan.nodes, plan.devices_per_node, plan.batch) == (1, 4, 64)
    assert plan.bytes_per_device <= plan.memory_limit_bytes == 16 << 30
    if plan.certificate.lower_bound_s is not None:
        assert plan.certificate.lower_bound_s <= plan.total.value * (1 + 1e-9)
    assert any("nothing was measured" in note for note in plan.notes)
    slower = [of for of in plan.baselines if of.total is not None and of.feasible]
    if plan.certificate.kind == "optimal":
        assert all(of.total.value >= plan.total.value * (1 - 1e-9) for of in slower if of.total)


def test_executions(here: Path) -> None:
    """float32 is the usual one; another is priced where it was measured, in spaces of layers."""
    usual = searched(here, *NOMINAL_1X4)
    assert searched(here, *NOMINAL_1X4, "--execution", "float32")["total"] == usual["total"]
    half = ("search", "--model", "model.json", *NOMINAL_1X4, "--execution", "bfloat16", "--space")
    for space in SPACES:
        line = refused(calib(here, *half, space))
        if space in ("layerwise", "pipeline", "exchange"):
            assert "no times of layers in bfloat16, only in float32" in line
        else:
            assert line == f"the space {space} prices float32 alone"


@pytest.mark.parametrize("space", SPACES)
def test_tables_and_page_show_the_plan(here: Path, space: str) -> None:
    files = ("-o", "plan.json", "--plot", "page.html")
    shown = search(here, "--space", space, *NOMINAL_1X4, *files)
    plan = SearchedPlan.read(here / "plan.json")
    assert plan.layers[0].choice in shown and "Certificate: " in shown
    page = (here / "page.html").read_text()
    assert "<html" in page and (not plan.layers[0].seconds or "plan-layers" in page)


@pytest.mark.parametrize("space", SPACES)
def test_the_same_seed_finds_the_same(here: Path, space: str) -> None:
    def found() -> dict[str, Any]:
        plan = searched(here, "--space", space, *NOMINAL_1X4, "--evaluations", "500")
        for timed in ("tables_seconds", "seconds", "course"):
            del plan["searched"][timed]
        return plan

    assert found() == found()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--space", "everything"), "unknown space 'everything'; known: layerwise"),
        (("--method", "luck"), "unknown method 'luck' of the space layerwise"),
        (("--budget", "0"), "a budget of 0 seconds finds nothing"),
        (("--evaluations", "0"), "a budget of 0 evaluations finds nothing"),
        (("--cluster", "4"), "--cluster '4' is not nodes x devices"),
        (("--cluster", "0x4"), "0 x 4 devices has none"),
        (("--memory", "lots"), "--memory 'lots' is not a size"),
        (("--nominal", "p200"), "unknown nominal machine 'p200'"),
        (("-O", "speed"), "'speed' is not NAME=VALUE"),
        (("-O", "speed=3"), "the space layerwise has no option 'speed'"),
        (("--form", "other"), "'other' is not one of"),
        (("--optimizer", "lion"), "'lion' is not one of"),
        (("--batch-per-rank", "4"), "--batch or --batch-per-rank"),
        (("--space", "sbp", "-O", "mesh=3x2"), "mesh"),
        (("--memory", "1KiB"), "the smallest"),
        (("--memory", "1KiB", "--space", "sbp"), "the smallest"),
        (("--memory", "1KiB", "--space", "pipeline"), "the smallest"),
    ],
)
def test_what_cannot_be_is_one_line(here: Path, more: tuple[str, ...], words: str) -> None:
    """And leaves no file behind."""
    pairs = zip(NOMINAL_1X4[::2], NOMINAL_1X4[1::2], strict=True)
    given = [word for pair in pairs if pair[0] not in more for word in pair]
    done = calib(here, "search", "--model", "model.json", *given, *more, "-o", "plan.json")
    assert words in refused(done)
    assert not (here / "plan.json").exists()


def profile(here: Path, dense: bool) -> str:
    """Four layers as PipeDream writes them; with a Linear one they tell their 32 samples."""
    last = "Linear(in_features=10, out_features=5, bias=True)" if dense else "ReLU()"
    whats = [*["Conv2d(8, 8, kernel_size=(3, 3))"] * 3, last]
    sizes = [*[(102400.0, 0.0)] * 3, (640.0, 220.0)]
    lines = [
        f"node{i} -- {what} -- forward_compute_time=1.0, backward_compute_time=2.0, "
        f"activation_size={a}, parameter_size={w}"
        for i, (what, (a, w)) in enumerate(zip(whats, sizes, strict=True))
    ]
    lines += [f"\tnode{i} -- node{i + 1}" for i in range(3)]
    (here / "made.graph.txt").write_text("\n".join(lines))
    return "made.graph.txt"


@pytest.mark.parametrize(
    ("dense", "more", "batch"),
    [(True, (), 32), (True, ("--batch", "8"), 32), (False, (), None), (False, ("--batch", "8"), 8)],
)
@pytest.mark.parametrize("space", ["pipeline", "exchange"])
def test_the_batch_of_a_profile(
    here: Path, space: str, dense: bool, more: tuple[str, ...], batch: int | None
) -> None:
    """Its own, or what was said, or unknown; of an exchange every device does such a mini-batch."""
    model, asked = profile(here, dense), ("--space", space, *NOMINAL_1X4[:4], *more)
    expected = 4 * batch if batch and dense and space == "exchange" else batch
    assert searched(here, *asked, model=model)["batch"] == expected
    shown = " ".join(search(here, *asked, model=model).split())
    assert (f"B = {expected}:" if batch else "B unknown:") in shown


def test_machines_and_cluster_contradict(here: Path) -> None:
    asked = ("search", "--model", profile(here, True), "--space", "pipeline", "--nominal", "p100")
    said = refused(calib(here, *asked, "-O", "machines=2x1", "--cluster", "4x4"))
    assert "machines=2x1" in said and "4 x 4" in said and "leave one of them out" in said
    for more in (("-O", "machines=2x1"), ("-O", "machines=2x1", "--cluster", "1x2")):
        assert calib(here, *asked, *more).returncode == 0


@pytest.mark.parametrize(
    ("space", "more", "words"),
    [
        ("layerwise", ("--cluster", "8x4", "--batch", "64"), "degrees are powers of 2"),
        ("layerwise", ("--cluster", "1x4", "-O", "degrees=machine"), "1 device, a node or all"),
        (
            "layerwise",
            ("--cluster", "1x4", "-O", "dimensions=sample"),
            "no layer is cut along channel",
        ),
        ("layerwise", ("--cluster", "1x4"), ""),
        ("sbp", ("--cluster", "1x4", "-O", "mesh=2x2"), "made of the mesh 2x2"),
        ("sbp", ("--cluster", "1x4"), ""),
    ],
)
def test_optimal_within_what_was_searched(
    here: Path, space: str, more: tuple[str, ...], words: str
) -> None:
    """In the table, on the page and for programs."""
    asked = ("--space", space, "--nominal", "p100", *more)
    certificate = searched(here, *asked)["certificate"]
    assert certificate["kind"] == "optimal" and words in certificate["within"]
    assert bool(certificate["within"]) == bool(words)
    shown = search(here, *asked, "--plot", "page.html")
    for text in (shown, (here / "page.html").read_text()):
        assert ("optimal within the pruned set" in text) == bool(words)


def test_without_parameters_it_says_what_to_do(here: Path) -> None:
    done = calib(here, "search", "--model", "model.json")
    assert "calib calibrate" in refused(done) and "--nominal" in done.stderr
    assert "give a --model" in refused(calib(here, "search"))
    assert "unknown model 'gpt-9'" in refused(
        calib(here, "search", "--space", "sbp", "--model", "gpt-9", *NOMINAL_1X4)
    )


def test_the_list_has_everything(here: Path) -> None:
    done = calib(here, "search", "--list")
    listed = json.loads(calib(here, "search", "--list", "--json").stdout)
    assert [space["name"] for space in listed["spaces"]] == list(SPACES)
    for name in SPACES:
        space = space_named(name)
        for word in (space.name, *space.methods, *space.options, *space.models):
            assert word in done.stdout
    assert set(listed["nominal"]) == set(NOMINAL)


def test_sizes_and_options() -> None:
    sizes = {"16GiB": 16 << 30, "40 GB": 40 * 10**9, "0": 0, "1.5TiB": 3 << 39}
    assert {text: bytes_of(text, "--memory") for text in sizes} == sizes
    assert options_of(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    with pytest.raises(InputError, match="twice"):
        options_of(["a=1", "a=2"])
    for wrong in ("-1", "nan", "GiB", "1e30", "16 gb", "0 gb", "9999999999TiB"):
        with pytest.raises(InputError, match="not a size"):
            bytes_of(wrong, "--memory")
