"""A cluster inside one machine: hosts are network namespaces, links are veth pairs at a known rate.

    h0 -- eth0 ===== h0 --+
    h1 -- eth0 ===== h1 --+-- bridge   (namespace `switch`, where mpiexec runs)
    ...

Both ends of every link send through a token bucket (tbf), so each direction has exactly its rate.
The hosts share kernel, files and cores; each has its own network and its own host name.

What makes the rate the only thing that is measured, found by trying (2 cores, Linux 6.18, MPICH 5):
- The bucket is larger than a whole TCP super-packet (64 KiB of payload and its headers). With less,
  tbf cuts them up: the two ends then work on every 1514 B, which costs more CPU than there is from
  400 Mbit/s on (a ring took twice its time), and an ACK for every second of them takes 2.2% of the
  other direction. It also lets a link catch up after a rank had no core for a few ms.
- The queue behind it holds what TCP has under way, so nothing is dropped.
- Reno. BBR, which some systems choose, paces below the rate: +5 to +50% on a ring.
- The ranks go before other processes of the machine (real-time priority, where that is allowed):
  they stand for hosts of their own. Niceness is not enough: at a load of 15 a ring of small chunks
  took 1.4 to 6.8 times its time with it, and 1.00 to 1.16 times with this.
- Ranks that wait leave the core (MPIR_CVAR_CH4_PROGRESS_THROTTLE): four spin on two cores otherwise.
So made, of 35 betas (five rounds, at a load of 13 to 15 by other work) 34 were within 0.7% of the
true ones and one was 8% off; phi was within 0.3%. Without, single betas were off by half.
The first bucket full passes at the speed of memory, so a beta is a slope between large messages.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

from calib.microbench.machine.launchers import find_mpiexec

PREFIX = "calib-test-"
HOSTS = ("h0", "h1", "h2", "h3")
BURST_SECONDS = 20e-3  # of a core lost that a link makes good
SMALLEST_BURST = 128 << 10  # bytes: a super-packet is 68 KiB with its headers
QUEUE_SECONDS = 0.3
# Ethernet frame of 1514 B: 14 Ethernet, 20 IP, 32 TCP with time stamps, 1448 of payload
PAYLOAD = 1448 / 1514

LAUNCH_SCRIPT = """\
#!/bin/sh
# what mpiexec and mpirun call to start their proxies: HOST COMMAND, a line for a shell as ssh takes
host=$1
shift
first="{first}"
exec $first ip netns exec {prefix}$host unshare --uts --mount sh -c "{before}hostname $host; $*"
"""
# ranks before all other processes of the machine, where that is allowed
FIRST = "$(chrt --rr 1 true 2> /dev/null && echo chrt --rr 1)"
# or each host on a core of its own, which it shares with whatever else runs there
PINNED = "taskset -c $(cat {folder}/core-$host)"
# each host a machine of its own to what the ranks ask (microbench/machine/placement.py)
OWN_BOOT = "mount --bind {folder}/boot-$host /proc/sys/kernel/random/boot_id; "

ENVIRONMENT = {
    "UCX_TLS": "tcp,self",  # shared memory would join what the namespaces part
    "UCX_NET_DEVICES": "eth0",
    "MPIR_CVAR_NOLOCAL": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "16",
    # The ring's volume is what a slope is divided by, at every size: left alone, MPICH changes the
    # algorithm with it. Its reduce-scatter + allgather has the same volume, but sends halves of the
    # buffer: of 8 MiB they are longer than a socket takes at once, which took 1.9 times as long.
    "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring",
    "MPIR_CVAR_ALLGATHER_INTRA_ALGORITHM": "ring",
}


class CannotBuild(Exception):
    """This machine does not allow such a cluster; the text says why."""


def true_beta(megabits: float) -> float:
    """Seconds per byte of payload that a link of so many Mbit/s takes: TCP's share of the frames."""
    return 8 / (megabits * 1e6 * PAYLOAD)


def _command(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotBuild(f"`{shlex.join(words)}` says: {done.stderr.strip()}")
    return done.stdout


class NamespaceCluster:
    """Hosts on one switch, by default four. A context manager; raises CannotBuild where it cannot be.

    Their ranks share the cores of one machine and find that out, unless the hosts are `apart`. A host
    that is `pinned` has one core alone, as far as they go.
    """

    def __init__(
        self,
        folder: Path,
        apart: bool = False,
        hosts: Sequence[str] | None = None,
        pinned: bool = False,
    ) -> None:
        self._before, self._first = "", FIRST
        self.hosts = tuple(HOSTS if hosts is None else hosts)
        # two clusters of one process, each with its own hosts
        own = "" if hosts is None else f"{uuid.uuid4().hex[:4]}-"
        if pinned:
            self._first = PINNED.format(folder=folder)
            cores = sorted(os.sched_getaffinity(0))
            for number, host in enumerate(self.hosts):
                (folder / f"core-{host}").write_text(f"{cores[number % len(cores)]}\n")
        if apart:
            self._before = OWN_BOOT.format(folder=folder)
            for host in self.hosts:
                (folder / f"boot-{host}").write_text(f"{uuid.uuid4()}\n")
        self.prefix = f"{PREFIX}{os.getpid()}-{own}"
        self.switch = self.prefix + "switch"
        self.script = folder / "launch.sh"

    def __enter__(self) -> NamespaceCluster:
        if os.geteuid() != 0:
            raise CannotBuild("network namespaces need root")
        missing = [name for name in ("ip", "tc", "unshare", "hostname") if not shutil.which(name)]
        if missing or find_mpiexec() is None:
            raise CannotBuild(f"no {', '.join(missing) or 'mpiexec'} on this machine")
        remove_abandoned()
        try:
            self._build()
            self.set_rate(100)  # a kernel without tbf is found here
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        self.script.write_text(
            LAUNCH_SCRIPT.format(prefix=self.prefix, before=self._before, first=self._first)
        )
        self.script.chmod(0o755)
        _command("ip", "netns", "add", self.switch)
        _command("ip", "-n", self.switch, "link", "set", "lo", "up")
        _command("ip", "-n", self.switch, "link", "add", "name", "bridge", "type", "bridge")
        _command("ip", "-n", self.switch, "addr", "add", "10.0.0.254/24", "dev", "bridge")
        _command("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for host in self.hosts:
            name = self.prefix + host
            _command("ip", "netns", "add", name)
            _command(
                "ip",
                "-n",
                self.switch,
                "link",
                "add",
                "name",
                host,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                name,
            )
            _command("ip", "-n", self.switch, "link", "set", host, "master", "bridge", "up")
            _command("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            _command("ip", "-n", name, "link", "set", "eth0", "up")
            _command("ip", "-n", name, "link", "set", "lo", "up")
            choose = "echo reno > /proc/sys/net/ipv4/tcp_congestion_control"
            _command("ip", "netns", "exec", name, "sh", "-c", choose)

    def address(self, host: str) -> str:
        """The IP address of a host."""
        return f"10.0.0.{self.hosts.index(host) + 1}"

    def set_rate(self, megabits: float, hosts: Sequence[str] | None = None) -> None:
        """Limit both directions of hosts' links to so many 1e6 bits of Ethernet frames a second."""
        burst = max(SMALLEST_BURST, round(megabits * 1e6 / 8 * BURST_SECONDS))
        limit = [
            "root",
            "tbf",
            "rate",
            f"{megabits}mbit",
            "burst",
            str(burst),
            "latency",
            f"{QUEUE_SECONDS * 1e3:.0f}ms",
        ]
        for host in self.hosts if hosts is None else hosts:
            _command("tc", "-n", self.switch, "qdisc", "replace", "dev", host, *limit)
            _command("tc", "-n", self.prefix + host, "qdisc", "replace", "dev", "eth0", *limit)

    def launcher(self, hosts: Sequence[str]) -> str:
        """A launcher template (microbench/machine/launchers.py) that starts rank r on hosts[r]."""
        return (
            shlex.join(
                [
                    "ip",
                    "netns",
                    "exec",
                    self.switch,
                    str(find_mpiexec()),
                    "-iface",
                    "bridge",
                    "-launcher",
                    "rsh",
                    "-launcher-exec",
                    str(self.script),
                    "-hosts",
                    ",".join(hosts),
                    "-n",
                ]
            )
            + " {n}"
        )

    def __exit__(self, *_: object) -> None:
        for name in (*(self.prefix + host for host in self.hosts), self.switch):
            remove(name)


def remove(name: str) -> None:
    """Delete a namespace with its end of every link, if it is there; its processes first."""
    for process in subprocess.run(
        ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
    ).stdout.split():
        try:
            os.kill(int(process), 9)
        except ProcessLookupError:
            continue
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def remove_abandoned() -> None:
    """Delete what test processes that were killed have left."""
    for line in _command("ip", "netns", "list").splitlines():
        name = line.split()[0]
        owner = name.removeprefix(PREFIX).partition("-")[0]
        if name.startswith(PREFIX) and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            remove(name)
