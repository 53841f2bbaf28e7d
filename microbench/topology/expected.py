"""What devices and links may be expected to do, from data sheets and from how they are connected.

Each interval is what sound devices were measured to reach of what their sheet states, so a value below
it is worth a look, also where there is no second device to compare with. Of devices, links and fabrics
that are not known, nothing is said.

References
----------
[1] S. Bekman, Machine Learning Engineering, "Maximum Achievable Matmul FLOPS comparison table":
    bfloat16 at the best of many sizes: A100 SXM 87%, PCIe 81%, H100 80%, GH200 84%.
[2] OpenXLA, matmul_interpolator_data.h: products of 2,048 to 4,096 on Hopper, bfloat16 60 to 81%, TF32
    56 to 78%. Markidis et al., NVIDIA Tensor Core Programmability, Performance & Precision (IPDPSW
    2018): V100, float16 66%.
[3] github.com/NVIDIA/nccl/issues/1264, HGX H100: a copy inside a GPU moves 77% of its memory's
    bandwidth, one between two GPUs 84% of their NVLinks'. github.com/NVIDIA/cccl/pull/9881: 88%.
[4] NVIDIA's blog and README on nvbandwidth: 55.6 GB/s to the device over PCIe 5.0 x16 (88%), 12.4 over
    3.0 x16 (78%). Neugebauer et al., Understanding PCIe performance (SIGCOMM 2018): headers leave 91%.
[5] nccl-tests of 8 GPUs, 1 GiB and more (shared/data: sb_a100_1n8g, xx_h100_1n8g): A100 72 to 78% of
    NVLink, H100 74 to 82%, and its allreduce 107%, because NVSwitch adds up by itself.
[6] shared/data: osu_bw and osu_mbw_mr over EDR 96 to 99%, NCCL over 200 Gb/s RoCE 92%.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from calib.foundation.words import counted, number
from calib.microbench.records.cluster import Cluster, Device, Host
from calib.microbench.records.expected import Expected, Per
from calib.microbench.records.hardware import NetworkCard, link_bandwidth
from calib.microbench.topology.found import NodeLinks
from calib.microbench.topology.sheets import NVLINK_BYTES_PER_S, Sheet, sheet_of

DEVICE_MEMORY = "device memory"
HOST_TO_DEVICE, DEVICE_TO_HOST = "host to device copy", "device to host copy"
BETWEEN_GPUS = "between two GPUs"
WITHIN_NODE = "bus bandwidth within a node"
BETWEEN_NODES = "network between nodes"
NODE_NETWORK = "network of a node"


class Share(NamedTuple):
    """Of what is stated: the least that a sound device reaches, what is usual, and the most."""

    low: float
    usual: float
    high: float


TENSOR_CORES = Share(0.55, 0.75, 0.90)  # [1], [2]
TF32 = Share(0.50, 0.70, 0.90)  # [2]
# without tensor cores a convention: the sheet has the boost clock, which few hold at work
FLOAT32 = Share(0.60, 0.85, 1.00)
MEMORY = Share(0.72, 0.87, 0.96)  # [3]
PCIE = Share(0.70, 0.85, 0.92)  # [4]
NVLINK = Share(0.70, 0.80, 0.95)  # [5]
NVLINK_SHARP = Share(0.70, 0.80, 1.12)  # [5], Hopper and later behind NVSwitch
NVLINK_PAIR = Share(0.70, 0.83, 0.93)  # [3], [5]
RDMA = Share(0.85, 0.95, 0.995)  # [6]
# by hand or by the file of a network: the fabric is not known
DECLARED = Share(0.75, 0.92, 0.995)
# frames of 1,500 B carry 94% (RFC 793, 894), of 9,000 B 99%; beyond 10 Gb/s a core is the limit
TCP, FAST_TCP = Share(0.75, 0.92, 0.99), Share(0.15, 0.5, 0.99)
SLOW_ETHERNET = 1.25e9  # B/s
LAST_CUBE_MESH = 2  # generation of NVLink
SWITCH_ADDS_FROM = 4  # generation whose switches reduce
MESH = 4  # GPUs of a board without a switch, each linked to each of the others
# FLOP of a float32 product per core and cycle: two units that multiply and add 8 or 16 items
FLOP_PER_CYCLE = {"avx2": 32, "avx512": 64}
# processors with one unit of 512 bits, or whose clock falls with it, reach half; a virtual machine
# states the nominal clock and runs faster
CORES = Share(0.35, 0.75, 1.5)


def expected_of(cluster: Cluster) -> list[Expected]:
    """What devices and links of a cluster may be expected to do; each kind of them once, with its hosts.

    Copies and exchanges are of large messages, FLOP/s of large matrix products, memory counts what is
    read and written. A pair of nodes is expected to move what one link of its slower one does (`network
    between nodes`), all their links together `network of a node`.
    """
    found: dict[Expected, dict[str, None]] = {}
    for host in cluster.hosts:
        for of in (*_of_devices(host), *_within_node(host), *_between_nodes(host, cluster)):
            found.setdefault(of, {})[host.name] = None
    return [of.model_copy(update={"hosts": tuple(hosts)}) for of, hosts in found.items()]


def _of_devices(host: Host) -> Iterator[Expected]:
    for device in host.devices:
        if device.kind == "cpu":
            yield from _of_cores(device)
        elif sheet := sheet_of(device.name):
            yield from _of_gpu(device, sheet)


def _of_cores(device: Device) -> Iterator[Expected]:
    per_cycle = FLOP_PER_CYCLE.get(device.simd)
    if per_cycle and device.clock_hz:
        words = f"{number(device.clock_hz / 1e9)} GHz x {per_cycle} FLOP of two {device.simd} units"
        yield _expected(
            "matrix product float32", device.name, "core", device.clock_hz * per_cycle, CORES, words
        )


def _of_gpu(device: Device, sheet: Sheet) -> Iterator[Expected]:
    shares = {"float32": FLOAT32, "tf32": TF32}
    for kind, flops_per_s in sheet.flops_per_s.items():
        words = f"data sheet of {sheet.model}: {number(flops_per_s / 1e12)} TFLOP/s"
        share = shares.get(kind, TENSOR_CORES)
        yield _expected(f"matrix product {kind}", device.name, "device", flops_per_s, share, words)
    words = f"data sheet of {sheet.model}: {number(sheet.memory_bytes_per_s / 1e9)} GB/s"
    yield _expected(DEVICE_MEMORY, device.name, "device", sheet.memory_bytes_per_s, MEMORY, words)
    link = device.pci
    stated = link_bandwidth(link.generation_max, link.width_max) if link else None
    if link and stated and sheet.copies_over_pcie:
        words = f"PCIe {link.generation_max}.0 x{link.width_max}: {number(stated / 1e9)} GB/s"
        for name in (HOST_TO_DEVICE, DEVICE_TO_HOST):
            yield _expected(name, device.name, "device", stated, PCIE, words)


def _within_node(host: Host) -> Iterator[Expected]:
    """Of GPUs that are all alike and linked: each to each, or to a switch."""
    gpus = [device for device in host.devices if device.kind == "cuda"]
    if len(gpus) < 2 or len({gpu.name for gpu in gpus}) > 1:
        return
    generation, links = _nvlink(gpus[0])
    if generation not in NVLINK_BYTES_PER_S or not links:
        return
    of, switched = gpus[0].name, gpus[0].nvswitch
    if switched is None and len(gpus) > MESH and generation > LAST_CUBE_MESH:
        switched = True  # of a log: so many need one
    if not switched and (len(gpus) != MESH or _board_of(gpus[0]) is None):
        return  # a cube mesh, bridges, or a part of a board: links may lead to GPUs that are not here
    each = links if switched else links // (MESH - 1)
    if switched is not None:
        yield _linked(BETWEEN_GPUS, of, "device", generation, each, NVLINK_PAIR)
    adds = switched and generation >= SWITCH_ADDS_FROM
    yield _linked(WITHIN_NODE, of, "node", generation, links, NVLINK_SHARP if adds else NVLINK)


def _linked(name: str, of: str, per: Per, generation: int, links: int, share: Share) -> Expected:
    """What so many NVLinks of a GPU carry."""
    stated = links * NVLINK_BYTES_PER_S[generation]
    words = f"NVLink {generation}.0, {counted(links, 'link')}: {number(stated / 1e9)} GB/s"
    return _expected(name, of, per, stated, share, words)


def _nvlink(gpu: Device) -> tuple[int, int]:
    """Generation and number of a GPU's NVLinks: of its board, or those that are active; 0 unknown."""
    if board := _board_of(gpu):
        return board
    version, links = max(gpu.nvlinks.items(), default=("", 0))
    generation = version.partition(".")[0]
    return (int(generation), links) if generation.isdecimal() and len(generation) < 3 else (0, 0)


def _board_of(gpu: Device) -> tuple[int, int] | None:
    """Generation and number of NVLinks where the data sheet has them for every board."""
    sheet = sheet_of(gpu.name)
    return sheet.nvlink if sheet else None


def _between_nodes(host: Host, cluster: Cluster) -> Iterator[Expected]:
    """Of the fastest network cards of a host: one, and all together; else of what is declared.

    What runs slower than it could, or than others of its model, is expected to be sound.
    """
    up = [card for card in host.network_cards if card.bandwidth]
    links = NodeLinks.of([card.bandwidth for card in up])
    outer = cluster.levels[-1]
    if outer.name == "node":
        return
    if not links.bandwidth:
        if outer.bandwidth:
            words = f"declared of level {outer.name}: {outer.links_words}"
            yield _expected(BETWEEN_NODES, outer.link, "link", outer.bandwidth, DECLARED, words)
        return
    card = max(up, key=lambda card: card.bandwidth or 0.0)
    rate = max(other.bandwidth or 0.0 for other in _like(card, cluster))
    share = RDMA if card.fabric else TCP if rate <= SLOW_ETHERNET else FAST_TCP
    words = f"{card.name} at {number(rate * 8 / 1e9)} Gb/s ({card.fabric or 'Ethernet, TCP'})"
    generation, width = (card.pci.generation_max, card.pci.width_max) if card.pci else (None, None)
    carried = link_bandwidth(generation, width)
    if carried and PCIE.high * carried < rate:
        words += f", behind PCIe {generation}.0 x{width}: {number(carried / 1e9)} GB/s"
        rate, share = carried, PCIE
    yield _expected(BETWEEN_NODES, card.name, "link", rate, share, words)
    if links.count > 1:
        words = f"{counted(links.count, 'card')} like {words}"
        yield _expected(NODE_NETWORK, card.name, "node", links.count * rate, share, words)


def _like(card: NetworkCard, cluster: Cluster) -> list[NetworkCard]:
    """The cards of a cluster of this one's model, itself among them."""
    every = [other for host in cluster.hosts for other in host.network_cards if card.model]
    return [card, *(x for x in every if (x.model, x.fabric) == (card.model, card.fabric))]


def _expected(name: str, of: str, per: Per, stated: float, share: Share, words: str) -> Expected:
    reach = f"{share.low:.0%} to {share.high:.0%}"
    return Expected(
        name=name,
        of=of,
        per=per,
        unit="FLOP/s" if name.startswith("matrix product") else "B/s",
        low=share.low * stated,
        value=share.usual * stated,
        high=share.high * stated,
        source=f"{words}, of which sound ones reach {reach}",
    )
