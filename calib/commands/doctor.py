"""Say what this machine can do and what will spoil its numbers.

Examples: calib doctor --ranks 4; calib doctor --watch 60s
"""

from __future__ import annotations

from typing import Annotated

import typer

from calib.driver.defaults import default_device, default_ranks, require_device
from calib.microbench.disturbers import looks_in, watch
from calib.microbench.doctor import examine, require_measurable
from calib.microbench.records.looks import Look
from calib.microbench.records.watched import Watched
from calib.options import DeviceOption, Json, Launcher, Output, RanksOption
from calib.planning.request import seconds_of
from calib.terminal.doctor import show, show_watched
from calib.terminal.printing import check_targets, print_json, save
from calib.terminal.progress import Bar


def command(
    watch_for: Annotated[
        str | None,
        typer.Option(
            "--watch",
            metavar="TIME",
            help="Instead, watch this host for so long, as 60s, and say what disturbs it and who: "
            "processes, hypervisor, network, GPUs, a changing speed. Ctrl-C ends it early.",
        ),
    ] = None,
    ranks: RanksOption = None,
    device: DeviceOption = None,
    launcher: Launcher = "local",
    output: Output = None,
    as_json: Json = False,
) -> None:
    if watch_for is not None:
        seconds = seconds_of(watch_for, "--watch")
        check_targets({"-o": output})
        watched = _watch(seconds)
        content = watched.model_dump()
        save(output, content)
        if as_json:
            print_json(content)
        else:
            show_watched(watched)
        return
    device = device or default_device()
    findings = examine(ranks or default_ranks(launcher, device), launcher, device)
    listed = [finding.model_dump() for finding in findings]
    save(output, listed)
    if as_json:
        print_json(listed)
    else:
        show(findings)
    require_device(device, launcher)
    require_measurable(findings)


def _watch(seconds: float) -> Watched:
    with Bar("watch", looks_in(seconds)) as bar:

        def told(done: int, left_s: float, look: Look) -> None:
            bar.update(done, ", ".join(look.disturbed) or "quiet", left_s)

        return watch(seconds, told)
