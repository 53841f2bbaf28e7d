"""flexflow: the machine file, read as EnhancedMachineModel reads it, and what messages take in it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.calib.export.asked import NO_MORE, asking, of, refusal
from tests.helpers.filled import collective, filled, near
from tests.helpers.words import words_of

from calib.export.flexflow import export
from calib.export.target import Exported
from calib.fitting.parameters.collectives import CollectiveFit, CollectivePoint
from calib.fitting.parameters.file import Parameters
from calib.microbench.records.cluster import Cluster, Device, Host, Level

SIZES = [1 << k for k in range(3, 27)]
COUNTS = tuple(
    words_of(
        "num_nodes num_sockets_per_node num_cpus_per_socket num_gpus_per_socket nic_persocket "
        "nic_distribution"
    )
)
LINKS = ("membus", "upi", "nic", "pci", "nvlink")
MEMORIES = ("sys_mem", "gpu_fb_mem")
WORDS = {
    "membus": ("membus",),
    "upi": ("upi", "upi"),
    "nic": ("nic", "nic"),
    "nvlink": ("nvlink",),
    "pci_to_host": ("pci",),
    "pci_to_dev": ("pci",),
}


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
            f"{where}_{one}_to_{other}"
            for where in ("intra_socket", "inter_socket", "inter_node")
            for one in MEMORIES
            for other in MEMORIES
        }
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
    return law(operation, start, per_byte, ranks, level="system", nodes=max(2, ranks // 4))


def exported(made: Parameters, **asked: Any) -> Exported:
    return export(asking(made, **asked))


def machine(made: Parameters, **asked: Any) -> Machine:
    return Machine(exported(made, **asked).files[""])


TWO = of(law("p2p", 3e-6, 1e-10), outside("p2p", 12e-6, 8e-10), nodes=2, links_per_node=2)


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
        "num_nodes": 2,
        "num_sockets_per_node": 1,
        "num_cpus_per_socket": 4,
        "num_gpus_per_socket": 4,
        "nic_persocket": 2,
        "nic_distribution": 0,
    }


def test_what_was_not_measured_costs_nothing_and_is_said() -> None:
    result = exported(TWO)
    found = Machine(result.files[""])
    others = set(found.paths) - {INSIDE, BETWEEN, INSIDE.replace("intra", "inter")}
    assert all(found.seconds(path, 1 << 30) == 0 for path in others)
    assert all(found.numbers[f"{x}_latency"] == 0 for x in ("membus", "upi", "pci"))
    assert any("membus, upi and pci are in no path" in note for note in result.notes)
    assert len(result.collapses) == 2 and max(c.worst_error for c in result.collapses) < 1e-9


def test_one_node_has_no_nic_and_one_rank_no_nvlink() -> None:
    one = machine(of(law("p2p", 3e-6, 1e-10), nodes=1))
    assert one.paths[BETWEEN] == [] and one.paths[INSIDE] == ["nvlink"]
    single = machine(of(outside("p2p", 3e-6, 1e-10), nodes=8, ranks_per_node=1))
    assert single.paths[BETWEEN] == ["nic", "nic"] and single.paths[INSIDE] == []
    assert single.numbers["num_nodes"] == 8


def test_without_p2p_a_message_is_a_step_of_the_allreduce() -> None:
    """A ring of p: 2 (p-1) messages of m / p. 4 ranks in a node, 8 on two; 16 of them say less."""
    steps, fits = {4: 6, 8: 14, 16: 30}, []
    for p, alpha, beta in ((4, 3e-6, 1e-10), (8, 12e-6, 8e-10), (16, 99e-6, 9e-9)):
        make = law if p == 4 else outside
        fits.append(make("allreduce", steps[p] * alpha, steps[p] / p * beta, p))
    result = exported(of(*fits, nodes=4))
    found = Machine(result.files[""])
    for m in (8, 1 << 20):
        assert found.seconds(INSIDE, m) == pytest.approx(3e-6 + 1e-10 * m, rel=1e-6)
        assert found.seconds(BETWEEN, m) == pytest.approx(12e-6 + 8e-10 * m, rel=1e-6)
    assert [c.ranks for c in result.collapses] == [(4,), (8,)]
    assert all("as a ring" in c.what for c in result.collapses)


def test_bends_are_lost_by_as_much_as_is_said() -> None:
    """The errors that are stated, again from the file itself; no other line has a smaller mean."""
    made = of(collective(2, operation="p2p"), ranks_per_node=2)
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


def test_a_bandwidth_that_no_time_depends_on_is_a_bound() -> None:
    """Of a ring of 4, 1.5 m cross a link: a thousandth of the largest buffer's time, as of a message."""
    for fit, crossing in ((law("p2p", 3e-6, 0.0), 1.0), (law("allreduce", 6e-6, 0.0, 4), 1.5)):
        result = exported(of(fit))
        (note,) = [note for note in result.notes if "a bound, not a measurement" in note]
        per_byte = 1 / (Machine(result.files[""]).numbers["nvlink_bandwidth"] * 2**20 * 1e3)
        whole_s = fit.points[0].seconds.value
        assert (
            per_byte * crossing * SIZES[-1] == pytest.approx(1e-3 * whole_s)
            and fit.operation in note
        )
    assert not any("bound" in note for note in exported(TWO).notes)


def cluster(*cores: int) -> Cluster:
    hosts = [
        Host(
            name=f"h{n}",
            kernel="k",
            devices=[Device(kind="cpu", name="x", count=count, memory_bytes=1)],
        )
        for n, count in enumerate(cores)
    ]
    return Cluster(name="c", hosts=hosts, levels=[Level(name="node", members=4, link="x")])


@pytest.mark.parametrize(
    ("cores", "expected"), [((48,), 48), ((48, 6), 6), ((6, 48), 6), ((48, 2), 4)]
)
def test_the_cores_are_those_of_the_smallest_host(cores: tuple[int, ...], expected: int) -> None:
    """And never fewer than ranks (4), which FlexFlow looks up among them."""
    found = machine(TWO, cluster=cluster(*cores))
    assert found.numbers["num_cpus_per_socket"] == expected


# 4 nodes of 4 ranks, two to a rack
RACKS = (
    law("p2p", 3e-6, 1e-10),
    law("p2p", 12e-6, 8e-10, level="rack", nodes=2),
    outside("p2p", 40e-6, 2e-9),
)


def test_of_several_racks_a_nic_is_between_racks() -> None:
    made = of(*RACKS, nodes=4, nodes_per_rack=2)
    for nodes, start, per_byte, where, lost in (
        (0, 40e-6, 2e-9, "between racks", "between nodes of a rack"),
        (2, 12e-6, 8e-10, "between nodes", "between racks"),
    ):
        result = exported(made, nodes=nodes)
        found = Machine(result.files[""])
        for m in (8, 1 << 20):
            assert found.seconds(BETWEEN, m) == pytest.approx(start + per_byte * m, rel=1e-6)
        assert result.holds_for[1] == f"messages {where}: 8 B to 64 MiB"
        assert f"times of p2p {lost}" in result.lost
        assert len([line for line in result.lost if "times of" in line and "p2p" in line]) == 1


def test_another_level_stands_in_only_where_no_message_was_measured() -> None:
    known = of(*RACKS[:2], nodes=4, nodes_per_rack=2)
    result = exported(known)
    assert any(
        "no message between racks was measured: nic is that between nodes of a rack" in note
        for note in result.notes
    )
    assert "(extrapolated: measured 8 B to 64 MiB on 2 ranks)" in result.holds_for[1]
    # an allreduce of 16 ranks crosses racks; that of 8 does not
    rings = [
        outside("allreduce", 30 * 40e-6, 30 / 16 * 2e-9, 16),
        law("allreduce", 14 * 12e-6, 14 / 8 * 8e-10, 8, level="rack", nodes=2),
    ]
    better = exported(of(*RACKS[:2], *rings, nodes=4, nodes_per_rack=2))
    found = Machine(better.files[""])
    assert found.seconds(BETWEEN, 1 << 20) == pytest.approx(40e-6 + 2e-9 * 2**20, rel=1e-6)
    assert not any("no message between" in note for note in better.notes)
    # and on one rack the other way round
    (only,) = [
        note
        for note in exported(of(RACKS[0], RACKS[2], nodes=2, nodes_per_rack=2)).notes
        if "no message" in note
    ]
    assert only.endswith("between nodes of a rack was measured: nic is that between racks")


def test_an_allreduce_of_one_rank_a_node_is_none_of_a_nodes_ranks() -> None:
    """4 ranks of 4 nodes: 4 adjacent ones are in one node, so the nic is by the 8."""
    rings = [
        outside("allreduce", 6e-3, 1e-7, 4),
        outside("allreduce", 14 * 12e-6, 14 / 8 * 8e-10, 8),
    ]
    result = exported(of(law("p2p", 3e-6, 1e-10), *rings, nodes=4))
    assert result.collapses[1].ranks == (8,)
    found = Machine(result.files[""])
    assert found.seconds(BETWEEN, 1 << 20) == pytest.approx(12e-6 + 8e-10 * 2**20, rel=1e-6)


def test_laws_that_share_one_size_are_taken_at_all_of_theirs() -> None:
    small, large = (law("allreduce", 6e-6, 1e-10, p) for p in (2, 4))
    small.points[:], large.points[:] = small.points[:8], large.points[7:]
    (collapse,) = exported(of(small, large)).collapses
    assert collapse.nbytes == (SIZES[0], SIZES[-1])


def test_what_is_extrapolated_is_said_where_the_sizes_are() -> None:
    inside, between = exported(TWO, nbytes=(1 << 20, 1 << 28)).holds_for
    assert inside == (
        "messages inside a node: 1 MiB to 256 MiB (2 of 9 times extrapolated: measured 8 B to 64 MiB on "
        "2 ranks)"
    )
    assert between.startswith("messages between nodes: 1 MiB to 256 MiB (2 of 9")
    assert not any("extrapolated" in line for line in exported(TWO).holds_for)


def test_lost_is_what_these_parameters_have() -> None:
    assert exported(of(law("p2p", 3e-6, 1e-10), **NO_MORE)).lost == ()
    rings = [law("allreduce", 3e-6 * p, 1e-10, p) for p in (2, 4)]
    more = of(*rings, law("broadcast", 3e-6, 1e-10), **(NO_MORE | {"memory": filled().memory}))
    assert exported(more).lost == (
        "times of broadcast",
        "times of allreduce on 4 ranks",
        "laws of the peak of memory",
    )


def test_the_library_is_said() -> None:
    fits = [law("p2p", 3e-6, 1e-10, library=library) for library in ("mpi", "torch_mpi")]
    result = exported(of(*fits))
    assert result.library in ("mpi", "torch_mpi")
    assert f"# times of {result.library}" in result.files[""]


def test_comments_say_whose_numbers_they_are() -> None:
    text = exported(TWO).files[""]
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert asking(TWO).source.sha256 in comments[1] and text.isascii()
    assert any(line.startswith("# cannot hold: pieces") for line in comments)
    assert not any(len(line.split()) > 2 and line.split()[1] == "=" for line in comments)


@pytest.mark.parametrize(
    ("made", "asked", "text"),
    [
        (TWO, {"nbytes": (65536, 65536)}, "--bytes two ends"),
        (of(), {}, "inside a node"),
        (of(law("p2p", 1e-6, 1e-9)), {"nodes": 2}, "between nodes"),
        (of(law("broadcast", 1e-6, 1e-9)), {}, "p2p or allreduce"),
        (of(law("p2p", 1e-6, 1e-9), ranks_per_node=1), {}, "one rank"),
        (of(law("p2p", 1e-6, 1e-9), ranks_per_node=10**9), {"nodes": 9}, "32 bits"),
    ],
)
def test_refusals(made: Parameters, asked: dict[str, Any], text: str) -> None:
    assert text in refusal(export, made, **asked)
