"""The published calibration of sirocco (Ezibenroc/platform-calibration) and its recipe by hand."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.helpers.published import DATA, needs_data

from calib.fitting.estimators.collectives.platform_calibration import (
    CallRows,
    CallTables,
    PlatformCalibration,
    ordinary_lines,
    platform_calibration,
    read_tables,
    trimmed_mean,
    within_quantiles,
)
from calib.foundation.errors import FileError, InputError

SIROCCO = DATA / "platform-calibration/sirocco"
EXACT = 1e-9


@pytest.fixture(scope="module")
def sirocco() -> PlatformCalibration:
    return platform_calibration(SIROCCO, expected_bandwidth=4e9, expected_latency=1e-5)


def golden() -> dict[str, str]:
    root = ElementTree.parse(SIROCCO / "sirocco_output.xml").getroot()
    return {e.attrib["id"]: e.attrib["value"] for e in root.iter("prop")}


def rows(text: str) -> list[list[float]]:
    return [[float(word) for word in piece.split(":")] for piece in text.split(";")]


@needs_data
@pytest.mark.parametrize(
    ("prop", "field"), [("smpi/os", "send"), ("smpi/ois", "isend"), ("smpi/or", "receive")]
)
def test_the_published_segments(sirocco: PlatformCalibration, prop: str, field: str) -> None:
    found = [[s.lower_nbytes, s.intercept_s, s.slope_s_per_byte] for s in getattr(sirocco, field)]
    expected = rows(golden()[prop])
    assert len(found) == len(expected) == 5
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=EXACT, abs=0)
    # 131072 and 400000: a rendezvous costs the caller of Send and Recv nothing
    assert [row[1:] == [0, 0] for row in found] == [False] * 3 + [field != "isend"] * 2


@needs_data
@pytest.mark.parametrize(
    ("prop", "field"),
    [("smpi/bw-factor", "bandwidth_factor"), ("smpi/lat-factor", "latency_factor")],
)
def test_the_published_factors(sirocco: PlatformCalibration, prop: str, field: str) -> None:
    found = [[f.lower_nbytes, f.factor] for f in getattr(sirocco, field)]
    for mine, theirs in zip(found, rows(golden()[prop]), strict=True):
        assert mine == pytest.approx(theirs, rel=EXACT, abs=0)


@needs_data
def test_the_published_calls_and_threshold(sirocco: PlatformCalibration) -> None:
    """testplatform.xml: 320000, which the breakpoint named Detached (400000) is above."""
    for name in ("wtime", "iprobe", "test"):
        found = getattr(sirocco, f"{name}_s")
        assert found == pytest.approx(float(golden()[f"smpi/{name}"]), rel=EXACT, abs=0)
    assert sirocco.detached_threshold_nbytes == 320_000
    assert sirocco.method == "platform-calibration"


@needs_data
def test_other_breakpoints_of_the_same_calls() -> None:
    """Independent: np.polyfit on rows that were trimmed block by block with np.quantile."""
    tables = read_tables(SIROCCO)
    found = platform_calibration(
        CallTables(tables.calls, ((3000, "a"), (200_000, "b"))), 1e9, 1e-6, detached_threshold=3000
    )
    call = tables.calls["Isend"]
    blocks = call.seconds.reshape(-1, 10)
    low, high = np.quantile(blocks, [0.1, 0.9], axis=1, keepdims=True)
    kept = ((blocks >= low) & (blocks <= high)).reshape(-1)
    for segment, limits in zip(found.isend, [(0, 3e3), (3e3, 2e5), (2e5, 1e9)], strict=True):
        mine = kept & (call.nbytes >= limits[0]) & (call.nbytes < limits[1])
        slope, intercept = np.polyfit(call.nbytes[mine], call.seconds[mine], 1)
        assert segment.slope_s_per_byte == pytest.approx(slope, rel=1e-6)
        assert segment.intercept_s == pytest.approx(intercept, rel=1e-6)
    assert [s.intercept_s > 0 for s in found.send] == [True, False, False]


def made(
    latency_s: float = 2e-6, receive_s: float = 1e-6, beta: float = 1e-9, limit: int = 100
) -> CallTables:
    """Noiseless calls of which half a ping-pong beside its receive is latency + beta m."""
    nbytes = np.repeat([8.0, 16.0, 64.0, 100.0, 400.0, 1000.0], 10)

    def call(name: str, seconds: np.ndarray, sizes: np.ndarray = nbytes) -> CallRows:
        return CallRows(np.full(len(seconds), f"MPI_{name}"), sizes, seconds)

    send = 3e-7 + 1e-10 * nbytes
    eager = nbytes < limit
    pair = 2 * (latency_s + beta * nbytes) + receive_s * eager
    pingpong = CallRows(
        np.array(["MPI_Send", "MPI_Recv"] * len(nbytes)),
        np.repeat(nbytes, 2),
        np.column_stack([send, pair - send]).reshape(-1),
    )
    single = np.full(20, 2e-7)
    return CallTables(
        {
            "PingPong": pingpong,
            "Isend": call("Isend", 2 * send),
            "Recv": call("Recv", np.full(len(nbytes), receive_s)),
            "Wtime": call("Wtime", np.array([0.3]), np.zeros(1)),
            "Iprobe": call("Iprobe", single, np.ones(20)),
            "Test": call("Test", 2 * single, np.ones(20)),
        },
        ((limit, "Asynchronous"),),
    )


def test_calls_of_a_known_machine() -> None:
    found = platform_calibration(made(), expected_bandwidth=2e9, expected_latency=1e-6)
    assert [s.lower_nbytes for s in found.send] == [0, 100]
    assert (found.send[0].intercept_s, found.send[0].slope_s_per_byte) == pytest.approx(
        (3e-7, 1e-10)
    )
    assert (found.send[1].intercept_s, found.send[1].slope_s_per_byte) == (0.0, 0.0)
    assert found.isend[1].intercept_s == pytest.approx(6e-7)
    assert found.receive[0].intercept_s == pytest.approx(1e-6)
    assert [f.factor for f in found.bandwidth_factor] == pytest.approx([0.5, 0.5])
    assert [f.factor for f in found.latency_factor] == pytest.approx([2.0, 2.0])
    assert (found.wtime_s, found.iprobe_s, found.test_s) == pytest.approx((3e-8, 2e-7, 4e-7))
    assert found.detached_threshold_nbytes == 100, "the limit of Asynchronous"


def test_no_factor_is_cut_at_one() -> None:
    """The published files hold bandwidth factors above 1 and latency factors below (sirocco: 0.74)."""
    found = platform_calibration(made(), expected_bandwidth=1e8, expected_latency=1e-3)
    assert found.bandwidth_factor[0].factor == pytest.approx(10.0)
    assert found.latency_factor[0].factor == pytest.approx(2e-3)


def test_older_files_have_no_isend_of_a_rendezvous() -> None:
    found = platform_calibration(made(), 2e9, 1e-6, isend_when_detached=False)
    assert found.isend[0].intercept_s > 0 == found.isend[1].intercept_s


def test_tables_that_cannot_be() -> None:
    tables = made()
    with pytest.raises(InputError, match="bandwidth and latency must be positive"):
        platform_calibration(tables, 0.0, 1e-6)
    for breakpoints in ((), ((5, "a"), (5, "b")), ((0, "a"),)):
        with pytest.raises(InputError, match="do not rise from above 0"):
            platform_calibration(CallTables(tables.calls, breakpoints), 1e9, 1e-6)
    with pytest.raises(InputError, match="give the detached threshold"):
        platform_calibration(CallTables(tables.calls, ((100, "Small"),)), 1e9, 1e-6)
    with pytest.raises(InputError, match=r"PingPong: fewer than two sizes in the segment \[2000, "):
        platform_calibration(CallTables(tables.calls, ((2000, "Asynchronous"),)), 1e9, 1e-6)
    pingpong = tables.calls["PingPong"]
    broken = {**tables.calls, "PingPong": CallRows(*(column[:-1] for column in pingpong))}
    with pytest.raises(InputError, match="not of the same sizes"):
        platform_calibration(CallTables(broken, tables.breakpoints), 1e9, 1e-6)


def write(directory: Path) -> None:
    """The known machine as files."""
    tables = made()
    for name, call in tables.calls.items():
        lines = zip(call.operation, call.nbytes, call.seconds, strict=True)
        text = "".join(f"{op},{int(size)},0.5,{float(s)!r}\n" for op, size, s in lines)
        (directory / f"mine_{name}.csv").write_text(text)
    (directory / "breakpoints").write_text("Limit, Name\n100, Asynchronous\n\n")


def test_files_give_what_tables_give(tmp_path: Path) -> None:
    write(tmp_path)
    assert platform_calibration(tmp_path, 2e9, 1e-6) == platform_calibration(made(), 2e9, 1e-6)
    (tmp_path / "settings.xml").write_text('<config><detached_threshold value="50"/></config>')
    assert platform_calibration(tmp_path, 2e9, 1e-6).detached_threshold_nbytes == 50


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("mine_Recv.csv", None, "Recv.csv is needed, there is: none"),
        ("other_Recv.csv", b"MPI_Recv,1,0,1\n", "there is: mine_Recv.csv, other_Recv.csv"),
        ("mine_Recv.csv", b"MPI_Recv,8,0.1\n", r"mine_Recv.csv:1: not op,bytes,start,duration"),
        ("mine_Recv.csv", b"MPI_Recv,8,0.1,nan\n", r"mine_Recv.csv:1: .*cannot be"),
        ("mine_Recv.csv", b"MPI_Recv,8,0,1e300", r"mine_Recv.csv:1: .*cannot be"),
        ("mine_Recv.csv", b"MPI_Recv,1e300,0,1", r"mine_Recv.csv:1: .*cannot be"),
        ("mine_Recv.csv", b"\xff\xfe,1,0,1", "mine_Recv.csv"),
        ("mine_Recv.csv", b"", "no rows"),
        ("breakpoints", b"Limit, Name\nx, Small\n", r"breakpoints:2: not a limit in bytes"),
        ("breakpoints", b"Limit, Name\n\xc2\xb2, Asynchronous\n", "breakpoints"),
        ("breakpoints", b"Limit, Name\n" + b"9" * 5000 + b", Asynchronous\n", "breakpoints"),
        ("breakpoints", b"\x80", "breakpoints"),
        ("settings.xml", b"<config>", "settings.xml: not a settings or result file"),
        ("settings.xml", b"<a><detached_threshold value='inf'/></a>", "settings.xml"),
        ("settings.xml", b"<a><detached_threshold value='-1'/></a>", "settings.xml"),
    ],
)
def test_files_that_cannot_be(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    write(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=message) as caught:
        platform_calibration(str(tmp_path), 2e9, 1e-6)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 500


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [3, 4, 10, 11, 21])
def test_trimming_is_that_of_numpy_quantiles(seed: int, size: int) -> None:
    generator = np.random.default_rng(seed)
    seconds = np.round(generator.uniform(1, 2, 6 * size), 1)  # many ties
    block = np.arange(len(seconds)) // size
    kept = within_quantiles(seconds, block, 0.1)
    for number in range(6):
        mine = seconds[block == number]
        low, high = np.quantile(mine, [0.1, 0.9])
        inside = (mine >= low - 1e-12) & (mine <= high + 1e-12)
        assert (kept[block == number] == inside).all()


def test_a_block_of_ten_loses_its_ends() -> None:
    seconds = np.array([5.0, 1, 2, 3, 4, 6, 7, 8, 9, 10])
    assert seconds[~within_quantiles(seconds, np.zeros(10), 0.1)].tolist() == [1, 10]
    assert within_quantiles(np.full(10, 3.0), np.zeros(10), 0.1).all(), "ties stay"
    assert within_quantiles(np.array([1.0, 2.0]), np.zeros(2), 0.1).all(), "nothing would be left"


def test_a_trimmed_mean_drops_whole_values() -> None:
    """R: mean(x, trim = 0.1) of 19 values drops one at each end."""
    values = np.array([100.0, *range(1, 18), -100.0])
    assert trimmed_mean(values, 0.1) == 9.0
    assert trimmed_mean(np.array([1.0, 2.0, 9.0]), 0.1) == 4.0


BREAKPOINTS = (1420.0, 65536.0)
INTERCEPTS, SLOPES = np.array([2e-6, 4e-6, 1e-5]), np.array([1e-10, 4e-10, 3e-10])
X = np.array([1, 10, 100, 700, 1419, 1420, 5e3, 2e4, 65535, 65536, 2e5, 1e6])
PIECE = np.searchsorted(BREAKPOINTS, X, side="right")
TRUE = INTERCEPTS[PIECE] + SLOPES[PIECE] * X


@pytest.mark.parametrize("seed", range(3))
def test_lines_are_those_of_polyfit_on_each_piece(seed: int) -> None:
    """A limit belongs to the segment above it."""
    generator = np.random.default_rng(seed)
    x = np.repeat(X, 12)
    y = np.repeat(TRUE, 12) * (1 + 0.05 * generator.standard_normal(len(x)))
    intercepts, slopes = ordinary_lines(x, y, BREAKPOINTS, [True, False, True], "Send")
    for index, (low, high) in ((0, (0, 1420)), (2, (65536, np.inf))):
        mine = (x >= low) & (x < high)
        slope, intercept = np.polyfit(x[mine], y[mine], 1)
        assert slopes[index] == pytest.approx(slope, rel=1e-6)
        assert intercepts[index] == pytest.approx(intercept, rel=1e-6)
    assert (intercepts[1], slopes[1]) == (0.0, 0.0)


def test_a_segment_of_one_size_has_no_line() -> None:
    with pytest.raises(InputError, match=r"fewer than two sizes in the segment \[5000000, inf\)"):
        ordinary_lines(X, TRUE, (1420, 5_000_000), [True] * 3, "Send")
