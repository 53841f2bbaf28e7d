"""The Calculon target, held to Calculon's own rules and read back with its formulas."""

from __future__ import annotations

import copy
import csv
import io
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.calib.export.asked import NO_MORE, asking, copying, exactly, law, line, of, refusal
from tests.helpers.filled import layer, loop
from tests.helpers.words import words_of

from calib.export import calculon, csv_table, numbers_json
from calib.export.about import notes
from calib.export.calculon import export
from calib.export.exporting import understood
from calib.export.reference import Reference, steps
from calib.export.target import Collapse, Exported
from calib.fitting.parameters.file import LayerTime, Parameters
from calib.foundation.errors import InputError, MissingParameter
from calib.foundation.layers import LayerShape

BYTES = 4


def linear(inputs: int, outputs: int, seconds: float, batch: int = 8) -> LayerTime:
    """2 batch inputs outputs operations."""
    shape = LayerShape(
        kind="linear",
        input_shapes=((inputs,),),
        output_shape=(outputs,),
        parameter_shapes=((outputs, inputs),),
    )
    return timed(shape, batch, seconds)


def items(kind: Any, count: int, seconds: float) -> LayerTime:
    """A pass over so many items."""
    shapes = ((count,), (count,)) if kind == "add" else ((count,),)
    extra: dict[str, Any] = (
        {"attributes": {"normalized_shape": (count,)}} if kind == "layer_norm" else {}
    )
    return timed(
        LayerShape(kind=kind, input_shapes=shapes, output_shape=(count,), **extra), 1, seconds
    )


def timed(shape: LayerShape, batch: int, seconds: float, active: int = 4) -> LayerTime:
    return layer(
        key=shape.key(batch),
        kind=shape.kind,
        batch=batch,
        active_ranks=active,
        forward_s=exactly(seconds),
    )


def with_layers(layers: list[LayerTime], **changes: Any) -> Parameters:
    """One allreduce, these layers, and 3 GiB."""
    base: dict[str, Any] = {
        "collectives": [law("allreduce", 4, *line("allreduce", 4, 5e-6, 2e-10))],
        "layers": layers,
        "device_memory_bytes": 3 * 2**30,
    }
    return of(**(base | changes))


def passes(rate: float = 8e9) -> list[LayerTime]:
    """ReLUs that move bytes at one rate."""
    return [
        items("relu", n, 2 * BYTES * n / rate) for n in (1000, 3000, 10000, 10**5, 10**6, 10**7)
    ]


def read(exported: Exported) -> dict[str, Any]:
    """The file, by the rules that Calculon asserts (system.py, processor.py, memory.py, network.py)."""
    system: dict[str, Any] = json.loads(exported.files[""], parse_constant=pytest.fail)
    assert set(system) == {"matrix", "vector", "mem1", "mem2", "processing_mode", "networks"}
    assert system["processing_mode"] in ("roofline", "no_overlap")
    assert set(system["matrix"]) == set(system["vector"]) and system["matrix"]
    for engine in ("matrix", "vector"):
        for name, entry in system[engine].items():
            assert name in ("float8", "float16", "float32", "bfloat16")
            assert set(entry) == {"tflops", "gflops_efficiency"} and entry["tflops"] > 0
            check_rows(entry["gflops_efficiency"])
    for memory in ("mem1", "mem2"):
        assert set(system[memory]) == {"GiB", "GBps", "MB_efficiency"}
        assert system[memory]["GiB"] >= 0 and system[memory]["GBps"] > 0
        check_rows(system[memory]["MB_efficiency"])
    assert system["networks"]
    for network in system["networks"]:
        check_network(network)
    return system


def check_rows(rows: list[list[float]]) -> None:
    starts = [start for start, _ in rows]
    assert starts == sorted(set(starts), reverse=True) and starts[-1] == 0
    assert all(0 < share <= 1 for _, share in rows)


def check_network(network: dict[str, Any]) -> None:
    assert set(network) == set(
        words_of("bandwidth efficiency size latency ops must_be_filled processor_usage")
    )
    assert network["bandwidth"] > 0 and 0 < network["efficiency"] <= 1 and network["latency"] >= 0
    assert isinstance(network["size"], int) and network["size"] >= 2
    assert isinstance(network["must_be_filled"], bool) and 0 <= network["processor_usage"] < 1
    assert network["ops"] == {
        "p2p": [1.0, None],
        "reduce_scatter": [1.0, -1],
        "all_gather": [1.0, -1],
        "all_reduce": [2.0, -1],
    }


def throughput(peak: float, rows: list[list[float]], unit: float, size: float) -> float:
    for start, share in rows:
        if size >= start * unit:
            return peak * share
    raise AssertionError(f"{size} is not covered")


def kernel_time(system: dict[str, Any], engine: str, flops: float, nbytes: float) -> float:
    entry, memory = system[engine]["float32"], system["mem1"]
    busy = flops / throughput(entry["tflops"] * 1e12, entry["gflops_efficiency"], 1e9, flops)
    moved = nbytes / throughput(memory["GBps"] * 1e9, memory["MB_efficiency"], 1e6, nbytes)
    return max(busy, moved) if system["processing_mode"] == "roofline" else busy + moved


def network_time(network: dict[str, Any], operation: str, nbytes: float, ranks: int) -> float:
    scalar, offset = network["ops"][operation]
    size = nbytes * scalar
    size += size / ranks * (offset or 0)
    rate = network["bandwidth"] * 1e9 * network["efficiency"]
    return float(network["latency"] + size / rate)


# what Calculon's layers count for an item (calculon/llm/layers.py)
PER_ITEM = {"relu": 1, "add": 1, "layer_norm": 9, "softmax": 5}


def kernels(layers: list[LayerTime], *kinds: str) -> Iterator[tuple[float, float, float]]:
    """(operations, bytes, seconds), from the numbers in the keys."""
    for row in layers:
        if row.kind in kinds:
            batch, _, rest = row.key.split("|")[1].partition("*")
            inputs, _, output = rest.partition("->")
            ins, out = [int(n) for n in inputs.split("+")], int(output)
            weights = ins[0] * out if row.kind == "linear" else 0
            operations = 2 * int(batch) * weights or PER_ITEM[row.kind] * out
            moved = BYTES * (int(batch) * (sum(ins) + out) + weights)
            yield operations, moved, row.forward_s.value


def noisy() -> list[LayerTime]:
    """Layers of a machine that is slow on small ones, no two of them alike."""
    rng, found = random.Random(8), []
    for k in range(24):
        n, m = 2 ** (3 + k // 3), 2 ** (4 + k // 3) + 7 * k
        rate = 1e9 * (1 + k) * rng.uniform(0.5, 1.5)
        found.append(linear(n, m, 2 * 8 * n * m / rate))
    for k in range(21):
        n = 500 * 2 ** (k // 2) + k
        kind = ("relu", "add", "layer_norm")[k % 3]
        found.append(items(kind, n, 4e-6 + n * rng.uniform(0.5, 2) * 1e-9))
    return found


NOISY = noisy()
# what Calculon is not given: times with one rank of a node at work, and copies
ALONE = [
    timed(LayerShape(kind="relu", input_shapes=((n,),), output_shape=(n,)), 1, 1e-3, active=1)
    for n in (100, 10**5)
]
MIXED = with_layers(
    NOISY + ALONE,
    nodes=4,
    tensor_loops=[loop(operation="pack", active_ranks=4)],
    collectives=[
        law("allreduce", 2, 9e-6, 2e-10),
        law("allreduce", 4, 12e-6, 3e-10),
        law("allgather", 4, 8e-6, 2.5e-10),
        law("p2p", 2, 3e-6, 1e-10),
        law("allreduce", 8, 30e-6, 9e-10, "system"),
        law("allreduce", 16, 60e-6, 2e-9, "system"),
        law("p2p", 2, 7e-6, 4e-10, "system"),
    ],
)
# of networks: (operation, its name, p, how far two neighbours are apart)
ASKED = (
    [
        ("p2p", "p2p", 2, 1),
        ("allgather", "all_gather", 4, 1),
        ("allreduce", "all_reduce", 2, 1),
        ("allreduce", "all_reduce", 4, 1),
    ],
    [
        ("p2p", "p2p", 2, 4),
        ("allgather", "all_gather", 16, 1),
        ("allreduce", "all_reduce", 8, 1),
        ("allreduce", "all_reduce", 16, 1),
    ],
)


@pytest.fixture(scope="module")
def mixed() -> Exported:
    return export(asking(MIXED))


def errors(system: dict[str, Any], part: str, only: str = "") -> list[float]:
    """|Calculon / oracle - 1| of a part of the file, of a network of one operation `only`."""
    if part.startswith("networks"):
        at, reference = int(part[-2]), Reference(asking(MIXED))
        return [
            abs(
                network_time(system["networks"][at], name, m, p)
                / reference.seconds(operation, m, p, stride).seconds
                - 1
            )
            for operation, name, p, stride in ASKED[at]
            if only in ("", operation)
            for m in steps(reference.nbytes(operation))
        ]
    if part == "mem1":
        rows, peak = system["mem1"]["MB_efficiency"], system["mem1"]["GBps"] * 1e9
        return [
            abs(m / throughput(peak, rows, 1e6, m) / t - 1)
            for _, m, t in kernels(NOISY, "relu", "add")
        ]
    kinds = ("linear",) if part == "matrix" else ("relu", "add", "layer_norm")
    return [
        abs(kernel_time(system, part, flops, m) / t - 1) for flops, m, t in kernels(NOISY, *kinds)
    ]


def told(exported: Exported, part: str) -> Collapse:
    (found,) = [c for c in exported.collapses if c.into.endswith(part)]
    return found


def tells(collapse: Collapse, found: list[float]) -> None:
    """Its errors are these."""
    assert collapse.mean_error == pytest.approx(sum(found) / len(found), rel=1e-9)
    assert collapse.worst_error == pytest.approx(max(found), rel=1e-9)
    assert collapse.points == len(found)


KERNELS, NETWORKS = ("matrix", "vector", "mem1"), ("networks[0]", "networks[1]")
PARTS = KERNELS + NETWORKS


@pytest.mark.parametrize("part", KERNELS)
def test_the_errors_told_are_those_of_calculons_formulas(mixed: Exported, part: str) -> None:
    collapse = told(mixed, part)
    tells(collapse, errors(read(mixed), part))
    assert 0.01 < collapse.mean_error < 0.6


@pytest.mark.parametrize("part", NETWORKS)
def test_the_errors_of_a_network_are_told_by_operation(mixed: Exported, part: str) -> None:
    """Each with its own sizes and ranks (review 8, point 7)."""
    here = [c for c in mixed.collapses if c.into.endswith(part)]
    level = ("node", "system")[int(part[-2])]
    assert {c.what for c in here} == {
        f"{name} ({level})" for name in ("p2p", "allgather", "allreduce")
    }
    for collapse in here:
        operation = collapse.what.split()[0]
        tells(collapse, errors(read(mixed), part, operation))
        assert collapse.ranks == tuple(
            p for name, _, p, _ in ASKED[int(part[-2])] if name == operation
        )
    assert mixed.library == "mpi"


@pytest.mark.parametrize("part", PARTS)
def test_no_other_number_is_closer(mixed: Exported, part: str) -> None:
    system = read(mixed)
    least = sum(errors(system, part))
    tried = 0
    for k, _ in enumerate(numbers(system, part)):
        for factor in (0.8, 0.9, 0.99, 1.01, 1.1, 1.2):
            moved = copy.deepcopy(system)
            container, key = numbers(moved, part)[k]
            container[key] *= factor
            if key != 1 or container[key] <= 1:  # an efficiency is a share
                assert sum(errors(moved, part)) >= least * (1 - 1e-7)
                tried += 1
    assert tried >= 6


def numbers(system: dict[str, Any], part: str) -> list[tuple[Any, Any]]:
    """(container, key) of each number that a part of the file was fitted by."""
    if part.startswith("networks"):
        network = system["networks"][int(part[-2])]
        return [(network, "bandwidth"), (network, "latency")]
    if part == "mem1":
        return [(row, 1) for row in system["mem1"]["MB_efficiency"]]
    return [(row, 1) for row in system[part]["float32"]["gflops_efficiency"]]


def test_a_staircase_comes_back() -> None:
    """10 GFLOP/s up to 1 MFLOP, then 40, then 100 from 100 MFLOP on."""
    layers = passes(1e15)
    for n in (16, 32, 64, 128):
        layers.append(linear(n, n, 16 * n * n / 1e10))
    for n in (300, 500, 1000, 2000):
        layers.append(linear(n, n, 16 * n * n / 4e10))
    for n in (4000, 5000, 7000):
        layers.append(linear(n, n, 16 * n * n / 1e11))
    result = export(asking(with_layers(layers)))
    entry = read(result)["matrix"]["float32"]
    assert entry["tflops"] == pytest.approx(0.1)
    (top, first), (middle, second), (bottom, third) = entry["gflops_efficiency"]
    assert [first, second, third] == pytest.approx([1.0, 0.4, 0.1])
    assert 16 * 2000**2 < top * 1e9 < 16 * 4000**2 and 16 * 128**2 < middle * 1e9 < 16 * 300**2
    assert bottom == 0 and told(result, "matrix").worst_error < 1e-9


def test_memory_and_the_layers_that_only_move_bytes() -> None:
    system = read(export(asking(with_layers([*passes(8e9), linear(100, 100, 1e-3)]))))
    assert system["mem1"] == {
        "GiB": 3.0,
        "GBps": pytest.approx(8.0),
        "MB_efficiency": [[0, pytest.approx(1.0)]],
    }
    # one item is 8 B and one operation
    assert system["vector"]["float32"]["tflops"] == pytest.approx(1e-3)
    assert system["mem2"]["GiB"] == 0


def test_a_row_begins_between_two_sizes_of_its_unit() -> None:
    """A MB is 1e6 B: 1.000 to 1.002 MB go at 1 GB/s, 1.030 to 1.032 MB at 4."""
    slow = [items("relu", 125000 + k, 8 * (125000 + k) / 1e9) for k in (0, 125, 250)]
    fast = [items("relu", 128750 + k, 8 * (128750 + k) / 4e9) for k in (0, 125, 250)]
    result = export(asking(with_layers([*slow, *fast, linear(100, 100, 1e-3)])))
    (start, top), (end, low) = read(result)["mem1"]["MB_efficiency"]
    assert 1.002 < start < 1.030 and end == 0
    assert [top, low] == pytest.approx([1.0, 0.25])
    assert told(result, "mem1").worst_error < 1e-9


def test_copies_where_no_pass_only_moves_bytes() -> None:
    pack = copying(1e-9)
    layers = [items("softmax", n, n * 1e-7) for n in (100, 1000, 10**4)]
    system = read(
        export(asking(with_layers([*layers, linear(100, 100, 1e-3)], tensor_loops=[pack])))
    )
    assert system["mem1"]["GBps"] == pytest.approx(2.0)  # 1 B read and written in 1 ns
    assert system["vector"]["float32"]["tflops"] == pytest.approx(5e-5)  # 5 operations in 100 ns


def test_one_latency_and_bandwidth_come_back() -> None:
    a, beta = 3e-5, 2e-10
    fits = [law("allreduce", 4, a, 2 * 3 / 4 * beta), law("p2p", 2, a, beta)]
    (network,) = read(export(asking(with_layers(NOISY, collectives=fits))))["networks"]
    assert network["size"] == 4
    assert network["bandwidth"] == pytest.approx(1e-9 / beta, rel=1e-6)
    assert network["latency"] == pytest.approx(a, rel=1e-6)


def ranks_of(exported: Exported, part: str) -> set[tuple[int, ...]]:
    return {c.ranks for c in exported.collapses if c.into.endswith(part)}


RACKED = with_layers(
    NOISY,
    nodes=12,
    nodes_per_rack=4,
    collectives=[
        law("p2p", 2, a, 1e-10, level)
        for a, level in ((2e-6, "node"), (6e-6, "rack"), (2e-5, "system"))
    ],
)


def test_networks_are_levels(mixed: Exported) -> None:
    assert [network["size"] for network in read(mixed)["networks"]] == [4, 16]
    wide = export(asking(MIXED, nodes=12, ranks=(4, 48)))
    assert [network["size"] for network in read(wide)["networks"]] == [4, 48]
    assert ranks_of(wide, "networks[1]") == {(2,), (48,)}


def test_messages_between_racks_are_the_slowest() -> None:
    racks = export(asking(RACKED))
    networks = read(racks)["networks"]
    assert [network["size"] for network in networks] == [4, 16, 48]
    assert [network["latency"] for network in networks] == pytest.approx([2e-6, 6e-6, 2e-5])
    parted = export(asking(RACKED, nodes=11))
    networks = read(parted)["networks"]
    assert [network["size"] for network in networks] == [4, 44]
    assert [network["latency"] for network in networks] == pytest.approx([2e-6, 2e-5])
    assert any("11 nodes do not fill whole racks of 4" in note for note in parted.notes)
    assert not any("whole racks" in note for note in racks.notes)


def test_nodes_of_one_rack_are_a_rack() -> None:
    one = export(asking(RACKED, nodes=3))
    assert {c.what for c in one.collapses if "networks" in c.into} == {"p2p (node)", "p2p (rack)"}


def test_a_network_that_nobody_measured_is_refused() -> None:
    """Review 8, point 2: networks[1] was a copy of networks[0]."""
    for asked in ({"nodes": 4}, {"ranks": (4, 16)}):
        request = asking(with_layers(NOISY), **asked)
        with pytest.raises(MissingParameter, match=r"between 4 nodes.*calib calibrate.*--nodes 1"):
            export(request)
    assert len(read(export(asking(with_layers(NOISY))))["networks"]) == 1


def test_a_size_alone_or_no_price_of_bytes() -> None:
    """Review 8, point 3: no bandwidth of times that do not tell it."""
    with pytest.raises(InputError, match="--bytes"):
        export(
            asking(
                with_layers(NOISY, collectives=[law("p2p", 2, 1e-6, 1e-9)]), nbytes=(2**16, 2**16)
            )
        )
    bound = export(asking(with_layers(NOISY, collectives=[law("p2p", 2, 1e-6, 0.0)])))
    assert any("no time of networks[0] depends on its bytes" in note for note in bound.notes)
    assert not any(
        "depends on its bytes" in note for note in export(asking(with_layers(NOISY))).notes
    )


def test_sizes_are_held_by_operation() -> None:
    """Review 8, point 7."""
    wide = law("p2p", 2, 3e-6, 1e-10)
    wide = wide.model_copy(
        update={"points": [wide.points[0].model_copy(update={"nbytes": 8}), *wide.points]}
    )
    held = export(
        asking(with_layers(NOISY, collectives=[law("allreduce", 4, 1e-5, 1e-9), wide]))
    ).holds_for
    assert "p2p of 8 B to 16 MiB on 2 ranks (node)" in held
    assert "allreduce of 64 B to 16 MiB on 4 ranks (node)" in held
    far = export(asking(with_layers(NOISY), nbytes=(2**10, 2**30))).holds_for
    assert far[-1] == (
        "allreduce of 1 KiB to 1 GiB on 4 ranks (node) (extrapolated: measured to 16 MiB, from 64 B, on "
        "4 ranks)"
    )


# fw_flops of an act_size of 1 in Calculon's layers.py: ElementWise, DropOut, SoftMax, LayerNorm
@pytest.mark.parametrize(
    ("kind", "operations"),
    [("relu", 1), ("add", 1), ("dropout", 1), ("softmax", 5), ("layer_norm", 9), ("batch_norm", 9)],
)
def test_operations_of_an_item(kind: str, operations: int) -> None:
    """1000 items a µs; mem1 is fast, by copies or by the pass itself."""
    pack = copying(1e-15)
    system = read(
        export(
            asking(
                with_layers([items(kind, 1000, 1e-6), linear(100, 100, 1e-3)], tensor_loops=[pack])
            )
        )
    )
    assert system["vector"]["float32"]["tflops"] == pytest.approx(operations * 1e-3)


def test_what_is_refused() -> None:
    assert "conv or linear" in refusal(export, with_layers([]))
    assert "relu" in refusal(export, with_layers([linear(10, 10, 1e-6)]))
    assert "device's memory" in refusal(export, with_layers(NOISY, device_memory_bytes=0))
    assert "allreduce" in refusal(
        export, with_layers(NOISY, collectives=[law("broadcast", 4, 1e-6, 1e-9)])
    )
    double = [
        row.model_copy(update={"key": row.key.replace("float32", "float64")}) for row in NOISY
    ]
    assert "float8" in refusal(export, with_layers(double))


def test_what_is_said(mixed: Exported) -> None:
    said = " ".join(mixed.notes)
    assert "mem2 was not measured" in said and "processor_usage was not measured" in said
    assert any("backward" in words for words in mixed.lost)
    extra = [
        *NOISY,
        timed(
            LayerShape(
                kind="max_pool",
                input_shapes=((1, 8, 8),),
                output_shape=(1, 4, 4),
                attributes={"kernel": (2, 2)},
            ),
            1,
            1e-5,
        ),
    ]
    lost = export(asking(with_layers(extra))).lost
    assert "times of max_pool layers" in lost and f"backward times of layers ({len(extra)})" in lost
    assert "laws of layers that were not measured" in lost
    assert "corrections for running in place" in lost
    assert "2 times of layers with another number of ranks at work than 4" in mixed.lost
    assert not any("p2p" in words or "pieces" in words for words in lost)


def test_what_is_not_in_the_parameters_is_not_lost() -> None:
    """Review 8, points 9 and 18."""
    result = export(asking(with_layers(NOISY, **NO_MORE)))
    assert result.lost == (f"backward times of layers ({len(NOISY)})",)
    broadcast = [*with_layers([]).collectives, law("broadcast", 4, 1e-6, 1e-9)]
    assert "times of broadcast" in export(asking(with_layers(NOISY, collectives=broadcast))).lost


def test_copies_on_another_device_say_nothing_of_mem1() -> None:
    pack = copying(1e-9, device="cuda")
    layers = [items("softmax", n, n * 1e-7) for n in (100, 1000, 10**4)]
    parameters = with_layers([*layers, linear(100, 100, 1e-3)], tensor_loops=[pack])
    assert "memory's rate" in refusal(export, parameters)
    result = export(asking(parameters.model_copy(update={"device_kind": "cuda"})))
    assert any("pack" in collapse.what for collapse in result.collapses)


def test_the_layers_of_one_execution() -> None:
    """Those of float32 by default, and of none other; the file says which. Bytes are the execution's."""
    rates = {"float32": 8e9, "bfloat16": 4e9, "float64": 1e9}
    layers = [
        one.model_copy(update={"key": one.key.replace("float32", name)})
        for name, rate in rates.items()
        for one in [linear(64, 64, 1e-3), *passes(rate)]
    ]
    none = {"work": [], "tensor_loops": [], "composition": [], "memory": []}
    several = with_layers(layers, **none)
    for asked, rate, says in (("", 8e9, "float32"), ("bfloat16", 2e9, "bfloat16")):
        request = understood(calculon, asking(several, execution=asked))
        made = export(request)
        assert read(made)["mem1"]["GBps"] == pytest.approx(rate / 1e9)
        assert any(f"are of {says}, one of several" in note for note in notes(request, made))
    alone = understood(calculon, asking(with_layers([linear(64, 64, 1e-3), *passes()])))
    assert not any("one of several" in note for note in notes(alone, export(alone)))
    with pytest.raises(InputError, match=r"they hold: float32, bfloat16, float64"):
        understood(calculon, asking(several, execution="tf32"))


def test_tables_of_all_numbers_keep_executions_apart() -> None:
    laws = [loop(execution=name) for name in ("float32", "bfloat16")]
    request = asking(of(law("allreduce", 4, 1e-6, 1e-9), tensor_loops=laws))
    rows = list(csv.DictReader(io.StringIO(csv_table.export(request).files[""])))
    loops = [row["execution"] for row in rows if row["section"] == "tensor_loops"]
    assert loops.count("float32") == loops.count("bfloat16") > 0
    tree = json.loads(numbers_json.export(request).files[""])["tensor_loops"]
    [several] = tree.values()
    assert sum("bfloat16" in name for name in several) == 1 < len(several)
