"""Mutated files through every reader, then drivers that are killed: `make torture ARGS="--seed 7"`.

Every input must end with exit code 0, or with 2 and one line (or with a documented 1): no traceback, no
warning of Python, no hang, no file changed. What fails is kept in a directory with its seed and number,
and runs again with `python -m tests.torture --seed S --only N`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tests.torture.judge import bounded_worker, judged, task
from tests.torture.readers import drawn
from tests.torture.seeds import make

BATCH = 25  # inputs of a task
PATIENCE_S = 900  # for a task: a hang that no signal ends
EVERY_S = 5.0  # a line of progress


def main() -> int:
    """Run it; 1 where anything failed."""
    options = parsed()
    begun, failures = time.monotonic(), Failures(options.keep, options.seed)
    print(
        f"torture: seed {options.seed}, {options.inputs} inputs, {options.kills} kills", flush=True
    )
    with tempfile.TemporaryDirectory(prefix="calib-torture-") as folder:
        home = Path(folder)
        make(home / "seeds")
        if options.only is not None:
            return only(options.seed, options.only, home)
        fuzz(options, home, failures)
        if options.kills and not failures.is_full:
            kill(options, home, failures)
    took = time.monotonic() - begun
    print(
        f"torture: seed {options.seed}: {failures.done} inputs and {failures.kills} kills in "
        f"{took:.0f} s, {failures.count} failed"
        + (f", kept in {options.keep}" if failures.count else "")
    )
    return 1 if failures.count else 0


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--seed", default="1", help="of all that is drawn")
    parser.add_argument("--inputs", type=int, default=5000, help="how many; default 5000")
    parser.add_argument("--kills", type=int, default=40, help="how many; default 40")
    parser.add_argument("--workers", type=int, default=2, help="processes; default 2")
    parser.add_argument("--only", type=int, help="run the input of this number, and say all of it")
    parser.add_argument("--keep", type=Path, default=Path("torture-failures"), help="of what fails")
    return parser.parse_args()


class Failures:
    """What failed, each kept in a directory of its own; the first of each kind is printed."""

    MOST = 200

    def __init__(self, keep: Path, seed: str) -> None:
        self.keep, self.seed = keep, seed
        self.count, self.done, self.kills = 0, 0, 0
        self.known: set[str] = set()

    @property
    def is_full(self) -> bool:
        """Whether there is no use in going on."""
        return self.count >= self.MOST

    def add(self, name: str, line: str, why: str, of: Path | None) -> None:
        """Keep one."""
        self.count += 1
        to = self.keep / f"{self.seed}-{name}"
        shutil.rmtree(to, ignore_errors=True)
        if of is not None and of.exists():
            shutil.copytree(of, to, symlinks=True)
        to.mkdir(parents=True, exist_ok=True)
        again = f"python -m tests.torture --seed {self.seed} --only {name}\n"
        (to / "FAILED").write_text(f"{again}calib {line}\n{why}\n", errors="replace")
        kind = why.strip().splitlines()[-1][:100] if why.strip() else why
        if kind not in self.known:
            self.known.add(kind)
            print(f"FAILED {name}: calib {line}\n  {kind}", flush=True)


def fuzz(options: argparse.Namespace, home: Path, failures: Failures) -> None:
    """All inputs, over the workers; one that takes its process along is found and left out."""
    begun = told = time.monotonic()
    todo = [range(k, min(k + BATCH, options.inputs)) for k in range(0, options.inputs, BATCH)]
    while todo and not failures.is_full:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.workers, context, initializer=bounded_worker) as pool:
            running = [
                (numbers, pool.submit(task, options.seed, numbers, home)) for numbers in todo
            ]
            todo = []
            for numbers, future in running:
                try:
                    found = future.result(timeout=PATIENCE_S)
                except (BrokenProcessPool, TimeoutError):
                    stop(pool)
                    without_killer(numbers, home, options, failures)
                    todo = [of for of, other in running if not other.done() or other.exception()]
                    todo = todo[1:]
                    break
                failures.done += len(numbers)
                for number, line, why in found:
                    failures.add(str(number), line, why, home / f"kept-{number}")
                if time.monotonic() - told > EVERY_S:
                    told = time.monotonic()
                    say(failures.done, options.inputs, begun, failures)


def say(done: int, of: int, begun: float, failures: Failures) -> None:
    """A line of progress."""
    left = (time.monotonic() - begun) / done * (of - done)
    print(f"{done}/{of} inputs, {failures.count} failed, {left:.0f} s left", flush=True)


def stop(pool: ProcessPoolExecutor) -> None:
    """End the processes of a pool, which do not answer."""
    for process in list((pool._processes or {}).values()):
        process.kill()


def without_killer(
    numbers: range, home: Path, options: argparse.Namespace, failures: Failures
) -> None:
    """Each of a batch in a process of its own; those that end it have failed."""
    for number in numbers:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context, initializer=bounded_worker) as pool:
            try:
                found = pool.submit(task, options.seed, range(number, number + 1), home).result(90)
            except (BrokenProcessPool, TimeoutError) as error:
                stop(pool)
                found = [(number, "", f"the process ended or hung: {type(error).__name__}")]
        failures.done += 1
        for each, line, why in found:
            failures.add(str(each), line, why, home / f"kept-{each}")


def only(seed: str, number: int, home: Path) -> int:
    """One input again, in this process."""
    bounded_worker()
    one = drawn(seed, number, home / "seeds")
    why = judged(one, home / "seeds", home / "at")
    print(
        f"calib {' '.join(one.line)}\n{one.file}: {(one.content or b'')[:2000]!r}\n{why or 'fine'}"
    )
    return 1 if why else 0


def kill(options: argparse.Namespace, home: Path, failures: Failures) -> None:
    """Drivers that are killed at random moments, and go on."""
    from tests.calib.driving import killed_again_and_again

    begun, each = time.monotonic(), 8
    rounds = -(-options.kills // each)
    for number in range(rounds):
        path = home / f"kills-{number}"
        path.mkdir()
        count = min(each, options.kills - number * each)
        try:
            killed_again_and_again(path, f"{options.seed} {number}", count)
        except AssertionError as error:
            failures.add(f"kills-{number}", "measure -o run --resume", str(error) or "lost", path)
        failures.kills += count
        left = (time.monotonic() - begun) / (number + 1) * (rounds - number - 1)
        print(
            f"{failures.kills}/{options.kills} kills, {failures.count} failed, {left:.0f} s left",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
