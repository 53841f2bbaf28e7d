"""The ASTRA-sim target, read back: step by step, as the simulator goes through a collective."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from tests.calib.export.asked import NO_MORE, asking, copying, law, line, of, refusal
from tests.helpers.filled import collective, contention, layer, loop
from tests.helpers.words import words_of

from calib.export.astra.files import export
from calib.export.reference import Reference, steps
from calib.export.target import Collapse, Exported
from calib.fitting.parameters.collectives import CollectiveFit
from calib.fitting.parameters.file import Parameters, TensorLoop

KEYS = set(
    words_of(
        "scheduling-policy endpoint-delay active-chunks-per-dimension preferred-dataset-splits "
        "all-reduce-implementation all-gather-implementation reduce-scatter-implementation "
        "all-to-all-implementation collective-optimization local-mem-bw"
    )
)
GIB = 2.0**30
NO_MEMORY_TIME = 1e9  # GB/s, where none was measured


class Read(NamedTuple):
    """The two files."""

    topology: list[str]
    npus: list[int]
    gib_per_s: list[float]
    latency_ns: list[float]
    system: dict[str, Any]


def read(exported: Exported) -> Read:
    """network.yml (flow sequences and comments only) and system.json."""
    rows = {}
    for row in exported.files["network.yml"].splitlines():
        text = row.split("#")[0].strip()
        if text:
            key, _, values = text.partition(": ")
            assert values[0] == "[" and values[-1] == "]"
            rows[key] = [value.strip() for value in values[1:-1].split(",")]
    assert set(rows) == {"topology", "npus_count", "bandwidth", "latency"}
    system = json.loads(exported.files["system.json"])
    return Read(
        rows["topology"],
        [int(n) for n in rows["npus_count"]],
        [float(x) for x in rows["bandwidth"]],
        [float(x) for x in rows["latency"]],
        system,
    )


def phase(kind: str, algorithm: str, n: int, data: float) -> Iterator[tuple[float, float]]:
    """(bytes of a message, bytes that are reduced when it has come) of each step, in their order.

    `data` is what a rank has when the phase begins.
    """
    if kind == "all_to_all":
        yield from [(data / n, 0.0)] * (n - 1)
    elif algorithm == "halvingDoubling":
        yield from halving(kind, n, data)
    else:
        if kind != "allgather":
            yield from [(data / n, data / n)] * (n - 1)
        if kind != "reduce_scatter":
            yield from [(data / n if kind == "allreduce" else data, 0.0)] * (n - 1)


def halving(kind: str, n: int, data: float) -> Iterator[tuple[float, float]]:
    """Halves of halves, and back; what is reduced has the size of the next message, and the last not."""
    whole = data * n if kind == "allgather" else data
    halves = [whole / 2**k for k in range(1, n.bit_length())]
    if kind != "allgather":
        yield from zip(halves, [*halves[1:], 0.0], strict=True)
    if kind != "reduce_scatter":
        yield from ((message, 0.0) for message in reversed(halves))


def simulated(file: Read, operation: str, nbytes: float, fill: Sequence[int]) -> float:
    """Seconds of one collective of a whole buffer among fill[d] compartments of each dimension."""
    delay = file.system["endpoint-delay"] * 1e-9
    memory = file.system["local-mem-bw"] * 1e9
    used = [d for d, n in enumerate(fill) if n > 1]
    if operation == "p2p":
        (d,) = used
        return 2 * file.latency_ns[d] * 1e-9 + nbytes / (file.gib_per_s[d] * GIB)
    plan: list[tuple[str, int]] = []
    if operation == "allreduce":
        plan += [("reduce_scatter", d) for d in used[:-1]]
        plan += [("allreduce", used[-1])]
        plan += [("allgather", d) for d in reversed(used[:-1])]
    else:
        plan += [(operation, d) for d in (reversed(used) if operation == "allgather" else used)]
    key = {
        "allreduce": "all-reduce",
        "allgather": "all-gather",
        "reduce_scatter": "reduce-scatter",
        "all_to_all": "all-to-all",
    }[operation]
    algorithms = file.system[f"{key}-implementation"]
    data = nbytes / math.prod(fill) if operation == "allgather" else nbytes
    now = 0.0
    for kind, d in plan:
        now += delay
        for message, reduced in phase(kind, algorithms[d], fill[d], data):
            now += 2 * file.latency_ns[d] * 1e-9 + message / (file.gib_per_s[d] * GIB)
            now += delay + 3 * reduced / memory
        data *= {"reduce_scatter": 1 / fill[d], "allgather": fill[d]}.get(kind, 1)
    return now


def filling(p: int, file: Read) -> list[int]:
    found = []
    for size in file.npus:
        found.append(min(p, size))
        p //= found[-1]
    return found


# an MPI whose allreduce is no ring, and two operations that do not agree
MIXED = of(
    law("allreduce", 2, 9e-6, 2e-10),
    law("allreduce", 4, 12e-6, 3e-10),
    law("allgather", 4, 8e-6, 2.5e-10),
    law("all_to_all", 4, 5e-6, 1e-10),
    law("allreduce", 8, 30e-6, 9e-10, "system"),
    law("allreduce", 16, 60e-6, 2e-9, "system"),
    law("reduce_scatter", 16, 20e-6, 1e-9, "system"),
    law("all_to_all", 16, 40e-6, 2e-9, "system"),
    nodes=4,
    tensor_loops=[loop(operation="pack", active_ranks=2)],
)


def error_of(collapse: Collapse, file: Read, reference: Reference) -> tuple[float, float, int]:
    """(mean, worst, points) of |simulated / oracle - 1| over what the collapse says it is about."""
    found = []
    for operation in collapse.what.split(", "):
        for p in sorted({f.ranks for f in reference.fits if f.operation == operation}):
            if p in collapse.ranks:
                for m in steps(reference.nbytes(operation)):
                    t = simulated(file, operation, m, filling(p, file))
                    found.append(abs(t / reference.seconds(operation, m, p).seconds - 1))
    return sum(found) / len(found), max(found), len(found)


@pytest.fixture(scope="module")
def mixed() -> tuple[Exported, Reference]:
    return export(asking(MIXED)), Reference(asking(MIXED))


def of_level(result: Exported, name: str) -> list[Collapse]:
    return [
        c for c in result.collapses if c.into == f"latency and bandwidth of the {name}'s dimension"
    ]


def test_the_errors_told_are_those_of_a_step_by_step_run(mixed: tuple[Exported, Reference]) -> None:
    result, reference = mixed
    file = read(result)
    assert file.npus == [4, 4] and file.topology == ["Switch", "Switch"]
    node, system = of_level(result, "node"), of_level(result, "system")
    assert {(c.what, c.ranks) for c in node} == {
        ("allreduce", (2, 4)),
        ("allgather", (4,)),
        ("all_to_all", (4,)),
    }
    assert {(c.what, c.ranks) for c in system} == {
        ("allreduce", (8, 16)),
        ("reduce_scatter", (16,)),
        ("all_to_all", (16,)),
    }
    for collapse in node + system:
        mean, worst, count = error_of(collapse, file, reference)
        assert collapse.mean_error == pytest.approx(mean, rel=1e-9)
        assert collapse.worst_error == pytest.approx(worst, rel=1e-9)
        assert collapse.points == count
    assert len(result.collapses) == len(node + system) + 1 and result.library == "mpi"


@pytest.mark.parametrize("factor", [0.8, 0.9, 0.99, 1.01, 1.1, 1.2])
@pytest.mark.parametrize("key", ["gib_per_s", "latency_ns"])
@pytest.mark.parametrize("d", [0, 1])
def test_no_other_number_is_closer(
    mixed: tuple[Exported, Reference], key: str, d: int, factor: float
) -> None:
    result, reference = mixed
    file = read(result)
    moved = file._replace(
        **{key: [x * (factor if k == d else 1) for k, x in enumerate(getattr(file, key))]}
    )
    told = of_level(result, ("node", "system")[d])
    total = sum(mean * count for mean, _, count in (error_of(c, moved, reference) for c in told))
    assert total >= sum(c.mean_error * c.points for c in told) * (1 - 1e-7)


@pytest.mark.parametrize("operation", ["allreduce", "allgather", "reduce_scatter", "all_to_all"])
def test_one_alpha_and_beta_come_back(operation: str) -> None:
    """A step has latency twice, and its endpoint delay; the first has one more of it."""
    alpha, beta, p = 5e-6, 2e-10, 4
    result = export(asking(of(law(operation, p, *line(operation, p, alpha, beta)))))
    file = read(result)
    messages = 2 * (p - 1) if operation == "allreduce" else p - 1
    assert file.npus == [4]
    assert file.gib_per_s == [pytest.approx(1 / beta / GIB, rel=1e-6)]
    per_step = alpha - 1e-9 * (messages + 1) / messages
    assert file.latency_ns == [pytest.approx(per_step / 2 * 1e9, rel=1e-6)]
    assert result.collapses[0].mean_error < 1e-6
    assert file.system["all-reduce-implementation"] == ["ring"]


def test_every_dimension_comes_back() -> None:
    """Reduce-scatter and allgather in nodes of 4, allreduce of a quarter between them."""
    inner, outer = (4e-6, 1e-10), (2e-5, 8e-10)
    a4, b4 = line("allreduce", 4, *inner)
    fits = [law("allreduce", 4, a4, b4)]
    for nodes in (2, 4, 8):
        a, b = line("allreduce", nodes, *outer)
        fits.append(law("allreduce", 4 * nodes, a4 + a, b4 + b / 4, "system"))
    result = export(asking(of(*fits, nodes=8)))
    file = read(result)
    assert file.npus == [4, 8]
    assert file.gib_per_s == [pytest.approx(1 / beta / GIB, rel=1e-3) for _, beta in (inner, outer)]
    assert file.latency_ns == [
        pytest.approx(alpha / 2 * 1e9, rel=1e-3) for alpha, _ in (inner, outer)
    ]
    assert max(c.worst_error for c in result.collapses) < 1e-3
    assert file.system["all-reduce-implementation"] == ["ring", "ring"]


def test_halving_and_doubling_where_the_times_are_its() -> None:
    fits = [
        law("allreduce", p, 2 * math.log2(p) * 5e-6, 2 * (p - 1) / p * 2e-10) for p in (2, 4, 8, 16)
    ]
    result = export(asking(of(*fits, ranks_per_node=16)))
    file = read(result)
    assert file.system["all-reduce-implementation"] == ["halvingDoubling"]
    assert file.latency_ns == [pytest.approx(2500, rel=1e-3)]
    assert file.gib_per_s == [pytest.approx(1 / 2e-10 / GIB, rel=1e-3)]
    assert result.collapses[0].worst_error < 1e-3
    # a machine of 12 ranks has no halves of halves
    odd = read(export(asking(of(*fits[:3], ranks_per_node=12))))
    assert odd.npus == [12] and odd.system["all-reduce-implementation"] == ["ring"]


def test_reductions_go_through_the_measured_memory() -> None:
    """2 GB/s of copies: 1 B read and 1 B written in 1 ns; a ring of 4 reduces 3/4 of the buffer."""
    pack = copying(1e-9, 1)
    a, b = line("allreduce", 4, 5e-6, 4e-9)
    through = 3 * 3 / 4 / 2e9
    file = read(export(asking(of(law("allreduce", 4, a, b + through), tensor_loops=[pack]))))
    assert file.system["local-mem-bw"] == pytest.approx(2.0, rel=1e-9)
    assert file.gib_per_s == [pytest.approx(1 / 4e-9 / GIB, rel=1e-6)]
    without = export(asking(of(law("allreduce", 4, a, b + through))))
    assert read(without).system["local-mem-bw"] == NO_MEMORY_TIME
    assert any("no pass that moves bytes was measured" in note for note in without.notes)


def test_one_rate_for_memory_is_the_closest_from_1_mib_on() -> None:
    """Copies that move less are start-up times; the error that one rate makes is told."""
    loops = [
        loop(operation=name, call_s=call, s_per_tensor=2e-6, s_per_byte=price, active_ranks=1)
        for name, call, price in (("pack", 1e-6, 4e-11), ("unpack", 5e-6, 2e-10))
    ]
    result = export(asking(of(law("allreduce", 4, 1e-4, 1e-8), tensor_loops=loops)))
    rate = read(result).system["local-mem-bw"] * 1e9
    times = [
        (2 * m, each.call_s + 2e-6 + each.s_per_byte * m)
        for each in loops
        for m in [*(2**k for k in range(19, 24)), 10**7]
    ]

    def error(rate: float) -> float:
        return sum(abs(moved / rate / t - 1) for moved, t in times)

    least = min(error(moved / t) for moved, t in times)
    assert error(rate) == pytest.approx(least, rel=1e-9)
    (told,) = [c for c in result.collapses if c.into == "local-mem-bw"]
    assert told.mean_error == pytest.approx(least / len(times), rel=1e-9)
    assert told.points == len(times) and told.nbytes == (2**20, 2 * 10**7)
    assert told.worst_error == pytest.approx(max(abs(b / rate / t - 1) for b, t in times), rel=1e-9)
    assert "pack, unpack" in told.what and "cpu" in told.what


def test_small_copies_where_there_are_no_others() -> None:
    pack = copying(1e-9, 1, max_bytes=1000.0)
    result = export(asking(of(law("allreduce", 4, 1e-4, 1e-8), tensor_loops=[pack])))
    assert read(result).system["local-mem-bw"] == pytest.approx(2.0, rel=1e-9)


def test_local_memory_is_that_of_the_librarys_device() -> None:
    """Review 8, point 4: NCCL's reductions at the pace of the host's memory."""
    host, gpu = copying(1e-10, 1), copying(1e-12, 1, device="cuda")
    mpi = law("allreduce", 4, 1e-5, 1e-9)
    nccl = law("allreduce", 4, 1e-5, 1e-11).model_copy(update={"library": "nccl", "device": "cuda"})

    def rate(fit: CollectiveFit, *loops: TensorLoop) -> float:
        return float(read(export(asking(of(fit, tensor_loops=loops)))).system["local-mem-bw"])

    assert rate(mpi, host, gpu) == rate(mpi, host) == pytest.approx(20.0)
    assert rate(nccl, host, gpu) == rate(nccl, gpu) == pytest.approx(2000.0)
    assert rate(mpi, gpu) == rate(nccl, host) == NO_MEMORY_TIME


def test_layers_are_of_the_memory_of_the_device_that_they_ran_on() -> None:
    relu = layer(key="relu()|8*64x64x64->64x64x64|-|float32", kind="relu", active_ranks=4)
    mpi = law("allreduce", 4, 1e-2, 1e-6)
    nccl = mpi.model_copy(update={"library": "nccl", "device": "cuda"})
    moved = 4 * 8 * 2 * 64**3
    expected = moved / relu.forward_s.value / 1e9
    file = read(export(asking(of(mpi, layers=[relu]))))
    assert file.system["local-mem-bw"] == pytest.approx(expected)
    assert read(export(asking(of(nccl, layers=[relu])))).system["local-mem-bw"] == NO_MEMORY_TIME
    of_gpus = of(nccl, layers=[relu]).model_copy(update={"device_kind": "cuda"})
    assert read(export(asking(of_gpus))).system["local-mem-bw"] == pytest.approx(expected)
    # a pass of a layer moves bytes as a reduction does, and comes before copies; but not a small one
    pack = copying(1e-9)
    small = layer(key="relu()|8*4x8x8->4x8x8|-|float32", kind="relu", active_ranks=4)
    for layers, rate in (([relu, small], expected), ([small], 2.0)):
        result = export(asking(of(mpi, layers=layers, tensor_loops=[pack])))
        assert read(result).system["local-mem-bw"] == pytest.approx(rate)
        assert ("times of pack over lists of tensors" in result.lost) == (rate == expected)


def test_a_memory_slower_than_the_collectives_takes_no_time() -> None:
    """3/4 of the buffer by three passes: at 2 GB/s 1.125 ns a byte."""
    pack = copying(1e-9, 1)
    for price, written in ((1.13e-9, 2.0), (1.12e-9, NO_MEMORY_TIME)):
        result = export(asking(of(law("allreduce", 4, 0.0, price), tensor_loops=[pack])))
        assert read(result).system["local-mem-bw"] == pytest.approx(written)
        slow = written == NO_MEMORY_TIME
        assert any("memory alone would take longer" in note for note in result.notes) == slow
        assert any(c.into == "local-mem-bw" for c in result.collapses) != slow
        assert any("pack" in words for words in result.lost) == slow
        assert result.collapses[-1].mean_error < 0.02


def test_what_costs_nothing_is_written_as_a_number() -> None:
    """No start-up time, and no time per byte: a bandwidth has an end."""
    (alone,) = read(export(asking(of(law("allreduce", 4, 0.0, 1e-9))))).latency_ns
    assert alone == 0
    (endless,) = read(export(asking(of(law("allreduce", 4, 1e-5, 0.0))))).gib_per_s
    assert 2**24 / 1e-5 / GIB < endless < 1e4 * 2**24 / 1e-5 / GIB


def test_the_keys_of_system_json() -> None:
    system = read(export(asking(MIXED))).system
    assert set(system) == KEYS
    assert all(len(system[key]) == 2 for key in KEYS if key.endswith("-implementation"))
    assert system["all-to-all-implementation"] == ["direct1", "direct1"]
    whole = [
        system[k]
        for k in ("endpoint-delay", "active-chunks-per-dimension", "preferred-dataset-splits")
    ]
    assert all(isinstance(value, int) and value > 0 for value in whole)
    assert system["collective-optimization"] == "localBWAware"


def test_counts_are_of_the_largest_p_and_numbers_of_all() -> None:
    result = export(asking(MIXED, ranks=(4, 8), nbytes=(2**10, 2**20)))
    assert read(result).npus == [4, 2]
    node, system = of_level(result, "node"), of_level(result, "system")
    assert {c.ranks for c in node} == {(4,)} and {c.ranks for c in system} == {(8,)}
    assert {c.nbytes for c in node + system} == {(2**10, 2**20)}
    assert read(export(asking(MIXED, ranks=(2,)))).npus == [2]
    assert read(export(asking(MIXED, ranks=(4,), nodes=16))).npus == [4, 16]
    # the node's numbers are those of a full one where none was asked for
    full = export(asking(MIXED, ranks=(16,)))
    assert {c.ranks for c in of_level(full, "node")} == {(4,)}
    assert {c.ranks for c in of_level(full, "system")} == {(16,)}


RACKED = of(
    law("allreduce", 4, 1e-5, 1e-9),
    law("allreduce", 8, 2e-5, 2e-9, "rack"),
    law("allreduce", 32, 4e-5, 3e-9, "system"),
    nodes=12,
    nodes_per_rack=4,
)


def named(result: Exported) -> str:
    """The levels in the file's comment."""
    (found,) = re.findall("# dimensions: (.*)", result.files["network.yml"])
    return str(found)


def test_racks_are_a_dimension_where_they_are_whole() -> None:
    result = export(asking(RACKED))
    assert read(result).npus == [4, 4, 3] and named(result) == "node, rack, system"
    assert not any("whole racks" in note for note in result.notes)
    # more racks than nodes of one
    many = export(asking(RACKED, nodes=20))
    assert read(many).npus == [4, 4, 5] and not any("whole racks" in note for note in many.notes)
    # three nodes of one rack
    one = export(asking(RACKED, ranks=(12,)))
    assert read(one).npus == [4, 3] and named(one) == "node, rack"
    assert not any("whole racks" in note for note in one.notes)


@pytest.mark.parametrize("asked", [{"nodes": 11}, {"ranks": (44,)}])
def test_racks_that_are_not_whole_are_told(asked: dict[str, Any]) -> None:
    """Review 8, point 19."""
    result = export(asking(RACKED, **asked))
    assert read(result).npus == [4, 11] and named(result) == "node, system"
    assert any("11 nodes do not fill whole racks of 4" in note for note in result.notes)


def test_messages_of_racks_that_are_not_whole_are_the_slowest() -> None:
    fits = [
        law("p2p", 2, a, 1e-10, level)
        for a, level in ((2e-6, "node"), (6e-6, "rack"), (2e-5, "system"))
    ]
    parameters = of(*fits, nodes=12, nodes_per_rack=4)
    assert read(export(asking(parameters))).latency_ns == pytest.approx([1e3, 3e3, 1e4])
    assert read(export(asking(parameters, nodes=11))).latency_ns == pytest.approx([1e3, 1e4])
    assert read(export(asking(parameters, nodes=3))).latency_ns == pytest.approx([1e3, 3e3])


def test_messages_alone_are_enough() -> None:
    file = read(export(asking(of(law("p2p", 2, 6e-6, 1e-10)))))
    assert file.latency_ns == [pytest.approx(3000, rel=1e-6)]
    assert simulated(file, "p2p", 2**20, [2]) == pytest.approx(6e-6 + 2**20 * 1e-10, rel=1e-6)


def test_what_is_refused() -> None:
    broadcast = of(law("broadcast", 2, 1e-6, 1e-9))
    assert "allreduce or reduce_scatter" in refusal(export, broadcast)
    assert "6 ranks do not fill" in refusal(export, MIXED, ranks=(6,))
    assert "more --nodes or fewer --ranks" in refusal(export, MIXED, ranks=(16,), nodes=2)
    assert "can count" in refusal(export, MIXED, nodes=10**9)
    # review 8, point 3; with two p of one size they are told apart
    assert "--bytes" in refusal(export, RACKED, nbytes=(2**16, 2**16))


def without(*levels: str) -> Parameters:
    return RACKED.model_copy(
        update={"collectives": [fit for fit in RACKED.collectives if fit.level not in levels]}
    )


def test_a_network_that_nobody_measured_is_refused() -> None:
    """Review 8, point 2."""
    one = of(law("allreduce", 4, 1e-5, 1e-9))
    assert read(export(asking(one))).npus == [4]
    several: list[dict[str, Any]] = [{"nodes": 4}, {"ranks": (4, 16)}]
    for asked in several:
        message = refusal(export, one, **asked)
        assert "between 4 nodes" in message and "calib calibrate" in message
        assert "--nodes 1" in message and ("--ranks up to 4" in message) == ("ranks" in asked)
    assert "between racks" in refusal(export, without("system"), ranks=(4, 32))
    assert "of a rack" in refusal(export, without("rack"))
    assert "inside a node" in refusal(export, without("node"))


def test_a_bandwidth_that_no_time_depends_on_is_a_bound() -> None:
    bound = export(asking(of(law("allreduce", 4, 1e-5, 0.0))))
    assert any("no time of the node depends on its bytes" in note for note in bound.notes)
    real = export(asking(of(law("allreduce", 4, 1e-5, 1e-9))))
    assert not any("depends on its bytes" in note for note in real.notes)


def test_what_is_held_is_told_by_operation_and_where_it_was_not_measured() -> None:
    """Review 8, point 7."""
    held = export(asking(MIXED)).holds_for
    assert "allreduce of 64 B to 16 MiB on 2, 4 ranks (node)" in held
    assert "all_to_all of 64 B to 16 MiB on 16 ranks (system)" in held and len(held) == 6
    far = export(asking(MIXED, ranks=(4, 2048), nbytes=(2**10, 2**20))).holds_for
    assert "allreduce of 1 KiB to 1 MiB on 4 ranks (node)" in far
    (system,) = [words for words in far if words.startswith("allreduce") and "system" in words]
    assert "extrapolated: measured to 16 MiB, from 64 B, on 8, 16 ranks" in system
    # allgather was never measured between nodes
    (never,) = [words for words in far if words.startswith("allgather") and "system" in words]
    assert "extrapolated: not measured there" in never


def test_measured_to_the_largest_of_all_sizes() -> None:
    short = law("allreduce", 4, 2e-5, 2e-9)
    short = short.model_copy(
        update={"points": [short.points[0].model_copy(update={"nbytes": m}) for m in (2**7, 2**20)]}
    )
    parameters = of(law("allreduce", 2, 1e-5, 1e-9), short)
    (words,) = export(asking(parameters, nbytes=(2**8, 2**30))).holds_for
    assert words.endswith("(extrapolated: measured to 16 MiB, from 64 B, on 2, 4 ranks)")


def test_what_is_lost_is_what_there_is() -> None:
    """Review 8, points 9 and 18."""
    one = law("allreduce", 4, 1e-5, 1e-9)
    plain = export(asking(of(one, **NO_MORE)))
    assert plain.lost == ()
    more = {"contention": [contention()], "layers": [layer()], "partitions": []}
    loops = [loop(operation="update")]
    rest = export(asking(of(one, law("p2p", 2, 1e-6, 1e-9), tensor_loops=loops, **more)))
    assert set(rest.lost) == {
        "times of p2p",
        "how groups at once slow each other down",
        "times of update over lists of tensors",
        "the peaks of the device",
        "laws of layers that were not measured",
        "corrections for running in place",
        "laws of the peak of memory",
        "how much of an exchange a backward hides",
        "forward and backward times of layers (1)",
    }
    bent = of(collective(4), ranks_per_node=8, **NO_MORE)
    assert any(words.startswith("bends") for words in export(asking(bent)).lost)


def test_what_is_said() -> None:
    made = MIXED.provenance.model_copy(update={"cluster_name": "a\n- b: [\x1b]"})
    six = law("allreduce", 6, 1e-5, 1e-9, "system")
    extra = MIXED.model_copy(
        update={
            "provenance": made,
            "collectives": [*MIXED.collectives, law("broadcast", 4, 1e-6, 1e-9), six],
            "ranks_per_node": 4,
        }
    )
    result = export(asking(extra))
    text = result.files["network.yml"]
    comment = " ".join(line.strip("# ") for line in text.splitlines() if line.startswith("#"))
    assert "2^30 B/s" in comment and "6.9% slower" in comment and "must be doubled" in comment
    assert any("broadcast" in words for words in result.lost)
    assert (8, 16) in {c.ranks for c in of_level(result, "system")}
    assert "what each rank gives" in comment and "preferred-dataset-splits 1" in comment
    assert any("6 ranks, which do not fill" in words for words in result.lost)
    assert read(result).npus == [4, 4] and "\x1b" not in text
