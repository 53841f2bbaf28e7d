"""What a GPU has counted since its driver was loaded: seconds that its clocks were held back, energy.

A look at a GPU before and after a case finds it idle and cool; the growth of its counters tells what
happened between the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

# numbers of fields, which count nanoseconds: NVML_FI_DEV_PERF_POLICY_POWER and _THERMAL
FIELDS = {"software_power_cap": 74, "thermal": 75}
# NVML_FI_DEV_CLOCKS_EVENT_REASON_{SW_THERM,HW_THERM,HW_POWER_BRAKE}_SLOWDOWN: consecutive numbers
SLOWDOWNS = ("software_thermal", "hardware_thermal", "hardware_power_brake")
# the same where a driver has no fields: NVML_PERF_POLICY_POWER and _THERMAL
POLICIES = {"software_power_cap": 0, "thermal": 1}
# where a field's number stands, by its NVML_VALUE_TYPE
VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def slowdown_fields(driver: str) -> dict[str, int]:
    """The numbers of the fields of SLOWDOWNS in a driver's own NVML.

    They were moved: the constants of pynvml are those of another driver, where the same number may
    be a field of power smoothing. From pynvml of 12.570.86 (none), 12.575.51 and 13.580.65 (251 on),
    13.580.82 to 13.615.71 (269 on); between the two nothing is known.
    """
    version = tuple(int(part) for part in re.findall(r"\d+", driver)[:2])
    if (575, 0) <= version <= (580, 65):
        first = 251
    elif version >= (580, 82):
        first = 269
    else:
        return {}
    return {word: first + at for at, word in enumerate(SLOWDOWNS)}


def held_back_s(nvml: Any, board: Any) -> dict[str, float]:
    """Seconds so far that each reason held the clocks of a board back, of those that it counts.

    "thermal" is heat in the words of older drivers, beside the reasons of SLOWDOWNS.
    """
    found: dict[str, float] = {}
    with suppress(nvml.NVMLError, AttributeError):
        driver = nvml.nvmlSystemGetDriverVersion()
        numbers = {**FIELDS, **slowdown_fields(driver)}
        found = field_values(nvml, board, numbers)
    for word, policy in POLICIES.items():
        if word not in found:
            with suppress(nvml.NVMLError, AttributeError):
                found[word] = nvml.nvmlDeviceGetViolationStatus(board, policy).violationTime
    return {word: nanoseconds / 1e9 for word, nanoseconds in found.items()}


def field_values(nvml: Any, board: Any, numbers: Mapping[str, int]) -> dict[str, float]:
    """The values of NVML's fields by name, of those that the board has. Raises NVMLError."""
    values = nvml.nvmlDeviceGetFieldValues(board, list(numbers.values()))
    return {
        name: getattr(field.value, VALUES[field.valueType])
        for name, field in zip(numbers, values, strict=True)
        if field.nvmlReturn == nvml.NVML_SUCCESS
    }


def energy_j(nvml: Any, board: Any) -> float:
    """Joules so far. Raises NVMLError on boards before Volta."""
    return float(nvml.nvmlDeviceGetTotalEnergyConsumption(board)) / 1e3
