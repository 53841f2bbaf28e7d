"""What copies, calls between layers and cold buffers take in a model: prices put in come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.helpers.divided import model_case
from tests.helpers.rows import as_samples, constant, rows_of
from tests.reports.records import estimate, parameters

from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import Composition, LayerTime, TensorLoop
from calib.fitting.sections.composition import LEAST_EXCHANGE_BYTES, compositions, sum_of_parts
from calib.microbench.cases import CollectiveCase, InPlaceCase
from calib.microbench.records.samples import Sample

# a line of 2 us + 0.5 ns/B, from 8 B to 16 MiB
(ALLREDUCE,) = parameters().collectives
SMALLEST = {"allreduce": 2e-6 + 0.5e-9 * 8, "allgather": 7e-6, "halo": 11e-6}


def fit(operation: str, ranks: int = 2, **more: Any) -> CollectiveFit:
    """Its smallest message takes what SMALLEST says, times ranks / 2; all others far longer."""
    points = [point.model_copy(update={"seconds": estimate(1.0)}) for point in ALLREDUCE.points]
    seconds = estimate(SMALLEST[operation] * ranks / 2)
    points[0] = points[0].model_copy(update={"seconds": seconds})
    update = {"operation": operation, "ranks": ranks, "points": points, **more}
    return ALLREDUCE.model_copy(update=update)


FITS = [fit(operation) for operation in SMALLEST]
# neither the calls' times nor their number is proportional to the other
MEETINGS = [
    {"allgather": 20, "allreduce": 3},
    {"allgather": 1, "allreduce": 1},
    {"allgather": 4, "allreduce": 40},
    {"allgather": 9},
]


def case(number: int, ranks: int = 2, **more: Any) -> InPlaceCase:
    return model_case(f"m{number}", ranks, **({"tensors_key": "", "strategy": "filter"} | more))


def composed(
    pairs: Sequence[tuple[InPlaceCase, list[Sample]]],
    loops: Sequence[TensorLoop] = (),
    fits: Sequence[CollectiveFit] = FITS,
    more: Sequence[Sample] = (),
    layers: Sequence[LayerTime] = (),
) -> dict[str, Composition]:
    samples = [*(row for _, of in pairs for row in of), *more]
    laws = compositions(as_samples(samples), {of.id: of for of, _ in pairs}, layers, loops, fits)
    return {law.phase: law for law in laws}


def meeting(number: int, phase: str, calls: Mapping[str, int], **more: Any) -> InPlaceCase:
    return case(number, meetings=tuple((phase, name, n) for name, n in calls.items()), **more)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_price_of_every_call(ranks: int) -> None:
    """4 us beside the smallest message in a loop; of 4 ranks in groups of 2, that of 2 ranks.

    Of the rank that waits least: the others wait for it.
    """
    more = {"ranks": ranks} | ({"strategy": "data+filter", "inner": 2} if ranks > 2 else {})
    fits = [*FITS, *(fit(operation, 4) for operation in SMALLEST)]
    found = []
    for number, calls in enumerate(MEETINGS):
        of = meeting(number, "layerwise", calls, **more)
        alone = sum(n * SMALLEST[name] for name, n in calls.items())
        first = alone + 4e-6 * sum(calls.values())
        found.append((of, rows_of(of, "layerwise", [[9 * first] * (ranks - 1) + [first]] * 8)))
    law = composed(found, fits=fits)["layerwise"]
    assert law.s_per_layer == pytest.approx(4e-6, rel=1e-6)
    assert (law.s_per_byte, law.max_bytes, law.active_ranks) == (0.0, 0.0, ranks)
    name = "data+filter" if ranks > 2 else "filter"
    assert law.models == [f"m{number} {name} x 8" for number in range(4)]
    assert law.error_factor == pytest.approx(1.0, rel=1e-6)


def test_calls_of_all_ranks_and_of_each_phase() -> None:
    """4 ranks that all meet: that of 4 ranks; halos are another phase."""
    of = case(0, 4, meetings=(("halo", "halo", 6), ("layerwise", "allgather", 2)))
    fits = [*FITS, *(fit(operation, 4) for operation in SMALLEST)]
    asked: Any = ([], [], fits)
    halos = sum_of_parts(of, "halo", 4, *asked)
    assert halos == (pytest.approx(6 * 2 * SMALLEST["halo"]), 6, 0)
    calls = sum_of_parts(of, "layerwise", 4, *asked)
    assert calls == (pytest.approx(2 * 2 * SMALLEST["allgather"]), 2, 0)
    assert sum_of_parts(of, "halo", 4, [], [], FITS) is None, "nobody measured 4 ranks"
    assert sum_of_parts(case(0, 4), "halo", 4, *asked) is None, "and there is none of it"


def loop(operation: str, measured: Mapping[str, float]) -> TensorLoop:
    """2 us a call, 3 us a tensor, 0.1 ns/B."""
    return TensorLoop(
        operation=operation,
        active_ranks=2,
        call_s=2e-6,
        s_per_tensor=3e-6,
        s_per_byte=1e-10,
        error_factor=1.1,
        max_bytes=1e9,
        measured={key: estimate(seconds) for key, seconds in measured.items()},
    )


def test_a_price_of_every_copy_and_byte() -> None:
    """Of tensors that were measured in so many parts by that time, of others by the law."""
    loops = [loop("concat", {"k/2": 50e-6, "k/4": 9.0}), loop("split", {})]
    law = {n: 2e-6 + 3 * 3e-6 + 1e-10 * n for n in (10**4, 10**6)}
    copies = [
        (("concat", "k", 2, 10**6, 5),),
        (("split", "", 3, 10**4, 40),),
        (("concat", "", 3, 10**6, 2), ("split", "other", 3, 10**4, 3)),
        (("concat", "k", 2, 10**6, 1),),
    ]
    alone = [5 * 50e-6, 40 * law[10**4], 2 * law[10**6] + 3 * law[10**4], 50e-6]
    found = []
    for number, (of, seconds) in enumerate(zip(copies, alone, strict=True)):
        n, nbytes = sum(c[-1] for c in of), sum(c[-1] * c[-2] for c in of)
        assert sum_of_parts(case(number, copies=of), "copies", 2, [], loops, []) == (
            pytest.approx(seconds),
            n,
            nbytes,
        )
        mine = case(number, copies=of)
        found.append((mine, constant(mine, "copies", seconds + 8e-6 * n + 2e-10 * nbytes)))
    fitted = composed(found, loops)["copies"]
    assert (fitted.s_per_layer, fitted.s_per_byte) == pytest.approx((8e-6, 2e-10), rel=1e-6)
    assert fitted.max_bytes == 5 * 10**6
    assert "copies" not in composed(found, loops[:1]) or composed(found, loops[:1])[
        "copies"
    ].models == ["m0 filter x 8", "m3 filter x 8"], (
        "without a split those that have one are left out"
    )
    assert composed(found, []) == {}


SIZES = [2**12, 2**18, 2**20, 2**22, 2**24]


def cold(nbytes: int, seconds: float, **more: Any) -> list[Sample]:
    of = CollectiveCase(
        ranks=2, group_size=2, operation="allreduce", nbytes=nbytes, cold=True, library="mpi"
    )
    return constant(of, "allreduce", seconds, **more)


def warm(nbytes: int) -> float:
    return 2e-6 + 0.5e-9 * nbytes


LINE = [
    ALLREDUCE.model_copy(
        update={
            "points": [
                point.model_copy(update={"nbytes": n, "seconds": estimate(warm(n))})
                for n, point in zip([8, *SIZES[1:]], ALLREDUCE.points, strict=False)
            ]
        }
    )
]
OTHER = case(0, strategy="", tensors_key="k", gradient_bytes=4096)
PACKS = [(OTHER, constant(OTHER, "pack", 1.0))]
PACK = [loop("pack", {"k": 1.0})]


def test_cold_buffers_beside_warm_ones() -> None:
    """0.2 ns/B more; small messages, of which other things are cold too, are left out."""
    rows = [row for n in SIZES for row in cold(n, warm(n) + 0.2e-9 * n + (n < 2**18) * 1.0)]
    found = composed(PACKS, PACK, LINE, rows)
    law = found["exchange"]
    assert law.s_per_byte == pytest.approx(0.2e-9, rel=1e-6) and law.s_per_layer == 0.0
    assert LEAST_EXCHANGE_BYTES == 2**18
    assert law.models == sorted(f"cold {n} B" for n in SIZES[1:]) and law.max_bytes == 2**24
    assert set(found) == {"exchange", "pack"}


def test_what_says_nothing_about_cold_buffers() -> None:
    """Of another library, level or number of ranks at work; of a size beyond; in a window."""
    n = 2**20
    rows = [
        *cold(n, 1.0, library="torch_mpi"),
        *cold(n, 1.0, level="rack"),
        *cold(2**26, 1.0),
        *cold(n, 1.0, ranks=4),
        *cold(n, 1.0, active_ranks=1),
        *cold(n, 1.0, groups=2),
        *cold(n, 1.0, start="window"),
        *(replace(row, operation="allgather") for row in cold(n, 1.0)),
        *cold(n, 1.0, cold=False),
    ]
    assert set(composed(PACKS, PACK, LINE, rows)) == {"pack"}


def test_exchanges_in_place_of_older_runs_are_taken() -> None:
    """They say the same of a model itself: what was cold beside is not needed."""
    models = [case(i, strategy="", gradient_bytes=n) for i, n in enumerate(SIZES[1:])]
    in_place = [
        (of, constant(of, "exchange", warm(n) + 0.7e-9 * n))
        for of, n in zip(models, SIZES[1:], strict=True)
    ]
    rows = [row for n in SIZES for row in cold(n, warm(n) + 0.2e-9 * n)]
    law = composed(in_place, fits=LINE, more=rows)["exchange"]
    assert law.s_per_byte == pytest.approx(0.7e-9, rel=1e-6)
    assert law.models == [f"m{i} x 8" for i in range(4)]


def test_stages_are_no_whole_model() -> None:
    """Each rank computes its own: their layers are timed, and no law is fitted to them."""
    of = case(
        0,
        strategy="pipeline",
        segments=2,
        layer_names=("x",),
        layer_keys=("l",),
        layer_ranks=(0,),
        boundaries=(1,),
    )
    layer = LayerTime(
        key="l",
        kind="relu",
        batch=8,
        active_ranks=2,
        forward_s=estimate(1.0),
        backward_s=estimate(1.0),
        n=9,
    )
    assert composed([(of, constant(of, "forward", 3.0))], layers=[layer]) == {}
    whole = of.model_copy(update={"layer_ranks": (), "strategy": "filter", "segments": 1})
    assert set(composed([(whole, constant(whole, "forward", 3.0))], layers=[layer])) == {"forward"}
