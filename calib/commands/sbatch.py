"""Write a Slurm script that runs another verb on whole nodes.

Example: calib sbatch -o job.sh --nodes 2 --ranks-per-node 4 --time 60 -- calibrate --name wolf
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from calib.foundation.errors import FileError, InputError
from calib.foundation.files import destination, write_whole
from calib.jobs import rank_words
from calib.options import MOST
from calib.terminal.printing import file_of, say

EXECUTABLE = 0o111


def command(
    words: Annotated[
        list[str], typer.Argument(help="After --: the verb to run there, with its options.")
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
) -> None:
    asked = {
        "--nodes": str(nodes),
        "--ntasks-per-node": str(ranks_per_node),
        "--time": None if minutes is None else str(minutes),
        "--partition": partition,
        "--account": account,
        "--gpus-per-node": None if gpus_per_node is None else str(gpus_per_node),
    }
    verb, *arguments = words
    line = rank_line(verb, arguments, nodes * ranks_per_node)
    text = script(verb, line, {name: value for name, value in asked.items() if value is not None})
    write_whole(destination(file_of(output, "-o")), text)
    try:
        output.chmod(output.stat().st_mode | EXECUTABLE)
    except OSError as error:
        raise FileError(f"cannot make {output} executable: {error.strerror}") from error
    say(f"written: {output}; submit it from the directory it is to run in: sbatch {output}")


def rank_line(verb: str, arguments: Sequence[str], ranks: int) -> list[str]:
    """The words that run a verb of calib on `ranks` ranks under srun.

    Raises InputError as `rank_words` does.
    """
    words = rank_words(verb, arguments, "slurm", ranks, command="sbatch")
    return [sys.executable, "-m", "calib", *words]


def script(verb: str, line: Sequence[str], asked: dict[str, str]) -> str:
    """The text of the batch script; `asked` are sbatch options.

    Whole nodes are asked for, as other jobs on them would be measured too. Raises InputError for a
    value that is not one word, which an #SBATCH line cannot hold.
    """
    for name, value in asked.items():
        if not value or not value.isprintable() or any(sign in value for sign in " '\"\\#"):
            raise InputError(f"{name} {value!r} is not one plain word")
    directives = "\n".join(f"#SBATCH {name}={value}" for name, value in asked.items())
    return f"""\
#!/bin/bash
# written by `calib sbatch`; submit it from the directory it is to run in: sbatch THIS_FILE
#SBATCH --job-name=calib-{verb}
{directives}
#SBATCH --exclusive
#SBATCH --output=calib-{verb}-%j.log
set -euo pipefail
cd "${{SLURM_SUBMIT_DIR:?submit this script with sbatch}}"
{shlex.join(line)}
"""
