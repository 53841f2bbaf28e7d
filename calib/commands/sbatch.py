"""Write a Slurm script that runs another verb on whole nodes.

Examples: calib sbatch -o job.sh --nodes 2 --ranks-per-node 4 --time 60 -- calibrate --name wolf; or of
sixteen pairs of nodes: calib sbatch --nodes 2 --array 1-16 -- calibrate --quick -o runs/pair-{task}
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from calib.app import built
from calib.foundation.errors import FileError, InputError
from calib.foundation.files import destination, write_whole
from calib.jobs import rank_words
from calib.options import MOST
from calib.terminal.printing import file_of, say

EXECUTABLE = 0o111
TASK = "{task}"  # in the words after --: the number of the array's task
TASKS = re.compile(r"(?P<first>\d+)(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?")
GOING_ON = ("calibrate", "measure")  # verbs that go on in a run directory that they were ended in
LAUNCHERS = {"pmi2": "slurm", "pmix": "slurm-pmix"}
NOTICE_S = 60  # before the time limit
LEAST_MINUTES = 5  # Slurm may give that notice a minute early

PLAIN = """\
# exec: Slurm's SIGTERM at the time limit reaches calib, which then keeps what it has
exec {line}
"""
# bash runs a trap once `wait` is interrupted, and waits again. A node that is lost fails the job before
# Slurm gives the node up, and so before it would requeue the job by itself
REQUEUED = """\
{line} &
calib=$! told= again=
lost() {{ [[ $(sinfo -h -N -n "$SLURM_JOB_NODELIST" -o %t) =~ [*]|down|fail ]]; }}
trap 'told=yes' TERM  # Slurm sends it to calib as well
may=$(( ${{SLURM_RESTART_COUNT:-0}} < {times} ))
if (( may )); then trap 'told=yes again=yes; kill -TERM "$calib" || true' USR1; fi
status=0; wait "$calib" || status=$?
if [[ $told ]]; then status=0; wait "$calib" || status=$?; fi
if (( status && may )) && {{ [[ $again ]] || lost; }}; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
"""


def command(
    words: Annotated[
        list[str],
        typer.Argument(
            help="After --: the verb to run there, with its options; {task} is the array's number."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The script.")] = Path("job.sh"),
    nodes: Annotated[int, typer.Option(min=1, max=MOST, help="Nodes.")] = 1,
    ranks_per_node: Annotated[
        int, typer.Option(min=1, max=MOST, help="Ranks on each: its cores or GPUs.")
    ] = 1,
    minutes: Annotated[
        int | None,
        typer.Option("--time", min=1, max=MOST, help="Minutes; default what the partition gives."),
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Slurm partition.")] = None,
    account: Annotated[str | None, typer.Option(help="Slurm account.")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="GPUs of each node.")
    ] = None,
    array: Annotated[
        str | None, typer.Option(help="A job for each number, as 1-8 or 1-8%2 (two at a time).")
    ] = None,
    requeue: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST,
            help="How often it goes back in the queue, to go on, when its time is over or a node lost.",
        ),
    ] = None,
    pmi: Annotated[
        Literal["pmi2", "pmix"],
        typer.Option(help="How srun starts ranks: pmi2 for the mpich wheel, pmix for Open MPI."),
    ] = "pmi2",
) -> None:
    asked = {
        "--nodes": str(nodes),
        "--ntasks-per-node": str(ranks_per_node),
        "--time": None if minutes is None else str(minutes),
        "--partition": partition,
        "--account": account,
        "--gpus-per-node": None if gpus_per_node is None else str(gpus_per_node),
        "--array": array,
    }
    verb, *arguments = words
    task = first_task(array, arguments)
    line = rank_line(verb, arguments, nodes * ranks_per_node, LAUNCHERS[pmi], task)
    if requeue is not None:
        require_going_on(verb, arguments, task, minutes)
    given = {name: value for name, value in asked.items() if value is not None}
    text = script(verb, line, given, requeue)
    write_whole(destination(file_of(output, "-o")), text)
    try:
        output.chmod(output.stat().st_mode | EXECUTABLE)
    except OSError as error:
        raise FileError(f"cannot make {output} executable: {error.strerror}") from error
    say(f"written: {output}; submit it from the directory it is to run in: sbatch {output}")


def first_task(array: str | None, arguments: Sequence[str]) -> str | None:
    """The first number of a job array; None of a single job.

    Raises InputError for numbers that sbatch would not take, and for tasks that all do the same in one
    place.
    """
    placed = any(TASK in word for word in arguments)
    if array is None:
        if placed:
            raise InputError(f"{TASK} is the number of a job array's task: give --array, as 1-8")
        return None
    found = TASKS.fullmatch(array)
    if found is None:
        raise InputError(f"--array {array!r} is no list of numbers, as 1-8, 1,3,5 or 1-8%2")
    if not placed:
        raise InputError(
            f"all tasks of --array {array} would write to one place; put {TASK} in the words after --, "
            f"as in -o runs/node-{TASK}"
        )
    return found["first"]


def require_going_on(
    verb: str, arguments: Sequence[str], task: str | None, minutes: int | None
) -> None:
    """Raise InputError unless the next job would go on where this one was ended."""
    if verb not in GOING_ON:
        raise InputError(
            f"--requeue is for {' and '.join(GOING_ON)}, which go on in a run directory"
        )
    context = built().commands[verb].make_context(verb, in_task(arguments, task))
    if context.params["output"] is None:
        # calibrate's own is named after the day and the first node
        raise InputError("--requeue needs -o RUN after --, the run directory that it goes on in")
    if minutes is not None and minutes < LEAST_MINUTES:
        raise InputError(
            "--requeue ends calib up to two minutes before the limit: "
            f"give --time {LEAST_MINUTES} or more"
        )


def in_task(arguments: Sequence[str], task: str | None) -> list[str]:
    """The words as they are in the first task of an array, which are those that can be parsed."""
    return [word.replace(TASK, task) if task is not None else word for word in arguments]


def rank_line(
    verb: str,
    arguments: Sequence[str],
    ranks: int,
    launcher: str = "slurm",
    task: str | None = None,
) -> list[str]:
    """The words that run a verb of calib on `ranks` ranks under srun.

    Raises InputError as `rank_words` does.
    """
    tried = in_task(arguments, task)
    words = rank_words(verb, arguments, launcher, ranks, command="sbatch", tried=tried)
    return [sys.executable, "-m", "calib", *words]


def script(
    verb: str, line: Sequence[str], asked: dict[str, str], requeue: int | None = None
) -> str:
    """The text of the batch script; `asked` are sbatch options.

    Whole nodes are asked for, as other jobs on them would be measured too. With `requeue` the job puts
    itself back in the queue so many times when its time is nearly over. Raises InputError for a value
    that is not one word, which an #SBATCH line cannot hold.
    """
    for name, value in asked.items():
        if not value or not value.isprintable() or any(sign in value for sign in " '\"\\#"):
            raise InputError(f"{name} {value!r} is not one plain word")
    options = [f"{name}={value}" for name, value in asked.items()]
    # append: Slurm may requeue the job of a node that it gives up, by itself
    options += [
        "--exclusive",
        "--open-mode=append",
        f"--output=calib-{verb}-{'%A_%a' if '--array' in asked else '%j'}.log",
    ]
    typed = " ".join(map(_quoted, line)) if "--array" in asked else shlex.join(line)
    run = PLAIN.format(line=typed)
    if requeue is not None:
        options += ["--requeue", f"--signal=B:USR1@{NOTICE_S}"]
        run = REQUEUED.format(line=typed, times=requeue)
    directives = "\n".join(f"#SBATCH {option}" for option in options)
    return f"""\
#!/bin/bash
# written by `calib sbatch`; submit it from the directory it is to run in: sbatch THIS_FILE
#SBATCH --job-name=calib-{verb}
{directives}
set -euo pipefail
cd "${{SLURM_SUBMIT_DIR:?submit this script with sbatch}}"
{run}"""


def _quoted(word: str) -> str:
    """A word for bash, in which {task} becomes the number of the array's task."""
    return (
        '"$SLURM_ARRAY_TASK_ID"'.join(
            shlex.quote(part) if part else "" for part in word.split(TASK)
        )
        or "''"
    )
