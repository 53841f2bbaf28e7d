"""Rendezvous of torch.distributed: a TCP store (IPv4) that rank 0 serves.

Host names often resolve to a loopback address, and hosts have interfaces that lead nowhere (those of
containers are the same on all of them). So each rank tries rank 0's addresses one after another and
asks whoever answers for a token. What it was reached from is the address to bind for gloo.
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from torch import distributed

from calib.microbench.agreement import agree
from calib.microbench.control import Control
from calib.microbench.machine.placement import machine_id

_TCPStore: Any = distributed.TCPStore  # type: ignore[attr-defined]  # no declared export

LOOPBACK = "127.0.0.1"
CONNECT_S = 3.0  # for each address: one that leads nowhere often does not say so
STORE_TIMEOUT = timedelta(seconds=60)
TOKEN_KEY = "calib"


@dataclass(frozen=True)
class Meeting:
    """The store, and this host's address that the other ranks can reach."""

    store: Any  # torch.distributed.Store
    address: str


def network_id() -> str:
    """What processes share that share their loopback interface: a machine, and a namespace on it."""
    namespace = Path("/proc/self/ns/net")
    return f"{machine_id()} {namespace.stat().st_ino if namespace.exists() else 0}"


def own_addresses() -> list[str]:
    """This host's IPv4 addresses by which others may reach it, the one of its name first."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up and address.family == socket.AF_INET
    ]
    outward = [address for address in found if not address.startswith("127.")]
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = ""
    return sorted(outward, key=lambda address: address != named)


def meet(control: Control) -> Meeting:
    """Start the store on rank 0 and connect the others; collective.

    Raises MachineError on all ranks where one of them reaches no address of rank 0.
    """
    token = secrets.token_hex(8)
    port, store = 0, None
    if control.rank == 0:
        store = _TCPStore(
            LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=STORE_TIMEOUT
        )
        store.set(TOKEN_KEY, token)
        port = store.port
    first = [port, token, network_id(), socket.gethostname(), own_addresses()]
    port, token, network, host, addresses = control.broadcast_object(first)
    here = network == network_id()
    address = ""  # this rank's own
    if store is None:
        for candidate in [LOOPBACK] if here else addresses:
            store, address = _connect(candidate, port, token)
            if store is not None:
                break
    tried = ", ".join(addresses) or "no address"
    agree(control, "" if store else f"cannot reach port {port} of rank 0 on {host} ({tried})")
    assert store is not None
    return Meeting(store, _reachable(control, here, address))


def _connect(address: str, port: int, token: str) -> tuple[Any, str]:
    """The store, if it is the right one, and the address that this host has towards it."""
    try:
        with socket.create_connection((address, port), CONNECT_S) as probe:
            own = str(probe.getsockname()[0])
        store = _TCPStore(
            address,
            port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=CONNECT_S),
        )
        if store.get(TOKEN_KEY).decode() != token:
            return None, ""
        store.set_timeout(STORE_TIMEOUT)
    except (OSError, RuntimeError):  # torch's own errors are RuntimeErrors
        return None, ""
    return store, own


def _reachable(control: Control, here: bool, own: str) -> str:
    """This host's address for the others: the loopback where all ranks share it; collective.

    Ranks beside rank 0 (`here`) connected by the loopback; the others need rank 0's outward one.
    """
    everyone = control.allgather_object([here, own])
    if all(beside for beside, _ in everyone):
        return LOOPBACK
    if not here:
        return own
    outsider = next(address for beside, address in everyone if not beside)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((outsider, 9))  # of a datagram socket: sends nothing
        return str(probe.getsockname()[0])


def gloo_interface() -> str:
    """The interface that the user wants gloo to take; nothing if it is left to us."""
    return os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
