"""`python -m benchmarks.gpu` on the stand-in for a GPU, whose times are known."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.standin.boards import L2_BYTES, NAME, UUIDS
from tests.standin.gpu import COLD_BYTES_PER_S as MISSED_PER_S
from tests.standin.gpu import (
    CYCLES_PER_S,
    EVENT_S,
    KERNEL_S,
    LAUNCH_S,
    TICK_S,
    collective_seconds,
    kernel_seconds,
)
from tests.training.launching import ROOT, completed, environment, needs_mpiexec

from calib.training.models.specs import spec

pytestmark = [pytest.mark.mpi, pytest.mark.waits, needs_mpiexec]

CHEAP = ("events", "spin", "do_bench", "layers", "counters", "launch")
STANDIN = environment(
    PYTHONPATH=f"{ROOT}/tests/standin:{ROOT}/src:{ROOT}", STANDIN_HOT_FROM_S="inf"
)
NOISY = 0.01  # of a median, beside the ticks
BOARD_W = 300.0  # tests/helpers/nvml.py

Rows = dict[str, Any]  # numbers, or words


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """gpu.json after the steps that take little time."""
    folder = tmp_path_factory.mktemp("gpu")
    line = [sys.executable, "-m", "benchmarks.gpu", "--rehearse", "--out", str(folder)]
    done = completed([*line, "--only", *CHEAP], ROOT, env=STANDIN)
    assert done.returncode == 0, done.stdout + done.stderr
    yield json.loads((folder / "gpu.json").read_text())


def rows(rehearsal: dict[str, Any], step: str) -> Rows:
    """Name -> value; all steps came to their end."""
    of = rehearsal["steps"][step]
    assert of["ended"] == "done"
    return {row["name"]: row["value"] for row in of["rows"]}


def missing(rehearsal: dict[str, Any], step: str) -> dict[str, str]:
    return {each["what"]: each["why"] for each in rehearsal["steps"][step]["missing"]}


def near(seconds: float, ticks: float = 1.0) -> Any:
    """A time as events give it: two are each a tick off at most."""
    return pytest.approx(seconds, rel=NOISY, abs=ticks * TICK_S)


def test_the_machine(rehearsal: dict[str, Any]) -> None:
    machine = rehearsal["machine"]
    assert rehearsal["rehearsed"]
    assert (machine["gpu"], machine["uuid"], machine["driver"]) == (NAME, UUIDS[0], "580.105.08")
    assert {"torch", "mpi4py", "kernel"} <= machine.keys()
    assert rows(rehearsal, "machine")["compute mode"] == "default"


def test_events(rehearsal: dict[str, Any]) -> None:
    found = rows(rehearsal, "events")
    assert found["resolution"] == pytest.approx(TICK_S)
    assert found["shortest timing of which that is 1%"] == pytest.approx(100 * TICK_S)
    assert found["clock of the spin kernel"] == pytest.approx(CYCLES_PER_S, rel=NOISY)
    between = [found[f"from one event to the next, {word}"] for word in ("least", "most")]
    assert between == pytest.approx([math.floor(EVENT_S / TICK_S) * TICK_S, 2 * TICK_S])


@pytest.mark.parametrize("number", [1, 3, 20])
def test_a_spin_hides_the_host(rehearsal: dict[str, Any], number: int) -> None:
    """Without it the device waits for the first launch, and is then slower than its host."""
    found = rows(rehearsal, "spin")
    about = f"kernel of one item, N = {number}"
    assert found[f"{about}, held"] == near(KERNEL_S, 1 / number)
    assert found[f"{about}, not held"] == near(KERNEL_S + LAUNCH_S / number, 1 / number)
    assert found[f"{about}, host"] > 0


def test_products_and_copies(rehearsal: dict[str, Any]) -> None:
    """A product of n is three matrices and 2 n^3 operations; out= counts twice."""
    found, n, known = rows(rehearsal, "do_bench"), 256, {}
    for dtype, item in (("float32", 4), ("tf32", 4), ("bfloat16", 2)):
        known[f"product of {n}, {dtype}"] = (2.0 * n**3, 4.0 * item * n**2, item)
    known["copy of 1 MiB"] = (0.0, 3.0 * 2**20, 4)
    warm = {f"{about}, warm": kernel_seconds(*of) for about, of in known.items()}
    cold = {
        f"{about}, cold": kernel_seconds(*of) + of[1] / MISSED_PER_S for about, of in known.items()
    }
    for name, seconds in (warm | cold).items():
        assert found[name] == near(seconds), name
    copied_s = found["copy of 1 MiB, warm"]
    assert found["copy of 1 MiB, rate when warm"] == pytest.approx(2.0 * 2**20 / copied_s)
    assert set(missing(rehearsal, "do_bench")) <= {"triton.testing.do_bench"}


def test_layers(rehearsal: dict[str, Any]) -> None:
    """A ReLU reads and writes its tensor; each of five layers in four ways, both passes."""
    shapes = {layer.name: layer.shape for layer in spec("resnet50-mini").layers}
    nbytes = 2.0 * 4 * 4 * math.prod(shapes["relu"].output_shape)
    warm, about = kernel_seconds(0.0, nbytes), "relu of resnet50-mini, batch 4"
    cold = warm + min(L2_BYTES, nbytes) / MISSED_PER_S
    found = rows(rehearsal, "layers")
    assert found[f"{about}, warm, forward"] == near(warm)
    assert found[f"{about}, cold, forward"] == near(cold)
    assert len(found) == 5 * 4 * 2
    assert missing(rehearsal, "layers") == {}


def test_counters(rehearsal: dict[str, Any]) -> None:
    """The board draws the same power whenever it works."""
    found = rows(rehearsal, "counters")
    assert found["energy over the time of the load"] == pytest.approx(BOARD_W, rel=NOISY)
    assert found["power, median under load"] == BOARD_W
    assert found["held back: software_power_cap"] == 0.0
    assert found["a case would be marked"] == "not at all"


@pytest.mark.parametrize("library", ["nccl", "torch_nccl"])
@pytest.mark.parametrize("call", ["allreduce of 4 B", "allgather of 256 KiB"])
def test_what_a_call_of_nccl_costs(rehearsal: dict[str, Any], library: str, call: str) -> None:
    """On one rank it takes the device no time, and its host one launch, or one for a whole graph."""
    found, about = rows(rehearsal, "launch"), f"{library} {call}"
    assert collective_seconds("allreduce", 1, 2.0**18) == 0.0
    for number in (3, 20):
        assert found[f"{about}, N = {number}, held"] == 0.0
        assert found[f"{about}, graph of {number}"] == 0.0
        paced = LAUNCH_S + EVENT_S / number
        assert found[f"{about}, N = {number}, not held"] == near(paced, 1 / number)
    assert found[f"{about}, one call more, not held"] == near(LAUNCH_S, 2 / 17)
    assert not missing(rehearsal, "launch")
