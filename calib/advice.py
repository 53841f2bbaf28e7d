"""What a person can type to mend an error or a gap: the rooms below say only what is wanted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from calib.foundation.division import STRATEGIES, traits_of
from calib.foundation.errors import CalibError
from calib.foundation.execution import USUAL
from calib.oracle.projection import Projection

MOST_RANKS = 16  # in a command
# of an argument without a line here: give --NAME
WORDS = {
    "across": "use --across to do it anyway",
    "allocation": "`calib sbatch` writes one",
    "history": "`calib report` makes one",
    "more ranks": "`calib calibrate --ranks 2` measures two",
    "p": "give -p",
    "prefer": "--prefer first, last or newest says whose is taken",
    "run": "`calib measure -o RUN` makes one",
    "run of logs": "`calib import LOGS -o RUN` makes one of logs",
}


def words_of(want: str) -> str:
    """What to type."""
    if want.startswith("execution "):
        return f"`calib calibrate --execution {want.split()[1]}` measures them"
    return WORDS.get(want) or f"give --{want.replace('_', '-')}"


def advised(error: CalibError) -> str:
    """The line of an error, with what to type where that would mend it."""
    return f"{error}; {words_of(error.wants)}" if error.wants else str(error)


def plan_of(models: str, points: Sequence[Projection]) -> str:
    """The command that plans what predictions of these points need.

    Of the first alone where they have neither a batch nor a batch per rank in common.
    """
    each, whole = {x.batch_per_rank for x in points}, {x.division.batch for x in points}
    if len(each) > 1 < len(whole):
        return plan_of(models, points[:1])
    same = len(each) == 1 and isinstance(points[0].batch_per_rank, int)
    batch = (
        f"--batch-per-rank {points[0].batch_per_rank}"
        if same
        else f"--batch {points[0].division.batch}"
    )
    names = dict.fromkeys(x.strategy for x in points)
    strategies = "all" if {*names} == {*STRATEGIES} else ",".join(names)
    ranks = ",".join(map(str, sorted({x.p for x in points})[:MOST_RANKS]))
    cut = [f" --segments {x.division.segments}" for x in points if traits_of(x.strategy).stages][:1]
    run = {x.execution for x in points} - {USUAL}
    how = f" --execution {','.join(dict.fromkeys(x.execution for x in points))}" if run else ""
    options = f"--strategies {strategies} -p {ranks} {batch}{''.join(cut)}{how} -o plan.toml"
    return f"`calib plan --models {shlex.quote(models)} {options}`"
