"""Say what this machine can do and what will spoil its numbers.

Example: calib doctor --ranks 4
"""

from __future__ import annotations

from calib.driver.defaults import default_device, default_ranks, require_device
from calib.microbench.doctor import examine, require_measurable
from calib.options import DeviceOption, Json, Launcher, Output, RanksOption
from calib.terminal.doctor import show
from calib.terminal.printing import print_json, save


def command(
    ranks: RanksOption = None,
    device: DeviceOption = None,
    launcher: Launcher = "local",
    output: Output = None,
    as_json: Json = False,
) -> None:
    device = device or default_device()
    findings = examine(ranks or default_ranks(launcher, device), launcher, device)
    content = [finding.model_dump() for finding in findings]
    save(output, content)
    if as_json:
        print_json(content)
    else:
        show(findings)
    require_device(device, launcher)
    require_measurable(findings)
