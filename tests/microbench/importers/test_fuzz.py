"""Mutated logs: never an exception of another kind, never a number that is not in the file.

The published logs where they are, and made ones everywhere. A row's time must be a number of the
mutated file in microseconds, or one of its sizes over one of its bandwidths; its bytes a number of the
file, times the ranks.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers import mutations
from tests.helpers.published import DATA
from tests.helpers.words import words_of
from tests.microbench.importers.made.every import MADE

from calib.foundation.errors import CalibError
from calib.microbench.importers import read_log
from calib.microbench.importers.jobs.joining import join
from calib.microbench.importers.lines.reading import Log
from calib.microbench.importers.said import Flags
from calib.microbench.importers.table import Imported

# by name: another log in ../shared/data changes nothing here, and where one is not it is left out
NAMES = {
    "nccl-tests": tuple(
        words_of(
            "gb10_2.18.5_allgather_2n nccl583_hashes_lost_excerpt nccltests128_zero_sizes_excerpt "
            "xx_h100_AWKWARD_failed_norows nccl1453_tagged_wrapped_excerpt xx_h100_AWKWARD_trunc_a "
            "abci_V_bcast_intra_1n4g_7280568 xx_h100_AWKWARD_second_run_failed "
            "sb_a100_1n8g_allgather sb_a100_1n8g_alltoall sb_a100_1n8g_reducescatter "
            "sb_a100_1n8g_reduce abci_V_allreduce_2n8g xx_h100_2n16g_pair"
        )
    ),
    "osu": tuple(
        words_of(
            "oci_osu_allreduce_v7.5_144p_noisy abci_V_osu_bandwidth_gpu_inter_job01_7249112 "
            "abci_V_osu_latency_prc_inter_job01_7249112 gh200_osu_cuda_bibw_latency_v7.5 "
            "abci_V_osu_allreduce_mpi-cpu_inter_2n8p_7194532 "
            "stackhpc_alaska_ib-gcc9-openmpi4-ucx_Osu_mbw_mr_8 "
            "stackhpc_alaska_ib-gcc9-openmpi4-ucx_Osu_alltoall "
            "stackhpc_alaska_ib-gcc9-openmpi4-ucx_Osu_bibw"
        )
    ),
    "imb": (
        "stackhpc_alaska_ib-gcc9-openmpi4-ucx_IMB_PingPong",
        "stackhpc_alaska_ib-gcc9-openmpi4-ucx_IMB_Biband_8",
        "stackhpc_alaska_ib-gcc9-openmpi4-ucx_IMB_Uniband_32",
    ),
}
PUBLISHED = [
    path
    for kind, names in NAMES.items()
    for path in (DATA / kind / f"{name}.txt" for name in names)
    if path.is_file()
]
NUMBER = re.compile(r"[0-9.eE+]+")
EARLY = re.compile(r"^# +bytes +N +type ", re.MULTILINE)
RANKS = 4
PLACES = 150


@lru_cache
def text_of(name: str) -> str:
    if name in MADE:
        return MADE[name]
    return next(path for path in PUBLISHED if path.name == name).read_text()


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A log after one to six mutations of characters, lines, tags and cuts."""
    names = [*MADE] + [path.name for path in PUBLISHED]
    dice = draw(st.randoms(use_true_random=False))
    return mutations.text(text_of(draw(st.sampled_from(names))), dice)


def numbers_of(text: str) -> np.ndarray:
    """All numbers of a text as Python reads its words."""
    found = set()
    for word in NUMBER.findall(text):
        for piece in (word, word.rstrip("+.eE"), word.lstrip("+eE")):
            try:
                found.add(float(piece))
            except ValueError:
                continue
    values = np.array(sorted(found), dtype=np.float64)
    return values[np.isfinite(values)]


def check(text: str, found: Imported) -> None:
    """Every number of every row is in the text."""
    numbers = numbers_of(text)
    if EARLY.search(text):  # times in ms
        numbers = np.sort(np.concatenate([numbers, numbers * 1e3]))
    with np.errstate(divide="ignore", invalid="ignore"):
        for rows in found.blocks:
            whole = np.isin(rows.nbytes, numbers) | np.isin(rows.nbytes / rows.ranks, numbers)
            assert whole.all()
            micros = rows.seconds * 1e6
            near = numbers[
                np.minimum(np.searchsorted(numbers, micros * (1 - 1e-12)), len(numbers) - 1)
            ]
            plain = np.abs(near - micros) <= 1e-9 * micros
            for index in np.flatnonzero(~plain):
                sizes = (
                    np.array([rows.nbytes[index], 2 * rows.nbytes[index], 2.0, 1.0]) * rows.groups
                )
                rates = (sizes[:, None] / rows.seconds[index]) / np.array([1.0, 1e6, 1e9])
                close = np.abs(numbers[:, None, None] - rates) <= 1e-9 * rates
                assert close.any()


def read(text: str) -> Imported | None:
    try:
        log = Log.of("log.txt", text.encode(errors="replace"))
        flags = Flags(operation="allreduce", ranks=RANKS)
        found = read_log(log, flags)
        join([found], flags)
        return found
    except CalibError:
        return None


@settings(
    max_examples=400, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(mutated())
def test_mutated_logs(text: str) -> None:
    found = read(text)
    if found is not None:
        check(text, found)


@pytest.mark.parametrize("name", sorted(MADE))
def test_every_deleted_digit_is_found_or_was_not_needed(name: str) -> None:
    """One character less, in every place of the last third: rows that stay have their old numbers.

    A number of OSU or IMB that loses a digit before the point cannot be known to have been longer,
    where nothing stands beside it: those may stay.
    """
    text = text_of(name)
    whole = read(text)
    assert whole is not None
    known = {
        (int(n), float(t)) for b in whole.blocks for n, t in zip(b.nbytes, b.seconds, strict=True)
    }
    for at in range(2 * len(text) // 3, len(text), max(3, len(text) // 3 // PLACES)):
        found = read(text[:at] + text[at + 1 :])
        if found is None:
            continue
        check(text[:at] + text[at + 1 :], found)
        if name in ("nccl", "json", "rccl", "rccl half", "rccl csv", "rccl json", "plain"):
            for rows in found.blocks:
                for nbytes, seconds in zip(rows.nbytes, rows.seconds, strict=True):
                    # of 9.10 or 26.50 a digit behind the point may go, as far as algbw allows
                    assert any(n == nbytes and abs(t / seconds - 1) < 0.015 for n, t in known)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100,
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9,
        b"{",
        b"[]",
        b"{}",
        b'{"version":',
        b"# OSU MPI",
        b"\xff\xfe1",
    ],
)
def test_what_is_no_log_is_one_line(content: bytes) -> None:
    try:
        assert read_log(Log.of("x", content), Flags()).rows == 0
    except CalibError as error:
        assert "\n" not in str(error)
