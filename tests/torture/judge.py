"""One input, run through main() in this process, and what is wrong with how it ended."""

from __future__ import annotations

import json
import re
import resource
import shutil
import signal
import warnings
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from subprocess import CompletedProcess
from types import FrameType
from typing import NoReturn

from tests.calib.inside import calib
from tests.torture.readers import Input, drawn, laid_out

SECONDS = 20  # of one input, of processor time: the machine may be busy
MEMORY = 3 << 30  # more than the process has when it begins
ERROR = "calib: error: "


class Hang(BaseException):
    """No end in SECONDS."""


def bounded() -> None:
    """Limit this process: memory, and the time of an input."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = now + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))

    def hang(number: int, frame: FrameType | None) -> NoReturn:
        raise Hang

    signal.signal(signal.SIGVTALRM, hang)


def state(directory: Path) -> dict[str, str]:
    """The files below a directory, by what they hold."""
    return {
        str(path.relative_to(directory)): sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file()
    }


def judged(one: Input, seeds: Path, directory: Path) -> str:
    """Run it in `directory`, which is made for it; what is wrong, in words, or ""."""
    shutil.rmtree(directory, ignore_errors=True)
    laid_out(one, seeds, directory)
    before = state(directory)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            done = calib(directory, *one.line)
    except Hang:
        return f"no end in {SECONDS} s"
    except Exception as error:  # what main() lets through is a traceback
        import traceback

        return "".join(traceback.format_exception(error))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return ended(one, done) or changed(one, before, state(directory), done.returncode)


def ended(one: Input, done: CompletedProcess[str]) -> str:
    """What is wrong with the exit code or with what was printed."""
    lines = done.stderr.splitlines()
    errors = [line for line in lines if line.startswith(ERROR)]
    if done.returncode not in (0, 2, *one.reader.exits):
        return f"exit code {done.returncode}: {done.stderr}"
    if "Traceback" in done.stderr or re.search(r"\w+Warning: ", done.stderr):
        return f"stderr: {done.stderr}"
    whole = one.reader.exits and done.stdout  # a verb that judges says it on stdout
    if done.returncode == 2 and (len(errors) != 1 or lines[-1] != errors[0]) and not whole:
        return f"not one line: {done.stderr}"
    if any(len(line) > 4000 for line in errors):
        return f"a line of {max(map(len, errors))} characters"
    if "--json" in one.line and done.stdout:
        try:
            json.loads(done.stdout, parse_constant=_no_number)
        except ValueError as error:
            return f"stdout is no JSON: {error}: {done.stdout[:300]}"
    return ""


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def changed(one: Input, before: dict[str, str], after: dict[str, str], code: int) -> str:
    """What is wrong with the files: nothing is overwritten, and only a run that ends well writes."""
    may = one.reader.writes
    for name in sorted(before):
        if after.get(name) != before[name] and not any(fnmatch(name, of) for of in may):
            return f"{name} was {'changed' if name in after else 'removed'}"
    new = sorted(
        set(after) - set(before) - {name for name in after if any(fnmatch(name, of) for of in may)}
    )
    if code == 2 and new:
        return f"ended with 2 and left {', '.join(new)}"
    return ""


def bounded_worker() -> None:
    """What a worker does before its first input: import what verbs import, then set the limits."""
    import pyarrow.parquet
    import scipy.optimize
    import sklearn.base

    assert pyarrow.parquet and scipy.optimize and sklearn.base
    bounded()


def task(seed: str, numbers: range, home: Path) -> list[tuple[int, str, str]]:
    """(number, command line, what is wrong) of those that failed; their directories are kept."""
    found = []
    for number in numbers:
        directory = home / f"at-{number}"
        one = drawn(seed, number, home / "seeds")
        why = judged(one, home / "seeds", directory)
        if why:
            directory.rename(home / f"kept-{number}")
            found.append((number, " ".join(one.line), why))
        shutil.rmtree(directory, ignore_errors=True)
    return found
