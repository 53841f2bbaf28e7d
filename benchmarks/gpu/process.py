"""A step in a process of its own: what that says is a line each, and it ends by a limit.

python -m benchmarks.gpu.process STEP FOLDER [rehearse]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from time import monotonic

from benchmarks.gpu.results import Result
from benchmarks.gpu.steps import STEPS, Identity, Missing, Row, Setting, Step
from calib.foundation.errors import CalibError, MachineError
from calib.foundation.words import seconds_words
from calib.microbench.records.manifest import utc_now

PREFIX = "gpu-step "
KINDS = {kind.__name__: kind for kind in (Row, Missing, Identity)}
STOP_S = 10.0  # for a process that was told to stop, and its ranks


def run_step(step: Step, setting: Setting, limit_s: float) -> tuple[Result, dict[str, str]]:
    """Run a step for so many seconds at most; what it found, and the machine where it says so."""
    result, begun = Result(step.name, utc_now()), monotonic()
    line = [sys.executable, "-m", "benchmarks.gpu.process", step.name, str(setting.folder)]
    line += ["rehearse"] if setting.small else []
    process = subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    late = False
    try:
        text, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        late = True
        text = stop(process)
    except BaseException:
        stop(process)
        raise
    finally:
        kill(process)
    result.seconds = monotonic() - begun
    machine, ended = take(text, result)
    if late:
        result.ended = f"out of time: it took over {seconds_words(limit_s)}"
    elif not ended:
        result.ended = f"failed: its process ended with status {process.returncode}"
    return result, machine


def take(text: str, result: Result) -> tuple[dict[str, str], bool]:
    """Put what a step's process said into its result; the machine, and whether it came to its end."""
    machine, ended = {}, False
    for line in text.splitlines():
        if not line.startswith(PREFIX):
            continue
        kind, content = json.loads(line.removeprefix(PREFIX))
        if kind == "ended":
            ended, result.ended = True, content
            continue
        found = KINDS[kind](*content)
        if isinstance(found, Row):
            result.rows.append(found)
        elif isinstance(found, Missing):
            result.missing.append(found)
        else:
            machine = found.of
    return machine, ended


def stop(process: subprocess.Popen[str]) -> str:
    """Ask a process and its children to stop; all that it said, after STOP_S without more words."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=STOP_S)[0]
    except subprocess.TimeoutExpired:
        kill(process)
        return process.communicate()[0]


def kill(process: subprocess.Popen[str]) -> None:
    """End what is left of a process and its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def say(kind: str, content: object) -> None:
    """One line for the parent, at once: what was found before a crash is kept."""
    print(f"{PREFIX}{json.dumps([kind, content])}", flush=True)


def main(words: list[str]) -> int:
    """The step's own process."""
    name, folder, *more = words
    ended = "done"
    try:
        for found in STEPS[name].load()(Setting(Path(folder), bool(more))):
            say(type(found).__name__, found)
    except MachineError as error:
        ended = f"not run: {error}"
    except CalibError as error:
        ended = f"failed: {error}"
    except Exception as error:  # whatever torch raises loses this step alone
        traceback.print_exc()
        lines = str(error).strip().splitlines() or ["no reason given"]
        ended = f"failed: {type(error).__name__}: {lines[0]}"
    say("ended", ended)
    sys.stderr.flush()
    os._exit(0)  # after an error of CUDA, what Python does at its end may hang


if __name__ == "__main__":
    main(sys.argv[1:])
