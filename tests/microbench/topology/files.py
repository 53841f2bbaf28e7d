"""Small topology files as the tools write them."""

from __future__ import annotations

from collections.abc import Sequence

# hwloc 2.9, `lstopo --of xml`, as of a host with a GPU and two ports of InfiniBand, one of them down;
# the attributes are those of tests/hwloc/xml of hwloc and of public outputs
HWLOC_2 = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x3" gp_index="1">
    <info name="HostName" value="n1.example.org"/>
    <info name="hwlocVersion" value="2.9.0"/>
    <object type="NUMANode" os_index="0" cpuset="0x3" gp_index="9" local_memory="405117157376"/>
    <object type="Bridge" gp_index="713" bridge_type="0-1" depth="0" bridge_pci="0000:[2b-3b]">
      <object type="PCIDev" gp_index="20" pci_busid="0000:34:00.0" \
pci_type="0302 [10de:20b0] [10de:134f] a1" pci_link_speed="31.507692">
        <object type="OSDev" gp_index="21" name="nvml0" osdev_type="5" subtype="NVML"/>
      </object>
      <object type="PCIDev" gp_index="30" pci_busid="0000:3b:00.0" \
pci_type="0207 [15b3:101b] [15b3:0007] 00" pci_link_speed="31.507692">
        <object type="OSDev" gp_index="31" name="ib0" osdev_type="2">
          <info name="Address" value="20:00:10:86:fe:80:00:00"/>
        </object>
        <object type="OSDev" gp_index="32" name="mlx5_0" osdev_type="3">
          <info name="NodeGUID" value="b859:9f03:00d4:27e2"/>
          <info name="Port1State" value="4"/>
          <info name="Port1LID" value="0x15"/>
          <info name="Port1LMC" value="0"/>
        </object>
      </object>
      <object type="PCIDev" gp_index="40" pci_busid="0000:3b:00.1" \
pci_type="0207 [15b3:101b] [15b3:0007] 00" pci_link_speed="31.507692">
        <object type="OSDev" gp_index="41" name="mlx5_1" osdev_type="3">
          <info name="Port1State" value="1"/>
        </object>
      </object>
      <object type="PCIDev" gp_index="50" pci_busid="0000:01:00.0" \
pci_type="0200 [14e4:165f] [1028:08ff] 00" pci_link_speed="1.000000">
        <object type="OSDev" gp_index="51" name="eno1" osdev_type="2"/>
      </object>
      <object type="PCIDev" gp_index="60" pci_busid="0000:02:00.0" \
pci_type="0300 [102b:0536] [1028:08ff] 04" pci_link_speed="0.000000"/>
    </object>
  </object>
</topology>
"""

# hwloc 3: types are bits (nvml 4 + 8, network 16, openfabrics 32), as in its tests, nvidiaDGX2.xml
HWLOC_3 = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="3.0">
  <object type="Machine" os_index="0" cpuset="0x03000003" gp_index="1" id="obj1">
    <info name="DMIProductName" value="NVIDIA DGX-2H"/>
    <object type="PCIDev" gp_index="581" pci_busid="0000:34:00.0" \
pci_type="0302 [10de:1db8] [10de:131d] a1 00" pci_link_speed="15.753846">
      <object type="OSDev" gp_index="802" name="nvml0" osdev_type="12"/>
    </object>
    <object type="PCIDev" gp_index="600" pci_busid="0000:35:00.0" \
pci_type="0207 [15b3:1017] [15b3:0006] 00 00" pci_link_speed="15.753846">
      <object type="OSDev" gp_index="810" name="mlx5_0" osdev_type="32"/>
    </object>
  </object>
</topology>
"""

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""

# four V100, two of them at each of two cards; as `nvidia-smi topo -m` of driver 560 prints it
NVIDIA = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV2\tNV2\tNV2\tPIX\tSYS\t0-23\t0\t\tN/A\n"
    "GPU1\tNV2\t X \tNV2\tNV2\tPIX\tSYS\t0-23\t0\t\tN/A\n"
    "GPU2\tNV2\tNV2\t X \tNV2\tSYS\tPIX\t24-47\t1\t\tN/A\n"
    "GPU3\tNV2\tNV2\tNV2\t X \tSYS\tPIX\t24-47\t1\t\tN/A\n"
    "NIC0\tPIX\tPIX\tSYS\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tSYS\tPIX\tPIX\tSYS\t X \t\t\t\t\n"
) + LEGEND


def matrix(ways: Sequence[str], cards: int = 0) -> str:
    """A matrix of nvidia-smi with a row for each of the first GPUs."""
    names = [f"GPU{n}" for n in range(len(ways))] + [f"NIC{n}" for n in range(cards)]
    rows = [f"GPU{n}\t" + "\t".join(way.split()) for n, way in enumerate(ways)]
    return "\t" + "\t".join(names) + "\tCPU Affinity\n" + "\n".join(rows) + "\n"


def switch(number: int) -> str:
    """The name of a switch."""
    return f"S-{0xEC0D9A0300000000 + number:016x}"


def adapter(number: int) -> str:
    """The name of an adapter."""
    return f"H-{0x506B4B0300000000 + number:016x}"


def subnet(leaves: Sequence[Sequence[str]], up: int, rate: str = "4xHDR", spine: int = 99) -> str:
    """ibnetdiscover's output: leaf switches with one adapter of each host, `up` cables to a spine.

    The lines are as rdma-core's manual page and public outputs have them.
    """
    text = "#\n# Topology file: generated on Mon Dec 18 12:34:08 2023\n#\n"
    text += "# Initiated from node 506b4b030043f9e2 port 506b4b030043f9e2\n"
    spine_ports, cas, number = [], [], 0
    for leaf, hosts in enumerate(leaves):
        guid = switch(leaf).removeprefix("S-")
        text += f"\nvendid=0x2c9\ndevid=0xd2f0\nsysimgguid=0x{guid}\nswitchguid=0x{guid}({guid})\n"
        about = f'"MF0;leaf{leaf}:MQM8700/U1"'
        text += f'Switch\t40 "{switch(leaf)}"\t\t# {about} enhanced port 0 lid 13 lmc 0\n'
        for port, host in enumerate(hosts, 1):
            number += 1
            name, guid = adapter(number), adapter(number).removeprefix("H-")
            text += f'[{port}]\t"{name}"[1]({guid}) \t\t# "{host} HCA-1" lid {number} {rate}\n'
            cas.append(
                f"vendid=0x15b3\ndevid=0x101b\nsysimgguid=0x{guid}\ncaguid=0x{guid}\n"
                f'Ca\t1 "{name}"\t\t# "{host} HCA-1"\n'
                f'[1]({guid}) \t"{switch(leaf)}"[{port}]\t\t# lid {number} lmc 0 '
                f"{about} lid 13 {rate}\n"
            )
        for cable in range(up):
            here, there = 20 + cable, 1 + leaf * up + cable
            text += (
                f'[{here}]\t"{switch(spine)}"[{there}]\t\t# "MF0;spine:MQM8700/U1" lid 1 {rate}\n'
            )
            spine_ports.append(
                f'[{there}]\t"{switch(leaf)}"[{here}]\t\t# "MF0;leaf{leaf}:MQM8700/U1" lid 13 {rate}\n'
            )
    if up:
        about = '"MF0;spine:MQM8700/U1"'
        text += f'\nSwitch\t40 "{switch(spine)}"\t\t# {about} enhanced port 0 lid 1 lmc 0\n'
        text += "".join(spine_ports)
    return text + "\n" + "\n".join(cas)


# two hosts of 2 GPUs and 2 cards on each of two leaves, with one link from each leaf to each spine
INFRAGRAPH = {
    "name": "closfabric",
    "devices": [
        {
            "name": "server",
            "components": [
                {"name": "xpu", "count": 2, "choice": "xpu"},
                {"name": "nic", "count": 2, "choice": "nic"},
            ],
            "links": [{"name": "pcie"}],
            "edges": [
                {
                    "ep1": {"component": "xpu"},
                    "ep2": {"component": "nic"},
                    "scheme": "one2one",
                    "link": "pcie",
                }
            ],
        },
        {
            "name": "switch",
            "components": [
                {"name": "asic", "count": 1, "choice": "cpu"},
                {"name": "port", "count": 16, "choice": "port"},
            ],
            "links": [],
            "edges": [],
        },
    ],
    "instances": [
        {"name": "host", "device": "server", "count": 4},
        {"name": "leafsw", "device": "switch", "count": 2},
        {"name": "spinesw", "device": "switch", "count": 2},
    ],
    "links": [
        {
            "name": "leaf-link",
            "physical": {
                "bandwidth": {"choice": "gigabits_per_second", "gigabits_per_second": 100}
            },
        },
        {
            "name": "spine-link",
            "physical": {
                "bandwidth": {"choice": "gigabytes_per_second", "gigabytes_per_second": 12.5}
            },
        },
    ],
    "edges": [
        *(
            {
                "ep1": {"instance": f"host[{2 * leaf}:{2 * leaf + 2}]", "component": "nic[0:2]"},
                "ep2": {"instance": f"leafsw[{leaf}]", "component": "port[0:4]"},
                "scheme": "one2one",
                "link": "leaf-link",
            }
            for leaf in range(2)
        ),
        {
            "ep1": {"instance": "leafsw", "component": "port[8]"},
            "ep2": {"instance": "spinesw", "component": "port[0]"},
            "scheme": "many2many",
            "link": "spine-link",
        },
    ],
}
