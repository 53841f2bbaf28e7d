"""Which machine it is, and what its GPU counts under load."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import metadata
from typing import Any

import torch

from benchmarks.gpu.steps import Found, Identity, Missing, Row, Setting
from benchmarks.gpu.timing import own_device
from calib.foundation.statistics import median
from calib.foundation.words import bytes_words
from calib.microbench.communicators.mpi import MpiCommunicator
from calib.microbench.communicators.nccl import missing as missing_nccl
from calib.microbench.devices.cuda import CudaDevice
from calib.microbench.machine.boards import state_of
from calib.microbench.machine.loaded import loaded_versions
from calib.microbench.machine.telemetry import marks, mean_power_w
from calib.microbench.probe import probe_host

LOAD_S = 10.0
LOOKS = 20  # at the counters, spread over the load
PRODUCT, PRODUCT_SMALL = 8192, 256
OTHERS = ("triton", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12")


def machine(setting: Setting) -> Iterator[Found]:
    """GPU, driver, versions as loaded, and how the board is set up."""
    device = own_device(MpiCommunicator())
    torch.nn.functional.conv2d(  # loads cuDNN
        torch.ones(1, 1, 4, 4, device=device.tensors), torch.ones(1, 1, 2, 2, device=device.tensors)
    )
    nccl = missing_nccl()  # loads NCCL
    yield Identity(identity(device))
    for name, value in state_of(device.identity.uuid).items():
        yield Row(name.replace("_", " "), str(value))
    if nccl:
        yield Missing("nccl4py", nccl)


def identity(device: CudaDevice) -> dict[str, str]:
    """What numbers are of: a word each, the same on the same machine."""
    host = probe_host()
    uuid = device.identity.uuid
    boards = [board for board in host.devices if board.uuid.endswith(uuid)]
    found = {"gpu": device.identity.name, "uuid": uuid}
    for board in boards:
        found |= {"memory": bytes_words(board.memory_bytes), "driver": board.driver}
    found |= {"kernel": host.kernel, **host.versions, "torch": torch.__version__}
    for package in OTHERS:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    loaded = {f"{name} (loaded)": version for name, version in loaded_versions().items()}
    return found | {"torch for CUDA": str(torch.version.cuda)} | loaded


def counters(setting: Setting) -> Iterator[Found]:
    """Energy, clocks and what held them back, while the GPU multiplies in bfloat16."""
    device = own_device(MpiCommunicator())
    n, wanted_s = (PRODUCT_SMALL, 0.005) if setting.small else (PRODUCT, LOAD_S)
    a, b = (torch.randn(n, n, device=device.tensors, dtype=torch.bfloat16) for _ in range(2))
    call = partial(torch.mm, a, b, out=torch.empty_like(a))
    call()
    once_s = seconds_of(device, call, 5)
    number = max(1, round(wanted_s / LOOKS / once_s))
    before = device.telemetry([os.getpid()])
    busy_s, looks = 0.0, []
    for _ in range(LOOKS):
        start = device.now()
        for _ in range(number):
            call()
        looks.append(device.telemetry([os.getpid()]))  # while it works
        busy_s += device.seconds(start, device.now())
    after = device.telemetry([os.getpid()])
    done = LOOKS * number
    yield Row("load", busy_s, "s", f"{done} products of {n} in bfloat16")
    yield Row("rate", done * 2.0 * n**3 / busy_s, "FLOP/s")
    if not before:
        yield Missing("all counters", "NVML does not answer for this GPU")
        return
    yield from counted(before, after, looks, busy_s)


def seconds_of(device: CudaDevice, call: Any, number: int) -> float:
    """Of one of so many calls in a row."""
    start = device.now()
    for _ in range(number):
        call()
    return device.seconds(start, device.now()) / number


def counted(
    before: Mapping[str, Any], after: Mapping[str, Any], looks: list[Any], busy_s: float
) -> Iterator[Found]:
    """What grew over the load, and what was seen in it."""
    if "energy_j" in before:
        joules = after["energy_j"] - before["energy_j"]
        yield Row("energy, by its counter", joules, "J")
        yield Row("energy over the time of the load", joules / busy_s, "W")
        power = mean_power_w(before, after)
        if power is not None:
            yield Row("mean power of the case (mean_power_w)", power, "W")
    else:
        yield Missing("energy", "the board does not count it")
    for key, scale, unit in (
        ("power_w", 1.0, "W"),
        ("power_limit_w", 1.0, "W"),
        ("sm_clock_mhz", 1e6, "Hz"),
        ("sm_clock_max_mhz", 1e6, "Hz"),
        ("memory_clock_mhz", 1e6, "Hz"),
        ("temperature_c", 1.0, "degrees C"),
    ):
        seen = [look[key] * scale for look in looks if key in look]
        if seen:
            name = key.rpartition("_")[0].replace("_", " ")
            spread = f"{min(seen) / scale:g} to {max(seen) / scale:g} in {len(seen)} looks"
            yield Row(f"{name}, median under load", median(seen), unit, spread)
    held = after.get("held_back_s", {})
    if not held:
        yield Missing("what held the clocks back", "the driver does not count it")
    for word, seconds in sorted(held.items()):
        grown = seconds - before["held_back_s"][word]
        yield Row(f"held back: {word}", grown, "s", "by its counter")
    reasons = sorted({word for look in looks for word in look.get("event_reasons", ())})
    yield Row("reasons seen under load", ", ".join(reasons) or "none")
    yield Row("a case would be marked", ", ".join(marks(before, after)) or "not at all")
