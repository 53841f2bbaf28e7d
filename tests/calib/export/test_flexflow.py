"""flexflow: the machine file, read as EnhancedMachineModel reads it, and what messages take in it."""

from __future__ import annotations

from typing import Any

import pytest

from calib.export.flexflow import export
from calib.export.target import Exported, Request, Source
from fitting.parameters import Parameters
from fitting.parameters_collective import CollectiveFit, CollectivePoint
from foundation.errors import InputError, MissingParameter
from microbench.cluster import Cluster, Device, Host, Level
from tests.helpers.filled import collective, filled, near

SOURCE = Source("parameters.json", "sha256:" + "cd" * 32)
SIZES = [1 << k for k in range(3, 27)]
COUNTS = ("num_nodes", "num_sockets_per_node", "num_cpus_per_socket", "num_gpus_per_socket",
          "nic_persocket", "nic_distribution")  # fmt: skip
LINKS = ("membus", "upi", "nic", "pci", "nvlink")
MEMORIES = ("sys_mem", "gpu_fb_mem")
WORDS = {"membus": ("membus",), "upi": ("upi", "upi"), "nic": ("nic", "nic"), "nvlink": ("nvlink",),
         "pci_to_host": ("pci",), "pci_to_dev": ("pci",)}  # fmt: skip


class Machine:
    """machine_model.cc: every key must be there, as the members have no value before."""

    def __init__(self, text: str) -> None:
        self.numbers: dict[str, float] = {}
        self.paths: dict[str, list[str]] = {}
        for line in text.splitlines():
            words = line.split()
            if line.startswith("#") or len(words) < 3:
                continue
            assert words[1] == "=" and words[0] not in self.numbers
            if words[0] in COUNTS:
                self.numbers[words[0]] = int(words[2])
            elif words[0].endswith(("_latency", "_bandwidth")):
                self.numbers[words[0]] = float(words[2])
                assert self.numbers[words[0]] == 0 or 1e-37 < self.numbers[words[0]] < 1e38  # stof
            else:
                self.paths[words[0]] = [link for word in words[2:] for link in WORDS.get(word, ())]
        assert set(self.numbers) == {*COUNTS} | {
            f"{link}_{what}" for link in LINKS for what in ("latency", "bandwidth")
        }
        assert set(self.paths) == {
            f"{where}_{one}_to_{other}" for where in ("intra_socket", "inter_socket", "inter_node")
            for one in MEMORIES for other in MEMORIES
        }  # fmt: skip
        # get_gpu looks a GPU up among as many as there are CPUs
        assert self.numbers["num_cpus_per_socket"] >= self.numbers["num_gpus_per_socket"]

    def seconds(self, path: str, nbytes: int) -> float:
        """Link after link, latency ms + m / (GB/s x 2^20); a nic and a upi are two halves."""
        total = 0.0
        for link in self.paths[path]:
            half = 2 if link in ("nic", "upi") else 1
            per_ms = self.numbers[f"{link}_bandwidth"] * half * 1024 * 1024
            total += self.numbers[f"{link}_latency"] / half + nbytes / per_ms
        return total / 1e3


INSIDE = "intra_socket_gpu_fb_mem_to_gpu_fb_mem"
BETWEEN = "inter_node_gpu_fb_mem_to_gpu_fb_mem"


def law(
    operation: str, start: float, per_byte: float, ranks: int = 2, **more: Any
) -> CollectiveFit:
    """start + per_byte m in seconds, at every size of SIZES."""
    points = [CollectivePoint(nbytes=m, seconds=near(start + per_byte * m), n=9) for m in SIZES]
    return collective(ranks, operation=operation, points=points, pieces=[], **more)


def outside(operation: str, start: float, per_byte: float, ranks: int = 2) -> CollectiveFit:
    return law(operation, start, per_byte, ranks, level="system", nodes=2)


def parameters(*fits: CollectiveFit, **more: Any) -> Parameters:
    content: dict[str, Any] = {"structural": [], "contention": [], "ranks_per_node": 4}
    return filled(collectives=list(fits), **(content | more))


def exported(made: Parameters, **asked: Any) -> Exported:
    return export(Request(made, SOURCE, **asked))


def machine(made: Parameters, **asked: Any) -> Machine:
    return Machine(exported(made, **asked).files[""])


TWO = parameters(law("p2p", 3e-6, 1e-10), outside("p2p", 12e-6, 8e-10), nodes=2, links_per_node=2)


def test_a_message_takes_what_was_measured() -> None:
    """Hockney's law goes through unchanged: both formats are alpha + m beta."""
    found = machine(TWO)
    for m in (8, 4096, 1 << 26):
        assert found.seconds(INSIDE, m) == pytest.approx(3e-6 + 1e-10 * m, rel=1e-9)
        assert found.seconds(BETWEEN, m) == pytest.approx(12e-6 + 8e-10 * m, rel=1e-9)
    # 1e-10 s/B is 1e10 B/s, and FlexFlow's GB/s is 2^20 B/ms
    assert found.numbers["nvlink_bandwidth"] == pytest.approx(1e10 / 1000 / 2**20)
    assert found.numbers["nvlink_latency"] == pytest.approx(3e-3)
    assert {k: found.numbers[k] for k in COUNTS} == {
        "num_nodes": 2, "num_sockets_per_node": 1, "num_cpus_per_socket": 4,
        "num_gpus_per_socket": 4, "nic_persocket": 2, "nic_distribution": 0,
    }  # fmt: skip


def test_what_was_not_measured_costs_nothing_and_is_said() -> None:
    result = exported(TWO)
    found = Machine(result.files[""])
    others = set(found.paths) - {INSIDE, BETWEEN, INSIDE.replace("intra", "inter")}
    assert all(found.seconds(path, 1 << 30) == 0 for path in others)
    assert all(found.numbers[f"{x}_latency"] == 0 for x in ("membus", "upi", "pci"))
    assert any("membus, upi and pci are in no path" in note for note in result.notes)
    assert len(result.collapses) == 2 and max(c.worst_error for c in result.collapses) < 1e-9


def test_one_node_has_no_nic_and_one_rank_no_nvlink() -> None:
    one = machine(parameters(law("p2p", 3e-6, 1e-10), nodes=1))
    assert one.paths[BETWEEN] == [] and one.paths[INSIDE] == ["nvlink"]
    single = machine(parameters(outside("p2p", 3e-6, 1e-10), nodes=8, ranks_per_node=1))
    assert single.paths[BETWEEN] == ["nic", "nic"] and single.paths[INSIDE] == []
    assert single.numbers["num_nodes"] == 8


def test_without_p2p_a_message_is_a_step_of_the_allreduce() -> None:
    """A ring of p: 2 (p-1) messages of m / p. 4 ranks in a node, 8 on two; 16 of them say less."""
    steps, fits = {4: 6, 8: 14, 16: 30}, []
    for p, alpha, beta in ((4, 3e-6, 1e-10), (8, 12e-6, 8e-10), (16, 99e-6, 9e-9)):
        make = law if p == 4 else outside
        fits.append(make("allreduce", steps[p] * alpha, steps[p] / p * beta, p))
    result = exported(parameters(*fits, nodes=4))
    found = Machine(result.files[""])
    for m in (8, 1 << 20):
        assert found.seconds(INSIDE, m) == pytest.approx(3e-6 + 1e-10 * m, rel=1e-6)
        assert found.seconds(BETWEEN, m) == pytest.approx(12e-6 + 8e-10 * m, rel=1e-6)
    assert [c.ranks for c in result.collapses] == [(4,), (8,)]
    assert all("as a ring" in c.what for c in result.collapses)


def test_bends_are_lost_by_as_much_as_is_said() -> None:
    """The errors that are stated, again from the file itself; no other line has a smaller mean."""
    made = parameters(collective(2, operation="p2p"), ranks_per_node=2)
    result = exported(made, nbytes=(64, 1 << 20))
    found, sizes = Machine(result.files[""]), [1 << k for k in range(6, 21)]
    fit = made.collectives[0]
    known = {point.nbytes: point.seconds.value for point in fit.points}
    truth = [known.get(m, fit.seconds(m)) for m in sizes]
    errors = [abs(found.seconds(INSIDE, m) / t - 1) for m, t in zip(sizes, truth, strict=True)]
    (collapse,) = result.collapses
    assert collapse.nbytes == (64, 1 << 20) and collapse.points == len(sizes)
    assert (
        collapse.mean_error == pytest.approx(sum(errors) / len(errors), abs=1e-9)
        and max(errors) > 0.01
    )
    assert collapse.worst_error == pytest.approx(max(errors), abs=1e-9)
    start, per_byte = found.seconds(INSIDE, 0), found.seconds(INSIDE, 1) - found.seconds(INSIDE, 0)
    for a in (0.9, 1.0, 1.1):
        for b in (0.9, 1.0, 1.1):
            other = [
                abs((a * start + b * per_byte * m) / t - 1)
                for m, t in zip(sizes, truth, strict=True)
            ]
            assert sum(other) >= sum(errors) * (1 - 1e-6)


def test_a_bandwidth_is_never_endless() -> None:
    found = machine(parameters(law("p2p", 3e-6, 0.0), ranks_per_node=2))
    assert 0 < found.numbers["nvlink_bandwidth"] < 1e30
    # at most a thousandth of the time of the largest message
    assert found.seconds(INSIDE, SIZES[-1]) == pytest.approx(3e-6, rel=2e-3)


def test_the_cores_are_those_of_the_cluster() -> None:
    host = Host(
        name="a", kernel="k", devices=[Device(kind="cpu", name="x", count=48, memory_bytes=1)]
    )
    cluster = Cluster(name="c", hosts=[host], levels=[Level(name="node", members=4, link="x")])
    assert machine(TWO, cluster=cluster).numbers["num_cpus_per_socket"] == 48


def test_comments_say_whose_numbers_they_are() -> None:
    text = exported(TWO).files[""]
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert "cd" * 32 in comments[1] and text.isascii()
    assert not any(len(line.split()) > 2 and line.split()[1] == "=" for line in comments)


@pytest.mark.parametrize(
    ("made", "asked", "error", "text"),
    [
        (parameters(), {}, MissingParameter, "inside a node"),
        (parameters(law("p2p", 1e-6, 1e-9)), {"nodes": 2}, MissingParameter, "between 2 nodes"),
        (parameters(law("broadcast", 1e-6, 1e-9)), {}, MissingParameter, "p2p or allreduce"),
        (parameters(law("p2p", 1e-6, 1e-9), ranks_per_node=1), {}, InputError, "one rank"),
        (parameters(law("p2p", 1e-6, 1e-9), ranks_per_node=10**9), {"nodes": 9}, InputError, "32 bits"),
    ],
)  # fmt: skip
def test_refusals(
    made: Parameters, asked: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        exported(made, **asked)
