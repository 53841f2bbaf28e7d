"""nccl-tuner: from logs of forced runs to lines that the plugin reads, with known crossing points."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.calib.export.asked import NO_MORE, asking, of
from tests.calib.inside import calib
from tests.calib.running import refused
from tests.helpers.filled import collective, filled, near
from tests.helpers.rows import rows_in
from tests.helpers.words import words_of
from tests.microbench.importers.logs import END, HEADER, row, start
from tests.microbench.importers.made.nccl_json import document, half

from calib.export.nccl_tuner import export
from calib.export.target import Exported
from calib.fitting.fit import fit_runs
from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint
from calib.fitting.parameters.file import Parameters
from calib.fitting.sections.collectives import collective_fits
from calib.foundation.errors import InputError, MissingParameter
from calib.microbench.cases import CollectiveCase
from calib.microbench.machine.placement import Placement
from calib.microbench.records.samples import Samples
from calib.microbench.rows import to_table
from calib.microbench.timing.repeat import Repetitions

# microseconds at no bytes, and per byte: tree/ll, ring/ll128 and ring/simple cross at these sizes
LAWS = {
    ("tree", "ll"): (8.0, 1e-3),
    ("ring", "ll128"): (16.0, 2e-4),
    ("ring", "simple"): (40.0, 5e-5),
}
FIRST, SECOND = 10_000, 160_000
SIZES = [1 << k for k in range(9, 27, 2)]
COLLECTIVES = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"}
ALGORITHMS = {"tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"}
PROTOCOLS = {"ll", "ll128", "simple"}


@dataclass(frozen=True)
class Line:
    """A line as plugin.c has it."""

    collective: str
    low: int
    high: int
    algorithm: str
    protocol: str
    channels: int
    nodes: int
    ranks: int


def read(text: str) -> list[Line]:
    """What plugin.c reads, and nothing that it would take for something else."""
    found = []
    for line in text.splitlines():
        assert len(line) < 255  # with its end, what one fgets reads
        if line.startswith("#") or not line:
            continue
        assert "#" not in line and '"' not in line and " " not in line
        words = line.split(",")
        assert len(words) == 8 and all(words)
        numbers = [int(word) for word in (*words[1:3], *words[5:])]
        assert words[0] in COLLECTIVES and words[3] in ALGORITHMS and words[4] in PROTOCOLS
        assert 0 <= numbers[0] <= numbers[1] < 2**64 and numbers[2:4] >= [-1, -1]
        low, high, channels, nodes, ranks = numbers
        found.append(Line(words[0], low, high, words[3], words[4], channels, nodes, ranks))
    return found


def chosen(lines: list[Line], nbytes: int, ranks: int = 4, nodes: int = 1) -> str:
    """The plugin's choice: the first line that matches, "" of none."""
    for line in lines:
        if line.low <= nbytes <= line.high and line.ranks == ranks and line.nodes in (nodes, -1):
            return f"{line.algorithm}/{line.protocol}"
    return ""


def micros(law: tuple[float, float], nbytes: int) -> float:
    return law[0] + law[1] * nbytes


def text_log(law: tuple[float, float], ranks: int = 4, before: str = "") -> str:
    factor = 2 * (ranks - 1) / ranks
    rows = "".join(row(m, micros(law, m), factor) + "\n" for m in SIZES)
    return start(ranks=ranks) + before + HEADER + rows + END


def json_log(law: tuple[float, float], environment: list[str]) -> str:
    content = document()
    content["env"] += environment
    content["nccl_version"] = 22902  # as the text logs have it: one machine
    content["results"] = [
        {
            **content["results"][0],
            "size": m,
            "count": m // 4,
            "out_of_place": half(m, micros(law, m), 1.5),
            "in_place": half(m, micros(law, m), 1.5),
        }
        for m in SIZES
    ]
    for place, device in enumerate(content["config"]["devices"]):
        device.update(hostname="node0", device=place)
    return json.dumps(content)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of the three laws: two of text logs by flags, one of a JSON log by itself."""
    place: Path = tmp_path_factory.mktemp("tuner")
    for (algorithm, protocol), law in LAWS.items():
        name = f"{algorithm}_{protocol}"
        if protocol == "simple":
            text, flags = json_log(law, ["NCCL_ALGO=Ring", "NCCL_PROTO=Simple", "X=secret"]), ()
        else:
            text, flags = text_log(law), ("--algorithm", algorithm.upper(), "--protocol", protocol)
        (place / f"{name}.log").write_text(text)
        done = calib(place, "import", f"{name}.log", "-o", name, *flags)
        assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def fitted(here: Path) -> Parameters:
    return fit_runs([here / f"{a}_{p}" for a, p in LAWS])


def exported(made: Parameters, **asked: Any) -> Exported:
    return export(asking(made, **asked))


def test_forced_runs_are_laws_of_their_own(here: Path, fitted: Parameters) -> None:
    keys = {sample.key for sample in rows_in(here / "ring_simple")}
    assert keys == {"algorithm=ring protocol=simple"}
    assert b"secret" not in b"".join(p.read_bytes() for p in (here / "ring_simple").iterdir())
    assert {fit.operation for fit in fitted.collectives} == {
        f"allreduce algorithm={a} protocol={p}" for a, p in LAWS
    }
    assert fitted.structural == []
    tree = next(fit for fit in fitted.collectives if "tree" in fit.operation)
    # of four ranks a tree has 4 steps (a ring 6) and sends m once
    assert tree.alpha_s.value == pytest.approx(8e-6 / 4, rel=0.02)
    assert tree.beta_s_per_byte.value == pytest.approx(1e-9, rel=0.02)


def test_lines_change_where_the_laws_cross(fitted: Parameters) -> None:
    found = exported(fitted)
    lines = read(found.files[""])
    assert [f"{line.algorithm}/{line.protocol}" for line in lines] == [
        "tree/ll",
        "ring/ll128",
        "ring/simple",
    ]
    assert {(line.collective, line.channels, line.nodes, line.ranks) for line in lines} == {
        ("allreduce", -1, 1, 4)
    }
    assert (lines[0].low, lines[-1].high) == (SIZES[0], SIZES[-1])
    assert [line.low for line in lines[1:]] == [line.high + 1 for line in lines[:-1]]
    # the logs have every fourth size, between which laws go straight in log-log
    assert lines[1].low == pytest.approx(FIRST, rel=0.03)
    assert lines[2].low == pytest.approx(SECOND, rel=0.03)
    for m in range(SIZES[0], SIZES[-1], 997_003):
        best = min(LAWS, key=lambda name: micros(LAWS[name], m))
        if min(abs(math.log(m / FIRST)), abs(math.log(m / SECOND))) > 0.05:
            assert chosen(lines, m) == "/".join(best)
    assert chosen(lines, SIZES[0] - 1) == chosen(lines, SIZES[-1] + 1) == ""
    assert chosen(lines, 4096, ranks=8) == chosen(lines, 4096, nodes=2) == ""
    assert any("NCCL's own choice was not measured" in note for note in found.notes)


def test_predictions_do_not_take_forced_runs(here: Path, fitted: Parameters) -> None:
    fitted.write(here / "parameters.json")
    line = refused(calib(here, "export", "parameters.json", "--to", "galvatron", "-o", "g"))
    assert "allreduce" in line and not (here / "g").exists()


def test_calls_that_were_told_are_compared_as_logs_are() -> None:
    """From cases of `calib measure`, with NCCL's estimate of each: the same lines, no logs."""
    tables, estimates, channels = [], {}, {}
    told = words_of("tree/ll ring/ll128 ring/simple")
    for how, law in zip(told, LAWS.values(), strict=True):
        algorithm, protocol = how.split("/")
        for m in SIZES:
            case = CollectiveCase.model_validate(
                {
                    "operation": "allreduce",
                    "nbytes": m,
                    "ranks": 4,
                    "group_size": 4,
                    "library": "nccl",
                    "device": "cuda",
                    "algorithm": algorithm,
                    "protocol": protocol,
                }
            )
            times = Repetitions(ranks={"allreduce": [[micros(law, m) * 1e-6] * 4] * 9})
            tables.append(
                to_table(case, times, Placement(["a"] * 4, [[0]] * 4, 4, False), 0, 0.0, [])
            )
            estimates[case.id] = m * 1e-9
            channels[case.id] = {how: 4}
    fits, _ = collective_fits(Samples(pa.concat_tables(tables)), 0, estimates, channels)
    for fit, how in zip(fits, sorted(told), strict=True):
        assert all(point.channels == {how: 4} for point in fit.points)
    lines = read(exported(of(*fits)).files[""])
    assert [f"{line.algorithm}/{line.protocol}" for line in lines] == told
    assert [line.low for line in lines[1:]] == pytest.approx([FIRST, SECOND], rel=0.03)
    expected = [point.estimate_s for fit in fits for point in fit.points]
    assert expected == [m * 1e-9 for m in SIZES] * 3


# exact laws, without a fit


def law(
    name: str, start: float, per_byte: float, factor: float = 1.0, **more: Any
) -> CollectiveFit:
    """t = start + per_byte m in seconds, known to a factor, of sizes 1 KiB to 16 MiB.

    Measured at so many that what goes straight in log-log between two of them is this line.
    """
    sizes = more.pop("sizes", [1024, 16 << 20])
    every = sorted({*sizes, *map(int, np.geomspace(sizes[0], sizes[-1], 1000))})
    return collective(
        more.pop("ranks", 4),
        operation=name,
        library="nccl",
        device="cuda",
        pieces=[
            {
                "from_nbytes": sizes[0],
                "to_nbytes": sizes[-1],
                "intercept_s": near(start).model_dump(),
                "slope_s_per_byte": near(per_byte),
            }
        ],
        points=[CollectivePoint(nbytes=m, seconds=near(start + per_byte * m), n=1) for m in every],
        pieces_error_factor=factor,
        **more,
    )


TREE, RING = "allreduce algorithm=tree protocol=ll", "allreduce algorithm=ring protocol=simple"
# they meet at 20 000 B
CROSSING = of(law(TREE, 10e-6, 1e-9), law(RING, 20e-6, 0.5e-9))


def test_the_border_is_exact() -> None:
    """10 us + 1 ns/B and 20 us + 0.5 ns/B meet at 20 000 B; there the first by name stays."""
    found = exported(CROSSING)
    first, second = read(found.files[""])
    assert second.low == first.high + 1
    assert abs(second.low - 20_000) <= 1
    assert (first.low, second.high) == (1024, 16 << 20)


def test_nccls_own_choice_keeps_what_it_does_as_well() -> None:
    """Own: 12 us + 0.5 ns/B to a factor of 1.1. tree/ll: 6 us + 1 ns/B, surely faster while
    6 + m < (12 + m / 2) / 1.1, so up to m = 9000 B; ring/simple is never."""
    own = law("allreduce", 12e-6, 0.5e-9, factor=1.1)
    found = exported(of(law(TREE, 6e-6, 1e-9), law(RING, 20e-6, 0.5e-9), own))
    (line,) = read(found.files[""])
    assert (line.low, line.algorithm, line.protocol) == (1024, "tree", "ll")
    # 6000 + m = (12000 + m / 2) / 1.1 in nanoseconds
    assert abs(line.high - (12000 / 1.1 - 6000) / (1 - 0.5 / 1.1)) <= 1
    nothing = exported(of(law(RING, 20e-6, 0.5e-9), own))
    assert read(nothing.files[""]) == [] and any("no line" in note for note in nothing.notes)


def test_only_sizes_of_two_measured_choices() -> None:
    short = law(TREE, 10e-6, 1e-9, sizes=[4096, 65536])
    lines = read(exported(of(short, law(RING, 20e-6, 0.5e-9))).files[""])
    assert (lines[0].low, lines[-1].high) == (4096, 65536)
    asked = exported(of(short, law(RING, 20e-6, 0.5e-9)), nbytes=(5000, 10_000))
    assert [(x.low, x.high) for x in read(asked.files[""])] == [(5000, 10_000)]
    with pytest.raises(InputError, match="--bytes"):
        exported(of(short, law(RING, 20e-6, 0.5e-9)), nbytes=(1, 10))


def test_neighbouring_ranges_with_one_choice_are_one_line() -> None:
    """Three laws, of which one is never the fastest; ranks and nodes of their own."""
    slow = law("allreduce algorithm=nvls protocol=simple", 90e-6, 3e-9)
    two = [
        law(TREE, 10e-6, 1e-9, ranks=8, nodes=2, level="system"),
        law(RING, 20e-6, 2e-9, ranks=8, nodes=2, level="system"),
    ]
    found = exported(of(law(TREE, 10e-6, 1e-9), law(RING, 20e-6, 2e-9), slow, *two))
    assert [(x.ranks, x.nodes, x.low, x.high) for x in read(found.files[""])] == [
        (4, 1, 1024, 16 << 20),
        (8, 2, 1024, 16 << 20),
    ]
    only = exported(of(law(TREE, 10e-6, 1e-9), law(RING, 20e-6, 2e-9), *two), ranks=(8,))
    assert [x.ranks for x in read(only.files[""])] == [8]


def test_unsure_choices_are_said() -> None:
    found = exported(of(law(TREE, 10e-6, 1e-9, factor=1.2), law(RING, 11e-6, 2e-9, factor=1.2)))
    (note,) = [note for note in found.notes if "may be as fast" in note]
    # 11 + 2 m <= 1.44 (10 + m) in ns up to 6071 B, 5.93 KiB; measured sizes are looked at
    assert "ring/simple" in note and "at 1 KiB to 5.92 KiB" in note


def test_the_one_channel_of_the_plugin_is_said() -> None:
    """plugin.c sets 1 for every call, and -1 leaves it: a choice as it was measured needs 0 there."""
    found = exported(CROSSING)
    (note,) = [note for note in found.notes if "channel" in note]
    assert "*nChannels = 1" in note and "set it to 0 there before you build it" in note
    assert "".join(note.split()[:6]) in found.files[""].replace(" ", "")


def test_the_constants_that_the_plugin_overwrites_are_said() -> None:
    """pluginInit of plugin.c, from API v5 on: they move NCCL's own choices, where no line matches."""
    found = exported(CROSSING)
    (note,) = [note for note in found.notes if "constants" in note]
    for name in ("pluginInit", "perChMaxTreeBws", "perChMaxRingLL128Bws", "hwLatencies"):
        assert name in note and name in found.files[""]
    assert "NCCL chooses otherwise where no line matches" in note


@pytest.mark.parametrize(
    ("nvls", "ring", "own", "sizes", "low", "high"),
    [
        # nvls, which has no line, is the fastest to 4500 B; then ring, until NCCL's own is from 6000
        ((1e-6, 2e-9), (10e-6, 0.0), 5e-6, [6000, 16 << 20], 4500, 5999),
        # NCCL's own to 6000 B; then ring, until nvls is faster from 7000
        ((15e-6, 0.0), (1e-6, 2e-9), 0.5e-6, [1024, 6000], 6001, 7000),
    ],
)
def test_a_choice_that_lasts_for_no_power_of_two_is_found(
    nvls: tuple[float, float],
    ring: tuple[float, float],
    own: float,
    sizes: list[int],
    low: int,
    high: int,
) -> None:
    fits = [
        law("allreduce algorithm=nvls", *nvls),
        law(RING, *ring),
        law("allreduce", own, 0.0, sizes=sizes),
    ]
    (line,) = read(exported(of(*fits)).files[""])
    assert line.algorithm == "ring" and abs(line.low - low) <= 1 and abs(line.high - high) <= 1


def test_nodes_are_one_in_a_node_and_else_any_where_nobody_knows_them() -> None:
    """Format 1 has no nodes: 0."""
    for level, nodes, expected in (("node", 0, 1), ("system", 0, -1), ("system", 2, 2)):
        fits = [
            law(name, s, 1e-9, level=level, nodes=nodes) for name, s in ((TREE, 1e-5), (RING, 2e-5))
        ]
        found = exported(of(*fits))
        assert {line.nodes for line in read(found.files[""])} == {expected}
        assert ("any nodes" in found.holds_for[0]) == (expected == -1)


def test_the_file_is_of_one_library() -> None:
    """Of the first by name that has a choice; a lone algorithm of another is none."""

    def laws(library: str, *of_library: tuple[str, float]) -> list[CollectiveFit]:
        return [
            law(name, s, 1e-9).model_copy(update={"library": library}) for name, s in of_library
        ]

    both = (RING, 1e-5), (TREE, 2e-5)
    other = (TREE, 1e-5), (RING, 2e-5)
    found = exported(of(*laws("torch_nccl", *both), *laws("nccl", *other)))
    assert [line.algorithm for line in read(found.files[""])] == ["tree"]
    assert found.library == "nccl" and "# times of nccl" in found.files[""]
    assert "the laws of torch_nccl: the file is of nccl" in found.lost
    alone = exported(of(*laws("nccl", (TREE, 1e-5)), *laws("torch_nccl", *both)))
    assert [line.algorithm for line in read(alone.files[""])] == ["ring"]
    assert alone.library == "torch_nccl"


def test_lost_is_what_these_parameters_have() -> None:
    fits = [law(TREE, 1e-5, 1e-9), law(RING, 2e-5, 1e-9)]
    bare = exported(of(*fits, **NO_MORE))
    assert bare.lost == ("the times of ring/simple, tree/ll: only which is the fastest is written",)
    others = NO_MORE | {"memory": filled().memory}
    more = of(*fits, law("all_to_all", 1e-5, 1e-9), **others)
    assert exported(more).lost[1:] == ("times of all_to_all", "laws of the peak of memory")


def test_all_five_operations_by_the_names_of_the_plugin() -> None:
    names = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")
    fits = [
        law(f"{name} algorithm={a} protocol=ll", s, 1e-9)
        for name in names
        for a, s in (("tree", 1e-5), ("ring", 2e-5))
    ]
    assert {x.collective for x in read(exported(of(*fits)).files[""])} == COLLECTIVES


def test_half_forced_runs_have_no_line() -> None:
    half_law = law("allreduce algorithm=nvls", 1e-6, 1e-10)
    found = exported(of(law(TREE, 10e-6, 1e-9), law(RING, 20e-6, 0.5e-9), half_law))
    assert read(found.files[""]) == [] and any("nvls/any" in note for note in found.notes)


@pytest.mark.parametrize(
    ("fits", "text"),
    [
        ([], "hold none;"),
        ([law("allreduce", 1e-5, 1e-9)], "hold none;"),
        ([law("allreduce algorithm=ring", 1e-5, 1e-9)], "none with both set"),
        ([law(RING, 1e-5, 1e-9)], "two algorithms"),
        ([law("allreduce algorithm=magic protocol=ll", 1e-5, 1e-9), law(TREE, 1e-5, 1e-9)], "two"),
    ],
)
def test_refusals_say_how_to_measure_them(fits: list[CollectiveFit], text: str) -> None:
    with pytest.raises(MissingParameter, match=text) as caught:
        exported(of(*fits))
    assert "NCCL_ALGO" in str(caught.value) and "calib import" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ranks_without_a_choice() -> None:
    with pytest.raises(InputError, match="on 4 ranks"):
        exported(of(law(TREE, 1e-5, 1e-9), law(RING, 2e-5, 1e-9)), ranks=(16,))
